"""Which rules and pins cannot hold together when no layout is legal.

Every candidate layout is written down as the set of conditions that it breaks. CP-SAT chooses a
candidate and is told that every condition holds; the conditions are assumptions, so that when
nothing can be chosen the solver names a set of them that already excludes everything
(`sufficient_assumptions_for_infeasibility`). That set is shrunk until every condition in it
is needed. Given its shape, a layout's micro-batch and its other free axes are chosen apart,
because no rule couples them: three choices, not one long list:

    one shape group g;  g -> one of its micro-batch sets;  g -> one of its sets of other axes
    assumption c -> nothing is chosen that breaks c
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import AXES
from costmodels.plans import SHAPE_AXES, ShapeTable
from searches import cp_sat
from searches.options import MAX_VPP
from searches.rules import SHAPE_RULES, Context
from searches.space.free_axes import free_axes, recompute_options
from searches.space.plan_rules import pinned_columns, plan_rules
from searches.space.shape_space import candidates, divisors, largest_named, usual_cp_limit

Bits = NDArray[np.int64]

UNSPLIT = ("VPP001", "PP001", "PP002")
"""Shapes that break these have no stages for the rules over the free axes to look at."""
MAX_CONFLICTS = 3
"""Conflicts named at once; more come to light when these are solved."""
CHUNK_SHAPES = 256
"""Shapes whose free axes are looked at together."""


@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """Something that every plan must keep: a rule, or what the user allows on one axis."""

    code: str
    axis: str = ""
    """The axis of a pin or limit; empty for other rules."""
    limit: bool = False
    """Whether it is a largest value (`--max`) rather than a list of values."""

    @property
    def of_user(self) -> bool:
        """Whether the user set it."""
        return bool(self.axis)


@dataclass(frozen=True, slots=True)
class Choices:
    """The groups of candidates: what a shape breaks, and what its free axes may break."""

    groups: tuple[tuple[int, frozenset[int], frozenset[int]], ...]
    """(bits of the shape, sets of bits by micro-batch, sets of bits of the other axes)."""
    conditions: tuple[Condition, ...]
    """Bit i of a set stands for condition i."""


def without(context: Context, conditions: Iterable[Condition]) -> Context:
    """Return the search without some of the user's pins and limits."""
    only, at_most = dict(context.options.only), dict(context.options.at_most)
    for condition in conditions:
        (at_most if condition.limit else only).pop(condition.axis)
    return replace(context, options=replace(context.options, only=only, at_most=at_most))


def user_conditions(context: Context, axes: Iterable[str]) -> list[Condition]:
    """Return the pins and limits that the user set on some axes."""
    options, results = context.options, []
    for axis in axes:
        results += [Condition("PIN001", axis)] if axis in options.only else []
        results += [Condition("PIN001", axis, True)] if axis in options.at_most else []
    return results


