"""Documents as Markdown. Every text is escaped: names in inputs may hold anything."""

import re
from collections.abc import Iterable, Sequence

from planner.documents import Blank, Bullets, Code, Drawn, Grid, Heading, Paragraph, Part

_SPECIAL = re.compile(r"([\\`*_\[\]|#~])")


def markdown_text(text: str) -> str:
    r"""Return text that Markdown shows as it is, on one line.

    >>> markdown_text("a|b <i> *x*")
    'a\\|b &lt;i&gt; \\*x\\*'
    """
    line = " ".join(text.split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", line)


def markdown(parts: Iterable[Part]) -> str:
    """Return the document as Markdown."""
    return "\n\n".join(_markdown(part) for part in parts if not isinstance(part, Blank)) + "\n"


def _markdown(part: Part) -> str:
    if isinstance(part, Heading):
        return f"{'#' * part.level} {markdown_text(part.text)}"
    if isinstance(part, Paragraph):
        text, label = markdown_text(part.text), markdown_text(part.label)
        if part.strong:
            return f"**{f'{label} {text}'.strip()}**"
        return f"**{label}** {text}" if label else text
    if isinstance(part, Bullets):
        return "\n".join(f"- {markdown_text(item)}" for item in part.items)
    if isinstance(part, Code):
        longest = max((len(run) for run in re.findall("`+", "\n".join(part.lines))), default=0)
        fence = "`" * max(3, longest + 1)
        return "\n".join([f"{fence}text", *part.lines, fence])
    if isinstance(part, Drawn):
        return part.markdown.rstrip()
    assert isinstance(part, Grid)  # `markdown` leaves blank lines out
    units = part.units or ("",) * len(part.heads)
    heads = [f"{head} {unit}".strip() for head, unit in zip(part.heads, units, strict=True)]
    rule = "|".join("---:" if i in part.numeric else "---" for i in range(len(heads)))
    caption = [markdown_text(part.caption), ""] if part.spacing.captioned else []
    rows = (_row([*row, *[""] * (len(heads) - len(row))]) for row in part.rows)
    return "\n".join([*caption, _row(heads), f"|{rule}|", *rows])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(markdown_text(cell) for cell in cells) + " |"
