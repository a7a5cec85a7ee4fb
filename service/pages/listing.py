"""What the page of plans shows: a row a plan, the scatter with its front, reasons where none fits.

Pure functions of a `planner.solver.answer.result.Result`, called in worker processes; they return
plain data.
"""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.render.report.quantities import short_number
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.uncertainty import HEADROOM_STEP, TIE_FRAC
from planner.solver.margins import tie_words
from planner.specs.search.objectives import BEST
from planner.units import GIB

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart
    from planner.solver.answer.result import Plan, Relaxation, Result

Data = dict[str, Any]
Cell = str | int | float | None
EQUAL_FRAC = 1e-9
MOST_DRAWN = 1_500
"""Plans that the scatter draws one by one."""
MOST_BARS = 60
"""Plans whose interval the scatter draws."""


@dataclass(frozen=True, slots=True)
class ListColumn:
    """One column of the table of plans."""

    key: str
    """What a filter calls it: letters, digits, `_`."""
    title: str
    value: Callable[["Plan"], Cell]
    digits: int | None = None
    """After the point, of a number; None for text."""
    unit: str = ""
    hint: str = ""

    def to_json(self) -> Data:
        """Return the column without its values."""
        return {
            "key": self.key,
            "title": self.title,
            "digits": self.digits,
            "unit": self.unit,
            "hint": self.hint,
        }


def listing(result: "Result") -> Data:
    """Return the page of a result as plain data, its request and downloads aside."""
    from planner.render.answers.inputs import assumed_parts, note_parts
    from planner.render.answers.result import heading_parts, proof_text
    from planner.render.terminal import lines_of

    certificate = result.certificate
    proven = certificate and (certificate.proven or (certificate.only_uneven and result.complete))
    columns = list_columns_of(result)
    chart = scatter(result) if result.plans else None
    return {
        "heading": _unwrapped(lines_of(heading_parts(result))),
        "assumed": _unwrapped(
            lines_of(assumed_parts(result.notes, "a field of the form changes one"))
        ),
        "notes": [
            line.removeprefix("note: ") for line in _unwrapped(lines_of(note_parts(result.notes)))
        ],
        "complete": result.complete,
        "stopped": result.stopped,
        "gap": result.gap,
        "best": best_words(result),
        "called": called(result),
        "order": order_words(result),
        "columns": [column.to_json() for column in columns],
        "rows": [
            [_rounded(column.value(plan), column.digits) for column in columns]
            for plan in result.plans
        ],
        "why_first": list(result.why_first),
        "warnings": [{"code": w.code, "text": w.text} for w in result.plans[0].warnings]
        if result.plans
        else [],
        "first": figures_of(result.plans[0]) if result.plans else [],
        "proof": proof_text(result) if proven and result.plans else "",
        "rejected": rejection_rows(result),
        "nothing": nothing_fits_view(result) if not result.plans else None,
        "figure": _figure(chart) if chart else None,
    }


def best_words(result: "Result") -> str:
    """Return what the first plan is called: the fastest, the cheapest."""
    objective = str(result.inputs["options"].get("objective", "step_time"))
    if not result.plans:
        return BEST[objective]
    return tie_words(objective, result.margin, result.plans[0].step_time_s)


def called(result: "Result") -> str:
    """Return what the first plan is called: a front has no plan that is better than its others."""
    return "First of the front" if result.inputs["options"].get("pareto") else "Recommended"


def order_words(result: "Result") -> str:
    """Return in a sentence or two why the first plan stands before plans that are as good."""
    requested = result.inputs["options"].get("pareto")
    if requested:
        names = " and ".join(requested)
        return f"Of the front by {names} no plan is better than another in all of them."
    best = best_words(result)
    if sum(plan.tie for plan in result.plans) < 2:
        return f"It is {best} of all plans, and none ties with it."
    return (
        f"Plans within {TIE_FRAC:.0%} of {best} tie: the model cannot tell them apart. Of these"
        " the recommended one keeps nothing on the host, if any does; has most memory headroom,"
        f" compared in steps of {HEADROOM_STEP:.0%} of the usable memory; and is the simplest of"
        " those that are left."
    )


