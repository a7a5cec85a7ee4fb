"""Times and memory of single layouts, outside of a search."""

from costmodels.breakdown import exact_step_times
from costmodels.layers.layer_grid import LayerGrid, known_layers
from costmodels.plans import Layout, PlanTable
from costmodels.problem import Problem
from costmodels.shape_terms import shape_terms
from costmodels.step import join, peak_bytes, score
from searches.pricing.candidates import Candidate
from searches.pricing.shared_work import SharedWork, rates_key, shared_each


def exact_step_s(
    problem: Problem,
    layouts: list[Layout],
    grid: LayerGrid | None = None,
    work: SharedWork | None = None,
) -> list[float]:
    """Return the step time of each layout with the pipeline simulated, seconds.

    The closed form's pipeline part is exchanged for the recurrence; all other terms are the same.
    `grid` holds layer terms, if they are known; `work` what other searches know.
    """
    return shared_each(
        work,
        lambda: ("exact", rates_key(problem)),
        layouts,
        lambda some: _exact_step_s(problem, some, grid),
    )


def _exact_step_s(problem: Problem, layouts: list[Layout], grid: LayerGrid | None) -> list[float]:
    if not layouts:
        return []
    table = PlanTable.from_layouts(layouts)
    terms = shape_terms(problem, table.shapes, table.shardings)
    return exact_step_times(join(problem, terms, table, known_layers(grid, table)), layouts)


def exact_prices(problem: Problem, layout: Layout) -> tuple[float, float]:
    """Return the step time of a layout with the pipeline simulated, and its peak, bytes."""
    table = PlanTable.from_layouts([layout])
    rows = join(problem, shape_terms(problem, table.shapes, table.shardings), table)
    return exact_step_times(rows, [layout])[0], float(peak_bytes(rows)[0])


def price_layouts(
    problem: Problem,
    layouts: list[Layout],
    grid: LayerGrid | None = None,
    work: SharedWork | None = None,
) -> list[Candidate]:
    """Return layouts with their closed form and memory; the recurrence is not run.

    `grid` holds layer terms, if they are known; `work` what other searches know.
    """
    prices = shared_each(
        work,
        lambda: ("closed form", rates_key(problem)),
        layouts,
        lambda some: _price_layouts(problem, some, grid),
    )
    return [Candidate(x, *price) for x, price in zip(layouts, prices, strict=True)]


def _price_layouts(
    problem: Problem, layouts: list[Layout], grid: LayerGrid | None
) -> list[tuple[float, float]]:
    if not layouts:
        return []
    table = PlanTable.from_layouts(layouts)
    terms = shape_terms(problem, table.shapes, table.shardings)
    scores = score(problem, terms, table, known_layers(grid, table))
    return list(zip(scores.step_s.tolist(), scores.peak_bytes.tolist(), strict=True))


def peaks_of_layouts(
    problem: Problem, layouts: list[Layout], work: SharedWork | None = None
) -> list[float]:
    """Return the peak memory of each layout, bytes; `work` is what other searches know."""
    return shared_each(
        work,
        lambda: ("peaks", rates_key(problem)),
        layouts,
        lambda some: _peaks_of_layouts(problem, some),
    )


def _peaks_of_layouts(problem: Problem, layouts: list[Layout]) -> list[float]:
    table = PlanTable.from_layouts(layouts)
    rows = join(problem, shape_terms(problem, table.shapes, table.shardings), table)
    results: list[float] = peak_bytes(rows).tolist()
    return results
