"""An answer as text for a terminal, and as Markdown."""

import textwrap
from typing import Any

from planner.learn.results import Calculator, CalculatorResult
from planner.render.report.answers import AnswerTable

WIDTH = 100


def calculator_list(calculators: dict[str, Calculator[Any]]) -> str:
    """Return all calculators, a line each."""
    width = max(len(name) for name in calculators)
    lines = [
        line
        for one in calculators.values()
        for line in _wrapped(f"{one.name:<{width}}  {one.question}", width + 2)
    ]
    lines += ["", "planner learn NAME shows one; --set input=value changes an input."]
    return "\n".join(lines) + "\n"


def result_text(one: Calculator[Any], texts: dict[str, str]) -> str:
    """Return an answer as lines of at most 100 columns."""
    result, outcome = one.answer(texts), one.read(texts)
    lines = [*_wrapped(f"{one.title}: {one.question}", 0), "", "inputs"]
    width = max(len(name) for name in one.specs)
    for name, spec in one.specs.items():
        value = f"{spec.text(outcome.resolved[name])} {spec.unit}".rstrip()
        own = "" if texts.get(name) else f", {spec.follows}" if spec.follow else ""
        note = f" ({spec.note})" if spec.note else ""
        lines += _wrapped(f"  {name:<{width}}  {value}  {spec.label}{note}{own}", width + 4)
    lines += ["", *_wrapped(result.headline, 0), ""]
    titles = max(len(number.title) for number in result.numbers)
    titles = min(titles, 48)
    for number in result.numbers:
        mark = f"  [{number.mark}]" if number.mark else ""
        lines += _wrapped(f"{number.title:<{titles}}  {number.text}{mark}", titles + 2)
        lines += _wrapped(f"    {number.formula} {_joined(number.put)}", 6)
        lines += _wrapped(f"    source: {number.source}", 6)
        if number.note:
            lines += _wrapped(f"    {number.note}", 6)
    for named in result.tables:
        lines += ["", named.title, *_columns(named.table)]
    if result.advice:
        lines += ["", "advice", *(line for x in result.advice for line in _wrapped(f"  - {x}", 4))]
    if result.differences:
        lines += ["", "where common formulas differ, and why"]
        for each in result.differences:
            theirs, ours = each.texts
            lines += _wrapped(f"  - {each.claim} ({each.where})", 4)
            verdict = f"the same here: {ours}" if each.agrees else f"{theirs} there, {ours} here"
            lines += _wrapped(f"    {verdict}. {each.why}", 4)
    lines += ["", "left out", *(line for x in result.left_out for line in _wrapped(f"  - {x}", 4))]
    return "\n".join(lines) + "\n"


def _joined(put: str) -> str:
    return put if put.startswith("=") else f"({put})"


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    ) or [""]


def _columns(table: AnswerTable) -> list[str]:
    """Return a table as columns of text."""
    cells = [tuple(map(str, table.heads)), *(tuple(map(_cell, row)) for row in table.rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(table.heads))]
    if sum(widths) + 2 * len(widths) > WIDTH:  # too wide: a block for each row
        lines = []
        for row in cells[1:]:
            lines.append(f"  {row[0]}")
            pairs = [f"{head}: {cell}" for head, cell in zip(cells[0][1:], row[1:], strict=True)]
            lines += _wrapped(f"    {'; '.join(pairs)}", 4)
        return lines
    return [
        (
            "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def as_markdown(one: Calculator[Any], texts: dict[str, str]) -> str:
    """Return an answer as Markdown."""
    result, outcome = one.answer(texts), one.read(texts)
    rows = [
        (spec.label, f"{spec.text(outcome.resolved[name])} {spec.unit}".strip(), f"`{name}`")
        for name, spec in one.specs.items()
    ]
    lines = [f"# {one.title}", "", one.question, "", f"**{result.headline}**", "", "## Inputs", ""]
    lines += _table(AnswerTable(("Input", "Value", "Name"), tuple(rows)))
    lines += ["", "## Numbers", ""]
    lines += _table(
        AnswerTable(
            ("Number", "Value", "Formula", "With the numbers put in", "Source"),
            tuple(
                (
                    x.title + (f" ({x.mark})" if x.mark else ""),
                    x.text,
                    f"`{x.formula}`",
                    f"`{x.substituted}`",
                    x.source + (f". {x.note}" if x.note else ""),
                )
                for x in result.numbers
            ),
        )
    )
    for named in result.tables:
        lines += ["", f"## {named.title}", "", *_table(named.table)]
    if result.advice:
        lines += ["", "## Advice", "", *(f"- {x}" for x in result.advice)]
    if result.differences:
        lines += ["", "## Where common formulas differ, and why", "", *_differences(result)]
    lines += ["", "## Left out", "", *(f"- {x}" for x in result.left_out)]
    return "\n".join(lines) + "\n"


def _differences(result: CalculatorResult) -> list[str]:
    rows = tuple((x.claim, x.where, *x.texts, x.why) for x in result.differences)
    return _table(AnswerTable(("Seen", "Where", "There", "Here", "Why"), rows))


def _table(table: AnswerTable) -> list[str]:
    def line(cells: Any) -> str:
        return "| " + " | ".join(_cell(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(table.heads), line("---" for _ in table.heads), *map(line, table.rows)]