def list_columns_of(result: "Result") -> tuple[ListColumn, ...]:
    """Return the columns: axes that some plan uses, figures that are known."""
    plans, layouts = result.plans, [plan.layout for plan in result.plans]
    several = {
        "pool": len(result.inputs["cluster"]["pools"]) > 1,
        "precision": len({plan.recipe_label for plan in plans}) > 1,
        "devices": len({x.n_devices for x in layouts}) > 1 or any(plan.n_idle for plan in plans),
        "cp": any(x.cp > 1 for x in layouts),
        "ep": any(x.ep > 1 for x in layouts),
        "etp": any(x.etp > 1 for x in layouts),
        "shard": any(x.shard > 0 for x in layouts),
        "hpz": any(x.hpz > 1 for x in layouts),
        "split": any(x.split not in ("even", "") and x.pp > 1 for x in layouts),
        "schedule": any(x.schedule not in ("none", "1f1b", "interleaved") for x in layouts),
        "offload": any(x.optimizer_offload or x.activation_offload for x in layouts),
        "days": any(plan.training_s is not None for plan in plans),
        "cost": any(plan.run and plan.run.usd_per_million_tokens is not None for plan in plans),
        "energy": any(plan.run and plan.run.energy_j_per_token is not None for plan in plans),
    }
    return tuple(column for column in COLUMNS if several.get(column.key, True))


def tie_of(plan: "Plan") -> str:
    """Return how a plan stands to the best: `first`, `tie`, `near`, or nothing."""
    if plan.rank == 1:
        return "first"
    if plan.tie:
        return "tie"
    return "near" if plan.group == 1 else ""


def _recompute(plan: "Plan") -> str:
    x = plan.layout
    if x.recompute_text != x.recompute:
        return "+".join(x.recompute_modules)
    if x.recompute == "full" and x.recompute_layers < max(x.stage_layers):
        return f"full of {x.recompute_layers}"
    return x.recompute


def _offload(plan: "Plan") -> str:
    x = plan.layout
    parts = ["optimizer"] if x.optimizer_offload else []
    if x.activation_offload:
        parts.append(f"activations of {x.activation_offload_layers}")
    return ", ".join(parts)


def _of_run(name: str) -> Callable[["Plan"], Cell]:
    return lambda plan: getattr(plan.run, name) if plan.run else None


COLUMNS = (
    ListColumn("rank", "#", lambda p: p.rank, 0),
    ListColumn("plan", "Plan", lambda p: p.plan_id),
    ListColumn(
        "tie",
        "Tie",
        tie_of,
        hint=f"tie: within {TIE_FRAC:.0%} of the best: the model cannot"
        f" tell them apart, and memory headroom in steps of {HEADROOM_STEP:.0%} orders them,"
        " then simplicity; near: told apart from the first in fewer than four of five cases",
    ),
    ListColumn("pool", "Pool", lambda p: p.pool),
    ListColumn("precision", "Recipe", lambda p: p.recipe_label),
    ListColumn("devices", "Devices", lambda p: p.layout.n_devices, 0),
    ListColumn("tp", "tp", lambda p: p.layout.tp, 0, hint="tensor parallel"),
    ListColumn("pp", "pp", lambda p: p.layout.pp, 0, hint="pipeline stages"),
    ListColumn(
        "vpp", "vpp", lambda p: p.layout.vpp, 0, hint="chunks of layers a rank, interleaved"
    ),
    ListColumn("cp", "cp", lambda p: p.layout.cp, 0, hint="context parallel"),
    ListColumn("ep", "ep", lambda p: p.layout.ep, 0, hint="expert parallel"),
    ListColumn("etp", "etp", lambda p: p.layout.etp, 0, hint="tensor parallel of experts"),
    ListColumn("dp", "dp", lambda p: p.layout.dp, 0, hint="data parallel"),
    ListColumn("zero", "zero", lambda p: p.layout.zero, 0, hint="ZeRO stage"),
    ListColumn(
        "shard", "over", lambda p: p.layout.dp_shard, 0, hint="ranks that ZeRO shards over"
    ),
    ListColumn("hpz", "hpz", lambda p: p.layout.hpz, 0, hint="ranks of ZeRO++'s second copy"),
    ListColumn("mbs", "mbs", lambda p: p.layout.mbs, 0, hint="sequences in a micro-batch"),
    ListColumn("recompute", "Recompute", _recompute),
    ListColumn("split", "Split", lambda p: p.layout.split if p.layout.pp > 1 else ""),
    ListColumn("schedule", "Schedule", lambda p: p.layout.schedule),
    ListColumn("offload", "To the host", _offload),
    ListColumn("step", "Step", lambda p: p.step_time_s * 1e3, 1, "ms"),
    ListColumn(
        "low",
        "8 in 10: from",
        lambda p: p.step_time_p10_s * 1e3,
        0,
        "ms",
        "eight of ten measured steps would lie between these two",
    ),
    ListColumn("high", "to", lambda p: p.step_time_p90_s * 1e3, 0, "ms"),
    ListColumn("tokens", "Tokens/s", lambda p: p.tokens_per_s_per_device, 0, "/device"),
    ListColumn(
        "mfu", "MFU", lambda p: p.mfu * 100, 1, "%", "Megatron's model FLOPs over the dense peak"
    ),
    ListColumn(
        "mfu-bf16",
        "MFU of bf16",
        lambda p: p.mfu_over_bf16 and p.mfu_over_bf16 * 100,
        1,
        "%",
        "over the dense bf16 peak, as papers print it",
    ),
    ListColumn(
        "memory",
        "Memory",
        lambda p: p.breakdown.peak_bytes / GIB,
        1,
        "GiB",
        "of the fullest device",
    ),
    ListColumn("free", "Free", lambda p: p.headroom_frac * 100, 1, "%", "of the usable memory"),
    ListColumn("bubble", "Bubble", lambda p: p.breakdown.bubble_frac * 100, 1, "%"),
    ListColumn(
        "comm",
        "Comm.",
        lambda p: p.breakdown.exposed_comm_frac * 100,
        1,
        "%",
        "communication that nothing hides",
    ),
    ListColumn(
        "days",
        "Run",
        lambda p: p.training_s and p.training_s / 86_400,
        1,
        "days",
        "of steps alone, without failures",
    ),
    ListColumn("cost", "Cost", _of_run("usd_per_million_tokens"), 3, "$/Mtok"),
    ListColumn("energy", "Energy", _of_run("energy_j_per_token"), 2, "J/token"),
    ListColumn("runs", "Runs on", lambda p: ", ".join(p.runs_on)),
)
"""All columns, in order; those of axes that no plan uses are left out (`list_columns_of`)."""


