"""The report as one HTML file: no network, no script but Plotly's and one small own one.

The policy in the head of the page lets the browser run these two scripts, known by their hashes,
and load nothing at all: a hostile name could not do anything even if it were not escaped. Figures
are JSON in the page; every table is plain HTML. The same input gives the same bytes.
"""

import base64
import csv
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from planner.render.charts.chart import Chart
from planner.render.charts.failure import STATUS_WORDS, reasons
from planner.render.report.answers import AnswerTable, SweepFindings, layout_text, sweep_answer
from planner.render.report.effects import effects
from planner.render.report.points import PointAxis, SweepPoints, shortened_name
from planner.render.report.quantities import short_number
from planner.render.report.sweep_charts import Section, after_lead, lead_chart, sections
from planner.render.report.sweep_lead import sweep_lead
from planner.render.report.theme import themes

MAX_TABLE_ROWS = 200
"""Rows of a table on the page; the file behind its link has all."""
MAX_DOWNLOAD_BYTES = 4_000_000
"""Of the file of all points: above this it holds the main columns only."""
MAIN_COLUMNS = (
    "index",
    "point_id",
    "status",
    "reason",
    "model",
    "cluster",
    "accelerator",
    "n_devices",
    "best.devices",
    "best.layout",
    "best.step_time_s",
    "best.tokens_per_s",
    "best.mfu",
    "best.peak_bytes",
    "best.binding",
    "best.run_s",
    "best.cost_usd",
    "best.energy_j",
)


@dataclass(frozen=True)
class ShownTable:
    """A table as the page shows it."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    n_rows: int
    href: str
    file_name: str


def sweep_page(
    points: SweepPoints, source: str, x: PointAxis | None = None, y: PointAxis | None = None
) -> str:
    """Return the report of a sweep as HTML; `source` is the name of its file."""
    result = effects(points)
    name = shortened_name(points.header.get("name") or "")
    if name in ("", "sweep"):
        name = f"of {shortened_name(source)}"
    message = sweep_answer(points, result)
    lead = sweep_lead(points, x, y)
    chart = lead_chart(lead)
    parts = after_lead(sections(points, result, x, y), chart)
    return points_page(
        f"Sweep {name}", points, message, parts, source, lead=(lead.sentences, chart)
    )


def points_page(
    title: str,
    points: SweepPoints,
    findings: SweepFindings,
    parts: Sequence[Section],
    source: str,
    *,
    lead: tuple[Sequence[str], Chart | None] = ((), None),
) -> str:
    """Return the page of points: an answer in words, sections of charts, all points.

    `lead` is what it begins with: sentences, and a chart.
    """
    shown = [
        {"section": section, "charts": [shown_chart(chart) for chart in section.charts]}
        for section in parts
    ]
    sentences, first_chart = lead
    why = reasons(points) if not points.solved.all() and points.n else None
    points_file, left_out = points_csv(points)
    return render(
        title=title,
        findings=findings,
        lead=sentences,
        lead_chart=shown_chart(first_chart) if first_chart else None,
        sections=shown,
        source=shortened_name(source),
        best=shown_table(findings.best, "best"),
        worth=shown_table(findings.worth_table, "worth") if findings.worth_table.rows else None,
        reasons=shown_table(why, "reasons") if why else None,
        points=shown_table(points_table(points), "points", points_file),
        columns_left_out=left_out,
        facts=facts(points),
        n_points=points.n,
    )


def shown_chart(chart: Chart) -> dict[str, Any]:
    """Return a chart as the template shows it."""
    return {
        "chart": chart,
        "json": figure_json(chart),
        "table": shown_table(chart.table, chart.key),
    }


def render(**values: Any) -> str:
    """Return the page of a title and its parts."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("planner.render.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    plotly, own = plotly_script(), own_resource("report.js")
    return environment.get_template("report.html.j2").render(
        **values,
        plotly_js=Markup(plotly),
        own_js=Markup(own),
        style=Markup(own_resource("report.css")),
        themes=Markup(_json(themes())),
        script_hashes=" ".join(f"'sha256-{script_hash(script)}'" for script in (plotly, own)),
    )


def plotly_script() -> str:
    """Return plotly.js out of Plotly's own package, as it goes into a script element."""
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text.replace("\r\n", "\n").replace("</script", "<\\/script")


def own_resource(name: str) -> str:
    """Return the text of a style or script of the reports."""
    from importlib.resources import files

    return (files("planner.render.report") / "templates" / name).read_text(encoding="utf-8")


def script_hash(text: str) -> str:
    """Return what a content security policy knows a script by, without `sha256-`."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def figure_json(chart: Chart) -> Any:
    """Return the figure as JSON that can stand inside a script element."""
    from markupsafe import Markup

    data = chart.figure.to_plotly_json()
    data["layout"].pop("template", None)
    return Markup(_json(data))


def _json(data: Any) -> str:
    """Return JSON without the characters that end a script element or a line of script."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def shown_table(table: AnswerTable, key: str, text: str | None = None) -> ShownTable:
    """Return a table with its cells as text, and a link to it as CSV (or to `text`)."""
    rows = table.rows[:MAX_TABLE_ROWS]
    numeric = tuple(
        any(isinstance(row[place], int | float) for row in table.rows)
        for place in range(len(table.heads))
    )
    cells = tuple(tuple(_cell(cell) for cell in row) for row in rows)
    data = csv_text(table) if text is None else text
    href = "data:text/csv;charset=utf-8," + quote(data, safe=",:;/()=+*!$@|~-_.")
    return ShownTable(table.heads, cells, numeric, len(table.rows), href, f"{key}.csv")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return short_number(value, 5).replace("-", "−") if math.isfinite(value) else "-"
    return str(value)


