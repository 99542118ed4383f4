#!/usr/bin/env python3
"""Prints what a text costs with each cache: memory, speed, and how well the model predicts its second half."""

import json
import subprocess
import sys


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def main():
    coppice, text, budget = sys.argv[1:]
    tokens = 6000
    print(f"{'cache':24}{'entries':>10}{'KV memory':>12}{'read':>12}{'write':>12}{'perplexity':>12}")
    for label, policy, limit in (("full", "full", "full"), ("dbtrimkv", "dbtrimkv", budget),
                                 ("streaming", "streaming", budget)):
        cache = ["--policy", policy, "--kv-budget", limit, "--json"]
        speed = run([coppice, "run", "--raw", "--prompt-file", text, "--max-tokens", "48", "--ignore-eos", *cache])
        score = run([coppice, "eval", "ppl", "--text", text, "--context", str(tokens), "--chunks", "1", *cache])
        kv, timing = speed["kv"], speed["timing"]
        name = label if limit == "full" else f"{label}, {limit} a head"
        print(f"{name:24}{kv['kept_entries']:>10,}{kv['bytes_peak'] / 2**20:>8.1f} MiB"
              f"{timing['prefill_tokens_per_s']:>8.0f} t/s{timing['decode_tokens_per_s']:>8.0f} t/s"
              f"{score['perplexity']:>12.2f}")
    print(f"(perplexity of the second half of the first {tokens:,} tokens; KV memory is the peak, one chunk included)")


if __name__ == "__main__":
    main()