def _rounded(value: Cell, digits: int | None) -> Cell:
    """Return a number with the digits that are shown, so that both sides show the same."""
    if digits is None or value is None or isinstance(value, str):
        return value
    if not math.isfinite(value):
        return None
    return round(value, digits) if digits else round(value)


def figures_of(plan: "Plan") -> list[Data]:
    """Return the figures of a plan that stand above the table: value, unit, what it is."""
    low, high = plan.step_time_p10_s, plan.step_time_p90_s
    results = [
        (_time(plan.step_time_s), f"a step; {_time(low)} to {_time(high)} in 8 of 10 cases"),
        (
            f"{plan.mfu * 100:.1f} %",
            "MFU"
            if plan.mfu_over_bf16 is None
            else f"MFU; {plan.mfu_over_bf16 * 100:.1f} % of the bf16 peak",
        ),
        (f"{plan.tokens_per_s_per_device:,.0f}", "tokens/s a device"),
        (
            f"{plan.breakdown.peak_bytes / GIB:.1f} GiB",
            f"of {plan.usable_bytes / GIB:.1f} GiB usable",
        ),
    ]
    if plan.training_s is not None:
        results.append((f"{plan.training_s / 86_400:,.1f} days", "the run, without failures"))
    return [{"value": value, "what": what} for value, what in results]


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{short_number(seconds, 4)} s"
    return f"{short_number(seconds * 1e3, 4)} ms"


def rejection_rows(result: "Result") -> list[Data]:
    """Return how many candidates each rule excluded, the most first."""
    from planner.render.answers.result import DUPLICATES
    from searches.rules import RULES

    counted = sorted(
        (r for r in result.rejected if r.code not in DUPLICATES), key=lambda r: (-r.n, r.code)
    )
    return [
        {
            "code": r.code,
            "title": RULES[r.code].title,
            "why": RULES[r.code].why,
            "n": r.n,
            "of": r.of,
        }
        for r in counted
    ]


# Where nothing fits


