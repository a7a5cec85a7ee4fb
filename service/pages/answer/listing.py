"""What the page of plans shows: a row a plan, figures, reasons where none fits.

A pure function of a `planner.solver.answer.result.Result`, called in worker processes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from planner.render.card.answer import accelerator_name, card_of, runner_of
from planner.render.card.html import card_html
from planner.render.nouns import noun_of
from service.pages.answer.columns import list_columns_of, shown_digits
from service.pages.answer.front import front_drawing
from service.pages.answer.funnel import funnel
from service.pages.answer.joined_plan import joined_plan_names
from service.pages.answer.nothing_fits import nothing_fits_view
from service.pages.answer.order import called, order_words
from service.pages.answer.scatter import scatter

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart
    from planner.solver.answer.result import Result

Data = dict[str, Any]


def listing(result: "Result") -> Data:
    """Return the page of a result as plain data, its request and downloads aside."""
    from planner.render.answers.inputs import assumed_parts, note_parts
    from planner.render.answers.result import heading_parts
    from planner.render.card.joined import together_html
    from planner.render.terminal import lines_of

    columns = list_columns_of(result)
    chart = scatter(result) if result.plans else None
    return {
        "together": together_html(result, is_styled=False),
        "joined": joined_plan_names(result),
        "card": answer_card(result),
        "runner": first_runner(result),
        "gpus": asked_gpus_text(result),
        "noun": noun_of(result).one,
        "heading": _unwrapped(lines_of(heading_parts(result))),
        "assumed": _unwrapped(
            lines_of(assumed_parts(result.notes, "a field of the form changes one"))
        ),
        "notes": [
            line.removeprefix("note: ") for line in _unwrapped(lines_of(note_parts(result.notes)))
        ],
        "complete": result.complete,
        "stopped": result.stopped,
        "gap": result.gap,
        "called": called(result).lower(),
        "order": order_words(result),
        "columns": [column.to_json() for column in columns],
        "rows": [
            [shown_digits(column.value(plan), column.digits) for column in columns]
            for plan in result.plans
        ],
        "why_first": list(result.why_first),
        "first_id": result.plans[0].plan_id if result.plans else "",
        "funnel": funnel(result),
        "rejected": rejection_rows(result),
        "nothing": nothing_fits_view(result) if not result.plans else None,
        "front": front_drawing(result) if result.plans else None,
        "figure": _figure(chart) if chart else None,
    }


def first_runner(result: "Result") -> str:
    """Return the framework or tool that the launch script of the first plan is for, or nothing."""
    if not result.plans or not result.plans[0].runs_on:
        return ""
    return runner_of(result, result.plans[0])


def asked_gpus_text(result: "Result") -> str:
    """Return the devices that were asked for, by pool: `64 x h100-sxm-80gb`."""
    return ", or ".join(
        f"{pool['nodes'] * pool['accelerators_per_node']:,} x {accelerator_name(pool)}"
        for pool in result.inputs["cluster"]["pools"]
    )


def answer_card(result: "Result") -> str:
    """Return the card as HTML: its commands are what buttons of the page do."""
    card = card_of(result)
    return card_html(replace(card, commands=()), is_styled=False)


def rejection_rows(result: "Result") -> list[Data]:
    """Return how many candidates each rule excluded, the most first."""
    from planner.render.answers.result import DUPLICATES
    from searches.rules import RULES

    counted = sorted(
        (r for r in result.rejected if r.code not in DUPLICATES), key=lambda r: (-r.n, r.code)
    )
    return [
        {
            "code": r.code,
            "title": RULES[r.code].title,
            "why": RULES[r.code].why,
            "n": r.n,
            "of": r.of,
        }
        for r in counted
    ]


def _figure(chart: "Chart") -> Data:
    from service.pages.figures import chart_data

    return chart_data(chart)


def _unwrapped(lines: Sequence[str]) -> list[str]:
    """Return lines that were broken for a terminal as whole ones: continued ones are indented."""
    results: list[str] = []
    for line in lines:
        if line.startswith("  ") and results:
            results[-1] += f" {line.strip()}"
        else:
            results.append(line.strip())
    return results
