"""What the logs of a trial say: anchored predictions, and the ranking that follows from both."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from costmodels.plans import Layout
from planner.errors import SpecError
from planner.measure.trial.logs import WORDS, Reading
from planner.measure.trial.shortlist import NEAR_FRAC, carried_rank
from planner.solver.answer.plans import plan_of_layout
from planner.solver.answer.result import Plan, Result
from planner.solver.answer.result_parts import calibration_json
from planner.solver.calibration.file import Calibration, rounded
from planner.solver.calibration.reference import DIGITS, Anchored, MeasuredRun, anchored
from planner.solver.execution import Execution
from planner.solver.options import SolveOptions
from planner.solver.solve import solve_inputs
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_from_dict, model_from_dict
from planner.specs.search.axis_values import layout_to_json
from planner.units import GIB
from searches.executors.executor import Executor

UNTIMED_STEPS = 2
"""First steps without a time: DeepSpeed starts its timer after them."""


@dataclass(frozen=True, slots=True)
class Trialled:
    """One plan of the shortlist and what became of its run."""

    plan: Plan
    """As predicted before the trial."""
    model: ModelInput
    """In the recipe of the plan."""
    cluster: ClusterInput
    """The pool of the plan alone."""
    reading: Reading | None
    """None without a log."""
    refused: str = ""
    """Why the log is not used; empty where it is."""

    @property
    def step_s(self) -> float | None:
        """Measured step time; None where the run gives none."""
        return self.reading.step_s if self.reading and not self.refused else None

    @property
    def ran_out(self) -> bool:
        """Whether the run ended out of memory."""
        return bool(self.reading and self.reading.ran_out and not self.refused)


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One plan of the ranking after the trial."""

    plan: Plan
    """As predicted after it."""
    step_s: float
    """Measured where it was, else predicted, with the errors of measured plans like it."""
    measured: bool
    better: float | None
    """Of a plan without a time: probability that it beats the best measured by `NEAR_FRAC`."""
    rank_before: int | None
    """None for a plan that was not in the ranking."""


@dataclass(frozen=True, slots=True)
class Reranked:
    """The answer of `planner trial --read`."""

    trialled: tuple[Trialled, ...]
    anchored: Anchored | None
    """None where no run says anything."""
    rows: tuple[TrialRow, ...]
    out: tuple[Plan, ...]
    """Plans that ran out of memory."""
    first_before: str
    """Id of the plan that was first."""

    def to_json(self) -> dict[str, Any]:
        """Return the answer with the names of docs/trial.md."""
        used = self.anchored.calibration if self.anchored else None
        return {
            "schema_version": "1.0",
            "calibration": calibration_json(used) if used else None,
            "notes": list(self.anchored.notes) if self.anchored else [],
            "logs": [_log_json(one) for one in self.trialled],
            "out_of_memory": [plan.plan_id for plan in self.out],
            "first_before": self.first_before,
            "plans": [
                {
                    "rank": rank,
                    "plan_id": row.plan.plan_id,
                    "rank_before": row.rank_before,
                    "step_time_s": row.step_s,
                    "measured": row.measured,
                    "probability_of_better": None if row.better is None else round(row.better, 4),
                    "predicted_s": row.plan.step_time_s,
                    "layout": layout_to_json(row.plan.layout),
                }
                for rank, row in enumerate(self.rows, start=1)
            ],
        }


def _log_json(one: Trialled) -> dict[str, Any]:
    read = one.reading
    return {
        "plan_id": one.plan.plan_id,
        "used": read is not None and not one.refused,
        "reason": one.refused or None,
        "printed_by": read.printed_by if read else None,
        "steps": len(read.steps_s) if read else 0,
        "warm_up": read.n_warm_up if read else 0,
        "step_time_s": one.step_s,
        "spread": read.spread if read else None,
        "predicted_s": one.plan.step_time_s,
        "out_of_memory": one.ran_out,
        "peak_bytes": dict(read.peaks) if read else {},
        "notes": list(read.notes) if read else [],
    }


def merged(readings: Sequence[Reading], n_steps: int = 0) -> Reading | None:
    """Return one reading of the logs of one run (of its ranks or nodes); None without any.

    The log with the most steps gives the times, memory is the largest of all; settings that only
    another states (the first rank prints the arguments, the last the steps) count too. A run of
    which some log shows all `n_steps` did not run out of memory, whatever an earlier log says.
    """
    if not readings:
        return None
    best = max(readings, key=lambda one: len(one.steps_s))
    # The first steps are not timed by every framework.
    finished = 0 < n_steps <= len(best.steps_s) + UNTIMED_STEPS and not best.ran_out
    peaks: dict[str, float] = {}
    facts: dict[str, int] = {}
    for one in (*readings, best):
        facts |= one.facts
        for kind, value in one.peaks.items():
            peaks[kind] = max(peaks.get(kind, 0.0), value)
    return replace(
        best,
        peaks=peaks,
        facts=facts,
        ranks=frozenset[int]().union(*(one.ranks for one in readings)),
        ran_out=any(one.ran_out for one in readings) and not finished,
    )


