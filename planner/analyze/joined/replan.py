"""A running plan over several pools lost or gained nodes: what now, and does moving pay?

As `planner.analyze.replan.replan` for one pool: the best plan on the nodes that are left is a full
search over them; beside it stands the old layout with as many of its pipelines as they hold. Both
stop training for a checkpoint, w + max(R, (W + K) N / B) + r, or while the state moves between the
devices (`planner.analyze.joined.moving`).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from costmodels.mixed.prices import fits
from costmodels.run.goodput import best_interval_s, checkpoint_time_s, job_mtbf_s, saved_bytes
from planner.analyze.joined.comparison import Side, side_of
from planner.analyze.joined.moving import network_move
from planner.analyze.joined.nodes import LostNodes, gained_nodes, lost_nodes
from planner.analyze.replan.gained import Gained
from planner.analyze.replan.replan import Via, crossing_s, open_options
from planner.analyze.sharded.carried import carried_sharded
from planner.documents import LibraryAnswer
from planner.errors import UsageError
from planner.option_names import option
from planner.solver.answer.result import Plan, Result
from planner.solver.execution import Execution
from planner.solver.together.fewer import with_fewer_pipelines
from planner.solver.together.opened import (
    OpenedJoined,
    OpenedSeveral,
    mixed_plan,
    plan_problem,
)
from planner.solver.together.plans import PlanRecords
from planner.solver.together.ranking import value_of
from planner.solver.together.records import JoinedPlan
from planner.solver.together.replicas.opened import OpenedSharded
from planner.specs.inputs import ClusterInput


@dataclass(frozen=True, slots=True)
class JoinedMove:
    """What it takes to get from the running plan to another one; seconds."""

    checkpoint_bytes: float
    read_s: float
    write_s: float
    """To write one before a planned change; 0 after a loss."""
    redo_s: float
    """Expected work since the last checkpoint, done again."""
    restart_s: float
    stop_s: float
    """How long training stops, work done again included."""
    network_s: float | None = None
    """Between the devices; None where it is not known, or what they hold is not all."""
    total_bytes: float | None = None
    """That devices lack."""
    via: Via = "checkpoint"

    def to_json(self) -> dict[str, Any]:
        """Return the figures under their names, bytes as whole numbers."""
        total = None if self.total_bytes is None else round(self.total_bytes)
        checkpoint = round(self.checkpoint_bytes)
        return {**asdict(self), "checkpoint_bytes": checkpoint, "total_bytes": total}


@dataclass(frozen=True, slots=True)
class JoinedReplan(LibraryAnswer):
    """The answer of `replan` for a plan over several pools."""

    old: JoinedPlan
    lost: LostNodes
    result: Result
    """Of the search on the nodes that are left."""
    best: Side | None
    """The best plan now, over one pool or several; None where nothing fits."""
    carry_on: JoinedPlan | None
    """The old layout with fewer pipelines; None where it cannot go on."""
    reason: str
    """Why it cannot, or what changed in it."""
    changes: tuple[tuple[str, str, str], ...]
    """What differs between the old plan and the best: axis, old, new."""
    move: JoinedMove
    """To the best plan."""
    carry_move: JoinedMove
    """To the old layout with fewer pipelines: through the same checkpoint, or the network."""
    notes: tuple[str, ...]
    is_hit: bool
    """Whether the old plan ran on one of the lost nodes; else it runs on as it is."""

    @property
    def carry_on_stop_s(self) -> float:
        """How long carrying on stops training."""
        return self.carry_move.stop_s if self.is_hit else 0.0

    @property
    def break_even_s(self) -> float | None:
        """After how many seconds moving is ahead; None where it never is, or is the only way."""
        if self.best is None or self.carry_on is None:
            return None
        return crossing_s(
            (self.best.tokens_per_s, self.move.stop_s),
            (self.carry_on.tokens_per_s, self.carry_on_stop_s),
        )

    @property
    def verdict(self) -> str:
        """What to do: `move`, `carry on` or `nothing fits`."""
        if self.best is None:
            return "carry on" if self.carry_on else "nothing fits"
        if self.carry_on is None or self.break_even_s is not None:
            return "move"
        return "carry on"

    @property
    def exit_code(self) -> int:
        """0, 3 where nothing fits, 4 where the search was stopped."""
        return 3 if self.verdict == "nothing fits" else 4 if self.result.stopped else 0

    def to_json(self) -> dict[str, Any]:
        """Return the answer with the field names of docs/replan.md, plans as `together`."""
        nodes = self.lost.nodes
        carried = self.carry_on
        return {
            "schema_version": "1.0",
            "plan_id": self.old.plan_id,
            "nodes": {
                "before": sum(before for before, _ in nodes.values()),
                "lost": list(self.lost.names),
                "gained": sum(self.lost.gained.values()),
                "after": sum(after for _, after in nodes.values()),
                "pools": {name: {"before": x, "after": y} for name, (x, y) in nodes.items()},
            },
            "verdict": self.verdict,
            "break_even_s": self.break_even_s,
            "batch": {
                "global_batch": sum(kind.n_sequences for kind in self.old.kinds),
                "kept": self.best is not None,
                "idle_devices": None,
                "nearest": None,
            },
            "move": self.move.to_json() if self.best else None,
            "carry_on": {
                "plan": None,
                "reason": self.reason,
                "move": {**self.carry_move.to_json(), "stop_s": self.carry_on_stop_s}
                if carried
                else None,
                "nearest": None,
            },
            "complete": self.result.complete,
            "stopped": self.result.stopped,
            "result": self.result.to_json(),
            "notes": list(self.notes),
            "together": {
                "old": self.old.to_json(),
                "best": self.best.to_json() if self.best else None,
                "carry_on": carried.to_json() if carried else None,
                "changes": [{"axis": axis, "old": x, "new": y} for axis, x, y in self.changes],
            },
        }

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same plan and nodes."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def replan_joined(
    opened: OpenedSeveral,
    execution: Execution,
    *,
    lost: int | Sequence[str],
    gained: Gained = 0,
    via: Via = "checkpoint",
) -> JoinedReplan:
    """Return what to do with a running plan over several pools after some lost or gained nodes.

    `lost` are numbers of nodes by pool (`old=1`), or host names; `gained` numbers by pool. Raises
    `UsageError` for nodes that are not there. Where what moves between the devices is not known
    (`planner.analyze.joined.moving`) a note says why, and the state goes through a checkpoint.
    """
    from planner.solver.solve import solve_again

    joined = gained_nodes(opened.cluster, gained)
    gone = replace(lost_nodes(opened.cluster, opened.saved, lost), gained=joined)
    if not gone.by_pool and not joined:
        fix = "for example " + option("lost", "old=1") + ", or " + option("gained", "old=1")
        raise UsageError("no node is lost or gained", fix, "lost")
    left = gone.left()
    options = open_options(opened.options)
    result = solve_again(opened.model, left, options, execution)
    best = best_of(result, opened.options.objective, runs=bool(opened.plan.runs_on))
    carry = carried_sharded if isinstance(opened, OpenedSharded) else _carried_on
    carried, reason = carry(opened, left)  # type: ignore[arg-type]  # chosen by its type
    is_hit = _is_hit(opened, gone)
    move = _move(opened, best, left, is_loss=is_hit)
    moves = [_through(opened, gone, left, x, move, via) for x in (best, carried)]
    unknown = [f"{text}: through a checkpoint" for _, text in moves if text and via == "network"]
    old = side_of(opened.plan)
    found = side_of(best) if best else None
    new = found.axes if found else old.axes
    changes = [(axis, x, new[axis]) for axis, x in old.axes.items() if new[axis] != x]
    return JoinedReplan(
        old=opened.plan,
        lost=gone,
        result=result,
        best=found,
        carry_on=carried,
        reason=reason,
        changes=tuple(changes),
        move=moves[0][0],
        carry_move=moves[1][0],
        notes=(*_notes(lost, is_hit), *dict.fromkeys(unknown), *passed_over(result, best)),
        is_hit=is_hit,
    )


def _through(
    opened: OpenedSeveral,
    gone: LostNodes,
    left: ClusterInput,
    target: Plan | JoinedPlan | None,
    move: JoinedMove,
    via: Via,
) -> tuple[JoinedMove, str]:
    """Return a move with what it takes between the devices, and why that is not known."""
    if target is None:
        return move, ""
    found = network_move(opened, gone, left, target)
    if isinstance(found, str):
        return move, f"what moves between the devices is not known: {found}"
    more = replace(move, network_s=found.network_s, total_bytes=found.total_bytes)
    if found.network_s is None:
        return more, "what the lost nodes held is nowhere else"
    if via == "checkpoint":
        return more, ""
    stop_s = max(move.restart_s, found.network_s)
    return replace(more, write_s=0.0, redo_s=0.0, stop_s=stop_s, via="network"), ""


def _is_hit(opened: OpenedSeveral, gone: LostNodes) -> bool:
    """Tell whether a lost node is one of those that the plan uses, the first of each pool."""
    each = {pool.name: pool.devices_per_node for pool in opened.cluster.cluster.pools}
    used = {name: -(-n // each[name]) for name, n in opened.plan.devices.items()}
    return any(
        place < used.get(name, 0) for name, places in gone.by_pool.items() for place in places
    )


def best_of(result: Result, objective: str, *, runs: bool) -> Plan | JoinedPlan | None:
    """Return the best plan of an answer, on one pool or several.

    `runs` passes over plans over several pools that no framework runs: the old plan runs on one.
    """
    together = result.together
    joined = next((x for x in together.plans if x.runs_on or not runs), None) if together else None
    alone = result.plans[0] if result.plans else None
    if joined and (alone is None or value_of(joined, objective) < value_of(alone, objective)):
        return joined
    return alone


def passed_over(result: Result, best: Plan | JoinedPlan | None) -> tuple[str, ...]:
    """Return a note on the first plan over several pools where it is faster and runs nowhere."""
    first = result.together.plans[0] if result.together and result.together.plans else None
    if first is None or first.runs_on or best is None or first.step_time_s >= best.step_time_s:
        return ()
    less = 1.0 - first.step_time_s / best.step_time_s
    return (f"plan t1 takes {less:.1%} less time a step, but no framework has what it takes",)


def _carried_on(opened: OpenedJoined, left: ClusterInput) -> tuple[JoinedPlan | None, str]:
    """Return the old layout on the nodes that are left, and what changed; None and why not."""
    names = {pool.name for pool in left.cluster.pools}
    missing = [name for name in opened.plan.devices if name not in names]
    if missing:
        return None, f"nothing is left of pool {missing[0]}, which it uses"
    joined = plan_problem(
        opened.model, left, opened.options, list(opened.plan.devices), opened.plan
    )
    old = mixed_plan(opened.plan, [pool.name for pool in joined.mixed.pools])
    fewer = with_fewer_pipelines(old, joined.mixed)
    if fewer is None:
        return None, "the batch does not divide over the pipelines that are left"
    priced = joined.price(fewer)
    if not fits(fewer, joined.mixed, priced):
        return None, "with fewer pipelines it does not fit into memory"
    n_before, n_after = (sum(x.n_pipelines for x in p.kinds) for p in (old, fewer))
    text = "as it was" if n_before == n_after else f"pipelines {n_before} -> {n_after}"
    records = PlanRecords(opened.model, left, joined, opened.options.calibration)
    return records.record(fewer, priced, opened.plan.rank), text


def _move(
    opened: OpenedSeveral, best: Plan | JoinedPlan | None, left: ClusterInput, *, is_loss: bool
) -> JoinedMove:
    """Return what loading a checkpoint takes: the last one, with the work that is done again.

    Where the old plan lost nothing the change is planned, and one is written before.
    """
    used = opened.used
    operations = opened.cluster.operations
    first = operations[min(used)]
    n_bytes = saved_bytes(opened.problems[0])
    write_s = checkpoint_time_s(first, n_bytes, sum(used.values()))
    rate = sum(1.0 / job_mtbf_s(operations[i], n) for i, n in used.items())
    redo_s = best_interval_s(write_s, 1.0 / rate) / 2.0
    n_readers = sum(pool.n_devices for pool in left.cluster.pools)
    if isinstance(best, JoinedPlan):
        n_readers = best.n_devices
    elif best is not None:
        n_readers = best.layout.n_devices
    share = n_readers if first.bandwidth_is_per_device else 1
    read_s = n_bytes / (first.checkpoint_bytes_per_s * share)
    redo_s, write_s = (redo_s, 0.0) if is_loss else (0.0, write_s)
    stop_s = write_s + max(first.restart_s, read_s) + redo_s
    return JoinedMove(n_bytes, read_s, write_s, redo_s, first.restart_s, stop_s)


def _notes(lost: int | Sequence[str], is_hit: bool) -> list[str]:
    notes = []
    if not isinstance(lost, int) and any("=" in text for text in lost):
        notes.append("which nodes of a pool are lost is not said: the last in use are taken")
    if is_hit:
        notes.append("work since the last checkpoint is half of the interval that loses least")
    else:
        notes.append("the old layout runs on as it is: moving is planned, after a checkpoint")
    return notes
