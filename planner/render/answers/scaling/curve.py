"""A scaling curve: the best plan at each size, and what the curve says."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.documents import Blank, Code, Grid, GridSpacing, Paragraph, Part
from planner.render.answers.inputs import note_parts
from planner.sweeps.scaling.curve import Scaling
from planner.units import GIB

Cell = Callable[[Mapping[str, Any]], str]


def _cell(name: str, form: str, scale: float = 1.0) -> Cell:
    def cell(row: Mapping[str, Any]) -> str:
        value = row[name]
        return "-" if value is None else format(value * scale, form)

    return cell


_SHARED: tuple[tuple[str, Cell], ...] = (
    ("step s", _cell("best.step_time_s", ",.3f")),
    ("tokens/s", _cell("best.tokens_per_s", ",.0f")),
)
_OVER_DEVICES: tuple[tuple[str, Cell], ...] = (
    ("speedup", _cell("scale.speedup", ",.2f")),
    ("eff %", _cell("scale.efficiency", ".1f", 100.0)),
)
_MORE: tuple[tuple[str, Cell], ...] = (
    ("MFU %", _cell("best.mfu", ".1f", 100.0)),
    ("comm/comp", _cell("best.comm_to_compute", ".2f")),
    ("waits %", _cell("best.exposed_comm_frac", ".1f", 100.0)),
    ("GiB", _cell("best.peak_bytes", ".1f", 1 / GIB)),
)
_RUN: tuple[tuple[str, str, Cell], ...] = (
    ("days", "best.run_s", _cell("best.run_s", ",.1f", 1 / 86400.0)),
    ("$/Mtok", "best.usd_per_million_tokens", _cell("best.usd_per_million_tokens", ",.3f")),
    ("k$", "best.cost_usd", _cell("best.cost_usd", ",.1f", 1e-3)),
)


def scaling_document(scaling: Scaling) -> list[Part]:
    """Return the curve as a table, a size a row, and what it says below."""
    parts: list[Part] = [Code((scaling_heading(scaling),))]
    if not scaling.rows:
        return [*parts, Paragraph("no size was searched")]
    parts += [_size_grid(scaling), Blank(), *marks_parts(scaling)]
    if scaling.stopped:
        parts.append(Paragraph(f"stopped ({scaling.stopped}): larger sizes are missing"))
    return [*parts, *note_parts(scaling.notes)]


def _size_grid(scaling: Scaling) -> Grid:
    rows, over = scaling.rows, scaling.range.over
    columns = [(over, _cell("scale.size", ",.0f")), *_SHARED]
    columns += _OVER_DEVICES if over == "devices" else ()
    columns += _MORE
    if any(row.get("best.mfu_bf16") not in (None, row["best.mfu"]) for row in rows):
        place = [title for title, _ in columns].index("MFU %") + 1
        columns.insert(place, ("of bf16 %", _cell("best.mfu_bf16", ".1f", 100.0)))
    columns += [(title, cell) for title, name, cell in _RUN if any(row[name] for row in rows)]
    cells = [
        (
            *(cell(row) for _, cell in columns),
            str(row["best.layout"] or row["reason"] or row["status"]),
        )
        for row in rows
    ]
    heads = (*(title for title, _ in columns), "best plan")
    numeric = tuple(range(len(columns)))
    return Grid(
        heads, tuple(cells), "The best plan at each size", numeric, (), (), GridSpacing(indent=2)
    )


def scaling_heading(scaling: Scaling) -> str:
    """Return what was varied on which job, in one line."""
    model, cluster = scaling.inputs["model"], scaling.inputs["cluster"]
    job = model["training"]
    fixed = {
        ("devices", "strong"): f"{job['global_batch']:,} sequences of {job['seq_len']:,} a step",
        ("devices", "weak"): f"the batch grows with the devices, sequences of {job['seq_len']:,}",
        ("seq_len", "strong"): "the tokens of a step stay",
        ("seq_len", "weak"): f"{job['global_batch']:,} sequences a step",
        ("layers", "strong"): "all else as it is",
    }[scaling.range.over, scaling.range.scaling]
    over = {"devices": "devices", "seq_len": "sequence length", "layers": "depth"}
    return (
        f"{model['model'].get('name', 'model')} on {cluster.get('name', 'cluster')}:"
        f" {scaling.range.scaling} scaling over {over[scaling.range.over]}, {fixed}"
    )


def marks_parts(scaling: Scaling) -> list[Part]:
    """Return what the curve says."""
    requested, marks = scaling.range, scaling.marks
    solved = [row for row in scaling.rows if row["best.step_time_s"] is not None]
    if len(solved) < 2:
        return []
    last = solved[-1]["scale.size"]
    parts: list[Part] = []
    if requested.over == "devices":
        if requested.scaling == "strong":
            knee = marks["knee"]
            text = f"{knee:,} devices" if knee else f"not reached up to {last:,} devices"
            text += "; beyond it 1% more devices buys less than 0.5% of throughput"
            parts.append(Paragraph(text, label="knee:"))
        for name, title, beyond in (
            ("break_even_cost", "break-even by cost:", "beyond it a token costs more"),
            ("break_even_throughput", "break-even by throughput:", "beyond it tokens/s fall"),
        ):
            size = marks[name]
            far = f"not reached up to {last:,} devices"
            parts.append(Paragraph(f"{size:,} devices; {beyond}" if size else far, label=title))
    else:
        wall = marks["wall"]
        unit = "tokens a sequence" if requested.over == "seq_len" else "layers"
        far = f"not reached up to {last:,} {unit}"
        text = f"{wall:,} {unit} fit, no larger number that was tried" if wall else far
        parts.append(Paragraph(text, label="wall:"))
    return [*parts, _takeover_part(scaling, solved)]


def _takeover_part(scaling: Scaling, solved: Sequence[Mapping[str, Any]]) -> Part:
    size, label = scaling.marks["takeover"], "communication takes over:"
    if size:
        tokens = scaling.marks["critical_tokens_per_device"]
        text = (
            f"at {size:,}, with {tokens:,.0f} tokens a device and step; waiting for the network"
            " takes longer than computing"
        )
        return Paragraph(text, label=label)

    def ratio(row: Mapping[str, Any]) -> float:
        return float(row["scale.exposed_comm_s"] / row["scale.compute_s"])

    last, worst = solved[-1], max(solved, key=ratio)
    text = f"not up to {last['scale.size']:,}; waiting for the network is {ratio(last):.2f} of"
    text += " computing there"
    if worst is not last:
        text += f", at most {ratio(worst):.2f}, at {worst['scale.size']:,}"
    return Paragraph(text, label=label)
