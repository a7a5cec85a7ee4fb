"""What would relax a plan: single changes of hardware, job, software and layout, each priced anew.

Every change is made alone and the whole step is priced again; the part of the step that falls most
is what the change relaxes. Rates are doubled and times halved, whatever that would take; the
layout stays, so that where another layout becomes better, more is to be gained.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from costmodels.breakdown import Breakdown, break_down, virtual_stage_times
from costmodels.plans import Layout
from costmodels.precision import PRECISIONS, RECIPES
from costmodels.problem import Problem
from planner.analyze.bottleneck import (
    CUT_BY,
    MEANING,
    MEMORY,
    PARTS,
    binding_part,
    largest,
    parts_s,
)
from planner.analyze.elasticities import FIGURES, RATE, MoreMemory, after_changes, more_memory
from planner.analyze.neighborhood import Neighbour, SingleChange, single_changes
from planner.analyze.single_changes import CLOSED
from planner.solver.answer.result import Plan

FACTOR = 2.0
"""By how much a figure of the hardware is changed: a rate times this, a time over this."""
MOST_DOUBLINGS = 10
"""Doublings after which it is given up to look for the next bottleneck."""
LEAST_GAIN = 0.001
"""Changes that save less than this share of the step are not named."""
MOST_LAYOUTS, MOST_TOO_LARGE = 16, 3
"""Changes of the layout that are opened up: of those that fit, and of those that do not."""
TOO_LARGE = 2.0
"""Changes that need more than so many times the memory of a device are not named."""
MOST_SHOWN = 4
"""Changes that texts name under what relaxes the bottleneck, and under what else helps."""
DOMINATES_SHARE, DOMINATES_RATIO = 0.5, 2.0
"""A part dominates that takes half of the step, or twice as much as any other."""


@dataclass(frozen=True, slots=True)
class LeverState:
    """A plan under some problem: its step for the tokens of the plan asked about, cut in parts."""

    step_s: float
    parts: dict[str, float]
    peak_bytes: float
    terms_s: Mapping[str, float]
    """The terms of the step that the parts are cut from."""
    elasticity: Mapping[str, float]
    """Those of `CUT_BY`."""
    on_host: bool
    """Whether the optimizer runs on the host, where it counts as memory."""

    @property
    def largest(self) -> str:
        """The part that takes most."""
        return largest(self.parts)

    def share(self, part: str) -> float:
        """Return the share of the step that a part takes."""
        return self.parts[part] / self.step_s


@dataclass(frozen=True, slots=True)
class Lever:
    """One change, priced."""

    kind: str
    """`hardware`, `cluster`, `job`, `numbers`, `layout`, or `memory`: a layout that does not fit.
    """
    change: str
    """What is changed, in words."""
    relaxes: str
    """The part of `PARTS` that falls most; `memory` for a layout that does not fit."""
    after: LeverState
    gain_frac: float
    """Share of the time of a token that it saves; negative where the step grows."""
    costs: str
    """The part that grows most, empty where none grows by a thousandth of the step."""
    fits: bool
    searched: bool = True
    """Whether a search would find it; not where the axis is opened only by name."""

    @property
    def axis(self) -> str:
        """What texts name once: the axis of a layout, the recipe, or the change itself."""
        own = self.kind in ("layout", "numbers", "memory")
        return self.change.split(" ", 1)[0] if own else self.change


@dataclass(frozen=True, slots=True)
class Next:
    """The bottleneck after the one that binds is relaxed."""

    part: str
    after: str
    """What was changed, in words; empty where the part is only the second largest today."""
    state: LeverState
    same: bool = False
    """Whether it is the same part still, after all that was tried."""


@dataclass(frozen=True)
class Bound:
    """What binds a plan, what would relax it and what comes next."""

    plan: Plan
    now: LeverState
    roomier: MoreMemory | None
    """The same layout without recomputation, where that is faster."""
    levers: tuple[Lever, ...]
    """All changes worth naming, those that save most first."""
    peak_s: float
    """What the model's FLOPs take at the peak rate of the data sheet, seconds."""
    works_s: tuple[float, ...]
    """Forward and backward of a micro-batch by pipeline stage, seconds."""
    next: Next
    tried: tuple[SingleChange, ...] = ()
    """All single changes of the layout, legal or not, that the levers are some of."""
    opened: Mapping[Layout, Breakdown] = field(default_factory=dict)
    """Those of them that were broken down on the way."""

    @property
    def binds(self) -> str:
        """The part of `PARTS` that binds."""
        memory = self.plan.breakdown.rows.problem.pool.accelerator.memory_bytes
        return binding_part(self.now.parts, self.now.step_s, memory, self.roomier)

    @property
    def slowest_over_mean(self) -> float:
        """Work of the slowest pipeline stage over the mean of the stages; 1 without a pipeline."""
        return max(self.works_s) * len(self.works_s) / sum(self.works_s)

    @cached_property
    def ordered(self) -> tuple[str, ...]:
        """The parts by their time, the longest first."""
        return tuple(sorted(PARTS, key=lambda p: (-self.now.parts[p], PARTS.index(p))))

    @property
    def dominates(self) -> bool:
        """Whether the largest part takes half of the step, or twice as much as any other."""
        first, second = self.ordered[:2]
        parts = self.now.parts
        return (
            self.now.share(first) >= DOMINATES_SHARE
            or parts[first] >= DOMINATES_RATIO * parts[second]
        )

    def relaxing(self, part: str) -> tuple[Lever, ...]:
        """Return the changes that relax a part, those that save most first."""
        return tuple(lever for lever in self.levers if lever.relaxes == part)

    def to_json(self) -> dict[str, Any]:
        """Return it in seconds, bytes and fractions."""
        now = self.now
        return {
            "binds": self.binds,
            "dominates": self.dominates,
            "parts": [
                {"part": p, "time_s": now.parts[p], "share": now.share(p), "meaning": MEANING[p]}
                for p in self.ordered
            ],
            "peak_flops_s": self.peak_s,
            "slowest_stage_over_mean": self.slowest_over_mean,
            "next_memory_bytes": self.roomier.memory_bytes if self.roomier else None,
            "next_step_time_s": self.roomier.step_s if self.roomier else None,
            "changes": [
                {
                    "kind": x.kind,
                    "change": x.change,
                    "relaxes": x.relaxes,
                    "step_time_s": x.after.step_s,
                    "gain_frac": x.gain_frac,
                    "part_before_s": now.parts[x.relaxes],
                    "part_after_s": x.after.parts[x.relaxes],
                    "costs": x.costs or None,
                    "peak_bytes": round(x.after.peak_bytes),
                    "fits": x.fits,
                    "searched": x.searched,
                }
                for x in self.levers
            ],
            "next": {
                "part": self.next.part,
                "after": self.next.after or None,
                "step_time_s": self.next.state.step_s,
                "share": self.next.state.share(self.next.part),
                "same": self.next.same,
            },
        }


