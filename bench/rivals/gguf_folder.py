"""A GGUF file as transformers reads it: dequantised once, in bfloat16, into a folder with its tokenizer."""

import os
import pathlib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def open_gguf(gguf, dtype):
    """The model straight from the file, its weights in `dtype`."""
    return AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=dtype,
                                                quantization_config=GgufConfig(dequantize=True))


def bfloat16_folder(gguf, folder):
    """The folder inside `folder` that holds it; made when it is not there."""
    gguf = pathlib.Path(gguf)
    folder = pathlib.Path(folder) / f"{gguf.stem}-{gguf.stat().st_size}-bf16"
    if not (folder / "config.json").exists():
        work = folder.with_name(f"{folder.name}.{os.getpid()}")
        open_gguf(gguf, torch.bfloat16).save_pretrained(work)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(work)
        try:
            work.rename(folder)
        except OSError:  # somebody else was faster
            pass
    return folder