def nothing_fits_view(result: "Result") -> Data:
    """Return why there is no plan: the reasons, the closest miss, what would help."""
    limit_notes = [
        note.removeprefix("limit: ") for note in result.notes if note.startswith("limit: ")
    ]
    space = result.counts.space
    if result.stopped:
        says = f"None of the {space:,} legal plans that were looked at before the search stopped."
    elif limit_notes:
        says = "No plan keeps the limits."
    elif not space:
        says = "No layout is legal: every combination breaks a rule."
    else:
        says = f"Nothing fits: all {space:,} legal plans exceed the memory."
    closest = None
    if result.closest:
        miss = result.closest
        closest = {
            "layout": shown_layout(miss.layout),
            "needs_gib": round(miss.peak_bytes / GIB, 1),
            "usable_gib": round(miss.usable_bytes / GIB, 1),
            "over_gib": round((miss.peak_bytes - miss.usable_bytes) / GIB, 1),
        }
    return {
        "says": says,
        "late": limit_notes,
        "conflicts": [
            [{"code": part.code, "text": part.text} for part in conflict.parts]
            for conflict in result.conflicts
        ],
        "closest": closest,
        "relaxations": [_relaxation(each) for each in result.relaxations],
    }


def _relaxation(each: "Relaxation") -> Data:
    return {
        "change": each.change,
        "kind": each.kind,
        "command": each.command,
        "layout": shown_layout(each.layout) if each.layout else "",
        "step": _time(each.step_time_s) if each.step_time_s else "",
    }


_OPTIONS = {
    "--pin": "pins",
    "--only": "only",
    "--max": "max",
    "--set": "set",
    "--framework": "framework",
    "--stack": "stack",
    "--pool": "pool",
    "--objective": "objective",
    "--within": "within",
    "--memory-margin": "memory_margin",
    "--deadline": "deadline",
    "--step-limit": "step_limit_s",
    "--pareto": "pareto",
}


def asked_by(command: str, request: Mapping[str, Any]) -> Data | None:
    """Return the solve request that a suggested command asks, None where a page cannot.

    Its documents are those of `request`; what it sets, pins and limits is the command's.
    """
    parts = shlex.split(command)
    if parts[:2] != ["planner", "solve"] or len(parts) < 4 or len(parts) % 2:
        return None
    entries: Data = {
        key: request[key] for key in ("model", "cluster", "calibration", "top") if key in request
    }
    for option, value in zip(parts[4::2], parts[5::2], strict=True):
        name = _OPTIONS.get(option)
        if name is None:
            return None
        if name in ("pins", "only", "max", "set"):
            key, _, text = value.partition("=")
            mapping = entries.setdefault(name, {})
            if name == "only":
                mapping[key] = text.split(",")
            else:
                mapping[key] = int(text) if name == "max" else text
        elif name in ("within", "memory_margin", "step_limit_s"):
            entries[name] = float(value)
        else:
            entries[name] = value.split(",") if name == "pareto" else value
    return entries


# The scatter


