"""Two plans term by term: why one beats the other, and what would turn it round."""

import json
from dataclasses import dataclass, replace
from typing import Any

from costmodels.axes import AXES
from costmodels.breakdown import break_down
from costmodels.documentation.terms import ALL_TIME_TERMS
from costmodels.plans import Layout
from costmodels.problem import Problem
from planner.analyze.neighborhood import single_changes
from planner.analyze.recommend.questions import with_bandwidth
from planner.documents import LibraryAnswer
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan
from planner.solver.answer.result_store import Opened
from planner.units import GIB

LINK_RATIOS = (1.5, 2.0, 4.0, 8.0, 1 / 1.5, 0.5, 0.25, 0.125)
"""Multiples of a link's bandwidth that are tried, the mildest first in either direction."""
BATCH_RATIOS = (2, 4, 8, 16)
"""Multiples of the global batch that are tried."""


@dataclass(frozen=True, slots=True)
class Comparison(LibraryAnswer):
    """Two plans side by side. Differences are B less A, in seconds and bytes."""

    first: Opened
    second: Opened
    inputs: tuple[str, ...]
    """What differs besides layout and precision: model, job, cluster, software."""
    layout: tuple[tuple[str, str, str, str], ...]
    """Axis, value in A, value in B, what that means."""
    turns: tuple[str, ...]
    """What would make the slower plan win; empty where the jobs differ or neither is slower."""

    @property
    def plans(self) -> tuple[Plan, Plan]:
        """A and B."""
        return self.first[3], self.second[3]

    @property
    def winner(self) -> str:
        """`A` or `B`, whichever trains more tokens a second; empty where both do the same."""
        a, b = self.plans
        if abs(a.tokens_per_s / b.tokens_per_s - 1.0) < 1e-9:
            return ""
        return "A" if a.tokens_per_s > b.tokens_per_s else "B"

    def to_json(self) -> dict[str, Any]:
        """Return the comparison in seconds, bytes and fractions."""
        a, b = self.plans
        return {
            "a": _side_json(a),
            "b": _side_json(b),
            "winner": self.winner,
            "tokens_per_s_ratio": b.tokens_per_s / a.tokens_per_s,
            "inputs": list(self.inputs),
            "layout": [
                {"axis": axis, "a": x, "b": y, "meaning": meaning}
                for axis, x, y, meaning in self.layout
            ],
            "time": {term: _pair(*x, a.step_time_s) for term, x in time_terms(a, b).items()},
            "memory": {term: _pair(*x) for term, x in worst_stage_memory(a, b).items()},
            "traffic": {
                axis: {name: _pair(*x) for name, x in values.items()}
                for axis, values in traffic_terms(a, b).items()
            },
            "turns": list(self.turns),
        }

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same plans."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def _pair(a: float, b: float, total: float = 0.0) -> dict[str, float]:
    out = {"a": a, "b": b, "difference": b - a}
    return out | {"share_of_a": (b - a) / total} if total else out


def _side_json(plan: Plan) -> dict[str, Any]:
    return {
        "plan_id": plan.plan_id,
        "layout": shown_layout(plan.layout),
        "step_time_s": plan.step_time_s,
        "tokens_per_s": plan.tokens_per_s,
        "tokens_per_s_per_device": plan.tokens_per_s_per_device,
        "mfu": plan.mfu,
        "mfu_bf16": plan.mfu_bf16,
        "peak_bytes": plan.breakdown.peak_bytes,
        "peak_stage": plan.breakdown.peak_stage,
        "usable_bytes": plan.usable_bytes,
        "slowest_stage": plan.breakdown.critical_stage,
    }


def compare(first: Opened, second: Opened) -> Comparison:
    """Return the comparison of two opened plans, A and B."""
    inputs = tuple(_input_differences(first, second))
    comparison = Comparison(first, second, inputs, tuple(_layout_differences(first, second)), ())
    if inputs or not comparison.winner:
        return comparison
    lost, won = (second, first) if comparison.winner == "A" else (first, second)
    names = ("B", "A") if comparison.winner == "A" else ("A", "B")
    return replace(comparison, turns=tuple(_turns(lost, won, names)))


