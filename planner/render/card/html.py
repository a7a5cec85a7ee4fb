"""The card as HTML with its styles inside: light and dark, no script, no network.

Bars and the drawing are SVG with classes, so that a policy without inline styles shows them too.
Every text is escaped: names in inputs may hold anything.
"""

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files

from planner.render.card.card import (
    AnswerCard,
    Bar,
    Box,
    CardFigure,
    DrawnGroup,
    LayoutDrawing,
    NextCommand,
    PoolsDrawing,
)
from planner.render.card.pools_drawing import pools_svg
from planner.render.colours import css_variables

BAR_WIDTH, BAR_HEIGHT = 1000, 26
"""Units of a bar; the page scales it."""
BOX_WIDTH, BOX_HEIGHT, GAP = 120, 46, 26
"""Units of a box of the drawing, and between boxes."""
LABEL_WIDTH = 84
"""Units left of the boxes."""
GROUND_LIGHT = (
    "--card-ink: #1f2328; --card-soft: #57606a; --card-line: #d0d7de; --card-ground: #ffffff;"
)
GROUND_DARK = (
    "--card-ink: #e8e6e3; --card-soft: #b8b4ae; --card-line: #3a3f45; --card-ground: #1b1f24;"
)
"""Colours of text, lines and ground."""
LIGHT_THEMES = ('[data-theme="light"]', '[data-jp-theme-light="true"]', ".vscode-light")
DARK_THEMES = ('[data-theme="dark"]', '[data-jp-theme-light="false"]', ".vscode-dark")
"""What stands around a card where its place says its theme: our page, JupyterLab, VS Code."""


