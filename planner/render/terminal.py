"""Documents as text of a terminal: lines of at most 100 columns, tables aligned."""

import sys
from collections.abc import Iterable, Sequence

from planner.documents import Blank, Bullets, Code, Grid, Heading, Paragraph, Part
from planner.text_lines import WIDTH, wrapped

MIN_WIDTH = 40
"""Narrower terminals break lines themselves."""


def terminal_width() -> int:
    """Return the columns that text takes: those of a terminal, at most 100; 100 of a file."""
    if not sys.stdout.isatty():
        return WIDTH
    import shutil  # 4 ms, for terminals alone

    return max(MIN_WIDTH, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def terminal_text(parts: Iterable[Part], width: int = WIDTH) -> str:
    """Return the document as text of at most `width` columns, commands and tables apart."""
    return "\n".join(lines_of(parts, width)) + "\n"


def lines_of(parts: Iterable[Part], width: int = WIDTH) -> list[str]:
    """Return the lines of a document."""
    return [line.rstrip() for part in parts for line in _lines(part, width)]


def _lines(part: Part, width: int) -> list[str]:
    if isinstance(part, Blank):
        return [""]
    if isinstance(part, Code):
        return list(part.lines)
    if isinstance(part, Paragraph):
        return wrapped(part.label, part.text, width, part.indent)
    if isinstance(part, Bullets):
        return [x for item in part.items for x in wrapped(part.label, item, width, part.indent)]
    if isinstance(part, Heading):
        return wrapped("", part.text, width)
    return _grid_lines(part, width)


def _grid_lines(grid: Grid, width: int) -> list[str]:
    spacing = grid.spacing
    heads = [row for row in (grid.heads, grid.units) if any(row)]
    widths = spacing.widths or _widths(grid, [*heads, *grid.rows])
    lines = wrapped("", grid.caption, width) if spacing.captioned else []
    for row in (*heads, *grid.rows):
        line = _row(grid, row, widths)
        if spacing.hang is None:
            lines.append(line)
        else:
            lines += wrapped("", line, width, spacing.hang)
    return lines


def _widths(grid: Grid, rows: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Return the characters of the longest cells, cells over several columns aside."""
    n = len(grid.heads)
    return tuple(
        max((len(row[i]) for row in rows if i < len(row) - (len(row) < n)), default=0)
        for i in range(n)
    )


def _row(grid: Grid, row: Sequence[str], widths: Sequence[int]) -> str:
    gaps = grid.spacing.gaps
    line = " " * grid.spacing.indent
    for i, cell in enumerate(row):
        if i:
            line += " " * (gaps if isinstance(gaps, int) else gaps[i])
        is_number = i in grid.numeric and (i < len(row) - 1 or len(row) == len(grid.heads))
        line += cell.rjust(widths[i]) if is_number else cell.ljust(widths[i])
    return line.rstrip()
