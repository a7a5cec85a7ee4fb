"""What layers of DeepSeek-V4 keep for their backward: saved tensors of transformers' own modules.

    python tools/checkers/stream_kept.py       # a line of JSON a layer

Attention with its connection to the residual streams, norm and addition, as in the first half of
a layer, on the meta device in bf16: nothing is computed. The class has no other attention than
eager operators.
"""

import json
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "replay")]

import torch  # noqa: E402
from kept import Kept  # noqa: E402
from transformers import DeepseekV4Config  # noqa: E402
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as classes  # noqa: E402

TOKENS, HIDDEN, ROPE_DIM = 1024, 512, 32
SIZES = {"q_rank": 192, "window": 128, "groups": 2, "out_rank": 80, "rope_dim": ROPE_DIM}
INDEX = {"index_heads": 4, "index_dim": 64, "top_k": 64}
STREAMS = {"count": 4, "sinkhorn_steps": 20}
MODEL = {
    "hidden": HIDDEN,
    "heads": 8,
    "kv_heads": 1,
    "head_dim": 96,
    "gated": True,
    "vocab": 256,
    "tied": True,
    "flash_attention": False,
    "residual_streams": STREAMS,
    "compressed": {**SIZES, **INDEX},
}
"""Sections of our model file, as the layers are built."""
WORDS = {
    "shared-window+none": "sliding_attention",
    "csa+none": "compressed_sparse_attention",
    "hca+none": "heavily_compressed_attention",
}
TRAINING = {"seq_len": TOKENS, "global_batch": 8, "precision": "bf16"}
KEPT_FRAC = 0.005


def built(word):
    """Return a model of one layer whose attention is of a kind, in bf16 but for what stays."""
    config = DeepseekV4Config(
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=MODEL["heads"],
        head_dim=MODEL["head_dim"],
        q_lora_rank=SIZES["q_rank"],
        sliding_window=SIZES["window"],
        o_groups=SIZES["groups"],
        o_lora_rank=SIZES["out_rank"],
        partial_rotary_factor=ROPE_DIM / MODEL["head_dim"],
        index_n_heads=INDEX["index_heads"],
        index_head_dim=INDEX["index_dim"],
        index_topk=INDEX["top_k"],
        hc_mult=STREAMS["count"],
        hc_sinkhorn_iters=STREAMS["sinkhorn_steps"],
        layer_types=[word],
        mlp_layer_types=["moe"],
        n_routed_experts=2,
        moe_intermediate_size=16,
        vocab_size=256,
        pad_token_id=None,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        model = classes.DeepseekV4Model(config)
    model.to(torch.bfloat16)
    layer = model.layers[0]
    layer.attn_hc.float()  # it stays in fp32 (_keep_in_fp32_modules_strict)
    if indexer := getattr(layer.self_attn.compressor, "indexer", None):
        # Positions have no gradient, so that autograd drops what the indexer saved; hooks that hold
        # the output of a ReLU, which it saves, would keep it.
        indexer.forward = torch.no_grad()(indexer.forward)
    return model


def half_layer(model, streams):
    """Run attention between its connection's reading and writing."""
    layer, dtype = model.layers[0], streams.dtype
    positions = torch.arange(TOKENS, device="meta")[None]
    mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=dtype, device="meta")
    angles = {
        name: model.rotary_emb(streams[:, :, 0], position_ids=positions, layer_type=name)
        for name in ("main", "compress")
    }
    post, mixed, read = layer.attn_hc(streams)
    out, _ = layer.self_attn(
        layer.input_layernorm(read),
        position_embeddings=angles,
        position_ids=positions,
        attention_mask=mask,
    )
    added = post.to(dtype).unsqueeze(-1) * out.unsqueeze(-2)
    return added + torch.matmul(mixed.to(dtype).transpose(-1, -2), streams)


def kept_bytes(model):
    """Return what half a layer keeps of one forward over `TOKENS`, bytes."""
    kept, size = Kept(), (1, TOKENS, STREAMS["count"], HIDDEN)
    kept.leave_out(model.parameters())
    streams = torch.empty(size, dtype=torch.bfloat16, device="meta", requires_grad=True)
    with kept:
        out = half_layer(model, streams)
        assert out.shape == streams.shape
        return kept.now


def main():
    """Print a line a layer."""
    warnings.simplefilter("ignore")
    for kind, word in WORDS.items():
        model = built(word)
        layer = model.layers[0]
        parts = (layer.attn_hc, layer.self_attn, layer.input_layernorm)
        answer = {
            "kind": kind,
            "stack": "hf-fsdp2",
            "limit_frac": KEPT_FRAC,
            "model": {**MODEL, "layer_kinds": [{"kind": kind, "count": 1}]},
            "training": TRAINING,
            "parameters": sum(w.numel() for part in parts for w in part.parameters()),
            "kept_bytes": kept_bytes(model),
        }
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
