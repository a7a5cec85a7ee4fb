"""The view of plans: a table to sort and filter, the scatter of step time against memory."""

import asyncio
from typing import Any

from service.handlers import answers, schemas
from service.handlers.calls import PAGE_PREFIX, ServiceCall
from service.handlers.plan_calls import solved_result
from service.handlers.running_call import RunningCall
from service.pages.answer.columns import keys_shown
from service.pages.answer.listing import listing
from service.pages.answer.nothing_fits import asked_by
from service.pages.question import MOST_TOP, TOP, question_query, title_of
from service.pages.render import render_page
from service.pages.rows import rows_shown
from service.pages.visit import Data, Page, Visit

PLANS_CALL = f"{PAGE_PREFIX}plans"
MOST_JSON = 200
"""Plans up to which the whole answer of solve is offered: what `solve` lists at most."""
TOPS = (TOP, 200, 1_000, MOST_TOP)


class PlansBody(schemas.SolveBody):
    """A solve, of which a page shows a row a plan."""


class PlansAnswer(answers.AnswerBody):
    """The page of a result as data."""

    complete: bool
    request: dict[str, Any]
    """What was asked."""
    listing: dict[str, Any]
    csv: str
    """As `planner solve --format csv`."""


def _plans(request: PlansBody, running: RunningCall) -> Data:
    from planner.render.answers.plan_table import plans_csv

    result = solved_result(request, running)
    joined = result.together is not None and result.together.plans
    requested = request.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {
        "complete": result.complete,
        "request": requested,
        "listing": listing(result),
        "csv": plans_csv(result) if result.plans or joined else "",
    }


PAGE_CALLS = {
    PLANS_CALL: ServiceCall(
        PLANS_CALL,
        PlansBody,
        PlansAnswer,
        "solve",
        "small",
        _plans,
        "Plans as a page shows them",
        indent=None,
    ),
}


async def plans(visit: Visit) -> str:
    """Show the plans of a question; without one, say how to ask."""
    request = visit.question()
    if request is None:
        return render_page(
            visit, "unasked.html.j2", title="Plans", what="the plans of a question, ranked"
        )
    answer = await visit.ask_patiently(PLANS_CALL, request)
    return await asyncio.to_thread(_page, visit, request, answer)


def _page(visit: Visit, request: Data, answer: Data) -> str:
    result = answer["listing"]
    query = question_query(request)
    nothing = result["nothing"]
    for each in (nothing or {}).get("relaxations", ()):
        requested = asked_by(each["command"], request)
        each["href"] = visit.url("/ui/plans", question_query(requested)) if requested else ""
    names = {name: values[-1] for name, values in visit.query.items()}
    n_plans = len(result["rows"])
    return render_page(
        visit,
        "plans.html.j2",
        found=result,
        nothing=nothing,
        request=request,
        name=title_of(request),
        options=option_words(request),
        query=query,
        shown=keys_shown(result["columns"], visit.query.get("col", ())),
        table=rows_shown(result["columns"], result["rows"], names),
        tops=TOPS,
        top=request["top"],
        has_json=request["top"] <= MOST_JSON,
        n_plans=n_plans,
        n_more=max(0, n_plans),
    )


async def plans_csv_file(visit: Visit) -> Page:
    """Return the plans as CSV, in base units."""
    request = _asked(visit)
    answer = await visit.ask_patiently(PLANS_CALL, request)
    return Page(answer["csv"], 200, "text/csv; charset=utf-8", _attached("plans.csv"))


async def plans_json(visit: Visit) -> Page:
    """Return the answer of `solve`, the same bytes as the command line's."""
    answer = await visit.engine.call("solve", _asked(visit), visit.caller)
    return Page(answer.payload, 200, "application/json", _attached("plans.json"))


def _asked(visit: Visit) -> Data:
    from service.handlers.problems import refused

    request = visit.question()
    if request is None:
        raise refused("malformed", "the address asks nothing: ?model=NAME&cluster=NAME", 400)
    return request


def _attached(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


def option_words(request: Data) -> list[str]:
    """Return what a question asks besides its files, as the command line writes it."""
    phrases = []
    for field, sign in (("pins", "="), ("max", " ≤ "), ("set", " = ")):
        phrases += [f"{key}{sign}{value}" for key, value in request.get(field, {}).items()]
    phrases += [
        f"{axis} in {', '.join(map(str, values))}"
        for axis, values in request.get("only", {}).items()
    ]
    names = ("framework", "stack", "objective", "within", "deadline", "budget", "step_limit_s")
    for name in (*names, "pool", "pools"):
        if request.get(name):
            phrases.append(f"{name.replace('_s', '').replace('_', ' ')}: {request[name]}")
    if request.get("memory_margin") is not None:
        phrases.append(f"memory margin: {request['memory_margin']:g}")
    if request.get("pareto"):
        phrases.append(f"front of {', '.join(request['pareto'])}")
    return phrases


PAGES = {"/ui/plans": plans, "/ui/plans.csv": plans_csv_file, "/ui/plans.json": plans_json}
