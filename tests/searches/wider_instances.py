"""Small problems of every kind of model, schedule and size of cluster, for `oracle_models`."""

from dataclasses import replace

from costmodels.axes import SCHEDULES
from costmodels.layers.kinds import layer_run
from costmodels.shapes import (
    CompressedShape,
    CrossShape,
    DeltaNetShape,
    DiffusionShape,
    EncoderShape,
    FactoredShape,
    LayerVariant,
    Mamba2Shape,
    ModelShape,
    OperatorsShape,
    PerLayerShape,
    RglruShape,
    StreamsShape,
    VisionShape,
    WindowShape,
)
from hardware.parts import Fabric, Tier
from searches.options import SearchOptions
from searches.rules import Context
from tests.searches.instances import (
    DENSE,
    FLAT,
    GB,
    GQA,
    ONE_TIER,
    THIRDS,
    TWO_TIERS,
    context,
    on_stack,
    pins,
    real_pool,
    toy_pool,
    with_host,
    with_options,
)

MOE = ModelShape(
    "moe",
    layers=4,
    hidden=1024,
    heads=8,
    kv_heads=4,
    head_dim=128,
    ffn=4096,
    gated=True,
    vocab=32000,
    tied=False,
    n_experts=4,
    top_k=2,
    expert_ffn=1536,
)
MIXED = replace(
    MOE,
    name="mixed",
    layers=6,
    dense_layers=1,
    moe_every=2,
    shared_ffn=512,
    imbalance=1.2,
    tied=True,
)
CAPPED = replace(
    MOE,
    name="capped",
    n_experts=6,
    top_k=1,
    capacity_factor=1.5,
    bias=True,
    gated=False,
    norm="layernorm",
)
LATENT = ModelShape(
    "latent",
    layers=4,
    hidden=1024,
    heads=8,
    kv_heads=8,
    head_dim=192,
    ffn=3072,
    gated=True,
    vocab=32000,
    tied=False,
    q_rank=512,
    kv_rank=256,
    qk_nope=128,
    qk_rope=64,
    v_head=128,
)
EVERYTHING = replace(
    LATENT,
    name="latent-experts-mtp",
    n_experts=4,
    top_k=2,
    expert_ffn=768,
    shared_ffn=768,
    dense_layers=1,
    mtp_layers=1,
    n_groups=2,
    top_groups=1,
)
AHEAD = replace(GQA, name="two-tokens-ahead", layers=4, mtp_layers=1)
SPLIT = tuple(SCHEDULES.index(name) for name in ("zb-h1", "zb-v", "dualpipe", "dualpipe-v"))
ALL_SCHEDULES = tuple(range(1, len(SCHEDULES)))


def any_framework(**only: int | tuple[int, ...]) -> SearchOptions:
    """Return options that also open what no emitter writes."""
    return SearchOptions(framework="any", only=pins(**only).only)


def racks(n_racks: int) -> Context:
    """Return racks of 18 trays of four GB200 whose 72 share one NVLink domain."""
    pool = replace(real_pool("gb200", 18 * n_racks, 4), scale_up_domain=72)
    return context(
        replace(THIRDS, layers=6, heads=36, kv_heads=12, hidden=2304, ffn=6912),
        pool,
        batch=72 * n_racks,
        fabric=ONE_TIER,
        options=pins(mbs=(1, 2), tp=(1, 4, 36), vpp=1, recompute=(0, 2)),
    )


HYBRID = ModelShape(
    "hybrid",
    layers=12,
    hidden=1024,
    heads=8,
    kv_heads=4,
    head_dim=128,
    ffn=4096,
    gated=True,
    vocab=32000,
    tied=False,
    window=WindowShape(256),
    mamba2=Mamba2Shape(heads=32, head_dim=64, groups=4, state=128, conv=4, chunk=128),
    delta_net=DeltaNetShape(k_heads=4, v_heads=8, k_dim=128, v_dim=128, conv=4, chunk=64),
    layer_runs=tuple(
        layer_run(name, count)
        for name, count in (
            *(("mamba2+none", 2), ("none+dense", 2), ("window+dense", 1), ("gdn+dense", 1)),
            *(("attention+none", 1), ("mamba2+none", 2), ("none+dense", 1), ("dense", 2)),
        )
    ),
)

