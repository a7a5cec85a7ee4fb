"""Small problems for the tests of the search: toy and real parts, many kinds of model."""

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

import pytest

from costmodels.axes import SCHEDULES
from costmodels.examples import toy_accelerator
from costmodels.problem import Problem
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import STACKS
from hardware.catalogue import load_catalogue
from hardware.parts import Fabric, Host, Link, Pool, Tier
from searches.options import SearchOptions
from searches.rules import Context

GB = 1e9


def one_in(n: int, names: Iterable[str]) -> list[Any]:
    """Return parameters of which every n-th runs by default and the others are slow tests."""
    slow = pytest.mark.slow
    return [pytest.param(x, marks=[slow] if i % n else []) for i, x in enumerate(names)]


def of_which(kept: Container[Any], names: Iterable[Any]) -> list[Any]:
    """Return parameters of which the named run by default and the others are slow tests."""
    slow = pytest.mark.slow
    return [pytest.param(x, marks=[] if x in kept else [slow]) for x in names]


def one_row_in(n: int, rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return rows of several parameters, of which every n-th runs by default."""
    slow = pytest.mark.slow
    return [pytest.param(*row, marks=[slow] if i % n else []) for i, row in enumerate(rows)]


TOY_UP = Link(
    "toy-link",
    "scale-up",
    0.0,
    0.8,
    (6e-6, 14e-6, 8e-6),
    (0.6e-6, 2e-6, 3e-6),
    (7e-6, 14e-6, 8e-6),
    (0.6e-6, 1.25e-6, 4e-6),
    (90e9, 240e9, float("inf")),
    (0.5, 0.92, 1.0),
    12e-6,
)
TOY_NIC = Link(
    "toy-nic",
    "scale-out",
    25e9,
    0.9,
    (6e-6, 14e-6, 8e-6),
    (2.7e-6, 4e-6, 14e-6),
    (7e-6, 14e-6, 8e-6),
    (5e-6, 8.5e-6, 14e-6),
    (70e9, 200e9, float("inf")),
    (0.5, 0.92, 1.0),
    20e-6,
)

DENSE = ModelShape(
    "dense",
    layers=8,
    hidden=1024,
    heads=16,
    kv_heads=16,
    head_dim=64,
    ffn=4096,
    gated=False,
    vocab=32000,
    tied=True,
    norm="layernorm",
    bias=True,
    positions="learned",
    max_positions=4096,
    dropout=True,
    flash_attention=False,
)
GQA = ModelShape(
    "gqa",
    layers=6,
    hidden=2048,
    heads=16,
    kv_heads=2,
    head_dim=128,
    ffn=6144,
    gated=True,
    vocab=50257,
    tied=False,
)
THIRDS = replace(GQA, name="thirds", hidden=1536, heads=12, kv_heads=3)
FLAT = ModelShape(
    "flat",
    layers=7,
    hidden=1536,
    heads=24,
    kv_heads=4,
    head_dim=64,
    ffn=4608,
    gated=True,
    vocab=30001,
    tied=True,
    padded_vocab=30720,
)


def toy_pool(n_devices: int, per_node: int = 4, memory: float = 24 * GB, **part: object) -> Pool:
    """Return nodes of `per_node` toy accelerators with one NIC each."""
    return Pool(
        "toy",
        toy_accelerator(memory_bytes=memory, **part),
        n_devices // per_node,
        per_node,
        per_node,
        TOY_UP,
        per_node,
        TOY_NIC,
        1 * GB,
    )


def declining_pool(n_devices: int, per_node: int) -> Pool:
    """Return a toy pool whose rings lose bandwidth where all of them run at once."""
    pool = toy_pool(n_devices, per_node)
    return replace(pool, nic=replace(pool.nic, ring_decline=0.4))


def real_pool(name: str, n_nodes: int, per_node: int, memory: float | None = None) -> Pool:
    """Return nodes of a catalogue part with the NIC of its usual platform."""
    catalogue = load_catalogue()
    part = catalogue.accelerator(name)
    nic = catalogue.typical_nics[part.name]
    scale_up, wire = catalogue.link(part.scale_up_link), catalogue.link(nic.link)
    part = part if memory is None else replace(part, memory_bytes=memory)
    return Pool(name, part, n_nodes, per_node, per_node, scale_up, per_node, wire, 2 * GB)


def context(
    shape: ModelShape = GQA,
    pool: Pool | None = None,
    seq_len: int = 1024,
    batch: int = 24,
    precision: str = "bf16",
    stack: str = "fused",
    fabric: Fabric = Fabric(),
    options: SearchOptions = SearchOptions(),
) -> Context:
    """Return a search over all devices of one pool."""
    pool = pool or toy_pool(8)
    job = TrainingJob(seq_len, batch, precision)
    return Context(Problem(shape, job, pool, fabric, STACKS[stack]), options, pool.n_devices)


def with_pool(old: Context, **changes: object) -> Context:
    """Return the same search on a pool with some fields changed."""
    pool = replace(old.problem.pool, **changes)  # type: ignore[arg-type]
    return replace(old, problem=replace(old.problem, pool=pool))


TOY_HOST = Host(20 * GB, 100 * GB, 50 * GB)


def with_host(old: Context, memory: float = 100 * GB) -> Context:
    """Return the same search with hosts to offload to."""
    asked = {"optimizer_offload": frozenset({0, 1}), **old.options.only}
    options = replace(old.options, only=asked)
    return replace(with_pool(old, host=replace(TOY_HOST, memory_bytes=memory)), options=options)


def with_optimizer(old: Context, name: str) -> Context:
    """Return the same search with another optimizer."""
    job = replace(old.problem.job, optimizer=name)
    return replace(old, problem=replace(old.problem, job=job))


def with_part(old: Context, **changes: object) -> Context:
    """Return the same search on an accelerator with some fields changed."""
    return with_pool(old, accelerator=replace(old.problem.pool.accelerator, **changes))


def on_stack(old: Context, **changes: object) -> Context:
    """Return the same search on a stack with some switches changed."""
    stack = replace(old.problem.stack, **changes)  # type: ignore[arg-type]
    return replace(old, problem=replace(old.problem, stack=stack))


def with_fast_host(old: Context) -> Context:
    """Return the same search with a host that is never late, whatever the stacks are fitted to.

    For tests of what differs on the device alone: toy layers are small beside real launches.
    """
    return on_stack(old, host_s_per_layer=0.0, routing_host_s=0.0)


def with_options(old: Context, **changes: object) -> Context:
    """Return the same search with some options changed."""
    return replace(old, options=replace(old.options, **changes))


ONE_TIER = Fabric((Tier("leaf", 2, 3.0),), rail_optimized=False)
TWO_TIERS = Fabric((Tier("leaf", 2, 2.0), Tier("pod", 4, 4.0)))


def pins(**only: int | tuple[int, ...]) -> SearchOptions:
    """Return options that allow only the listed values."""
    values = {k: (v,) if isinstance(v, int) else v for k, v in only.items()}
    return SearchOptions(only={axis: frozenset(v) for axis, v in values.items()})


WHOLE = tuple(SCHEDULES.index(name) for name in ("none", "gpipe", "1f1b", "interleaved"))
"""Schedules whose backwards are whole: those that the oracle prices."""

INSTANCES: dict[str, Context] = {
    "toy-4": context(DENSE, toy_pool(4), batch=7, seq_len=512),
    "toy-6": context(THIRDS, toy_pool(6, 6), batch=9),
    "toy-8": context(GQA, toy_pool(8), batch=16),
    "toy-8-tight": context(GQA, toy_pool(8, memory=9 * GB), batch=16, seq_len=2048),
    "toy-8-hopeless": context(GQA, toy_pool(8, memory=2 * GB), batch=4),
    "toy-12-odd-batch": context(FLAT, toy_pool(12, 6), batch=45, stack="eager"),
    "toy-24-one-tier": context(THIRDS, toy_pool(24, 6), batch=24, fabric=ONE_TIER),
    "toy-24-two-tiers": context(DENSE, toy_pool(24, 2), batch=12, fabric=TWO_TIERS, seq_len=384),
    "toy-24-tight": context(GQA, toy_pool(24, memory=6 * GB), batch=24, fabric=TWO_TIERS),
    "tied-in-one-node": context(replace(DENSE, flash_attention=True), toy_pool(8, 8), batch=8),
    "toy-8-across": context(GQA, toy_pool(8, 2), batch=6),
    "a100-8-unfused-2022": context(
        DENSE,
        real_pool("a100", 1, 8),
        batch=8,
        seq_len=2048,
        precision="fp16",
        stack="megatron-lm-2022",
    ),
    "a100-16-2022-flash": context(
        replace(DENSE, flash_attention=False, dropout=False, gated=True),
        real_pool("a100", 2, 8),
        batch=16,
        stack="megatron-lm-2022",
        precision="bf16-grads",
    ),
    "h100-16": context(replace(GQA, layers=12), real_pool("h100", 2, 8), batch=32, seq_len=4096),
    "h100-24-megatron": context(
        FLAT,
        real_pool("h100", 3, 8),
        batch=36,
        stack="megatron-core",
        fabric=Fabric((Tier("leaf", 1, 7.0),)),
    ),
    "v100-8-fp16": context(
        replace(DENSE, flash_attention=True),
        real_pool("v100-sxm-32gb", 2, 4),
        batch=8,
        precision="fp16-grads",
        stack="eager",
        seq_len=1000,
    ),
    "b200-8": context(FLAT, real_pool("b200", 1, 8), batch=20, precision="bf16-grads"),
    "mi300x-8-fp32": context(
        GQA, real_pool("mi300x", 1, 8), batch=10, precision="fp32", stack="deepspeed"
    ),
    "deepspeed": context(
        GQA,
        toy_pool(8, memory=12 * GB),
        batch=16,
        stack="deepspeed",
        options=SearchOptions(framework="deepspeed"),
    ),
    "pins": context(FLAT, toy_pool(12, 6), batch=30, options=pins(tp=2, zero=(0, 1), sp=1)),
    "pinned-words": context(
        DENSE, toy_pool(8), batch=16, options=pins(recompute=(1, 2), split=0, schedule=3)
    ),
    "pinned-depth": context(
        replace(GQA, layers=36), toy_pool(4), batch=8, options=pins(recompute_layers=5, pp=(1, 2))
    ),
    "deep": context(replace(GQA, layers=37), toy_pool(4), batch=4, options=pins(mbs=2, vpp=1)),
    "pinned-modules": context(
        replace(DENSE, dropout=False),
        toy_pool(8, memory=8 * GB),
        batch=8,
        options=SearchOptions(only={"recompute_modules": frozenset((1, 16, 17, 4))}),
    ),
    "modules-in-a-tight-memory": context(
        replace(GQA, layers=12),
        toy_pool(8, memory=7 * GB),
        batch=16,
        seq_len=4096,
        stack="megatron-core",
        options=pins(recompute=(0, 1), vpp=(1, 2)),
    ),
    "modules-without-regather": context(
        FLAT,
        toy_pool(6, 6),
        batch=12,
        seq_len=3000,
        stack="eager",
        options=pins(recompute=1),
    ),
    "limits": context(
        GQA,
        toy_pool(8),
        batch=96,
        options=SearchOptions(at_most={"mbs": 4, "vpp": 3, "pp": 4, "recompute_layers": 1}),
    ),
    "long-run": context(GQA, toy_pool(4), batch=320, options=pins(pp=2, mbs=1, dp=(1, 2))),
    "toy-24-racks-of-8": context(
        GQA, replace(toy_pool(24, 4), scale_up_domain=8), batch=24, fabric=ONE_TIER
    ),
    "toy-20-racks-of-8-the-last-half-full": context(
        DENSE, replace(toy_pool(20, 4), scale_up_domain=8), batch=20
    ),
    "toy-16-mesh": context(THIRDS, toy_pool(16, n_peer_links=3), batch=16),
    "toy-24-sums-up-to-the-leaf": context(
        DENSE, replace(toy_pool(24, 2), n_summing_tiers=1), batch=12, fabric=TWO_TIERS
    ),
    "mi355x-16": context(FLAT, real_pool("mi355x", 2, 8), batch=32, stack="megatron-core"),
    "userbuffers": on_stack(context(GQA, toy_pool(8), batch=12), tp_overlap="userbuffers"),
    "async-tp": on_stack(context(GQA, toy_pool(8), batch=12, stack="eager"), tp_overlap="pieces"),
    "nanotron-across": context(GQA, toy_pool(16, 4), batch=16, stack="nanotron"),
    "nanotron-over-nodes": context(GQA, toy_pool(16, 2), batch=8, stack="nanotron"),
    "nanotron-inside": context(GQA, toy_pool(4), batch=8, stack="nanotron"),
    "internevo": context(THIRDS, toy_pool(12, 6), batch=12, stack="internevo"),
    "rings-at-once": context(FLAT, declining_pool(12, 2), batch=12, stack="aleph-alpha"),
    "zero3-by-tensor": context(GQA, toy_pool(8), batch=8, stack="deepspeed-zero3"),
    "gathered-logits-unfused-norms": on_stack(
        context(FLAT, toy_pool(12, 6), batch=12, stack="aleph-alpha"), fused_norms=False
    ),
    "eager-scores": on_stack(context(DENSE, toy_pool(8), batch=8), fused_softmax=False),
    "fused-scores": context(replace(DENSE, flash_attention=False), toy_pool(8), batch=8),
    "launches-waited-for": context(
        replace(GQA, flash_attention=False), toy_pool(8), batch=8, stack="megatron-deepspeed"
    ),
    "eager-kernels-fused-loss": on_stack(
        context(replace(GQA, flash_attention=False), toy_pool(8), batch=8, stack="llm-foundry"),
        fused_softmax=False,
        fused_norms=False,
    ),
    "messages-scattered": context(GQA, toy_pool(8), batch=8, stack="megatron-lm-2021"),
    "bf16-both": context(GQA, toy_pool(8), batch=8, precision="bf16-both"),
    "h100-8-fp8": context(GQA, real_pool("h100", 1, 8), batch=16, precision="fp8-tensorwise"),
    "b200-16-fp8": context(
        FLAT, real_pool("b200", 2, 8), batch=16, precision="fp8-blockwise", stack="megatron-core"
    ),
    "ring-beyond-the-node": context(
        GQA,
        toy_pool(8, 2),
        batch=4,
        seq_len=8192,
        options=pins(cp=(2, 4), vpp=1),
    ),
    "cp-by-default": context(
        replace(GQA, kv_heads=8),
        toy_pool(8, 4, memory=12 * GB),
        batch=6,
        seq_len=16384,
        options=pins(vpp=1, mbs=1),
    ),
    "cp-in-eager-code": context(
        THIRDS,
        toy_pool(12, 6),
        batch=4,
        seq_len=1536,
        stack="eager",
        options=SearchOptions(at_most={"cp": 6, "vpp": 1, "mbs": 2}),
    ),
    "cp-without-a-fused-kernel": context(
        DENSE, toy_pool(4), batch=4, options=SearchOptions(at_most={"cp": 2, "vpp": 2})
    ),
    "cp-odd-sequence": context(
        GQA,
        toy_pool(8),
        batch=4,
        seq_len=1022,
        options=SearchOptions(at_most={"cp": 2}, only=pins(vpp=1).only),
    ),
    "experts-of-a-dense-model": on_stack(
        context(GQA, toy_pool(4), batch=4, options=pins(ep=(1, 2), etp=(1, 3), vpp=1)),
        routes_on_host=False,
    ),
    "host": with_host(context(GQA, toy_pool(8, memory=9 * GB), batch=16, seq_len=2048)),
    "small-host": with_host(
        context(THIRDS, toy_pool(6, 6), batch=12, options=pins(vpp=1)), memory=1 * GB
    ),
    "host-of-eager-code": with_host(
        context(GQA, toy_pool(8, memory=6 * GB), batch=16, stack="deepspeed")
    ),
    "host-of-one-device": with_host(
        context(GQA, toy_pool(1, 1, memory=9 * GB), batch=4, stack="deepspeed", precision="bf16")
    ),
    "host-of-any-framework": with_host(
        context(
            FLAT,
            toy_pool(4),
            batch=8,
            stack="deepspeed",
            precision="bf16-grads",
            options=replace(pins(schedule=(0, 2, 3)), framework="any", at_most={"vpp": 2}),
        )
    ),
    "activations-on-the-host": with_host(
        context(
            GQA,
            toy_pool(4, memory=7 * GB),
            batch=8,
            seq_len=2048,
            options=pins(activation_offload=(0, 1), vpp=1),
        )
    ),
    "inputs-on-the-host": with_host(
        context(
            GQA,
            toy_pool(4, memory=9 * GB),
            batch=8,
            stack="deepspeed",
            options=pins(activation_offload=(0, 1), vpp=1),
        )
    ),
    "activations-in-line": with_host(
        on_stack(
            context(
                FLAT,
                toy_pool(2, 2),
                batch=4,
                stack="eager",
                options=replace(
                    pins(activation_offload_layers=(0, 2, 3, 9), schedule=WHOLE, vpp=1),
                    framework="any",
                ),
            ),
            logits_sharded=False,
            activation_copies="blocking",
        )
    ),
    "activations-on-a-small-host": with_host(
        context(
            THIRDS,
            toy_pool(4),
            batch=8,
            seq_len=4096,
            options=pins(vpp=1, activation_offload=1),
        ),
        memory=2 * GB,
    ),
    "no-host-for-activations": context(
        GQA, toy_pool(2, 2), batch=4, options=pins(activation_offload=(0, 1))
    ),
    "nothing-overlaps": context(GQA, toy_pool(8), batch=16, options=pins(dp_overlap=0)),
    "overlap-or-not": with_host(
        context(THIRDS, toy_pool(6, 6), batch=9, options=pins(dp_overlap=(0, 1), vpp=1))
    ),
    "tensor-overlap": context(
        GQA, toy_pool(8), batch=8, options=pins(tp_overlap=(0, 1), vpp=(1, 2))
    ),
    "tensor-overlap-in-eager-code": on_stack(
        context(
            THIRDS,
            toy_pool(12, 6),
            batch=6,
            stack="eager",
            options=replace(
                pins(tp_overlap=(0, 1), vpp=1, mbs=(1, 2), schedule=WHOLE), framework="any"
            ),
        ),
        tp_overlap_on="pieces",
    ),
    "tensor-overlap-alone": context(
        GQA,
        toy_pool(16, 4),
        batch=8,
        options=replace(pins(tp_overlap=1, cp=(1, 2), vpp=1), at_most={"cp": 2}),
    ),
    "no-tensor-overlap-to-have": context(
        GQA, toy_pool(4), batch=4, stack="deepspeed", options=pins(tp_overlap=(0, 1))
    ),
    "overlap-in-doubt": context(
        replace(GQA, hidden=512, heads=4, ffn=1536),
        toy_pool(24, 2),
        batch=48,
        seq_len=64,
        options=pins(vpp=1, tp=1),
    ),
    "second-copy": context(
        GQA,
        toy_pool(8, 4),
        batch=32,
        stack="deepspeed",
        options=pins(hpz=(1, 2, 4), pp=1, mbs=(1, 2)),
    ),
    "second-copy-or-copies": context(
        GQA,
        toy_pool(24, 6),
        batch=48,
        seq_len=4096,
        fabric=ONE_TIER,
        options=SearchOptions(
            framework="any",
            only=pins(
                hpz=(1, 2, 6, 16), zero=(2, 3), pp=(1, 2), cp=(1, 3), mbs=1, schedule=WHOLE
            ).only,
            at_most={"cp": 3},
        ),
    ),
    "second-copy-on-the-host": with_host(
        context(
            DENSE,
            toy_pool(8, 2),
            batch=16,
            stack="deepspeed",
            options=pins(hpz=(1, 2, 8), zero=3, pp=1, dp_overlap=(0, 1)),
        )
    ),
    "no-host-asked-for": context(
        GQA, toy_pool(4), batch=4, options=pins(optimizer_offload=(0, 1))
    ),
    "pipelines-inside": context(
        DENSE,
        toy_pool(16, 8),
        batch=16,
        options=pins(rank_order=1, vpp=(1, 2), mbs=(1, 2)),
    ),
    "either-order-over-tiers": context(
        GQA,
        toy_pool(32, 4),
        batch=16,
        stack="nanotron",
        fabric=TWO_TIERS,
        options=SearchOptions(
            framework="any", only=pins(mbs=1, tp=(1, 2), sp=0, vpp=1, schedule=WHOLE).only
        ),
    ),
    "context-with-pipelines-inside": context(
        GQA,
        toy_pool(32, 8),
        batch=8,
        seq_len=2048,
        fabric=ONE_TIER,
        options=SearchOptions(
            framework="any",
            only=pins(cp=(2, 4), rank_order=1, mbs=1, sp=0, vpp=1, schedule=WHOLE).only,
        ),
    ),
    "lockstep": with_pool(
        context(GQA, toy_pool(16, 4), batch=16), nic=replace(TOY_NIC, lockstep=True)
    ),
}
"""Searches small enough for the nested loops of the oracle, each with a corner of its own."""
INSTANCES = {name: with_options(c, bound=False) for name, c in INSTANCES.items()}
