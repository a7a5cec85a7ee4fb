"""Short documents as plain parts, written as Markdown or HTML: notebooks and design reviews.

Every text is escaped in both: names in inputs may hold anything.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import import_module

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; the title of a document has level 1."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Text in sentences."""

    text: str
    strong: bool = False
    """Whether it is what the document says first of all."""


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; cells are texts, or numbers that are already texts."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    numeric: tuple[int, ...] = ()
    """Columns that hold numbers."""
    bars: tuple[float, ...] = field(default=())
    """Shares of 1 drawn beside the rows, where there are any (HTML alone)."""


@dataclass(frozen=True, slots=True)
class Code:
    """Lines as they are typed."""

    lines: tuple[str, ...]


Part = Heading | Paragraph | Bullets | Grid | Code

_MARKDOWN = re.compile(r"([\\`*_\[\]|#~])")


def markdown_text(text: str) -> str:
    r"""Return text that Markdown shows as it is, on one line.

    >>> markdown_text("a|b <i> *x*")
    'a\\|b &lt;i&gt; \\*x\\*'
    """
    line = " ".join(text.split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", line)


def markdown(parts: Iterable[Part]) -> str:
    """Return the document as Markdown."""
    return "\n\n".join(_markdown(part) for part in parts) + "\n"


def _markdown(part: Part) -> str:
    if isinstance(part, Heading):
        return f"{'#' * part.level} {markdown_text(part.text)}"
    if isinstance(part, Paragraph):
        text = markdown_text(part.text)
        return f"**{text}**" if part.strong else text
    if isinstance(part, Bullets):
        return "\n".join(f"- {markdown_text(item)}" for item in part.items)
    if isinstance(part, Code):
        longest = max((len(run) for run in re.findall("`+", "\n".join(part.lines))), default=0)
        fence = "`" * max(3, longest + 1)
        return "\n".join([f"{fence}text", *part.lines, fence])
    rule = ["---:" if i in part.numeric else "---" for i in range(len(part.heads))]
    lines = [part.heads, rule, *part.rows]
    shown = [_row(line) if line is not rule else "|" + "|".join(rule) + "|" for line in lines]
    return "\n".join(shown)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(markdown_text(cell) for cell in cells) + " |"


def coded(text: str) -> str:
    """Return a text as HTML, what stands between backticks as code.

    >>> coded("did you mean `nodes`, <b>?")
    'did you mean <code>nodes</code>, &lt;b&gt;?'
    """
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(text))


def html(parts: Iterable[Part]) -> str:
    """Return the document as HTML, for the inside of a page."""
    return "\n".join(_html(part) for part in parts) + "\n"


def _html(part: Part) -> str:
    if isinstance(part, Heading):
        key = re.sub(r"[^a-z0-9]+", "-", part.text.lower()).strip("-")
        return f'<h{part.level} id="{key}">{escape(part.text)}</h{part.level}>'
    if isinstance(part, Paragraph):
        kind = ' class="headline"' if part.strong else ""
        return f"<p{kind}>{escape(part.text)}</p>"
    if isinstance(part, Bullets):
        items = "\n".join(f"<li>{escape(item)}</li>" for item in part.items)
        return f"<ul>\n{items}\n</ul>"
    if isinstance(part, Code):
        return f"<pre><code>{escape(chr(10).join(part.lines))}</code></pre>"
    heads = "".join(
        f'<th scope="col"{_class(part, i)}>{escape(head)}</th>'
        for i, head in enumerate(part.heads)
    )
    rows = "\n".join(_html_row(part, k) for k in range(len(part.rows)))
    shares = '<th scope="col">Share</th>' if part.bars else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(part.caption)}">'
        f"<table>\n<caption>{escape(part.caption)}</caption>\n"
        f"<thead><tr>{heads}{shares}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _html_row(part: Grid, k: int) -> str:
    cells = "".join(
        f"<td{_class(part, i)}>{escape(cell)}</td>" for i, cell in enumerate(part.rows[k])
    )
    if part.bars:
        width = f"{min(1.0, max(0.0, part.bars[k])) * 100:.1f}"
        cells += f'<td><span class="bar" style="width: {width}%"></span></td>'
    return f"<tr>{cells}</tr>"


def _class(part: Grid, column: int) -> str:
    return ' class="n"' if column in part.numeric else ""


RENDERER = "planner.render.notebook"
"""The module whose `parts_of` turns an answer of the library into parts; imported on first use."""


class Answer:
    """An answer of the library, which notebooks show as HTML or Markdown."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html(import_module(RENDERER).parts_of(self))

    def _repr_markdown_(self) -> str:
        return markdown(import_module(RENDERER).parts_of(self))
