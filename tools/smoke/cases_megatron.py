"""What Megatron-LM is run with: tiny jobs over every axis that its flags can say.

A vocabulary of 1,000 is padded to 1,024 rows on one and two tensor-parallel ranks, by old releases
too, whose NullTokenizer counts a token more.
"""

from typing import Any

from tools.smoke.case import Case
from tools.smoke.cases_megatron_pools import CASES as OVER_POOLS

TRAINING = {"seq_len": 64, "global_batch": 8, "precision": "bf16", "optimizer": "adam"}
DENSE: dict[str, Any] = {
    "layers": 4,
    "hidden": 128,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 16,
    "ffn": 256,
    "gated": True,
    "vocab": 1000,
    "tied": False,
    "norm": "rmsnorm",
    "bias": False,
    "positions": "rope",
}
GPT: dict[str, Any] = {
    "layers": 4,
    "hidden": 128,
    "heads": 8,
    "ffn": 512,
    "gated": False,
    "vocab": 1000,
    "tied": True,
    "norm": "layernorm",
    "bias": True,
    "positions": "learned",
    "max_positions": 64,
}
SQUARED: dict[str, Any] = {
    **DENSE,
    "gated": False,
    "details": {"activation": "squared_relu"},
}
MOE: dict[str, Any] = {
    **DENSE,
    "moe": {"experts": 4, "topk": 2, "moe_ffn": 64, "shared_experts": 1, "dense_layers": 1},
}
LATENT: dict[str, Any] = {
    "layers": 4,
    "hidden": 128,
    "heads": 4,
    "ffn": 256,
    "gated": True,
    "vocab": 1000,
    "tied": False,
    "mla": {"q_rank": 48, "kv_rank": 32, "qk_nope": 16, "qk_rope": 8, "v_head": 16},
    "moe": {"experts": 8, "topk": 2, "moe_ffn": 64, "shared_experts": 1, "dense_layers": 1},
}


def _case(
    name: str, feature: str, model: dict[str, Any], *, in_ci: bool = False, **pins: object
) -> Case:
    job = {"model": {"name": f"tiny-{name}", **model}, "training": TRAINING}
    pins = {"devices": 2, "mbs": 1, "vpp": 1, "recompute": "none", **pins}
    return Case(f"megatron-{name}", "megatron", job, pins, feature, in_ci)


def _deep(layers: int) -> dict[str, Any]:
    return {**DENSE, "layers": layers}


CASES = [
    _case(
        "dense",
        "tp, pp, dp, sequence parallel",
        DENSE,
        in_ci=True,
        devices=8,
        tp=2,
        pp=2,
        sp=True,
        zero=1,
    ),
    _case("gpt", "tied, LayerNorm, biases, learned positions", GPT, tp=1, pp=2),
    _case("squared-relu", "squared ReLU", SQUARED, tp=2, sp=False),
    _case("no-zero", "data parallel, nothing sharded", DENSE, zero=0, mbs=2),
    _case("interleaved", "interleaved pipeline", DENSE, pp=2, vpp=2),
    _case("uneven", "stages spelled out", _deep(5), pp=2),
    _case("ends", "embedding and loss count as layers", _deep(6), devices=4, pp=4, split="ends"),
    _case("full", "full recomputation", DENSE, pp=2, recompute="full", recompute_layers=1),
    _case(
        "core-attn",
        "recomputed attention core",
        {**DENSE, "flash_attention": False},
        recompute="selective",
        recompute_modules="core_attn",
    ),
    _case(
        "mla-up",
        "recomputed projections of MLA, shared experts",
        LATENT,
        ep=2,
        recompute="selective",
        recompute_modules="mla_up_proj+shared_experts",
    ),
    _case("modules", "recomputed modules", DENSE, recompute="selective", recompute_modules="mlp"),
    _case("cp", "context parallel, p2p", DENSE, cp=2, cp_comm="p2p"),
    _case(
        "cp-gather",
        "context parallel, all-gather",
        DENSE,
        devices=4,
        tp=2,
        sp=True,
        cp=2,
        cp_comm="all-gather",
    ),
    _case("zero2", "ZeRO-2, Megatron-FSDP", DENSE, zero=2),
    _case("zero3", "ZeRO-3, Megatron-FSDP", DENSE, zero=3),
    _case(
        "moe",
        "MoE, shared expert, ep",
        MOE,
        in_ci=True,
        devices=4,
        tp=2,
        sp=True,
        ep=2,
        etp=1,
        zero=1,
    ),
    _case("moe-etp", "MoE, ep and etp", MOE, devices=4, tp=2, sp=True, ep=2, etp=2, zero=1),
    _case("mla", "MLA and MoE, pipeline", LATENT, devices=4, pp=2, ep=2, zero=1),
    _case("mtp", "multi-token prediction", {**LATENT, "mtp_layers": 1}, ep=2, zero=1),
    *OVER_POOLS,
]
