"""docs/published.md, written of the kept rows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from tools.published.prose import CAUSES, INTRO, SECTIONS
from tools.published.survey import NO_FIT, NOT_MODELLED, PRICED, REFUSED, UNJUDGED

OUTCOMES = (PRICED, UNJUDGED, NO_FIT, REFUSED, NOT_MODELLED)
SHOWN = ("tp", "pp", "vpp", "cp", "ep", "etp", "zero", "mbs")
"""Axes of a layout that a row names, where they are not 1."""
COMPARED = (
    *SHOWN,
    "recompute",
    "split",
    "dispatcher",
    "ep_overlap",
    "dp_overlap",
    "sp",
    "optimizer_offload",
    "activation_offload_layers",
    "cuda_graph",
)
"""Axes by which a published layout and ours are told apart."""
MUCH = 1.25
"""From this ratio on a published step counts as much slower than our best."""


def page(document: Mapping[str, Any]) -> str:
    """Return the page."""
    rows: Sequence[Mapping[str, Any]] = document["rows"]
    commits = ", ".join(f"{name} `{x}`" for name, x in sorted(document["commits"].items()))
    lines = [INTRO.format(commits=commits), *_counts(rows)]
    for source, text in SECTIONS.items():
        own = [row for row in rows if row["source"] == source]
        lines += ["", f"## {source}", "", text.strip(), "", *_priced(own), *_others(own)]
    lines += ["", "## Where ours is faster by much", "", *_switches(rows), "", CAUSES.strip()]
    return "\n".join(lines) + "\n"


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(x).replace("|", "\\|") for x in cells) + " |"


def _compared(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows with a published plan that runs and a best one beside it."""
    return [row for row in rows if "ratio" in row and row["outcome"] in (PRICED, UNJUDGED)]


def _counts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        _row("source", "examples", *OUTCOMES, "median of published / best", "most"),
        _row("---", *["---:"] * (len(OUTCOMES) + 3)),
    ]
    for source in SECTIONS:
        own = [row for row in rows if row["source"] == source]
        counts = Counter(row["outcome"] for row in own)
        ratios = [row["ratio"] for row in own if "ratio" in row and row["outcome"] == PRICED]
        middle, most = (f"{f(ratios):.2f}" if ratios else "" for f in (median, max))
        lines.append(_row(source, len(own), *(counts[x] for x in OUTCOMES), middle, most))
    return lines


