#!/usr/bin/env python3
"""Makes tests/golden/models/llava: a tiny random LLaVA-1.5 with a tokenizer, and what `transformers`
computes from it.

  hf/                    a Hugging Face folder: config.json, model.safetensors, tokenizer.json,
                         preprocessor_config.json, chat_template.jinja
  expected.safetensors   for each prompt: NAME.prompt [T] (image tokens expanded), NAME.logits [T, V],
                         NAME.generated [G]; for each picture of tests/golden/pictures:
                         PICTURE.pixels [3, S, S] and PICTURE.features [n, C]

Weights are bfloat16 numbers. Run with the oracle Python, after tools/make_picture_golden.py.
"""

import importlib
import json
import math
import pathlib

import torch
import transformers
from safetensors.torch import save_file

from golden_vision import byte_tokenizer, on_white
from golden_weights import fill

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests/golden/models/llava"
PICTURES = ("photo.png", "progressive.jpg", "lossless.webp")
SPECIALS = ["<s>", "</s>", "<image>"]
VOCAB = 256 + len(SPECIALS) + 1  # one row more than the tokenizer knows, as real ones have
IMAGE = 258
GENERATED_TOKENS = 24
SMALLEST_MARGIN = 2e-3
TEMPLATE = """{% for message in messages %}{{ message['role'].upper() }}: \
{% if message['content'] is string %}{{ message['content'] }}{% else %}\
{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>\\n' }}\
{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ ' ' }}\
{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""
PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28},
    "crop_size": {"height": 28, "width": 28}, "do_resize": True, "do_center_crop": True,
    "do_rescale": True, "do_normalize": True, "do_convert_rgb": True, "resample": 3,
    "rescale_factor": 1 / 255, "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def make_config():
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=56, num_hidden_layers=4, num_attention_heads=4,
        image_size=28, patch_size=7)
    text = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=VOCAB, max_position_embeddings=512, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
        bos_token_id=256, eos_token_id=None, pad_token_id=None)
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE,
        vision_feature_layer=-2, vision_feature_select_strategy="default")
    config._attn_implementation = "eager"
    return config


def pixels(name):
    kind = importlib.import_module("transformers.models.clip.image_processing_pil_clip")
    settings = {k: v for k, v in PROCESSOR.items() if k != "image_processor_type"}
    white = on_white(ROOT / "tests/golden/pictures" / name)
    return kind.CLIPImageProcessorPil(**settings)(white, return_tensors="pt")["pixel_values"]


def prompts(tokenizer):
    """name -> (ids, pictures in order)"""
    def ids(text):
        result = []
        for token in tokenizer.encode(text).ids:
            result += [token] * (16 if token == IMAGE else 1)
        return [256] + result
    photo, flat, clear = PICTURES
    return {
        "one": (ids("USER: <image>\nWhat is it? ASSISTANT:"), [photo]),
        "several": (ids("USER: <image>\n<image>\nand <image>? ASSISTANT:"), [flat, photo, clear]),
        "text": (ids("USER: Say a word. ASSISTANT:"), []),
        "later": (ids("USER: <image>\nWhat? ASSISTANT: A cat. USER: And now, without one? "
                      "ASSISTANT:"), [clear]),
    }


def run(model, ids, pictures):
    extra = {"pixel_values": torch.cat([pixels(p) for p in pictures])} if pictures else {}
    return model(input_ids=torch.tensor([ids]), **extra).logits[0]


def greedy(model, ids, pictures):
    all_ids, smallest = list(ids), math.inf
    for _ in range(GENERATED_TOKENS):
        logits = run(model, all_ids, pictures)[-1]
        logits[IMAGE] = -math.inf if logits[IMAGE] == logits.max() else logits[IMAGE]
        best = logits.topk(2)
        smallest = min(smallest, (best.values[0] - best.values[1]).item())
        all_ids.append(best.indices[0].item())
    return all_ids[len(ids):], smallest


def main():
    torch.set_num_threads(1)
    config = make_config()
    model = transformers.LlavaForConditionalGeneration(config).float().eval()
    tokenizer = byte_tokenizer(SPECIALS)
    cases = prompts(tokenizer)
    with torch.inference_mode():
        for seed in range(200):
            fill(model, seed)
            model.lm_head.weight.data[IMAGE] *= 0.01  # never drawn
            generated, margins = {}, []
            for name, (ids, pictures) in cases.items():
                generated[name], margin = greedy(model, ids, pictures)
                margins.append(margin)
                if margin < SMALLEST_MARGIN:
                    break
            if min(margins) > SMALLEST_MARGIN and all(len(set(g)) > 6 for g in generated.values()):
                break
        else:
            raise SystemExit("no seed gives a clear greedy choice at every step")
        expected = {}
        for name, (ids, pictures) in cases.items():
            expected[f"{name}.prompt"] = torch.tensor(ids)
            expected[f"{name}.logits"] = run(model, ids, pictures)
            expected[f"{name}.generated"] = torch.tensor(generated[name])
        for name in PICTURES:
            expected[f"{name}.pixels"] = pixels(name)[0]
            expected[f"{name}.features"] = model.model.get_image_features(
                pixel_values=pixels(name), vision_feature_layer=-2,
                vision_feature_select_strategy="default").pooler_output[0]
    folder = OUT / "hf"
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 257, "bos_token_id": 256}\n')
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR, indent=1) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    save_file({k: v.detach().contiguous().clone() for k, v in expected.items()},
              OUT / "expected.safetensors")
    print(f"seed {seed}, smallest margin {min(margins):.4f}")
    for name, values in generated.items():
        print(name, len(cases[name][0]), values)


if __name__ == "__main__":
    main()
