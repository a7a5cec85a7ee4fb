"""The decision about a layout, walked as an expert would: one axis after the other.

Does it fit on one device? Which ZeRO stage, with data parallelism alone? Then tp, pp, vpp, cp, ep,
ZeRO again, micro-batch, recomputation. At each step every value is searched with what was decided
before and with the degrees that come later left at 1; the fastest that fits is taken, the smallest
where the model cannot tell. So the walk is greedy, as people are. After each step the best plan
that keeps all decisions so far, everything else free, says what the decision has cost: these costs
sum to the distance between the end of the walk and the best plan of all.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from costmodels.parameters import total_params
from planner.analyze.catalogue import rule_title
from planner.errors import SearchError, SpecError
from planner.solver.answer.plans import plan_of_layout
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan, Result
from planner.solver.answer.uncertainty import TIE_FRAC
from planner.solver.infeasible.causes import closest_miss
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.solver.ranking import rank_over_pools
from planner.solver.scenarios import Searched
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_from_dict
from planner.specs.progress import Progress
from planner.specs.search.axis_values import layout_from_pins
from planner.units import GIB
from searches.executors.executor import SerialExecutor
from searches.feasibility import states_can_fit
from searches.options import MAX_VPP, TEXT_AXES, SearchOptions, usual_most_mbs
from searches.pricing.outcome import Outcome
from searches.pricing.shared_work import SharedWork
from searches.rules import Context
from searches.search import search
from searches.space.shape_space import divisors, legal_degrees

DEGREES = ("tp", "pp", "cp", "ep")
"""Axes that are left at 1 until the walk comes to them."""
WORSE_IN_A_ROW = 2
"""Values slower than the best so far after which larger ones are not tried."""
QUESTION: Mapping[str, str] = {
    "one": "Does it fit on one device?",
    "zero alone": "Is data parallelism enough, and with which ZeRO stage?",
    "tp": "How many devices share a layer (tp)?",
    "pp": "How many pipeline stages (pp)?",
    "vpp": "How many chunks a stage (vpp)?",
    "cp": "How many ranks share a sequence (cp)?",
    "ep": "Over how many ranks are the experts spread (ep)?",
    "zero": "Which ZeRO stage, with these degrees?",
    "mbs": "How many sequences in a micro-batch?",
    "recompute": "Is anything recomputed?",
}
"""The steps, in order."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of an axis, searched with the decisions before it."""

    value: int | str
    plan: Plan | None
    """The best plan with it; None where none fits."""
    step_s: float | None
    """Of the fastest plan with it, which ties may keep from being the first."""
    peak_bytes: float | None
    """Of that plan, or of the one that misses the memory by least; None where no layout is legal.
    """
    why_not: str
    """Why there is no plan; empty where there is one."""

    def to_json(self) -> dict[str, Any]:
        """Return the choice in seconds and bytes."""
        return {
            "value": self.value,
            "fits": self.plan is not None,
            "step_time_s": self.step_s,
            "peak_bytes": None if self.peak_bytes is None else round(self.peak_bytes),
            "layout": shown_layout(self.plan.layout) if self.plan else None,
            "why_not": self.why_not or None,
        }


@dataclass(frozen=True, slots=True)
class WalkStep:
    """One decision with the numbers that decide it."""

    name: str
    """Of `QUESTION`."""
    choices: tuple[Choice, ...]
    chosen: int | str | None
    """The value decided for; None where nothing is decided."""
    why: str
    best_s: float | None
    """Step of the best plan that keeps all decisions so far, everything else free."""
    costs_s: float
    """By how much the decision moved that."""

    def to_json(self) -> dict[str, Any]:
        """Return the step in seconds and bytes."""
        return {
            "step": self.name,
            "question": QUESTION[self.name],
            "choices": [choice.to_json() for choice in self.choices],
            "chosen": self.chosen,
            "why": self.why,
            "best_step_time_s": self.best_s,
            "costs_s": self.costs_s,
        }


@dataclass(frozen=True, slots=True)
class Walk:
    """The whole walk, where it ends, and the best plan of all."""

    usable_bytes: float
    steps: tuple[WalkStep, ...]
    end: Plan | None
    """The best plan that keeps all decisions; None where none fits."""
    end_s: float | None
    best: Plan
    """The first plan of `solve`, on all devices."""
    best_s: float
    n_tried: int
    """Searches made."""

    @property
    def costs_frac(self) -> float | None:
        """How much longer the walk's step is than the best one, as a share."""
        return None if self.end_s is None else self.end_s / self.best_s - 1.0

    @property
    def same(self) -> bool:
        """Whether the walk ends at the plan of `solve`."""
        return self.end is not None and self.end.plan_id == self.best.plan_id

    def to_json(self) -> dict[str, Any]:
        """Return the walk as the answer of a recommendation."""
        return {
            "usable_bytes": round(self.usable_bytes),
            "steps": [step.to_json() for step in self.steps],
            "end": self.end
            and {
                "plan_id": self.end.plan_id,
                "shown": shown_layout(self.end.layout),
                "step_time_s": self.end_s,
            },
            "best": {
                "plan_id": self.best.plan_id,
                "shown": shown_layout(self.best.layout),
                "step_time_s": self.best_s,
            },
            "same": self.same,
            "costs_frac": self.costs_frac,
        }