DIFFERENTIAL = replace(
    HYBRID,
    window=None,
    mamba2=None,
    delta_net=None,
    layer_runs=(layer_run("differential+dense", 10), layer_run("dense", 2)),
)

FACTORED = replace(
    DIFFERENTIAL,
    factored=FactoredShape(q_rank=384),
    layer_runs=(layer_run("factored+dense", 10), layer_run("dense", 2)),
)


ENCODER = ModelShape(
    "encoder",
    layers=6,
    hidden=1024,
    heads=16,
    kv_heads=16,
    head_dim=64,
    ffn=4096,
    gated=False,
    vocab=30000,
    tied=True,
    norm="layernorm",
    bias=True,
    positions="learned",
    head_transform=True,
    window=WindowShape(129),
    layer_runs=(layer_run("bidirectional+dense", 2), layer_run("bidirectional-window+dense", 4)),
)
SEEING = replace(
    GQA,
    name="seeing",
    layers=4,
    vision=VisionShape(
        layers=3,
        hidden=512,
        heads=8,
        ffn=2048,
        gated=False,
        patch=16,
        patches=256,
        images=2,
        merge=4,
        projector=(2048,),
        inner_projectors=1,
        positions=256,
    ),
)


CROSSING = replace(
    HYBRID,
    name="crossing",
    layers=6,
    cross=CrossShape(tokens=384, width=768),
    layer_runs=tuple(
        layer_run(name, count)
        for name, count in (("causal-cross+dense", 3), ("cross+dense", 1), ("dense", 2))
    ),
)


SPEAKING = replace(
    ENCODER,
    name="speaking",
    layers=6,
    head_transform=False,
    window=None,
    bias=False,
    cross=CrossShape(tokens=768, width=512),
    encoder=EncoderShape(768, hidden=512, heads=8, head_dim=64, ffn=2048, positions=768),
    layer_runs=(layer_run("encoder+dense", 4), layer_run("causal-cross+dense", 2)),
)
HEARING = replace(
    SPEAKING,
    encoder=EncoderShape(768, 512, 8, head_dim=64, ffn=2048, conv_channels=80),
    operators=OperatorsShape(activation="relu", norm="kernel"),
)
T5 = replace(
    SPEAKING,
    norm="rmsnorm",
    positions="none",
    cross=CrossShape(tokens=768, width=1024),
    encoder=EncoderShape(768, vocab=30000),
    operators=OperatorsShape(activation="gelu_new", norm="scaled"),
)
STREAMED = replace(
    HYBRID,
    name="streamed",
    layers=7,
    window=None,
    mamba2=None,
    delta_net=None,
    compressed=CompressedShape(
        q_rank=384,
        window=192,
        groups=4,
        out_rank=160,
        rope_dim=32,
        sparse_ratio=4,
        heavy_ratio=96,
        index_heads=8,
        index_dim=48,
        top_k=128,
    ),
    residual_streams=StreamsShape(count=3, sinkhorn_steps=7),
    layer_runs=tuple(
        layer_run(name, count)
        for name, count in (
            *(("shared-window+dense", 1), ("csa+none", 1), ("none+dense", 1)),
            *(("hca+dense", 2), ("csa+dense", 1), ("dense", 1)),
        )
    ),
)


def seeing(**changed: object) -> ModelShape:
    """Return a model with a tower some of whose fields are changed."""
    assert SEEING.vision is not None
    return replace(SEEING, vision=replace(SEEING.vision, **changed))  # type: ignore[arg-type]


DIFFUSION = ModelShape(
    "diffusion",
    layers=6,
    hidden=1024,
    heads=8,
    kv_heads=8,
    head_dim=128,
    ffn=4096,
    gated=False,
    vocab=0,
    tied=False,
    norm="layernorm",
    bias=True,
    diffusion=DiffusionShape(
        height=256,
        width=512,
        frames=5,
        vae_frames=4,
        text_tokens=256,
        text_width=768,
        pooled_width=512,
        guidance=True,
        qk_norm="head",
    ),
    layer_runs=tuple(
        layer_run(name, count)
        for name, count in (
            *(("double-stream", 2), ("adaln", 1), ("single-stream", 2)),
            ("double-stream-last", 1),
        )
    ),
)
"""Sequences of 2 x 16 x 32 patches and 256 tokens of text."""


