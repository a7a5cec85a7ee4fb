"""Plans of layouts: opened up, with rates, interval, warnings, and what frameworks hold them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodels.breakdown import Breakdown, break_down, break_downs, join_one
from costmodels.data.steps import useful_frac
from costmodels.layers.flops import model_flops_per_step
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.run.goodput import Goodput, goodput
from costmodels.stacks import StackProfile
from costmodels.step import peak_bytes
from planner.frameworks.emit import first_releases, runs_on, runs_on_each
from planner.solver.answer.advice import plan_warnings
from planner.solver.answer.result import Plan
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.intervals import (
    evidence_for,
    interval_of,
    regime_kind_of,
    regime_name,
)
from planner.solver.options import SolveOptions
from planner.solver.problem import as_framework, make_problem
from planner.solver.scenarios import Searched
from planner.specs.identity import PlanIds
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.search.axis_values import layout_to_json
from planner.specs.search.objectives import run_figures
from searches.pricing.candidates import Candidate
from searches.pricing.layout_prices import peaks_of_layouts
from searches.pricing.shared_work import SharedWork

Peaks = Mapping[StackProfile, float]
"""Peak memory of one plan under some stacks, bytes."""


NO_PEAKS: Peaks = {}


def open_candidates(candidates: Sequence[tuple[Candidate, Searched]]) -> list[Breakdown]:
    """Return plans opened up, those of one search together."""
    opened: dict[int, Breakdown] = {}
    for rows in _by_search([one for _, one in candidates]):
        one, layouts = candidates[rows[0]][1], [candidates[i][0].layout for i in rows]
        opened |= zip(rows, break_downs(one.problem, layouts, one.context.layer_grid), strict=True)
    return [opened[i] for i in range(len(candidates))]


def _by_search(searches: Sequence[Searched]) -> list[list[int]]:
    """Return the places of each search in a list."""
    places: dict[int, list[int]] = {}
    for i, one in enumerate(searches):
        places.setdefault(id(one), []).append(i)
    return list(places.values())


@dataclass(frozen=True, slots=True)
class PlanRank:
    """Where a plan stands in a ranking."""

    rank: int = 1
    tie: bool = True
    """It ties with the best of all."""
    group: int | None = None
    """Of plans between which the model cannot tell."""
    n_variants: int = 1
    """Plans that it stands for, itself among them."""


class PlanMaker:
    """Makes plans of one problem; what all of them share is computed once."""

    def __init__(
        self,
        problem: Problem,
        model: ModelInput,
        cluster: ClusterInput,
        calibration: Calibration,
        work: SharedWork | None = None,
    ) -> None:
        self._problem, self._calibration, self._work = problem, calibration, work
        self._numerics = model.changed
        self._ids = PlanIds(model.document, cluster.document)
        self._evidence = evidence_for(problem, calibration)
        self._flops = model_flops_per_step(problem.shape, problem.job)
        peaks = problem.pool.accelerator.peak_flops_per_s
        self._peak_flops = peaks[problem.job.recipe.linear]
        self._bf16_flops = peaks.get("bf16")
        self._operations = cluster.operations[0]
        self._n_given = cluster.n_given
        self._goodput: dict[int, Goodput] = {}
        self._of_framework: dict[str, Problem] = {}

    def as_framework(self, name: str) -> Problem:
        """Return the problem with the stack of a framework (`problems.as_framework`)."""
        if name not in self._of_framework:
            self._of_framework[name] = as_framework(self._problem, name, self._calibration)
        return self._of_framework[name]

    def peaks(
        self, layouts: Sequence[Layout], able: Sequence[tuple[str, ...]]
    ) -> list[dict[StackProfile, float]]:
        """Return each layout's peak memory under the frameworks that can run it, by their stack.

        Bytes; `able` names those frameworks. Layouts under one stack are priced together.
        """
        results: list[dict[StackProfile, float]] = [{} for _ in layouts]
        together: dict[StackProfile, tuple[Problem, list[int]]] = {}
        for i, names in enumerate(able):
            owns = [self.as_framework(name) for name in names]
            others = {own.stack: own for own in owns if own.stack != self._problem.stack}
            for stack, own in others.items():
                together.setdefault(stack, (own, []))[1].append(i)
        for own, rows in together.values():
            priced = peaks_of_layouts(own, [layouts[i] for i in rows], self._work)
            for i, peak in zip(rows, priced, strict=True):
                results[i][own.stack] = peak
        return results

    def fitting(
        self, breakdown: Breakdown, able: tuple[str, ...], priced: Peaks = NO_PEAKS
    ) -> tuple[str, ...]:
        """Return which of the frameworks that can run a plan hold it, each with its own habits.

        `priced` holds its peak memory under some stacks.
        """
        problem = self._problem
        usable, peaks = problem.pool.usable_bytes, {**priced, problem.stack: breakdown.peak_bytes}
        stacks = {name: self.as_framework(name).stack for name in able}
        for name, stack in stacks.items():
            if stack not in peaks:
                own = self.as_framework(name)
                peaks[stack] = peak_bytes(join_one(own, breakdown.layout)).item()
        return tuple(name for name, stack in stacks.items() if peaks[stack] <= usable)

    def make(
        self,
        breakdown: Breakdown,
        rank: PlanRank,
        able: tuple[str, ...],
        peaks: Peaks = NO_PEAKS,
    ) -> Plan:
        """Return one plan with its rates, its interval and its warnings.

        `able` are the frameworks that can run it, `peaks` its peak memory under some stacks.
        """
        problem, layout, n = self._problem, breakdown.layout, breakdown.layout.n_devices
        job = problem.job
        kind = regime_kind_of(problem, layout, breakdown.time_s, breakdown.step_s)
        regime = regime_name(self._evidence, kind, problem)
        low, high = interval_of(regime, self._calibration)
        fitting = self.fitting(breakdown, able, peaks)
        rate, useful = job.tokens_per_step / breakdown.step_s, useful_frac(job, layout)
        if n not in self._goodput:
            self._goodput[n] = goodput(problem, self._operations, n)
        return Plan(
            rank=rank.rank,
            plan_id=self._ids.of(layout_to_json(layout)),
            pool=problem.pool.name,
            precision=job.precision,
            layout=layout,
            breakdown=breakdown,
            step_time_s=breakdown.step_s,
            step_time_p10_s=breakdown.step_s * low,
            step_time_p90_s=breakdown.step_s * high,
            interval_regime=regime,
            tokens_per_s=rate,
            tokens_per_s_per_device=rate / n,
            mfu=self._flops / (breakdown.step_s * n * self._peak_flops),
            mfu_bf16=self._flops / (breakdown.step_s * n * self._bf16_flops)
            if self._bf16_flops
            else None,
            usable_bytes=problem.pool.usable_bytes,
            tie=rank.tie,
            training_s=job.tokens / (rate * useful) if job.tokens else None,
            warnings=plan_warnings(problem, breakdown),
            runs_on=fitting,
            first_releases=first_releases(fitting, layout, problem.shape, job),
            too_large_for=tuple(name for name in able if name not in fitting),
            n_idle=self._n_given - n,
            run=run_figures(
                problem, self._operations, n, breakdown.step_s, self._goodput[n], useful
            ),
            group=rank.group,
            numerics=self._numerics,
            n_variants=rank.n_variants,
        )


def make_plan(
    problem: Problem,
    breakdown: Breakdown,
    inputs: tuple[ModelInput, ClusterInput],
    calibration: Calibration,
    rank: PlanRank = PlanRank(),
    framework: str = "",
) -> Plan:
    """Return one plan with its rates, its interval and its warnings.

    `framework` is the one asked for: at the release that its key names, if it names one.
    """
    able = runs_on(
        breakdown.layout,
        problem.shape,
        problem.job,
        framework,
        problem.pool.accelerator.vendor,
    )
    return PlanMaker(problem, *inputs, calibration).make(breakdown, rank, able)


def make_plans(
    searches: Sequence[Searched],
    opened: Sequence[Breakdown],
    ties: Sequence[bool],
    groups: Sequence[int | None],
    calibration: Calibration,
    n_variants: Sequence[int] = (),
) -> tuple[Plan, ...]:
    """Return opened plans in their order; each is of one search, and ties or not."""
    made: dict[int, Plan] = {}
    for rows in _by_search(searches):
        one = searches[rows[0]]
        work = one.context.shared
        maker = PlanMaker(one.problem, one.model, one.cluster, calibration, work)
        layouts = [opened[i].layout for i in rows]
        framework, problem = one.context.options.framework, one.problem
        vendor = problem.pool.accelerator.vendor
        able = runs_on_each(layouts, problem.shape, problem.job, framework, vendor)
        for i, names, peaks in zip(rows, able, maker.peaks(layouts, able), strict=True):
            rank = PlanRank(i + 1, ties[i], groups[i], n_variants[i] if n_variants else 1)
            made[i] = maker.make(opened[i], rank, names, peaks)
    return tuple(made[i] for i in range(len(searches)))


def under_framework(
    problem: Problem, layout: Layout, framework: str, calibration: Calibration
) -> Breakdown | None:
    """Return the plan priced as `framework` runs it; None when it does not fit its memory."""
    breakdown = break_down(as_framework(problem, framework, calibration), layout)
    return breakdown if breakdown.peak_bytes <= problem.pool.usable_bytes else None


def plan_of_layout(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, layout: Layout, rank: int = 1
) -> tuple[Problem, Plan]:
    """Price a layout again on the first pool: how `show`, `explain` and `emit` reopen a plan."""
    problem = make_problem(model, cluster, options, layout.n_devices)
    breakdown, calibration = break_down(problem, layout), options.calibration
    inputs, place = (model, cluster), PlanRank(rank)
    plan = make_plan(problem, breakdown, inputs, calibration, place, options.framework)
    return problem, plan
