"""Plans over several pools as rows of the CSV of plans."""

from collections.abc import Iterator, Sequence
from typing import Any

from planner.render.answers.together import MARK
from planner.solver.together.records import JoinedPlan
from planner.solver.together.words import pipelines_text, same_or_none

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
            **({"dp_shard": plan.shard * stages[0].cp} if plan.is_sharded else {}),
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
