"""Everything that a plan is priced against."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import StackProfile
from hardware.parts import Fabric, Pool


@dataclass(frozen=True, slots=True)
class Problem:
    """One model and job on one pool of a fabric, run by one software stack."""

    shape: ModelShape
    job: TrainingJob
    pool: Pool
    fabric: Fabric
    stack: StackProfile


@dataclass(frozen=True, slots=True)
class Problems(Problem):
    """Problems that differ in rates and times alone: such a figure is a column, `(n,)`.

    Priced with tables whose n rows hold one layout each, row i on problem i: the formulas of
    plans are elementwise, so that n problems cost little more than one.
    """

    by_kind: Problem
    """The same with columns `(n, 1)`, for arrays whose last axis is that of kinds of rank."""


def in_columns(problems: Sequence[Problem]) -> Problems:
    """Return problems as one, with a column for every figure in which they differ.

    Raises ValueError where they differ in anything but rates and times.
    """
    first = problems[0]
    together: dict[str, Any] = {"shape": first.shape, "job": first.job, "fabric": first.fabric}
    if any(getattr(x, name) != value for x in problems for name, value in together.items()):
        raise ValueError("problems in columns share model, job and fabric")
    for name in ("pool", "stack"):
        together[name] = _column([getattr(x, name) for x in problems])
    wide = {**together, **{name: _wide(together[name]) for name in ("pool", "stack")}}
    return Problems(**together, by_kind=Problem(**wide))


def over_kinds(problem: Problem) -> Problem:
    """Return a problem whose figures broadcast to arrays with a last axis of kinds of rank."""
    return problem.by_kind if isinstance(problem, Problems) else problem


def _column(values: Sequence[Any]) -> Any:
    """Return what all values are, or columns of the numbers in which they differ."""
    first = values[0]
    if all(x is first for x in values[1:]):
        return first
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        found = {name: _column([getattr(x, name) for x in values]) for name in names}
        changed = {name: x for name, x in found.items() if x is not getattr(first, name)}
        return replace(first, **changed)
    if isinstance(first, tuple) and all(len(x) == len(first) for x in values):
        return tuple(_column(some) for some in zip(*values, strict=True))
    if isinstance(first, Mapping) and all(x.keys() == first.keys() for x in values):
        return {key: _column([x[key] for x in values]) for key in first}
    if all(x == first for x in values):
        return first
    if not all(isinstance(x, float) for x in values):
        raise ValueError(f"problems in columns differ in {first!r}, which is no rate and no time")
    return np.array(values)


def _wide(value: Any) -> Any:
    """Return figures with a trailing axis to every column."""
    return _mapped(value, lambda column: column[:, None])


def _mapped(value: Any, changed: Callable[[Any], Any]) -> Any:
    if isinstance(value, np.ndarray):
        return changed(value)
    if is_dataclass(value) and not isinstance(value, type):
        found = {x.name: _mapped(getattr(value, x.name), changed) for x in fields(value)}
        other = {name: x for name, x in found.items() if x is not getattr(value, name)}
        return replace(value, **other) if other else value
    if isinstance(value, tuple):
        each = tuple(_mapped(x, changed) for x in value)
        return each if any(a is not b for a, b in zip(each, value, strict=True)) else value
    if isinstance(value, Mapping):
        return {key: _mapped(x, changed) for key, x in value.items()}
    return value
