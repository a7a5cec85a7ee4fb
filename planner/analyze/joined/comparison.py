"""Two plans, at least one of them over several pools, term by term; what would turn it round."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from costmodels.mixed.prices import price
from costmodels.mixed.sharded_prices import sharded_price
from costmodels.plans import Layout
from planner.documents import LibraryAnswer
from planner.solver.answer.reasons import shown_layout, stage_words
from planner.solver.answer.result import Plan
from planner.solver.answer.result_store import Opened
from planner.solver.together.link_worth import with_bandwidth
from planner.solver.together.opened import OpenedSeveral
from planner.solver.together.plans import TERMS
from planner.solver.together.records import (
    SHARDED_ZERO,
    JoinedKind,
    JoinedPlan,
    JoinedStage,
)
from planner.solver.together.replicas.opened import OpenedSharded
from planner.solver.together.sharded import with_bandwidth as sharded_with_bandwidth

MORE_BANDWIDTH = (1.5, 2.0, 4.0, 8.0, 16.0)
"""Multiples of a link's bandwidth that are tried, the mildest first; and their inverses."""
TERM_OF_ONE_POOL: Mapping[str, str] = {
    "bubble": "bubble",
    "pp": "messages",
    "straggler": "straggle",
    "dp": "sync",
    "overlap": "sync",
    "optimizer": "update",
    "offload": "update",
    "fixed": "fixed",
}
"""Term that one of a plan on one pool counts as; all others are within blocks: compute."""
MEMORY_OF_ONE_POOL: Mapping[str, str] = {
    "states": "states",
    "activations": "activations",
    "fragmentation": "activations",
}
"""The same of memory; all others are `other`."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two plans in the terms that both have; seconds and bytes."""

    plan_id: str
    name: str
    """`plan t1`, `plan 1`."""
    layout: str
    devices: Mapping[str, int]
    """By pool."""
    step_time_s: float
    tokens_per_s: float
    time: Mapping[str, float]
    """Of the pipelines that others wait for; sums to the step."""
    memory: Mapping[str, float]
    """Of the device with least free."""
    usable_bytes: float
    traffic: Mapping[str, float]
    """Bytes a step by link between pools."""
    axes: Mapping[str, str]
    """What tells layouts apart, in words."""

    @property
    def n_devices(self) -> int:
        """Devices of all pools."""
        return sum(self.devices.values())

    @property
    def peak_bytes(self) -> float:
        """Memory of the device with least free."""
        return sum(self.memory.values())

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the plan."""
        return {
            "plan_id": self.plan_id,
            "layout": self.layout,
            "devices": dict(self.devices),
            "step_time_s": self.step_time_s,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_device": self.tokens_per_s / self.n_devices,
            "peak_bytes": round(self.peak_bytes),
            "usable_bytes": round(self.usable_bytes),
        }


@dataclass(frozen=True, slots=True)
class JoinedComparison(LibraryAnswer):
    """Two plans side by side. Differences are B less A, in seconds and bytes."""

    a: Side
    b: Side
    inputs: tuple[str, ...]
    """What differs in model and job."""
    turns: tuple[str, ...]
    """Bandwidths of links with which the slower plan would win; none where the jobs differ."""

    @property
    def winner(self) -> str:
        """`A` or `B`, whichever trains more tokens a second; empty where both do the same."""
        if abs(self.a.tokens_per_s / self.b.tokens_per_s - 1.0) < 1e-9:
            return ""
        return "A" if self.a.tokens_per_s > self.b.tokens_per_s else "B"

    @property
    def layout(self) -> list[tuple[str, str, str]]:
        """What the layouts differ in: axis, value in A, value in B."""
        return [
            (axis, x, self.b.axes[axis])
            for axis, x in self.a.axes.items()
            if x != self.b.axes[axis]
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison in seconds, bytes and fractions."""
        a, b = self.a, self.b
        return {
            "a": a.to_json(),
            "b": b.to_json(),
            "winner": self.winner,
            "tokens_per_s_ratio": b.tokens_per_s / a.tokens_per_s,
            "inputs": list(self.inputs),
            "layout": [
                {"axis": axis, "a": x, "b": y, "meaning": ""} for axis, x, y in self.layout
            ],
            "time": {
                term: _pair(a.time[term], b.time[term], a.step_time_s)
                for term in TERMS
                if a.time[term] or b.time[term]
            },
            "memory": {name: _pair(x, b.memory[name]) for name, x in a.memory.items()},
            "traffic": {
                name: {"bytes": _pair(a.traffic.get(name, 0.0), b.traffic.get(name, 0.0))}
                for name in sorted({**a.traffic, **b.traffic})
            },
            "turns": list(self.turns),
        }

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same plans."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def _pair(a: float, b: float, total: float = 0.0) -> dict[str, float]:
    pair = {"a": a, "b": b, "difference": b - a}
    return pair | ({"share_of_a": (b - a) / total} if total else {})


