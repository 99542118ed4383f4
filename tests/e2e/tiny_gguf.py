"""Writes a tiny Llama GGUF with a byte-level vocabulary and a ChatML template: a whole model in 200 kB."""

import math
import random
import struct

UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5
HIDDEN, HEADS, KV_HEADS, LAYERS, FFN, CONTEXT = 32, 4, 2, 3, 48, 512
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_alphabet():
    """The printable characters that GPT-2 vocabularies write the 256 bytes with."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(spare)) for b in range(256)]


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def array(kind, values, pack):
    return struct.pack("<IQ", kind, len(values)) + b"".join(pack(value) for value in values)


def metadata(name, tokens, types, merges, end, template, *, context, hidden, layers, ffn, heads, kv_heads):
    """Of a Llama with a vocabulary in GPT-2's form. `end`: the end token's id."""
    return [
        ("general.architecture", STRING, text("llama")),
        ("general.name", STRING, text(name)),
        ("llama.context_length", UINT32, struct.pack("<I", context)),
        ("llama.embedding_length", UINT32, struct.pack("<I", hidden)),
        ("llama.block_count", UINT32, struct.pack("<I", layers)),
        ("llama.feed_forward_length", UINT32, struct.pack("<I", ffn)),
        ("llama.attention.head_count", UINT32, struct.pack("<I", heads)),
        ("llama.attention.head_count_kv", UINT32, struct.pack("<I", kv_heads)),
        ("llama.attention.layer_norm_rms_epsilon", FLOAT32, struct.pack("<f", 1e-5)),
        ("llama.rope.freq_base", FLOAT32, struct.pack("<f", 10000.0)),
        ("tokenizer.ggml.model", STRING, text("gpt2")),
        ("tokenizer.ggml.pre", STRING, text("gpt-2")),
        ("tokenizer.ggml.tokens", ARRAY, array(STRING, tokens, text)),
        ("tokenizer.ggml.token_type", ARRAY, array(INT32, types, lambda v: struct.pack("<i", v))),
        ("tokenizer.ggml.merges", ARRAY, array(STRING, merges, text)),
        ("tokenizer.ggml.eos_token_id", UINT32, struct.pack("<I", end)),
        ("tokenizer.chat_template", STRING, text(template)),
    ]


def write_file(path, meta, tensors):
    """`tensors`: name -> (shape, float32 values as bytes)."""
    infos, data = b"", b""
    for name, (shape, values) in tensors.items():
        infos += text(name) + struct.pack("<I", len(shape))
        infos += b"".join(struct.pack("<Q", dim) for dim in reversed(shape))
        infos += struct.pack("<IQ", 0, len(data))
        data += values + b"\0" * (-len(values) % 32)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta))
    header += b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in meta) + infos
    header += b"\0" * (-len(header) % 32)
    with open(path, "wb") as file:
        file.write(header + data)


def write(path, context=CONTEXT, seed=1):
    """Writes the model to `path`."""
    draw = random.Random(seed)
    tokens = [*byte_alphabet(), "th", "he", "<|im_start|>", "<|im_end|>"]
    meta = metadata("tiny", tokens, [1] * 258 + [3, 3], ["t h", "h e"], 259, TEMPLATE, context=context, hidden=HIDDEN,
                    layers=LAYERS, ffn=FFN, heads=HEADS, kv_heads=KV_HEADS)
    head = HIDDEN // HEADS
    shapes = {"token_embd.weight": (len(tokens), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (HIDDEN,),
            f"blk.{i}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{i}.attn_k.weight": (KV_HEADS * head, HIDDEN),
            f"blk.{i}.attn_v.weight": (KV_HEADS * head, HIDDEN),
            f"blk.{i}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{i}.ffn_norm.weight": (HIDDEN,),
            f"blk.{i}.ffn_gate.weight": (FFN, HIDDEN),
            f"blk.{i}.ffn_up.weight": (FFN, HIDDEN),
            f"blk.{i}.ffn_down.weight": (HIDDEN, FFN),
        }
    tensors = {}
    for name, shape in shapes.items():
        count = math.prod(shape)
        values = [1.0] * count if len(shape) == 1 else [draw.gauss(0, 0.4) for _ in range(count)]
        tensors[name] = (shape, struct.pack(f"<{count}f", *values))
    write_file(path, meta, tensors)
