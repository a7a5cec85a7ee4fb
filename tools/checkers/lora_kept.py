"""What a layer with adapters keeps for its backward: saved tensors of transformers' Llama.

    python tools/checkers/lora_kept.py       # a line of JSON for each set of targets

The base is frozen. Adapters are written out as peft has them (tuners/lora/layer.py, Linear), in the
width of the base. Runs on the CPU; dropout keeps a mask of bools, as PyTorch's kernel on a GPU.
"""

import json

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, TOKENS, RANK = 512, 1408, 8, 2, 64, 512, 16
MODEL = {
    "hidden": HIDDEN,
    "heads": HEADS,
    "kv_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "ffn": FFN,
    "gated": True,
    "vocab": 256,
    "tied": True,
    "layers": 1,
}
CASES = (
    (("all-linear",), 0.0),
    (("q", "v"), 0.0),
    (("q", "k", "v", "o"), 0.0),
    (("gate",), 0.0),
    (("down",), 0.0),
    (("all-linear",), 0.1),
)
"""Targets and dropout."""
PLACES = {
    **{name: ("self_attn", f"{name}_proj") for name in "qkvo"},
    **{name: ("mlp", f"{name}_proj") for name in ("gate", "up", "down")},
}


class Dropout(torch.autograd.Function):
    """Dropout that keeps a mask of bools. Source: torch aten native_dropout (CUDA)."""

    @staticmethod
    def forward(ctx, x, p):
        """Keep the mask alone."""
        mask = torch.rand_like(x) > p
        ctx.save_for_backward(mask)
        ctx.p = p
        return x * mask / (1.0 - p)

    @staticmethod
    def backward(ctx, grad):
        """Mask the gradient."""
        (mask,) = ctx.saved_tensors
        return grad * mask / (1.0 - ctx.p), None


class Adapted(nn.Module):
    """A frozen linear layer and its adapter."""

    def __init__(self, base, dropout):
        super().__init__()
        self.base, self.dropout = base, dropout
        self.a = nn.Linear(base.in_features, RANK, bias=False, dtype=torch.bfloat16)
        self.b = nn.Linear(RANK, base.out_features, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        """W x + 2 B A x."""
        read = Dropout.apply(x, self.dropout) if self.dropout else x
        return self.base(x) + self.b(self.a(read)) * 2.0


def kept_bytes(layer, config):
    """Return the bytes of distinct storages that one forward keeps, weights and angles aside."""
    x = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    angles = LlamaRotaryEmbedding(config)(x, torch.arange(TOKENS)[None])
    left_out = {t.untyped_storage().data_ptr() for t in (*layer.parameters(), *angles)}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in left_out:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer(x * 1.0, position_embeddings=angles)
    return sum(kept.values()), out  # the graph holds what is counted until here


def main():
    """Print a line a case."""
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        attn_implementation="sdpa",
    )
    for targets, dropout in CASES:
        layer = LlamaDecoderLayer(config, 0).to(torch.bfloat16).requires_grad_(False)
        n_parameters = sum(weight.numel() for weight in layer.parameters())
        for name in PLACES if targets == ("all-linear",) else targets:
            part, linear = PLACES[name]
            module = getattr(layer, part)
            setattr(module, linear, Adapted(getattr(module, linear), dropout))
        lora = {"rank": RANK, "targets": list(targets), "dropout": dropout}
        answer = {
            "kind": "dense",
            "model": MODEL,
            "training": {"seq_len": TOKENS, "global_batch": 8, "task": "lora", "lora": lora},
            "stack": "hf-fsdp2",
            "parameters": n_parameters,
            "kept_bytes": kept_bytes(layer, config)[0],
            "limit_frac": 0.001,
        }
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
