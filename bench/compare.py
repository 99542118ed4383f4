#!/usr/bin/env python3
"""Side by side with llama.cpp (llama-cpp-python): the same GGUF, prompt and threads, in one run.

Repeats are interleaved, each in a process of its own; medians and their ratio are printed, and all
measurements go to a JSON file. Run it through `make bench`.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

RIVAL = """
import json, sys, time
from llama_cpp import Llama
model, prompt_file, prompt_tokens, new_tokens, threads, flash = sys.argv[1:]
prompt_tokens, new_tokens = int(prompt_tokens), int(new_tokens)
llm = Llama(model, n_ctx=prompt_tokens + new_tokens + 8, n_threads=int(threads), n_threads_batch=int(threads),
            n_batch=512, flash_attn=flash == "1", verbose=False)
tokens = llm.tokenize(open(prompt_file, "rb").read(), add_bos=False, special=False)[:prompt_tokens]
assert len(tokens) == prompt_tokens
llm.eval(tokens[:8]); llm.reset()  # first use allocates
start = time.perf_counter(); llm.eval(tokens); prefill = time.perf_counter() - start
start = time.perf_counter()
for _ in range(new_tokens):
    llm.eval([llm.sample(temp=0.0)])
decode = time.perf_counter() - start
print(json.dumps({"prefill_tokens_per_s": prompt_tokens / prefill, "decode_tokens_per_s": new_tokens / decode}))
"""


def run_ours(args, case, prompt_file):
    command = [args.coppice, "run", "--model", args.model, "--raw", "--prompt-file", prompt_file,
               "--max-tokens", str(args.new_tokens), "--ignore-eos", "--temperature", "0", "--json",
               "--threads", str(args.threads), "--kv-budget", case["budget"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(command)} failed:\n{done.stderr}")
    result = json.loads(done.stdout)
    if result["tokens"]["prompt"] != case["prompt"]:
        sys.exit(f"bench: prompt has {result['tokens']['prompt']} tokens, expected {case['prompt']}")
    return result["timing"]


def run_rival(args, case, prompt_file, flash):
    command = [args.python, "-c", RIVAL, args.model, prompt_file, str(case["prompt"]),
               str(args.new_tokens), str(args.threads), "1" if flash else "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"bench: llama-cpp-python failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def cut_prompt(args, tokens, folder):
    """A file whose text is exactly the first `tokens` tokens of the example text."""
    script = ("import sys; from llama_cpp import Llama\n"
              "m = Llama(sys.argv[1], vocab_only=True, verbose=False)\n"
              "ids = m.tokenize(open(sys.argv[2], 'rb').read(), add_bos=False, special=False)[:int(sys.argv[3])]\n"
              "open(sys.argv[4], 'wb').write(m.detokenize(ids))\n")
    path = os.path.join(folder, f"prompt-{tokens}.txt")
    subprocess.run([args.python, "-c", script, args.model, str(ROOT / "examples/persuasion.txt"), str(tokens), path],
                   check=True, capture_output=True)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coppice", default=str(ROOT / "build/release/coppice"))
    parser.add_argument("--python", required=True, help="a Python with llama-cpp-python")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default=str(ROOT / "build/bench.json"))
    args = parser.parse_args()

    cases = [{"prompt": 512, "budget": "full"}, {"prompt": 6000, "budget": "512"}]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            prompt_file = cut_prompt(args, case["prompt"], folder)
            for _ in range(args.repeats if case["prompt"] < 2000 else max(1, args.repeats // 2)):
                for engine in ("coppice", "llama.cpp", "llama.cpp flash"):
                    timing = (run_ours(args, case, prompt_file) if engine == "coppice"
                              else run_rival(args, case, prompt_file, engine.endswith("flash")))
                    rows.append({"engine": engine, **case, **timing})
    print(f"{'work':34}{'coppice':>10}{'llama.cpp':>11}{'ratio':>8}   (medians, tokens/s; llama.cpp: the better "
          "of flash attention on and off)")
    for case in cases:
        for key, label in (("prefill_tokens_per_s", "prefill"), ("decode_tokens_per_s", "decode at")):
            median = {}
            for engine in ("coppice", "llama.cpp", "llama.cpp flash"):
                median[engine] = statistics.median(
                    row[key] for row in rows if row["engine"] == engine and row["prompt"] == case["prompt"])
            ours, rival = median["coppice"], max(median["llama.cpp"], median["llama.cpp flash"])
            print(f"{label} {case['prompt']}, ours at budget {case['budget']:8}".ljust(34) +
                  f"{ours:10.1f}{rival:11.1f}{ours / rival:8.2f}")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    pathlib.Path(args.out).write_text(json.dumps(
        {"commit": commit.stdout.strip(), "threads": args.threads, "rows": rows}, indent=1))
    print(f"all measurements: {args.out}")


if __name__ == "__main__":
    main()
