"""The changes of a run of sharded replicas that are worth most, nodes as they are."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from costmodels.axes import RECOMPUTES
from costmodels.mixed.sharded_plans import ReplicaDegrees, ReplicaKind, ShardedPlan
from costmodels.mixed.sharded_prices import ShardedPrice, sharded_fits, sharded_price
from costmodels.mixed.sharded_tables import ReplicaKey, replica_layout
from costmodels.plans import Layout
from planner.analyze.check.changes import MIN_GAIN, N_CHANGES, as_overrides
from planner.analyze.check.report import Change
from planner.analyze.sharded.kind_run import KindRun
from planner.errors import PlannerError
from planner.frameworks.runs.changes import changed_settings, changed_words
from planner.frameworks.runs.nearest_layout import nearest_layout
from planner.frameworks.runs.replica_start import ReplicaStart
from planner.solver.together.replicas.opened import OpenedSharded, job_of_keys
from planner.solver.together.sharded_job import MOST_MBS, sequence_parallel

COMPARED = ("tp", "dp", "cp", "mbs", "zero", "recompute", "dp_shard", "n_micro")
"""Fields of a layout that a changed run is read back by."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A plan with one thing changed."""

    axis: str
    text: str
    plan: ShardedPlan


def sharded_changes(
    opened: OpenedSharded, kinds: Sequence[KindRun], start: ReplicaStart, *, fits: bool
) -> tuple[Change, ...]:
    """Return the changes that are worth most among those that fit, the fastest first.

    `kinds` are the files of each kind of the plan, in its order. A change that the framework
    refuses, or reads as another layout, is none.
    """
    folders = [x.folder for x in kinds]
    per_node = opened.problems[0].pool.devices_per_node
    found = list(variants(opened.sharded, folders, per_node))
    priced = _priced(opened, found)
    step_s, least = opened.plan.step_time_s, MIN_GAIN if fits else -math.inf
    chosen: list[Change] = []
    axes: set[str] = set()
    for one, price in sorted(priced, key=lambda x: (x[1].step_s, x[0].text)):
        gain = 1.0 - price.step_s / step_s
        if len(chosen) >= N_CHANGES or gain < least:
            break
        if one.axis in axes:
            continue
        settings = _settings(opened, kinds, start, one.plan)
        if settings is None:
            continue
        axes.add(one.axis)
        peak = max(x.peak_bytes for x in price.kinds)
        chosen.append(Change(one.text, settings, price.step_s, gain, peak, fits=True))
    return tuple(chosen)


def variants(plan: ShardedPlan, folders: Sequence[str], per_node: int) -> Iterator[Variant]:
    """Yield what one change makes of a plan; `folders` are what its kinds are called."""
    yield from _other_batches(plan, folders)
    for factor, text in ((2, "2 times"), (0.5, "half")):
        sizes = [kind.mbs / factor for kind in plan.kinds]
        n_micro = plan.n_micro * factor
        if n_micro == int(n_micro) and all(x == int(x) for x in sizes):
            others = _with_sizes(plan, [int(x) for x in sizes])
            words = f"{text} the accumulation steps: {plan.n_micro} -> {int(n_micro)}"
            yield Variant("accumulation", words, replace(others, n_micro=int(n_micro)))
    for i, folder in enumerate(folders):
        for recompute in RECOMPUTES:
            old = plan.kinds[i]
            if recompute != old.recompute:
                kind = replace(old, recompute=recompute)
                text = f"recompute {old.recompute} -> {recompute} in {folder}"
                yield Variant(f"recompute {folder}", text, _with_kind(plan, i, kind))
    yield from _other_degrees(plan, per_node)


