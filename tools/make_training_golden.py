#!/usr/bin/env python3
"""Writes tests/golden/training_cases.json: the parts of the training loss in dense PyTorch, float64.

Needs the PyPI package torch. Inputs are not stored: value i of tensor number s is
((7 i + 5 s + i * i % 11) % 23 - 11) / 8, log beta is -((5 i + s) % 13) / 16, both exact. Documents
of 1, 4 and 6 tokens, 6 query heads on 2 KV heads of width 3, 2 layers for the capacity term.
"""
import json
import math
import pathlib

import torch

CU = [0, 1, 5, 11]
N, HQ, HKV, D, LAYERS, C, V, SCALE = 11, 6, 2, 3, 2, 4, 13, 0.75


def values(shape, salt):
    i = torch.arange(math.prod(shape), dtype=torch.int64)
    return (((7 * i + 5 * salt + i * i % 11) % 23 - 11).double() / 8).reshape(shape)


def log_beta_values(shape, salt):
    i = torch.arange(math.prod(shape), dtype=torch.int64)
    return (-((5 * i + salt) % 13).double() / 16).reshape(shape)


def leaf(x):
    return x.clone().requires_grad_(True)


def flat(x):
    return x.detach().reshape(-1).tolist()


def same_document():
    of = torch.zeros(N, dtype=torch.int64)
    for b in range(len(CU) - 1):
        of[CU[b]:CU[b + 1]] = b
    return of.unsqueeze(1) == of.unsqueeze(0)


def retention():
    q = leaf(values((N, HQ, D), 0))
    k, v = leaf(values((N, HKV, D), 1)), leaf(values((N, HKV, D), 2))
    log_beta = leaf(log_beta_values((N, HKV), 3))
    weight = values((N, HQ, D), 4)
    place = torch.arange(N)
    age = (place.unsqueeze(1) - place.unsqueeze(0)).double()
    wide_k, wide_v = (x.repeat_interleave(HQ // HKV, dim=1) for x in (k, v))
    logits = torch.einsum("thd,ihd->hti", q, wide_k) * SCALE
    logits = logits + age * log_beta.t().repeat_interleave(HQ // HKV, dim=0).unsqueeze(1)
    logits = logits.masked_fill(~(same_document() & (age >= 0)), -math.inf)
    out = torch.einsum("hti,ihd->thd", torch.softmax(logits, -1), wide_v)
    (out * weight).sum().backward()
    return {"out": flat(out), "q": flat(q.grad), "k": flat(k.grad), "v": flat(v.grad),
            "log_beta": flat(log_beta.grad)}


def capacity(budget, scope):
    log_beta = leaf(log_beta_values((N, LAYERS, HKV), 5))
    place = torch.arange(N)
    age = (place.unsqueeze(1) - place.unsqueeze(0)).double()
    visible = same_document() & (age >= 0)
    held = torch.exp(age[:, :, None, None] * log_beta[None])
    held = held.masked_fill(~visible[:, :, None, None], 0).sum(1)  # [N, L, Hkv]
    start = torch.tensor([max(c for c in CU if c <= t) for t in range(N)])
    room = (place - start + 1 - budget).double()
    if scope == "global":
        excess = (held.sum((1, 2)) - budget * LAYERS * HKV).clamp(min=0) / (LAYERS * HKV)
    else:
        excess = (held - budget).clamp(min=0)
        room = room[:, None, None].expand_as(excess)
    loss = (excess / room.clamp(min=1e-9) * (room > 0)).mean()
    loss.backward()
    return {"budget": budget, "scope": scope, "loss": loss.item(), "log_beta": flat(log_beta.grad)}


def distillation():
    student, teacher, head = leaf(values((N, C), 6)), values((N, C), 7), values((V, C), 8)
    targets = torch.arange(N) * 5 % V
    targets[3] = targets[9] = -100
    logits = student @ head.t()
    ntp = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100)
    valid = targets >= 0
    kl = torch.nn.functional.kl_div(torch.log_softmax(logits, -1)[valid],
                                    torch.log_softmax(teacher @ head.t(), -1)[valid],
                                    log_target=True, reduction="batchmean")
    (kl + 0.5 * ntp).backward()
    return {"kl": kl.item(), "ntp": ntp.item(), "student": flat(student.grad)}


def main():
    cases = {"retention": retention(),
             "capacity": [capacity(b, s) for b in (1.0, 2.0, 3.5) for s in ("global", "local")],
             "distillation": distillation()}
    path = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/training_cases.json"
    path.write_text(json.dumps(cases, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