UNLIKE = replace(
    HYBRID,
    variants=(
        LayerVariant("few", (("heads", 4), ("kv_heads", 2), ("head_dim", 256), ("window", 512))),
        LayerVariant("wide", (("heads", 16), ("ffn", 6144))),
    ),
    mamba2=None,
    delta_net=None,
    layer_runs=tuple(
        layer_run(name, count)
        for name, count in (
            *(("dense", 2), ("dense@wide", 3), ("window+dense@few", 2), ("window+dense", 1)),
            *(("none+dense@wide", 1), ("dense@wide", 2), ("attention+none@few", 1)),
        )
    ),
)
"""Layers of unlike widths."""
READERS = replace(
    HYBRID,
    layers=6,
    variants=(LayerVariant("reader", (("kv_shared", 1), ("ffn", 6144))),),
    per_layer=PerLayerShape(256, 8192, streams=4, laurel_rank=64),
    mamba2=None,
    delta_net=None,
    layer_runs=tuple(
        layer_run(name, count)
        for name, count in (
            *(("window+injected", 2), ("attention+injected", 1)),
            *(("window+injected@reader", 2), ("attention+injected@reader", 1)),
        )
    ),
)
"""Layers that read what earlier ones hold."""
GRIFFIN = replace(
    HYBRID,
    layers=6,
    kv_heads=1,
    mamba2=None,
    delta_net=None,
    rglru=RglruShape(width=1536, heads=8, conv=4),
    layer_runs=tuple(
        layer_run(name, count) for name, count in (("rglru+dense", 2), ("window+dense", 1)) * 2
    ),
)
"""Gated linear recurrences and windows."""


