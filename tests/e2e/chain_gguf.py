"""Writes a model that always continues a token with the same next one: its answers are known in advance.

One-hot embeddings, no attention and no feed-forward part (their outputs are zero), and an output layer that is a
permutation: the text after a newline is CHAIN, token for token, then the end token."""

import struct

import tiny_gguf as tiny

CHAIN = ["<think>", "hm", "</think>", "Sure.", "<tool_call>", '{"name":', '"weather",',
         '"arguments":{"city":"Paris"}}', "</tool_call>"]
THOUGHT, SAID, NAME, ARGUMENTS = "hm", "Sure.", "weather", '{"city":"Paris"}'
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n# Tools\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{{ 'Answer with <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call><|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message.content %}{{ message['content'] }}{% endif %}"
    "{% for call in message.tool_calls or [] %}{{ '<tool_call>' + call.function | tojson + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    "{# thinking stands between <think> and </think> #}"
)
HIDDEN, HEADS, LAYERS, FFN = 288, 4, 1, 32


def write(path, context=2048):
    tokens = [*tiny.byte_alphabet(), "<|im_start|>", "<|im_end|>", *CHAIN, "qq"]
    types = [1] * 256 + [3, 3] + [4] * len(CHAIN) + [1]
    end = tokens.index("<|im_end|>")
    following = {i: end for i in range(len(tokens))}
    steps = [tokens.index("\u010a"), *(tokens.index(token) for token in CHAIN), end]
    following.update(zip(steps, steps[1:]))
    meta = tiny.metadata("chain", tokens, types, ["q q"], end, TEMPLATE, context=context, hidden=HIDDEN, layers=LAYERS,
                         ffn=FFN, heads=HEADS, kv_heads=HEADS)

    def rows(count, one_of):
        data = bytearray()
        for r in range(count):
            row = [0.0] * HIDDEN
            for column in one_of(r):
                row[column] = 1.0
            data += struct.pack(f"<{HIDDEN}f", *row)
        return bytes(data)

    sources = {}
    for token, after in following.items():
        sources.setdefault(after, []).append(token)
    ones, zeros = struct.pack(f"<{HIDDEN}f", *[1.0] * HIDDEN), bytes(4 * HIDDEN * HIDDEN)
    tensors = {
        "token_embd.weight": ((len(tokens), HIDDEN), rows(len(tokens), lambda r: [r])),
        "output.weight": ((len(tokens), HIDDEN), rows(len(tokens), lambda r: sources.get(r, []))),
        "output_norm.weight": ((HIDDEN,), ones),
        "blk.0.attn_norm.weight": ((HIDDEN,), ones),
        "blk.0.ffn_norm.weight": ((HIDDEN,), ones),
        **{f"blk.0.attn_{name}.weight": ((HIDDEN, HIDDEN), zeros) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_gate.weight": ((FFN, HIDDEN), bytes(4 * FFN * HIDDEN)),
        "blk.0.ffn_up.weight": ((FFN, HIDDEN), bytes(4 * FFN * HIDDEN)),
        "blk.0.ffn_down.weight": ((HIDDEN, FFN), bytes(4 * FFN * HIDDEN)),
    }
    tiny.write_file(path, meta, tensors)
