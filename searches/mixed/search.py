"""The best plan over several pools, and a bound that no plan is faster than.

1. One kind of pipeline: structures in the order of a lower bound of their step, each with its
   best splits, until the bound passes the best step.
2. Several kinds: a lower bound over any mixture of structures (`bound`), and the structures that
   are worth their devices at its prices; of those CP-SAT chooses kinds and numbers of pipelines
   (`master`) within a step that is halved towards the bound. What it chooses is priced whole.

Small problems are searched whole: every split of every structure is a candidate, and choices are
priced until none is left whose bound is below the best.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np

from costmodels.mixed.plans import MixedPlan, PipelineKind
from costmodels.mixed.prices import MixedPrice, fits, price, table_of
from costmodels.mixed.tables import MixedProblem
from costmodels.schedule.zero_bubble import alternating_crossings
from searches.mixed.bound import Refined, least_step_s
from searches.mixed.fills import Fill, Pipeline, best_fills, fastest_fill, ways_of
from searches.mixed.master import Candidate, choose
from searches.mixed.structures import Structures, fastest_way_s, structures_of

Stop = Callable[[], bool]

SMALL = 4000
"""Splits and numbers of pipelines of all structures, up to which a problem is searched whole."""
TRIED_STRUCTURES = 400
"""Structures of one kind that are split, the most promising first, where there are more."""
OFFERED = 240
"""Structures that the master chooses among."""
OFFERED_ALIKE = 2
"""Those of them that take as many devices of every pool."""
KNOWN_CHOICES = 400
"""Choices of a small problem that are priced at most."""
USUAL_EXCHANGE = 4.0 / 3.0
"""Of the least exchange between kinds, 2 (U - 1)/U of the shards: between three groups."""
POLISHED = 200
"""Neighbours of the best mixture that are priced at most."""
REFINED_TWICE = 2
"""Rounds in which the structures of least loss are made exact before they are offered."""
LENGTHS = 5
"""Of the step at which structures are weighed for the master."""
STEPS = 12
"""Lengths of the step that the master is asked for."""


@dataclass(frozen=True, slots=True)
class MixedOptions:
    """What a search over several pools looks at."""

    most_kinds: int = 3
    """Kinds of pipelines in one plan."""
    most_spanned: int = 2
    """Pools that one pipeline spans; more are looked at where nothing fits."""
    is_uniform: bool = False
    """Plans alone that are one grid of ranks (`MixedPlan.is_uniform`), as Megatron-LM runs."""
    n_best: int = 5
    """Plans in the answer, each with other structures."""


@dataclass(frozen=True, slots=True)
class MixedAnswer:
    """Plans, the fastest first, and what is proven of the first."""

    plans: tuple[MixedPlan, ...]
    prices: tuple[MixedPrice, ...]
    bound_s: float
    """No plan of the space has a shorter step; infinite where none fits."""
    n_structures: int
    n_priced: int
    stopped: str = ""
    """`time limit` where the search was cut off."""

    @property
    def gap_frac(self) -> float:
        """(best - bound) / best; 0 where the first is proven."""
        if not self.prices:
            return 0.0
        best_s = self.prices[0].step_s
        return max(0.0, (best_s - self.bound_s) / best_s)

    @property
    def proven(self) -> bool:
        """Whether no plan of the space is faster than the first by more than rounding."""
        return not self.stopped and self.gap_frac <= 1e-6


class _Best:
    """The fastest plans so far, one for each set of structures."""

    def __init__(self, problem: MixedProblem, options: MixedOptions) -> None:
        self.problem, self.options = problem, options
        self.n_priced = 0
        self._by_key: dict[tuple[object, ...], tuple[float, MixedPlan, MixedPrice]] = {}

    def offer(self, plan: MixedPlan) -> float:
        """Price a plan and keep it if it fits; return its step, infinite where it does not."""
        self.n_priced += 1
        if self.options.is_uniform and not plan.is_uniform:
            return math.inf
        priced = price(plan, self.problem)
        if not fits(plan, self.problem, priced):
            return math.inf
        step_s, key = priced.step_s, _key(plan)
        known = self._by_key.get(key)
        if known is None or (step_s, _order(plan)) < (known[0], _order(known[1])):
            self._by_key[key] = (step_s, plan, priced)
        return step_s

    @property
    def step_s(self) -> float:
        """Step of the fastest."""
        return min((x[0] for x in self._by_key.values()), default=math.inf)

    def first(self, n: int) -> list[tuple[float, MixedPlan, MixedPrice]]:
        """Return the fastest, in order."""
        rows = sorted(self._by_key.values(), key=lambda x: (x[0], _order(x[1])))
        return rows[:n]


def _key(plan: MixedPlan) -> tuple[object, ...]:
    """Return what tells plans apart in an answer: which pools each kind spans, and how wide."""
    return tuple(
        sorted(tuple((x.pool, x.tp, x.cp, x.ep) for x in kind.stages) for kind in plan.kinds)
    )


def _order(plan: MixedPlan) -> tuple[object, ...]:
    return (
        len(plan.kinds),
        tuple(
            (kind.n_pipelines, kind.mbs, tuple((x.pool, x.layers) for x in kind.stages))
            for kind in plan.kinds
        ),
    )


def search_mixed(
    problem: MixedProblem, options: MixedOptions | None = None, stop: Stop | None = None
) -> MixedAnswer:
    """Return the fastest plans over several pools, with a proven bound.

    `stop` is asked now and then; when it says so, the best so far is returned. The answer depends
    on the problem and the options alone, unless it is stopped.
    """
    options = options or MixedOptions()
    ways = ways_of(problem)
    best = _Best(problem, options)
    spanned, n_pools = options.most_spanned, len(problem.pools)
    while True:
        structures = structures_of(problem, ways, spanned)
        bound_s = _search(problem, structures, options, best, stop)
        if best.step_s < math.inf or spanned >= n_pools or (stop is not None and stop()):
            break
        spanned += 1
    rows = best.first(options.n_best)
    return MixedAnswer(
        plans=tuple(x[1] for x in rows),
        prices=tuple(x[2] for x in rows),
        bound_s=min(bound_s, rows[0][0]) if rows else math.inf,
        n_structures=len(structures),
        n_priced=best.n_priced,
        stopped="time limit" if stop is not None and stop() else "",
    )


def _search(
    problem: MixedProblem,
    structures: Structures,
    options: MixedOptions,
    best: _Best,
    stop: Stop | None,
) -> float:
    """Search one set of structures; return the bound."""
    if not len(structures):
        return math.inf
    if (whole := _every_fill(problem, structures)) is not None:
        return _search_whole(problem, whole, options, best, stop)
    single_s = _search_single(problem, structures, options, best, stop)
    if options.is_uniform or options.most_kinds == 1:
        return single_s
    refined = Refined(problem, structures, options.most_kinds)
    rates = fastest_way_s(problem, structures.ways)
    sizes = np.array([pool.n_devices for pool in problem.pools])
    fluid_s = problem.straggler_factor * problem.global_batch / float((sizes / rates).sum())
    high_s = best.step_s if best.step_s < math.inf else 64.0 * fluid_s
    bound_s, dual = least_step_s(refined, fluid_s, high_s, stop)
    if stop is None or not stop():
        _search_several(problem, refined, (bound_s, dual.prices), options, best, stop)
    return bound_s


def pipelines_of(fill: Fill, pipeline: Pipeline, n: int, n_sequences: int) -> PipelineKind:
    """Return pipelines of one kind that share some sequences."""
    return PipelineKind(
        stages=fill.stages,
        n_pipelines=n,
        mbs=pipeline.mbs,
        n_micro=math.ceil(n_sequences / (pipeline.mbs * n)),
        n_sequences=n_sequences,
    )


def _search_single(
    problem: MixedProblem,
    structures: Structures,
    options: MixedOptions,
    best: _Best,
    stop: Stop | None,
) -> float:
    """Try plans of one kind of pipeline; return a lower bound of the step of all of them."""
    s, batch = structures, problem.global_batch
    sizes = np.array([pool.n_devices for pool in problem.pools], dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.floor(np.where(s.devices > 0, sizes / s.devices, np.inf).min(axis=1))
    n_micro = np.ceil(batch / (s.mbs * np.maximum(1.0, most)))
    least_s = problem.straggler_factor * ((n_micro - 1.0) * s.slowest_s + s.total_s)
    least_s = np.where(most >= 1, least_s + problem.fixed_s, np.inf)
    order = np.argsort(least_s, kind="stable")
    for n_tried, i in enumerate(order.tolist()):
        if least_s[i] >= best.step_s:
            return best.step_s
        if n_tried >= TRIED_STRUCTURES and (
            best.step_s < math.inf or n_tried > 20 * TRIED_STRUCTURES
        ):
            return float(least_s[i])
        if stop is not None and n_tried % 8 == 0 and stop():
            return float(least_s[i])
        pipeline = s.pipeline(i)
        if options.is_uniform and len({w.n_devices for w in pipeline.ways()}) > 1:
            continue
        for n in _pipeline_counts(pipeline, problem):
            m = math.ceil(batch / (pipeline.mbs * n))
            if options.is_uniform and batch % (pipeline.mbs * n):
                continue
            limit_s = (best.step_s - problem.fixed_s) / problem.straggler_factor - s.total_s[i]
            limit_s = limit_s / (m - 1) if m > 1 else math.inf
            low_s = float(s.slowest_s[i])
            for fill in best_fills(problem, pipeline, n, m, low_s=low_s, limit_s=limit_s):
                best.offer(MixedPlan((pipelines_of(fill, pipeline, n, batch),), problem.zero))
    return best.step_s


def _pipeline_counts(pipeline: Pipeline, problem: MixedProblem) -> list[int]:
    """Return numbers of pipelines worth trying: the most, and the most that share evenly."""
    most, batches = pipeline.most_pipelines(problem), problem.global_batch // pipeline.mbs
    most = min(most, batches)
    if most < pipeline.multiple or most < 1:
        return []
    even = [n for n in range(most, 0, -1) if batches % n == 0 and n % pipeline.multiple == 0]
    return list(dict.fromkeys([most // pipeline.multiple * pipeline.multiple, *even[:1]]))


@dataclass(frozen=True, slots=True)
class _Offer:
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
        crossings = float(alternating_crossings(pp, n_micro)) if pp > 1 else 0.0
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


def _offer(
    problem: MixedProblem,
    pipeline: Pipeline,
    fill: Fill,
    counts: tuple[int, int],
    most_micro: int = 1 << 30,
) -> _Offer:
    """Return pipelines as the master may choose them; `counts` are the least and the most.

    Times are those of the most, whose gradients take longest; with one count exchanges with other
    kinds are at their least, else as between three groups.
    """
    least, most = counts
    share = 1.0 if least == most else USUAL_EXCHANGE
    kind = PipelineKind(fill.stages, most, pipeline.mbs, 1, most * pipeline.mbs)
    one = price(MixedPlan((kind,), problem.zero), problem).kinds[0]
    factor = problem.straggler_factor
    return _Offer(
        pipeline=pipeline,
        fill=fill,
        least=least,
        most=most,
        slowest_s=factor * one.compute_s,
        outside_s=one.step_s
        - factor * one.messages_s
        + share * _least_exchange_s(problem, pipeline, fill, most),
        hop_s=factor * max(one.hops_s, default=0.0),
        most_micro=most_micro,
    )


def _least_exchange_s(
    problem: MixedProblem, pipeline: Pipeline, fill: Fill, n_pipelines: int
) -> float:
    """Return what an exchange with another kind takes at least: the shards over the NICs."""
    start, least_s = 0, 0.0
    for stage in fill.stages:
        table = table_of(problem, stage, pipeline.mbs)
        own = table.grad_bytes.of(start, start + stage.layers) / n_pipelines
        least_s = max(least_s, own / problem.pools[stage.pool].nic_bytes_per_s)
        start += stage.layers
    return least_s


def _doublings(pipeline: Pipeline, problem: MixedProblem) -> Iterator[tuple[int, int]]:
    """Yield ranges of pipelines: 1, 2 to 3, 4 to 7, ... times the expert group, up to the most."""
    n, most = pipeline.multiple, pipeline.most_pipelines(problem)
    while n <= most:
        yield n, min(most, 2 * n - pipeline.multiple)
        n *= 2


def _search_several(
    problem: MixedProblem,
    refined: Refined,
    bound: tuple[float, np.ndarray[tuple[int], np.dtype[np.float64]]],
    options: MixedOptions,
    best: _Best,
    stop: Stop | None,
) -> None:
    """Let the master mix the structures that are worth most at the prices of the bound.

    `bound` is the least step and those prices.
    """
    bound_s, prices = bound
    n_pools, sizes = len(problem.pools), [pool.n_devices for pool in problem.pools]
    high_s = best.step_s
    offers = _offers(problem, refined, prices, (bound_s, high_s), stop)
    if not offers:
        return
    target, low_s = problem.global_batch, 0.0
    mixture: tuple[float, list[tuple[_Offer, int]]] = (math.inf, [])
    if not math.isfinite(high_s):
        high_s = max(x.step_s(-(-target // x.pipeline.mbs)) for x in offers)
    for _ in range(STEPS):
        if stop is not None and stop():
            return
        time_s = high_s if low_s == 0.0 else 0.5 * (low_s + high_s)
        time_s = high_s * 0.97 if low_s == 0.0 else time_s
        candidates = [x.candidate(time_s, n_pools) for x in offers]
        chosen = choose(candidates, sizes, options.most_kinds, target)
        if not chosen.counts:
            low_s = time_s
        else:
            counts = [(offers[v], n) for v, n in enumerate(chosen.counts) if n]
            step_s = _offer_counts(problem, counts, best)
            if step_s < mixture[0]:
                mixture = step_s, counts
            high_s = min(high_s, best.step_s, time_s)
        if low_s and high_s - low_s <= 1e-3 * high_s:
            break
    if mixture[1] and (stop is None or not stop()):
        _polish(problem, mixture, best)


def _offer_counts(
    problem: MixedProblem, counts: Sequence[tuple[_Offer, int]], best: _Best
) -> float:
    """Price some kinds with the shares of the batch that suit them; return the step, seconds."""
    exact = [(_offer(problem, x.pipeline, x.fill, (n, n)), n) for x, n in counts]
    plan = shared_out(problem, exact)
    return math.inf if plan is None else best.offer(plan)


def _polish(
    problem: MixedProblem, mixture: tuple[float, list[tuple[_Offer, int]]], best: _Best
) -> None:
    """Move pipelines between the kinds of a mixture as long as that makes it faster."""
    step_s, counts = mixture
    sizes = [pool.n_devices for pool in problem.pools]
    n_left = POLISHED
    improved = True
    while improved and n_left > 0:
        improved = False
        for moves in product((-2, -1, 0, 1, 2), repeat=len(counts)):
            if not any(moves) or n_left <= 0:
                continue
            moved = [
                (x, n + move * x.pipeline.multiple)
                for (x, n), move in zip(counts, moves, strict=True)
            ]
            if any(n < 1 for _, n in moved) or any(
                sum(n * x.pipeline.n_devices(k) for x, n in moved) > size
                for k, size in enumerate(sizes)
            ):
                continue
            n_left -= 1
            one_s = _offer_counts(problem, moved, best)
            if one_s < step_s * (1.0 - 1e-9):
                step_s, counts, improved = one_s, moved, True
                break


def _offers(
    problem: MixedProblem,
    refined: Refined,
    prices: np.ndarray[tuple[int], np.dtype[np.float64]],
    range_s: tuple[float, float],
    stop: Stop | None,
) -> list[_Offer]:
    """Return the kinds that the master chooses among, by what they lose at the prices."""
    s, (low_s, high_s) = refined.structures, range_s
    time_s = _time_of(refined, prices, low_s)
    worth = s.devices @ prices[: s.devices.shape[1]]
    done, loss = np.zeros(len(s)), np.full(len(s), np.inf)
    # Micro-batches are whole: what loses at one length of the step may lose nothing at another.
    for length_s in np.linspace(time_s, max(time_s, min(high_s, 1.1 * time_s)), LENGTHS):
        for _ in range(REFINED_TWICE):
            own = refined.done(float(length_s))[-len(s) :]
            with np.errstate(divide="ignore", invalid="ignore"):
                one = np.where(worth > 0, 1.0 - own / (worth * (length_s / time_s)), np.inf)
            if not refined.refine(np.argsort(one, kind="stable")[:OFFERED], stop):
                break
        done, loss = np.maximum(done, own), np.minimum(loss, one)
    order = np.argsort(loss, kind="stable")
    offers: list[_Offer] = []
    taken: dict[tuple[float, ...], int] = {}
    n_taken = 0
    for i in order.tolist():
        if n_taken >= OFFERED or not np.isfinite(loss[i]) or done[i] <= 0:
            break
        devices = tuple(s.devices[i].tolist())
        if taken.get(devices, 0) >= OFFERED_ALIKE:
            continue
        if stop is not None and stop():
            break
        taken[devices] = taken.get(devices, 0) + 1
        n_taken += 1
        pipeline = s.pipeline(i)
        for n, most in _doublings(pipeline, problem):
            m = max(pipeline.pp, math.ceil(done[i] / pipeline.mbs))
            for fill in best_fills(problem, pipeline, n, m, (0.0,))[:1]:
                offers.append(_offer(problem, pipeline, fill, (n, most)))
    return offers


def _time_of(
    refined: Refined, prices: np.ndarray[tuple[int], np.dtype[np.float64]], low_s: float
) -> float:
    """Return a step at which the pools get the batch done at the prices, `low_s` at least."""
    target = refined.problem.global_batch

    def enough(time_s: float) -> bool:
        done = refined.done(time_s)
        worth = refined.devices @ prices
        best = float(np.max(np.where(worth > 0, done / np.maximum(worth, 1e-300), 0.0)))
        return best * float(refined.sizes @ prices) >= target

    high_s = max(low_s, 1e-9)
    while not enough(high_s):
        low_s, high_s = high_s, 1.1 * high_s
        if high_s > 1e12:
            return high_s
    for _ in range(8):
        middle = 0.5 * (low_s + high_s)
        if enough(middle):
            high_s = middle
        else:
            low_s = middle
    return high_s


def shared_out(problem: MixedProblem, kinds: Sequence[tuple[_Offer, int]]) -> MixedPlan | None:
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


def _every_fill(problem: MixedProblem, structures: Structures) -> tuple[_Offer, ...] | None:
    """Return all splits and numbers of pipelines; None where there are too many."""
    n_layers, total = problem.n_layers, 0
    for i in range(len(structures)):
        pipeline = structures.pipeline(i)
        most = pipeline.most_pipelines(problem)
        total += math.comb(n_layers - 1, pipeline.pp - 1) * max(0, most // pipeline.multiple)
        if total > SMALL:
            return None
    offers = []
    for i in range(len(structures)):
        pipeline = structures.pipeline(i)
        for n in range(pipeline.multiple, pipeline.most_pipelines(problem) + 1, pipeline.multiple):
            for fill, most_micro in _all_fills(problem, pipeline, n).items():
                offers.append(_offer(problem, pipeline, fill, (n, n), most_micro))
    return tuple(offers)


def _all_fills(problem: MixedProblem, pipeline: Pipeline, n: int) -> dict[Fill, int]:
    """Return every split, and the micro-batches up to which it fits.

    Each stage recomputes least among what fits with 1, 2, ... micro-batches in flight.
    """
    n_layers, pp = problem.n_layers, pipeline.pp
    fills: dict[Fill, int] = {}
    for cuts in combinations(range(1, n_layers), pp - 1):
        counts = np.diff((0, *cuts, n_layers)).tolist()
        for n_micro in range(1, pp + 1):
            fill = fastest_fill(problem, pipeline, counts, n, n_micro)
            if fill is not None:
                fills[fill] = n_micro if n_micro < pp else 1 << 30
    return fills


def _search_whole(
    problem: MixedProblem,
    offers: tuple[_Offer, ...],
    options: MixedOptions,
    best: _Best,
    stop: Stop | None,
) -> float:
    """Search a small problem whole; return the bound: the best step where it came to its end."""
    batch = problem.global_batch
    for x in offers:
        kind = pipelines_of(x.fill, x.pipeline, x.least, batch)
        if x.least * x.pipeline.mbs <= batch and kind.n_micro <= x.most_micro:
            best.offer(MixedPlan((kind,), problem.zero))
    if options.is_uniform or options.most_kinds == 1 or not offers:
        return best.step_s
    sizes = [pool.n_devices for pool in problem.pools]
    n_pools = len(sizes)
    offers = tuple(
        replace(x, groups=n)
        for x in offers
        for n in range(1, options.most_kinds + 1)
        if all(n * x.least * x.pipeline.n_devices(k) <= size for k, size in enumerate(sizes))
    )
    ceiling = max(x.step_s(batch) for x in offers)
    known: list[tuple[tuple[int, int], ...]] = []
    for _ in range(KNOWN_CHOICES):
        time_s = min(best.step_s, ceiling) * (1.0 - 1e-9)
        if stop is not None and stop():
            break
        candidates = [x.candidate(time_s, n_pools) for x in offers]
        chosen = choose(candidates, sizes, options.most_kinds, batch, known)
        if not chosen.counts:
            return best.step_s if chosen.bound < batch else 0.0
        used = tuple((v, n) for v, n in enumerate(chosen.counts) if n)
        known.append(used)
        kinds = [(offers[v], n) for v, n in used for _ in range(offers[v].groups)]
        for plan in shares_of(problem, kinds, time_s):
            best.offer(plan)
    return 0.0


def shares_of(
    problem: MixedProblem, kinds: Sequence[tuple[_Offer, int]], time_s: float
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


def without_pool(problem: MixedProblem, pool: int) -> MixedProblem:
    """Return the same job without one of the pools: its devices are not used."""
    pools = tuple(replace(x, n_devices=0) if i == pool else x for i, x in enumerate(problem.pools))
    tables = tuple(x for x in problem.tables if x.pool != pool)
    return replace(problem, pools=pools, tables=tables)
