#!/usr/bin/env python3
"""Coppice and its rivals side by side: the same model file, prompt and threads, in one run.

Repeats are interleaved, engine after engine; medians and ratios of medians are printed, all measurements go to
a JSON file, and a picture is drawn beside it. Run it through `make bench` or scripts/bench.

Time to the first token counts from the start of the process, for all; of rivals it is also told from before
they open the model, interpreter and imports left out. Files are in the system's cache.
"""

import argparse
import dataclasses
import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

from cases import OURS, RIVALS, qwen_cases, smollm2_cases
from engines import Coppice, Failed, Rival, busy_core
from report import Medians, draw, goal_lines, judged, table

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = ROOT / "examples/persuasion.txt"
FIRST_TOKENS = 30  # of a prompt whose first answer token is waited for


def token_ids(model, text):
    """Ids of the text, and the text of the first FIRST_TOKENS of them."""
    script = ("import json, sys; from llama_cpp import Llama\n"
              "m = Llama(sys.argv[1], vocab_only=True, verbose=False)\n"
              "ids = m.tokenize(open(sys.argv[2], 'rb').read(), add_bos=False, special=False)\n"
              "print(json.dumps([ids, m.detokenize(ids[:int(sys.argv[3])]).decode()]))\n")
    done = subprocess.run([sys.executable, "-c", script, model, str(text), str(FIRST_TOKENS)],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"bench: llama-cpp-python cannot read {model}:\n{done.stderr}")
    return json.loads(done.stdout)


class Bench:
    """Engines of one model, and what was measured with them."""

    def __init__(self, args, model):
        self.ids, self.first_text = token_ids(model, args.text)
        self.ids = list(itertools.islice(itertools.cycle(self.ids), 16384))
        settings = {"model": model, "threads": args.threads, "folder": args.folder}
        self.engines = {OURS: Coppice(args.coppice, model, args.threads, args.text)}
        for name, (script, options) in RIVALS.items():
            self.engines[name] = Rival(script, settings, self.ids, options)
        self.rows, self.failures = [], {}

    def measure(self, case, name):
        engine = self.engines[name]
        if name in case.once:
            case = dataclasses.replace(case, new=min(case.new, 8))
        with busy_core(case.busy):
            result = engine.first_token(case, self.first_text) if case.first_token else engine.speed(case)
        self.rows.append({"case": case.name, "engine": name, **result})

    def run(self, cases):
        for case in cases:
            print(f"bench: {case.what}", file=sys.stderr, flush=True)
            for repeat in range(case.repeats):
                for name in (OURS, *case.rivals):
                    if (case.name, name) in self.failures or (repeat > 0 and name in case.once):
                        continue
                    try:
                        self.measure(case, name)
                    except Failed as error:
                        if name == OURS:
                            sys.exit(f"bench: {error}")
                        self.failures[case.name, name] = str(error)
                        print(f"bench: {name} failed: {error}", file=sys.stderr)
            for engine in self.engines.values():  # nobody else's threads and memory in the next case
                engine.close()


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
                  if line.startswith("model name")), platform.machine())
    return {"processor": model, "cores": os.cpu_count()}


def versions():
    return {name: importlib.metadata.version(name)
            for name in ("llama-cpp-python", "transformers", "torch", "openvino-genai")}


def write_json(args, rows, failures, medians, seconds):
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    record = {
        "commit": commit.stdout.strip(), "machine": machine(), "threads": args.threads, "versions": versions(),
        "command": sys.argv[1:], "seconds": seconds,
        "goals": [{"what": goal.what, "bound": goal.bound, "at_most": goal.at_most, "value": value}
                  for goal, value in judged(medians)],
        "medians": [{"case": case, "engine": engine, "key": key, "value": value}
                    for (case, engine, key), value in medians.values.items()],
        "failures": [{"case": case, "engine": engine, "error": error} for (case, engine), error in failures.items()],
        "rows": rows}
    pathlib.Path(args.out).write_text(json.dumps(record, indent=1), encoding="utf-8")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coppice", default=str(ROOT / "build/release/coppice"))
    parser.add_argument("--model", required=True, help="GGUF file of the default model")
    parser.add_argument("--qwen", help="GGUF file of Qwen2.5-Coder-0.5B, measured too when it is there")
    parser.add_argument("--folder", required=True, help="where rivals keep what they convert")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--text", default=str(TEXT))
    parser.add_argument("--repeats", type=int, help="of each case [3 to 7]")
    parser.add_argument("--only", nargs="*", help="names of cases [all]")
    parser.add_argument("--quick", action="store_true",
                        help="llama.cpp alone, fewer repeats, 2,048 tokens as the long context")
    parser.add_argument("--out", default=str(ROOT / "build/bench.json"))
    return parser.parse_args()


def main():
    args = parse()
    pathlib.Path(args.folder).mkdir(parents=True, exist_ok=True)
    wanted = [(args.model, smollm2_cases(args.quick))]
    if args.qwen and os.path.exists(args.qwen) and not args.quick:
        wanted.append((args.qwen, qwen_cases()))
    known = [case.name for _, cases in wanted for case in cases]
    for name in args.only or []:
        if name not in known:
            sys.exit(f"bench: no case {name!r}; expected one of: {', '.join(known)}")
    begin, rows, failures, measured = time.monotonic(), [], {}, []
    for model, cases in wanted:
        cases = [case for case in cases if not args.only or case.name in args.only]
        if not cases:
            continue
        for case in cases:
            case.repeats = args.repeats or case.repeats
        bench = Bench(args, model)
        bench.run(cases)
        rows += bench.rows
        failures |= bench.failures
        measured += cases
    medians = Medians(rows)
    print("Medians; x: how many times as fast coppice is")
    print("\n".join(table(medians, measured)))
    print("\n" + "\n".join(goal_lines(medians)))
    for (case, engine), error in failures.items():
        print(f"not measured: {engine}, {case}: {error.splitlines()[-1]}")
    out = pathlib.Path(args.out)
    write_json(args, rows, failures, medians, round(time.monotonic() - begin))
    pictures = [out.with_suffix(".png"), out.with_suffix(".svg")]
    draw(medians, measured, f"{machine()['processor']}, {args.threads} threads", pictures)
    print(f"all measurements: {out}; picture: {pictures[0]}")


if __name__ == "__main__":
    main()