def compare_joined(
    first: OpenedSeveral | Opened, second: OpenedSeveral | Opened
) -> JoinedComparison:
    """Return the comparison of two opened plans, A and B."""
    a, b = (side_of(x[3] if isinstance(x, tuple) else x.plan) for x in (first, second))
    comparison = JoinedComparison(a, b, tuple(_input_differences(first, second)), ())
    if comparison.inputs or not comparison.winner:
        return comparison
    lost, won = (second, first) if comparison.winner == "A" else (first, second)
    return JoinedComparison(a, b, (), tuple(_turns(lost, won)))


def side_of(plan: JoinedPlan | Plan) -> Side:
    """Return a plan in the terms that plans over one pool and over several have."""
    return _joined_side(plan) if isinstance(plan, JoinedPlan) else _one_pool_side(plan)


def _joined_side(plan: JoinedPlan) -> Side:
    slowest = max(plan.kinds, key=lambda x: x.step_time_s)
    stages = [stage for kind in plan.kinds for stage in kind.stages]
    full = max(stages, key=lambda x: x.peak_bytes / x.usable_bytes)
    return Side(
        plan_id=plan.plan_id,
        name=f"plan t{plan.rank}",
        layout=_layout_words(plan),
        devices=dict(plan.devices),
        step_time_s=plan.step_time_s,
        tokens_per_s=plan.tokens_per_s,
        time={term: slowest.time[term] for term in TERMS},
        memory={
            "states": full.states_bytes,
            "activations": full.activation_bytes,
            "other": full.other_bytes,
        },
        usable_bytes=full.usable_bytes,
        traffic={" - ".join(sorted(x.between)): x.bytes for x in plan.links},
        axes={
            "devices": _devices_words(plan.devices),
            "replicas": str(sum(kind.n_pipelines for kind in plan.kinds) // plan.shard),
            "shard": str(plan.shard),
            "stages": _several(len(kind.stages) for kind in plan.kinds),
            "tp": _several(x.tp for x in stages),
            "cp": _several(x.cp for x in stages),
            "ep": _several(x.ep for x in stages),
            "mbs": _several(kind.mbs for kind in plan.kinds),
            "micro-batches": _several(kind.n_micro for kind in plan.kinds),
            "layers": "; ".join(_layers_words(kind.stages) for kind in plan.kinds),
            "recompute": _several(x.recompute for x in stages),
            "zero": str(plan.zero),
        },
    )


def _one_pool_side(plan: Plan) -> Side:
    x, breakdown = plan.layout, plan.breakdown
    time = dict.fromkeys(TERMS, 0.0)
    for term, seconds in breakdown.time_s.items():
        time[TERM_OF_ONE_POOL.get(term, "compute")] += seconds
    memory = {"states": 0.0, "activations": 0.0, "other": 0.0}
    for term, n_bytes in breakdown.stages[breakdown.peak_stage].items():
        memory[MEMORY_OF_ONE_POOL.get(term, "other")] += n_bytes
    devices = {plan.pool: x.n_devices}
    # Data-parallel ranks that hold the weights once between them, as of sharded replicas.
    shard = max(1, x.dp_shard // x.cp) if x.zero == SHARDED_ZERO else 1
    return Side(
        plan_id=plan.plan_id,
        name=f"plan {plan.rank}",
        layout=shown_layout(x),
        devices=devices,
        step_time_s=plan.step_time_s,
        tokens_per_s=plan.tokens_per_s,
        time=time,
        memory=memory,
        usable_bytes=plan.usable_bytes,
        traffic={},
        axes={
            "devices": _devices_words(devices),
            "replicas": str(x.dp // shard),
            "shard": str(shard),
            "stages": str(x.pp),
            "tp": str(x.tp),
            "cp": str(x.cp),
            "ep": str(x.ep),
            "mbs": str(x.mbs),
            "micro-batches": str(x.n_micro),
            "layers": f"{plan.pool} {stage_words(_rank_layers(x))}",
            "recompute": x.recompute,
            "zero": str(x.zero),
        },
    )


def _layout_words(plan: JoinedPlan) -> str:
    """Return the pipelines or the sharded replicas of a plan in words."""
    if not plan.is_sharded:
        return "; ".join(map(_kind_words, plan.kinds))
    stage = plan.kinds[0].stages[0]
    each = plan.shard * stage.tp * stage.cp
    return "; ".join(
        f"{n} sharded replica{'s' * (n > 1)} of {each} devices on {kind.pools[0]}"
        for kind in plan.kinds
        if (n := kind.n_pipelines // plan.shard)
    )


def _kind_words(kind: JoinedKind) -> str:
    """Return pipelines in words: `2 pipelines of 2 stages over new and old`."""
    return (
        f"{kind.n_pipelines} pipeline{'s' * (kind.n_pipelines > 1)} of {len(kind.stages)}"
        f" stage{'s' * (len(kind.stages) > 1)} over {' and '.join(kind.pools)}"
    )


def _layers_words(stages: tuple[JoinedStage, ...]) -> str:
    """Return the layers of stages by pool: `old 3x7 new 5x10-9`."""
    runs = groupby(stages, key=lambda x: x.pool)
    return " ".join(f"{pool} {stage_words([x.layers for x in run])}" for pool, run in runs)


def _rank_layers(layout: Layout) -> list[int]:
    """Return the layers of each pipeline rank, all its chunks together."""
    return [
        sum(layout.stage_layers[j] for j in layout.stages_of(rank)) for rank in range(layout.pp)
    ]


def _devices_words(devices: Mapping[str, int]) -> str:
    return " + ".join(f"{n} {name}" for name, n in sorted(devices.items()))


def _several(values: Any) -> str:
    """Return values in words, each once: `4+2`."""
    return "+".join(dict.fromkeys(map(str, values)))


def _input_differences(
    first: OpenedSeveral | Opened, second: OpenedSeveral | Opened
) -> Iterator[str]:
    """Yield what differs between model and job of two plans, in words."""
    a, b = (x[0] if isinstance(x, tuple) else x.model for x in (first, second))
    for section in ("model", "training"):
        one, other = a.document[section], b.document[section]
        keys = [k for k in {**one, **other} if one.get(k) != other.get(k)]
        if keys:
            shown = [f"{key} {one.get(key)} -> {other.get(key)}"[:60] for key in keys[:4]]
            more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
            yield f"{section}: {', '.join(shown)}{more}"


def _turns(lost: OpenedSeveral | Opened, won: OpenedSeveral | Opened) -> Iterator[str]:
    """Yield the mildest bandwidth of each link with which the slower of two plans would win."""
    edges: dict[str, None] = {}
    for opened in (lost, won):
        if not isinstance(opened, tuple):
            names = [pool.name for pool in opened.problem.pools]
            for a, b in opened.priced.crossing_bytes:
                edges[" - ".join(sorted((names[a], names[b])))] = None
    for link in edges:
        for ratio in (y for x in MORE_BANDWIDTH for y in (x, 1.0 / x)):
            if _step_s(lost, link, ratio) < _step_s(won, link, ratio):
                text = f"{ratio:g}" if ratio > 1.0 else f"1/{1.0 / ratio:g}"
                yield f"{text} times the bandwidth of link {link}"
                break


def _step_s(opened: OpenedSeveral | Opened, link: str, ratio: float) -> float:
    """Return the step of a plan at a multiple of the bandwidth of a link between pools."""
    if isinstance(opened, tuple):
        return float(opened[3].step_time_s)
    names = [pool.name for pool in opened.problem.pools]
    edges = [
        edge
        for edge in opened.problem.links
        if " - ".join(sorted(names[place] for place in edge)) == link
    ]
    if isinstance(opened, OpenedSharded):
        sharded = opened.problem
        for edge in edges:
            wanted = sharded.links[edge].bytes_per_s * ratio
            sharded = sharded_with_bandwidth(sharded, edge, wanted)
        return sharded_price(opened.sharded, sharded).step_s
    problem = opened.problem
    for edge in edges:
        problem = with_bandwidth(problem, edge, problem.links[edge].bytes_per_s * ratio)
    return price(opened.mixed, problem).step_s
