"""What Megatron-LM is run with over several pools: unlike stages, and replicas on unlike pools."""

from typing import Any

from planner.specs.importers.hostlist import expand_hosts
from tools.smoke.case import Case

TRAINING = {"seq_len": 64, "global_batch": 8, "precision": "bf16", "optimizer": "adam"}
DENSE: dict[str, Any] = {
    "layers": 7,
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
MOE: dict[str, Any] = {
    **DENSE,
    "moe": {"experts": 4, "topk": 2, "moe_ffn": 64, "shared_experts": 1, "dense_layers": 1},
}
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


def _case(
    name: str,
    feature: str,
    grid: tuple[int, int, int],
    nodes: tuple[str, str] = TWO_NODES,
    *,
    model: dict[str, Any] = DENSE,
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


CASES = [
    _case("stages", "two pools, uneven stages", (2, 2, 1), in_ci=True),
    _case("deep", "two pools, four uneven stages", (4, 1, 1)),
    _case("tp", "two pools, tp, uneven stages", (2, 1, 1), tp=2),
    _case("wide", "two pools, four uneven stages, dp", (4, 2, 1), FOUR_NODES),
    _case("replicas", "two pools, a replica on each", (1, 4, 2)),
    _case("kinds", "two pools, replicas on unlike pools", (2, 4, 2), UNLIKE_NODES),
    _case("recompute", "two pools, recompute", (2, 2, 1), recompute="full"),
    _case("moe", "two pools, MoE, uneven stages", (2, 2, 1), model=MOE, ep=2),
]
