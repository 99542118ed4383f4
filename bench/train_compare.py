#!/usr/bin/env python3
"""`coppice train` beside the same training step in plain PyTorch and transformers: speed, memory, and equal losses.

The rival is bench/rivals/dense_training.py; its header says what it is. Both train the same gate of the same
model on the same row of tokens, with the same number of threads, each run in a process of its own, in turns. The
first step of a process is not timed. Memory is the largest resident set of the process (ru_maxrss). The rival may
take what memory the machine has free; where its activations do not fit, it recomputes them layer by layer. Its
speed is then judged without the time of the second forward pass, as if memory had sufficed.

First, on a short row in float32, both run a few whole steps: KL, next token, capacity and the norm of the
gradient must agree at each, which they do only if losses, gradients and optimizer are the same.

Run it as scripts/bench training.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from cases import OURS, Goal
from compare import machine
from report import Medians, goal_lines, judged

ROOT = pathlib.Path(__file__).resolve().parent.parent
RIVAL = "plain PyTorch"
RECOMPUTING = "plain PyTorch, recomputing"
CHECKED = ("kl", "ntp", "capacity", "gradient_norm")
TOLERANCE = 2e-3  # relative, of float32 sums in another order
CHARACTERS_PER_TOKEN = 4.17  # of the text, a little below or above
GIB = 2**30


def rival_of(medians, length, key):
    """The rival's figure: without recomputation where that fitted."""
    kept = medians.values.get((length, RIVAL, key))
    return kept if kept is not None else medians.value(length, RECOMPUTING, key)


def speed_up(length):
    return lambda medians: medians.value(length, OURS, "tokens_per_s") / rival_of(medians, length, "judged_tokens_per_s")


def memory_share(length):
    return lambda medians: medians.value(length, OURS, "peak_bytes") / rival_of(medians, length, "peak_bytes")


GOALS = [
    Goal("training at 2,048 tokens: tokens/s over plain PyTorch", 1.6, speed_up("2048")),
    Goal("training at 4,096 tokens: tokens/s over plain PyTorch", 2.5, speed_up("4096")),
    Goal("training at 4,096 tokens: share of plain PyTorch's memory", 0.25, memory_share("4096"), at_most=True),
]


class Failed(Exception):
    """A program could not be measured; says why."""


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def run_child(command, environment=None, data_limit=None):
    """-> (stdout, exit status, largest resident set). The child alone is counted."""
    def limit():
        if data_limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (data_limit, data_limit))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        # pylint: disable=subprocess-popen-preexec-fn,consider-using-with
        process = subprocess.Popen(command, stdout=out, stderr=errors, preexec_fn=limit,
                                   env=os.environ | (environment or {}))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        return out.read().decode(), errors.read().decode(errors="replace"), process.returncode, usage.ru_maxrss * 1024