@dataclass(frozen=True, slots=True)
class _Found:
    """What one search says."""

    plan: Plan | None
    step_s: float | None
    """Of the fastest plan."""
    peak_bytes: float | None
    """Of the plan, or of the one that misses the memory by least."""
    why_not: str

    def choice(self, value: int | str) -> Choice:
        return Choice(value, self.plan, self.step_s, self.peak_bytes, self.why_not)


@dataclass
class _Walking:
    """The inputs, and what is decided so far."""

    model: ModelInput
    cluster: ClusterInput
    options: SolveOptions
    shared: SharedWork = field(default_factory=SharedWork)
    decided: dict[str, int] = field(default_factory=dict)
    best_s: float | None = None
    n_tried: int = 0
    results: dict[tuple[tuple[str, int], ...], _Found] = field(default_factory=dict)
    progress: Progress = None

    def context(self) -> Context:
        problem = make_problem(self.model, self.cluster, self.options)
        return Context(problem, self.options.search_options(problem), problem.pool.n_devices)

    def searched(self, fixed: Mapping[str, int]) -> _Found:
        """Return the best plan with some axes fixed besides what the user restricts."""
        key = tuple(sorted(fixed.items()))
        if key not in self.results:
            self.n_tried += 1
            if self.progress is not None:
                self.progress(self.n_tried, 0)
            options = _fixed(self.options, fixed)
            self.results[key] = _search(self.model, self.cluster, options, self.shared)
        return self.results[key]

    def choice(self, axis: str, value: int, fixed: Mapping[str, int]) -> Choice:
        """Return one value of an axis, searched."""
        return self.searched({**fixed, axis: value}).choice(_word(axis, value))


def _search(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, shared: SharedWork | None
) -> _Found:
    """Return what a search on all devices of the only pool says.

    Not `solve_inputs`, which proves as well which conditions exclude every plan where none fits.
    """
    problem = make_problem(model, cluster, options)
    context = Context(problem, options.search_options(problem), problem.pool.n_devices, shared)
    outcome = search(context, SerialExecutor())
    if outcome.finalists:
        searched = [Searched(model, cluster, context, outcome)]
        first = rank_over_pools(searched, margin_frac=options.memory_margin)[0][0]
        _, plan = plan_of_layout(model, cluster, options, first.layout)
        fastest_s = min(c.step_s for c in outcome.finalists)
        return _Found(plan, fastest_s, plan.breakdown.peak_bytes, "")
    closest = outcome.closest or closest_miss(context)
    if closest:
        over = closest.peak_bytes - problem.pool.usable_bytes
        return _Found(None, None, closest.peak_bytes, f"{over / GIB:,.1f} GiB too much")
    return _Found(None, None, None, _why_none(context, options, outcome))


def _why_none(context: Context, options: SolveOptions, outcome: Outcome) -> str:
    """Return the rule that the plainest layout with what is fixed breaks, else the commonest."""
    fixed = {axis: min(values) for axis, values in options.restricted().items()}
    try:
        layout_from_pins(replace(context, options=SearchOptions(framework="any")), fixed)
    except SearchError as error:
        match = re.search(r"breaks (\w+\d+) ", str(error))
        if match:
            return f"{match[1]} {rule_title(match[1])}"
    counted = Counter({**outcome.rejected_shapes, **outcome.rejected_plans})
    codes = [code for code, _ in counted.most_common() if code != "PIN001"]
    return f"{codes[0]} {rule_title(codes[0])}" if codes else "no legal layout"


def _fixed(options: SolveOptions, fixed: Mapping[str, int]) -> SolveOptions:
    """Return the options for one plan with some axes at one value each."""
    return replace(
        options,
        top=1,
        pins={a: v for a, v in options.pins.items() if a not in fixed},
        only={a: v for a, v in options.only.items() if a not in fixed}
        | {a: frozenset({v}) for a, v in fixed.items()},
        at_most={a: v for a, v in options.at_most.items() if a not in fixed},
    )


def _word(axis: str, value: int) -> int | str:
    return TEXT_AXES[axis][value] if axis in TEXT_AXES else value


