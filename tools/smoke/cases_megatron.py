"""What Megatron-LM is run with: tiny jobs over every axis that its flags can say.

A vocabulary of 1,000 is padded to 1,024 rows on one and two tensor-parallel ranks, by old releases
too, whose NullTokenizer counts a token more.
"""

from typing import Any

from planner.specs.importers.hostlist import expand_hosts
from tools.smoke.case import Case

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


SEVEN = _deep(7)
TWO_NODES = ("127.0.0.1", "127.0.0.2")
"""Nodes of the new pool, and of the old one."""
FOUR_NODES = ("127.0.0.[1-2]", "127.0.0.[3-4]")
UNLIKE_NODES = ("127.0.0.[1-3]", "127.0.0.4")


def _pool(name: str, accelerator: str, nic: str, hosts: str, per_node: int) -> dict[str, Any]:
    """Return a pool whose nodes are addresses of the loopback network."""
    return {
        "name": name,
        "accelerator": accelerator,
        "hosts": hosts,
        "nodes": len(expand_hosts(hosts)),
        "accelerators_per_node": per_node,
        "scale_up_domain": per_node,
        "nics_per_node": per_node,
        "nic": nic,
    }


def _over_pools(
    name: str,
    feature: str,
    grid: tuple[int, int, int],
    nodes: tuple[str, str] = TWO_NODES,
    *,
    model: dict[str, Any] = SEVEN,
    in_ci: bool = False,
    **pins: object,
) -> Case:
    """Return a case over new and old nodes of two devices."""
    new, old = nodes
    return Case(
        f"megatron-pools-{name}",
        "megatron",
        {"model": {"name": f"tiny-pools-{name}", **model}, "training": TRAINING},
        {"tp": 1, "cp": 1, "ep": 1, "mbs": 1, "recompute": "none", **pins},
        feature,
        in_ci,
        pools=(
            _pool("new", "h100-sxm-80gb", "ib-ndr-400", new, 2),
            _pool("old", "a100-sxm-80gb", "ib-hdr-200", old, 2),
        ),
        grid=grid,
    )


OVER_POOLS = [
    _over_pools("stages", "two pools, uneven stages", (2, 2, 1), in_ci=True),
    _over_pools("deep", "two pools, four uneven stages", (4, 1, 1)),
    _over_pools("tp", "two pools, tp, uneven stages", (2, 1, 1), tp=2),
    _over_pools("wide", "two pools, four uneven stages, dp", (4, 2, 1), FOUR_NODES),
    _over_pools("replicas", "two pools, a replica on each", (1, 4, 2)),
    _over_pools("kinds", "two pools, replicas on unlike pools", (2, 4, 2), UNLIKE_NODES),
    _over_pools("recompute", "two pools, recompute", (2, 2, 1), recompute="full"),
    _over_pools(
        "moe", "two pools, MoE, uneven stages", (2, 2, 1), model={**MOE, "layers": 7}, ep=2
    ),
]

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