class Comparison:
    def __init__(self, args, work):
        self.args, self.work = args, pathlib.Path(work)
        self.text = pathlib.Path(args.text).read_text(encoding="utf-8")
        self.rows, self.notes = [], []

    def document(self, length):
        """A text of `length` to 2 x `length` tokens, of which both read the first `length`; (text file, data file)."""
        text = self.text[:int(length * CHARACTERS_PER_TOKEN * 1.4)]
        plain, data = self.work / f"{length}.txt", self.work / f"{length}.jsonl"
        plain.write_text(text, encoding="utf-8")
        data.write_text(json.dumps({"id": "bench", "source": "bench", "text": text}) + "\n", encoding="utf-8")
        return plain, data

    def ours(self, length, steps, dtype):
        args = self.args
        out = self.work / "gate.safetensors"
        _, data = self.document(length)
        command = [args.coppice, "train", "--model", args.model, "--data", data, "--out", out, "--restart",
                   "--init-from", args.gate, "--length", length, "--min-tokens", length, "--pack-window", 1,
                   "--batch-rows", 1, "--steps", steps, "--warmup", 0, "--learning-rate", args.learning_rate,
                   "--last-learning-rate", args.learning_rate, "--capacity", args.capacity, "--save-every", 0,
                   "--threads", args.threads, "--dtype", dtype]
        command = [str(word) for word in command]
        _, errors, status, peak = run_child(command)
        if status != 0:
            raise Failed(f"{' '.join(command)}: {errors.strip()}")
        with open(f"{out}.log.jsonl", encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        if [record["step_tokens"] for record in records] != [length] * steps:
            raise Failed(f"coppice train took other rows than {steps} of {length} tokens")
        for record in records:
            record["seconds"] = length / record["tokens_per_s"]
        return records, peak

    def theirs(self, length, steps, dtype, recompute):
        """-> (steps or None when memory ran out, largest resident set)."""
        args = self.args
        plain, _ = self.document(length)
        job = self.work / "job.json"
        job.write_text(json.dumps({
            "model": args.model, "folder": args.folder, "gate": args.gate, "text": str(plain), "length": length,
            "steps": steps, "threads": args.threads, "dtype": dtype, "capacity": args.capacity,
            "learning_rate": args.learning_rate, "checkpointing": recompute}), encoding="utf-8")
        command = [sys.executable, str(ROOT / "bench/rivals/dense_training.py"), str(job)]
        limit = max(GIB, available_bytes() - GIB)
        out, errors, status, peak = run_child(command, {"OMP_NUM_THREADS": str(args.threads)}, limit)
        if status != 0 and "bad_alloc" not in errors:
            raise Failed(f"dense_training.py: {errors.strip()[-2000:]}")
        result = json.loads(out) if status == 0 else {"out_of_memory": True}
        if result.get("out_of_memory"):
            self.notes.append(f"{length} tokens: plain PyTorch's activations did not fit in {limit / GIB:.1f} GiB"
                              f" (it held {peak / GIB:.1f} when it gave up)")
            return None, peak
        return result["steps"], peak

    def check(self):
        """Both in float32 -> [{what, step, ours, theirs, relative difference}]."""
        length, steps = self.args.check_tokens, self.args.check_steps
        ours, _ = self.ours(length, steps, "float32")
        theirs, _ = self.theirs(length, steps, "float32", False)
        if theirs is None:
            raise Failed("no memory for the check of losses")
        return compare_steps(ours, theirs)

    def measure(self, length, repeats):
        fits = True
        for repeat in range(repeats):
            say(f"{length} tokens, {repeat + 1} of {repeats}")
            self.add(length, OURS, self.ours(length, 1 + self.args.steps, "bfloat16"))
            if fits:
                found = self.theirs(length, 1 + self.args.steps, "bfloat16", False)
                fits = found[0] is not None
                if fits:
                    self.add(length, RIVAL, found)
            if not fits:
                found = self.theirs(length, 1 + self.args.steps, "bfloat16", True)
                if found[0] is None:
                    raise Failed(f"plain PyTorch runs out of memory at {length} tokens, even recomputing")
                self.add(length, RECOMPUTING, found)

    def add(self, length, engine, found):
        rows = rows_of(str(length), engine, length, *found)
        self.rows += rows
        say(f"{engine}: " + ", ".join(f"{row['step_s']:.2f} s" for row in rows)
            + f", {rows[0]['peak_bytes'] / GIB:.2f} GiB")


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def rows_of(case, engine, length, steps, peak):
    """One row per timed step. A recomputing rival is judged without its second forward pass."""
    rows = []
    for step in steps[1:]:
        judged_seconds = step["seconds"] - (step["student_seconds"] if engine == RECOMPUTING else 0.0)
        rows.append({"case": case, "engine": engine, "tokens_per_s": length / step["seconds"],
                     "judged_tokens_per_s": length / judged_seconds, "step_s": step["seconds"], "peak_bytes": peak})
    return rows


def compare_steps(ours, theirs):
    result = []
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True), start=1):
        for what in CHECKED:
            result.append({"step": step, "what": what, "ours": a[what], "theirs": b[what],
                           "difference": abs(a[what] - b[what]) / max(abs(b[what]), 1e-12)})
    return result


def check_lines(checked):
    lines = [f"{'step':>4}  {'what':14}{'coppice':>14}{'plain PyTorch':>16}{'difference':>12}"]
    for row in checked:
        verdict = "" if row["difference"] <= TOLERANCE else "   DIFFERS"
        lines.append(f"{row['step']:>4}  {row['what']:14}{row['ours']:>14.6f}{row['theirs']:>16.6f}"
                     f"{row['difference']:>12.1e}{verdict}")
    return lines