FAST: dict[str, Context] = {
    "speaking-4": context(
        SPEAKING, toy_pool(4), batch=4, stack="megatron-core", options=any_framework(mbs=1)
    ),
    "hearing-4": context(
        HEARING, toy_pool(4), batch=4, stack="eager", options=any_framework(mbs=1)
    ),
    "t5-4": context(T5, toy_pool(4), batch=4, stack="deepspeed", options=any_framework(mbs=1)),
    "crossing-4": context(
        CROSSING, toy_pool(4), batch=4, stack="megatron-core", options=any_framework(vpp=1, mbs=1)
    ),
    "streamed-4": context(
        STREAMED, toy_pool(4), batch=4, stack="megatron-core", options=any_framework(vpp=1, mbs=1)
    ),
    "streamed-8": context(
        STREAMED,
        toy_pool(4, 2),
        batch=4,
        stack="eager",
        options=any_framework(mbs=1, recompute=(0, 2)),
    ),
    "differential-4": context(
        DIFFERENTIAL,
        toy_pool(4),
        batch=4,
        stack="megatron-core",
        options=any_framework(vpp=1, mbs=1),
    ),
    "factored-4": context(
        FACTORED, toy_pool(4), batch=4, stack="megatron-core", options=any_framework(vpp=1, mbs=1)
    ),
    "diffusion-4": context(
        DIFFUSION,
        toy_pool(4),
        seq_len=1280,
        batch=4,
        stack="megatron-core",
        options=any_framework(vpp=1, mbs=1, cp=1),
    ),
    "diffusion-of-eager-code": context(
        replace(DIFFUSION, gated=True, bias=False),
        toy_pool(4, 2),
        seq_len=1280,
        batch=8,
        stack="eager",
        options=any_framework(mbs=1, cp=1, recompute=(0, 2)),
    ),
    "unlike-widths-4": context(
        UNLIKE, toy_pool(4), batch=4, stack="megatron-core", options=any_framework(vpp=1, mbs=1)
    ),
    "griffin-4": context(
        GRIFFIN, toy_pool(4), batch=4, stack="megatron-core", options=any_framework(mbs=1)
    ),
    "layers-that-read-earlier-ones": context(
        READERS, toy_pool(4), batch=4, stack="megatron-core", options=any_framework(mbs=1)
    ),
    "unlike-widths-of-eager-code": context(
        UNLIKE,
        toy_pool(4, 2),
        batch=8,
        stack="eager",
        options=any_framework(mbs=1, recompute=(0, 2)),
    ),
    "hybrid-4": context(
        HYBRID, toy_pool(4), batch=4, stack="megatron-core", options=any_framework(vpp=1, mbs=1)
    ),
    "hybrid-of-eager-code": context(
        HYBRID,
        toy_pool(4, 2),
        batch=8,
        stack="eager",
        options=any_framework(mbs=1, recompute=(0, 2)),
    ),
    "experts-4": context(MOE, toy_pool(4), batch=4, options=pins(vpp=1)),
    "experts-8-leaf": context(
        MOE,
        toy_pool(8, 4),
        batch=8,
        stack="megatron-core",
        fabric=ONE_TIER,
        options=pins(vpp=1, mbs=1, zero=(0, 1)),
    ),
    "shared-experts-of-some-layers": context(
        MIXED,
        toy_pool(4, 2),
        batch=4,
        stack="megatron-core-deepep",
        options=pins(mbs=1, vpp=1),
    ),
    "experts-of-eager-code": context(
        MIXED,
        toy_pool(6, 2),
        batch=6,
        stack="eager",
        options=pins(mbs=1, vpp=1, recompute=0),
    ),
    "experts-of-one-program": context(
        MOE, toy_pool(4), batch=4, stack="maxtext", options=pins(vpp=1)
    ),
    "dense-layers-of-one-program": context(
        MIXED, toy_pool(4, 2), batch=4, stack="maxtext", options=pins(mbs=1, vpp=1)
    ),
    "experts-with-biases": context(
        replace(MOE, bias=True), toy_pool(4), batch=4, stack="megatron-core", options=pins(vpp=1)
    ),
    "experts-with-a-capacity": context(
        CAPPED,
        toy_pool(6, 6),
        batch=6,
        stack="eager",
        options=any_framework(mbs=1, vpp=1, schedule=(0, 2), recompute=(0, 1)),
    ),
    "one-expert": context(
        replace(MOE, n_experts=1, top_k=1), toy_pool(4), batch=8, options=pins(mbs=1)
    ),
    "experts-whose-launches-are-waited-for": context(
        MOE, toy_pool(4), batch=4, stack="megatron-deepspeed", options=pins(vpp=1)
    ),
    "latent": context(LATENT, toy_pool(4), batch=4, stack="megatron-core"),
    "latent-product": on_stack(
        context(LATENT, toy_pool(4), batch=4, stack="deepspeed"), keeps_kv_product=True
    ),
    "latent-split-backward": context(
        LATENT,
        toy_pool(4),
        batch=8,
        stack="eager",
        options=any_framework(mbs=1, schedule=SPLIT),
    ),
    "latent-experts-mtp": context(
        EVERYTHING,
        toy_pool(4),
        batch=4,
        stack="megatron-core-deepep",
        options=pins(mbs=1, recompute=(0, 2)),
    ),
    "second-copy-of-experts": context(
        MOE,
        toy_pool(8, 4),
        batch=32,
        options=any_framework(hpz=(1, 2, 4), zero=3, mbs=(1, 2), vpp=1, recompute=(0, 2)),
    ),
    "two-tokens-ahead": context(AHEAD, toy_pool(4), batch=8),
    "split-backward": context(
        GQA,
        toy_pool(8),
        batch=16,
        options=any_framework(schedule=SPLIT, mbs=1, sp=0, recompute=(0, 2)),
    ),
    "split-backward-in-both-orders": context(
        replace(DENSE, dropout=False),
        toy_pool(16, 8),
        batch=32,
        fabric=ONE_TIER,
        options=any_framework(schedule=SPLIT, mbs=1, sp=0, tp=(1, 2), zero=(0, 1)),
    ),
    "every-schedule": context(
        FLAT,
        toy_pool(4),
        batch=16,
        stack="megatron-core",
        options=any_framework(schedule=ALL_SCHEDULES, mbs=(1, 2), dp_overlap=(0, 1)),
    ),
    "every-switch-on-odd-24": with_host(
        context(
            THIRDS,
            toy_pool(24, 6, memory=6 * GB),
            batch=24,
            seq_len=2048,
            fabric=ONE_TIER,
            stack="megatron-core",
            options=pins(
                dp_overlap=(0, 1), optimizer_offload=(0, 1), recompute=(0, 1), mbs=1, vpp=1
            ),
        )
    ),
    "groups-of-8-among-96": context(
        replace(GQA, layers=12),
        real_pool("h100", 12, 8),
        batch=96,
        seq_len=4096,
        fabric=TWO_TIERS,
        options=pins(mbs=1, vpp=(1, 2), recompute=0, sp=1, zero=(0, 1)),
    ),
    "gb200-nvl72": with_options(racks(1), only=pins(mbs=1, tp=(4, 36), vpp=1, recompute=0).only),
    "h100-1000": context(
        replace(GQA, layers=10, heads=40, kv_heads=8, hidden=5120),
        real_pool("h100", 125, 8),
        batch=1000,
        fabric=Fabric((Tier("leaf", 5, 1.0), Tier("pod", 25, 2.0))),
        options=pins(mbs=1, tp=(2, 8), pp=(1, 5), sp=1, recompute=0, dp_shard=(8, 25, 125, 500)),
    ),
    "h100-3072": context(
        replace(GQA, layers=12, heads=24, kv_heads=8, hidden=3072),
        real_pool("h100", 384, 8),
        batch=1536,
        seq_len=2048,
        fabric=Fabric((Tier("leaf", 32, 1.0), Tier("pod", 128, 3.0))),
        options=pins(
            mbs=1,
            tp=(2, 4),
            pp=(2, 6),
            sp=1,
            vpp=(1, 2),
            recompute=0,
            zero=1,
            rank_order=0,
            dp_shard=(8, 64, 128, 256, 384, 768),
        ),
    ),
    "encoder-4": context(
        ENCODER, toy_pool(4), batch=4, stack="megatron-core", options=any_framework(vpp=1, mbs=1)
    ),
    "encoder-of-eager-code": context(
        ENCODER,
        toy_pool(4, 2),
        batch=8,
        stack="eager",
        options=any_framework(mbs=(1, 2), recompute=(0, 2)),
    ),
    "tower-4": context(
        SEEING, toy_pool(4), batch=4, stack="megatron-core", options=any_framework(vpp=1, cp=1)
    ),
    "tower-with-blocks-that-runs-again": context(
        seeing(
            norm="rmsnorm",
            bias=False,
            gated=True,
            positions=0,
            frames=2,
            block=64,
            full_every=3,
            pooled=True,
            recompute=True,
        ),
        toy_pool(4, 2),
        batch=8,
        options=any_framework(mbs=1, cp=1, recompute=(0, 2)),
    ),
    "tower-of-a-trained-projector": context(
        seeing(trained="projector"),
        toy_pool(4),
        batch=4,
        stack="eager",
        options=any_framework(mbs=1, cp=1),
    ),
    "tower-that-is-frozen": context(
        seeing(trained="none"), toy_pool(4), batch=4, options=any_framework(mbs=1, cp=1)
    ),
}
FAST = {name: with_options(c, bound=False) for name, c in FAST.items()}
"""Searches of hundreds of plans: the default run."""