def _input_differences(first: Opened, second: Opened) -> list[str]:
    """Return what differs between the problems of two plans besides the precision, in words."""
    out = []
    for name, a, b in (
        ("model", first[0].document["model"], second[0].document["model"]),
        ("training", first[0].document["training"], second[0].document["training"]),
        ("fabric", first[1].document["fabric"], second[1].document["fabric"]),
        ("pool", first[1].document["pools"][0], second[1].document["pools"][0]),
    ):
        keys = [k for k in {**a, **b} if a.get(k) != b.get(k) and k != "precision"]
        if keys:
            shown = [f"{key} {_short(a.get(key))} -> {_short(b.get(key))}" for key in keys[:4]]
            more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
            out.append(f"{name}: {', '.join(shown)}{more}")
    stacks = first[2].stack.name, second[2].stack.name
    if stacks[0] != stacks[1]:
        out.append(f"software: {stacks[0]} -> {stacks[1]}")
    return out


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("name", "other")
    text = "none" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:21]}..."


GROUPED_AXES = (
    "split",
    "activation_offload",
    "recompute",
    "recompute_layers",
    "recompute_modules",
)
"""Axes whose differences are one line together with others."""


def _layout_differences(first: Opened, second: Opened) -> list[tuple[str, str, str, str]]:
    """Return the axes that differ, with what the difference means."""
    a, b = first[3].layout, second[3].layout
    sharded = "nothing", "optimizer states", "optimizer states and gradients", "all states"
    tokens = first[2].job.seq_len, second[2].job.seq_len
    experts = first[2].shape.n_experts, second[2].shape.n_experts
    tokens_of = tuple(n // x.cp for n, x in zip(tokens, (a, b), strict=True))
    experts_of = tuple(n // x.ep for n, x in zip(experts, (a, b), strict=True))
    copies = tuple(x.dp * x.cp // x.dp_shard for x in (a, b))
    # What a difference means where the values of both plans say more than the axis.
    of_parallelism = {
        "tp": f"a layer is cut over {a.tp} -> {b.tp} devices",
        "pp": f"{a.pp} -> {b.pp} pipeline stages of {_stage_range(a)} -> {_stage_range(b)} layers",
        "dp": f"{a.dp} -> {b.dp} copies of the model share the batch",
        "cp": f"{tokens_of[0]:,} -> {tokens_of[1]:,} tokens of a sequence a rank",
        "ep": f"{experts_of[0]} -> {experts_of[1]} experts on a rank",
        "etp": f"an expert is cut over {a.etp} -> {b.etp} devices",
        "vpp": f"{a.vpp} -> {b.vpp} chunks a stage",
    }
    of_ranks = {
        "rank_order": (
            f"the next stage of a pipeline is {a.stage_stride} -> {b.stage_stride} ranks away"
        ),
        "zero": f"{sharded[a.zero]} -> {sharded[b.zero]} sharded",
        "dp_shard": (
            f"ranks over which ZeRO shards, {copies[0]} -> {copies[1]} copies of what it shards"
        ),
    }
    special = of_parallelism | of_ranks
    message = {"n_devices": ("devices", "devices in use")}
    for axis in AXES.values():
        message[axis.name] = (
            axis.label or axis.name,
            special.get(axis.name) or axis.meaning or axis.title,
        )
        if axis.name == "mbs":
            message["gbs"] = ("gbs", "sequences in a step")
            message["n_micro"] = (
                "n_micro",
                f"{a.n_micro} -> {b.n_micro} micro-batches through a pipeline",
            )
    for name in GROUPED_AXES:
        del message[name]
    out = []
    recipes = first[2].job.recipe, second[2].job.recipe
    if recipes[0] != recipes[1]:
        names = first[3].precision, second[3].precision
        out.append(("precision", *names, f"{recipes[0].name} -> {recipes[1].name}"))
    for field, (name, meaning) in message.items():
        values = tuple(x.value(field) if field in AXES else getattr(x, field) for x in (a, b))
        if values[0] != values[1]:
            out.append((name, _value_text(values[0]), _value_text(values[1]), meaning))
    if a.stage_layers != b.stage_layers and len(a.stage_layers) == len(b.stage_layers):
        out.append(("split", a.split, b.split, "layers of the stages"))
    recomputed = [f"{x.recompute_text} {x.recompute_layers or ''}".strip() for x in (a, b)]
    if recomputed[0] != recomputed[1]:
        what = "what runs forward twice, layers of a virtual stage"
        out.append(("recompute", recomputed[0], recomputed[1], what))
    return out


def _stage_range(layout: Layout) -> str:
    counts = [sum(layout.chunks_of(rank)) for rank in range(layout.pp)]
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) or "none"


def time_terms(a: Plan, b: Plan) -> dict[str, tuple[float, float]]:
    """Return the time terms of both, seconds, the largest difference first."""
    both = {
        t: (a.breakdown.time_s.get(t, 0.0), b.breakdown.time_s.get(t, 0.0)) for t in ALL_TIME_TERMS
    }
    ordered = sorted(both.items(), key=lambda x: (-abs(x[1][1] - x[1][0]), x[0]))
    return {term: pair for term, pair in ordered if max(pair) > 0.0}


def worst_stage_memory(a: Plan, b: Plan) -> dict[str, tuple[float, float]]:
    """Return the memory terms of both worst stages, bytes."""
    sides = [plan.breakdown.stages[plan.breakdown.peak_stage] for plan in (a, b)]
    return {term: (sides[0][term], sides[1][term]) for term in sides[0]}


def traffic_terms(a: Plan, b: Plan) -> dict[str, dict[str, tuple[float, float]]]:
    """Return by axis what a device sends, how long that takes and is waited for."""
    out: dict[str, dict[str, tuple[float, float]]] = {}
    for axis in ("tp", "cp", "ep", "pp", "dp", "host"):
        sides = [[t for t in plan.breakdown.transfers if t.axis == axis] for plan in (a, b)]
        if any(sides):
            out[axis] = {
                name: (
                    sum(getattr(t, name) for t in sides[0]),
                    sum(getattr(t, name) for t in sides[1]),
                )
                for name in ("n_calls", "sent_bytes", "time_s", "exposed_s")
            }
    return out


def _turns(lost: Opened, won: Opened, names: tuple[str, str]) -> list[str]:
    """Return what would make the slower of two plans of one problem win, in words.

    Each thing alone, priced anew: its own terms, one change of its layout, a link, the batch.
    """
    slow, fast = lost[3], won[3]
    loser, winner = names
    gap = slow.step_time_s - fast.step_time_s
    out = []
    if slow.headroom_frac < 0:
        over = slow.breakdown.peak_bytes - slow.usable_bytes
        out.append(f"{loser} does not fit: {over / GIB:.1f} GiB too many")
    worse = [(t, x - y) for t, (y, x) in time_terms(fast, slow).items() if x > y]
    chosen: list[str] = []
    total = 0.0
    for term, loss in sorted(worse, key=lambda x: (-x[1], x[0])):
        if total > gap:
            break
        chosen.append(term)
        total += loss
    out.append(
        f"{loser} is {_ms(gap)} ms behind: it wins with {' and '.join(chosen)} as in {winner}"
    )
    out += _one_change(lost[2], slow, fast, names)
    out += _other_hardware(lost, won, names)
    return out


def _one_change(problem: Problem, slow: Plan, fast: Plan, names: tuple[str, str]) -> list[str]:
    """Return the best single change of the slower plan that fits, if it wins."""
    fitting = [
        (c.near.step_s, c)
        for c in single_changes(problem, slow.layout, recipes=[fast.precision])
        if c.near and c.near.peak_bytes <= slow.usable_bytes
    ]
    if not fitting:
        return [f"no single change makes {names[0]} fit"]
    step_s, change = min(fitting, key=lambda x: (x[0], x[1].axis))
    what = f"{change.axis} {_value_text(change.old)} -> {_value_text(change.new)}"
    if step_s >= fast.step_time_s:
        return [f"no single change of {names[0]} is enough; the best is {what}, {step_s:.4f} s"]
    return [f"{names[0]} wins with {what}: {step_s:.4f} s"]


def _other_hardware(lost: Opened, won: Opened, names: tuple[str, str]) -> list[str]:
    """Return the mildest change of each link and of the batch under which the slower plan wins."""
    sides = [(opened[2], opened[3].layout) for opened in (lost, won)]
    out, failed = [], []
    for link in ("scale-up", "scale-out"):
        turned = [
            r for r in LINK_RATIOS if _beats(*((with_bandwidth(p, link, r), x) for p, x in sides))
        ]
        nearest = [next((r for r in turned if (r > 1) is up), None) for up in (True, False)]
        for ratio in nearest:
            if ratio:
                out.append(f"{names[0]} wins on {ratio:.3g} times the {link} bandwidth")
        if not turned:
            failed.append(f"a {link} link between 1/8 and 8 times its bandwidth")
    for ratio in BATCH_RATIOS:
        batch = sides[0][0].job.global_batch * ratio
        larger = (
            (replace(p, job=replace(p.job, global_batch=batch)), replace(x, gbs=x.gbs * ratio))
            for p, x in sides
        )
        if _beats(*larger):
            out.append(f"{names[0]} wins with a global batch of {batch:,}")
            break
    else:
        failed.append(f"a batch up to {BATCH_RATIOS[-1]} times as large")
    return out + ([f"not with {' or '.join(failed)}"] if failed else [])


def _beats(slow: tuple[Problem, Layout], fast: tuple[Problem, Layout]) -> bool:
    return break_down(*slow).step_s < break_down(*fast).step_s


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"
