"""What layers of transformers keep for their backward: saved tensors of its own modules.

    python tools/checkers/transformers_kept.py       # a line of JSON a kind of layer

Layers of a small Gemma 4 run on the CPU in bf16. In the place of the attention kernel of a GPU
stands a function that keeps what it keeps. Keys and values that a layer reads of an earlier one are
kept there.
"""

import json
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "replay")]

import recording  # noqa: E402
import torch  # noqa: E402
from kept import Kept  # noqa: E402
from transformers import (  # noqa: E402
    CONFIG_MAPPING,
    AttentionInterface,
    AutoModelForCausalLM,
)

TOKENS, HIDDEN, ROW = 256, 512, 64
KEPT_FRAC = 0.03
"""Difference that is let pass: a norm's numbers of each row and head are not counted."""
CONFIG = {
    "model_type": "gemma4_text",
    "vocab_size": 512,
    "hidden_size": HIDDEN,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "global_head_dim": 128,
    "hidden_size_per_layer_input": ROW,
    "vocab_size_per_layer_input": 256,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 128,
    "use_double_wide_mlp": False,
    "use_cache": False,
}
KINDS = (
    "window+injected",
    "attention+injected@wide",
    "window+injected@reader",
    "attention+injected@wide-reader",
)
MODEL = {
    "hidden": HIDDEN,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 64,
    "ffn": 1024,
    "gated": True,
    "vocab": 512,
    "tied": True,
    "window": {"size": 128},
    "per_layer": {"width": ROW, "vocab": 256},
    "variants": {
        "wide": {"head_dim": 128},
        "reader": {"kv_shared": True},
        "wide-reader": {"head_dim": 128, "kv_shared": True},
    },
    "layer_kinds": [{"kind": kind, "count": 1} for kind in KINDS],
}
"""The same model in our model file."""
TRAINING = {"seq_len": TOKENS, "global_batch": 8, "precision": "bf16"}


def flash(module, q, k, v, mask, **_):
    """Stand for a kernel of attention; queries, keys and values have heads before tokens."""
    return recording.FlashAttention.apply(*(x.transpose(1, 2) for x in (q, k, v)))[0], None


def kept_bytes(layer, kind, rotary, pairs):
    """Return what a layer keeps of one forward over `TOKENS`, bytes; it adds to `pairs`."""
    x, row = (
        torch.randn(1, TOKENS, width, dtype=torch.bfloat16, requires_grad=True)
        for width in (HIDDEN, ROW)
    )
    earlier = {name: [x.detach().requires_grad_() for x in both] for name, both in pairs.items()}
    turns = rotary(x, torch.arange(TOKENS)[None], kind)
    kept = Kept()
    kept.leave_out([*layer.parameters(), *layer.buffers(), *turns])
    kept.leave_out([x for both in earlier.values() for x in both])
    with kept:
        out = layer(x * 1, row * 1, earlier, position_embeddings=turns)
        assert out.shape == x.shape
        found = kept.now
    pairs |= earlier
    return found


def main():
    """Print a line a kind of layer."""
    warnings.simplefilter("ignore")
    AttentionInterface.register("saving", flash)
    config = CONFIG_MAPPING[CONFIG["model_type"]].from_dict(CONFIG)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="saving")
    decoder, pairs = model.to(torch.bfloat16).model, {}
    ends = [*decoder.embed_tokens.parameters(), *decoder.norm.parameters()]
    count = sum(x.numel() for x in decoder.parameters()) - sum(x.numel() for x in ends)
    for kind, name, layer in zip(KINDS, CONFIG["layer_types"], decoder.layers, strict=True):
        answer = {
            "kind": kind,
            "stack": "hf-fsdp2",
            "limit_frac": KEPT_FRAC,
            "model": MODEL,
            "training": TRAINING,
            "parameters": count,
            "kept_bytes": kept_bytes(layer, name, decoder.rotary_emb, pairs),
        }
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
