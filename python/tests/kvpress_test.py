#!/usr/bin/env python3
"""Kept sets beside kvpress, where the rule is the same: tiny random Llama and Qwen3, float32, one pass over the prompt.

Runs in the environment that `scripts/setup kvpress` makes, and says so where that is not there. Rules that differ, and how:

  tova         kvpress always keeps the newest token: `recent=1` here
  snapkv       kvpress pools by the mean over 5, from 64 queries: options here
  pyramidkv    other budgets: kvpress rounds each layer's share of a line that counts the window in; here the line is
               that of the tokens before the window, and the total is exact. What a layer keeps at its count is the same
  adakv        other shares: kvpress takes the best of a layer and guarantees each head a fifth of the budget; here each
               head has a fifth of its equal share and the rest by its count among the best, as the authors' code does.
               What a head keeps at its count is the same. kvpress masks; it does not evict
  knorm        norms are rounded to 13 bits here, so that rounding alone decides nothing; ties go to the newer token
  h2o          kvpress has ObservedAttention: means instead of sums, and no recent half. Not compared
"""

import os
import pathlib
import sys
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"
cache = os.environ.get("COPPICE_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "coppice")
own = pathlib.Path(cache, "kvpress/bin/python")
if own.exists() and pathlib.Path(sys.prefix) != own.parent.parent:
    os.execv(own, [str(own), *sys.argv])
try:
    import kvpress
    import numpy as np
    import tokenizers
    import torch
    import transformers
except ImportError as error:
    print(f"kvpress_test: skipped, {error}; `scripts/setup kvpress` installs what it needs")
    sys.exit(0)
import coppice  # noqa: E402

LENGTH, BUDGET, WINDOW, KERNEL = 240, 60, 8, 5
SIZES = dict(vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=8,
             num_key_value_heads=2, head_dim=16, max_position_embeddings=512, tie_word_embeddings=False)
SNAP = {"window": WINDOW, "kernel": KERNEL, "pool": "avg"}


def write_model(folder, kind):
    torch.manual_seed(1)
    config = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[kind](**SIZES)
    config._attn_implementation = "sdpa"  # pylint: disable=protected-access
    model = {"llama": transformers.LlamaForCausalLM, "qwen3": transformers.Qwen3ForCausalLM}[kind](config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.15 if "embed" not in name else 1.0)
            else:  # with norms of keys all alike, as at the start of training, their order is that of rounding
                weight.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bytes_only = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    bytes_only.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = tokenizers.decoders.ByteLevel()
    bytes_only.save(str(folder / "tokenizer.json"))
    return model


def press_of(kind, **settings):
    return kind(compression_ratio=1 - (BUDGET + 0.5) / LENGTH, **settings)  # int(LENGTH x (1 - ratio)) is BUDGET


class Recorded:
    """The scores a press gives, by layer."""

    def __init__(self, press):
        self.scores = {}
        inner = press.score

        def score(module, *rest):
            scores = inner(module, *rest)
            self.scores[module.layer_idx] = scores[0].clone().numpy()
            return scores

        press.score = score


class KvpressTest(unittest.TestCase):
    kind = None

    @classmethod
    def setUpClass(cls):
        if cls.kind is None:
            raise unittest.SkipTest("of each architecture")
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        torch.set_num_threads(1)
        cls.theirs = write_model(folder, cls.kind)
        cls.ours = coppice.load(folder, weights="float32", kv_dtype="float32", chunk=LENGTH, budget=BUDGET, threads=1)
        # Every token once: equal keys would make ties, which the two break by different rules.
        cls.ids = np.random.default_rng(5).permutation(SIZES["vocab_size"])[:LENGTH]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @torch.inference_mode()
    def their_cache(self, press=None):
        cache = transformers.DynamicCache(config=self.theirs.config)
        ids = torch.from_numpy(self.ids)[None]
        if press is None:
            self.theirs.model(ids, past_key_values=cache)
        else:
            with press(self.theirs):
                self.theirs.model(ids, past_key_values=cache)
        return cache

    def their_kept(self, press):
        """[layers, heads, LENGTH] flags: which keys of the full cache the compressed one holds."""
        full, pressed = self.their_cache(), self.their_cache(press)
        kept = np.zeros((SIZES["num_hidden_layers"], SIZES["num_key_value_heads"], LENGTH), bool)
        for layer, (before, after) in enumerate(zip(full.layers, pressed.layers, strict=True)):
            for head in range(kept.shape[1]):
                places = {key.tobytes(): i for i, key in enumerate(before.keys[0, head].numpy())}
                self.assertEqual(len(places), LENGTH)
                kept[layer, head, [places[key.tobytes()] for key in after.keys[0, head].numpy()]] = True
        return kept

    def our_kept(self, policy, **cache):
        session = self.ours.using(policy=policy, **cache).session()
        session.read(self.ids)
        return session.kept()

    def same(self, press, policy, **cache):
        np.testing.assert_array_equal(self.our_kept(policy, **cache).mask, self.their_kept(press), policy)

    def test_streaming(self):
        self.same(press_of(kvpress.StreamingLLMPress), "streaming")

    def test_knorm(self):
        self.same(press_of(kvpress.KnormPress), "knorm")

    def test_keydiff(self):
        self.same(press_of(kvpress.KeyDiffPress), "keydiff")

    def test_snapkv(self):
        self.same(press_of(kvpress.SnapKVPress, window_size=WINDOW, kernel_size=KERNEL), "snapkv", policy_options=SNAP)

    def test_tova(self):
        self.same(press_of(kvpress.TOVAPress), "tova", recent=1)

    def test_expected_attention(self):
        self.same(press_of(kvpress.ExpectedAttentionPress), "expected-attention")
        self.same(press_of(kvpress.ExpectedAttentionPress, epsilon=0.02, n_future_positions=64), "expected-attention",
                  policy_options={"epsilon": 0.02, "future": 64})
        self.same(press_of(kvpress.ExpectedAttentionPress, use_covariance=False, use_vnorm=False), "expected-attention",
                  policy_options={"covariance": "off", "value-norm": "off"})

    def test_shares_apart_pyramidkv_and_adakv_keep_the_same(self):
        press = press_of(kvpress.SnapKVPress, window_size=WINDOW, kernel_size=KERNEL)
        recorded = Recorded(press)
        self.their_cache(press)
        for policy in ("pyramidkv", "adakv", "ada-pyramid"):
            kept = self.our_kept(policy, policy_options=SNAP)
            self.assertEqual(len(kept), BUDGET * SIZES["num_hidden_layers"] * SIZES["num_key_value_heads"])
            self.assertGreater(len(set(kept.counts.ravel().tolist())), 1)
            for layer, head, positions, _ in kept:
                best = np.argsort(-recorded.scores[layer][head], kind="stable")[:len(positions)]
                self.assertEqual(positions.tolist(), sorted(best.tolist()), (policy, layer, head))

    def test_adakv_of_kvpress_holds_all_bytes(self):
        press = kvpress.AdaKVPress(press_of(kvpress.SnapKVPress, window_size=WINDOW, kernel_size=KERNEL))
        masked = sum(len(layer.self_attn.masked_key_indices[2]) for layer in self.pressed_layers(press))
        rows = SIZES["num_hidden_layers"] * SIZES["num_key_value_heads"]
        self.assertEqual(masked, (LENGTH - BUDGET) * rows)
        cache = self.their_cache(press)
        self.assertEqual({layer.keys.shape[2] for layer in cache.layers}, {LENGTH})
        self.assertEqual(len(self.our_kept("adakv")), BUDGET * rows)

    def pressed_layers(self, press):
        self.their_cache(press)
        return self.theirs.model.layers


class LlamaTest(KvpressTest):
    kind = "llama"


class Qwen3Test(KvpressTest):
    kind = "qwen3"


if __name__ == "__main__":
    unittest.main()
