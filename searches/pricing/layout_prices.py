"""Times and memory of single layouts, outside of a search."""

from costmodels.breakdown import exact_step_times
from costmodels.layers.layer_grid import LayerGrid, known_layers
from costmodels.plans import Layout, PlanTable
from costmodels.problem import Problem
from costmodels.shape_terms import shape_terms
from costmodels.step import join, peak_bytes, score
from searches.pricing.candidates import Candidate


def exact_step_s(
    problem: Problem, layouts: list[Layout], grid: LayerGrid | None = None
) -> list[float]:
    """Return the step time of each layout with the pipeline simulated, seconds.

    The closed form's pipeline part is exchanged for the recurrence; all other terms are the same.
    `grid` holds layer terms, if they are known.
    """
    if not layouts:
        return []
    table = PlanTable.from_layouts(layouts)
    terms = shape_terms(problem, table.shapes, table.shardings)
    return exact_step_times(join(problem, terms, table, known_layers(grid, table)), layouts)


def price_layouts(
    problem: Problem, layouts: list[Layout], grid: LayerGrid | None = None
) -> list[Candidate]:
    """Return layouts with their closed form and memory; the recurrence is not run.

    `grid` holds layer terms, if they are known.
    """
    if not layouts:
        return []
    table = PlanTable.from_layouts(layouts)
    terms = shape_terms(problem, table.shapes, table.shardings)
    scores = score(problem, terms, table, known_layers(grid, table))
    rows = zip(layouts, scores.step_s.tolist(), scores.peak_bytes.tolist(), strict=True)
    return [Candidate(*row) for row in rows]


def peaks_of_layouts(problem: Problem, layouts: list[Layout]) -> list[float]:
    """Return the peak memory of each layout, bytes."""
    table = PlanTable.from_layouts(layouts)
    rows = join(problem, shape_terms(problem, table.shapes, table.shardings), table)
    results: list[float] = peak_bytes(rows).tolist()
    return results