def state_of(problem: Problem, layout: Layout, per: float = 1.0) -> LeverState:
    """Return a layout priced and cut into parts, times over `per`: for steps of more tokens."""
    return _state(break_down(problem, layout), _elasticity(problem, layout), per)


def _elasticity(problem: Problem, layout: Layout) -> dict[str, float]:
    """Return the elasticities of a step to the figures of `CUT_BY`."""
    ((_, elasticity),) = after_changes(problem, layout, [(CUT_BY[0], 1.0)], CUT_BY)
    return elasticity


def _state(breakdown: Breakdown, elasticity: Mapping[str, float], per: float = 1.0) -> LeverState:
    parts = {part: s / per for part, s in parts_s(breakdown, elasticity).items()}
    terms = {term: s / per for term, s in breakdown.time_s.items()}
    return LeverState(
        breakdown.step_s / per,
        parts,
        breakdown.peak_bytes,
        terms,
        elasticity,
        breakdown.layout.optimizer_offload,
    )


def binding_now(problem: Problem, plan: Plan) -> Bound:
    """Return what binds a plan without looking for what would relax it: some 0.03 s."""
    now, roomier = state_of(problem, plan.layout), more_memory(problem, plan.layout)
    memory = problem.pool.accelerator.memory_bytes
    binds = binding_part(now.parts, now.step_s, memory, roomier)
    after = _next(problem, plan, now, None, (), binds)
    peak_s = plan.mfu * plan.step_time_s
    return Bound(plan, now, roomier, (), peak_s, _works_s(plan), after)


def bound_of(
    problem: Problem, plan: Plan, framework: str = "any", *, is_brief: bool = False
) -> Bound:
    """Return what binds a plan, every change that relaxes it, and the next bottleneck.

    `framework` leaves out changes of the layout that it does not run. `is_brief` leaves out the
    levers that texts do not name, which takes half as long: changes
    of the layout that save less than those that it names, and such as fit and save nothing, but
    for the best that relaxes what binds where nothing else does.
    """
    now, roomier = state_of(problem, plan.layout), more_memory(problem, plan.layout)
    memory = problem.pool.accelerator.memory_bytes
    binds = binding_part(now.parts, now.step_s, memory, roomier)
    tried = _single_changes(problem, plan, framework)
    fitting, too_large = _legal(tried, plan, now)
    opened: dict[Layout, Breakdown] = {}
    levers = [*_of_hardware(problem, plan, now), *_of_job(problem, plan, now)]
    levers += _of_layouts(problem, plan, now, too_large, opened)
    of_fitting = _of_layouts(problem, plan, now, fitting, opened)
    levers += _named(of_fitting, levers, binds) if is_brief else of_fitting
    levers.sort(key=lambda x: (-x.gain_frac, x.kind, x.change))
    ranked = tuple(levers)
    after = _next(problem, plan, now, roomier, ranked, binds)
    peak_s = plan.mfu * plan.step_time_s
    return Bound(plan, now, roomier, ranked, peak_s, _works_s(plan), after, tried, opened)