def pareto_rows(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the places of points that no other beats in both, by growing x; less is better."""
    order = sorted(range(len(points)), key=lambda i: (*points[i], i))
    results: list[int] = []
    for i in order:
        if not results or points[i][1] < points[results[-1]][1] * (1 - EQUAL_FRAC):
            results.append(i)
    return results


def scatter(result: "Result") -> "Chart":
    """Return step time against memory of all plans: front, ties, intervals, the limit."""
    from planner.render.charts.chart import Chart, Frame
    from planner.render.report.answers import AnswerTable
    from planner.render.report.theme import CATEGORIES

    plans = result.plans
    longest = max(plan.step_time_s for plan in plans)
    factor, unit = (1.0, "s") if longest >= 10 else (1e3, "ms")
    points = [(p.step_time_s * factor, p.breakdown.peak_bytes / GIB) for p in plans]
    best = pareto_rows(points)
    ties = [i for i, plan in enumerate(plans) if plan.tie]
    named = {*best, *ties, 0}
    others = [i for i in range(len(plans)) if i not in named]
    drawn = others[:: max(1, -(-len(others) // MOST_DRAWN))]

    def trace(rows: Sequence[int], name: str, bars: bool = False, **more: Any) -> Data:
        entries: Data = {
            "type": "scatter",
            "name": name,
            "mode": "markers",
            "x": [round(points[i][0], 3) for i in rows],
            "y": [round(points[i][1], 2) for i in rows],
            "customdata": [[plans[i].rank, plans[i].plan_id] for i in rows],
            "text": [shown_layout(plans[i].layout) for i in rows],
            "hovertemplate": "#%{customdata[0]} %{customdata[1]}<br>%{text}<br>"
            f"%{{x:.4~g}} {unit}, %{{y:.1f}} GiB<extra>{name}</extra>",
            **more,
        }
        if bars and rows and len(rows) <= MOST_BARS:
            above = [(plans[i].step_time_p90_s - plans[i].step_time_s) * factor for i in rows]
            below = [(plans[i].step_time_s - plans[i].step_time_p10_s) * factor for i in rows]
            entries["error_x"] = {
                "type": "data",
                "symmetric": False,
                "thickness": 1.2,
                "width": 4,
                "color": "rgba(125, 145, 170, 0.55)",
                "array": [round(max(0.0, x), 3) for x in above],
                "arrayminus": [round(max(0.0, x), 3) for x in below],
            }
        return entries

    grey = {"size": 6, "opacity": 0.45, "color": "#8b949e"}
    front_line = {"width": 2, "shape": "hv", "color": CATEGORIES[0]}
    traces = [
        trace(drawn, "other plans", marker=grey),
        trace(
            [i for i in ties if i],
            "ties with it",
            marker={
                "size": 9,
                "symbol": "diamond-open",
                "color": CATEGORIES[1],
                "line": {"width": 2},
            },
        ),
        trace(
            best,
            "front",
            bars=True,
            mode="lines+markers",
            line=front_line,
            marker={"size": 8, "color": CATEGORIES[0]},
        ),
        trace(
            [0],
            called(result).lower(),
            bars=True,
            marker={"size": 14, "symbol": "star", "color": CATEGORIES[5]},
        ),
    ]
    limits = sorted({round(plan.usable_bytes / GIB, 1) for plan in plans})
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    wide = high / low > 3
    room = 0.08 * (high - low) or 0.02 * high
    shown = (
        [math.log10(low * 0.95), math.log10(high * 1.05)] if wide else [low - room, high + room]
    )
    for limit in limits:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"usable memory, {limit:g} GiB",
                "x": [low - room, high + room],
                "y": [limit, limit],
                "line": {"dash": "dash", "width": 1.5, "color": CATEGORIES[5]},
                "hoverinfo": "name",
            }
        )
    layout = {
        "xaxis": {"title": {"text": f"step time ({unit})"}, "range": shown}
        | ({"type": "log"} if wide else {}),
        "yaxis": {"title": {"text": "memory of the fullest device (GiB)"}},
    }
    rows = tuple(
        (
            plans[i].rank,
            plans[i].plan_id,
            round(points[i][0], 2),
            round(points[i][1], 2),
            shown_layout(plans[i].layout),
        )
        for i in best
    )
    notes = [
        f"The front is that of the {len(plans):,} plans listed. Bars: 8 of 10 measured steps would"
        " lie within them; a double click shows those whole that are wider than the figure."
    ]
    if len(drawn) < len(others):
        notes.append(
            f"{len(drawn) + len(named):,} of {len(plans):,} plans are drawn, evenly chosen."
        )
    return Chart(
        "scatter",
        "Step time against memory",
        _says(result, points, best, ties, unit),
        Frame(height=440, layout=layout).figure(traces),
        AnswerTable(("#", "Plan", f"Step ({unit})", "Memory (GiB)", "Layout"), rows),
        tuple(notes),
    )


def _the_first(result: "Result") -> str:
    front = result.inputs["options"].get("pareto")
    return "the first of the front" if front else "the recommended one"


def _says(
    result: "Result",
    points: Sequence[tuple[float, float]],
    best: Sequence[int],
    ties: Sequence[int],
    unit: str,
) -> str:
    first, last = points[best[0]], points[best[-1]]
    message = (
        f"The fastest of {len(points):,} plans takes {first[0]:.4g} {unit} and {first[1]:.1f} GiB"
    )
    if best[0]:
        chosen, ties_with = points[0], result.plans[best[0]].tie
        message += (
            f"; {_the_first(result)}{', which ties with it,' if ties_with else ''} takes"
            f" {chosen[0]:.4g} {unit} and {chosen[1]:.1f} GiB"
        )
    message += "."
    if len(best) > 1:
        message += (
            f" No other plan is both faster and smaller than the {len(best)} of the front, down to"
            f" {last[1]:.1f} GiB for {last[0]:.4g} {unit}."
        )
    n_ties = sum(1 for i in ties if i)
    if n_ties:
        message += (
            f" {n_ties} {'plan ties' if n_ties == 1 else 'plans tie'} with {_the_first(result)}."
        )
    return message


def _figure(chart: "Chart") -> Data:
    from service.pages.figures import chart_data

    return chart_data(chart)


def _unwrapped(lines: Sequence[str]) -> list[str]:
    """Return lines that were broken for a terminal as whole ones: continued ones are indented."""
    results: list[str] = []
    for line in lines:
        if line.startswith("  ") and results:
            results[-1] += f" {line.strip()}"
        else:
            results.append(line.strip())
    return results
