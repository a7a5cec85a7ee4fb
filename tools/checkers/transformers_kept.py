"""What layers of transformers keep for their backward: saved tensors of its own modules.

    python tools/checkers/transformers_kept.py       # a line of JSON a kind of layer

Layers of a small Gemma 4 and Gemma 3n run on the CPU in bf16. In the place of the attention kernel
of a GPU stands a function that keeps what it keeps. Keys and values that a layer reads of an
earlier one are kept there.
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
    "vocab_size": 512,
    "hidden_size": HIDDEN,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size_per_layer_input": ROW,
    "vocab_size_per_layer_input": 256,
    "sliding_window": 128,
    "use_cache": False,
}
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
}
"""The same in our model file."""
FAMILIES = {
    "gemma4_text": (
        {
            "global_head_dim": 128,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "use_double_wide_mlp": False,
        },
        {
            "per_layer": {"width": ROW, "vocab": 256},
            "variants": {
                "wide": {"head_dim": 128},
                "reader": {"kv_shared": True},
                "wide-reader": {"head_dim": 128, "kv_shared": True},
            },
        },
        (
            "window+injected",
            "attention+injected@wide",
            "window+injected@reader",
            "attention+injected@wide-reader",
        ),
    ),
    "gemma3n_text": (
        {
            "num_kv_shared_layers": 0,
            "layer_types": ["sliding_attention", "full_attention"],
            "activation_sparsity_pattern": [0.0, 0.0],
            "laurel_rank": 32,
        },
        {"per_layer": {"width": ROW, "vocab": 256, "streams": 4, "laurel_rank": 32}},
        ("window+injected", "attention+injected"),
    ),
}
"""Type -> more of its configuration, of our model file, and the kind of each layer."""
TRAINING = {"seq_len": TOKENS, "global_batch": 8, "precision": "bf16"}


def flash(module, q, k, v, mask, **_):
    """Stand for a kernel of attention; queries, keys and values have heads before tokens."""
    return recording.FlashAttention.apply(*(x.transpose(1, 2) for x in (q, k, v)))[0], None


def kept_bytes(layer, rotary, pairs, n_streams):
    """Return what a layer keeps of one forward over `TOKENS`, bytes; it adds to `pairs`."""
    kind, streams = layer.self_attn.layer_type, (n_streams,) * (n_streams > 1)
    x = torch.randn(*streams, 1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    row = torch.randn(1, TOKENS, ROW, dtype=torch.bfloat16, requires_grad=True)
    earlier = {name: [x.detach().requires_grad_() for x in both] for name, both in pairs.items()}
    turns = rotary(row, torch.arange(TOKENS)[None], kind)
    kept = Kept()
    kept.leave_out([*layer.parameters(), *layer.buffers(), *turns])
    kept.leave_out([x for both in earlier.values() for x in both])
    inputs = {"shared_kv_states": earlier, "position_embeddings": turns, "attention_mask": None}
    with kept:
        out = layer(x * 1, per_layer_input=row * 1, **inputs)
        assert out.shape == x.shape
        found = kept.now
    pairs |= earlier
    return found


def main():
    """Print a line a kind of layer."""
    warnings.simplefilter("ignore")
    AttentionInterface.register("saving", flash)
    for name, (more, of_model, kinds) in FAMILIES.items():
        config = CONFIG_MAPPING[name].from_dict(CONFIG | more | {"num_hidden_layers": len(kinds)})
        model = AutoModelForCausalLM.from_config(config, attn_implementation="saving")
        decoder, pairs = model.to(torch.bfloat16).model, {}
        ends = [*decoder.embed_tokens.parameters(), *decoder.norm.parameters()]
        count = sum(x.numel() for x in decoder.parameters()) - sum(x.numel() for x in ends)
        layers = [{"kind": kind, "count": 1} for kind in kinds]
        n_streams = of_model["per_layer"].get("streams", 1)
        for kind, layer in zip(kinds, decoder.layers, strict=True):
            answer = {
                "kind": kind,
                "stack": "hf-fsdp2",
                "limit_frac": KEPT_FRAC,
                "model": MODEL | of_model | {"layer_kinds": layers},
                "training": TRAINING,
                "parameters": count,
                "kept_bytes": kept_bytes(layer, decoder.rotary_emb, pairs, n_streams),
            }
            print(json.dumps(answer))


if __name__ == "__main__":
    main()