def _works_s(plan: Plan) -> tuple[float, ...]:
    layout = plan.layout
    forward, backward = virtual_stage_times(plan.breakdown.rows, layout)
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    return tuple(sum(both[j] for j in layout.stages_of(rank)) for rank in range(layout.pp))


def _lever(
    kind: str, change: str, now: LeverState, after: LeverState, usable_bytes: float, **more: Any
) -> Lever:
    """Return a change with the part that falls most and the part that grows most."""
    falls = {p: now.parts[p] - after.parts[p] for p in PARTS}
    worst = min(PARTS, key=lambda p: falls[p])
    fits = after.peak_bytes <= usable_bytes
    return Lever(
        kind=kind,
        change=change,
        relaxes=max(PARTS, key=lambda p: falls[p]),
        after=after,
        gain_frac=1.0 - after.step_s / now.step_s,
        costs=worst if -falls[worst] >= LEAST_GAIN * now.step_s else "",
        fits=fits,
        **more,
    )


def _of_hardware(problem: Problem, plan: Plan, now: LeverState) -> Iterator[Lever]:
    """Yield every figure of the hardware and of the software's times, doubled or halved."""
    changes = [(f.name, FACTOR if f.kind == RATE else 1.0 / FACTOR) for f in FIGURES]
    priced = after_changes(problem, plan.layout, changes, CUT_BY)
    for figure, (_, factor), (step_s, elasticity) in zip(FIGURES, changes, priced, strict=True):
        if step_s > (1.0 - 0.99 * LEAST_GAIN) * now.step_s:
            continue  # told apart below, from a price with all its terms
        breakdown = break_down(figure.changed(problem, factor), plan.layout)
        after = _state(breakdown, elasticity)
        word = "twice" if figure.kind == RATE else "half"
        lever = _lever("hardware", f"{word} the {figure.name}", now, after, plan.usable_bytes)
        if lever.gain_frac >= LEAST_GAIN:
            yield lever
    alike = replace(problem, stack=replace(problem.stack, node_spread=0.0))
    lever = _lever(
        "cluster",
        "nodes that are all equally fast",
        now,
        state_of(alike, plan.layout),
        plan.usable_bytes,
    )
    if lever.gain_frac >= LEAST_GAIN:
        yield lever


def _larger(problem: Problem, layout: Layout, factor: int) -> tuple[Problem, Layout]:
    """Return the job with `factor` times the sequences in a step."""
    job = replace(problem.job, global_batch=problem.job.global_batch * factor)
    return replace(problem, job=job), replace(layout, gbs=layout.gbs * factor)


def _of_job(problem: Problem, plan: Plan, now: LeverState) -> Iterator[Lever]:
    """Yield a batch of twice the sequences, its step counted for the tokens of the present one."""
    twice = state_of(*_larger(problem, plan.layout, 2), 2.0)
    batch = problem.job.global_batch * 2
    lever = _lever("job", f"a global batch of {batch:,}", now, twice, plan.usable_bytes)
    if lever.gain_frac >= LEAST_GAIN:
        yield lever


def _single_changes(problem: Problem, plan: Plan, framework: str) -> tuple[SingleChange, ...]:
    """Return the single changes of the layout, recipes of faster matrix products among them."""
    peaks = problem.pool.accelerator.peak_flops_per_s
    now_peak = peaks[problem.job.recipe.linear]
    recipes = [
        name for name in PRECISIONS if peaks.get(RECIPES[name, "adam"].linear, 0.0) > now_peak
    ]
    return single_changes(problem, plan.layout, framework, recipes)


Legal = tuple[SingleChange, Neighbour]
"""A change of the layout, and what it gives."""


def _legal(
    tried: Sequence[SingleChange], plan: Plan, now: LeverState
) -> tuple[list[Legal], list[Legal]]:
    """Return the fastest changes of the layout that fit, and those that need more memory."""
    legal = sorted(
        ((c, c.near) for c in tried if c.near),
        key=lambda c: (c[1].step_s, c[0].axis, str(c[0].new)),
    )
    fitting = [c for c in legal if c[1].peak_bytes <= plan.usable_bytes]
    return fitting[:MOST_LAYOUTS], _too_large(legal, plan, now)


