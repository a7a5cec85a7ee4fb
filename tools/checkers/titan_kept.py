"""What layers of torchtitan keep for their backward: saved tensors of its own modules.

    python tools/checkers/titan_kept.py       # a line of JSON a layer

Layers run on the CPU in bf16, on one rank. In the place of fused kernels of a GPU (RMSNorm,
attention) stand functions that keep what those keep. Norms of queries and keys, which our layers
have not, are taken out.
"""

import importlib
import json
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "replay")]

import replay_torchtitan  # noqa: E402
import torch  # noqa: E402
from kept import Kept  # noqa: E402

TOKENS = 256
KEPT_FRAC = 0.03
"""Differences that are let pass."""
LATENT_EXPERTS = {
    "hidden": 256,
    "heads": 16,
    "mla": {"kv_rank": 512, "qk_nope": 128, "qk_rope": 64, "v_head": 128},
    "moe": {"experts": 8, "topk": 3, "moe_ffn": 256, "shared_experts": 2},
}
LAYERS = (
    (
        "dense",
        ("llama3", "debugmodel", ("flex",)),
        {"hidden": 256, "heads": 16, "ffn": 768},
    ),
    (
        "moe",
        ("qwen3", "debugmodel_moe", ("flex",)),
        {
            "hidden": 256,
            "heads": 16,
            "kv_heads": 8,
            "head_dim": 128,
            "moe": {"experts": 64, "topk": 8, "moe_ffn": 768},
        },
    ),
    ("moe", ("deepseek_v3", "debugmodel", ("flex", "standard")), LATENT_EXPERTS),
)
"""Kind, the module of torchtitan with its flavor, sizes of our model file."""
TRAINING = {"seq_len": TOKENS, "global_batch": 8, "precision": "bf16"}


def layer_of(family, flavor, words):
    """Return the last layer of a model of torchtitan and its width."""
    module = importlib.import_module(f"torchtitan.models.{family}")
    config = getattr(module, f"{family.replace('_', '')}_configs")[flavor](*words)
    layer = list(config.build().to(torch.bfloat16).layers.values())[-1]
    if getattr(layer.attention, "q_norm", None) is not None and family != "deepseek_v3":
        layer.attention.q_norm = layer.attention.k_norm = None
    return layer, config.dim


def kept_bytes(layer, width):
    """Return what a layer keeps of one forward over `TOKENS`, bytes."""
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    kept = Kept()
    kept.leave_out([*layer.parameters(), *layer.buffers()])
    x = torch.randn(1, TOKENS, width, dtype=torch.bfloat16, requires_grad=True)
    with kept:
        out = layer(x, None, torch.arange(TOKENS)[None])
        assert out.shape == x.shape
        return kept.now


def main():
    """Print a line a layer."""
    warnings.simplefilter("ignore")
    replay_torchtitan.use_saving_kernels()
    for kind, (family, flavor, words), sizes in LAYERS:
        layer, width = layer_of(family, flavor, words)
        model = {"gated": True, "vocab": 256, "tied": True, **sizes}
        answer = {
            "kind": kind,
            "stack": "torchtitan",
            "limit_frac": KEPT_FRAC,
            "model": {**model, "layer_kinds": [{"kind": kind, "count": 1}]},
            "training": TRAINING,
            "parameters": sum(weight.numel() for weight in layer.parameters()),
            "kept_bytes": kept_bytes(layer, width),
        }
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
