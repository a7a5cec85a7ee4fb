"""Layout rules that several frameworks have, each under a code of its own."""

from searches.frameworks.case import RANK_ORDER, Case
from searches.frameworks.rule import FrameworkRule


def heads_divide(code: str, framework: str, source: str) -> FrameworkRule:
    """Every tensor-parallel rank holds whole heads and whole columns of the MLP."""
    return FrameworkRule(
        code,
        framework,
        "attention heads or MLP width do not divide by tp",
        "parse" if framework in ("megatron", "bridge") else "start",
        source,
        lambda c: (c.model.heads % c.tp > 0) | (c.model.ffn % c.tp > 0),
        lambda c: (
            f"tensor parallelism: {c.model.heads} heads and FFN width {c.model.ffn} do not both"
            f" divide by tp {c.tp}"
        ),
        "a tp that divides both",
    )


def kv_heads_fit(code: str, framework: str, source: str, versions: str = "") -> FrameworkRule:
    """KV heads are split over the tensor-parallel ranks, or replicated on them."""
    return FrameworkRule(
        code,
        framework,
        "KV heads neither divide by tp nor divide it",
        "parse",
        source,
        lambda c: (c.model.kv_heads % c.tp > 0) & (c.tp % c.model.kv_heads > 0),
        lambda c: (
            f"tensor parallelism: {c.model.kv_heads} KV heads neither divide by tp {c.tp} nor"
            " divide it"
        ),
        "a tp that divides the KV heads or is a multiple of them",
        versions=versions,
    )


def dense_without_experts(code: str, framework: str, source: str) -> FrameworkRule:
    """Expert parallelism needs experts."""
    return FrameworkRule(
        code,
        framework,
        "expert parallelism of a dense model",
        "parse",
        source,
        lambda c: ((c.ep > 1) | (c.etp > 1)) & (c.model.n_experts == 0),
        lambda c: "expert parallelism: the model is dense",
        "ep 1",
    )


def whole_zero_groups(code: str, framework: str) -> FrameworkRule:
    """ZeRO groups over part of the data-parallel ranks."""
    return FrameworkRule(
        code,
        framework,
        "replicated ZeRO groups",
        "planner",
        "no flag is emitted for it",
        lambda c: c.dp_shard != c.dp * c.cp,
        lambda c: f"ZeRO groups of {c.dp_shard} that are replicated: not emitted in this version",
        "groups of all data-parallel ranks",
    )


def usual_rank_order(code: str, framework: str) -> FrameworkRule:
    """Only the usual order of ranks can be set."""
    return FrameworkRule(
        code,
        framework,
        "another order of ranks",
        "planner",
        "no setting",
        lambda c: c.rank_order != RANK_ORDER,
        lambda c: f"rank order {c.rank_order}: no setting",
        RANK_ORDER,
    )


def plain_schedule(c: Case) -> str:
    """Return the schedule without a split backward that comes closest."""
    return f"schedule {'1f1b' if c.vpp == 1 else 'interleaved'}"
