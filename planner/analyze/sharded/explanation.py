"""What explains a plan of sharded replicas: time, traffic and memory by pool, and what decides."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from costmodels.mixed.sharded_prices import exchange, exchange_by_part_s, sharded_price
from costmodels.mixed.sharded_tables import ShardedPool, ShardedProblem, replica_tables
from planner.analyze.joined.comparison import side_of
from planner.analyze.joined.explanation import (
    FASTER,
    Gain,
    LinkUse,
    StageFigures,
    fullest,
    slowest_kind,
)
from planner.analyze.sharded.terms import SHARDED_TERMS, UNITS, sharded_term_values
from planner.analyze.sharded.traffic import ReplicaTraffic, kind_traffic
from planner.documents import LibraryAnswer
from planner.errors import UsageError
from planner.solver.together.records import JoinedPlan, PoolWorth
from planner.solver.together.replicas.opened import OpenedSharded
from planner.solver.together.sharded_job import sequence_parallel

N_OTHERS = 4
"""Other plans of the answer that are set beside one."""
FREE_BYTES_PER_S = 1e30
"""Bandwidth of a link that costs nothing."""


@dataclass(frozen=True, slots=True)
class OtherPlan:
    """Another plan of the answer, beside the one that is explained."""

    rank: int
    plan_id: str
    step_time_s: float
    more_frac: float
    """How much longer its step is, as a share of that of the plan; below 0 where it is shorter."""
    changes: tuple[tuple[str, str, str], ...]
    """Axis, value of the plan, value of the other."""


@dataclass(frozen=True, slots=True)
class HeldUp:
    """What holds up the sum of the gradients of dense layers, or of experts."""

    unit: str
    """One of `UNITS`."""
    what: str
    """`pool` or `link`."""
    of: str
    """The pool, or the two pools of the link."""
    micro_batch_s: float
    """What the sum takes for one micro-batch."""


@dataclass(frozen=True, slots=True)
class Between:
    """What holds up the sum of gradients over the replicas."""

    what: str
    """`pool` or `link`: what would take longest alone."""
    of: str
    """The pool, or the two pools of the link."""
    micro_batch_s: float
    """What the sum takes for one micro-batch: that of all `units`."""
    next_s: float
    """What the next longest would take alone: 0 where there is none."""
    free_links_s: float
    """The step if links between pools cost nothing."""
    units: tuple[HeldUp, ...]
    """By what is summed: of one part all, where it holds up all of it."""


@dataclass(frozen=True)
class ShardedExplanation(LibraryAnswer):
    """A plan of sharded replicas with what explains it; one term where `term` names one."""

    opened: OpenedSharded
    term: str = ""

    @cached_property
    def traffic(self) -> tuple[ReplicaTraffic, ...]:
        """Traffic beside compute, by kind of replica."""
        return tuple(kind_traffic(self.opened, i) for i in range(len(self.opened.plan.kinds)))

    @cached_property
    def stages(self) -> tuple[StageFigures, ...]:
        """Each kind of replica, as the one stage of its pipelines."""
        return tuple(self._stages())

    def _stages(self) -> Iterator[StageFigures]:
        for i, kind in enumerate(self.opened.plan.kinds, 1):
            stage = kind.stages[0]
            yield StageFigures.of(
                stage,
                self.opened.part(stage.pool),
                (i, 1, 0),
                kind.time["compute"] / kind.step_time_s,
                (kind.time["sync"], kind.time["exchange"], kind.time["update"]),
            )

    @property
    def binding_kind(self) -> int:
        """The kind of replicas that the others wait for, from 1."""
        return slowest_kind(self.opened.plan)

    @property
    def fullest_stage(self) -> StageFigures:
        """The kind of replicas that leaves the least share of its memory free."""
        return fullest(self.stages)

    @cached_property
    def links(self) -> tuple[LinkUse, ...]:
        """What crosses each link of the ring: gradients."""
        step_s = self.opened.plan.step_time_s
        return tuple(
            LinkUse(
                between=link.between,
                messages_bytes=0.0,
                exchange_bytes=link.bytes,
                bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
                busy_frac=link.bytes / 2.0 / link.bandwidth_bytes_per_s / step_s,
            )
            for link in self.opened.plan.links
        )

    @property
    def worth(self) -> tuple[PoolWorth, ...]:
        """What each pool adds, of the pools that the answer joins."""
        return self.opened.together.worth

    @cached_property
    def between(self) -> Between:
        """What holds up the sum over the replicas, and what links cost the step."""
        opened = self.opened
        names = [pool.name for pool in opened.problem.pools]
        pools, links = exchange_by_part_s(opened.problem, opened.sharded)
        parts = [(seconds, "pool", names[place]) for place, seconds in pools.items()]
        parts += [(x, "link", f"{names[a]} - {names[b]}") for (a, b), x in links.items()]
        parts.sort(key=lambda x: (-x[0].sum(), x[1], x[2]))
        n_units = len(parts[0][0])
        # `max` takes the first of equal ones: what takes longest of all.
        longest = [max(parts, key=lambda x: float(x[0][i])) for i in range(n_units)]
        units = tuple(
            HeldUp(unit, what, name, float(seconds[i]))
            for i, (unit, (seconds, what, name)) in enumerate(zip(UNITS, longest, strict=False))
        )
        free = {
            edge: replace(link, bytes_per_s=FREE_BYTES_PER_S, latency_s=0.0)
            for edge, link in opened.problem.links.items()
        }
        free_s = sharded_price(opened.sharded, replace(opened.problem, links=free)).step_s
        plan = opened.sharded
        total_s = exchange(opened.problem, plan.degrees, plan.pools, plan.n_replicas).total_s
        next_s = float(parts[1][0].sum()) if len(parts) > 1 else 0.0
        return Between(*parts[0][1:], total_s, next_s, free_s, units)

    @cached_property
    def gains(self) -> tuple[Gain, ...]:
        """What a per cent more of each figure takes off the step, the most first."""
        before_s = self.opened.priced.step_s
        gains = []
        for what, name, changed in _faster_problems(self.opened):
            less = 100.0 * (1.0 - sharded_price(self.opened.sharded, changed).step_s / before_s)
            gains.append(Gain(what, name, less))
        return tuple(sorted(gains, key=lambda x: (-x.gain_percent, x.what, x.of)))

    @cached_property
    def others(self) -> tuple[OtherPlan, ...]:
        """The plans of the answer that come nearest to the step of this one, the fastest first."""
        plan = self.opened.plan
        rest = [x for x in self.opened.together.plans if x.plan_id != plan.plan_id]
        nearest = sorted(rest, key=lambda x: (abs(x.step_time_s - plan.step_time_s), x.rank))
        chosen = sorted(nearest[:N_OTHERS], key=lambda x: (x.step_time_s, x.rank))
        return tuple(_other(plan, x) for x in chosen)

    def to_json(self) -> dict[str, Any]:
        """Return it in seconds, bytes and fractions; of a term that is named its values."""
        plan = self.opened.plan
        head: dict[str, Any] = {"plan_id": plan.plan_id, "term": self.term, "plan": None}
        if self.term:
            return {**head, "together": {"values": sharded_term_values(self.opened, self.term)}}
        together = self.opened.together
        slowest = self.stages[self.binding_kind - 1]
        return {
            **head,
            "together": {
                "rank": plan.rank,
                "step_time_s": plan.step_time_s,
                "devices": dict(plan.devices),
                "binding": {
                    "kind": self.binding_kind,
                    "stage": 1,
                    "pool": slowest.pool,
                    "part": slowest.part,
                },
                "kinds": [self._kind_json(i) for i in range(len(plan.kinds))],
                "stages": [{**asdict(x), "peak_bytes": x.peak_bytes} for x in self.stages],
                "links": [{**asdict(x), "between": list(x.between)} for x in self.links],
                "exchange": asdict(self.between),
                "gains": [asdict(x) for x in self.gains],
                "worth": [asdict(x) for x in self.worth],
                "others": [_other_json(x) for x in self.others],
                "bound_s": together.bound_s,
                "gap": together.gap,
                "proven": together.proven,
                "runs_on": list(plan.runs_on),
                "missing": list(plan.missing),
            },
        }

    def _kind_json(self, index: int) -> dict[str, Any]:
        plan, kind = self.opened.plan, self.opened.plan.kinds[index]
        return {
            "pools": list(kind.pools),
            "n_pipelines": kind.n_pipelines,
            "n_replicas": kind.n_pipelines // plan.shard,
            "shard": plan.shard,
            "mbs": kind.mbs,
            "n_micro": kind.n_micro,
            "share": kind.share,
            "step_time_s": kind.step_time_s,
            "waits_s": plan.step_time_s - kind.step_time_s,
            "time": dict(kind.time),
            "traffic": asdict(self.traffic[index]),
        }


def explain_sharded(opened: OpenedSharded, term: str = "") -> ShardedExplanation:
    """Return what explains a plan of sharded replicas, or one term; `UsageError` for another."""
    if term and term not in SHARDED_TERMS:
        raise UsageError(
            f"a plan of sharded replicas has no term {term!r}",
            f"terms: {', '.join(SHARDED_TERMS)}",
            "term",
        )
    return ShardedExplanation(opened, term)


def _other(plan: JoinedPlan, other: JoinedPlan) -> OtherPlan:
    own, theirs = side_of(plan).axes, side_of(other).axes
    changes = tuple((axis, x, theirs[axis]) for axis, x in own.items() if theirs[axis] != x)
    more = other.step_time_s / plan.step_time_s - 1.0
    return OtherPlan(other.rank, other.plan_id, other.step_time_s, more, changes)


def _other_json(other: OtherPlan) -> dict[str, Any]:
    changes = [{"axis": axis, "this": x, "other": y} for axis, x, y in other.changes]
    return {**asdict(other), "changes": changes}


def _faster_problems(opened: OpenedSharded) -> Iterator[tuple[str, str, ShardedProblem]]:
    """Yield the job with one figure a per cent better: what, of which pool or link."""
    problem = opened.problem
    sp = sequence_parallel(opened.job.framework)
    for i in opened.sharded.pools:
        pool = problem.pools[i]
        table = replace(
            pool.table,
            forward_s=pool.table.forward_s / FASTER,
            backward_s=pool.table.backward_s / FASTER,
        )
        yield "compute", pool.name, _with_pool(problem, i, replace(pool, table=table))
        own = pool.problem.pool
        nic = replace(own.nic, bytes_per_s=own.nic.bytes_per_s * FASTER)
        faster = replace(pool.problem, pool=replace(own, nic=nic))
        costs, cuts = replica_tables(faster, pool.keys, sp=sp)
        changed = replace(pool, problem=faster, table=costs, cuts=cuts)
        yield "network", pool.name, _with_pool(problem, i, changed)
    for edge in sorted(opened.priced.crossing_bytes):
        link = problem.links[edge]
        wider = replace(link, bytes_per_s=link.bytes_per_s * FASTER)
        names = " - ".join(problem.pools[i].name for i in edge)
        yield "link", names, replace(problem, links={**problem.links, edge: wider})


def _with_pool(problem: ShardedProblem, place: int, pool: ShardedPool) -> ShardedProblem:
    """Return a job with another pool in the place of one."""
    pools = tuple(pool if i == place else x for i, x in enumerate(problem.pools))
    return replace(problem, pools=pools)
