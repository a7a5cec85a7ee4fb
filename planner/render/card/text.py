"""The card in a terminal: wrapped at words, bars of block characters, colour where it is taken."""

from collections.abc import Collection, Sequence

from planner.render.card.card import (
    AnswerCard,
    Assumption,
    Bar,
    Box,
    CardFigure,
    ClosedAxis,
    LayoutDrawing,
    NextCommand,
    PoolsDrawing,
)
from planner.render.card.figures import part_text
from planner.render.card.pools_drawing import pools_lines
from planner.render.colours import LEGEND
from planner.render.style import Style
from planner.text_lines import WIDTH, command_lines, wrapped
from planner.units import GIB, format_percent

GLYPHS = "█▒▓░▚▤▞▥▦▧"
"""Fills of a bar by place, so that parts are told apart without colour."""
FREE = "·"
"""Fill of what is free."""
LABEL = 8
"""Columns of the labels of figures and bars."""
MAX_BAR = 72
"""Columns of a bar at most: a longer one says no more."""
LEAST_SHARE = 0.02
"""Share of a bar below which a part has no name of its own unless all is asked for."""
PLAIN = Style(is_on=False)


def card_text(card: AnswerCard, width: int = WIDTH, style: Style = PLAIN) -> str:
    """Return the whole card as lines of at most `width` columns."""
    return "\n".join(card_lines(card, width, style, is_whole=True)) + "\n"


def card_lines(
    card: AnswerCard, width: int = WIDTH, style: Style = PLAIN, *, is_whole: bool = False
) -> list[str]:
    """Return the lines of the card: words, figures and the next command first, then pictures.

    So the advice is on the first screen of any terminal. `is_whole`: bars name their small parts.
    """
    lines = [style.bold(line) for line in wrapped("", card.sentence, width)]
    lines += wrapped("", f"{card.job}; on {card.cluster}", width)
    if card.figures:
        lines += ["", *_figure_lines(card.figures, width, style)]
    lines += _reason_lines(card, width)
    if card.plan_id and card.commands:
        lines += ["", *next_lines(card.commands[:1], width, style)]
    lines += _premise_lines(card, width, style, is_whole)
    lines += [""] * bool(card.bars)
    for bar in card.bars:
        lines += bar_lines(bar, width, style, is_whole=is_whole)
    if card.drawing:
        lines += ["", *drawing_lines(card.drawing, width, style)]
    return lines


def _figure_lines(figures: Sequence[CardFigure], width: int, style: Style) -> list[str]:
    """Return a line a figure: label, value, note; labels and values aligned."""
    value_width = max(len(figure.text) for figure in figures)
    lines = []
    for figure in figures:
        lead = f"{figure.label:<{LABEL}}  {figure.text:>{value_width}}"
        first, *more = wrapped(f"{lead} ", figure.note, width, len(lead) + 2)
        head = f"{style.dim(lead[: LABEL + 2])}{style.bold(lead[LABEL + 2 :])}"
        lines += [head + first[len(lead) :], *more]
    return lines


def bar_lines(
    bar: Bar, width: int = WIDTH, style: Style = PLAIN, *, is_whole: bool = True
) -> list[str]:
    """Return a stacked bar, and below it what its parts are.

    Not `is_whole`: its small parts are summed up.
    """
    cells = max(10, min(MAX_BAR, width - LABEL - 2))
    fills = _fills(bar)
    drawn = "".join(
        style.colour(fills[i] * n, segment.key)
        for i, (segment, n) in enumerate(zip(bar.segments, shares_of(bar, cells), strict=True))
    )
    lines = [f"{style.dim(f'{bar.title:<{LABEL}}')}  {drawn}"]
    indent = " " * (LABEL + 2)
    left_out = set() if is_whole else _small_parts(bar)
    items = {
        f"{fills[i]} {segment.label} {segment.text}": segment.key
        for i, segment in enumerate(bar.segments)
        if i not in left_out
    }
    rows = _packed([*items, *_others(bar, left_out)], width - len(indent))
    for row in rows:
        shown = (
            f"{style.colour(item[0], items[item])}{item[1:]}" if item in items else item
            for item in row
        )
        lines.append(indent + "  ".join(shown))
    return lines


def _small_parts(bar: Bar) -> set[int]:
    """Return the parts of a bar that its legend sums up; none where that is one alone."""
    small = {i for i, segment in enumerate(bar.segments) if segment.share < LEAST_SHARE}
    small = {i for i in small if bar.segments[i].key != "free"}
    return small if len(small) > 1 else set()


def _others(bar: Bar, left_out: Collection[int]) -> list[str]:
    """Return the sum of the parts that are not named, in the unit of the bar."""
    if not left_out:
        return []
    amount = sum(bar.segments[i].amount for i in left_out)
    text = f"{amount / GIB:.1f} GiB" if bar.key == "memory" else part_text(amount, bar.total)
    return [f"others {text}"]


def _fills(bar: Bar) -> list[str]:
    return [
        FREE if segment.key == "free" else GLYPHS[i % len(GLYPHS)]
        for i, segment in enumerate(bar.segments)
    ]


def shares_of(bar: Bar, cells: int) -> list[int]:
    """Return the columns of each segment of a bar of `cells` columns; they sum to `cells`.

    Rounded by largest remainders; a part that has a share of half a column or more is seen.
    """
    exact = [segment.share * cells for segment in bar.segments]
    columns = [int(x) for x in exact]
    ordered = sorted(range(len(exact)), key=lambda i: (columns[i] - exact[i], i))
    for i in ordered[: cells - sum(columns)]:
        columns[i] += 1
    return columns