def _keeps(context: Context, pin: Condition, values: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which values of an axis a pin or limit allows."""
    options = context.options
    if pin.limit:
        return np.asarray(values <= options.at_most[pin.axis])
    return np.isin(values, list(options.only[pin.axis]))


def _minimal(sets: Iterable[int]) -> frozenset[int]:
    """Return the sets of bits that contain no other one: the rest is never the easier choice."""
    minimal: list[int] = []
    for bits in sorted({int(b) for b in sets}, key=lambda b: (b.bit_count(), b)):
        if not any(other & bits == other for other in minimal):
            minimal.append(bits)
    return frozenset(minimal)


class _Bits:
    """Numbers conditions in the order in which they are met."""

    def __init__(self) -> None:
        self.numbers: dict[Condition, int] = {}

    def of(self, condition: Condition) -> int:
        return 1 << self.numbers.setdefault(condition, len(self.numbers))


Mask = tuple[Condition, NDArray[np.bool_]]
"""A condition, and which combinations keep it."""


def _broken(bits: _Bits, masks: Sequence[Mask], shape: tuple[int, ...]) -> Bits:
    """Return the conditions that each combination breaks, as an array of `shape`."""
    out = np.zeros(shape, dtype=np.int64)
    for condition, legal in masks:
        if not legal.all():
            out |= np.where(np.broadcast_to(legal, shape), 0, bits.of(condition))
    return out


def _open(context: Context) -> Context:
    """Return the search without pins and limits on the free axes' values.

    Kept are pinned depths and modules, which say which values there are, and switches, of which
    the search may not have what nobody names.
    """
    named = {axis.name for axis in AXES.values() if not axis.is_searched}
    named |= {"recompute_layers", "recompute_modules", "dp_overlap"}
    only = {a: v for a, v in context.options.only.items() if a in named}
    return replace(context, options=replace(context.options, only=only, at_most={}))


@dataclass(frozen=True, slots=True)
class _Shapes:
    """The shapes of a search, and what each breaks."""

    every: ShapeTable
    bits: Bits
    """Conditions that each breaks, `(n,)`."""
    is_unsplit: NDArray[np.bool_]
    """Whether it has no stages for the rules over the free axes to look at, `(n,)`."""


def _shapes(context: Context, bits: _Bits) -> _Shapes:
    """Return every candidate shape with the conditions that it breaks."""
    most_vpp = max(MAX_VPP, largest_named(context, "vpp"))
    most_cp = max(usual_cp_limit(context), largest_named(context, "cp"))
    every = candidates(context, context.n_devices, most_vpp, most_cp)
    shape_bits = np.zeros(len(every), dtype=np.int64)
    unsplit = np.zeros(len(every), dtype=bool)
    for pin in user_conditions(context, SHAPE_AXES):
        values = getattr(every, pin.axis)
        shape_bits |= np.where(_keeps(context, pin, values), 0, bits.of(pin))
    for code, predicate in SHAPE_RULES:
        if code != "PIN001":
            broken = ~predicate(context, every)
            unsplit |= broken & (code in UNSPLIT)
            if broken.any():
                shape_bits |= np.where(broken, bits.of(Condition(code)), 0)
    return _Shapes(every, shape_bits, unsplit)


def _broken_by_all(shapes: _Shapes, bits: _Bits) -> Condition | None:
    """Return the first rule that every shape breaks: it excludes all layouts by itself."""
    always = int(np.bitwise_and.reduce(shapes.bits)) if len(shapes.bits) else 0
    rules = (c for c in bits.numbers if not c.of_user)
    return next((c for c in rules if always & bits.of(c)), None)


def choices(context: Context) -> Choices:
    """Return every candidate layout, grouped by the conditions that it breaks."""
    bits = _Bits()
    return _grouped(context, _shapes(context, bits), bits)


def _grouped(context: Context, shapes_of: _Shapes, bits: _Bits) -> Choices:
    """Return the candidates of some shapes, grouped by the conditions that they break."""
    every, shape_bits, unsplit = shapes_of.every, shapes_of.bits, shapes_of.is_unsplit
    groups = set()
    rows = np.flatnonzero(~unsplit)
    for start in range(0, len(rows), CHUNK_SHAPES):
        part = rows[start : start + CHUNK_SHAPES]
        groups |= _free_groups(context, bits, every.take(part), shape_bits[part])
    chunks = every.pp * every.vpp
    for count in np.unique(chunks[unsplit]):
        part = np.flatnonzero(unsplit & (chunks == count))
        shapes = replace(every.take(part), split=0 * every.split[part])
        groups |= _free_groups(_splittable(context, int(count)), bits, shapes, shape_bits[part])
    return Choices(tuple(sorted(groups, key=_group_order)), tuple(bits.numbers))


def _splittable(context: Context, n_chunks: int) -> Context:
    """Return the search with as many layers as `n_chunks` virtual stages share evenly.

    It says what a shape that cannot be split would break besides, were the stages rounded up.
    """
    shape = context.problem.shape
    layers, runs = n_chunks * -(-shape.layers // n_chunks), shape.layer_runs
    if runs:  # as many more of the last kind
        last = replace(runs[-1], count=runs[-1].count + layers - shape.layers)
        runs = (*runs[:-1], last)
    rounded = replace(shape, layers=layers, layer_runs=runs)
    return replace(context, problem=replace(context.problem, shape=rounded))


def _group_order(group: tuple[int, frozenset[int], frozenset[int]]) -> tuple[object, ...]:
    return group[0], sorted(group[1]), sorted(group[2])


def _free_groups(
    context: Context, bits: _Bits, shapes: ShapeTable, shape_bits: Bits
) -> set[tuple[int, frozenset[int], frozenset[int]]]:
    """Return the groups of some shapes that have stages."""
    options, opened = context.options, _open(context)
    sizes = set(divisors(context.problem.job.global_batch)) | options.only.get("mbs", frozenset())
    value = free_axes(opened, shapes)
    axes = replace(value, mbs=np.array(sorted(sizes), dtype=np.int32))
    columns = pinned_columns(context, shapes, axes)
    of_rest = [(p, _keeps(context, p, columns[p.axis])) for p in user_conditions(context, columns)]
    of_mbs = [
        (p, _keeps(context, p, axes.mbs)[None, :]) for p in user_conditions(context, ("mbs",))
    ]
    rules = [r for r in plan_rules(context, shapes, axes) if r.code != "PIN001"]
    of_mbs += [(Condition(r.code), r.mask) for r in rules if r.of_batches]
    of_rest += [(Condition(r.code), r.mask) for r in rules if not r.of_batches]
    batches = _broken(bits, of_mbs, (len(shapes), len(axes.mbs)))
    n_rest = len(options.modes[0]), len(axes.shardings), len(axes.recompute)
    rest = _broken(bits, of_rest, (len(shapes), *n_rest))
    exists = recompute_options(opened, shapes, axes)
    grouped = axes.exists
    result = set()
    for i in range(len(shapes)):
        free = np.unique(rest[i][:, grouped[i]][:, :, exists[i]])
        result.add((int(shape_bits[i]), _minimal(np.unique(batches[i])), _minimal(free)))
    return result


class _Solver:
    """The model of one search; asked again and again with fewer conditions."""

    def __init__(self, options: Choices) -> None:
        self._cp = cp_sat.cp_model()
        self._model: Any = self._cp.CpModel()
        self._conditions = options.conditions
        self._holds = [
            self._model.new_bool_var(f"{c.code} {c.axis}".strip()) for c in options.conditions
        ]
        chosen = []
        of_batch: dict[int, Any] = {}
        of_rest: dict[int, Any] = {}
        for i, (shape_bits, batches, rest) in enumerate(options.groups):
            group = self._choice(f"shapes {i}", shape_bits)
            chosen.append(group)
            for sets, variables, name in ((batches, of_batch, "mbs"), (rest, of_rest, "other")):
                for bits in sorted(sets):
                    if bits not in variables:
                        variables[bits] = self._choice(f"{name} {bits:b}", bits)
                self._model.add_bool_or([~group, *(variables[bits] for bits in sorted(sets))])
        self._model.add_bool_or(chosen)
        for variables in (of_batch, of_rest):
            self._model.add_at_most_one(variables.values())
        self._model.add_at_most_one(chosen)

    def _choice(self, name: str, bits: int) -> Any:
        """Return a variable that excludes every condition of `bits` when it is chosen."""
        variable = self._model.new_bool_var(name)
        for i, holds in enumerate(self._holds):
            if bits >> i & 1:
                self._model.add_bool_or([~variable, ~holds])
        return variable

    def core(self, conditions: Sequence[Condition]) -> tuple[Condition, ...] | None:
        """Return some of `conditions` that exclude every candidate; None when one is left."""
        assumed = [self._holds[self._conditions.index(c)] for c in conditions]
        self._model.clear_assumptions()
        self._model.add_assumptions(assumed)
        solver = self._cp.CpSolver()
        solver.parameters.num_workers = 1
        if solver.solve(self._model) != self._cp.INFEASIBLE:
            return None
        named = set(solver.sufficient_assumptions_for_infeasibility())
        return tuple(
            c for c, holds in zip(conditions, assumed, strict=True) if holds.index in named
        )


def _shrink(solver: _Solver, core: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Return a part of a core from which nothing can be left out.

    What the user set is left out first: rules that conflict by themselves say more. Rules are
    left out in the order in which they come, so the last ones, on batches and memory, stay.
    """
    for condition in sorted(core, key=lambda c: (not c.of_user, core.index(c))):
        if condition in core:
            less = solver.core([c for c in core if c != condition])
            if less is not None:
                core = less
    return core


def find_conflicts(context: Context) -> tuple[tuple[Condition, ...], ...]:
    """Return sets of conditions that exclude every layout, each as small as it can be made.

    Empty when some layout is legal. No set has a pin or limit in common with another. Memory
    counts only by its lower bound (MEM000).
    """
    bits = _Bits()
    shapes = _shapes(context, bits)
    if (rule := _broken_by_all(shapes, bits)) is not None:
        # Needs no free axes, which take most of the time where there are many shapes.
        return ((rule,),)
    result = _grouped(context, shapes, bits)
    solver = _Solver(result)
    left = list(result.conditions)
    conflicts: list[tuple[Condition, ...]] = []
    while len(conflicts) < MAX_CONFLICTS:
        core = solver.core(left)
        if core is None:
            break
        core = _shrink(solver, core)
        conflicts.append(tuple(sorted(core, key=lambda c: (not c.of_user, c))))
        pins = {c for c in core if c.of_user}
        if not pins:
            break
        left = [c for c in left if c not in pins]
    return tuple(conflicts)
