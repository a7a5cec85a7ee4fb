"""Documents as text of a terminal: lines that fit the window, tables aligned."""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from planner.documents import Blank, Bullets, Code, Drawn, Grid, Heading, Paragraph, Part
from planner.text_lines import WIDTH, command_lines, wrapped

MIN_WIDTH, MAX_WIDTH = 40, 200
"""Narrower terminals break lines themselves; longer lines nobody reads."""


MIN_TEXT = 16
"""Columns that a wrapped text needs at least."""
NARROW_HANG = 6
"""Blanks before further lines of a row where its text would begin too far right."""
BRANCHES = ("├─", "└─")
"""What begins the branches of a tree."""


def terminal_width() -> int:
    """Return the columns that text takes: `COLUMNS`, or those of a terminal; 100 of a file."""
    stated = os.environ.get("COLUMNS", "")
    columns = int(stated) if stated.isdecimal() and int(stated) else _window_columns()
    return max(MIN_WIDTH, min(MAX_WIDTH, columns))


def _window_columns() -> int:
    if not sys.stdout.isatty():
        return WIDTH
    import shutil  # 4 ms, for terminals alone

    return shutil.get_terminal_size((WIDTH, 24)).columns


def terminal_text(parts: Iterable[Part], width: int = WIDTH) -> str:
    """Return the document as text of at most `width` columns, commands and tables apart."""
    return "\n".join(lines_of(parts, width)) + "\n"


def fitted_text(text: str, width: int) -> str:
    """Return a text of any lines so that none is wider than the window."""
    return "".join(f"{x}\n" for line in text.splitlines() for x in _code_lines(line, width))


def lines_of(parts: Iterable[Part], width: int = WIDTH) -> list[str]:
    """Return the lines of a document."""
    return [line.rstrip() for part in parts for line in _lines(part, width)]


def _lines(part: Part, width: int) -> list[str]:
    if isinstance(part, Blank):
        return [""]
    if isinstance(part, Code):
        return [x for line in part.lines for x in _code_lines(line, width)]
    if isinstance(part, Paragraph):
        return wrapped(part.label, part.text, width, part.indent)
    if isinstance(part, Bullets):
        return [x for item in part.items for x in wrapped(part.label, item, width, part.indent)]
    if isinstance(part, Drawn):
        return list(part.lines)
    if isinstance(part, Heading):
        return wrapped("", part.text, width)
    return _grid_lines(part, width)


def _code_lines(line: str, width: int) -> list[str]:
    """Return a line as it is; one that is too long as a command, a branch or text in lines."""
    if len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip())
    if any(branch in line for branch in BRANCHES):
        while len(line) > width and "  " in line.strip():
            line = line[: line.rstrip().rindex("  ")].rstrip()  # what is said of the branch
        return [line]
    if "planner " in line:
        return command_lines(line, width, indent)
    return wrapped("", line, width, indent + 2)


def _grid_lines(grid: Grid, width: int) -> list[str]:
    spacing = grid.spacing
    caption = wrapped("", grid.caption, width) if spacing.captioned else []
    rows = [*_heads(grid), *grid.rows]
    widths = spacing.widths or _widths(grid, rows)
    if spacing.hang is not None:
        hang = spacing.hang if spacing.hang + MIN_TEXT <= width else NARROW_HANG
        drawn = (_row(grid, row, widths) for row in rows)
        return caption + [x for line in drawn for x in wrapped("", line, width, hang)]
    lines = [_row(grid, row, widths) for row in rows]
    if max(map(len, lines), default=0) <= width:
        return caption + lines
    return caption + _narrowed_lines(grid, width)


def _heads(grid: Grid) -> list[Sequence[str]]:
    return [row for row in (grid.heads, grid.units) if any(row)]


def _narrowed_lines(grid: Grid, width: int) -> list[str]:
    """Return a table that is wider than the window: its last text wrapped, else in blocks."""
    rows = [*_heads(grid), *grid.rows]
    tight = replace(grid, spacing=replace(grid.spacing, widths=(), gaps=_least_gap(grid)))
    widths, last = _widths(tight, rows), len(grid.heads) - 1
    start = tight.spacing.indent + sum(widths[:last]) + last * int(_least_gap(grid))
    is_text = last not in grid.numeric or any(len(row) <= last for row in grid.rows)
    if is_text and start + MIN_TEXT <= width:
        lines = (_row(tight, row, widths) for row in rows)
        return [x for line in lines for x in _hung(line, width, start)]
    return _block_lines(tight, widths, width)


def _least_gap(grid: Grid) -> int:
    gaps = grid.spacing.gaps
    return min(gaps, 2) if isinstance(gaps, int) else 1


def _hung(line: str, width: int, start: int) -> list[str]:
    """Return a row in lines: the text of its last column goes on below itself.

    Where that column begins too far right its text goes on near the left edge.
    """
    if len(line) <= width:
        return [line]
    if start + MIN_TEXT > width:
        return wrapped("", " ".join(line.split()), width, NARROW_HANG)
    first, *more = wrapped("", line[start:], width - start, 0) or [""]
    return [line[:start] + first, *(" " * start + x for x in more)]


def _block_lines(grid: Grid, widths: Sequence[int], width: int) -> list[str]:
    """Return a table in blocks of columns that fit, the first column before each block."""
    gap, room = int(_least_gap(grid)), width - grid.spacing.indent - widths[0]
    blocks: list[list[int]] = [[]]
    for i in range(1, len(grid.heads)):
        used = sum(widths[k] + gap for k in blocks[-1])
        if blocks[-1] and used + widths[i] + gap > room:
            blocks.append([])
        blocks[-1].append(i)
    lines: list[str] = []
    for columns in blocks:
        lines += [""] * bool(lines)
        lines += _columns_lines(grid, [0, *columns], width)
    return lines


def _columns_lines(grid: Grid, columns: Sequence[int], width: int) -> list[str]:
    """Return some columns of a table; a row that ends before them is left out."""
    rows = [*_heads(grid), *grid.rows]
    cells = [tuple(row[i] if i < len(row) else "" for i in columns) for row in rows]
    numeric = tuple(k for k, i in enumerate(columns) if i in grid.numeric)
    part = replace(grid, heads=cells[0], rows=tuple(cells[1:]), units=(), numeric=numeric)
    widths = _widths(part, cells)
    rows_of = (_row(part, row, widths).rstrip() for row in cells if any(row[1:]))
    start = part.spacing.indent + widths[0] + int(_least_gap(grid))
    return [x for line in rows_of for x in _hung(line, width, start)]


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
