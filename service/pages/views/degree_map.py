"""The map of tensor by pipeline degree: the best plan of each pair, or why there is none."""

import asyncio
from typing import TYPE_CHECKING, Any

from service.handlers import answers, schemas
from service.handlers.calls import PAGE_PREFIX, ServiceCall
from service.handlers.request_contents import contents_of, search_of
from service.handlers.running_call import RunningCall, stop_of
from service.pages.answer.quantities import s_or_ms
from service.pages.question import question_query, title_of
from service.pages.render import render_page
from service.pages.visit import Data, Visit

if TYPE_CHECKING:
    from planner.analyze.degree_map import DegreeCell

KIND_WORDS = {"memory": "no memory", "rule": "not legal", "stopped": "not searched"}
"""What stands in a cell without a plan; the sentence stands below the map."""
MAP_CALL = f"{PAGE_PREFIX}degree-map"
SHADE_LEAST, SHADE_MOST = 10, 60
"""Per cent of the colour in the slowest and in the fastest cell: text stays readable on both."""
SLOWEST = 2.0
"""Times the fastest from which a cell has the faintest shade."""


class MapBody(schemas.SolveBody):
    """A solve, of which every pair of degrees is searched."""


class MapAnswer(answers.AnswerBody):
    """The map as data."""

    tps: list[int]
    pps: list[int]
    n_devices: int
    """Devices of the largest pool."""
    devices: str
    """What they are called."""
    cells: list[dict[str, Any]]


def _degree_map(request: MapBody, running: RunningCall) -> Data:
    from hardware.nouns import common_noun
    from planner.analyze.degree_map import degree_map, searched_inputs
    from planner.solver.execution import Execution, named_executor

    settings = running.settings
    inputs = searched_inputs(*contents_of(request, settings), search_of(request, settings))
    executor = named_executor(running.executor, running.ray_address)
    execution = Execution(executor, stop_of(running), None, running.shared)
    cells = degree_map(*inputs, execution, told(running))
    pools = inputs[1].cluster.pools
    fastest_s = min((c.plan.step_time_s for c in cells if c.plan), default=0.0)
    return {
        "complete": all(cell.kind != "stopped" for cell in cells),
        "tps": sorted({cell.tp for cell in cells}),
        "pps": sorted({cell.pp for cell in cells}),
        "n_devices": max(pool.n_devices for pool in pools),
        "devices": common_noun(pool.accelerator.noun for pool in pools).many,
        "cells": [cell_data(cell, fastest_s) for cell in cells],
    }


def told(running: RunningCall) -> Any:
    """Return what tells how many pairs are done."""

    def tell(done: int, total: int) -> None:
        if running.progress:
            best = {"best_step_time_s": None}
            running.progress({"phase": "pairs", "done": done, "total": total, **best})

    return tell


def cell_data(cell: "DegreeCell", fastest_s: float) -> Data:
    """Return a cell as the page shows it: text, shade in per cent, reason."""
    data = {"tp": cell.tp, "pp": cell.pp, "kind": cell.kind, "reason": cell.reason}
    if cell.plan is None:
        return {**data, "text": "", "shade": 0, "step_time_s": None}
    step_s = cell.plan.step_time_s
    return {
        **data,
        "text": s_or_ms(step_s),
        "shade": shade(step_s / fastest_s),
        "step_time_s": step_s,
    }


def shade(ratio: float) -> int:
    """Return the per cent of colour for a step time over the fastest.

    >>> shade(1.0), shade(1.5), shade(3.0)
    (60, 35, 10)
    """
    part = max(0.0, 1.0 - (ratio - 1.0) / (SLOWEST - 1.0))
    return round(SHADE_LEAST + part * (SHADE_MOST - SHADE_LEAST))


PAGE_CALLS = {
    MAP_CALL: ServiceCall(
        MAP_CALL,
        MapBody,
        MapAnswer,
        "solve",
        "small",
        _degree_map,
        "The best plan at every pair of tensor and pipeline degree",
        indent=None,
    ),
}


async def map_page(visit: Visit) -> str:
    """Show the map of a question; without one, say how to ask."""
    request = visit.question()
    if request is None:
        what = "the best plan of every pair of TP and PP"
        return render_page(visit, "unasked.html.j2", title="TP x PP map", what=what)
    request.pop("top", None)
    answer = await visit.ask_patiently(MAP_CALL, request)
    return await asyncio.to_thread(_page, visit, request, answer)


def _page(visit: Visit, request: Data, answer: Data) -> str:
    cells = {(cell["tp"], cell["pp"]): cell for cell in answer["cells"]}
    for cell in answer["cells"]:
        pins = {**request.get("pins", {}), "tp": cell["tp"], "pp": cell["pp"]}
        cell["href"] = visit.url("/ui/plans", question_query({**request, "pins": pins}))
    return render_page(
        visit,
        "degree_map.html.j2",
        found=answer,
        cells=cells,
        most=answer["n_devices"],
        words=KIND_WORDS,
        name=title_of(request),
        query=question_query(request),
    )


PAGES = {"/ui/plans/map": map_page}