def table(medians):
    lines = [f"{'tokens':>6}  {'':28}{'tokens/s':>9}{'x':>7}{'step':>9}{'peak memory':>14}{'share':>8}"]
    for case in dict.fromkeys(case for case, _, _ in medians.values):
        for engine in medians.engines(case, "tokens_per_s"):
            rate, peak = (medians.value(case, engine, key) for key in ("tokens_per_s", "peak_bytes"))
            line = (f"{int(case):>6,}  {engine:28}{rate:>9.1f}{'':7}{medians.value(case, engine, 'step_s'):>7.2f} s"
                    f"{peak / GIB:>10.2f} GiB")
            if engine != OURS:
                x = medians.value(case, OURS, "tokens_per_s") / rate
                share = medians.value(case, OURS, "peak_bytes") / peak
                line = (f"{int(case):>6,}  {engine:28}{rate:>9.1f}{x:>7.2f}"
                        f"{medians.value(case, engine, 'step_s'):>7.2f} s{peak / GIB:>10.2f} GiB{share:>8.2f}")
            lines.append(line)
            if engine == RECOMPUTING:
                less = medians.value(case, engine, "judged_tokens_per_s")
                x = medians.value(case, OURS, "tokens_per_s") / less
                lines.append(f"{'':8}{'  less its second forward':28}{less:>9.1f}{x:>7.2f}")
    return lines


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coppice", default=str(ROOT / "build/release/coppice"))
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--gate", default=str(ROOT / "gates/smollm2-135m.safetensors"),
                        help="both start from it; of two hidden layers, variant head-row")
    parser.add_argument("--folder", required=True, help="where the rival keeps what it converts")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--text", default=str(ROOT / "examples/persuasion.txt"))
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 4096], help="tokens of a row")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each, in turns")
    parser.add_argument("--steps", type=int, default=1, help="timed in each process, after one that is not")
    parser.add_argument("--capacity", type=float, default=16,
                        help="entries per KV head of the capacity term; few, so that it acts on a short row too")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--check-tokens", type=int, default=256, help="row of the check in float32")
    parser.add_argument("--check-steps", type=int, default=3)
    parser.add_argument("--no-check", action="store_true", help="measure alone")
    parser.add_argument("--out", default=str(ROOT / "build/bench-training.json"))
    return parser.parse_args()


def write_json(args, comparison, checked, medians, seconds):
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    record = {
        "commit": commit.stdout.strip(), "machine": machine(), "threads": args.threads,
        "versions": {name: importlib.metadata.version(name) for name in ("transformers", "torch")},
        "command": sys.argv[1:], "seconds": seconds, "check": checked, "notes": comparison.notes,
        "goals": [{"what": goal.what, "bound": goal.bound, "at_most": goal.at_most, "value": value}
                  for goal, value in judged(medians, GOALS)],
        "medians": [{"case": case, "engine": engine, "key": key, "value": value}
                    for (case, engine, key), value in medians.values.items()],
        "rows": comparison.rows}
    path = pathlib.Path(args.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main():
    args = parse()
    begin, checked, agree = time.monotonic(), [], True
    with tempfile.TemporaryDirectory() as work:
        comparison = Comparison(args, work)
        try:
            if not args.no_check:
                say(f"losses of {args.check_steps} steps on {args.check_tokens} tokens, float32")
                checked = comparison.check()
                agree = all(row["difference"] <= TOLERANCE for row in checked)
                print("\n".join(check_lines(checked)) + "\n", flush=True)
            for length in args.lengths:
                comparison.measure(length, args.repeats)
        except Failed as error:
            sys.exit(f"bench: {error}")
    medians = Medians(comparison.rows)
    if comparison.rows:
        print(f"Medians on {machine()['processor']}, {args.threads} threads; x: how many times as fast coppice is")
        print("\n".join(table(medians)))
        print("\n" + "\n".join(goal_lines(medians, GOALS)))
    for note in comparison.notes:
        print(f"note: {note}")
    write_json(args, comparison, checked, medians, round(time.monotonic() - begin))
    print(f"all measurements: {args.out}")
    if not agree:
        sys.exit("bench: the losses differ")


if __name__ == "__main__":
    main()
