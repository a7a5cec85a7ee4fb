"""One recipe beside the search: what its own layout costs, and where it stands among ours.

The job of a recipe is its model, batch and precision on its devices. Its layout is priced as it
is; the search plans the same job for the same framework. Two layouts are different where their
degrees are: (tp, pp, cp, ep).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from costmodels.axes import AXES
from costmodels.plans import Layout
from planner.errors import PlannerError
from planner.frameworks.bridge.recipe_table import BridgeRecipe
from planner.solver.answer.result import Plan, Result
from planner.solver.calibration.file import Calibration
from planner.solver.execution import Execution
from planner.solver.request import SolveRequest
from planner.solver.solve import Extent, evaluate, solve_inputs
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_from_dict, model_from_dict
from searches.executors.executor import SerialExecutor

DEGREES = ("tp", "pp", "cp", "ep")
"""Axes in which different layouts differ."""
N_FIRST = 3
"""Different layouts of ours among which a recipe's is looked for."""
NEAR_FRAC = 0.03
"""A recipe's degrees agree too where their best plan is so near to our first."""
EQUAL_FRAC = 1e-3
"""Relative difference from which on a recipe's own layout is faster than our first."""
TOP = (64, 256, 1024)
"""Plans that are asked for, until so many different layouts are among them."""

Degrees = tuple[int, ...]


def degrees_of(layout: Layout) -> Degrees:
    """Return (tp, pp, cp, ep) of a layout."""
    return layout.tp, layout.pp, layout.cp, layout.ep


@dataclass(frozen=True, slots=True)
class Different:
    """The best plan of a layout's degrees. Seconds."""

    degrees: Degrees
    step_s: float
    layout: Layout


@dataclass(frozen=True, slots=True)
class Compared:
    """A recipe and what the planner says of it. Seconds, bytes; ratios are shares above 1."""

    recipe: BridgeRecipe
    missing: tuple[str, ...] = ()
    """Why it is not priced; empty where it is."""
    plan: Plan | None = None
    """The recipe's own layout, priced."""
    first: tuple[Different, ...] = ()
    """Our first different layouts, best first."""
    group_s: float | None = None
    """Step of the best plan with the recipe's degrees that fits, its own among them; None where
    none does."""

    @property
    def fits(self) -> bool | None:
        """Whether the recipe's own layout fits into memory; None where it is not priced."""
        return self.plan.headroom_frac >= 0 if self.plan else None

    @property
    def lacking_bytes(self) -> float:
        """By how much it does not fit, 0 where it does."""
        if self.plan is None:
            return 0.0
        return max(0.0, self.plan.breakdown.peak_bytes - self.plan.usable_bytes)

    @property
    def rank(self) -> int | None:
        """Place of the recipe's degrees among our first different layouts, None beyond them."""
        degrees = self.plan and degrees_of(self.plan.layout)
        places = (i for i, one in enumerate(self.first, 1) if one.degrees == degrees)
        return next(places, None)

    @property
    def ratio(self) -> float | None:
        """Best step with the recipe's degrees over that of our first plan."""
        if not self.first or self.group_s is None:
            return None
        return self.group_s / self.first[0].step_s

    @property
    def regret(self) -> float | None:
        """By how much the recipe's own layout is slower than our first, as a share."""
        if not self.first or self.plan is None:
            return None
        return self.plan.step_time_s / self.first[0].step_s - 1.0

    @property
    def is_overlooked(self) -> bool:
        """Its own layout fits and is faster than the first that the search comes to."""
        return bool(self.fits) and self.regret is not None and self.regret < -EQUAL_FRAC

    @property
    def agrees(self) -> bool:
        """Its degrees are among our first different layouts, or as good as the first of them."""
        near = self.ratio is not None and self.ratio <= 1.0 + NEAR_FRAC
        return self.rank is not None or near

    @property
    def error(self) -> float | None:
        """Predicted over printed step of its own layout, less 1; None where none is printed."""
        measured = self.recipe.measured
        return self.plan.step_time_s / measured[0] - 1.0 if self.plan and measured else None

    @property
    def is_inside(self) -> bool | None:
        """Whether the printed time lies in the interval of the prediction."""
        measured = self.recipe.measured
        if self.plan is None or measured is None:
            return None
        return self.plan.step_time_p10_s <= measured[0] <= self.plan.step_time_p90_s

    @property
    def is_best_no_slower(self) -> bool | None:
        """Whether our first is predicted to take no longer than what was printed."""
        measured = self.recipe.measured
        if measured is None or not self.first:
            return None
        return self.first[0].step_s <= measured[0]


