"""What `planner scale` prints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.sweeps.scaling.curve import Scaling
from planner.text_lines import note_lines, wrapped
from planner.units import GIB

Cell = Callable[[Mapping[str, Any]], str]


def _of(name: str, form: str, scale: float = 1.0) -> Cell:
    def cell(row: Mapping[str, Any]) -> str:
        value = row[name]
        return "-" if value is None else format(value * scale, form)

    return cell


_TITLES = {"devices": "devices", "seq_len": "seq_len", "layers": "layers"}
_SHARED: tuple[tuple[str, Cell], ...] = (
    ("step s", _of("best.step_time_s", ",.3f")),
    ("tokens/s", _of("best.tokens_per_s", ",.0f")),
)
_OF_DEVICES: tuple[tuple[str, Cell], ...] = (
    ("speedup", _of("scale.speedup", ",.2f")),
    ("eff %", _of("scale.efficiency", ".1f", 100.0)),
)
_MORE: tuple[tuple[str, Cell], ...] = (
    ("MFU %", _of("best.mfu", ".1f", 100.0)),
    ("comm/comp", _of("best.comm_to_compute", ".2f")),
    ("waits %", _of("best.exposed_comm_frac", ".1f", 100.0)),
    ("GiB", _of("best.peak_bytes", ".1f", 1 / GIB)),
)
_RUN: tuple[tuple[str, str, Cell], ...] = (
    ("days", "best.run_s", _of("best.run_s", ",.1f", 1 / 86400.0)),
    ("$/Mtok", "best.usd_per_million_tokens", _of("best.usd_per_million_tokens", ",.3f")),
    ("k$", "best.cost_usd", _of("best.cost_usd", ",.1f", 1e-3)),
)


def scaling_text(found: Scaling) -> str:
    """Return the curve as a table, a size a line, and what it says below."""
    requested, rows = found.asked, found.rows
    lines = [_heading(found)]
    if not rows:
        return "\n".join([*lines, "no size was searched"]) + "\n"
    columns = [(_TITLES[requested.over], _of("scale.size", ",.0f")), *_SHARED]
    columns += _OF_DEVICES if requested.over == "devices" else ()
    columns += _MORE
    columns += [(title, cell) for title, name, cell in _RUN if any(row[name] for row in rows)]
    cells = [[cell(row) for _, cell in columns] for row in rows]
    widths = [max(len(t), *(len(line[i]) for line in cells)) for i, (t, _) in enumerate(columns)]

    def joined(words: list[str]) -> str:
        return "  ".join(f"{word:>{width}}" for word, width in zip(words, widths, strict=True))

    lines.append("  " + joined([title for title, _ in columns]) + "  best plan")
    for row, line in zip(rows, cells, strict=True):
        reason_text = row["best.layout"] or row["reason"] or row["status"]
        lines.append(f"  {joined(line)}  {reason_text}")
    lines += ["", *marks_lines(found)]
    if found.stopped:
        lines.append(f"stopped ({found.stopped}): larger sizes are missing")
    lines += note_lines(found.notes)
    return "\n".join(lines) + "\n"


def _heading(found: Scaling) -> str:
    model, cluster = found.inputs["model"], found.inputs["cluster"]
    job = model["training"]
    fixed = {
        ("devices", "strong"): f"{job['global_batch']:,} sequences of {job['seq_len']:,} a step",
        ("devices", "weak"): f"the batch grows with the devices, sequences of {job['seq_len']:,}",
        ("seq_len", "strong"): "the tokens of a step stay",
        ("seq_len", "weak"): f"{job['global_batch']:,} sequences a step",
        ("layers", "strong"): "all else as it is",
    }[found.asked.over, found.asked.scaling]
    over = {"devices": "devices", "seq_len": "sequence length", "layers": "depth"}
    return (
        f"{model['model'].get('name', 'model')} on {cluster.get('name', 'cluster')}:"
        f" {found.asked.scaling} scaling over {over[found.asked.over]}, {fixed}"
    )


def marks_lines(found: Scaling) -> list[str]:
    """Return what the curve says, a line each."""
    requested, marks = found.asked, found.marks
    solved = [row for row in found.rows if row["best.step_time_s"] is not None]
    if len(solved) < 2:
        return []
    last = solved[-1]["scale.size"]
    lines = []
    if requested.over == "devices":
        if requested.scaling == "strong":
            knee = marks["knee"]
            text = f"{knee:,} devices" if knee else f"not reached up to {last:,} devices"
            lines += wrapped(
                "knee:", f"{text}; beyond it 1% more devices buys less than 0.5% of throughput"
            )
        for name, title, beyond in (
            ("break_even_cost", "break-even by cost:", "beyond it a token costs more"),
            ("break_even_throughput", "break-even by throughput:", "beyond it tokens/s fall"),
        ):
            at = marks[name]
            far = f"not reached up to {last:,} devices"
            lines += wrapped(title, f"{at:,} devices; {beyond}" if at else far)
    else:
        wall = marks["wall"]
        unit = "tokens a sequence" if requested.over == "seq_len" else "layers"
        far = f"not reached up to {last:,} {unit}"
        lines += wrapped(
            "wall:", f"{wall:,} {unit} fit, no larger number that was tried" if wall else far
        )
    return [*lines, *_takeover_lines(found, solved)]


def _takeover_lines(found: Scaling, solved: Sequence[Mapping[str, Any]]) -> list[str]:
    at = found.marks["takeover"]
    if at:
        tokens = found.marks["critical_tokens_per_device"]
        return wrapped(
            "communication takes over:",
            f"at {at:,}, with {tokens:,.0f} tokens a device and step; waiting for the network"
            " takes longer than computing",
        )

    def ratio(row: Mapping[str, Any]) -> float:
        return float(row["scale.exposed_comm_s"] / row["scale.compute_s"])

    last, worst = solved[-1], max(solved, key=ratio)
    text = f"not up to {last['scale.size']:,}; waiting for the network is {ratio(last):.2f} of"
    text += " computing there"
    if worst is not last:
        text += f", at most {ratio(worst):.2f}, at {worst['scale.size']:,}"
    return wrapped("communication takes over:", text)
