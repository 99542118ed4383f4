"""Compares our tokenizers with the Hugging Face `tokenizers` library on nasty random strings.

    python tokenizer_parity.py --tool build/release/tokenize_tool [--count 10000] [--seed 1] [--bench]

Vocabularies are looked for in $COPPICE_ASSETS; missing ones are skipped, aloud. For a GGUF file the
reference is built from its tokens and merges (or scores) with the published pre-tokenizer.
Prints one line per vocabulary; exit code 1 when any id or decoded text differs.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

MODELS = "llama_cpp_python-0.3.36/vendor/llama.cpp/models/"
VOCABULARIES = {
    "qwen3": "qwen3-tokenizer/tokenizer.json",
    "qwen2": MODELS + "ggml-vocab-qwen2.gguf",
    "qwen2.5-coder": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "llama-bpe": MODELS + "ggml-vocab-llama-bpe.gguf",
    "gpt-2": MODELS + "ggml-vocab-gpt-2.gguf",
    "llama-spm": MODELS + "ggml-vocab-llama-spm.gguf",
}

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL


def byte_level(pre):
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    split = lambda regex: pre_tokenizers.Split(Regex(regex), "isolated")
    return {
        "gpt-2": gpt2,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]),
        "qwen2": pre_tokenizers.Sequence([split(QWEN2), plain]),
        "llama-bpe": pre_tokenizers.Sequence([split(LLAMA3), plain]),
    }[pre]


def from_gguf(path):
    import gguf

    fields = gguf.GGUFReader(path).fields
    get = lambda key: fields["tokenizer.ggml." + key].contents()
    tokens, types = get("tokens"), get("token_type")
    vocab = {}
    for i, token in enumerate(tokens):
        vocab.setdefault(token, i)
    if get("model") == "gpt2":
        pre = get("pre")
        merges = [tuple(m.split(" ")) for m in get("merges")]
        bpe = models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe")
        result = Tokenizer(bpe)
        result.pre_tokenizer = byte_level(pre)
        result.decoder = decoders.ByteLevel()
        if pre == "qwen2":
            result.normalizer = normalizers.NFC()
    else:
        scores = get("scores")
        normal = {t: i for t, i in vocab.items() if types[i] == 1}
        merges = []
        for token, i in normal.items():
            for cut in range(1, len(token)):
                if token[:cut] in normal and token[cut:] in normal:
                    merges.append((-scores[i], i, token[:cut], token[cut:]))
        merges = [(a, b) for _, _, a, b in sorted(merges)]
        bpe = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        result = Tokenizer(bpe)
        blank = normalizers.Replace(" ", "\u2581")
        result.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), blank])
        result.decoder = decoders.Sequence([
            decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0)])
    for i, token in enumerate(tokens):
        if types[i] in (2, 3):
            result.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif types[i] == 4:
            result.add_tokens([AddedToken(token, normalized=False)])
    return result


# Patterns with no scanner of their own: these run on PCRE2.
QWEN35 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n/]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS
         + r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
         + CONTRACTIONS + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def with_pattern(ref, pattern):
    ref.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def with_flags(ref):
    ref.normalizer = normalizers.NFC()
    ref.add_tokens([AddedToken("world", single_word=True, normalized=False),
                    AddedToken("<L>", lstrip=True, normalized=False),
                    AddedToken("<R>", rstrip=True, normalized=False),
                    AddedToken("caf\u00e9", normalized=True), AddedToken("Stra\u00dfe")])


def with_metaspace(ref, scheme, split):
    ref.normalizer = None
    ref.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", scheme, split)


# tokenizer.json files made from a vocabulary above: (vocabulary, change).
VARIANTS = {
    "smollm2.json": ("smollm2", lambda ref: None),
    "llama-bpe.json": ("llama-bpe", lambda ref: None),
    "llama-spm.json": ("llama-spm", lambda ref: None),
    "flags.json": ("smollm2", with_flags),
    "qwen35-split.json": ("qwen2", lambda ref: with_pattern(ref, QWEN35)),
    "o200k-split.json": ("llama-bpe", lambda ref: with_pattern(ref, O200K)),
    "metaspace-first.json": ("llama-spm", lambda ref: with_metaspace(ref, "first", False)),
    "metaspace-always.json": ("llama-spm", lambda ref: with_metaspace(ref, "always", False)),
    "metaspace-split.json": ("llama-spm", lambda ref: with_metaspace(ref, "always", True)),
    "metaspace-never.json": ("llama-spm", lambda ref: with_metaspace(ref, "never", True)),
}


def reference(path):
    return Tokenizer.from_file(path) if path.endswith(".json") else from_gguf(path)


def pools():
    """Names of kinds of text, each a function of a random.Random that returns a string."""
    span = lambda first, last: lambda r: chr(r.randint(first, last))
    one = lambda *items: lambda r: r.choice(items)
    scripts = [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x370, 0x3FF), (0x400, 0x52F),
               (0x5D0, 0x5EA), (0x620, 0x6FF), (0x900, 0x97F), (0xE00, 0xE5B), (0xF00, 0xFFF),
               (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x3040, 0x30FF),
               (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1E00, 0x1FFF), (0x20000, 0x2A6DF),
               (0x1D400, 0x1D7FF), (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0xFF00, 0xFFEF)]

    def script(r):
        first, last = r.choice(scripts)
        return "".join(chr(r.randint(first, last)) for _ in range(r.randint(1, 8)))

    def anything(r):
        while True:
            c = r.randint(0, 0x10FFFF)
            if not 0xD800 <= c < 0xE000:
                return chr(c)

    def combining(r):
        ranges = [(0x300, 0x36F), (0x483, 0x487), (0x591, 0x5BD), (0x64B, 0x655), (0x93C, 0x94D),
                  (0x1AB0, 0x1ABD), (0x1DC0, 0x1DF5), (0x20D0, 0x20F0), (0x302A, 0x302F),
                  (0x3099, 0x309A), (0xFE20, 0xFE2F), (0x1161, 0x11C2)]
        marks = "".join(chr(r.randint(*r.choice(ranges))) for _ in range(r.randint(1, 6)))
        return r.choice(["", "e", "A", "\u304b", "\u1100", "\u0915", "-", " "]) + marks

    blanks = one(" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\u00a0", "\u2003",
                 "\u3000", "\u0085", "\u2028", "\u200b", "\u180e", "\x0b", "\x0c", "\x1c", "\x1f")
    words = one("Hello", "world", "the", "naïve", "don't", "I'LL", "we'Re", "it'S", "'S", "'\u017f",
                "'re", "'ve", "'M", "'lL", "'d", "'", "''s", "O'Neil", "return", "def f(x):", "</s",
                "<|", "|>", "<s>", "\\n", "->", "!=", "...", "http://a.b/c?d=e", "1.5e-3", "٣٤", "Ⅷ",
                "½", "१२३", "𝟘𝟙", "日本語", "русский", "Straße", "ﬁ", "ŉ", "İ", "K", "Å", "ΐ")
    emoji = one("😀", "👨‍👩‍👧‍👦", "🇩🇪", "❤️", "👍🏽", "🏴\U000e0067\U000e0062\U000e007f", "☺", "✈︎", "#️⃣", "🫠")
    odd = one("\ufeff", "\ufffd", "\u0000", "\x01", "\x7f", "\x9f", "\u00ad", "\u200d", "\u202e",
              "\ue000", "\uf8ff", "\U000f0000", "\U0010ffff", "\ufffe", "\uffff", "\u0378", "\u2581",
              "\u0100", "\u0120", "\u010a", "\u0143", "<0x0A>", "<0xFF>")
    digits = lambda r: "".join(r.choice("0123456789") for _ in range(r.randint(1, 12)))
    runs = lambda r: r.choice("Aa0 \n\t-=.é日́'😀") * r.randint(2, 70)
    pairs = lambda r: r.choice([" \n", "us", "\n ", "\t ", "ab", "é́", "0 ", "'s"]) * r.randint(2, 30)
    ascii_run = lambda r: "".join(chr(r.randint(0x20, 0x7E)) for _ in range(r.randint(1, 20)))
    return [script, script, anything, combining, blanks, blanks, words, words, words, emoji, odd,
            digits, runs, pairs, ascii_run, span(0x2000, 0x27BF), span(0, 0xFF)]


def random_text(r, kinds, added):
    parts = []
    for _ in range(r.choice([1, 2, 3, 5, 8, 13, 21])):
        kind = r.choice(kinds)
        parts.extend(kind(r) for _ in range(r.choice([1, 1, 1, 2, 4])))
        if added and r.random() < 0.03:
            parts.append(r.choice(added))
    return "".join(parts)


def everyone_knows(text, name):
    """Whether all sides know the characters: the reference composes by an older Unicode than Python,
    and PCRE2 in Debian 12 classifies by Unicode 14, as Python 3.11 does."""
    if name.endswith("split.json") and any(unicodedata.category(c) == "Cn" for c in text):
        return False
    return normalizers.NFC().normalize_str(text) == unicodedata.normalize("NFC", text)


def ours(tool, path, texts):
    lines = "".join(json.dumps(t) + "\n" for t in texts)
    done = subprocess.run([tool, path], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.decode().split("\n") if line]


def compare(name, path, tool, count, seed, change=None):
    ref = reference(path)
    if change:
        change(ref)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(ref.to_str())
            file.flush()
            return compare_with(ref, name, file.name, tool, count, seed)
    return compare_with(ref, name, path, tool, count, seed)


def compare_with(ref, name, path, tool, count, seed):
    r = random.Random(seed)
    added = [t.content for t in ref.get_added_tokens_decoder().values()]
    kinds = pools()
    texts = ["", " ", "\n", "A" * 1000, "a" + "\n" * 2000 + "b", " \n" * 2000, "us" * 2000]
    texts += [random_text(r, kinds, added) for _ in range(count)]
    got = ours(tool, path, texts)
    assert len(got) == len(texts), (len(got), len(texts))
    different = skipped = 0
    for text, (ids, decoded) in zip(texts, got):
        expected = ref.encode(text, add_special_tokens=False).ids
        expected_text = ref.decode(expected, skip_special_tokens=False)
        # The reference spoils added words that hold Latin-1 letters.
        if ids == expected and (decoded == expected_text or name == "flags.json"):
            continue
        if not everyone_knows(text, name):
            skipped += 1
            continue
        different += 1
        if different <= 3:
            print(f"  text     {text!a}\n  expected {expected} {expected_text!a}\n  got      {ids} {decoded!a}")
    print(f"{name}: {len(texts)} texts, {different} different, {skipped} with newer Unicode left out")
    return different


def english(megabyte=1_000_000):
    words = open(os.path.join(os.path.dirname(__file__), "../../../shared/data/persuasion-120k.txt")).read()
    return (words * (megabyte // len(words) + 1))[:megabyte]


def bench(name, path, tool, text):
    ref = reference(path)
    best = 1e9
    for _ in range(3):
        start = time.perf_counter()
        tokens = len(ref.encode(text, add_special_tokens=False).ids)
        best = min(best, time.perf_counter() - start)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        done = subprocess.run([tool, path, "--bench", file.name], stdout=subprocess.PIPE, check=True)
    mine = json.loads(done.stdout)
    size = len(text.encode())
    print(f"{name}: ours {mine['mb_per_s']:.1f} MB/s, {mine['tokens']} tokens; tokenizers "
          f"{size / 1e6 / best:.1f} MB/s, {tokens} tokens")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only")
    parser.add_argument("--bench", action="store_true")
    options = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    assets = os.environ.get("COPPICE_ASSETS", os.path.expanduser("~/.cache/coppice/assets"))
    different = 0
    chosen = [(name, file, None) for name, file in VOCABULARIES.items()]
    chosen += [(name, VOCABULARIES[base], change) for name, (base, change) in VARIANTS.items()]
    for name, file, change in chosen:
        path = os.path.join(assets, file)
        if options.only and name not in options.only.split(","):
            continue
        if not os.path.exists(path):
            print(f"{name}: skipped, {path} is missing")
        elif options.bench and change:
            continue
        elif options.bench:
            bench(name, path, options.tool, english())
        else:
            different += compare(name, path, options.tool, options.count, options.seed, change)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
