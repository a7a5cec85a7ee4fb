"""`replan`: a running plan lost or gained nodes. What now, and does moving pay?

The best plan on the nodes that are there is a full search. Beside it stands the old layout with as
many of its data-parallel replicas as the nodes hold, where that is legal and fits. Moving to
either stops training for

    through a checkpoint:   w + max(R, (W + K) N / B) + r
    between the devices:    max(R, max over nodes of M_in / b_node, M / (n_alive b_node))

R the restart of a run, (W + K) N what a checkpoint holds, B the bandwidth of the storage, w the
time to write one where the change is planned, r half an interval between two checkpoints of work
done again where nodes were lost; M what devices lack (`planner.analyze.replan.resharding`), b the
bandwidth of their ports. Loading is a part of R, so only what it takes longer counts. Between the
devices it goes only where the nodes that are left hold everything, with software that can. Rates u
tokens a second and stops T of the two, a moved to and b carried on with, cross at

    t = (u_a T_a - u_b T_b) / (u_a - u_b)

after the change: what is done by then is the same, and from there on moving is ahead. Source: the
restart and the interval as in `costmodels.run.goodput`; the rest by counting. Left out:
checkpoints in the memory of other nodes, congestion by other jobs, memory for both states at once,
the time of the person who decides.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from costmodels.breakdown import break_down
from costmodels.plans import Layout
from costmodels.run.goodput import checkpoint_time_s, goodput, saved_bytes
from planner.analyze.replan.gained import Gained, gained_of_pool
from planner.analyze.replan.resharding import holdings, lacking_bytes, port_bytes_per_s, survives
from planner.documents import LibraryAnswer
from planner.errors import BadValue, EmitError, SearchError, SpecError, UsageError
from planner.option_names import option
from planner.solver.answer.result import Plan, Result
from planner.solver.answer.result_store import Opened
from planner.solver.execution import Execution
from planner.solver.options import SolveOptions
from planner.specs.importers.hostlist import compress_hosts, expand_hosts
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_from_dict
from planner.specs.search.axis_values import DEVICES, NUMERICS
from planner.units import GIB
from searches.device_counts import device_counts
from searches.rules import RULES, Context, first_broken_rule

Via = Literal["checkpoint", "network"]
BATCHES_TRIED = 4
"""Global batches nearest to that of the job that are searched for a plan on all devices."""


@dataclass(frozen=True, slots=True)
class Move:
    """What it takes to get from the running plan to another one. Bytes and seconds."""

    total_bytes: float
    """Weights and optimizer state that devices lack, all together."""
    max_bytes: float
    """Of the device that lacks most."""
    port_bytes_per_s: float
    """Bandwidth of one device to the others."""
    network_s: float | None
    """Between the devices; None where the nodes that are left do not hold everything."""
    checkpoint_bytes: float
    read_s: float
    """To read a checkpoint."""
    write_s: float
    """To write one before a planned change; 0 after a loss."""
    redo_s: float
    """Expected work since the last checkpoint, done again after a loss."""
    restart_s: float
    via: Via
    stop_s: float
    """How long training stops, work done again included."""

    def to_json(self) -> dict[str, Any]:
        """Return the figures under their names, bytes as whole numbers."""
        return {
            "total_bytes": round(self.total_bytes),
            "most_bytes_per_device": round(self.max_bytes),
            "port_bytes_per_s": self.port_bytes_per_s,
            "network_s": self.network_s,
            "checkpoint_bytes": round(self.checkpoint_bytes),
            "read_s": self.read_s,
            "write_s": self.write_s,
            "redo_s": self.redo_s,
            "restart_s": self.restart_s,
            "via": self.via,
            "stop_s": self.stop_s,
        }


@dataclass(frozen=True, slots=True)
class NearestBatch:
    """The global batch nearest to the job's with which a plan uses more devices."""

    global_batch: int
    plan: Plan

    def to_json(self, old_batch: int) -> dict[str, Any]:
        """Return the batch, its change and the plan."""
        return {
            "global_batch": self.global_batch,
            "change_frac": self.global_batch / old_batch - 1.0,
            "plan": self.plan.to_json(),
        }


