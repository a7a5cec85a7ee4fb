"""The run matrix of torchtitan: tiny models, one feature of a plan each.

The model called `registered` has the sizes of torchtitan's own `debugmodel`, so that a job file
for 0.2.2 is written for it too; the other cases are for the recipe alone.
"""

from tools.smoke.case import Case

TRAINING = {"precision": "bf16", "optimizer": "adam"}
SIZES = {
    "layers": 4,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 128,
    "gated": True,
    "vocab": 512,
    "tied": False,
    "norm": "rmsnorm",
    "bias": False,
    "positions": "rope",
}
EXPERTS = {"experts": 4, "topk": 2, "moe_ffn": 64}
LATENT = {"q_rank": 32, "kv_rank": 32, "qk_nope": 16, "qk_rope": 16, "v_head": 16}


def model(name: str, batch: int = 4, seq_len: int = 64, **sizes: object) -> dict:
    """Return the content of a model file; latent attention has no key/value heads."""
    held = {key: value for key, value in SIZES.items() if key != "kv_heads" or "mla" not in sizes}
    training = TRAINING | {"global_batch": batch, "seq_len": seq_len}
    return {"model": {"name": name} | held | sizes, "training": training}


GQA = model("tiny-gqa")
LONG = model("tiny-gqa-256", seq_len=256)
GQA_8 = model("tiny-gqa-8", batch=8)
EAGER = model("tiny-gqa-eager", flash_attention=False)
WIDE = model("tiny-wide-heads", head_dim=32)
MOE = model("tiny-moe", moe=EXPERTS)
MIXED = model("tiny-moe-shared", moe=EXPERTS | {"shared_experts": 1, "dense_layers": 1})
MLA = model("tiny-mla", mla=LATENT)
MLA_MOE = model(
    "tiny-mla-moe",
    mla=LATENT,
    moe=EXPERTS | {"shared_experts": 1, "dense_layers": 1},
)
LLAMA3 = model(
    "registered-llama3", layers=6, hidden=256, heads=16, kv_heads=16, ffn=768, vocab=2048
)
OSS = model("tiny-oss", bias=True, moe=EXPERTS)


def case(name: str, held: dict, feature: str, in_ci: bool = False, **pins: object) -> Case:
    """Return a case: one axis at a time differs from one rank that recomputes nothing."""
    plain = {"tp": 1, "pp": 1, "cp": 1, "mbs": 1, "zero": 2, "recompute": "none"}
    return Case(f"torchtitan-{name}", "torchtitan", held, plain | pins, feature, in_ci)


CASES = (
    case("registered-dense", LLAMA3, "dense", devices=4, tp=2, dp=2, sp="true", zero=3),
    case("gqa-tp2", GQA, "GQA", True, devices=4, tp=2, dp=2, sp="true", zero=3),
    case("wide-heads", WIDE, "dense, wide heads", devices=2, dp=2),
    case("zero0", GQA, "ZeRO-0", devices=2, dp=2, zero=0),
    case("zero2", GQA, "ZeRO-2", devices=2, dp=2),
    case("zero3", GQA, "ZeRO-3", devices=2, dp=2, zero=3, mbs=2),
    case("hsdp", GQA, "HSDP", devices=4, dp=4, zero=3, dp_shard=2),
    case("pp2", GQA, "pipeline", devices=2, dp=1, pp=2, schedule="1f1b", zero=0),
    case("pp2-zero1", GQA, "pipeline, ZeRO-1", devices=4, dp=2, pp=2, schedule="1f1b", zero=1),
    case(
        "pp2-tp2-interleaved",
        GQA_8,
        "interleaved",
        devices=8,
        dp=2,
        pp=2,
        tp=2,
        vpp=2,
        sp="true",
        schedule="interleaved",
        zero=1,
    ),
    case("cp2", LONG, "cp", devices=4, dp=2, cp=2, cp_comm="all-gather", zero=3),
    case("full", GQA, "recompute", devices=2, dp=2, recompute="full", recompute_layers=4),
    case(
        "full-first",
        GQA,
        "recompute of some layers",
        devices=2,
        dp=2,
        recompute="full",
        recompute_layers=2,
    ),
    case("selective", EAGER, "selective recompute", devices=2, dp=2, recompute="selective"),
    case("moe-ep2", MOE, "MoE", devices=2, dp=2, ep=2),
    case("moe-tp2-ep2", MOE, "MoE, tp", devices=4, dp=2, tp=2, ep=2, sp="true"),
    case("moe-mixed", MIXED, "MoE, shared expert", devices=2, dp=2, ep=2),
    case("mla", MLA, "MLA", devices=2, dp=2, zero=3),
    case("mla-moe-ep2", MLA_MOE, "MLA and MoE", True, devices=4, dp=4, ep=2, zero=3),
    case(
        "mla-moe-pp2",
        MLA_MOE,
        "MLA and MoE, pipeline",
        devices=4,
        dp=2,
        pp=2,
        ep=2,
        schedule="1f1b",
        zero=1,
    ),
    case("biased-experts", OSS, "biases and MoE", devices=2, dp=2, ep=2),
)
