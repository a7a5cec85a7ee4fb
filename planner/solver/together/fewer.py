"""A plan over several pools on fewer nodes: as many of its pipelines as are left room for."""

from collections.abc import Mapping
from dataclasses import replace

from costmodels.mixed.plans import MixedPlan, PipelineKind
from costmodels.mixed.prices import price
from costmodels.mixed.tables import MixedProblem


def with_fewer_pipelines(plan: MixedPlan, problem: MixedProblem) -> MixedPlan | None:
    """Return a plan with as many of its pipelines as the devices of the pools hold.

    Pipelines leave one by one, of the kind that uses most devices of the pool that lacks most. A
    plan with one share of the batch for every pipeline keeps one, where the batch divides; others
    share it by speed. None where no pipeline is left, or the batch does not divide.
    """
    counts = [kind.n_pipelines for kind in plan.kinds]
    steps = [_multiple(kind, problem) for kind in plan.kinds]
    while (lacking := _lacking(plan, counts, problem)) is not None:
        using = [
            i
            for i, kind in enumerate(plan.kinds)
            if counts[i] and any(x.pool == lacking for x in kind.stages)
        ]
        i = max(using, key=lambda k: (counts[k] * _per_pipeline(plan.kinds[k], lacking), -k))
        counts[i] = max(0, counts[i] - steps[i])
    kept = [(kind, n) for kind, n in zip(plan.kinds, counts, strict=True) if n]
    if not kept:
        return None
    if len({(kind.mbs, kind.n_sequences / kind.n_pipelines) for kind in plan.kinds}) == 1:
        return _equal_shares(plan, kept)
    return _shares_by_speed(plan, kept, problem)


def _multiple(kind: PipelineKind, problem: MixedProblem) -> int:
    """Return of how many the pipelines of a kind are a multiple."""
    stages = kind.stages
    keys = ((x.pool, x.tp, x.cp, x.ep, kind.mbs, x.recompute) for x in stages)
    return max(problem.by_key[key].pipelines_multiple for key in keys)


def _per_pipeline(kind: PipelineKind, pool: int) -> int:
    return sum(x.n_devices for x in kind.stages if x.pool == pool)


def _lacking(plan: MixedPlan, counts: list[int], problem: MixedProblem) -> int | None:
    """Return the pool that lacks most devices; None where none does."""
    over = {
        i: sum(n * _per_pipeline(k, i) for k, n in zip(plan.kinds, counts, strict=True))
        - pool.n_devices
        for i, pool in enumerate(problem.pools)
    }
    most = max(over, key=lambda i: over[i])
    return most if over[most] > 0 else None


def _equal_shares(plan: MixedPlan, kept: list[tuple[PipelineKind, int]]) -> MixedPlan | None:
    """Return pipelines with one share of the batch; None where it does not divide."""
    batch, mbs = plan.n_sequences, plan.kinds[0].mbs
    total = sum(n for _, n in kept)
    if batch % (total * mbs):
        return None
    m = batch // (total * mbs)
    kinds = tuple(
        replace(kind, n_pipelines=n, n_micro=m, n_sequences=n * mbs * m) for kind, n in kept
    )
    return replace(plan, kinds=kinds)


def _shares_by_speed(
    plan: MixedPlan, kept: list[tuple[PipelineKind, int]], problem: MixedProblem
) -> MixedPlan:
    """Return pipelines that share the batch so that all end at nearly the same time.

    Micro-batches go one by one to the kind that would end first with one more.
    """
    some = tuple(
        replace(kind, n_pipelines=n, n_micro=1, n_sequences=n * kind.mbs) for kind, n in kept
    )
    priced = price(replace(plan, kinds=some), problem)
    slowest = [max(x.forward_s + x.backward_s for x in kind.stages) for kind in priced.kinds]
    ends = {i: kind.step_s for i, kind in enumerate(priced.kinds)}
    left = plan.n_sequences
    taken: dict[int, int] = dict.fromkeys(ends, 0)
    batches: dict[int, int] = dict.fromkeys(ends, 0)
    while left > 0:
        i = min(ends, key=lambda k: (ends[k], k))
        more = min(left, some[i].n_pipelines * some[i].mbs)
        taken[i], batches[i], left = taken[i] + more, batches[i] + 1, left - more
        ends[i] += slowest[i]
    return replace(plan, kinds=_with_shares(some, taken, batches))


def _with_shares(
    kinds: tuple[PipelineKind, ...], taken: Mapping[int, int], batches: Mapping[int, int]
) -> tuple[PipelineKind, ...]:
    return tuple(
        replace(kind, n_micro=batches[i], n_sequences=taken[i])
        for i, kind in enumerate(kinds)
        if taken[i]
    )