def mismatch(reading: Reading, layout: Layout, model: ModelInput) -> str:
    """Return how a log contradicts the plan it is said to be of; empty where it does not."""
    shape, job = model.shape, model.job
    wanted = {
        "gbs": layout.gbs,
        "seq_len": job.seq_len,
        "mbs": layout.mbs,
        "n_micro": layout.n_micro,
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "ep": layout.ep,
        "n_devices": layout.n_devices,
        "layers": shape.layers,
        "hidden": shape.hidden,
    }
    off = [
        f"{WORDS.get(name, name)} {reading.facts[name]}, not {value}"
        for name, value in wanted.items()
        if reading.facts.get(name, value) != value
    ]
    return f"the log is of another run: {', '.join(off)}" if off else ""


def trial_runs_of(trialled: Sequence[Trialled], framework: str, stack: str) -> list[MeasuredRun]:
    """Return the measured runs of a trial, for anchoring and for a reference file."""
    results = []
    for one in trialled:
        if one.reading is None or one.refused or not (one.step_s or one.ran_out):
            continue
        peak = one.reading.peak
        results.append(
            MeasuredRun(
                model=one.model,
                cluster=one.cluster,
                layout=one.plan.layout,
                framework=framework,
                stack=stack,
                # As a reference file holds them, so that one anchors as the trial did.
                step_s=rounded(one.step_s, DIGITS) if one.step_s else None,
                peak_bytes=round(peak[0] / GIB, 3) * GIB if peak and not one.ran_out else None,
                memory=peak[1] if peak else "device",
                ran_out=one.ran_out,
                fullest=_sees_every_stage(one.reading.ranks, one.plan.layout),
                file=f"the log of plan {one.plan.plan_id}",
            )
        )
    return results


def _sees_every_stage(ranks: Collection[int], layout: Layout) -> bool:
    """Tell whether some rank of every pipeline stage is among `ranks`."""
    return len({rank // layout.stage_stride % layout.pp for rank in ranks}) == layout.pp


def without_absurd(
    trialled: Sequence[Trialled], framework: str, stack: str, base: Calibration
) -> list[Trialled]:
    """Return the trial with the logs refused whose step time cannot be of their plan."""
    results = []
    for one in trialled:
        try:
            anchored(base, trial_runs_of([one], framework, stack))
        except SpecError as error:
            problem = error.problems[0]
            one = replace(one, refused=f"{problem.message}; {problem.hint}")
        results.append(one)
    return results


def _rows(
    plans: Sequence[Plan], times: Mapping[str, float], before: Mapping[str, int]
) -> list[TrialRow]:
    """Return a row for every plan, `times` being the measured step times by plan id."""
    measured_s = {i: times[plan.plan_id] for i, plan in enumerate(plans) if plan.plan_id in times}
    more = carried_rank(
        [plan.breakdown.time_s for plan in plans], [plan.layout for plan in plans], measured_s
    )
    best = min(measured_s.values(), default=None)
    rows = []
    for i, plan in enumerate(plans):
        step_s = measured_s.get(i, plan.step_time_s * float(more.factor[i]))
        better = None
        if best is not None and i not in measured_s:
            ahead = math.log(best / (1.0 + NEAR_FRAC) / step_s)
            better = NormalDist().cdf(ahead / max(float(more.spread[i]), 1e-9))
        rows.append(TrialRow(plan, step_s, i in measured_s, better, before.get(plan.plan_id)))
    return rows


def rerank(
    trialled: Sequence[Trialled],
    runs: Sequence[MeasuredRun],
    inputs: Mapping[str, Any],
    options: SolveOptions,
    before: Mapping[str, int],
    executor: Executor,
) -> Reranked:
    """Return the ranking that follows from measured runs.

    `inputs` hold the documents of model and cluster as a result does, `options` are those of the
    ranking before, `before` its ranks by plan id. The space is searched again with the anchored
    calibration. Plans with a step time have that as their value, the others their prediction
    with what measured plans like them were off by (`shortlist.carried_rank`); plans out of
    memory are left out.
    """
    base: Calibration = options.calibration
    outcome = anchored(base, runs) if runs else None
    options = replace(options, own_calibration=outcome.calibration) if outcome else options
    model, cluster = model_from_dict(inputs["model"]), cluster_from_dict(inputs["cluster"])
    result: Result = solve_inputs(model, cluster, options, Execution(executor))
    plans = {plan.plan_id: plan for plan in result.plans}
    times = {one.plan.plan_id: one.step_s for one in trialled if one.step_s}
    gone = {one.plan.plan_id for one in trialled if one.ran_out}
    for one in trialled:
        if one.plan.plan_id in times and one.plan.plan_id not in plans:
            _, plans[one.plan.plan_id] = plan_of_layout(
                one.model, one.cluster, options, one.plan.layout, one.plan.rank
            )
    remaining = [plan for name, plan in plans.items() if name not in gone]
    rows = _rows(remaining, times, before)
    # Within equals the measured first, then the order of the search, which knows ties.
    order = {name: i for i, name in enumerate(plans)}
    rows.sort(key=lambda row: (row.step_s, not row.measured, order[row.plan.plan_id]))
    first = min(before, key=lambda name: before[name], default="")
    return Reranked(
        trialled=tuple(trialled),
        anchored=outcome,
        rows=tuple(rows),
        out=tuple(one.plan for one in trialled if one.ran_out),
        first_before=first,
    )
