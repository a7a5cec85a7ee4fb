"""The answer of a search as text: the card, the ranked plans, what to type next, then details."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.documents import Blank
from planner.render.answers.plan import evaluated_document
from planner.render.answers.plan_table import columns_of, plan_grid, plans_markdown
from planner.render.answers.result import (
    cause_parts,
    detail_parts,
    heading_parts,
    help_parts,
    infeasible_parts,
    mark_parts,
    relaxation_part,
    stopped_parts,
)
from planner.render.answers.together import together_document
from planner.render.card.answer import card_of, is_search
from planner.render.card.markdown import card_markdown
from planner.render.card.text import card_lines, next_lines
from planner.render.markdown import markdown
from planner.render.style import Style
from planner.render.terminal import lines_of
from planner.render.text_plots import front_lines, map_lines
from planner.solver.answer.result import Result
from planner.text_lines import WIDTH, command_lines


@dataclass(frozen=True, slots=True)
class TextView:
    """How an answer is printed."""

    width: int = WIDTH
    """Columns of the window."""
    style: Style = field(default_factory=lambda: Style(is_on=False))
    is_verbose: bool = False
    """With counts, rejections and what marks and columns mean."""
    columns: tuple[str, ...] = ()
    """Columns of the table by name; none: those that fit."""
    source: str = "last"
    """The name by which commands find the result."""


def answer_text(result: Result, view: TextView) -> str:
    """Return the answer of `solve` or `evaluate` as text, commands apart within the width."""
    card = card_of(result, source=view.source)
    lines = [*_together_lines(result, view)]
    lines += card_lines(card, view.width, view.style, is_whole=view.is_verbose)
    if not result.plans:
        lines += ["", *_help_lines(result, view)]
        if view.is_verbose:
            parts = [*heading_parts(result), Blank(), *cause_parts(result)]
            lines += ["", *lines_of(parts, view.width)]
        return _joined(lines)
    following = ["", *next_lines(card.commands[1:], view.width, view.style)]
    if not is_search(result):
        details = lines_of(evaluated_document(result), view.width) if view.is_verbose else []
        return _joined([*lines, *([""] if details else []), *details, *following])
    lines += ["", *_table_lines(result, view)]
    plots = front_lines(result, view.width, view.style)
    lines += [*([""] if plots else []), *plots, *following]
    if view.is_verbose:
        heat_map = map_lines(result, view.width, view.style)
        lines += [*([""] if heat_map else []), *heat_map]
        lines += ["", *lines_of(detail_parts(result), view.width)]
    return _joined(lines)


def _together_lines(result: Result, view: TextView) -> list[str]:
    """Return what one job over several pools reaches, above the plans that use one pool."""
    if result.together is None:
        return []
    lead, *lines = lines_of(together_document(result.together), view.width)
    return [view.style.bold(lead), *lines, "", ALONE, ""]


ALONE = "On one pool alone:"
"""Above the plans that use one pool, where others use several."""


def result_markdown(result: Result, columns: Sequence[str] = ()) -> str:
    """Return the answer as Markdown: the card, and the ranked plans where there are any.

    `columns` of the table by name; none: the usual ones.
    """
    card = card_markdown(card_of(result))
    if result.together is not None:
        card = f"{markdown(together_document(result.together))}\n{ALONE}\n\n{card}"
    if not result.plans:
        return card + "\n" + markdown(infeasible_parts(result))
    return card + "\n" + plans_markdown(result, columns)


def _table_lines(result: Result, view: TextView) -> list[str]:
    columns = columns_of(result, view.width, view.columns)
    head, unit, *rows = lines_of([plan_grid(result.plans, columns)], view.width)
    marks = lines_of([*mark_parts(result), *stopped_parts(result)], view.width)
    return [view.style.dim(head), view.style.dim(unit), *rows, *marks]


def _help_lines(result: Result, view: TextView) -> list[str]:
    """Return what would help where nothing fits, each change with its command."""
    lines = lines_of(help_parts(result), view.width)
    for relaxation in result.relaxations:
        lines += lines_of([relaxation_part(relaxation)], view.width)
        shown = command_lines(relaxation.command, view.width, 4)
        lines += [view.style.bold(line) for line in shown]
    return lines


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(line.rstrip() for line in lines) + "\n"
