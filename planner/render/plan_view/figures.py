"""A figure of the view: a chart, a caption whose numbers open, the numbers that are drawn."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from planner.render.charts.chart import Chart
from planner.render.charts.plain_figure import PlainFigure
from planner.render.plan_view.cards import CardNumber, Cell, Deck, NumberTable, Words, plain_words
from planner.render.report.answers import AnswerTable

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class ViewFigure:
    """One figure of the view."""

    chart: Chart
    caption: Words
    table: NumberTable
    """The numbers that are drawn, each with its card."""
    buttons: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FigureHeading:
    """What stands above and below a figure."""

    key: str
    title: str
    caption: Words
    notes: tuple[str, ...] = ()


def view_figure(
    deck: Deck,
    heading: FigureHeading,
    drawn: "go.Figure | PlainFigure",
    table: NumberTable,
) -> ViewFigure:
    """Return a figure; the chart's sentence and data are those of the caption and the table."""
    rows = tuple(tuple(_value(deck, cell) for cell in row) for row in table.rows)
    says, answer = plain_words(heading.caption), AnswerTable(table.heads, rows)
    chart = Chart(heading.key, heading.title, says, drawn, answer, heading.notes)
    return ViewFigure(chart, heading.caption, table)


def _value(deck: Deck, cell: Cell) -> str | float | None:
    """Return what a cell holds in the CSV file: numbers in base units."""
    if isinstance(cell, CardNumber):
        return deck.cards[cell.key].value
    return cell if cell is None or isinstance(cell, str) else cell.text