def _packed(items: Sequence[str], width: int) -> list[list[str]]:
    """Return items in rows of at most `width` columns, two blanks between them."""
    rows: list[list[str]] = [[]]
    for item in items:
        if rows[-1] and sum(len(x) + 2 for x in rows[-1]) + len(item) > width:
            rows.append([])
        rows[-1].append(item)
    return rows


def drawing_lines(
    drawing: LayoutDrawing | PoolsDrawing, width: int = WIDTH, style: Style = PLAIN
) -> list[str]:
    """Return the replicas as rows of stages on nodes, then what crosses which wire.

    Of a plan over several pools the layers of each kind of pipelines by pool.
    """
    if isinstance(drawing, PoolsDrawing):
        return pools_lines(drawing, width, style)
    d = drawing
    cell = max(len(box.place) for row in d.boxes for box in row)
    cell = max(cell, len(f"stage {d.stages - 1}"))
    label = len(f"replica {d.replicas - 1}")
    stages = _columns(d.boxes[0], (width - label - 2 + 3) // (cell + 3))
    head = "   ".join(f"{_stage_head(box):<{cell}}" for box in stages)
    lines = [style.dim(f"{'':<{label}}  {head}".rstrip())] if d.stages > 1 else []
    previous = -1
    for row in d.boxes:
        replica = row[0].replica
        if replica > previous + 1:
            lines.append(style.dim("..."))
        previous = replica
        cells = " > ".join(f"{_place(box):<{cell}}" for box in _columns(row, len(stages))).rstrip()
        lines.append(f"{style.dim(f'replica {replica}'.ljust(label))}  {cells}")
    return [*(line.rstrip() for line in lines), *_wire_lines(d, width, style)]


def _columns(row: Sequence[Box], most: int) -> list[Box | None]:
    """Return the boxes that fit, None for those left out: the last one always stays."""
    boxes: list[Box | None] = []
    for before, box in zip([None, *row], row, strict=False):
        if before is not None and box.stage > before.stage + 1:
            boxes.append(None)
        boxes.append(box)
    most = max(most, 3)
    if len(boxes) <= most:
        return boxes
    return [*boxes[: most - 2], None, boxes[-1]]


def _stage_head(box: Box | None) -> str:
    return "..." if box is None else f"stage {box.stage}"


def _place(box: Box | None) -> str:
    return "..." if box is None else box.place


def _wire_lines(drawing: LayoutDrawing, width: int, style: Style) -> list[str]:
    """Return what is inside a box, and which groups use which wire."""
    inner = " x ".join(
        f"{name} {n}" for name, n in (("TP", drawing.tp), ("CP", drawing.cp)) if n > 1
    )
    noun = drawing.noun.many if drawing.box_gpus > 1 else drawing.noun.one
    parts = [f"each box {drawing.box_gpus} {noun}" + (f" = {inner}" if inner else "")]
    wires: dict[str, list[str]] = {}
    for group in drawing.groups:
        wires.setdefault(group.wire, []).append(group.label)
    parts += [f"{wire}: {', '.join(labels)}" for wire, labels in wires.items()]
    return wrapped("", "; ".join(parts), width)


def _reason_lines(card: AnswerCard, width: int) -> list[str]:
    """Return why, how sure, and which closed axes would be faster."""
    lines: list[str] = []
    for text in (card.why, card.choice, card.proof):
        lines += wrapped("", text, width) if text else []
    if card.closed:
        closed = ", ".join(_closed(axis) for axis in card.closed)
        lines += wrapped("Off by default, but faster (--pin):", closed, width)
    return ["", *lines] if lines else []


def _premise_lines(card: AnswerCard, width: int, style: Style, is_whole: bool) -> list[str]:
    """Return what was assumed, notes and warnings."""
    lines: list[str] = []
    if card.assumptions:
        assumed = "; ".join(_assumed(x, is_whole) for x in card.assumptions)
        lines += wrapped("Assumed:", assumed, width)
    for note in card.notes:
        lines += wrapped("Note:", note, width)
    for warning in card.warnings:
        lines += _led("Warning", warning, width, style)
    return ["", *lines] if lines else []


def next_lines(commands: Sequence[NextCommand], width: int, style: Style = PLAIN) -> list[str]:
    """Return what to type next: the purpose before each command, above it where it is long."""
    label = max((len(command.purpose) for command in commands), default=0) + 2
    lines = []
    for command in commands:
        purpose = f"{command.purpose}:"
        if max(label, len(purpose) + 1) + len(command.line) <= width:
            lines.append(f"{style.dim(purpose.ljust(label))}{style.bold(command.line)}")
        else:
            lines += [style.dim(line) for line in wrapped("", purpose, width)]
            lines += [style.bold(line) for line in command_lines(command.line, width, 2)]
    return lines


def _closed(axis: ClosedAxis) -> str:
    """Return what `--pin` takes to open an axis, and its gain: `tp_overlap=on -5.6%`."""
    over = "" if axis.is_fitting else " in another layout"
    return f"{axis.option.removeprefix('--pin ')} {format_percent(axis.change_frac)}{over}"


def _assumed(assumption: Assumption, is_whole: bool) -> str:
    """Return what was assumed and its option; without reasons unless the card `is_whole`."""
    text, option = assumption.text, assumption.option
    if not is_whole:
        text = text.partition(" (")[0]
        if option == f"--set {text.partition(' = ')[0]}=":
            option = "--set"
    return f"{text} [{option}]" if option else text


def _led(lead: str, text: str, width: int, style: Style) -> list[str]:
    """Return a text after a word in bold."""
    first, *more = wrapped(lead, text, width)
    return [style.bold(lead) + first[len(lead) :], *more]


def legend_text(style: Style = PLAIN) -> str:
    """Return every entry of the legend in its colour, a line each."""
    return "".join(f"{style.colour(GLYPHS[0], key)} {x.label}\n" for key, x in LEGEND.items())
