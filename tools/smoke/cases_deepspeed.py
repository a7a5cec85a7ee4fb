"""What DeepSpeed is run with: tiny jobs, the layouts that its files can say."""

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
    pins = {"devices": 2, "mbs": 1, "recompute": "none", **pins}
    return Case(name, "deepspeed", job, pins, feature, in_ci)


CASES = (
    _case("deepspeed-zero3", "ZeRO-3", DENSE, in_ci=True, zero=3),
    _case("deepspeed-zero2", "ZeRO-2", DENSE, zero=2, mbs=2),
    _case("deepspeed-zero1", "ZeRO-1", DENSE, zero=1),
    _case("deepspeed-tied", "tied embeddings", {**DENSE, "tied": True}, zero=3),
    _case(
        "deepspeed-learned",
        "dense, learned positions",
        {
            **DENSE,
            "kv_heads": 4,
            "gated": False,
            "norm": "layernorm",
            "bias": True,
            "positions": "learned",
            "tied": True,
        },
        zero=2,
    ),
    _case("deepspeed-pipeline", "pipeline", DENSE, in_ci=True, devices=4, pp=2, zero=1),
    _case(
        "deepspeed-pipeline-tied",
        "pipeline, tied",
        {**DENSE, "tied": True},
        devices=4,
        pp=2,
        zero=1,
    ),
    _case(
        "deepspeed-pipeline-recompute",
        "pipeline, recompute",
        DENSE,
        devices=4,
        pp=2,
        zero=1,
        recompute="full",
    ),
    _case("deepspeed-tp", "tensor parallel", DENSE, devices=4, tp=2, sp=False, zero=1),
    _case("deepspeed-cp", "context parallel", DENSE, devices=4, cp=2, cp_comm="a2a", zero=3),
    _case("deepspeed-moe", "MoE", EXPERTS, in_ci=True, ep=2, zero=2),
    _case("deepspeed-moe-zero3", "MoE, ZeRO-3", EXPERTS, ep=2, zero=3),
    _case("deepspeed-mla", "MLA", LATENT, ep=2, zero=1),
    _case("deepspeed-hpz", "hpZ", DENSE, devices=4, zero=3, hpz=2),
    _case("deepspeed-recompute", "recompute", DENSE, zero=3, recompute="full"),
    _case(
        "deepspeed-selective",
        "recompute of the core",
        {**DENSE, "flash_attention": False},
        zero=2,
        recompute="selective",
    ),
    _case("deepspeed-t5-recompute", "recompute of both sides", MODELS["t5"], recompute="full"),
    _case(
        "deepspeed-t5-selective",
        "recompute of the core of both sides",
        MODELS["t5"],
        recompute="selective",
    ),
    _case("deepspeed-offload", "optimizer on the host", DENSE, zero=2, optimizer_offload=True),
    *(
        _case(f"deepspeed-{name}", f"layers of {name}", model, zero=2)
        for name, model in MODELS.items()
    ),
)