@dataclass(frozen=True, slots=True)
class CarryOn:
    """The old layout on the nodes that are there."""

    plan: Plan | None
    """None where it is not legal or does not fit."""
    reason: str
    """Why there is none, or what changed in it."""
    move: Move | None
    nearest: NearestBatch | None = None
    """With more replicas, which the global batch does not divide over: the nearest that does."""


@dataclass(frozen=True, slots=True)
class Replan(LibraryAnswer):
    """The answer of `replan`."""

    old: Plan
    n_nodes: tuple[int, int]
    """Nodes of the pool before and after."""
    lost: tuple[str, ...]
    """Nodes in use or idle that are gone: host names, else `node 3`."""
    gained: int
    result: Result
    """Of the search on the nodes that are there."""
    move: Move | None
    carry_on: CarryOn
    nearest: NearestBatch | None
    """None where no other batch uses more devices than the job's, or none was found."""
    break_even_s: float | None
    """None where moving never pays, or is the only choice."""
    notes: tuple[str, ...]

    @property
    def best(self) -> Plan | None:
        """The best plan now; None where nothing fits."""
        return self.result.plans[0] if self.result.plans else None

    @property
    def verdict(self) -> str:
        """What to do: `move`, `carry on` or `nothing fits`."""
        best, carried_on = self.best, self.carry_on.plan
        if best is None:
            return "carry on" if carried_on else "nothing fits"
        if carried_on is None or self.break_even_s is not None:
            return "move"
        return "carry on"

    @property
    def exit_code(self) -> int:
        """0, 3 where nothing fits, 4 where the search was stopped."""
        return 3 if self.verdict == "nothing fits" else 4 if self.result.stopped else 0

    def to_json(self) -> dict[str, Any]:
        """Return the answer with the field names of docs/replan.md."""
        carried_on, nearest = self.carry_on, self.nearest
        old_batch = self.old.layout.gbs
        return {
            "schema_version": "1.0",
            "plan_id": self.old.plan_id,
            "nodes": {
                "before": self.n_nodes[0],
                "lost": list(self.lost),
                "gained": self.gained,
                "after": self.n_nodes[1],
            },
            "verdict": self.verdict,
            "break_even_s": self.break_even_s,
            "batch": {
                "global_batch": old_batch,
                "kept": self.best is not None,
                "idle_devices": self.best.n_idle if self.best else None,
                "nearest": nearest and nearest.to_json(old_batch),
            },
            "move": self.move and self.move.to_json(),
            "carry_on": {
                "plan": carried_on.plan and carried_on.plan.to_json(),
                "reason": carried_on.reason,
                "move": carried_on.move and carried_on.move.to_json(),
                "nearest": carried_on.nearest and carried_on.nearest.to_json(old_batch),
            },
            "complete": self.result.complete,
            "stopped": self.result.stopped,
            "result": self.result.to_json(),
            "notes": list(self.notes),
        }

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same plan and nodes."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def replan(
    opened: Opened,
    options: SolveOptions,
    execution: Execution,
    *,
    lost: int | Sequence[str] = 0,
    gained: Gained = 0,
    via: Via = "checkpoint",
) -> Replan:
    """Return what to do with a running plan after its pool lost or gained nodes.

    `opened` is the plan with its inputs, `options` are those it was found with. `lost` are host
    names, or how many of the nodes in use are gone: then the last ones. Nodes that the plan leaves
    idle take their place. Raises `UsageError` for nodes that are not there.
    """
    from planner.solver.solve import solve_inputs

    model, cluster, _, plan = opened
    gained = gained_of_pool(gained, cluster.cluster.pools[0].name)
    model = replace(model, listed=())
    gone = lost_nodes(cluster, plan.layout.n_devices, lost)
    if not gone and not gained:
        fix = "for example " + option("lost", "2") + ", or " + option("gained", "4")
        raise UsageError("no node is lost or gained", fix, "lost")
    if gained < 0:
        message = option("gained", str(gained)) + " is below 0"
        raise UsageError(message, "nodes that are gone go to " + option("lost"))
    pool = cluster.cluster.pools[0]
    left = [i for i in range(pool.n_nodes) if i not in gone]
    nodes = [*left, *[-1] * gained]
    if not nodes:
        raise UsageError("no node is left", "there is nothing to plan for", "lost")
    changed = with_nodes(cluster, len(nodes), [] if gained else left)
    free = open_options(options)
    result = solve_inputs(model, changed, free, execution)
    n_used = -(-plan.layout.n_devices // pool.devices_per_node)
    state = _State(opened, nodes, bool(gone & set(range(n_used))), via)
    best = result.plans[0] if result.plans else None
    move = state.move_to(best.layout, changed) if best else None
    carry_on = _carry_on(state, model, changed, free)
    return Replan(
        old=plan,
        n_nodes=(pool.n_nodes, len(nodes)),
        lost=tuple(_node_name(cluster, i) for i in sorted(gone)),
        gained=gained,
        result=result,
        move=move,
        carry_on=carry_on,
        nearest=_nearest_batch(plan, best, (model, changed), free, execution),
        break_even_s=_break_even(best, move, carry_on),
        notes=_notes(state, lost),
    )


def lost_nodes(cluster: ClusterInput, n_devices: int, lost: int | Sequence[str]) -> set[int]:
    """Return the places of the lost nodes in the pool; `UsageError` for nodes it has not."""
    pool, names = cluster.cluster.pools[0], cluster.sources[0].hosts
    n_used = -(-n_devices // pool.devices_per_node)
    if isinstance(lost, int):
        if not 0 <= lost <= n_used:
            raise UsageError(
                option("lost", str(lost)) + f": the plan runs on {n_used} nodes",
                f"0 to {n_used}; nodes that it does not use are lost by name",
            )
        return set(range(n_used - lost, n_used))
    if not names:
        raise UsageError(
            option("lost") + " names hosts, and the cluster names none",
            "give a number, or `hosts:` in the cluster file",
        )
    unknown = [name for name in lost if name not in names]
    if unknown:
        raise UsageError(
            option("lost") + f": the pool has no host {unknown[0]!r}",
            f"hosts: {compress_hosts(names)}"[:300],
        )
    return {names.index(name) for name in lost}


def lost_of_text(text: str) -> int | tuple[str, ...]:
    """Return what `--lost` names: a number of nodes, or hosts such as `n[001-004]`."""
    plain = text.strip()
    if plain.isascii() and plain.isdigit() and len(plain) < 8:
        return int(plain)
    try:
        return expand_hosts(plain) if plain else 0
    except BadValue as error:
        message = option("lost") + f": {error.message}"
        raise UsageError(message, error.hint or "or a number") from None


def _node_name(cluster: ClusterInput, i: int) -> str:
    names = cluster.sources[0].hosts
    return names[i] if names else f"node {i}"


def with_nodes(cluster: ClusterInput, n_nodes: int, left: Sequence[int]) -> ClusterInput:
    """Return a cluster of one pool with another number of nodes.

    `left` are the places of the nodes that keep their names. Fewer nodes stay in racks and under
    switches as they are; more have to fit into what the document says of both, else `UsageError`.
    """
    document = cluster.document
    pool = {k: v for k, v in document["pools"][0].items() if k != "hosts"}
    names = cluster.sources[0].hosts
    if names and left:
        pool["hosts"] = compress_hosts(names[i] for i in left)
    pool["free_nodes" if n_nodes <= pool["nodes"] else "nodes"] = n_nodes
    try:
        return cluster_from_dict({**document, "pools": [pool]})
    except SpecError as error:
        raise UsageError(
            f"{n_nodes} nodes do not make this cluster: {error.message}",
            "write the cluster file of the new cluster, and planner solve for it",
        ) from None


def open_options(options: SolveOptions) -> SolveOptions:
    """Return the options of a search for the new nodes: framework, lists and objective are kept.

    Pins, numbers of devices, fronts and limits on time belong to the old plan.
    """

    def kept(values: Any) -> dict[str, Any]:
        return {axis: v for axis, v in values.items() if axis not in (DEVICES, *NUMERICS)}

    return replace(
        options,
        pins={},
        only=kept(options.only),
        at_most=kept(options.at_most),
        pareto=(),
        deadline_s=None,
        step_limit_s=None,
        budget_usd=None,
    )


@dataclass(frozen=True, slots=True)
class _State:
    """The running plan, and the nodes that are there now."""

    opened: Opened
    nodes: list[int]
    """By place in the new pool: the place in the old one, -1 for a node that joined."""
    loss: bool
    """A node that the plan ran on is gone."""
    via: Via

    @property
    def old(self) -> Layout:
        """The running layout."""
        return self.opened[3].layout

    def ranks_before(self, n_devices: int) -> np.ndarray[Any, Any]:
        """Return the rank that each device had, -1 where it had none, `(n_devices,)`."""
        total = self.opened[1].cluster.pools[0].devices_per_node
        ranks = np.arange(n_devices)
        node = np.array(self.nodes)[ranks // total]
        before = node * total + ranks % total
        return np.where((node >= 0) & (before < self.old.n_devices), before, -1)

    def move_to(self, layout: Layout, cluster: ClusterInput) -> Move:
        """Return what it takes to run another layout on the first of the new nodes."""
        _, _, problem, _ = self.opened
        recipe, shape, seq_len = problem.job.recipe, problem.shape, problem.job.seq_len
        per_node = cluster.cluster.pools[0].devices_per_node
        was = self.ranks_before(layout.n_devices)
        now = replace(problem, pool=cluster.cluster.pools[0])
        n_nodes = -(-layout.n_devices // per_node)
        rate = port_bytes_per_s(now, n_nodes)
        each = recipe.param_bytes, recipe.state_bytes
        before, after = (holdings(x, shape, seq_len) for x in (self.old, layout))
        lacking = lacking_bytes(before, after, was, *each)
        every = self.ranks_before(len(self.nodes) * per_node)
        alive = np.zeros(self.old.n_devices, dtype=bool)
        alive[every[every >= 0]] = True
        network_s = None
        if survives(before, alive):
            per = np.add.reduceat(lacking, np.arange(0, layout.n_devices, per_node))
            senders = max(1, len(np.unique(np.flatnonzero(alive) // per_node)))
            ports = min(per_node, layout.n_devices)
            network_s = max(per.max() / (ports * rate), lacking.sum() / (senders * ports * rate))
        return self._stop(float(lacking.sum()), float(lacking.max()), rate, network_s, layout)

    def _stop(
        self, total: float, max_bytes: float, rate: float, network_s: float | None, layout: Layout
    ) -> Move:
        _, cluster, problem, _ = self.opened
        operations, n_bytes = cluster.operations[0], saved_bytes(problem)
        same = layout == self.old and not self.loss
        share = layout.n_devices if operations.bandwidth_is_per_device else 1
        read_s = n_bytes / (operations.checkpoint_bytes_per_s * share)
        write_s = redo_s = 0.0
        if self.loss:
            redo_s = goodput(problem, operations, self.old.n_devices).interval_s / 2.0
        elif not same:
            write_s = checkpoint_time_s(operations, n_bytes, self.old.n_devices)
        restart_s = 0.0 if same else operations.restart_s
        by_network = self.via == "network" and network_s is not None
        if same:
            stop_s = 0.0
        elif by_network and network_s is not None:
            stop_s = max(restart_s, network_s)
        else:
            stop_s = write_s + max(restart_s, read_s) + redo_s
        return Move(
            total,
            max_bytes,
            rate,
            network_s,
            n_bytes,
            read_s,
            write_s,
            redo_s,
            restart_s,
            "network" if by_network else "checkpoint",
            stop_s,
        )


def _carry_on(
    state: _State, model: ModelInput, cluster: ClusterInput, options: SolveOptions
) -> CarryOn:
    """Return the old layout with as many replicas as the nodes hold, or why there is none."""
    old, pool = state.old, cluster.cluster.pools[0]
    counts = device_counts(pool)
    reason = f"a replica needs {old.tp * old.pp * old.cp} devices, and {pool.n_devices} are left"
    carry_on, nearest = None, None
    for layout in fewer_replicas(old, counts):
        try:
            plan, why = _priced(layout, model, cluster, options)
        except (SearchError, UsageError) as error:
            return CarryOn(None, error.message, None)
        if plan is None:
            reason = why
            continue
        text = "as it was" if layout.dp == old.dp else f"dp {old.dp} -> {layout.dp}"
        carry_on = CarryOn(plan, text, state.move_to(layout, cluster))
        break
    for layout in fewer_replicas(old, counts, keep_batch=False):
        if carry_on and carry_on.plan and layout.dp <= carry_on.plan.layout.dp:
            break
        plan, _ = _priced(layout, with_batch(model, layout.gbs), cluster, options)
        if plan is not None:
            nearest = NearestBatch(layout.gbs, plan)
            break
    return replace(carry_on or CarryOn(None, reason, None), nearest=nearest)


def _priced(
    layout: Layout, model: ModelInput, cluster: ClusterInput, options: SolveOptions
) -> tuple[Plan | None, str]:
    """Return a layout priced, None with the reason where it is not legal or does not fit."""
    from planner.solver.answer.plans import make_plan
    from planner.solver.problem import make_problem

    problem = make_problem(model, cluster, options, layout.n_devices)
    rules = replace(options, only={}, at_most={}).search_options()
    broken = first_broken_rule(Context(problem, rules, layout.n_devices), layout)
    if broken:
        return None, f"with dp {layout.dp} it breaks {broken}: {RULES[broken].title}"
    breakdown = break_down(problem, layout)
    over = breakdown.peak_bytes - problem.pool.usable_bytes
    if over > 0:
        return None, f"with dp {layout.dp} it does not fit: {over / GIB:.1f} GiB too many"
    plan = make_plan(
        problem,
        breakdown,
        (model, cluster),
        options.calibration,
        framework=options.framework,
    )
    return plan, ""


def with_batch(model: ModelInput, global_batch: int) -> ModelInput:
    """Return the job with another global batch."""
    training = {**model.document["training"], "global_batch": global_batch}
    job = replace(model.job, global_batch=global_batch)
    return replace(model, job=job, document={**model.document, "training": training})


def fewer_replicas(
    old: Layout, counts: Sequence[int], *, keep_batch: bool = True
) -> Iterator[Layout]:
    """Yield a layout with its replicas, then with fewer of them, that fill whole nodes.

    A rank runs more micro-batches, so that the batch stays; without `keep_batch` it becomes the
    nearest that the replicas divide. Groups of ZeRO are all data-parallel ranks where they were; a
    single rank shards nothing.
    """
    replica, allowed = old.tp * old.pp * old.cp, set(counts)
    for dp in range(min(old.dp, max(counts) // replica), 0, -1):
        unit = old.mbs * dp
        batch = old.gbs if keep_batch else unit * max(1, round(old.gbs / unit))
        if dp * replica not in allowed or batch % unit:
            continue
        ranks, alone = dp * old.cp, dp * old.cp == 1
        shard = 0 if old.dp_shard == old.dp * old.cp else old.shard
        if (shard and ranks % shard) or (not alone and ranks % old.hpz):
            continue
        yield replace(
            old,
            n_devices=dp * replica,
            dp=dp,
            gbs=batch,
            zero=0 if alone else old.zero,
            shard=0 if shard == ranks or alone else shard,
            hpz=1 if alone else old.hpz,
            dp_overlap=True if alone else old.dp_overlap,
        )


def _nearest_batch(
    old: Plan,
    best: Plan | None,
    inputs: tuple[ModelInput, ClusterInput],
    options: SolveOptions,
    execution: Execution,
) -> NearestBatch | None:
    """Return the nearest batch with a plan on all devices, where the job's leaves some idle.

    Of the batches that the data-parallel degrees of the old and the best plan's replicas on all
    devices divide, the nearest ones are searched.
    """
    from planner.solver.solve import Extent, solve_inputs

    model, cluster = inputs
    n, batch = cluster.cluster.pools[0].n_devices, old.layout.gbs
    searches = replace(execution, progress=None)
    if best is not None and best.n_idle == 0:
        return None
    replicas = {x.layout.tp * x.layout.pp * x.layout.cp for x in (old, best) if x}
    for other in nearest_batches(batch, n, replicas)[:BATCHES_TRIED]:
        if execution.stop is not None and execution.stop():
            return None
        changed = with_batch(model, other)
        pinned = replace(options, pins={DEVICES: n}, top=1)
        try:
            extent = Extent(fewer_devices=False, reasons=False)
            result = solve_inputs(changed, cluster, pinned, searches, extent=extent)
        except (SearchError, UsageError, EmitError):
            continue
        if result.plans:
            return NearestBatch(other, result.plans[0])
    return None


def nearest_batches(batch: int, n_devices: int, replicas: set[int]) -> list[int]:
    """Return other batches that divide over the replicas of all devices, the nearest first.

    A replica may take a power of two more or less of devices than those named.

    >>> nearest_batches(1024, 504, {8})
    [1008, 1071, 1134, 1260, 1512]
    """
    result = set()
    for size in replicas:
        for factor in (1, 2, 4, 8):
            for replica in (size * factor, size // factor if size % factor == 0 else 0):
                if not replica or n_devices % replica:
                    continue
                dp = n_devices // replica
                low = batch // dp * dp
                result |= {x for x in (low, low + dp) if x > 0 and x != batch}
    return sorted(result, key=lambda x: (abs(x - batch), -x))


def _break_even(best: Plan | None, move: Move | None, carry_on: CarryOn) -> float | None:
    """Return after how many seconds from the change moving is ahead; None where it never is."""
    old_plan = carry_on.plan
    if best is None or move is None or old_plan is None or carry_on.move is None:
        return None
    return crossing_s(
        (best.tokens_per_s, move.stop_s), (old_plan.tokens_per_s, carry_on.move.stop_s)
    )


def crossing_s(moved: tuple[float, float], carried_on: tuple[float, float]) -> float | None:
    """Return when the first has done as much as the second; None where it never has.

    Each is (tokens per second, seconds of stop before them).
    t = (u_a T_a - u_b T_b) / (u_a - u_b), no sooner than the later of the stops.

    >>> crossing_s((120.0, 600.0), (100.0, 0.0))  # 120 (t - 600) = 100 t
    3600.0
    """
    (fast, stop_s), (slow, other_s) = moved, carried_on
    if fast <= slow:
        return None
    return max((fast * stop_s - slow * other_s) / (fast - slow), stop_s)


def _notes(state: _State, lost: int | Sequence[str]) -> tuple[str, ...]:
    notes = []
    if isinstance(lost, int) and lost > 0:
        notes.append(
            f"which nodes are lost is not said: the last {lost} of those in use are taken; which"
            " they are decides what must move"
        )
    if state.loss:
        notes.append(
            "work since the last checkpoint is half of the interval that loses least"
            " (planner explain PLAN --term goodput shows it)"
        )
    return tuple(notes)
