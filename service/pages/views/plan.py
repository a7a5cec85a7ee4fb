"""One plan, opened: /ui/plan, and its trace file at /ui/plan/trace."""

import json
import shlex
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from service.handlers import schemas
from service.handlers.calls import CALLS, ServiceCall
from service.handlers.joined_calls import open_joined_of
from service.handlers.plan_calls import OpenedPlan, open_request_plan
from service.handlers.problems import Fault, Refusal, refused
from service.handlers.running_call import RunningCall
from service.pages.answer.joined_plan import joined_plan_page, joined_trace_file
from service.pages.figures import chart_data
from service.pages.question import TOP
from service.pages.render import render_page
from service.pages.visit import Page, Visit

Data = dict[str, Any]


class PlanPage(BaseModel):
    """What the page of a plan shows."""

    model_config = ConfigDict(extra="allow")

    title: str
    body: str
    """HTML of the inside of the element `main`, without figures."""
    figures: dict[str, Any]
    """Figures by key, as Plotly takes them."""
    runner: str
    """The framework that the launch script is for; empty where none runs the plan."""


class TraceBody(schemas.PlanOf):
    """The trace of a step of one plan."""


class TraceFile(BaseModel):
    """A trace file."""

    name: str
    text: str


class PlanPageBody(schemas.PlanOf):
    """The view of one plan."""

    trace_link: str = ""
    """Where its trace file is."""
    figure_link: str = ""
    """Where its figures are, but for their key."""
    solve_command: str = ""
    """What asks the question on a command line; empty where it holds whole documents."""


_ANSWERS: dict[str, Data] = {}
MOST_ANSWERS = 2


def _opened(request: schemas.PlanOf, running: RunningCall) -> tuple[OpenedPlan, Data | None]:
    """Return the plan of a request, and the answer that it is of, None where it was evaluated.

    The last questions of this worker are not searched again: whoever looks into one plan of an
    answer looks into others, and asks for its trace.
    """
    if request.solve is None:
        return open_request_plan(request, running), None
    data = _answered(request.solve, running)
    request_plan = open_request_plan(schemas.PlanOf(result=data, plan=request.plan), running)
    return replace(request_plan, stopped=data["stopped"]), data


def _answered(question: schemas.SolveBody, running: RunningCall) -> Data:
    """Return the answer of a question, remembered where it is one of the last."""
    key = question.model_dump_json()
    data = _ANSWERS.get(key)
    if data is None:
        data = CALLS["solve"].function(question, running)
        if data["complete"]:
            _ANSWERS[key] = data
            while len(_ANSWERS) > MOST_ANSWERS:
                _ANSWERS.pop(next(iter(_ANSWERS)))
    return data


def _opened_joined(request: schemas.PlanOf, running: RunningCall) -> tuple[Any, Data] | None:
    """Return the plan over several pools of a request, and its answer; None for another."""
    if request.solve is None:
        return None
    data = _answered(request.solve, running)
    opened = open_joined_of(data, str(request.plan), "the result")
    return (opened, data) if opened else None


def plan_card(data: Data | None, rank: int) -> str:
    """Return the card of a plan of an answer as HTML, without commands; empty without one."""
    from planner.render.card.answer import card_of
    from planner.render.card.html import card_html
    from planner.solver.answer.result import Result

    if data is None:
        return ""
    return card_html(replace(card_of(Result.from_json(data), rank), commands=()), is_styled=False)


def plan_runner(data: Data | None, plan: Any) -> str:
    """Return the framework or tool that the launch script is for; empty where none runs it."""
    from planner.render.card.answer import runner_of
    from planner.solver.answer.result import Result

    if not plan.runs_on or data is None:
        return str(next(iter(plan.runs_on), ""))
    return runner_of(Result.from_json(data), plan)


def _plan_page(request: PlanPageBody, running: RunningCall) -> Data:
    """Return title and body of the page; all of it is computed and written here, in a worker."""
    from planner.render.plan_view.data import ViewOptions, plan_view
    from planner.render.plan_view.page import PageParts, plan_body

    if joined := _opened_joined(request, running):
        page = joined_plan_page(*joined, request.trace_link)
        stopped = joined[1]["stopped"]
        return {**page, **({"complete": False, "stopped": stopped} if stopped else {})}
    opened, data = _opened(request, running)
    framework = opened.options.framework
    model, cluster, problem, plan = opened.opened
    view = plan_view(
        model,
        cluster,
        problem,
        plan,
        ViewOptions(
            calibration=opened.options.calibration,
            framework="any" if framework == "default" else framework,
            solve_command=request.solve_command,
        ),
    )
    title = f"{view.words}: {view.model} on {view.cluster}"
    lead = plan_card(data, plan.rank)
    body = plan_body(view, PageParts(request.trace_link, request.figure_link, lead))
    return opened.with_state(
        {
            "title": title,
            "body": body,
            "figures": {each.chart.key: chart_data(each.chart)["figure"] for each in view.figures},
            "runner": plan_runner(data, plan),
            "plan_id": view.plan_id,
        }
    )


