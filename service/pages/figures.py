"""Figures of pages as plain data: made in a worker, drawn by the browser."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart

MAX_TABLE_ROWS = 200


def chart_data(chart: "Chart") -> dict[str, Any]:
    """Return a chart as JSON data for the macro `figure` of macros.html.j2."""
    figure = chart.figure.to_plotly_json()
    figure["layout"].pop("template", None)
    return {
        "key": chart.key,
        "title": chart.title,
        "says": chart.says,
        "notes": list(chart.notes),
        "height": chart.figure.layout.height or 420,
        "figure": figure,
        "table": {
            "heads": list(chart.table.heads),
            "rows": [list(row) for row in chart.table.rows[:MAX_TABLE_ROWS]],
            "n_rows": len(chart.table.rows),
        },
    }