def _other_batches(plan: ShardedPlan, folders: Sequence[str]) -> Iterator[Variant]:
    """Yield plans in which one kind takes sequences of another."""
    for i, j in permutations(range(len(plan.kinds)), 2):
        less, more = plan.kinds[i], plan.kinds[j]
        together = math.gcd(less.n_replicas, more.n_replicas)
        down, up = more.n_replicas // together, less.n_replicas // together
        for n in range(1, (less.mbs - 1) // down + 1):
            sizes = [kind.mbs for kind in plan.kinds]
            sizes[i], sizes[j] = less.mbs - n * down, more.mbs + n * up
            if sizes[j] > MOST_MBS:
                break
            text = (
                f"mbs {less.mbs} -> {sizes[i]} in {folders[i]},"
                f" {more.mbs} -> {sizes[j]} in {folders[j]}"
            )
            yield Variant("mbs", text, _with_sizes(plan, sizes))


def _other_degrees(plan: ShardedPlan, per_node: int) -> Iterator[Variant]:
    """Yield plans with another tp, or with larger or smaller replicas; batches as they are."""
    old = plan.degrees
    for tp in (2 * old.tp, old.tp // 2):
        shard, rest = divmod(old.shard * old.tp, tp) if tp else (0, 1)
        sizes = [kind.mbs * tp / old.tp for kind in plan.kinds]
        if not rest and shard and all(x == int(x) for x in sizes):
            degrees = ReplicaDegrees(shard, tp, old.cp)
            others = _with_sizes(plan, [int(x) for x in sizes])
            text = f"tp {old.tp} -> {tp}, with groups of {shard * old.cp} and mbs to match"
            yield Variant("tp", text, replace(others, degrees=degrees))
    for shard in (2 * old.shard, old.shard // 2):
        degrees = ReplicaDegrees(shard, old.tp, old.cp)
        counts = [kind.n_replicas * old.shard / max(1, shard) for kind in plan.kinds]
        whole_nodes = shard and not degrees.n_devices % per_node
        if whole_nodes and all(x == int(x) for x in counts):
            kinds = tuple(
                replace(kind, n_replicas=int(n))
                for kind, n in zip(plan.kinds, counts, strict=True)
            )
            text = f"groups that share weights {old.shard * old.cp} -> {shard * old.cp}"
            yield Variant("shard", text, replace(plan, degrees=degrees, kinds=kinds))


def _with_sizes(plan: ShardedPlan, sizes: Sequence[int]) -> ShardedPlan:
    kinds = (replace(kind, mbs=n) for kind, n in zip(plan.kinds, sizes, strict=True))
    return replace(plan, kinds=tuple(kinds))


def _with_kind(plan: ShardedPlan, index: int, kind: ReplicaKind) -> ShardedPlan:
    kinds = tuple(kind if i == index else x for i, x in enumerate(plan.kinds))
    return replace(plan, kinds=kinds)


def _priced(opened: OpenedSharded, found: Sequence[Variant]) -> list[tuple[Variant, ShardedPrice]]:
    """Return the variants that fit, with their prices."""
    keys: list[dict[ReplicaKey, None]] = [{} for _ in opened.indices]
    for one in found:
        for kind in one.plan.kinds:
            keys[kind.pool][ReplicaKey(one.plan.degrees, kind.mbs, kind.recompute)] = None
    if not found:
        return []
    listed = [list(own) for own in keys]
    job = job_of_keys(
        opened.problems, opened.cluster, opened.job.framework, opened.indices, listed
    )
    prices = [(one, sharded_price(one.plan, job.sharded)) for one in found]
    return [(one, price) for one, price in prices if sharded_fits(one.plan, job.sharded, price)]


def _settings(
    opened: OpenedSharded, kinds: Sequence[KindRun], start: ReplicaStart, plan: ShardedPlan
) -> tuple[str, ...] | None:
    """Return what to write to come to a plan, by folder; None where it is refused."""
    words: list[tuple[str, ...]] = []
    for i, kind in enumerate(kinds):
        old, new = (_layout(opened, x, i) for x in (opened.sharded, plan))
        own = () if old == new else _kind_settings(opened, kind, old, new)
        if own is None:
            return None
        words.append(own)
    told = told_batches(plan)
    more: tuple[str, ...] = ()
    if start.rank_batches not in ("", told):
        more = (f'{start.script}: --rank-batches "{told}"',)
    if len(set(words)) == 1:
        return (*words[0], *more)
    by_folder = (
        f"{kind.folder}: {word}" for kind, own in zip(kinds, words, strict=True) for word in own
    )
    return (*by_folder, *more)


def told_batches(plan: ShardedPlan) -> str:
    """Return data-parallel ranks by their micro-batch, as the start script tells the program."""
    shard = plan.degrees.shard
    return ",".join(f"{kind.n_replicas * shard}x{kind.mbs}" for kind in plan.kinds)


def _layout(opened: OpenedSharded, plan: ShardedPlan, index: int) -> Layout:
    """Return a kind of a plan as the layout of a run whose nodes are all like its own."""
    kind = plan.kinds[index]
    return replica_layout(
        ReplicaKey(plan.degrees, kind.mbs, kind.recompute),
        opened.problems[0].shape.layers,
        n_replicas=plan.n_replicas,
        n_micro=plan.n_micro,
        sp=sequence_parallel(opened.job.framework),
    )


def _kind_settings(
    opened: OpenedSharded, kind: KindRun, old: Layout, new: Layout
) -> tuple[str, ...] | None:
    """Return what to write in the files of a kind; None where they cannot say it, or refuse it."""
    problem = next(x for x in opened.problems if x.pool.name == kind.pool)
    per_node = problem.pool.devices_per_node
    nodes = new.n_devices // per_node
    job = replace(problem.job, global_batch=new.gbs)
    whole = replace(problem, job=job, pool=replace(problem.pool, n_nodes=nodes))
    changes = changed_settings(kind.run, old, new, whole)
    if not changes:
        return None
    sets, pins = as_overrides(changes)
    try:
        changed = kind.asked.source.read(new.n_devices, sets, pins, all_devices=False)
    except PlannerError:
        return None
    described, _ = kind.asked.describe(changed)
    part = whole.pool.accelerator
    before = kind.asked.judge(kind.run, kind.model, part).refused
    after = kind.asked.judge(changed, described, part).refused
    if {broken.rule.code for broken in after} - {broken.rule.code for broken in before}:
        return None
    near = nearest_layout(
        changed.layout, problem.shape, problem.job.seq_len, new.n_devices, per_node
    )
    read = near.layout
    if read is None or any(getattr(read, x) != getattr(new, x) for x in COMPARED):
        return None
    return changed_words(kind.run, changes)
