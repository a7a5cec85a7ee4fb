"""Plans over several pools as rows of the CSV of plans."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from planner.render.answers.together import MARK
from planner.solver.answer.reasons import stage_words
from planner.solver.together.records import JoinedPlan, JoinedStage

PIPELINES = "pipelines"
"""Column that only answers with such plans have: their kinds of pipelines, stage by stage."""
SAME = ("tp", "cp", "ep", "recompute")
"""Axes of stages that have a value where all stages have one."""


def joined_rows(plans: Sequence[JoinedPlan]) -> Iterator[dict[str, Any]]:
    """Yield a row a plan; an axis that differs by stage or pipeline is empty."""
    for plan in plans:
        stages = [stage for kind in plan.kinds for stage in kind.stages]
        full = max(stages, key=lambda x: x.peak_bytes / x.usable_bytes)
        yield {
            "rank": f"{MARK}{plan.rank}",
            "plan_id": plan.plan_id,
            "pool": "+".join(plan.devices),
            "n_devices": plan.n_devices,
            "zero": plan.zero,
            "dp": sum(kind.n_pipelines for kind in plan.kinds),
            "pp": _same([len(kind.stages) for kind in plan.kinds]),
            "mbs": _same([kind.mbs for kind in plan.kinds]),
            "n_micro": _same([kind.n_micro for kind in plan.kinds]),
            "gbs": sum(kind.n_sequences for kind in plan.kinds),
            **{axis: _same([getattr(x, axis) for x in stages]) for axis in SAME},
            "step_time_s": plan.step_time_s,
            "tokens_per_s": plan.tokens_per_s,
            "peak_bytes": round(full.peak_bytes),
            "usable_bytes": round(full.usable_bytes),
            "runs_on": " ".join(plan.runs_on),
            "goodput_frac": plan.goodput_frac,
            "usd_per_million_tokens": plan.usd_per_million_tokens,
            PIPELINES: pipelines_text(plan),
        }


def _same(values: Sequence[Any]) -> Any:
    """Return the value that all have; empty where they differ."""
    value = same_or_none(values)
    return "" if value is None else value


def same_or_none(values: Sequence[Any]) -> Any:
    """Return the value that all have; None where they differ."""
    return values[0] if len(set(values)) == 1 else None


def pipelines_text(plan: JoinedPlan) -> str:
    """Return the pipelines of a plan: `8 x (a100 3x7 tp4 cp2 | h100 10-9 tp2 cp2) 608 of 1`.

    Behind the stages the sequences of the kind in a step, and of a micro-batch.
    """
    return "; ".join(
        f"{kind.n_pipelines} x ({' | '.join(map(_run_text, _runs(kind.stages)))})"
        f" {kind.n_sequences} of {kind.mbs}"
        for kind in plan.kinds
    )


def _runs(stages: Sequence[JoinedStage]) -> Iterator[list[JoinedStage]]:
    return (list(run) for _, run in groupby(stages, key=lambda x: x.degrees))


def _run_text(run: list[JoinedStage]) -> str:
    first = run[0]
    degrees = [f"{axis}{n}" for axis in ("tp", "cp", "ep") if (n := getattr(first, axis)) > 1]
    again = [] if first.recompute == "none" else [first.recompute]
    return " ".join([first.pool, stage_words([x.layers for x in run]), *degrees, *again])
