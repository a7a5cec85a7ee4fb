"""The view of plans side by side: why one beats another, in words, terms and a figure."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from service.handlers import answers, schemas
from service.handlers.calls import PAGE_PREFIX, ServiceCall
from service.handlers.plan_calls import solved_result
from service.handlers.running_call import RunningCall
from service.pages.answer.columns import tie_of
from service.pages.answer.order import best_words
from service.pages.figures import chart_data
from service.pages.question import question_query, title_of
from service.pages.render import render_page
from service.pages.views.plans import option_words
from service.pages.visit import Data, Visit

if TYPE_CHECKING:
    from planner.analyze.comparison import Comparison

COMPARE_CALL = f"{PAGE_PREFIX}compare"
NAMES = "ABCD"
"""Of the plans, in the order in which they were chosen: as many as stand side by side."""


class CompareBody(schemas.SolveBody):
    """A solve, some plans of which are compared."""

    plans: list[str]
    """Ranks or beginnings of plan ids, two to four; the first is what the others stand against."""


class CompareAnswer(answers.AnswerBody):
    """Plans side by side as data."""

    complete: bool
    sides: list[dict[str, Any]]
    against: list[dict[str, Any]]
    """Each of the other plans against the first, in words."""


def _compare(request: CompareBody, running: RunningCall) -> Data:
    from planner.analyze.bottleneck_levers import binding_now
    from planner.analyze.comparison import compare
    from planner.render.answers.bottleneck import bottleneck_headline
    from planner.render.answers.comparison import verdict
    from planner.render.charts.pairs import two_steps_chart
    from planner.solver.answer.result_store import pick_plan, plan_of_result

    result = solved_result(request, running)
    listed = [{"plan_id": plan.plan_id, "rank": plan.rank} for plan in result.plans]
    value = dict.fromkeys(
        pick_plan(listed, which, "this question")["plan_id"] for which in request.plans
    )
    # One plan given twice is compared with itself, as `planner diff` does.
    ids = list(value) if len(value) > 1 else [*value, *value]
    chosen = tuple(plan for plan in result.plans if plan.plan_id in ids)
    data = replace(result, plans=chosen).to_json()
    opened = [plan_of_result(data, plan_id, "this question") for plan_id in ids]
    names = NAMES[: len(opened)]
    results = [compare(opened[0], other) for other in opened[1:]]
    parts = [results[0].to_json()["a"], *(each.to_json()["b"] for each in results)]
    largest = max(plan.tokens_per_s for _, _, _, plan in opened)
    ahead = [plan.tokens_per_s > largest * (1 - 1e-9) for _, _, _, plan in opened]
    sides = [
        part
        | {
            "name": name,
            "rank": plan.rank,
            "tie": tie_of(plan),
            "ahead": is_ahead and not all(ahead),
            "fits": plan.headroom_frac >= 0,
            "p10_s": plan.step_time_p10_s,
            "p90_s": plan.step_time_p90_s,
            "runs_on": list(plan.runs_on),
            "binds": bottleneck_headline(binding_now(problem, plan)),
            "warnings": [{"code": w.code, "text": w.text} for w in plan.warnings],
        }
        for name, part, is_ahead, (_, _, problem, plan) in zip(
            names, parts, ahead, opened, strict=True
        )
    ]
    times = [plan.breakdown.time_s for _, _, _, plan in opened]
    title = "Where the two steps go" if len(opened) == 2 else "Where the steps go"
    return {
        "complete": result.complete,
        "best": best_words(result),
        "sides": sides,
        "against": [
            {
                "name": name,
                "verdict": renamed(verdict(each), name),
                "winner": renamed(each.winner, name),
                "turns": [renamed(text, name) for text in each.turns],
            }
            for name, each in zip(names[1:], results, strict=True)
        ],
        "layout": _layout_rows(results, names),
        "time": _most_different_first(_rows([each.to_json()["time"] for each in results])),
        "memory": _rows([each.to_json()["memory"] for each in results]),
        "traffic": _traffic_rows(results),
        "figure": chart_data(two_steps_chart("terms", title, tuple(names), times)),
    }


def renamed(text: str, name: str) -> str:
    """Return a sentence on A and B with the second plan under its own name.

    >>> renamed("B wins with a global batch of 64: BF16 stays", "C")
    'C wins with a global batch of 64: BF16 stays'
    """
    return re.sub(r"\bB\b", name, text)


def _layout_rows(comparisons: "Sequence[Comparison]", names: str) -> list[Data]:
    """Return the axes in which some plan differs from the first: its values, what that means."""
    rows: dict[str, Data] = {}
    for i, each in enumerate(comparisons, start=1):
        for axis, first, other, meaning in each.layout:
            row = rows.setdefault(
                axis, {"axis": axis, "values": [first] * len(names), "meanings": []}
            )
            row["values"][i] = other
            row["meanings"].append({"name": names[i], "text": meaning})
    return list(rows.values())


def _rows(plans: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, list[float]]:
    """Return the terms with the values of every plan."""
    rows: dict[str, list[float]] = {}
    for i, terms in enumerate(plans, start=1):
        for term, values in terms.items():
            row = rows.setdefault(term, [values["a"]] + [0.0] * len(plans))
            row[i] = values["b"]
    return rows


def _most_different_first(rows: Mapping[str, list[float]]) -> dict[str, list[float]]:
    differences = {term: max(abs(x - row[0]) for x in row) for term, row in rows.items()}
    return {term: rows[term] for term in sorted(rows, key=lambda term: (-differences[term], term))}


def _traffic_rows(comparisons: "Sequence[Comparison]") -> list[Data]:
    """Return by axis what every plan sends, how long that takes and is waited for."""
    axes: dict[str, dict[str, list[float]]] = {}
    for i, each in enumerate(comparisons, start=1):
        for axis, sides in each.to_json()["traffic"].items():
            row = axes.setdefault(
                axis,
                {
                    key: [0.0] * (len(comparisons) + 1)
                    for key in ("sent_bytes", "time_s", "exposed_s")
                },
            )
            for key, values in row.items():
                values[0], values[i] = sides[key]["a"], sides[key]["b"]
    return [{"axis": axis, **row} for axis, row in axes.items()]


PAGE_CALLS = {
    COMPARE_CALL: ServiceCall(
        COMPARE_CALL,
        CompareBody,
        CompareAnswer,
        "solve",
        "small",
        _compare,
        "Plans side by side as a page shows them",
        indent=None,
    ),
}


async def compare_page(visit: Visit) -> str:
    """Show two to four plans of a question; without them, say how to choose."""
    request = visit.question()
    if request is None:
        return render_page(
            visit, "unasked.html.j2", title="Compare", what="plans of a question side by side"
        )
    plans = list(
        dict.fromkeys(plan.strip()[:64] for plan in visit.query.get("plan", ()) if plan.strip())
    )
    if len(visit.query.get("plan", ())) > 1 and len(plans) == 1:
        plans *= 2
    query = question_query(request)
    if len(plans) < 2:
        return render_page(
            visit,
            "compare_choose.html.j2",
            name=title_of(request),
            query=query,
            given=plans[0] if plans else "",
        )
    requested = {**request, "plans": plans[: len(NAMES)]}
    answer = await visit.ask_patiently(COMPARE_CALL, requested)
    return await asyncio.to_thread(_page, visit, request, answer, plans)


def _page(visit: Visit, request: Data, answer: Data, plans: list[str]) -> str:
    query, shown = question_query(request), plans[: len(NAMES)]
    return render_page(
        visit,
        "compare.html.j2",
        found=answer,
        name=title_of(request),
        query=query,
        options=option_words(request),
        sides=answer["sides"],
        more=plans[len(NAMES) :],
        turned=visit.url("/ui/compare", query, plan=[*shown[1:], shown[0]]),
    )


PAGES = {"/ui/compare": compare_page}
