"""Learn: the calculators of `planner.learn` as forms; results follow the inputs.

An address holds the inputs that differ from the defaults: `/ui/learn/pipeline?stages=8`. With
`part=1` the answer is the form and the results alone, which the script of the page swaps in.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from service.handlers import answers, schemas
from service.handlers.calls import PAGE_PREFIX, ServiceCall
from service.handlers.problems import Refusal, refused
from service.handlers.running_call import RunningCall
from service.pages.figures import chart_data
from service.pages.render import page_environment, render_page
from service.pages.static import file
from service.pages.visit import Data, Page, Visit

if TYPE_CHECKING:
    from planner.learn.results import Calculator, CalculatorResult

_NUMBER = re.compile(r"[\d.,]+(?:e[+-]?\d+)? \S{1,10}(?: \S{1,10})?")


def _is_quantity(cell: Any) -> bool:
    return isinstance(cell, str) and _NUMBER.fullmatch(cell) is not None


LEARN_CALL = f"{PAGE_PREFIX}learn"
MOST_INPUTS, MOST_CHARACTERS = 64, 200
PART = "part"
"""Parameter of an address that asks for the parts that change alone."""


class LearnBody(schemas.Request):
    """A calculator and its inputs, as they stand in the address."""

    name: str
    inputs: dict[str, str]


class LearnAnswer(answers.AnswerBody):
    """Fields, results and figures as data."""

    name: str
    title: str
    groups: list[dict[str, Any]]
    others: list[dict[str, str]]
    result: dict[str, Any] | None
    figures: list[dict[str, Any]]
    presets: list[dict[str, Any]]


def _learn(request: LearnBody, running: RunningCall) -> Data:
    """Return what a page of a calculator shows; wrong inputs are part of it."""
    from planner.learn import calculators

    one = calculators().get(request.name)
    if one is None:
        detail = f"no calculator is called {request.name[:60]!r}"
        raise Refusal(404, "unknown-path", "there is no such page", detail)
    arguments = {key: value for key, value in request.inputs.items() if value != ""}
    outcome = one.read(arguments)
    groups: dict[str, list[Data]] = {}
    for name, spec in one.specs.items():
        groups.setdefault(spec.group, []).append(
            form_field(
                name,
                spec,
                arguments.get(name, ""),
                outcome.resolved,
                outcome.problems.get(name, ""),
            )
        )
    others = [
        {"name": name, "problem": text}
        for name, text in outcome.problems.items()
        if name not in one.specs
    ]
    result, figures = None, []
    if outcome.values is not None:
        answer = one.compute(outcome.values)
        result = result_data(one, answer)
        figures = [
            {**chart_data(chart), "key": f"figure-{chart.key}"}  # no id of a field
            for chart in one.charts(outcome.values)
        ]
    return {
        "name": one.name,
        "title": one.title,
        "question": one.question,
        "groups": [{"title": title, "fields": each} for title, each in groups.items()],
        "others": others,
        "result": result,
        "figures": figures,
        "presets": [{"title": x.title, "values": x.values} for x in one.presets],
    }


def form_field(name: str, spec: Any, text: str, resolved: Mapping[str, Any], problem: str) -> Data:
    """Return one field of a form: what it shows, its slider, what is wrong with it."""
    from planner.learn.fields import shortened_title

    value = resolved.get(name)
    standard = spec.text(spec.default) if spec.default is not None else ""
    steps = spec.steps()
    current = "" if value is None or spec.kind == "choice" else spec.text(value)
    shown = shortened_title(text) if problem else (current if text else standard)
    return {
        "name": name,
        "label": spec.label,
        "kind": spec.kind,
        "unit": spec.unit,
        "note": spec.note,
        "value": shown if spec.kind != "choice" else str(value or text),
        "placeholder": current if spec.follow else "",
        "follows": spec.follows,
        "problem": problem,
        "standard": standard,
        "steps": steps,
        "place": nearest(steps, current) if current else 0,
        "choices": [{"value": x, "title": title} for x, title in spec.choices],
    }


def nearest(steps: list[str], current: str) -> int:
    """Return the place of a slider that is nearest to a value."""
    value = float(current)
    return min(range(len(steps)), key=lambda place: abs(float(steps[place]) - value))


def result_data(one: "Calculator[Any]", answer: "CalculatorResult") -> Data:
    """Return an answer as the template takes it."""
    return {
        "headline": answer.headline,
        "numbers": [
            {
                "key": x.key,
                "title": x.title,
                "text": x.text,
                "formula": x.formula,
                "put": x.put,
                "source": x.source,
                "note": x.note,
                "mark": x.mark,
            }
            for x in answer.numbers
        ],
        "advice": list(answer.advice),
        "tables": [
            {
                "title": x.title,
                "heads": list(x.table.heads),
                "rows": [[unbroken(cell) for cell in row] for row in x.table.rows],
            }
            for x in answer.tables
        ],
        "differences": [
            {
                "key": x.key,
                "claim": x.claim,
                "where": x.where,
                "printed": x.texts[0],
                "ours": x.texts[1],
                "agrees": x.agrees,
                "why": x.why,
            }
            for x in answer.differences
        ],
        "left_out": list(answer.left_out),
    }


def unbroken(cell: Any) -> Any:
    """Return a cell whose number does not part from its unit at the end of a line."""
    return cell.replace(" ", "\N{NO-BREAK SPACE}") if _is_quantity(cell) else cell


PAGE_CALLS = {
    LEARN_CALL: ServiceCall(
        LEARN_CALL,
        LearnBody,
        LearnAnswer,
        "read",
        "small",
        _learn,
        "A calculator as a page shows it",
        indent=None,
    ),
}


async def index(visit: Visit) -> str:
    """List the calculators."""
    return await asyncio.to_thread(_index, visit)


def _index(visit: Visit) -> str:
    from planner.learn import calculators

    cards = [
        {"title": one.title, "question": one.question, "href": visit.url(f"/ui/learn/{one.name}")}
        for one in calculators().values()
    ]
    return render_page(visit, "learn.html.j2", cards=cards)


async def calculator(visit: Visit) -> Page | str:
    """Show one calculator with the inputs of the address."""
    inputs = given_inputs(visit)
    name = visit.parts["name"]
    answer = await visit.ask(LEARN_CALL, {"name": name, "inputs": inputs})
    return await asyncio.to_thread(_calculator, visit, answer)


def given_inputs(visit: Visit) -> dict[str, str]:
    """Return the inputs of an address, the last where one stands several times."""
    entries = {key: values[-1] for key, values in visit.query.items() if key != PART}
    if len(entries) > MOST_INPUTS:
        raise refused("malformed", f"the address has more than {MOST_INPUTS} inputs", 400)
    # Longer texts are wrong whatever they hold; their beginning is enough to say so.
    return {key[:MOST_CHARACTERS]: value[:MOST_CHARACTERS] for key, value in entries.items()}


def _calculator(visit: Visit, answer: Data) -> Page | str:
    from planner.learn import calculators

    for preset in answer["presets"]:
        preset["href"] = visit.url(visit.path, preset["values"])
    others = [
        {
            "title": one.title,
            "href": visit.url(f"/ui/learn/{one.name}"),
            "current": one.name == answer["name"],
        }
        for one in calculators().values()
    ]
    if visit.get(PART):
        template = page_environment().get_template("learn_parts.html.j2")
        return Page(
            template.render(
                visit=visit,
                url=visit.url,
                found=answer,
                others=others,
                static=lambda name: f"{visit.root}/ui/static/{file(name).name}",
            )
        )
    return render_page(visit, "learn_calculator.html.j2", found=answer, others=others)


PAGES = {"/ui/learn": index, "/ui/learn/{name}": calculator}
