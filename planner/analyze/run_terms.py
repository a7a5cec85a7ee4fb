"""Figures of a whole run, opened as the terms of a step are: goodput, energy, cost."""

from collections.abc import Callable

from costmodels.problem import Problem
from planner.analyze.terms import Numbers
from planner.solver.answer.result import Plan
from planner.units import format_size


def _with_run(numbers: Callable[[Problem, Plan], Numbers]) -> Callable[[Problem, Plan], Numbers]:
    def checked(problem: Problem, plan: Plan) -> Numbers:
        return numbers(problem, plan) if plan.run else [("run", "not known")]

    return checked


def _goodput(problem: Problem, plan: Plan) -> Numbers:
    assert plan.run is not None  # `_with_run`
    g, run = plan.run.goodput, plan.run
    rows = [
        ("n (devices in use)", f"{plan.layout.n_devices:,}"),
        ("M (between failures of the job)", f"{g.mtbf_s / 3600:.2f} h"),
        ("checkpoint", format_size(g.checkpoint_bytes)),
        ("delta (a checkpoint stops training)", f"{g.checkpoint_s:.1f} s"),
        ("R (from a failure to the next step)", f"{g.restart_s:.0f} s"),
        ("tau (between checkpoints)", f"{g.interval_s / 60:.1f} min"),
        ("share of the time that trains", f"{g.goodput_frac:.4f}"),
    ]
    if run.expected_s is not None and plan.training_s is not None:
        days = f"{plan.training_s / 86400:.1f} / {run.expected_s / 86400:.1f} days"
        rows.append(("run without / with failures", days))
    return rows


def _energy(problem: Problem, plan: Plan) -> Numbers:
    run, part = plan.run, problem.pool.accelerator
    assert run is not None  # `_with_run`
    if run.power_w is None or run.energy_j_per_token is None:
        return [("power limit", f"not published for {part.name}")]
    each = run.power_w / plan.layout.n_devices
    rows = [
        ("power limit of a device", f"{part.drawn_w:.0f} W"),
        ("P (at the meter, overhead and PUE on top)", f"{each:.0f} W"),
        ("n P", f"{run.power_w / 1e6:.3f} MW"),
        ("a token", f"{run.energy_j_per_token:.3f} J"),
    ]
    if run.energy_j is not None:
        rows.append(("the run, failures included", f"{run.energy_j / 3.6e9:,.1f} MWh"))
    return rows


def _cost(problem: Problem, plan: Plan) -> Numbers:
    run = plan.run
    assert run is not None  # `_with_run`
    if run.usd_per_million_tokens is None:
        return [("price", "none: add `price_per_hour` to the pool")]
    rows = [
        ("n (devices in use)", f"{plan.layout.n_devices:,}"),
        ("a million tokens", f"{run.usd_per_million_tokens:.4f} US dollars"),
    ]
    if run.cost_usd is not None:
        rows.append(("the run, failures included", f"{run.cost_usd:,.0f} US dollars"))
    return rows


RUN_NUMBERS: dict[str, Callable[[Problem, Plan], Numbers]] = {
    "goodput": _with_run(_goodput),
    "energy": _with_run(_energy),
    "cost": _with_run(_cost),
}
"""By figure of a run that `explain --term` opens."""