@dataclass(slots=True)
class RecipeSearches:
    """Searches by job, so that recipes with one job share theirs."""

    calibration: Calibration
    """The numbers that price the plans."""
    results: dict[str, Result] = field(default_factory=dict)
    n_searches: int = 0

    def different(
        self, inputs: tuple[ModelInput, ClusterInput], options: Mapping[str, Any], n: int
    ) -> tuple[Different, ...]:
        """Return the first `n` different layouts of a job, fewer where there are no more."""
        first: tuple[Different, ...] = ()
        for top in TOP:
            result = self._solved(inputs, {**options, "top": top})
            first = _different(result.plans)
            if len(first) >= n or len(result.plans) < top:
                break
        return first[:n]

    def _solved(
        self, inputs: tuple[ModelInput, ClusterInput], options: Mapping[str, Any]
    ) -> Result:
        named = {name: value for name, value in options.items() if name != "calibration"}
        key = repr((inputs[0].document, inputs[1].document, sorted(named.items())))
        if key not in self.results:
            read = SolveRequest.of(**options).options()
            # Relaxations and reasons are nobody's question here.
            extent = Extent(fewer_devices=False, reasons=False)
            execution = Execution(SerialExecutor())
            self.results[key] = solve_inputs(*inputs, read, execution, extent=extent)
            self.n_searches += 1
        return self.results[key]


def _different(plans: Sequence[Plan]) -> tuple[Different, ...]:
    """Return the best plan of each combination of degrees, the fastest first."""
    best: dict[Degrees, Different] = {}
    for plan in plans:
        key = degrees_of(plan.layout)
        if key not in best or plan.step_time_s < best[key].step_s:
            best[key] = Different(key, plan.step_time_s, plan.layout)
    return tuple(sorted(best.values(), key=lambda one: (one.step_s, one.degrees)))


def compare_recipe(recipe: BridgeRecipe, searches: RecipeSearches) -> Compared:
    """Return a recipe priced and searched, or what is missing for it."""
    missing = recipe.missing
    if missing:
        return Compared(recipe, missing)
    documents, pins = (recipe.model_document(), recipe.cluster_document()), recipe.axes.pins
    usual = {"framework": "bridge", "calibration": searches.calibration}
    try:
        inputs = model_from_dict(documents[0]), cluster_from_dict(documents[1])
        request = SolveRequest.of(pins=pins, **usual)
        plan = evaluate(*documents, request).plans[0]
    except PlannerError as error:
        return Compared(recipe, (error.message,))
    used: dict[str, Any] = {**usual, **_search_options(pins, recipe.number("n_gpus"))}
    first = searches.different(inputs, used, N_FIRST)
    degrees = degrees_of(plan.layout)
    group = [one.step_s for one in first if one.degrees == degrees]
    if not group and first:
        named = {**used["pins"], **dict(zip(DEGREES, degrees, strict=True))}
        group = [one.step_s for one in searches.different(inputs, {**used, "pins": named}, 1)]
    if plan.headroom_frac >= 0:
        group.append(plan.step_time_s)
    return Compared(recipe, (), plan, first, min(group, default=None))


def _search_options(pins: Mapping[str, int | str], n_devices: int) -> dict[str, Any]:
    """Return what the search of a recipe's job is named: its devices, switches that it has open.

    An axis that a search leaves alone unless it is named may be as in the recipe, or off.
    """
    only: dict[str, list[Any]] = {}
    for axis, value in pins.items():
        record = AXES[axis]
        if not record.is_searched:
            only[axis] = list(dict.fromkeys((_word(axis, record.off), value)))
    return {"pins": {"devices": n_devices}, "only": only}


def _word(axis: str, off: Any) -> Any:
    """Return the value at rest of an axis as a request holds it."""
    record = AXES[axis]
    return record.text(off) if record.choices else int(off)
