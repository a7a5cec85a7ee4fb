"""Model shapes of every kind that plans are drawn for."""

from dataclasses import replace

from costmodels.examples import LLAMA3_8B, MIXTRAL_8X7B
from costmodels.layers.kinds import layer_run
from costmodels.shapes import (
    DeltaNetShape,
    LayerRun,
    Mamba1Shape,
    Mamba2Shape,
    ModelShape,
    ShortConvShape,
    WindowShape,
)
from planner.specs.examples import example_names
from planner.specs.loader import load_model


def dense(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
    **more: object,
) -> ModelShape:
    """Return a Llama-like shape; `more` holds what differs."""
    given = {"head_dim": hidden // heads, "gated": True, "tied": False, **more}
    return replace(
        LLAMA3_8B,
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
        **given,
    )


GPT2 = {"gated": False, "tied": True, "norm": "layernorm", "bias": True, "positions": "learned"}

MORE = (
    dense("llama3.2-1b", 16, 2048, 32, 8, 8192, 128256, tied=True),
    dense("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064),
    dense("qwen2.5-14b", 48, 5120, 40, 8, 13824, 152064),
    dense("gemma-2b", 18, 2048, 8, 1, 16384, 256000, head_dim=256, tied=True),
    dense("one-kv-head", 60, 8192, 64, 1, 22016, 65024),
    dense("three-kv-heads", 30, 576, 9, 3, 1536, 49152, tied=True),
    dense("yi-34b", 60, 7168, 56, 8, 20480, 64000),
    dense("thirteen-layers", 13, 4096, 32, 8, 11008, 32000),
    dense("wide-heads", 42, 3072, 16, 16, 24576, 256128, head_dim=256),
    dense("gpt2-small", 12, 768, 12, 12, 3072, 50257, dropout=True, max_positions=131072, **GPT2),
    dense("gpt-1.3b", 24, 2048, 32, 32, 8192, 50257, max_positions=131072, **GPT2),
    dense("unfused-7b", 32, 4096, 32, 32, 11008, 32000, flash_attention=False, dropout=True),
    replace(MIXTRAL_8X7B, name="dense-first", dense_layers=4, ffn=14336, shared_ffn=4096),
    replace(MIXTRAL_8X7B, name="every-other", moe_every=2, top_k=1, capacity_factor=1.25),
    replace(
        MIXTRAL_8X7B,
        name="mixtral-8x22b",
        layers=56,
        hidden=6144,
        heads=48,
        ffn=16384,
        expert_ffn=16384,
    ),
    dense(
        "qwen3-30b-a3b",
        48,
        2048,
        32,
        4,
        6144,
        151936,
        head_dim=128,
        n_experts=128,
        top_k=8,
        expert_ffn=768,
    ),
    dense(
        "sixty-experts",
        24,
        2048,
        16,
        16,
        5632,
        151936,
        n_experts=60,
        top_k=4,
        expert_ffn=1408,
        shared_ffn=5632,
    ),
    dense(
        "deepseek-v2-lite",
        27,
        2048,
        16,
        16,
        10944,
        102400,
        head_dim=192,
        n_experts=64,
        top_k=6,
        expert_ffn=1408,
        shared_ffn=2816,
        dense_layers=1,
        kv_rank=512,
        qk_nope=128,
        qk_rope=64,
        v_head=128,
    ),
    dense(
        "latent-dense",
        32,
        4096,
        32,
        32,
        11008,
        64000,
        head_dim=192,
        q_rank=768,
        kv_rank=256,
        qk_nope=128,
        qk_rope=64,
        v_head=128,
    ),
    dense("llama-mtp", 32, 4096, 32, 8, 14336, 128256, mtp_layers=1),
)


def pattern(*kinds: str, times: int = 1) -> tuple[LayerRun, ...]:
    """Return the layers of a pattern that repeats."""
    return tuple(layer_run(kind, 1) for kind in kinds) * times


MAMBA = Mamba2Shape(heads=128, head_dim=64, groups=8, state=128, conv=4, chunk=128)
DELTA = DeltaNetShape(k_heads=16, v_heads=32, k_dim=128, v_dim=128, conv=4, chunk=64)
MIXED = (
    replace(
        LLAMA3_8B,
        name="windows",
        window=WindowShape(1024),
        layer_runs=pattern("window+dense", "dense", times=16),
    ),
    replace(
        LLAMA3_8B,
        name="sublayers",
        layers=24,
        gated=False,
        mamba2=MAMBA,
        layer_runs=pattern("mamba2+none", "none+dense", "mamba2+none", "attention+none", times=6),
    ),
    replace(
        MIXTRAL_8X7B,
        name="state-spaces-mtp",
        layers=24,
        mamba2=MAMBA,
        mtp_layers=1,
        layer_runs=pattern(*["mamba2+moe"] * 3, "moe", times=6),
    ),
    replace(
        MIXTRAL_8X7B,
        name="delta-nets",
        layers=24,
        delta_net=DELTA,
        attention_gate=True,
        layer_runs=pattern(*["gdn+moe"] * 3, "moe", times=6),
    ),
    replace(
        LLAMA3_8B,
        name="short-convolutions",
        short_conv=ShortConvShape(3),
        layer_runs=pattern("conv+dense", "dense", times=16),
    ),
    replace(
        LLAMA3_8B,
        name="first-mamba",
        mamba1=Mamba1Shape(inner=8192, state=16, dt_rank=256, conv=4),
        layer_runs=pattern(*["mamba1+dense"] * 7, "dense", times=4),
    ),
    replace(
        LLAMA3_8B,
        name="encoder",
        kv_heads=32,
        tied=True,
        head_transform=True,
        window=WindowShape(129),
        layer_runs=pattern("bidirectional+dense", *["bidirectional-window+dense"] * 3, times=8),
    ),
)
"""Models of layers of several kinds."""


def all_shapes() -> tuple[ModelShape, ...]:
    """Return the shapes of the shipped examples and those above, in one fixed order."""
    shipped = sorted(example_names("model"))
    return tuple(load_model(name).shape for name in shipped) + MORE + MIXED
