"""Answers in notebooks: the card with its styles inside, tables below; figures and data frames."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from planner.documents import LibraryAnswer
from planner.errors import UsageError
from planner.render.answer_text import result_markdown
from planner.render.answers.plan_table import columns_of, plan_grid
from planner.render.answers.result import detail_parts, infeasible_parts, mark_parts
from planner.render.card.answer import card_of, card_of_plan, is_search
from planner.render.card.card import Bar
from planner.render.card.figures import memory_bar, step_bar
from planner.render.card.html import card_html
from planner.render.card.joined import joined_card, together_html
from planner.render.card.markdown import card_markdown
from planner.render.colours import LEGEND
from planner.render.document import answer_document
from planner.render.html import html
from planner.render.markdown import markdown
from planner.render.nouns import noun_of
from planner.solver.answer.result import Plan, Result
from planner.solver.together.records import JoinedPlan
from planner.units import GIB


def answer_html(answer: LibraryAnswer) -> str:
    """Return an answer as HTML for a notebook: cards where it holds plans, then its tables."""
    if isinstance(answer, Result):
        return together_html(answer) + card_html(card_of(answer)) + _result_html(answer)
    if isinstance(answer, JoinedPlan):
        return card_html(joined_card(answer)) + html(answer_document(answer))
    cards = "".join(card_html(card_of_plan(plan)) for plan in plans_of(answer))
    return cards + html(answer_document(answer))


def _result_html(result: Result) -> str:
    if not result.plans:
        return html(infeasible_parts(result))
    if not is_search(result):
        return ""
    grid = plan_grid(result.plans, columns_of(result))
    details = html(detail_parts(result))
    table = html([grid, *mark_parts(result)])
    return f"{table}<details><summary>Search</summary>\n{details}</details>\n"


def answer_markdown(answer: LibraryAnswer) -> str:
    """Return an answer as Markdown: cards where it holds plans, then its tables."""
    if isinstance(answer, Result):
        is_whole = is_search(answer) or not answer.plans
        return result_markdown(answer) if is_whole else card_markdown(card_of(answer))
    if isinstance(answer, JoinedPlan):
        return f"{card_markdown(joined_card(answer))}\n{markdown(answer_document(answer))}"
    cards = "".join(f"{card_markdown(card_of_plan(plan))}\n" for plan in plans_of(answer))
    return cards + markdown(answer_document(answer))


def plans_of(answer: LibraryAnswer) -> tuple[Plan, ...]:
    """Return the plans whose cards an answer shows: its own, or both of a comparison."""
    if isinstance(answer, Plan):
        return (answer,)
    return tuple(answer.plans) if type(answer).__name__ == "Comparison" else ()  # type: ignore[attr-defined]


def data_frame(result: Result) -> Any:
    """Return the plans as a pandas DataFrame, a row each in base units, by rank.

    `UsageError` where pandas is not installed.
    """
    pandas = _package("pandas")
    rows = [plan.row_json() for plan in result.plans]
    return pandas.DataFrame([_flat(row) for row in rows])


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without nested values: the layout is in it field by field, terms are named."""
    flat = {key: value for key, value in row.items() if not isinstance(value, dict)}
    return flat | {f"time.{term}": value for term, value in row["time"].items()}


def step_figure(plan: Plan) -> Any:
    """Return the step of a plan as a stacked bar of Plotly, seconds."""
    return _bar_figure(step_bar(plan), 1.0, "s")


def memory_figure(plan: Plan) -> Any:
    """Return the memory of the fullest device of a plan as a stacked bar of Plotly, GiB."""
    return _bar_figure(memory_bar(plan), GIB, "GiB")


def plans_figure(result: Result) -> Any:
    """Return the plans of an answer as points of Plotly: step time over memory."""
    graph = _package("plotly.graph_objects")
    points = graph.Scatter(
        x=[plan.breakdown.peak_bytes / GIB for plan in result.plans],
        y=[plan.step_time_s for plan in result.plans],
        mode="markers+text",
        text=[str(plan.rank) for plan in result.plans],
        textposition="top center",
        marker={"color": _colours(result.plans), "size": 10},
    )
    memory = f"memory of the fullest {noun_of(result).one} (GiB)"
    axes = {"xaxis_title": memory, "yaxis_title": "step (s)"}
    return graph.Figure(points, {"title": {"text": "Plans by rank"}, **_axes(axes)})


def _axes(titles: Mapping[str, str]) -> dict[str, Any]:
    return {name.removesuffix("_title"): {"title": {"text": x}} for name, x in titles.items()}


def _colours(plans: Sequence[Plan]) -> list[str]:
    """Return the colour of each plan: good for the recommended one."""
    return [LEGEND["good" if plan.rank == 1 else "compute"].light for plan in plans]


def _bar_figure(bar: Bar, scale: float, unit: str) -> Any:
    graph = _package("plotly.graph_objects")
    bars = [
        graph.Bar(
            x=[segment.amount / scale],
            y=[bar.title],
            orientation="h",
            name=segment.label,
            marker={"color": LEGEND[segment.key].light},
        )
        for segment in bar.segments
    ]
    layout = {"barmode": "stack", "title": {"text": f"{bar.title} {bar.text}"}}
    return graph.Figure(bars, {**layout, **_axes({"xaxis_title": unit})})


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise UsageError(
            f"this needs {package}, which is not installed", "install the extra [notebook]"
        ) from None
