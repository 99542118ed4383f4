#!/usr/bin/env python3
"""Prints what a text costs with each cache: memory, speed, how well the model predicts its second half, and
what it answers."""

import json
import subprocess
import sys

TOKENS = 6000  # of the text, for the perplexity


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def main():
    coppice, text, budget, question = sys.argv[1:]
    answers = []
    print(f"{'cache':24}{'entries':>10}{'KV memory':>12}{'read':>12}{'write':>12}{'perplexity':>12}")
    for policy, limit in (("full", "full"), ("dbtrimkv", budget), ("streaming", budget)):
        cache = ["--policy", policy, "--kv-budget", limit, "--json"]
        answer = run([coppice, "run", "--prompt-file", text, question, "--max-tokens", "60", *cache])
        score = run([coppice, "eval", "ppl", "--text", text, "--context", str(TOKENS), *cache])
        kv, timing = answer["kv"], answer["timing"]
        name = policy if limit == "full" else f"{policy}, {limit} a head"
        print(f"{name:24}{kv['kept_entries']:>10,}{kv['bytes_peak'] / 2**20:>8.1f} MiB"
              f"{timing['prefill_tokens_per_s']:>8.0f} t/s{timing['decode_tokens_per_s']:>8.0f} t/s"
              f"{score['perplexity']:>12.2f}")
        answers.append(f"{name:24}{' '.join(answer['text'].split())}")
    print(f"(KV memory is the peak, one chunk included; perplexity of the second half of {TOKENS:,} tokens: lower is "
          "better)")
    print(f"\n{question}")
    print("\n".join(answers))


if __name__ == "__main__":
    main()
