#!/usr/bin/env python3
"""The whole evaluation of one method beside kvpress: the same model, documents, budget and number of threads.

Each document: its context is read and brought down to the budget, a continuation is scored, and questions are answered
greedily, each from the compressed context. That is what kvpress' pipeline does; here it is a session, its scores and
its forks. Both compress once, at the end of the context (one chunk here), by the same rule where kvpress has it
(python/tests/kvpress_test.py); adakv divides a layer's budget by another rule. "in chunks" is the same method here as
serving runs it: 128 tokens a pass, so the peak is the budget and one chunk.

Rounds go in turn, ours and theirs; medians. Loading is not counted. kvpress runs in bfloat16 or float32, whichever is
faster on the first document.

    scripts/bench kvpress [--documents 4] [--context 2048] [--budget 256] [--policies streaming knorm snapkv adakv]
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import coppice
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
SNAP = {"window": 32, "kernel": 5, "pool": "avg"}
OPTIONS = {"snapkv": {"policy_options": SNAP}, "adakv": {"policy_options": SNAP}, "tova": {"recent": 1}}


class Theirs:
    """rivals/rival_kvpress.py in kvpress' own environment."""

    def __init__(self, python, folder, threads):
        settings = {"folder": str(folder), "threads": threads}
        self.process = subprocess.Popen([python, str(HERE / "rivals/rival_kvpress.py"), json.dumps(settings)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def evaluate(self, **job):
        self.process.stdin.write(json.dumps({"job": "evaluate", **job}) + "\n")
        self.process.stdin.flush()
        result = json.loads(self.process.stdout.readline() or '{"error": "it ended"}')
        if "error" in result:
            sys.exit(f"kvpress: {result['error']}")
        return result

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def evaluate(model, documents, new):
    """As rival_kvpress.py's evaluate, with the peak besides."""
    held, peaks, scores, answers = [], [], [], []
    start = time.perf_counter()
    for document in documents:
        session = model.session(length=len(document["context"]) + len(document["continuation"]) + new, forks=2)
        read = session.read(document["context"])
        peaks.append(read.usage.kv.bytes_peak)
        held.append(session.kept().bytes)
        rest = session.fork().read(document["continuation"], score=True).prompt_scores
        scores.append(float(rest.logprobs[1:].mean()))
        answers.append([session.fork().generate(question, max_tokens=new, ignore_eos=True).finish().tokens.tolist()
                        for question in document["questions"]])
    return {"seconds": time.perf_counter() - start, "kv_bytes": max(held), "bytes_peak": max(peaks), "logprobs": scores,
            "answers": answers}


def make_documents(model, text, count, context, continuation, questions):
    """Windows of the text, one behind the other; questions are short pieces of what follows."""
    ids = model.encode(text).tolist()
    need = context + continuation
    if len(ids) < count * need:
        sys.exit(f"the text has {len(ids)} tokens, and {count} documents need {count * need}")
    documents = []
    for i in range(count):
        window = ids[i * need:(i + 1) * need]
        after = window[context:]
        documents.append({"context": window[:context], "continuation": after,
                          "questions": [after[16 * q:16 * (q + 1)] for q in range(questions)]})
    return documents


def faster_dtype(theirs, documents, budget, new):
    seconds = {}
    for dtype in ("bfloat16", "float32"):
        job = {"documents": documents[:1], "press": "full", "budget": budget, "new": new, "dtype": dtype}
        theirs.evaluate(**job)
        seconds[dtype] = theirs.evaluate(**job)["seconds"]
    return min(seconds, key=seconds.get)


def agreement(ours, theirs):
    """Share of answer tokens that are the same, up to the first that is not."""
    same = total = 0
    for mine, other in zip(ours["answers"], theirs["answers"], strict=True):
        for a, b in zip(mine, other, strict=True):
            differ = [x != y for x, y in zip(a, b, strict=True)]
            same += differ.index(True) if True in differ else len(a)
            total += len(a)
    return same / total


def measure(args, model, theirs, documents, dtype):
    rows = []
    for policy in args.policies:
        cache = {"policy": policy, "budget": "full" if policy == "full" else args.budget, **OPTIONS.get(policy, {})}
        once, chunked = model.using(chunk=args.context, **cache), model.using(chunk=128, **cache)
        job = {"documents": documents, "press": policy, "budget": args.budget, "new": args.new, "dtype": dtype}
        rounds = [(evaluate(once, documents, args.new), evaluate(chunked, documents, args.new), theirs.evaluate(**job))
                  for _ in range(args.rounds)]
        ours, inside, other = rounds[-1]

        def median(which):
            return statistics.median(r[which]["seconds"] for r in rounds)  # pylint: disable=cell-var-from-loop

        rows.append({"policy": policy, "ours_s": median(0), "chunked_s": median(1), "theirs_s": median(2),
                     "ratio": statistics.median(r[2]["seconds"] / r[0]["seconds"] for r in rounds),
                     "ours_bytes": ours["kv_bytes"], "theirs_bytes": other["kv_bytes"], "ours_peak": ours["bytes_peak"],
                     "chunked_peak": inside["bytes_peak"], "ours_logprob": float(np.mean(ours["logprobs"])),
                     "theirs_logprob": float(np.mean(other["logprobs"])), "answers_alike": agreement(ours, other)})
        print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


def table(rows):
    def mib(size):
        return f"{size / 2**20:.1f}"

    lines = ["| method | coppice, s | in chunks, s | kvpress, s | times as fast | KV held: coppice / kvpress, MiB | "
             "peak: one chunk / in chunks, MiB | mean log-probability: coppice / kvpress | answers alike |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        lines.append(f"| `{row['policy']}` | {row['ours_s']:.2f} | {row['chunked_s']:.2f} | {row['theirs_s']:.2f} | "
                     f"{row['ratio']:.1f} | {mib(row['ours_bytes'])} / {mib(row['theirs_bytes'])} | "
                     f"{mib(row['ours_peak'])} / {mib(row['chunked_peak'])} | {row['ours_logprob']:.3f} / "
                     f"{row['theirs_logprob']:.3f} | {row['answers_alike']:.0%} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="coppice beside kvpress")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--folder", required=True, help="the same model as transformers reads it")
    parser.add_argument("--python", required=True, help="of the environment that holds kvpress")
    parser.add_argument("--text", required=True)
    parser.add_argument("--documents", type=int, default=4)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--continuation", type=int, default=256)
    parser.add_argument("--questions", type=int, default=3)
    parser.add_argument("--new", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--budget", type=int, default=256, help="entries per KV head")
    parser.add_argument("--policies", nargs="+", default=["streaming", "knorm", "snapkv", "expected-attention", "adakv", "full"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", help="JSON file of the numbers")
    args = parser.parse_args()
    model = coppice.load(args.model, gate="none", threads=args.threads)
    documents = make_documents(model, pathlib.Path(args.text).read_text(encoding="utf-8"), args.documents, args.context,
                               args.continuation, args.questions)
    theirs = Theirs(args.python, args.folder, args.threads)
    dtype = faster_dtype(theirs, documents, args.budget, args.new)
    rows = measure(args, model, theirs, documents, dtype)
    theirs.close()
    print(f"{args.documents} documents of {args.context} tokens, budget {args.budget}, {args.continuation} tokens scored, "
          f"{args.questions} answers of {args.new} tokens; {args.threads} threads, {args.rounds} rounds; kvpress in {dtype}\n")
    print(table(rows))
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps({"settings": vars(args), "dtype": dtype, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
