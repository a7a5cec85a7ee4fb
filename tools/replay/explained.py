"""Differences between a replay and the plan that the pages docs/replay*.md explain.

An explanation holds for some terms of some plans, and up to a size: what is larger is still off.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tools.samples.draw import Drawn

WEIGHTS = ("parameters", "states", "dp ")


@dataclass(frozen=True, slots=True)
class Explanation:
    """One known difference."""

    frameworks: tuple[str, ...]
    terms: tuple[str, ...]
    """Terms of the comparison, or how they start."""
    holds: Callable[[Drawn], bool]
    """The plans that it concerns."""
    least_frac: float
    most_frac: float
    """Between which the plan's figure may lie off, over that of the framework."""
    reason: str
    """As it is written in the pages, in bold letters or as the first cell of a row."""


def _other_code(x: Drawn) -> bool:
    return x.shape.latent or x.shape.n_experts > 0 or x.shape.norm == "layernorm"


def _splits_backward(x: Drawn) -> bool:
    return x.layout.schedule in ("zb", "zb-v", "dualpipe-v")


def _norms_queries(x: Drawn) -> bool:
    """Whether the recipe takes Qwen 3's classes."""
    return x.shape.n_experts > 0 and not x.shape.latent


def _many_chunks(x: Drawn) -> bool:
    return x.layout.vpp > 3 and x.layout.zero > 0


EXPLAINED: tuple[Explanation, ...] = (
    Explanation(
        ("torchtitan",),
        WEIGHTS,
        lambda x: x.shape.tied,
        -0.35,
        0.0,
        "Tied embeddings in torchtitan 0.3.0",
    ),
    Explanation(
        ("torchtitan", "fsdp2"),
        ("dp ", "states"),
        lambda x: x.layout.dp_shard > 64,
        -0.1,
        0.0,
        "Padding of shards",
    ),
    Explanation(
        ("torchtitan",),
        ("kept activations",),
        _splits_backward,
        -0.2,
        0.0,
        "Schedules that split the backward",
    ),
    Explanation(
        ("torchtitan",),
        ("parameters",),
        _norms_queries,
        -1e-4,
        0.0,
        "Norms of queries and keys",
    ),
    Explanation(
        ("torchtitan",),
        ("dp all-gather",),
        _many_chunks,
        -0.98,
        0.0,
        "Interleaved pipelines of more than three chunks in torchtitan",
    ),
    Explanation(
        ("fsdp2",),
        ("kept activations",),
        _other_code,
        -0.65,
        0.1,
        "Other model code of transformers",
    ),
    Explanation(
        ("fsdp2",),
        ("parameters",),
        lambda x: x.shape.n_experts > 0,
        -1e-4,
        1e-4,
        "Norms of queries and keys",
    ),
    Explanation(
        ("megatron",),
        ("kept activations",),
        lambda x: x.layout.cp > 1,
        -0.05,
        0.07,
        "context parallelism",
    ),
    Explanation(
        ("megatron",),
        ("states",),
        lambda x: x.job.precision == "fp16",
        0.0,
        0.27,
        "fp16",
    ),
    Explanation(
        ("megatron",),
        ("parameters", "states", "dp ", "tp ", "kept activations"),
        lambda x: x.layout.tp > x.shape.kv_heads,
        -1.0,
        0.2,
        "fewer KV heads than tp",
    ),
    Explanation(
        ("megatron",),
        ("tp ", "dp ", "kept activations"),
        lambda x: x.shape.mtp_layers > 0,
        -1.0,
        0.2,
        "multi-token prediction",
    ),
    Explanation(
        ("megatron",),
        ("parameters",),
        lambda x: x.shape.latent and not x.shape.q_rank,
        -1e-4,
        0.0,
        "latent attention without compressed queries",
    ),
)


def reason_for(drawn: Drawn, term: str, off_frac: float) -> str:
    """Return why a term of a plan differs by so much, empty where nothing explains it."""
    for one in EXPLAINED:
        if (
            drawn.framework in one.frameworks
            and term.startswith(one.terms)
            and one.least_frac <= off_frac <= one.most_frac
            and one.holds(drawn)
        ):
            return one.reason
    return ""
