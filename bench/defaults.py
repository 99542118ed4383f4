#!/usr/bin/env python3
"""Which settings a gated policy should have when nothing is said: an ablation by perplexity.

From the defaults one setting at a time is changed: sinks, recent, floor, look-ahead, and the tokens read between
two evictions (--chunk). Each is measured with `coppice eval ppl` at several budgets on texts that the gate was not
trained on, and told as perplexity over that of the full cache. Documents shorter than the context are left out; of
the others the first `context` tokens are read and their second half is scored, a document at a time, which gives
the interval: 95 %, from the spread of the documents' differences to the defaults at the same budget.

Results are appended to --out, a JSON object per line and run; what it holds already is not run again, so that a
run that was stopped goes on where it was. The table is Markdown, on stdout.
"""

import argparse
import hashlib
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEFAULTS = {"kv-sinks": 4, "kv-recent": 0, "kv-floor": 0, "lookahead": 2, "chunk": 128}
VARIED = {"kv-sinks": (0, 4, 8), "kv-recent": (0, 16, 32), "kv-floor": (0, 8), "lookahead": (1, 2, 16, 128),
          "chunk": (16, 32, 128)}
NAMES = {"kv-sinks": "sinks", "kv-recent": "recent", "kv-floor": "floor", "lookahead": "look-ahead",
         "chunk": "tokens between evictions"}
CHARACTERS_PER_TOKEN = 6  # of hardly any text more: a cheaper test than counting


def settings(fast):
    """[(what was changed or None, value, all settings)], the defaults first."""
    result = [(None, None, DEFAULTS)]
    for name, values in VARIED.items():
        for value in values:
            if value != DEFAULTS[name]:
                result.append((name, value, DEFAULTS | {name: value}))
    if not fast:  # evicting after every token, as decoding does: slow to read
        result.append(("chunk", 1, DEFAULTS | {"chunk": 1}))
    return result


def documents(paths, wanted):
    """[(name, text)], `wanted` from each file, spread over the file; of JSON lines with a "text", or plain files."""
    found = []
    for path in paths:
        text = pathlib.Path(path).read_text(encoding="utf-8")
        if not path.endswith(".jsonl"):
            found.append((pathlib.Path(path).name, text))
            continue
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
        lines = [line for line in lines if len(line.get("text", "")) > wanted.context * CHARACTERS_PER_TOKEN]
        if len(lines) < wanted.documents:
            sys.exit(f"defaults: {path} has {len(lines)} documents long enough, {wanted.documents} are wanted")
        step = len(lines) / wanted.documents
        found += [(lines[int(i * step)]["id"], lines[int(i * step)]["text"]) for i in range(wanted.documents)]
    return found


def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


class Runs:
    """What was measured, kept in a file."""

    def __init__(self, args):
        self.args, self.path = args, pathlib.Path(args.out)
        self.identity = {"gate": sha256(args.gate), "context": args.context}
        self.known = {}
        if self.path.exists():
            text = self.path.read_text(encoding="utf-8")
            if text and not text.endswith("\n"):  # cut off by the end of its process
                self.path.write_text(text + "\n", encoding="utf-8")
            for line in text.splitlines():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    continue
                self.known[self.key(row)] = row["mean_nll"]

    @staticmethod
    def key(row):
        return json.dumps([row[name] for name in ("gate", "context", "document", "policy", "budget", "settings")])

    def nll(self, document, text, policy, budget, flags):
        """Mean -log p of the scored tokens of one document."""
        row = self.identity | {"document": document, "policy": policy, "budget": budget, "settings": flags}
        key = self.key(row)
        if key not in self.known:
            row["mean_nll"] = self.measure(text, policy, budget, flags)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
            self.known[key] = row["mean_nll"]
        return self.known[key]

    def measure(self, text, policy, budget, flags):
        args = self.args
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            command = [args.coppice, "eval", "ppl", "--model", args.model, "--gate", args.gate, "--text", file.name,
                       "--context", args.context, "--policy", policy, "--kv-budget", budget, "--json"]
            command += [word for name, value in flags.items() for word in (f"--{name}", value)]
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"defaults: {' '.join(map(str, command))}: {done.stderr.strip()}")
        return json.loads(done.stdout)["mean_nll"]


def summary(nlls, full, base):
    """Perplexity ratio to the full cache over all documents, and to the defaults with half its 95 % interval."""
    ratio = math.exp(statistics.fmean(nlls) - statistics.fmean(full))
    differences = [a - b for a, b in zip(nlls, base, strict=True)]
    half = 0.0 if len(differences) < 2 else 1.96 * statistics.stdev(differences) / math.sqrt(len(differences))
    return ratio, math.exp(statistics.fmean(differences)) - 1, half


def table(results, budgets):
    """Markdown. results: [(setting, value, {budget: summary})], the defaults first."""
    lines = ["| setting | value | " + " | ".join(f"budget {budget}" for budget in budgets) + " |",
             "| --- | --- |" + " --- |" * len(budgets)]
    for name, value, found in results:
        cells = []
        for budget in budgets:
            if found[budget] is None:
                cells.append("")
                continue
            ratio, change, half = found[budget]
            cells.append(f"{ratio:.4f}" if name is None else f"{ratio:.4f} ({100 * change:+.2f} ± {100 * half:.2f} %)")
        title = "defaults" if name is None else NAMES[name]
        shown = ", ".join(f"{NAMES[key]} {number}" for key, number in DEFAULTS.items()) if name is None else value
        lines.append(f"| {title} | {shown} | " + " | ".join(cells) + " |")
    return lines


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coppice", default=str(ROOT / "build/release/coppice"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--gate", default=str(ROOT / "gates/smollm2-135m.safetensors"))
    parser.add_argument("--policy", default="dbtrimkv")
    parser.add_argument("--text", nargs="+", required=True, help="JSON-lines files of documents, or plain texts")
    parser.add_argument("--documents", type=int, default=8, help="of each JSON-lines file")
    parser.add_argument("--context", type=int, default=2048, help="tokens of each document")
    parser.add_argument("--budgets", type=int, nargs="+", default=[64, 128, 256], help="entries per KV head")
    parser.add_argument("--fast", action="store_true", help="without eviction after every token, which is slow")
    parser.add_argument("--out", default=str(ROOT / "build/defaults.jsonl"))
    return parser.parse_args()


def main():
    args = parse()
    runs, texts = Runs(args), documents(args.text, args)
    full = [runs.nll(name, text, "full", "full", {}) for name, text in texts]
    results, base = [], {}
    for changed, value, flags in settings(args.fast):
        found = {}
        for budget in args.budgets:
            if flags["kv-sinks"] + flags["kv-recent"] > budget:  # would not fit
                found[budget] = None
                continue
            nlls = [runs.nll(name, text, args.policy, budget, flags) for name, text in texts]
            base.setdefault(budget, nlls)
            found[budget] = summary(nlls, full, base[budget])
        results.append((changed, value, found))
        print(f"defaults: {'as they are' if changed is None else f'{NAMES[changed]} {value}'}: "
              + ", ".join(f"{budget}: {cell[0]:.4f}" for budget, cell in found.items() if cell),
              file=sys.stderr, flush=True)
    print(f"Perplexity over that of the full cache: {args.policy}, {len(texts)} documents of {args.context} tokens, "
          "the last half scored; in brackets the change from the defaults and its 95 % interval\n")
    print("\n".join(table(results, args.budgets)))


if __name__ == "__main__":
    main()
