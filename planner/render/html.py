"""Documents as HTML. Every text is escaped: names in inputs may hold anything."""

import re
from collections.abc import Iterable
from html import escape

from planner.documents import Blank, Bullets, Code, Drawn, Grid, Heading, Paragraph, Part


def coded(text: str) -> str:
    """Return a text as HTML, what stands between backticks as code.

    >>> coded("did you mean `nodes`, <b>?")
    'did you mean <code>nodes</code>, &lt;b&gt;?'
    """
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(text))


def html(parts: Iterable[Part]) -> str:
    """Return the document as HTML, for the inside of a page."""
    return "\n".join(_html(part) for part in parts if not isinstance(part, Blank)) + "\n"


def _html(part: Part) -> str:
    if isinstance(part, Heading):
        key = re.sub(r"[^a-z0-9]+", "-", part.text.lower()).strip("-")
        return f'<h{part.level} id="{key}">{escape(part.text)}</h{part.level}>'
    if isinstance(part, Paragraph):
        kind = ' class="headline"' if part.strong else ""
        label = part.label.strip()
        lead = f"<b>{escape(label)}</b> " if label else ""
        return f"<p{kind}>{lead}{escape(part.text)}</p>"
    if isinstance(part, Bullets):
        items = "\n".join(f"<li>{escape(item)}</li>" for item in part.items)
        return f"<ul>\n{items}\n</ul>"
    if isinstance(part, Code):
        return f"<pre><code>{escape(chr(10).join(part.lines))}</code></pre>"
    if isinstance(part, Drawn):
        return part.html
    assert isinstance(part, Grid)  # `html` leaves blank lines out
    units = part.units or ("",) * len(part.heads)
    heads = "".join(
        f'<th scope="col"{_class(part, i)}>{escape(f"{head} {unit}".strip())}</th>'
        for i, (head, unit) in enumerate(zip(part.heads, units, strict=True))
    )
    rows = "\n".join(_row(part, k) for k in range(len(part.rows)))
    shares = '<th scope="col">Share</th>' if part.bars else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(part.caption)}">'
        f"<table>\n<caption>{escape(part.caption)}</caption>\n"
        f"<thead><tr>{heads}{shares}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _row(part: Grid, k: int) -> str:
    row = part.rows[k]
    left = len(part.heads) - len(row)
    cells = "".join(
        f"<td{_class(part, i)}>{escape(cell)}</td>"
        if i < len(row) - 1 or not left
        else f'<td colspan="{left + 1}">{escape(cell)}</td>'
        for i, cell in enumerate(row)
    )
    if part.bars:
        width = f"{min(1.0, max(0.0, part.bars[k])) * 100:.1f}"
        cells += f'<td><span class="bar" style="width: {width}%"></span></td>'
    return f"<tr>{cells}</tr>"


def _class(part: Grid, column: int) -> str:
    return ' class="n"' if column in part.numeric else ""