def csv_text(table: AnswerTable) -> str:
    """Return a table as CSV, numbers as they are."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_csv_cell(head) for head in table.heads])
    writer.writerows([[_csv_cell(cell) for cell in row] for row in table.rows])
    return out.getvalue()


def _csv_cell(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") and len(value) > 1:
        return f"'{value}"
    return "" if value is None else value


def points_csv(points: SweepPoints) -> tuple[str, int]:
    """Return all rows as CSV, and how many columns that hold something were too much for it."""
    names = [n for n, column in points.columns.items() if any(v is not None for v in column)]

    def text(chosen: list[str]) -> str:
        columns = [points.columns[name] for name in chosen]
        return csv_text(
            AnswerTable(tuple(chosen), tuple(zip(*columns, strict=True)) if columns else ())
        )

    total = text(names)
    if len(total) <= MAX_DOWNLOAD_BYTES:
        return total, 0
    main = [name for name in names if name in MAIN_COLUMNS or name.startswith("in.")]
    return text(main), len(names) - len(main)


def points_table(points: SweepPoints) -> AnswerTable:
    """Return all points, the fastest first and those without a plan last, as people read them."""
    time, cost, energy = points.time, points.cost, points.energy
    order = sorted(
        range(points.n),
        key=lambda row: (
            not math.isfinite(time.values[row]),
            _or_zero(float(time.values[row])),
            row,
        ),
    )
    per_device, mfu = points.numbers("best.tokens_per_s_per_device"), points.numbers("best.mfu")
    peak = points.scale("bytes", "best.peak_bytes")
    memory, usable = points.numbers("best.peak_bytes"), points.numbers("best.usable_bytes")
    measures = [time, *(m for m in (cost, energy) if m is not None)]
    binding = points.texts("best.binding")
    plan_ids, statuses = points.texts("best.plan_id"), points.statuses
    accelerators = points.texts("accelerator")
    heads = (
        "Point",
        *(axis.label for axis in points.axes),
        "Status",
        "Devices",
        "Accelerator",
        *(measure.label for measure in measures),
        "Tokens/s/device",
        "MFU (%)",
        f"Memory ({peak.unit})",
        f"Usable ({peak.unit})",
        "Bound by",
        "Layout",
        "Plan",
    )
    rows = []
    for row in order:
        rows.append(
            (
                points.number(row),
                *(_axis_cell(axis, points.values(axis.column)[row]) for axis in points.axes),
                STATUS_WORDS.get(statuses[row], shortened_name(statuses[row])),
                _finite(points.devices[row], 1, 0),
                shortened_name(accelerators[row]) or None,
                *(_finite(m.values[row], m.scale.factor) for m in measures),
                _finite(per_device[row], 1, 1),
                _finite(mfu[row], 0.01, 2),
                _finite(memory[row], peak.factor, 2),
                _finite(usable[row], peak.factor, 2),
                binding[row].replace("_", " ") or None,
                layout_text(points, row) if points.solved[row] else None,
                plan_ids[row] or None,
            )
        )
    return AnswerTable(heads, tuple(rows))


def _axis_cell(axis: PointAxis, value: Any) -> str | float | None:
    if axis.numeric and isinstance(value, int | float):
        return axis.scale.shown(float(value))
    return None if value is None else shortened_name(value)


def _or_zero(value: float) -> float:
    return float(value) if math.isfinite(value) else 0.0


def _finite(value: float, factor: float, digits: int | None = None) -> float | int | None:
    if not math.isfinite(value):
        return None
    shown = float(value) / factor
    if digits == 0:
        return int(shown)
    return shown if digits is None else round(shown, digits)


def facts(points: SweepPoints) -> tuple[tuple[str, str], ...]:
    """Return what the answer rests on: versions, calibration, ids, inputs and options."""
    results: list[tuple[str, str]] = []
    calibrations = dict.fromkeys(text for text in points.texts("calibration") if text)
    if calibrations:
        results.append(("calibration of the points", ", ".join(map(shortened_name, calibrations))))
    skip = {"axes", "columns", "inputs", "n_rows", "n_points", "name", "design"}
    for key, value in points.header.items():
        if key not in skip and value not in (None, "", [], {}):
            results.append((shortened_name(key).replace("_", " "), _fact(value)))
    return tuple(results)


def _fact(value: object) -> str:
    """Return a value of the header as text: lists and mappings in full, empty ones left out."""
    if isinstance(value, Mapping):
        parts = [
            f"{shortened_name(key)}: {{{_fact(item)}}}"
            if isinstance(item, Mapping | list | tuple)
            else f"{shortened_name(key)} {_fact(item)}"
            for key, item in value.items()
            if item not in (None, "", [], {}, ())
        ]
        return shortened_name(", ".join(parts), 3000)
    if isinstance(value, list | tuple):
        return shortened_name(", ".join(_fact(item) for item in value), 3000)
    return shortened_name(value, 300)