def card_html(card: AnswerCard, *, is_styled: bool = True) -> str:
    """Return the card as one element `section.plan-card`.

    `is_styled`: with its styles inside, as a notebook needs it; a page links `card_style` once.
    """
    style = f"<style>{card_style()}</style>\n" if is_styled else ""
    parts = [
        f'<section class="plan-card" aria-label="Answer">\n{style}<header>',
        f"<h2>{escape(card.sentence)}</h2>",
        f'<p class="job">{escape(card.job)}<br>{escape(card.cluster)}</p></header>',
        _figures(card.figures),
        *(_bar(bar) for bar in card.bars),
        _picture(card.drawing) if card.drawing else "",
        _reasons(card),
        _commands(card.commands),
        "</section>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


@cache
def card_style() -> str:
    """Return the styles of cards: the legend, light, and dark where the reader asks for it."""
    rules = (files("planner.render.card") / "card.css").read_text(encoding="utf-8")
    light = f".plan-card {{ {css_variables()} {GROUND_LIGHT} }}"
    dark = f".plan-card {{ {css_variables(dark=True)} {GROUND_DARK} }}"
    themed = [f"{place} {light}" for place in LIGHT_THEMES]
    themed += [f"{place} {dark}" for place in DARK_THEMES]
    asked = f"@media (prefers-color-scheme: dark) {{ {dark} }}"
    return "\n".join([light, asked, *themed, rules])


def _figures(figures: Sequence[CardFigure]) -> str:
    if not figures:
        return ""
    items = "\n".join(
        f'<div data-figure="{x.key}"><dt>{escape(x.label)}</dt>'
        f"<dd><b>{escape(x.text)}</b> <span>{escape(x.note)}</span></dd></div>"
        for x in figures
    )
    return f'<dl class="figures">\n{items}\n</dl>'


def _bar(bar: Bar) -> str:
    """Return a stacked bar with its parts beside their colours."""
    rects, left = [], 0.0
    for segment in bar.segments:
        width = segment.share * BAR_WIDTH
        title = f"{segment.label} {segment.text}"
        rects.append(
            f'<rect class="{_class(segment.key)}" x="{left:.2f}" y="0" width="{width:.2f}"'
            f' height="{BAR_HEIGHT}"><title>{escape(title)}</title></rect>'
        )
        left += width
    items = "".join(
        f'<li><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">'
        f'<rect class="{_class(x.key)}" width="10" height="10"/></svg>'
        f"{escape(x.label)} <b>{escape(x.text)}</b></li>"
        for x in bar.segments
    )
    name = f"{bar.title} {bar.text}"
    return (
        f'<figure class="bar" data-bar="{bar.key}"><figcaption>{escape(name)}</figcaption>\n'
        f'<svg viewBox="0 0 {BAR_WIDTH} {BAR_HEIGHT}" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(name)}">{"".join(rects)}</svg>\n<ul class="legend">{items}</ul>'
        "</figure>"
    )


def _class(key: str) -> str:
    return f"c-{key.replace(' ', '-')}"


def _picture(drawing: LayoutDrawing | PoolsDrawing) -> str:
    return pools_svg(drawing) if isinstance(drawing, PoolsDrawing) else _drawing(drawing)


def _drawing(drawing: LayoutDrawing) -> str:
    """Return replicas as rows of stages; inside a box its TP x CP devices."""
    rows = drawing.boxes
    width = LABEL_WIDTH + len(rows[0]) * (BOX_WIDTH + GAP)
    height = len(rows) * (BOX_HEIGHT + GAP) + 20
    shapes = [
        f'<text class="head" x="{_x(k)}" y="13">stage {box.stage}</text>'
        for k, box in enumerate(rows[0])
        if drawing.stages > 1
    ]
    for k, row in enumerate(rows):
        shapes += _replica(drawing, row, k)
    label = f"{drawing.replicas} replicas of {drawing.stages} stages"
    groups = "".join(_group(group) for group in drawing.groups)
    return (
        f'<figure class="drawing"><div class="scroll" tabindex="0" role="region"'
        f' aria-label="{label}">\n<svg viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img" aria-label="{label}">{"".join(shapes)}</svg></div>\n'
        f'<ul class="legend">{groups}</ul></figure>'
    )


def _x(column: int) -> int:
    return LABEL_WIDTH + column * (BOX_WIDTH + GAP)


def _replica(drawing: LayoutDrawing, row: Sequence[Box], k: int) -> list[str]:
    """Return a row of boxes and the arrows between them."""
    y = 20 + k * (BOX_HEIGHT + GAP)
    is_after_gap = k > 0 and row[0].replica > drawing.boxes[k - 1][0].replica + 1
    shapes = [f'<text class="head" x="0" y="{y + 27}">replica {row[0].replica}</text>']
    if is_after_gap:
        shapes.append(f'<text class="head" x="{LABEL_WIDTH}" y="{y - 9}">...</text>')
    for column, box in enumerate(row):
        shapes.append(_box(drawing, box, _x(column), y))
        if column:
            middle = y + BOX_HEIGHT // 2
            dash = ' stroke-dasharray="3 4"' if box.stage > row[column - 1].stage + 1 else ""
            shapes.append(
                f'<line class="{_wire_class(drawing, "pp")}" x1="{_x(column) - GAP}"'
                f' y1="{middle}" x2="{_x(column)}" y2="{middle}"{dash}/>'
            )
    return shapes


def _box(drawing: LayoutDrawing, box: Box, x: int, y: int) -> str:
    """Return a box with a cell a device where they can be seen, and where it lies."""
    columns, rows = min(drawing.tp, 16), min(drawing.cp, 4)
    wide, high = (BOX_WIDTH - 8) / columns, 22 / rows
    cells = "".join(
        f'<rect class="c-tp cell" x="{x + 4 + i * wide:.1f}" y="{y + 4 + j * high:.1f}"'
        f' width="{wide - 1.5:.1f}" height="{high - 1.5:.1f}"/>'
        for j in range(rows)
        for i in range(columns)
    )
    return (
        f'<g><rect class="box" x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4"/>'
        f'{cells}<text x="{x + 5}" y="{y + 40}">{escape(box.place)}</text></g>'
    )


def _wire_class(drawing: LayoutDrawing, axis: str) -> str:
    group = next((group for group in drawing.groups if group.axis == axis), None)
    return "wire-nvlink" if group and group.is_local else "wire-network"


def _group(group: DrawnGroup) -> str:
    kind = "nvlink" if group.is_local else "network"
    return (
        f'<li data-axis="{group.axis}"><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">'
        f'<rect class="c-{kind}" width="10" height="10"/></svg>{escape(group.label)}'
        f" <b>{escape(group.wire)}</b></li>"
    )


def _reasons(card: AnswerCard) -> str:
    """Return why, how sure, what is closed, what was assumed, and warnings."""
    lines = [f"<p>{escape(text)}</p>" for text in (card.why, card.choice, card.proof) if text]
    if card.closed:
        items = "".join(
            f"<li><code>{escape(x.option)}</code> {escape(x.text.partition(': ')[2])}</li>"
            for x in card.closed
        )
        lines.append(f"<p>Off by default, but faster:</p><ul>{items}</ul>")
    if card.assumptions:
        items = "".join(
            f"<li>{escape(x.text)}"
            + (f" <code>{escape(x.option)}</code></li>" if x.option else "")
            for x in card.assumptions
        )
        lines.append(f"<details><summary>Assumed ({len(card.assumptions)})</summary>")
        lines.append(f"<ul>{items}</ul></details>")
    lines += [f"<p>Note: {escape(text)}</p>" for text in card.notes]
    lines += [f'<p class="warning">{escape(text)}</p>' for text in card.warnings]
    return f'<div class="reasons">{"".join(lines)}</div>' if lines else ""


def _commands(commands: Sequence[NextCommand]) -> str:
    if not commands:
        return ""
    items = "".join(
        f"<li>{escape(x.purpose)}<pre><code>{escape(x.line)}</code></pre></li>" for x in commands
    )
    return f'<ul class="commands">{items}</ul>'