def _priced(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of the rows that have a step."""
    own = [row for row in rows if "step_s" in row]
    if not own:
        return []
    lines = [
        _row(
            "example", "on", "job", "layout", "GB of", "step s", "best", "ratio", "place", "ours"
        ),
        _row(*["---"] * 4, *["---:"] * 4, *["---"] * 2),
    ]
    for row in own:
        lines.append(
            _row(
                short_name(row),
                f"{row['n_devices']} {row['part']}{_star(row)}",
                f"{row['seq_len']}, {row['precision']}",
                layout_words(row["layout"]),
                f"{row['peak_gb']:.0f} / {row['usable_gb']:.0f}{_verdict(row)}",
                f"{row['step_s']:.3g} ({row['step_p10_s']:.3g} - {row['step_p90_s']:.3g})",
                f"{row['best']['step_s']:.3g}" if row.get("best") else "none fits",
                f"{row['ratio']:.2f}" if "ratio" in row else "",
                _place(row),
                "; ".join(changes(row)),
            )
        )
    return lines


def short_name(row: Mapping[str, Any]) -> str:
    """Return the last words of a file that tell it from the others of its source."""
    parts = row["file"].split("/")
    if row["source"] == "tpu-recipes":
        kept = parts[2:-1] if "ironwood" in parts else [parts[-1].removesuffix(".sh")]
        return "/".join(kept)
    name: str = parts[-1].rsplit(".", 1)[0]
    return name.removeprefix("pretrain_").removesuffix("-pretrain")


def _star(row: Mapping[str, Any]) -> str:
    return "" if row.get("devices_from") == "the example" else " *"


def _verdict(row: Mapping[str, Any]) -> str:
    words = {NO_FIT: ": no", UNJUDGED: ": ?", REFUSED: ": refused"}
    return words.get(row["outcome"], "")


def _place(row: Mapping[str, Any]) -> str:
    outside = [f"{x['code']} {x['title']}".strip() for x in row.get("outside", ())]
    place = f"{row['rank']:,} of {row['n_fit']:,}" if row.get("rank") else ""
    return "; ".join([*([place] if place else []), *(f"outside: {x}" for x in outside)])


def layout_words(layout: Mapping[str, Any]) -> str:
    """Return a layout as short words: `pp16 vpp2 ep8 dp16 zero1 mbs2, full recompute`."""
    words = [f"{axis}{layout[axis]}" for axis in SHOWN if layout.get(axis, 1) not in (0, 1)]
    words += [f"dp{layout['dp']}"] * (layout["dp"] > 1) + ["zero1"] * (layout["zero"] == 1)
    words += ["mbs1"] * (layout["mbs"] == 1)
    kind = recompute_words(layout)
    return f"{' '.join(words)}, gbs {layout['gbs']}{', ' + kind if kind != 'none' else ''}"


def recompute_words(layout: Mapping[str, Any]) -> str:
    """Return what a layout computes again: `none`, `full of 4`, or modules."""
    if layout["recompute"] == "full":
        deepest = max(layout["stage_layers"])
        n = layout["recompute_layers"]
        return "recompute full" if n >= deepest else f"recompute {n} of {deepest}"
    return (
        "recompute " + "+".join(layout["recompute_modules"])
        if layout["recompute_modules"]
        else "none"
    )


def changes(row: Mapping[str, Any]) -> list[str]:
    """Return what our best plan has otherwise than the published one."""
    if not row.get("best"):
        return []
    old, new = row["layout"], row["best"]["layout"]
    return [f"{axis} {a} → {b}" for axis, a, b in differences(old, new)]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the axes by which two layouts differ, with both values as words."""
    pairs = []
    for axis in COMPARED:
        a, b = _value(old, axis), _value(new, axis)
        if a != b:
            pairs.append((axis, a, b))
    return pairs


def _value(layout: Mapping[str, Any], axis: str) -> str:
    if axis == "recompute":
        return recompute_words(layout).removeprefix("recompute ")
    if axis == "split":
        counts = layout["stage_layers"]
        inner = counts[1:-1] or counts
        return "uneven" if max(inner) - min(inner) or max(counts) - min(counts) > 1 else "even"
    usual = {"dp_overlap": True, "sp": False, "dispatcher": "alltoall", "ep_overlap": "off"}
    value = layout.get(axis, usual.get(axis, 0))
    return (
        {True: "on", False: "off"}.get(value, str(value))
        if isinstance(value, bool)
        else str(value)
    )


def _others(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the list of the rows without a step."""
    own = [row for row in rows if "step_s" not in row]
    if not own:
        return []
    reasons: dict[str, list[str]] = {}
    for row in own:
        rules = [
            f"{x['code']} {x['reason']}" for x in row.get("rules", ()) if x["kind"] == "refused"
        ]
        text = f"{row['outcome']}: {'; '.join(rules) or row.get('reason', '')}"
        reasons.setdefault(text, []).append(short_name(row))
    lines = ["", "Without a step:", ""]
    return lines + [f"- {text}: {', '.join(names)}" for text, names in sorted(reasons.items())]


def _switches(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how often each axis differs where the published step is much slower."""
    slow = [row for row in _compared(rows) if row["ratio"] >= MUCH]
    lines = [
        f"Of {len(_compared(rows))} published plans that run and have one beside them {len(slow)}"
        f" take {MUCH:g} times our best or longer. In how many of these our plan differs by an"
        " axis:",
        "",
        _row("source", *COMPARED),
        _row("---", *["---:"] * len(COMPARED)),
    ]
    for source in SECTIONS:
        own = [row for row in slow if row["source"] == source]
        counts = Counter(
            axis for row in own for axis, _, _ in differences(row["layout"], row["best"]["layout"])
        )
        lines.append(_row(f"{source} ({len(own)})", *(counts[axis] or "" for axis in COMPARED)))
    return [*lines, "", *_by_experts(rows)]


def _by_experts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how ratios differ between plans with and without expert parallelism."""
    own = [row for row in _compared(rows) if row["outcome"] == PRICED]
    parts = []
    for is_parallel, words in ((False, "without"), (True, "with")):
        ratios = [row["ratio"] for row in own if (row["layout"]["ep"] > 1) is is_parallel]
        below = sum(ratio < 1.1 for ratio in ratios)
        middle = f"median {median(ratios):.2f}" if ratios else "no median"
        parts.append(f"{words} expert parallelism {middle}, {below} of {len(ratios)} below 1.1")
    return [f"Published over best: {'; '.join(parts)}."]
