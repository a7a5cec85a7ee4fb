"""Plans over several pools in a cell of a table or a note."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from planner.solver.answer.reasons import stage_words
from planner.solver.together.records import JoinedPlan, JoinedStage
from planner.specs.inputs import ClusterInput


def same_or_none(values: Sequence[Any]) -> Any:
    """Return the value that all have; None where they differ."""
    return values[0] if len(set(values)) == 1 else None


def pipelines_text(plan: JoinedPlan) -> str:
    """Return the pipelines of a plan: `8 x (a100 3x7 tp4 cp2 | h100 10-9 tp2 cp2) 608 of 1`.

    Behind the stages the sequences of the kind in a step, and of a micro-batch. Of sharded
    replicas their number, and the data-parallel ranks of one: `4 x (a100 32 shard64) 256 of 1`.
    """
    return "; ".join(
        f"{kind.n_pipelines // plan.shard} x"
        f" ({' | '.join(_run_text(run, plan.shard) for run in _runs(kind.stages))})"
        f" {kind.n_sequences} of {kind.mbs}"
        for kind in plan.kinds
    )


def _runs(stages: Sequence[JoinedStage]) -> Iterator[list[JoinedStage]]:
    return (list(run) for _, run in groupby(stages, key=lambda x: x.degrees))


def _run_text(run: list[JoinedStage], shard: int) -> str:
    first = run[0]
    degrees = [f"shard{shard}"] if shard > 1 else []
    degrees += [f"{axis}{n}" for axis in ("tp", "cp", "ep") if (n := getattr(first, axis)) > 1]
    again = [] if first.recompute == "none" else [first.recompute]
    return " ".join([first.pool, stage_words([x.layers for x in run]), *degrees, *again])


def accelerator_of(cluster: ClusterInput, pool: str) -> str:
    """Return the accelerator of a pool, by name."""
    return next(x.accelerator.name for x in cluster.cluster.pools if x.name == pool)


def priced_note(saved: JoinedPlan, now: JoinedPlan) -> str:
    """Return how far a plan that was priced again is from what its answer says; "" where not."""
    then_s, now_s = saved.step_time_s, now.step_time_s
    if abs(then_s - now_s) <= 1e-9 * then_s:
        return ""
    return (
        f"plan t{now.rank} was priced by another version or catalogue: step"
        f" {then_s:.3f} s there, {now_s:.3f} s now; solve again to rank with today's figures"
    )
