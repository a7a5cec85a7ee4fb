"""What other numbers of a job would bring: the first plan priced with each of them, no search.

Numbers change what is computed, so no search opens them by itself. Their worth is shown beside the
answer: a step in fp8, gradients or moments in bf16.
"""

from collections.abc import Iterator
from dataclasses import replace

from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.shapes import TrainingJob
from planner.frameworks.emit import runs_on
from planner.solver.answer.result import Alternative
from planner.solver.options import SolveOptions
from planner.solver.recipes import job_with, numerics_of
from planner.solver.unsupported import is_modelled
from planner.specs.search.axis_values import NUMERICS, PRECISION
from searches.pricing.layout_prices import exact_prices

FASTER_PRODUCTS = ("fp8-tensorwise", "fp8-blockwise", "fp8-mxfp8", "nvfp4")
"""Recipes that are offered where the accelerator has them and the job's own multiplies slower."""
SCHEDULE = "schedule"
"""What an axis of the layout changes, as an alternative says it."""
LEAST_GAIN_FRAC = 0.01
"""Share of the step, or of the peak memory, that is worth a line."""


def numeric_alternatives(
    problem: Problem, layout: Layout, options: SolveOptions
) -> tuple[Alternative, ...]:
    """Return what each other value of one axis of `NUMERICS` brings to a plan, the fastest first.

    Only axes that the options leave alone, values that this version models on the accelerator,
    that a framework of the request can run, and that save step time or memory. The layout stays; a
    search of its own may do better, and has to where the plan does not fit with it.
    """
    now_s, now_bytes = exact_prices(problem, layout)
    alternatives = []
    for axis, word, job in _other_jobs(problem, options):
        other = replace(problem, job=job)
        if not is_modelled(other) or not _runs(layout, other, options.framework):
            continue
        step_s, peak = exact_prices(other, layout)
        fits = peak <= problem.pool.usable_bytes
        saves = step_s < now_s * (1 - LEAST_GAIN_FRAC) or peak < now_bytes * (1 - LEAST_GAIN_FRAC)
        if saves and step_s <= now_s * (1 + LEAST_GAIN_FRAC):
            alternatives.append(
                Alternative(axis, word, step_s, peak, f"{axis}={word}", bool(fits))
            )
    return tuple(sorted(alternatives, key=lambda x: (x.step_time_s, x.peak_bytes, x.pin)))


def closed_alternatives(
    problem: Problem, layout: Layout, options: SolveOptions
) -> tuple[Alternative, ...]:
    """Return what axes that no search opens by itself bring to a plan, the fastest first.

    Only those that save step time, that the options leave alone, and that a framework of the
    request can run. The layout stays otherwise.
    """
    now_s, _ = exact_prices(problem, layout)
    named = options.restricted()
    alternatives = []
    for axis, word, other in _opened(layout):
        if axis in named or not _runs(other, problem, options.framework):
            continue
        step_s, peak = exact_prices(problem, other)
        if step_s < now_s * (1 - LEAST_GAIN_FRAC):
            fits = bool(peak <= problem.pool.usable_bytes)
            pin = f"{axis}={word}"
            alternatives.append(Alternative(axis, word, step_s, peak, pin, fits, SCHEDULE))
    return tuple(sorted(alternatives, key=lambda x: (x.step_time_s, x.peak_bytes, x.pin)))


def _opened(layout: Layout) -> Iterator[tuple[str, str, Layout]]:
    """Yield each closed axis that may make a plan faster, its value, and the layout with it."""
    if layout.tp > 1 and layout.sp and not layout.tp_overlap:
        yield "tp_overlap", "on", replace(layout, tp_overlap=True)


def _other_jobs(problem: Problem, options: SolveOptions) -> Iterator[tuple[str, str, TrainingJob]]:
    """Yield every other value of one axis, and the job with it."""
    job, peaks = problem.job, problem.pool.accelerator.peak_flops_per_s
    named, now = options.restricted(), numerics_of(job)
    present = peaks.get(job.recipe.linear, 0.0)
    for axis, words in NUMERICS.items():
        for word in FASTER_PRODUCTS if axis == PRECISION else words[1:]:
            if axis in named or word == now[axis]:
                continue
            other = job_with(job, {axis: word})
            if axis != PRECISION or peaks.get(other.recipe.linear, 0.0) > present:
                yield axis, word, other


def _runs(layout: Layout, problem: Problem, framework: str) -> bool:
    """Tell whether the framework, or any where none is named, runs a plan."""
    names = runs_on(layout, problem.shape, problem.job, vendor=problem.pool.accelerator.vendor)
    return bool(names) if framework in ("default", "any") else framework in names
