#!/usr/bin/env python3
"""Writes tests/golden/quant_golden.bin: blocks of every stored type and what they unpack to.

Needs the PyPI packages gguf and numpy. Per type, in the order of coppice::StorageType:
  name (16 bytes, zero padded) | rows u32 | values per row u32 | bytes per row u32
  | packed bytes | float32 values
The blocks are random bits with finite scales, so every bit of a layout matters.
"""
import pathlib
import struct

import gguf
import numpy as np

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
         "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL"]
# Byte offsets of the float16 scales inside one block.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0]}


def main():
    rng = np.random.default_rng(20240601)
    out = bytearray()
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        rows, cols = (3, 512)
        if name in ("F32", "F16", "BF16"):
            values = rng.normal(size=(rows, cols)).astype(np.float32)
            values.flat[:4] = [0.0, -0.0, 1e-7, -3e4]  # a half-precision subnormal among them
            packed = gguf.quants.quantize(values, kind).view(np.uint8).reshape(rows, -1)
        else:
            blocks = rng.integers(0, 256, size=(rows * cols // block_values, block_bytes), dtype=np.uint8)
            for offset in SCALES[name]:
                scale = rng.normal(size=len(blocks)).astype(np.float16)
                blocks[:, offset:offset + 2] = scale.view(np.uint8).reshape(-1, 2)
            packed = blocks.reshape(rows, -1)
        values = gguf.quants.dequantize(packed, kind).astype(np.float32).reshape(rows, cols)
        out += name.encode().ljust(16, b"\0") + struct.pack("<III", rows, cols, packed.shape[1])
        out += packed.tobytes() + values.tobytes()
    target = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/quant_golden.bin"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(out)
    print(f"{target}: {len(out)} bytes")


if __name__ == "__main__":
    main()
