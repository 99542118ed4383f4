#!/usr/bin/env python3
"""Writes tests/golden/pictures/processed.json: what transformers' image processors (the Pillow ones)
make of the golden pictures. Run tools/make_picture_golden.py first.

    ~/.cache/coppice/oracle/bin/python tools/make_processor_golden.py
"""

import base64
import importlib
import json
import pathlib

import numpy
from PIL import Image

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/pictures"
CLIP = importlib.import_module("transformers.models.clip.image_processing_pil_clip")
QWEN = importlib.import_module("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")

KINDS = {"CLIPImageProcessor": CLIP.CLIPImageProcessorPil,
         "Qwen2VLImageProcessor": QWEN.Qwen2VLImageProcessorPil}


def clip(**settings):
    return {"image_processor_type": "CLIPImageProcessor", **settings}


def qwen(**settings):
    return {"image_processor_type": "Qwen2VLImageProcessor", **settings}


def square(side):
    return {"height": side, "width": side}


CASES = [(picture, config) for config in [
    clip(size={"shortest_edge": 14}, crop_size=square(14)),
    clip(size={"shortest_edge": 15}, crop_size=square(11)),
    clip(size={"shortest_edge": 9}, crop_size={"height": 13, "width": 16}),
    clip(size=square(18), do_center_crop=False, resample=2, image_mean=[0.5, 0.4, 0.3],
         image_std=[0.5, 0.6, 0.7]),
    clip(do_resize=False, crop_size=square(12), do_normalize=False),
    qwen(patch_size=4, merge_size=2, min_pixels=256, max_pixels=1024),
    qwen(patch_size=4, merge_size=2, temporal_patch_size=1,
         size={"shortest_edge": 64, "longest_edge": 512}, image_mean=[0.5] * 3, image_std=[0.5] * 3),
] for picture in ("photo.png", "RGB.png", "pixel.png")] + [
    ("long.png", clip(size={"shortest_edge": 4}, crop_size=square(8))),
    ("photo.png", clip(size={"shortest_edge": 21}, crop_size=square(21))),
]

SIZES = [(h, w, 28, 3136, 1003520) for h, w in [
    (305, 30), (26, 28), (1, 1), (30, 305), (15420, 690), (690, 15420), (199, 1), (14, 42), (70, 98),
    (1080, 1920), (100, 20000), (2, 2)]] + [
    (h, w, 32, 65536, 16777216) for h, w in [(48, 16), (16, 48), (4000, 6000), (700, 5), (333, 777)]]


def main():
    cases = []
    for picture, config in CASES:
        settings = {k: v for k, v in config.items() if k != "image_processor_type"}
        processor = KINDS[config["image_processor_type"]](**settings)
        image = Image.open(OUT / picture).convert("RGB")
        result = processor(image, return_tensors="np")
        values = result["pixel_values"]
        if config["image_processor_type"].startswith("CLIP"):
            values = values[0]
        case = {"picture": picture, "config": config, "shape": list(values.shape),
                "values": base64.b64encode(values.astype(numpy.float32).tobytes()).decode()}
        if "image_grid_thw" in result:
            case["grid"] = result["image_grid_thw"][0].tolist()
        cases.append(case)
    sizes = [[*size, *QWEN.smart_resize(*size)] for size in SIZES]
    text = json.dumps({"cases": cases, "sizes": sizes}, indent=0)
    (OUT / "processed.json").write_text(text + "\n")
    print(len(cases), "cases,", len(text), "bytes")


if __name__ == "__main__":
    main()
