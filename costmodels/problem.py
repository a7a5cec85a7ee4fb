"""Everything that a plan is priced against."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import StackProfile
from hardware.parts import Fabric, Pool, Tier, used_tiers


@dataclass(frozen=True, slots=True)
class Problem:
    """One model and job on one pool of a fabric, run by one software stack."""

    shape: ModelShape
    job: TrainingJob
    pool: Pool
    fabric: Fabric
    stack: StackProfile

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Levels of the scale-out network, by the nodes that jobs on this pool use of each."""
        return used_tiers(self.fabric, self.pool)


def run_by(
    stack: StackProfile, shape: ModelShape, job: TrainingJob, pool: Pool, fabric: Fabric
) -> Problem:
    """Return the problem of a model as a software stack lays it out.

    Frozen weights have no gradients, which a fused accumulation would have scratch buffers for.
    """
    stack = replace(stack, fused_wgrad=False) if job.tuning else stack
    return Problem(replace(shape, pads_vocab=stack.pads_vocab), job, pool, fabric, stack)


@dataclass(frozen=True, slots=True)
class Problems(Problem):
    """Problems that differ in rates and times alone: such a figure is a column, `(n,)`.

    Priced with tables whose n rows are all one layout, row i on problem i: the formulas of plans
    are elementwise, so that n problems cost little more than one.
    """

    by_kind: Problem
    """The same with columns `(n, 1)`, for arrays whose last axis is that of kinds of rank."""


def in_columns(problem: Problem) -> Problems:
    """Return a problem some of whose rates and times are columns already, ready to be priced."""
    wide = {name: _wide(getattr(problem, name)) for name in ("pool", "stack")}
    by_kind = replace(problem, **wide)
    return Problems(
        problem.shape, problem.job, problem.pool, problem.fabric, problem.stack, by_kind
    )


def over_kinds(problem: Problem) -> Problem:
    """Return a problem whose figures broadcast to arrays with a last axis of kinds of rank."""
    return problem.by_kind if isinstance(problem, Problems) else problem


def _wide(value: Any) -> Any:
    """Return figures with a trailing axis to every column."""
    if isinstance(value, np.ndarray):
        return value[:, None]
    if is_dataclass(value) and not isinstance(value, type):
        entries = {x.name: _wide(getattr(value, x.name)) for x in fields(value)}
        changed = {name: x for name, x in entries.items() if x is not getattr(value, name)}
        return replace(value, **changed) if changed else value
    if isinstance(value, tuple):
        each = tuple(_wide(x) for x in value)
        return each if any(a is not b for a, b in zip(each, value, strict=True)) else value
    if isinstance(value, Mapping) and any(isinstance(x, np.ndarray) for x in value.values()):
        return {key: _wide(x) for key, x in value.items()}
    return value
