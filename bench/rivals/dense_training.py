"""The training step of retention gates as it is written down: PyTorch and transformers, nothing fused.

What a researcher would write in an afternoon, and what `coppice train` is compared with:
  teacher   the model without gradients, transformers' sdpa attention
  student   the same weights with transformers' own eager attention; (t - i) log beta of every query and key is
            added to its causal mask, since a bias with a gradient is what sdpa's fused kernels do not take
  gates     two hidden layers and a row per KV head, float32, on the input norm's output of each layer
  loss      KL of the full vocabulary + next token + capacity, from [S, V] log-probabilities in float32 and, per
            KV head, from the [S, S] matrix of what is still held
  step      backward to the gates alone, norm clipped at 1, torch.optim.AdamW
Nothing is cut into chunks. Activations are kept, or, with "checkpointing", recomputed layer by layer by
transformers' own gradient checkpointing, which is what one turns on when memory runs out.

One job, a JSON object in a file named on the command line; one JSON object on stdout:
  model, folder, gate, text      files; text is tokenised as one plain document, its first `length` tokens are the row
  length, steps, threads, dtype, capacity, learning_rate, checkpointing
  -> steps: [{seconds, student_seconds, kl, ntp, capacity, gradient_norm}], or {"out_of_memory": true}
`student_seconds` is the student's forward pass through the layers: what checkpointing runs twice.
"""

import json
import os
import pathlib
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
# pylint: disable=wrong-import-position
import torch
import transformers
from gguf_folder import bfloat16_folder, open_gguf
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

transformers.logging.set_verbosity_error()


class Gate(torch.nn.Module):
    """One layer's gate: x -> log beta of each KV head. The rows `head` belong to all layers."""

    def __init__(self, tensors, layer, head):
        super().__init__()
        for name in ("w1", "c1", "w2", "c2", "bias"):
            setattr(self, name, torch.nn.Parameter(tensors[f"layers.{layer}.{name}"].float()))
        self.head = head

    def forward(self, x):
        u = F.silu(F.linear(x.float(), self.w1, self.c1))
        u = F.silu(F.linear(u, self.w2, self.c2))
        return F.logsigmoid(F.linear(u, self.head, self.bias))


class Student:
    """A model whose attention gets the gates' bias while `active`."""

    def __init__(self, model, gates):
        self.model, self.gates = model, gates
        self.active, self.age, self.log_betas = False, None, []
        self.groups = model.config.num_attention_heads // model.config.num_key_value_heads
        for layer, gate in zip(model.model.layers, gates):
            layer.self_attn.register_forward_pre_hook(self.hook(gate), with_kwargs=True)

    def hook(self, gate):
        def add_bias(_module, args, kwargs):
            if not self.active:
                return None
            x, mask = kwargs["hidden_states"], kwargs["attention_mask"]
            log_beta = gate(x)  # [1, S, Hkv]
            if len(self.log_betas) < len(self.gates):  # not when a layer is run again
                self.log_betas.append(log_beta[0].T)
            bias = self.age * log_beta.transpose(1, 2).unsqueeze(2)  # [1, Hkv, S, S]
            bias = bias.to(x.dtype).repeat_interleave(self.groups, dim=1)
            return args, kwargs | {"attention_mask": mask + bias}
        return add_bias

    def hidden(self, ids):
        self.active, self.log_betas = True, []
        place = torch.arange(ids.shape[1])
        self.age = (place[:, None] - place[None, :]).clamp(min=0).float()
        self.model.set_attn_implementation("eager")
        result = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
        return result, torch.cat(self.log_betas)  # [L Hkv, S]

    @torch.no_grad()
    def teacher_logits(self, ids):
        self.active = False
        self.model.set_attn_implementation("sdpa")
        return self.model(input_ids=ids, use_cache=False).logits


def capacity_loss(log_beta, age, budget):
    """Of all heads together: the mean over positions of max(0, held - budget) over its largest value."""
    held = 0
    for row in log_beta:
        held = held + torch.tril((age * row).exp()).sum(1)
    room = torch.arange(1, age.shape[0] + 1) - budget
    excess = (held - budget * log_beta.shape[0]).clamp(min=0) / (log_beta.shape[0] * room.clamp(min=1))
    return (excess * (room > 0)).mean()


class Training:
    def __init__(self, job):
        self.capacity = job["capacity"]
        folder = bfloat16_folder(job["model"], job["folder"])
        if job["dtype"] == "float32":
            model = open_gguf(pathlib.Path(job["model"]), torch.float32)
        else:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        model.requires_grad_(False).eval()
        if job["checkpointing"]:
            model.train()  # transformers' layers look at this; the model has no dropout
            model.gradient_checkpointing_enable({"use_reentrant": False})
        tensors = load_file(job["gate"])
        head = torch.nn.Parameter(tensors["head"].float())
        self.gates = gates = torch.nn.ModuleList(Gate(tensors, layer, head) for layer in range(model.config.num_hidden_layers))
        self.student = Student(model, gates)
        self.parameters = list(gates.parameters())
        matrices = [p for p in self.parameters if p.dim() > 1]
        vectors = [p for p in self.parameters if p.dim() == 1]
        self.optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 1e-6},
                                            {"params": vectors, "weight_decay": 0.0}], lr=job["learning_rate"])
        text = pathlib.Path(job["text"]).read_text(encoding="utf-8")
        ids = AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False).input_ids
        if not job["length"] <= len(ids) < 2 * job["length"]:
            raise ValueError(f"the text has {len(ids)} tokens; expected {job['length']} to {2 * job['length'] - 1}")
        self.ids = torch.tensor([ids[:job["length"]]])

    def step(self):
        begin = time.perf_counter()
        teacher = self.student.teacher_logits(self.ids)[0, :-1]
        before_student = time.perf_counter()
        hidden, log_beta = self.student.hidden(self.ids)
        student_seconds = time.perf_counter() - before_student
        log_q = F.log_softmax(self.student.model.lm_head(hidden)[0, :-1].float(), -1)
        log_p = F.log_softmax(teacher.float(), -1)
        kl = F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
        ntp = F.nll_loss(log_q, self.ids[0, 1:])
        capacity = capacity_loss(log_beta, self.student.age, self.capacity)
        self.optimizer.zero_grad()
        (kl + ntp + capacity).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return {"seconds": time.perf_counter() - begin, "student_seconds": student_seconds, "kl": kl.item(),
                "ntp": ntp.item(), "capacity": capacity.item(), "gradient_norm": norm.item()}


def main():
    job = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print
    torch.set_num_threads(job["threads"])
    try:
        training = Training(job)
        result = {"steps": [training.step() for _ in range(job["steps"])]}
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        result = {"out_of_memory": True}
    answers.write(json.dumps(result) + "\n")
    answers.close()


if __name__ == "__main__":
    main()