def _named(chosen: Iterable[Lever], others: Sequence[Lever], binds: str) -> Iterator[Lever]:
    """Yield of changes of the layout, those that save most first, what texts may name.

    `others` are the changes of other kinds. None is opened once both lists of a text are full of
    what saves more.
    """
    seen: list[Lever] = []

    def n_named(helps: bool, gain_frac: float) -> int:
        named = {
            x.axis
            for x in (*others, *seen)
            if (x.relaxes == binds) == helps
            and x.gain_frac > max(0.0, gain_frac)
            and (helps or x.kind != "memory")
        }
        return len(named)

    for lever in chosen:
        seen.append(lever)
        yield lever
        full = n_named(True, lever.gain_frac) >= MOST_SHOWN
        full &= n_named(False, lever.gain_frac) >= MOST_SHOWN
        if full or (lever.gain_frac <= 0.0 and n_named(True, 0.0)):
            return


def _of_layouts(
    problem: Problem,
    plan: Plan,
    now: LeverState,
    changes: Sequence[Legal],
    opened: dict[Layout, Breakdown],
) -> Iterator[Lever]:
    """Yield changes of the layout or of the recipe; those of the layout are kept in `opened`."""
    for change, near in changes:
        changed = problem
        if change.axis == "precision":
            changed = replace(problem, job=replace(problem.job, precision=change.new))
        breakdown = break_down(changed, near.layout)
        if changed is problem:
            opened[near.layout] = breakdown
        after = _state(breakdown, _elasticity(changed, near.layout))
        lever = _lever(
            "numbers" if change.axis == "precision" else "layout",
            _change_words(change),
            now,
            after,
            plan.usable_bytes,
            searched=_is_searched(change),
        )
        if not lever.fits:
            lever = replace(lever, kind="memory", relaxes=MEMORY)
        if abs(lever.gain_frac) >= LEAST_GAIN:
            yield lever


def _too_large(legal: Sequence[Legal], plan: Plan, now: LeverState) -> list[Legal]:
    """Return the changes that only more memory allows: each faster than those that need less."""
    results: list[Legal] = []
    limit_bytes = TOO_LARGE * plan.usable_bytes
    large = [c for c in legal if plan.usable_bytes < c[1].peak_bytes <= limit_bytes]
    best_s = now.step_s * (1.0 - LEAST_GAIN)
    for change, near in sorted(large, key=lambda c: (c[1].peak_bytes, c[0].axis)):
        if near.step_s < best_s:
            results.append((change, near))
            best_s = near.step_s
    return results[:MOST_TOO_LARGE]


def _is_searched(change: SingleChange) -> bool:
    """Tell whether a search tries the new value without being told to."""
    return change.axis not in ("precision", *CLOSED) or change.new == CLOSED.get(change.axis)


def _change_words(change: SingleChange) -> str:
    return f"{change.axis} {_word(change.old)} -> {_word(change.new)}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) or "none"


def _next(
    problem: Problem,
    plan: Plan,
    now: LeverState,
    roomier: MoreMemory | None,
    levers: Sequence[Lever],
    binds: str,
) -> Next:
    """Return what takes most of the step once what binds is relaxed as far as it takes.

    Memory: without recomputation. A figure of the hardware or the batch: the one that relaxes the
    part most is doubled (a time halved) until another part takes most. Otherwise the second part.
    """
    if binds == MEMORY and roomier is not None:
        plain = replace(plan.layout, recompute="none", recompute_layers=0, recompute_modules=())
        state = state_of(problem, plain)
        return Next(state.largest, "no recomputation", state)
    best = next((x for x in levers if x.relaxes == binds and x.kind in _REPEATED), None)
    if best is None:
        second = max((p for p in PARTS if p != binds), key=lambda p: now.parts[p])
        return Next(second, "", now)
    if best.kind == "cluster":
        return Next(best.after.largest, best.change, best.after, best.after.largest == binds)
    state, change, k = best.after, best.change, 1
    while state.largest == binds and k < MOST_DOUBLINGS:
        k += 1
        state, change = _repeated(problem, plan.layout, best, k)
    return Next(state.largest, change, state, state.largest == binds)


_REPEATED = ("hardware", "job", "cluster")


def _repeated(problem: Problem, layout: Layout, lever: Lever, k: int) -> tuple[LeverState, str]:
    """Return a plan after a change of hardware or batch was made `k` times, in words."""
    times = 2**k
    if lever.kind == "job":
        larger = _larger(problem, layout, times)
        return state_of(*larger, float(times)), f"a global batch of {larger[1].gbs:,}"
    figure = next(f for f in FIGURES if lever.change.endswith(f" {f.name}"))
    rate = figure.kind == RATE
    factor = float(times) if rate else 1.0 / times
    text = f"{times} times" if rate else f"1/{times} of"
    return state_of(figure.changed(problem, factor), layout), f"{text} the {figure.name}"