def walk_to_layout(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    best: Result,
    progress: Progress = None,
) -> Walk:
    """Return the walk to a layout; `best` is what `solve` says on all devices, with a plan.

    `progress` is told how many searches are made, of an open number.
    """
    first, certificate = best.best, best.certificate
    assert certificate is not None  # there is a plan
    walking = _Walking(
        model,
        cluster.pool(first.pool),
        options,
        best_s=certificate.fastest_s,
        progress=progress,
    )
    problem = make_problem(model, walking.cluster, options)
    steps = [_on_one(walking), _zero_alone(walking)]
    degrees = ("tp", "pp", "vpp", "cp", "ep")
    for axis in (*degrees, "zero", "mbs", "recompute"):
        step = _decide(walking, axis)
        if step is not None:
            steps.append(step)
    last = walking.searched(walking.decided)
    return Walk(
        usable_bytes=problem.pool.usable_bytes,
        steps=tuple(steps),
        end=last.plan,
        end_s=last.step_s,
        best=first,
        best_s=certificate.fastest_s,
        n_tried=walking.n_tried,
    )


def _on_one(walking: _Walking) -> WalkStep:
    """Return whether the job fits on one device, by the states alone and by a search."""
    problem = make_problem(walking.model, walking.cluster, walking.options)
    params = total_params(problem.shape, problem.job.seq_len)
    recipe = problem.job.recipe
    each = recipe.param_bytes + recipe.grad_bytes + recipe.state_bytes
    states = params * each
    lead = (
        f"{params / 1e9:,.1f} B parameters of {each:g} bytes (weight, gradient, optimizer) are "
        f"{states / GIB:,.0f} GiB"
    )
    usable = problem.pool.usable_bytes
    choices: tuple[Choice, ...] = ()
    if states <= usable or states_can_fit(problem, 1):
        alone = _alone(walking)
        if alone is not None:
            choices = (alone.choice(1),)
    if choices and choices[0].plan:
        why = (
            f"{lead}; with activations it fits into {usable / GIB:.1f} GiB: devices are for speed"
        )
    elif choices and choices[0].peak_bytes is not None:
        need = choices[0].peak_bytes / GIB
        why = f"{lead}, with activations {need:,.1f} at least, and a device has {usable / GIB:.1f}"
    else:
        why = f"{lead}, and a device has {usable / GIB:.1f}: states must be sharded or cut"
    return WalkStep("one", choices, None, why, walking.best_s, 0.0)


def _alone(walking: _Walking) -> _Found | None:
    """Return what a search says about one device of the pool; None where no cluster has one."""
    fields = {"nodes": 1, "accelerators_per_node": 1, "scale_up_domain": 1, "nics_per_node": 1}
    try:
        cluster = cluster_from_dict(
            walking.cluster.document, [(f"pools.0.{name}", n) for name, n in fields.items()]
        )
    except SpecError:
        return None
    walking.n_tried += 1
    return _search(walking.model, cluster, walking.options, None)


def _zero_alone(walking: _Walking) -> WalkStep:
    """Return the ZeRO stages with data parallelism alone; nothing is decided yet."""
    fixed = {axis: 1 for axis in DEGREES if _is_open(walking, axis)}
    choices = tuple(
        walking.choice("zero", z, fixed) for z in range(4) if _allows(walking, "zero", z)
    )
    fit = [c for c in choices if c.step_s is not None]
    if not fit and any(c.peak_bytes is not None for c in choices):
        why = "no stage fits: layers have to be cut as well"
    elif not fit:
        why = "not on all devices"
    else:
        best = _fastest(fit)
        why = f"ZeRO {best.value} fits and takes {best.step_s:.3f} s: the step to beat"
    return WalkStep("zero alone", choices, None, why, walking.best_s, 0.0)


def _is_open(walking: _Walking, axis: str) -> bool:
    """Tell whether the user leaves an axis open that this model has."""
    if axis == "ep" and not walking.model.shape.n_experts:
        return False
    named = (walking.options.pins, walking.options.only, walking.options.at_most)
    return not any(axis in names for names in named)


def _allows(walking: _Walking, axis: str, value: int) -> bool:
    return walking.options.search_options().allows(axis, value)


