"""Filter, sort and pages of tables without a script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.pages.rows import PAGE_ROWS, matches, rows_shown

COLUMNS = [
    {"key": "tp", "digits": 0},
    {"key": "step", "digits": 1},
    {"key": "recompute", "digits": None},
]
KEYS = [column["key"] for column in COLUMNS]
ROW = (8, 12.5, "full of 2")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("tp=8", True),
        ("tp=8.0", True),
        ("tp!=8", False),
        ("tp>8", False),
        ("tp>=8 step<13", True),
        ("step<=12.4", False),
        ("FULL", True),
        ("none", False),
        ("recompute=none", False),
        ("recompute!=none", True),
        ("tp=x", False),
        ("tp=", False),
        ("unknown=1", False),
        ("8", False),
    ],
)
def test_words_of_a_filter(text, holds):
    assert matches(ROW, KEYS, text) is holds


@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 9), st.floats(0, 99), st.text("ab", max_size=2))
    ),
    st.sampled_from(["tp", "step", "recompute"]),
    st.booleans(),
)
def test_sorted_rows_are_all_rows_in_order_the_empty_ones_last(rows, key, descending):
    found = []
    for page in range(1, 9):
        query = {"sort": key, "desc": "1" if descending else "", "page": str(page)}
        part = rows_shown(COLUMNS, rows, query)
        if part.page == page:
            found += part.rows
    assert sorted(map(str, found)) == sorted(map(str, rows))
    values = [row[KEYS.index(key)] for row in found]
    known = [value for value in values if value not in (None, "")]
    assert known == sorted(known, reverse=descending)
    assert values[: len(known)] == known


def test_pages_hold_all_rows_once_and_stay_within_bounds():
    rows = [(i, float(i), "x") for i in range(2 * PAGE_ROWS + 1)]
    parts = [rows_shown(COLUMNS, rows, {"page": str(n)}) for n in (1, 2, 3)]
    assert [row for part in parts for row in part.rows] == rows
    assert (parts[0].n_pages, parts[0].n_found, parts[0].n_all) == (3, 201, 201)
    assert rows_shown(COLUMNS, rows, {"page": "99"}).page == 3
    assert rows_shown(COLUMNS, rows, {"page": "-1"}).page == 1
    assert rows_shown(COLUMNS, rows, {"sort": "nothing"}).sort == ""
    assert rows_shown(COLUMNS, [], {}).n_pages == 1
