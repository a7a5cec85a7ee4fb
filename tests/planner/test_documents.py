"""Short documents: everything escaped, Markdown and HTML say the same."""

from html.parser import HTMLParser

from planner.documents import Bullets, Code, Grid, Heading, Paragraph, Part
from planner.render.html import coded, html
from planner.render.markdown import markdown

EVIL = "</script><script>alert(1)</script>|a`b`*c*[x](javascript:1)\n# head\u202e\"'"
PARTS: list[Part] = [
    Heading(1, EVIL),
    Paragraph(EVIL, strong=True),
    Bullets((EVIL, "second")),
    Grid((EVIL, "n"), ((EVIL, "1.5"), ("b", "2")), EVIL, (1,), (0.25, 7.0)),
    Code(("```", EVIL)),
]


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_runs_nothing_and_shows_the_text() -> None:
    page = Tags(html(PARTS))
    assert not {"script", "img", "a"} & set(page.found)
    # Heading, paragraph, item, caption, head, cell, code; the label of the region is no text.
    assert page.text.count("alert(1)") == 7
    assert "width: 25.0%" in html(PARTS)
    assert "width: 100.0%" in html(PARTS)  # never wider than its cell


def test_markdown_holds_no_markup_of_names() -> None:
    text = markdown(PARTS[:4])
    assert "<script" not in text
    assert "[x](" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert all(line.replace("\\|", "").count("|") == 3 for line in rows)
    assert rows[1] == "|---|---:|"
    assert not any(line.startswith("# head") for line in text.splitlines())


def test_code_ends_where_it_ends() -> None:
    text = markdown([Code(("a", "````", "b"))])
    assert text == "`````text\na\n````\nb\n`````\n"


def test_same_parts_same_bytes() -> None:
    assert html(PARTS) == html(list(PARTS))
    assert html([Heading(2, "What binds?")]) == '<h2 id="what-binds">What binds?</h2>\n'


def test_what_stands_between_backticks_is_code_and_all_is_escaped():
    assert coded("`a <b>` & `c`") == "<code>a &lt;b&gt;</code> &amp; <code>c</code>"
    assert coded("one ` alone") == "one ` alone"