def _values(walking: _Walking, axis: str) -> list[int]:
    """Return the values of an axis to try, the plainest first."""
    if axis in DEGREES:
        return [v for v in legal_degrees(walking.context(), axis) if _allows(walking, axis, v)]
    values: Sequence[int] = range(len(TEXT_AXES["recompute"]))
    if axis == "vpp":
        values = range(1, MAX_VPP + 1) if walking.decided.get("pp", 1) > 1 else ()
    elif axis == "zero":
        values = range(4)
    elif axis == "mbs":
        job, n = walking.model.job, walking.context().n_devices
        fixed = {**walking.options.pins, **walking.decided}
        ranks = n // prod(fixed.get(axis, 1) for axis in ("tp", "pp", "cp"))
        divides = divisors(max(1, job.global_batch // ranks))
        values = [m for m in divides if m <= usual_most_mbs(job.seq_len)]
    return [v for v in values if _allows(walking, axis, v)]


def _decide(walking: _Walking, axis: str) -> WalkStep | None:
    """Return the decision about an axis; None where the user or the model leaves none."""
    if axis == "ep" and not walking.model.shape.n_experts:
        return None
    values = _values(walking, axis)
    if axis == "vpp" and not values:
        return None
    if axis in walking.options.pins or len(values) < 2:
        return None
    later = DEGREES[DEGREES.index(axis) + 1 :] if axis in DEGREES else ()
    if axis == "vpp":
        later = ("cp", "ep")
    fixed = {**walking.decided, **{a: 1 for a in later if _is_open(walking, a)}}
    if axis == "tp":
        # One value beyond the scale-up domain, to say what leaving it would cost.
        domain = walking.cluster.cluster.pools[0].scale_up_domain
        values = [v for v in values if v <= domain] + [v for v in values if v > domain][:1]
    choices = _climb(lambda v: walking.choice(axis, v, fixed), values)
    chosen, why = _chosen(walking, axis, choices)
    if chosen is None:
        return WalkStep(axis, choices, None, why, walking.best_s, 0.0)
    number = TEXT_AXES[axis].index(str(chosen)) if axis in TEXT_AXES else int(chosen)
    walking.decided[axis] = number
    best_s = walking.searched(walking.decided).step_s
    costs_s = best_s - walking.best_s if best_s is not None and walking.best_s else 0.0
    walking.best_s = best_s
    return WalkStep(axis, choices, chosen, why, best_s, costs_s)


def _climb(search: Callable[[int], Choice], values: Sequence[int]) -> tuple[Choice, ...]:
    """Return the values searched upwards, until some in a row are slower than the best."""
    results: list[Choice] = []
    best_s, worse = float("inf"), 0
    for value in values:
        choice = search(value)
        results.append(choice)
        if choice.step_s is not None and choice.step_s < best_s:
            best_s, worse = choice.step_s, 0
        elif choice.step_s is not None:
            worse += 1
        if worse >= WORSE_IN_A_ROW:
            break
    return tuple(results)


def _fastest(fit: Sequence[Choice]) -> Choice:
    """Return the first choice within ties of the fastest: the plainest."""
    least = min(c.step_s for c in fit if c.step_s is not None)
    return next(c for c in fit if c.step_s is not None and c.step_s <= least * (1.0 + TIE_FRAC))


def _chosen(
    walking: _Walking, axis: str, choices: Sequence[Choice]
) -> tuple[int | str | None, str]:
    """Return the value to decide for and why, in words.

    tp stays inside the scale-up domain wherever one that does is legal.
    """
    domain = walking.cluster.cluster.pools[0].scale_up_domain
    legal = [c for c in choices if c.peak_bytes is not None]
    if axis == "tp":
        legal = [c for c in legal if int(c.value) <= domain] or legal
    fit = [c for c in legal if c.step_s is not None]
    if fit:
        best = _fastest(fit)
        return best.value, _why(choices, best, domain if axis == "tp" else None, axis)
    if not legal:
        return None, "no value leaves a legal layout"
    best = min(legal, key=lambda c: c.peak_bytes or 0.0)
    inside = f" inside a scale-up domain of {domain}" if axis == "tp" else ""
    return best.value, (
        f"nothing fits yet; {axis} {best.value} comes closest{inside}: "
        f"{(best.peak_bytes or 0.0) / GIB:,.1f} GiB"
    )


def _why(choices: Sequence[Choice], best: Choice, domain: int | None, axis: str) -> str:
    """Return why a value is taken, and the next is not; `domain` bounds tp."""
    assert best.step_s is not None  # it fits
    where = [c.value for c in choices].index(best.value)
    messages = []
    slower = [c for c in choices[:where] if c.step_s is not None]
    if where and not slower:
        messages.append("the first that fits")
    elif slower:
        rival = min(slower, key=lambda c: c.step_s or 0.0)
        messages.append(f"{axis} {rival.value} takes {_share(rival, best)}")
    for after in choices[where + 1 :]:
        leaves = domain is not None and int(after.value) > domain
        what = f"{axis} {after.value}{' leaves the scale-up domain and' if leaves else ''}"
        if after.step_s is not None:
            messages.append(f"{what} takes {_share(after, best)}")
            break
        if len(messages) < 2:
            messages.append(f"{what} has no plan: {after.why_not}")
    return "; ".join(messages) or "the only one"


def _share(other: Choice, best: Choice) -> str:
    assert other.step_s is not None  # both fit
    assert best.step_s is not None
    share = other.step_s / best.step_s - 1.0
    return f"{share:+.1%}" + (", within model error" if abs(share) <= TIE_FRAC else "")
