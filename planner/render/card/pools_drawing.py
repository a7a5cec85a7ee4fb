"""The picture of a plan over several pools: pipelines as rows of layers, coloured by pool."""

from collections.abc import Iterator
from html import escape
from itertools import groupby

from planner.render.card.card import PipelineRow, PoolsDrawing, PoolStage
from planner.render.style import Style
from planner.text_lines import wrapped

POOL_KEYS = ("compute", "waiting", "tp", "ep", "dp", "pp", "cp", "per step")
"""Keys of the legend that pools take their colours from, by place."""
WIDTH_UNITS, ROW_HEIGHT, GAP, LABEL_WIDTH = 900, 34, 10, 110
"""Units of a row of layers, and left of it."""
LEAST_LABELLED = 18.0
"""Units of the narrowest stage that has room for its number of layers."""


def pool_key(place: int) -> str:
    """Return the key of the legend that a pool is drawn in."""
    return POOL_KEYS[place % len(POOL_KEYS)]


def pools_svg(drawing: PoolsDrawing) -> str:
    """Return the pipelines as rows as long as the model, stage by stage, and the pools below."""
    width = LABEL_WIDTH + WIDTH_UNITS
    height = len(drawing.rows) * (ROW_HEIGHT + GAP)
    shapes = [x for k, row in enumerate(drawing.rows) for x in _row_shapes(row, k)]
    label = f"{sum(row.pipelines for row in drawing.rows)} pipelines over several pools"
    items = "".join(
        f'<li><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">'
        f'<rect class="{_class(i)}" width="10" height="10"/></svg>{escape(pool)}</li>'
        for i, pool in enumerate(drawing.pools)
    )
    return (
        f'<figure class="drawing" data-drawing="pools"><div class="scroll" tabindex="0"'
        f' role="region" aria-label="{label}">\n<svg viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" role="img" aria-label="{label}">'
        f'{"".join(shapes)}</svg></div>\n<ul class="legend">{items}</ul></figure>'
    )


def _class(place: int) -> str:
    return f"c-{pool_key(place).replace(' ', '-')}"


def _row_shapes(row: PipelineRow, k: int) -> Iterator[str]:
    """Yield the label of a row, and a box a stage as wide as its layers."""
    y = k * (ROW_HEIGHT + GAP)
    yield (
        f'<text class="head" x="0" y="{y + 21}">{row.pipelines} x {row.share:.0%}'
        f"<title>{escape(row.text)}</title></text>"
    )
    unit = WIDTH_UNITS / max(1, sum(stage.layers for stage in row.stages))
    left = float(LABEL_WIDTH)
    for stage in row.stages:
        wide = stage.layers * unit
        yield (
            f'<g><rect class="{_class(stage.pool)}" x="{left:.1f}" y="{y}"'
            f' width="{max(1.0, wide - 2.0):.1f}" height="{ROW_HEIGHT}" rx="3">'
            f"<title>{escape(stage.text)}</title></rect>"
        )
        if wide >= LEAST_LABELLED:
            middle = left + wide / 2.0
            yield f'<text x="{middle:.1f}" y="{y + 21}" text-anchor="middle">{stage.layers}</text>'
        yield "</g>"
        left += wide


def pools_lines(drawing: PoolsDrawing, width: int, style: Style) -> list[str]:
    """Return a line a kind of pipelines: the layers of its stages by pool."""
    counts = [f"{row.pipelines} x {row.share:.0%}" for row in drawing.rows]
    label = max(map(len, counts))
    lines = []
    for count, row in zip(counts, drawing.rows, strict=True):
        runs = " > ".join(_run_text(list(run), drawing) for run in _pool_runs(row))
        first, *more = wrapped(f"{count:<{label}} ", runs, width, label + 2)
        lines += [style.dim(first[:label]) + first[label:], *more]
    return lines


def _pool_runs(row: PipelineRow) -> Iterator[list[PoolStage]]:
    return (list(run) for _, run in groupby(row.stages, key=lambda x: x.pool))


def _run_text(run: list[PoolStage], drawing: PoolsDrawing) -> str:
    """Return stages of one pool after the other: `a100 7 7 7`."""
    name = drawing.pools[run[0].pool].partition(":")[0]
    return f"{name} [{' '.join(str(stage.layers) for stage in run)}]"