SLOW: dict[str, Context] = {
    "experts-8": context(MOE, toy_pool(8), batch=16, stack="megatron-core"),
    "experts-96": context(
        replace(MOE, n_experts=12, top_k=3),
        real_pool("h100", 12, 8),
        batch=96,
        seq_len=4096,
        fabric=TWO_TIERS,
        stack="megatron-core",
        options=pins(mbs=1, vpp=1, recompute=0, tp=(1, 2), cp=1),
    ),
    "latent-experts-mtp-modules": context(
        EVERYTHING,
        toy_pool(4),
        batch=4,
        stack="megatron-core",
        options=pins(mbs=1, recompute=1, vpp=1),
    ),
    "every-schedule-8": context(
        GQA, toy_pool(8), batch=32, options=any_framework(schedule=ALL_SCHEDULES)
    ),
    "gb200-two-racks": racks(2),
    "h100-96": context(
        replace(GQA, layers=12),
        real_pool("h100", 12, 8),
        batch=96,
        seq_len=4096,
        fabric=TWO_TIERS,
        options=pins(mbs=2),
    ),
    "h100-1000-open": context(
        replace(GQA, layers=10, heads=40, kv_heads=8, hidden=5120),
        real_pool("h100", 125, 8),
        batch=1000,
        fabric=Fabric((Tier("leaf", 5, 1.0), Tier("pod", 25, 2.0))),
        options=pins(mbs=1, tp=(1, 8), pp=(1, 2, 10), recompute=0),
    ),
}
SLOW = {name: with_options(c, bound=False) for name, c in SLOW.items()}
"""Searches of thousands of plans."""
