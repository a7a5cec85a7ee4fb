"""Kinds of pipelines that the master may choose, and how those that are chosen share the batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from costmodels.mixed.plans import MixedPlan, PipelineKind
from costmodels.mixed.prices import price, table_of
from costmodels.mixed.tables import MixedProblem
from costmodels.schedule.zero_bubble import alternating_crossings
from searches.mixed.answer import pipelines_of
from searches.mixed.fills import Fill, Pipeline
from searches.mixed.master import Candidate


@lru_cache(maxsize=1 << 16)
def _crossings(pp: int, n_micro: int) -> float:
    return float(alternating_crossings(pp, n_micro))


@dataclass(frozen=True, slots=True)
class Offer:
    """One kind of pipeline that the master may choose."""

    pipeline: Pipeline
    fill: Fill
    least: int
    most: int
    slowest_s: float
    """What one more micro-batch adds, without messages."""
    outside_s: float
    """Step with one micro-batch, without messages; exchanges between kinds at least."""
    hop_s: float
    most_micro: int
    """Micro-batches up to which the split fits."""
    groups: int = 1
    """Kinds that are alike but share no optimizer states, each with so many pipelines."""

    def step_s(self, n_micro: int) -> float:
        """Return the step with some micro-batches, at least."""
        pp = len(self.fill.stages)
        crossings = _crossings(pp, n_micro) if pp > 1 else 0.0
        return self.outside_s + (n_micro - 1) * self.slowest_s + crossings * self.hop_s

    def n_micro(self, time_s: float) -> int:
        """Return the micro-batches that fit into a step."""
        if self.step_s(1) > time_s:
            return 0
        n = 1 + int((time_s - self.outside_s) / self.slowest_s + 1e-9)
        low, high = 1, min(n, self.most_micro)
        while low < high:  # the step grows with the micro-batches
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.step_s(middle) <= time_s else (low, middle - 1)
        return low

    def done(self, time_s: float) -> int:
        """Return the sequences that one pipeline gets done within a step."""
        return self.pipeline.mbs * self.n_micro(time_s)

    def candidate(self, time_s: float, n_pools: int) -> Candidate:
        """Return it as the master takes it, for a step."""
        return Candidate(
            devices=tuple(self.groups * self.pipeline.n_devices(k) for k in range(n_pools)),
            done=self.groups * self.done(time_s),
            least=self.least,
            most=self.most,
            multiple=self.pipeline.multiple,
            kinds=self.groups,
        )


def offer_of(
    problem: MixedProblem,
    pipeline: Pipeline,
    fill: Fill,
    counts: tuple[int, int],
    most_micro: int = 1 << 30,
    n_kinds: int = 2,
) -> Offer:
    """Return pipelines as the master may choose them; `counts` are the least and the most.

    Times are those of the most, whose gradients take longest, and exchanges those between
    `n_kinds` kinds over the NICs of their pools.
    """
    least, most = counts
    passes = 2.0 * (n_kinds - 1) / n_kinds
    kind = PipelineKind(fill.stages, most, pipeline.mbs, 1, most * pipeline.mbs)
    one = price(MixedPlan((kind,), problem.zero), problem).kinds[0]
    factor = problem.straggler_factor
    # The last stage to end with the exchange need not be the last without it.
    alone_s = [x.sync_s + x.update_s for x in one.stages]
    exchanges_s = least_exchanges_s(problem, pipeline, fill, most)
    tail_s = max(x + passes * y for x, y in zip(alone_s, exchanges_s, strict=True))
    return Offer(
        pipeline=pipeline,
        fill=fill,
        least=least,
        most=most,
        slowest_s=factor * one.compute_s,
        outside_s=one.step_s - factor * one.messages_s - max(alone_s) + tail_s,
        hop_s=factor * max(one.hops_s, default=0.0),
        most_micro=most_micro,
    )


def least_exchanges_s(
    problem: MixedProblem, pipeline: Pipeline, fill: Fill, n_pipelines: int
) -> list[float]:
    """Return what an exchange with another kind takes each stage at least, by its NIC."""
    start, least_s = 0, []
    for stage in fill.stages:
        table = table_of(problem, stage, pipeline.mbs)
        own = table.grad_bytes.of(start, start + stage.layers) / n_pipelines
        least_s.append(own / problem.pools[stage.pool].nic_bytes_per_s)
        start += stage.layers
    return least_s


def shared_out(problem: MixedProblem, kinds: Sequence[tuple[Offer, int]]) -> MixedPlan | None:
    """Return the plan of some kinds whose shares of the batch make the slowest as fast as can be.

    None where the kinds cannot share the batch in whole micro-batches.
    """
    batch = problem.global_batch
    merged = sorted(kinds, key=lambda x: (x[0].fill.stages[0].pool, -x[1]))

    def made(shares: Sequence[int]) -> MixedPlan:
        return MixedPlan(
            tuple(
                pipelines_of(x.fill, x.pipeline, n, share)
                for (x, n), share in zip(merged, shares, strict=True)
                if share
            ),
            problem.zero,
        )

    # The least step within which all of them get the batch done.
    low, high = 0.0, max(x.step_s(-(-batch // x.pipeline.mbs)) for x, _ in merged)
    for _ in range(60):
        middle = 0.5 * (low + high)
        done = sum(n * x.done(middle) for x, n in merged)
        low, high = (low, middle) if done >= batch else (middle, high)
    shares = [n * x.done(high) for x, n in merged]
    excess = sum(shares) - batch
    for i in sorted(range(len(merged)), key=lambda i: -merged[i][0].pipeline.mbs):
        mbs = merged[i][0].pipeline.mbs
        taken = min(excess // mbs * mbs, shares[i])
        shares[i] -= taken
        excess -= taken
    if excess or min(shares, default=0) < 0:
        return None
    plan = made(shares)
    return plan if plan.kinds else None


def shares_of(
    problem: MixedProblem, kinds: Sequence[tuple[Offer, int]], time_s: float
) -> Iterator[MixedPlan]:
    """Yield the plans of some kinds with every share of the batch that may keep to a step."""
    batch = problem.global_batch
    most = [n * x.done(time_s) for x, n in kinds]

    def each(i: int, left: int) -> Iterator[tuple[int, ...]]:
        mbs = kinds[i][0].pipeline.mbs
        if i == len(kinds) - 1:
            if 0 < left <= most[i] and left % mbs == 0:
                yield (left,)
            return
        for share in range(mbs, min(left, most[i]) + 1, mbs):
            for rest in each(i + 1, left - share):
                yield (share, *rest)

    for shares in each(0, batch):
        parts = tuple(
            pipelines_of(x.fill, x.pipeline, n, share)
            for (x, n), share in zip(kinds, shares, strict=True)
        )
        yield MixedPlan(parts, problem.zero)
