"""Words of the plan view as HTML: numbers keep what stands beside them."""

import pytest

from planner.render.plan_view.cards import Label, Part, Words
from planner.render.plan_view.page import unparted


@pytest.mark.parametrize(
    ("words", "end", "wanted"),
    [
        (
            ("in all (", Label("7 s"), "), or so"),
            ".",
            [("in all ", None, ""), ("(", Label("7 s"), "),"), (" or so.", None, "")],
        ),
        (
            ("a ", Label("1"), ", ", Label("2")),
            ".",
            [("a ", None, ""), ("", Label("1"), ","), (" ", None, ""), ("", Label("2"), ".")],
        ),
        ((Label("1"), "–", Label("2")), "", [("", Label("1"), "–"), ("", Label("2"), "")]),
        (("no number",), ".", [("no number.", None, "")]),
        ((), "", []),
    ],
)
def test_numbers_keep_what_stands_beside_them(
    words: Words, end: str, wanted: list[tuple[str, Part | None, str]]
) -> None:
    found = unparted(words, end)
    assert found == wanted
    plain = [part if isinstance(part, str) else part.text for part in (*words, end)]
    said = [
        lead + (item.text if isinstance(item, Label) else "") + tail for lead, item, tail in found
    ]
    assert "".join(said) == "".join(plain)