def _trace(request: TraceBody, running: RunningCall) -> Data:
    from planner.render.plan_view.data import trace_file

    if joined := _opened_joined(request, running):
        return joined_trace_file(joined[0])
    opened, _ = _opened(request, running)
    _, _, problem, plan = opened.opened
    return {"name": f"{plan.plan_id}-step.json", "text": trace_file(problem, plan)}


def named_plan(visit: Visit) -> Data | None:
    """Return the plan that an address names, as a request; None where it asks nothing."""
    question = visit.question()
    if question is None:
        return None
    which = visit.get("plan") or "1"
    if len(which) > 40 or not which.isascii() or not which.isalnum():
        detail = f"plan: {which[:40]!r} is no rank and no plan id"
        raise refused("malformed", detail, 422, [Fault(detail, "such as plan=1", "plan")])
    return {"solve": question, "plan": which}


def question_command(question: Data) -> str:
    """Return the command that asks a question; empty where it holds more than names.

    >>> question_command({"model": "llama3-8b", "cluster": "h100-x8", "pins": {"tp": 2}})
    'planner solve llama3-8b h100-x8 --pin tp=2 --top 64'
    """
    model, cluster = question["model"], question["cluster"]
    named = isinstance(model, str) and isinstance(cluster, str)
    if not named or "calibration" in question or "reference" in question:
        return ""
    arguments = ["planner", "solve", model, cluster]
    pairs = (("pins", "--pin"), ("max", "--max"), ("set", "--set"))
    for field, option in pairs:
        for name, value in question.get(field, {}).items():
            arguments += [option, f"{name}={_word(value)}"]
    for axis, values in question.get("only", {}).items():
        arguments += ["--only", f"{axis}={','.join(map(_word, values))}"]
    for value in question.get("allow", ()):
        arguments += ["--allow", value]
    names = (
        "framework",
        "stack",
        "objective",
        "deadline",
        "budget",
        "pool",
        "pools",
        "step_limit_s",
    )
    for field in (*names, "within", "memory_margin"):
        if question.get(field) not in (None, "") and (question[field] or field == "memory_margin"):
            arguments += [f"--{field.removesuffix('_s').replace('_', '-')}", str(question[field])]
    if question.get("pareto"):
        arguments += ["--pareto", ",".join(question["pareto"])]
    # Always: a page lists more plans than the command, and the other commands name one of them.
    arguments += ["--top", str(question.get("top", TOP))]
    return shlex.join(arguments)


def _word(value: object) -> str:
    """Return a value as the command line takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


async def plan(visit: Visit) -> str:
    """Show the plan that the address names; without a question, how to come to one."""
    named = named_plan(visit)
    if named is None:
        return render_page(visit, "plan_none.html.j2")
    result = await visit.ask_patiently("page-plan", page_request(visit, named))
    query = {key: values for key, values in visit.query.items() if key != "figure"}
    return render_page(visit, "plan.html.j2", found=result, query=query)


def page_request(visit: Visit, named: Data) -> Data:
    """Return the request for the page of a plan: the same for the page and for its figures."""
    query = {key: values for key, values in visit.query.items() if key not in ("figure", "try")}
    return {
        **named,
        "trace_link": visit.url("/ui/plan/trace", query),
        "figure_link": visit.url("/ui/plan/figure", query) + "&figure=",
        "solve_command": question_command(named["solve"]),
    }


async def plan_figure(visit: Visit) -> Page:
    """Send one figure of the page of a plan; `Refusal` 404 where the page has none of this key."""
    named = named_plan(visit)
    if named is None:
        raise refused("malformed", "the address names no plan: model, cluster and plan", 422)
    result = await visit.ask_patiently("page-plan", page_request(visit, named))
    figure = result["figures"].get(visit.get("figure"))
    if figure is None:
        detail = f"figure: {visit.get('figure')[:40]!r} is none of {', '.join(result['figures'])}"
        raise refused("unknown-path", detail, 404)
    return Page(json.dumps(figure), media="application/json")


async def trace_download(visit: Visit) -> Page:
    """Send the trace file of the plan that the address names.

    The browser stays on the page of the plan and waits, unless the question is one for a job.
    """
    named = named_plan(visit)
    if named is None:
        raise refused("malformed", "the address names no plan: model, cluster and plan", 422)
    try:
        result = await visit.ask("page-plan-trace", named)
    except Refusal as problem:
        if problem.code != "needs-job":
            raise
        result = await visit.ask_patiently("page-plan-trace", named)
    headers = {"content-disposition": f'attachment; filename="{result["name"]}"'}
    return Page(result["text"], media="application/json", headers=headers)


PAGES = {
    "/ui/plan": plan,
    "/ui/plan/figure": plan_figure,
    "/ui/plan/trace": trace_download,
}
PAGE_CALLS: dict[str, ServiceCall] = {
    call.name: call
    for call in (
        ServiceCall(
            "page-plan",
            PlanPageBody,
            PlanPage,
            "solve",
            "small",
            _plan_page,
            "Show one plan, every number opened",
        ),
        ServiceCall(
            "page-plan-trace",
            TraceBody,
            TraceFile,
            "solve",
            "small",
            _trace,
            "Write one step of a plan as a trace",
        ),
    )
}
