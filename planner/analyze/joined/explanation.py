"""What explains a plan over several pools: by pipeline, stage, pool and link, what binds it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from costmodels.mixed.prices import exchanges_s, price
from costmodels.mixed.tables import MixedPool, MixedProblem
from planner.analyze.joined.terms import term_values
from planner.documents import LibraryAnswer
from planner.errors import UsageError
from planner.solver.together.opened import OpenedJoined
from planner.solver.together.plans import TERMS
from planner.solver.together.records import JoinedPlan, JoinedStage, PoolWorth

FASTER = 1.01
"""Factor on one figure by which elasticities are measured."""


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One stage of a kind: seconds of a micro-batch unless said, bytes of one of its devices."""

    kind: int
    """From 1, in the order of the plan."""
    stage: int
    """From 1, in model order."""
    pool: str
    part: str
    """Accelerator of the pool."""
    first_layer: int
    layers: int
    tp: int
    cp: int
    ep: int
    recompute: str
    forward_s: float
    backward_s: float
    """With recomputation."""
    busy_frac: float
    """Share of the step of its kind in which it computes."""
    sync_s: float
    """Gradients and weights among the pipelines of the kind, once a step."""
    exchange_s: float
    """Gradients with other pools, once a step."""
    update_s: float
    """Optimizer, once a step."""
    hop_s: float
    """A message to the next stage; 0 of the last."""
    states_bytes: float
    activation_bytes: float
    other_bytes: float
    """Logits, temporaries, buffers and overhead."""
    usable_bytes: float

    @classmethod
    def of(
        cls,
        stage: JoinedStage,
        part: str,
        place: tuple[int, int, int],
        busy_frac: float,
        once_s: tuple[float, float, float],
        hop_s: float = 0.0,
    ) -> "StageFigures":
        """Return those of a stage at (kind, stage, first layer).

        `once_s` are gradients and weights, exchange and optimizer.
        """
        return cls(
            *(place[0], place[1], stage.pool, part, place[2]),
            *(stage.layers, stage.tp, stage.cp, stage.ep, stage.recompute),
            *(stage.forward_s, stage.backward_s, busy_frac, *once_s, hop_s),
            *(stage.states_bytes, stage.activation_bytes, stage.other_bytes, stage.usable_bytes),
        )

    @property
    def time_s(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.forward_s + self.backward_s

    @property
    def peak_bytes(self) -> float:
        """Memory that it needs."""
        return self.states_bytes + self.activation_bytes + self.other_bytes


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What a plan sends over the link between two pools in a step, both directions."""

    between: tuple[str, str]
    messages_bytes: float
    """Activations and their gradients between stages."""
    exchange_bytes: float
    """Gradients of layers that pipelines on both sides hold."""
    bandwidth_bytes_per_s: float
    """One-way."""
    busy_frac: float
    """Share of the step in which the link sends."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What a per cent more of one figure takes off the step."""

    what: str
    """`compute`, `network` (of a pool) or `link`."""
    of: str
    """Pool, or the two pools of a link."""
    gain_percent: float


def slowest_kind(plan: JoinedPlan) -> int:
    """Return the kind that the others of a plan wait for, from 1."""
    return 1 + max(range(len(plan.kinds)), key=lambda i: plan.kinds[i].step_time_s)


def fullest(stages: Sequence[StageFigures]) -> StageFigures:
    """Return the stage that leaves the least share of its memory free."""
    return max(stages, key=lambda x: x.peak_bytes / x.usable_bytes)


@dataclass(frozen=True)
class JoinedExplanation(LibraryAnswer):
    """A plan over several pools with what explains it; one term of it where `term` names one."""

    opened: OpenedJoined
    term: str = ""

    @cached_property
    def stages(self) -> tuple[StageFigures, ...]:
        """The stages of all kinds."""
        return tuple(self._stages())

    def _stages(self) -> Iterator[StageFigures]:
        plan, priced = self.opened.plan, self.opened.priced
        for i, (kind, its) in enumerate(zip(plan.kinds, priced.kinds, strict=True), 1):
            first = 0
            hops = (*its.hops_s, 0.0)
            for j, (stage, one) in enumerate(zip(kind.stages, its.stages, strict=True)):
                yield StageFigures.of(
                    stage,
                    self.opened.part(stage.pool),
                    (i, j + 1, first),
                    kind.n_micro * stage.time_s / kind.step_time_s,
                    (one.sync_s, one.exchange_s, one.update_s),
                    hops[j],
                )
                first += stage.layers

    @property
    def binding_kind(self) -> int:
        """The kind of pipelines that the others wait for, from 1."""
        return slowest_kind(self.opened.plan)

    @property
    def binding_stage(self) -> StageFigures:
        """The stage that the others of its kind wait for: the slowest of the slowest kind."""
        own = [x for x in self.stages if x.kind == self.binding_kind]
        return max(own, key=lambda x: x.time_s)

    @property
    def fullest_stage(self) -> StageFigures:
        """The stage that leaves the least share of its memory free."""
        return fullest(self.stages)

    @cached_property
    def links(self) -> tuple[LinkUse, ...]:
        """What crosses each link, and for what."""
        opened, step_s = self.opened, self.opened.plan.step_time_s
        problem = opened.problem
        tables = [opened.tables(kind) for kind in opened.mixed.kinds]
        exchanged = exchanges_s(opened.mixed, problem, tables)[1]
        names = [pool.name for pool in problem.pools]
        uses = []
        for (a, b), n_bytes in sorted(opened.priced.crossing_bytes.items()):
            exchange, link = exchanged.get((a, b), 0.0), problem.link(a, b)
            uses.append(
                LinkUse(
                    between=(names[a], names[b]),
                    messages_bytes=n_bytes - exchange,
                    exchange_bytes=exchange,
                    bandwidth_bytes_per_s=link.bytes_per_s,
                    busy_frac=n_bytes / 2.0 / link.bytes_per_s / step_s,
                )
            )
        return tuple(uses)

    @property
    def worth(self) -> tuple[PoolWorth, ...]:
        """What each pool adds, of the pools that the answer joins."""
        return self.opened.together.worth

    @cached_property
    def gains(self) -> tuple[Gain, ...]:
        """What a per cent more of each figure takes off the step, the most first."""
        opened, problem = self.opened, self.opened.problem
        before_s = opened.priced.step_s
        gains = []
        for what, name, changed in _faster_problems(problem, opened):
            less = 100.0 * (1.0 - price(opened.mixed, changed).step_s / before_s)
            gains.append(Gain(what, name, less))
        return tuple(sorted(gains, key=lambda x: (-x.gain_percent, x.what, x.of)))

    def to_json(self) -> dict[str, Any]:
        """Return it in seconds, bytes and fractions; of a term that is named its values."""
        plan = self.opened.plan
        head: dict[str, Any] = {"plan_id": plan.plan_id, "term": self.term, "plan": None}
        if self.term:
            return {**head, "together": {"values": term_values(self.opened.priced, self.term)}}
        together = self.opened.together
        bound = {
            "kind": self.binding_kind,
            "stage": self.binding_stage.stage,
            "pool": self.binding_stage.pool,
            "part": self.binding_stage.part,
        }
        return {
            **head,
            "together": {
                "rank": plan.rank,
                "step_time_s": plan.step_time_s,
                "devices": dict(plan.devices),
                "binding": bound,
                "kinds": [
                    {
                        "pools": list(kind.pools),
                        "n_pipelines": kind.n_pipelines,
                        "n_micro": kind.n_micro,
                        "share": kind.share,
                        "step_time_s": kind.step_time_s,
                        "waits_s": plan.step_time_s - kind.step_time_s,
                        "time": dict(kind.time),
                    }
                    for kind in plan.kinds
                ],
                "stages": [_stage_json(x) for x in self.stages],
                "links": [{**asdict(x), "between": list(x.between)} for x in self.links],
                "gains": [asdict(x) for x in self.gains],
                "worth": [asdict(x) for x in self.worth],
                "bound_s": together.bound_s,
                "gap": together.gap,
                "proven": together.proven,
                "runs_on": list(plan.runs_on),
                "missing": list(plan.missing),
            },
        }


def explain_joined(opened: OpenedJoined, term: str = "") -> JoinedExplanation:
    """Return what explains a plan over several pools, or one term; `UsageError` for another."""
    if term and term not in TERMS:
        raise UsageError(
            f"a plan over several pools has no term {term!r}", f"terms: {', '.join(TERMS)}", "term"
        )
    return JoinedExplanation(opened, term)


def _stage_json(stage: StageFigures) -> dict[str, Any]:
    return {**asdict(stage), "peak_bytes": stage.peak_bytes}


def _faster_problems(
    problem: MixedProblem, opened: OpenedJoined
) -> Iterator[tuple[str, str, MixedProblem]]:
    """Yield the job with one figure a per cent better: what, of which pool or link."""
    plan = opened.mixed
    for i in plan.pools:
        tables = tuple(
            replace(
                x,
                forward_s=x.forward_s.scaled(1.0 / FASTER),
                backward_s=x.backward_s.scaled(1.0 / FASTER),
            )
            if x.pool == i
            else x
            for x in problem.tables
        )
        name = problem.pools[i].name
        yield "compute", name, replace(problem, tables=tables)
        yield "network", name, replace(problem, pools=_faster_network(problem, i))
    for edge in sorted(opened.priced.crossing_bytes):
        link = problem.links[edge]
        faster = replace(link, bytes_per_s=link.bytes_per_s * FASTER)
        names = " - ".join(problem.pools[i].name for i in edge)
        yield "link", names, replace(problem, links={**problem.links, edge: faster})


def _faster_network(problem: MixedProblem, place: int) -> tuple[MixedPool, ...]:
    """Return the pools of a job, one with a faster network between its own nodes."""
    pool = problem.pools[place]

    def faster(pair: tuple[float, float]) -> tuple[float, float]:
        return pair[0], pair[1] / FASTER

    rings = {
        key: replace(
            ring,
            reduce_scatter=faster(ring.reduce_scatter),
            all_gather=faster(ring.all_gather),
            all_reduce=faster(ring.all_reduce),
        )
        for key, ring in pool.rings.items()
    }
    changed = replace(
        pool,
        rings=rings,
        inside_hop=faster(pool.inside_hop),
        nic_bytes_per_s=pool.nic_bytes_per_s * FASTER,
    )
    return tuple(changed if i == place else x for i, x in enumerate(problem.pools))
