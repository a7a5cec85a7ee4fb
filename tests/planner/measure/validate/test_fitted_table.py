"""Tables of a validation report: columns leave by priority, the last text goes on below itself."""

import pytest

from planner.measure.validate.text import FittedTable

TABLE = FittedTable(
    ("source", "rows", "median", "B0"),
    [("alpha", "12", "3.1", "18.6"), ("be", "7", "-", "-")],
    dispensable=(3, 1),
)


def test_columns_leave_in_their_order() -> None:
    """6 + 4 + 6 + 4 characters and three gaps of 2 are 26; without B0 20, without rows 14."""
    heads = {width: TABLE.lines(width)[0].split() for width in (26, 25, 20, 19, 14)}
    assert heads[26] == ["source", "rows", "median", "B0"]
    assert heads[25] == heads[20] == ["source", "rows", "median"]
    assert heads[19] == heads[14] == ["source", "median"]


@pytest.mark.parametrize("width", [40, 60])
def test_a_last_text_is_wrapped_below_itself(width: int) -> None:
    words = "a reason " * 12
    lines = FittedTable(("source", "reasons"), [("alpha", words.strip())], 2).lines(width)
    assert max(map(len, lines)) <= width
    assert all(line.startswith(" " * 8) and line[8] != " " for line in lines[2:])
    assert " ".join(" ".join(lines[1:]).split()) == f"alpha {words.strip()}"
