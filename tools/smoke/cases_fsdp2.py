"""What FSDP2 through Accelerate is run with: tiny jobs, the layouts that its files can say."""

from tools.smoke.case import Case
from tools.smoke.kinds import MODELS

TRAINING = {"seq_len": 128, "global_batch": 8, "precision": "bf16", "optimizer": "adam"}
DENSE = {
    "layers": 4,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 128,
    "gated": True,
    "vocab": 512,
    "tied": False,
}
EXPERTS = {**DENSE, "moe": {"experts": 8, "topk": 2, "moe_ffn": 64}}
LATENT = {
    "layers": 3,
    "hidden": 64,
    "heads": 4,
    "ffn": 128,
    "gated": True,
    "vocab": 512,
    "tied": False,
    "mla": {"q_rank": 32, "kv_rank": 16, "qk_nope": 16, "qk_rope": 8, "v_head": 16},
    "moe": {"experts": 8, "topk": 2, "moe_ffn": 32, "shared_experts": 1, "dense_layers": 1},
}


def _case(name: str, feature: str, model: dict, *, in_ci: bool = False, **pins: object) -> Case:
    job = {"model": {"name": name, **model}, "training": TRAINING}
    pins = {"devices": 2, "mbs": 1, "zero": 3, "recompute": "none", **pins}
    return Case(name, "fsdp2", job, pins, feature, in_ci)


CASES = (
    _case("fsdp2-zero3", "ZeRO-3", DENSE, in_ci=True),
    _case("fsdp2-zero2", "ZeRO-2", DENSE, zero=2, mbs=2),
    _case("fsdp2-tied", "tied embeddings", {**DENSE, "tied": True}),
    _case("fsdp2-hsdp", "replicated ZeRO groups", DENSE, devices=4, dp_shard=2),
    _case("fsdp2-cp", "context parallel", DENSE, devices=4, cp=2, cp_comm="all-gather"),
    _case("fsdp2-ring", "context parallel, ring", DENSE, devices=4, cp=2, cp_comm="p2p"),
    _case("fsdp2-tp", "tensor parallel", DENSE, devices=4, tp=2, sp=False),
    _case("fsdp2-moe", "MoE", EXPERTS, in_ci=True),
    _case("fsdp2-mla", "MLA", LATENT),
    _case("fsdp2-recompute", "recompute", DENSE, recompute="full"),
    _case("fsdp2-t5-recompute", "recompute of both sides", MODELS["t5"], recompute="full"),
    *(_case(f"fsdp2-{name}", f"layers of {name}", model) for name, model in MODELS.items()),
)
