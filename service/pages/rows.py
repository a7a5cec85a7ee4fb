"""Filter, sort and page of a table, as its address says; the script does the same in the browser.

A filter is words parted by blanks, all of which must hold: `tp=8`, `memory<70`, `mfu>=40`,
`recompute=none`, `tie!=`, or a part of any text of the row.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Sequence[Any]
PAGE_ROWS = 100
MOST_FILTER_CHARS = 300
_TERM = re.compile(r"([a-z_][a-z0-9_]*)(<=|>=|!=|=|<|>)(.*)")


@dataclass(frozen=True, slots=True)
class RowsShown:
    """The part of a table that is shown."""

    rows: tuple[Row, ...]
    n_found: int
    n_all: int
    page: int
    """From 1."""
    n_pages: int
    sort: str
    """Key of the column; empty for the order given."""
    descending: bool
    filter: str


def rows_shown(
    columns: Sequence[Mapping[str, Any]], rows: Sequence[Row], query: Mapping[str, str]
) -> RowsShown:
    """Return the rows that `filter`, `sort`, `desc` and `page` of an address leave."""
    keys = [column["key"] for column in columns]
    text = query.get("filter", "")[:MOST_FILTER_CHARS]
    results = [row for row in rows if matches(row, keys, text)]
    sort = query.get("sort", "")
    descending = query.get("desc", "") == "1"
    if sort in keys:
        place = keys.index(sort)
        filled = [row for row in results if row[place] not in (None, "")]
        empty = [row for row in results if row[place] in (None, "")]
        is_text = columns[place]["digits"] is None
        filled.sort(key=lambda row: str(row[place]) if is_text else row[place], reverse=descending)
        results = filled + empty
    else:
        sort = ""
    n_pages = max(1, -(-len(results) // PAGE_ROWS))
    value = query.get("page", "1")
    page = int(value) if value.isascii() and value.isdigit() and len(value) < 7 else 1
    page = min(max(1, page), n_pages)
    first = (page - 1) * PAGE_ROWS
    return RowsShown(
        tuple(results[first : first + PAGE_ROWS]),
        len(results),
        len(rows),
        page,
        n_pages,
        sort,
        descending,
        text,
    )


def matches(row: Row, keys: Sequence[str], text: str) -> bool:
    """Tell whether a row holds all words of a filter.

    >>> matches([8, "none"], ["tp", "recompute"], "tp>=4 non")
    True
    """
    return all(_holds(row, keys, word) for word in text.lower().split())


def _holds(row: Row, keys: Sequence[str], word: str) -> bool:
    term = _TERM.fullmatch(word)
    if term and term[1] in keys:
        value, sign, wanted = row[keys.index(term[1])], term[2], term[3]
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(wanted)
            except ValueError:
                return False
            return {
                "=": value == number,
                "!=": value != number,
                "<": value < number,
                ">": value > number,
                "<=": value <= number,
                ">=": value >= number,
            }[sign]
        text = "" if value is None else str(value).lower()
        if sign == "!=":
            return text != wanted
        return sign == "=" and text == wanted
    return any(word in str(cell).lower() for cell in row if isinstance(cell, str))
