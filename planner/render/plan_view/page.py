"""The plan view as HTML: the inside of a page, and one file that needs no network.

The file holds Plotly and two small scripts, known to its policy by their hashes, and loads
nothing. Numbers open without any script.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from planner.render.charts.chart import Chart
from planner.render.html import coded
from planner.render.palette import legend_style
from planner.render.plan_view.cards import Part, Words
from planner.render.plan_view.data import PlanView
from planner.render.report.page import (
    csv_text,
    figure_json,
    own_resource,
    plotly_script,
    script_hash,
)
from planner.render.report.theme import themes

MAX_TRACE_CHARS = 1_500_000
"""Of a trace that the HTML file holds; larger ones `planner trace` writes."""
_LEAD, _TAIL = re.compile(r"\S*$"), re.compile(r"^\S*")
"""What stands before and after a number without a blank."""


@dataclass(frozen=True, slots=True)
class PageParts:
    """What a page around the view brings along."""

    trace_link: str = ""
    """Where the trace file is."""
    figure_link: str = ""
    """Where figures are fetched, but for their key; empty where they stand in the page."""
    lead: str = ""
    """HTML in place of the headline numbers, such as the card of the answer."""


def plan_body(view: PlanView, parts: PageParts = PageParts()) -> str:
    """Return the inside of the element `main` for a plan."""
    template = _environment().get_template("plan_body.html.j2")
    text: str = template.render(
        view=view,
        trace_link=parts.trace_link,
        figure_link=parts.figure_link,
        lead=parts.lead,
        figure_json=figure_json,
        csv_link=_csv_link,
        text_link=_text_link,
    )
    return text


def plan_html(view: PlanView, trace: str = "") -> str:
    """Return the view as one HTML file; `trace` is its trace file, left out where it is large."""
    import json

    from markupsafe import Markup

    link = _text_link(trace, "application/json") if 0 < len(trace) <= MAX_TRACE_CHARS else ""
    scripts = (plotly_script(), own_resource("report.js"), view_resource("plan.js"))
    text: str = (
        _environment()
        .get_template("plan_file.html.j2")
        .render(
            view=view,
            body=Markup(plan_body(view, PageParts(trace_link=link))),
            style=Markup(own_resource("report.css") + legend_style() + view_resource("plan.css")),
            themes=Markup(json.dumps(themes(), sort_keys=True)),
            plotly_js=Markup(scripts[0]),
            figures_js=Markup(scripts[1]),
            own_js=Markup(scripts[2]),
            script_hashes=" ".join(f"'sha256-{script_hash(each)}'" for each in scripts),
        )
    )
    return text


def view_resource(name: str) -> str:
    """Return the text of a style or script of the plan view."""
    return (files("planner.render.plan_view") / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Any:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("planner.render.plan_view"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["coded"] = lambda text: Markup(coded(text))
    environment.globals["unparted"] = unparted
    return environment


def unparted(sentence: Words, end: str = "") -> list[tuple[str, Part | None, str]]:
    """Return a sentence as texts, and as numbers with what no line may part from them.

    A text is `(text, None, "")`, a number `(before, number, after)`. Browsers break lines on both
    sides of a button, before a full stop, too. `end` is what the sentence ends with.

    >>> unparted(("in all (", Label("7 s"), "), or so"), ".")
    [('in all ', None, ''), ('(', Label(text='7 s'), '),'), (' or so.', None, '')]
    """
    texts: list[str] = [""]
    numbers: list[Part] = []
    for item in (*sentence, end):
        if isinstance(item, str):
            texts[-1] += item
        else:
            numbers.append(item)
            texts.append("")
    results: list[tuple[str, Part | None, str]] = []
    rest = texts[0]
    for number, after in zip(numbers, texts[1:], strict=True):
        text, lead = _parted(rest, _LEAD)
        tail, rest = _parted(after, _TAIL)
        results += [(text, None, ""), (lead, number, tail)]
    return [each for each in (*results, (rest, None, "")) if each != ("", None, "")]


def _parted(text: str, pattern: re.Pattern[str]) -> tuple[str, str]:
    """Return a text in two parts, cut where a pattern is found; it may be empty."""
    match = pattern.search(text)
    assert match is not None
    place = match.start() if pattern is _LEAD else match.end()
    return text[:place], text[place:]


def _csv_link(chart: Chart) -> str:
    return _text_link(csv_text(chart.table), "text/csv")


def _text_link(text: str, media: str = "text/plain") -> str:
    """Return a text as an address that browsers download."""
    return f"data:{media};charset=utf-8," + quote(text, safe=",:;/()=+*!$@|~-_.")
