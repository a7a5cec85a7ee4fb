"""Small random jobs over several pools, and every plan of them."""

import random
from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement, permutations, product

import numpy as np

from costmodels.mixed.plans import MixedPlan, MixedStage, PipelineKind
from costmodels.mixed.tables import (
    LinkFacts,
    MixedPool,
    MixedProblem,
    Overlap,
    Prefix,
    Ring,
    StageTable,
)


def random_problem(seed: int) -> MixedProblem:
    """Return a job of two to four layers on two pools of one to three devices."""
    chance = random.Random(seed)
    n_layers = chance.choice([2, 3, 4])
    sizes = [chance.choice([1, 2, 3]) for _ in range(2)]
    even = chance.random() < 0.5
    work = np.array([1.0 if even else chance.uniform(0.4, 1.6) for _ in range(n_layers)])
    speeds = [chance.uniform(0.5, 3.0) for _ in sizes]
    memory = [chance.uniform(6.0, 40.0) for _ in sizes]
    tables: list[StageTable] = []
    for pool, tp, mbs in product(range(2), (1, 2), (1, 2)):
        if tp <= sizes[pool]:
            for recompute in ("none", "full"):
                tables.append(_table(chance, pool, (tp, mbs), recompute, work / speeds[pool]))
    pools = tuple(
        MixedPool(
            name=f"pool-{k}",
            n_devices=size,
            devices_per_node=size,
            usable_bytes=memory[k],
            nic_bytes_per_s=chance.uniform(1.0, 20.0),
            rings={(n, d): _ring(chance, d) for n in (1, 2) for d in range(2, size // n + 1)},
            inside_hop=(chance.uniform(0.0, 0.01), chance.uniform(0.0, 0.05)),
        )
        for k, size in enumerate(sizes)
    )
    link = LinkFacts(chance.uniform(0.5, 40.0), chance.uniform(0.0, 0.05))
    overlap = Overlap(chance.uniform(0.1, 3.0), 0.0, 0.2) if chance.random() < 0.5 else None
    return MixedProblem(
        pools=pools,
        links={(0, 1): link},
        tables=tuple(tables),
        n_layers=n_layers,
        global_batch=chance.choice([2, 4, 6]),
        zero=chance.choice([0, 1]),
        fixed_s=chance.uniform(0.0, 0.2),
        overlap=overlap,
        straggler_factor=chance.choice([1.0, 1.05]),
    )


def _ring(chance: random.Random, n: int) -> Ring:
    def one(share: float) -> tuple[float, float]:
        return chance.uniform(0.0, 0.01), share * chance.uniform(0.02, 0.3)

    part = (n - 1) / n
    return Ring(one(part), one(part), one(2.0 * part))


def _table(
    chance: random.Random,
    pool: int,
    degrees: tuple[int, int],
    recompute: str,
    work: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> StageTable:
    tp, mbs = degrees
    layer_s = work * mbs**0.9 / tp**0.8
    again = 1.0 if recompute == "full" else 0.0

    def prefix(values: object, ends: float = 0.0) -> Prefix:
        each = np.broadcast_to(np.asarray(values, dtype=np.float64), work.shape)
        return Prefix(np.concatenate([[0.0], np.cumsum(each)]), ends / 2, ends)

    return StageTable(
        pool=pool,
        tp=tp,
        cp=1,
        mbs=mbs,
        recompute=recompute,
        forward_s=prefix(layer_s, 0.2 / tp),
        backward_s=prefix((2.0 + again) * layer_s, 0.4 / tp),
        whole_bytes=prefix(1.0 / tp, 0.3 / tp),
        shared_bytes=prefix(2.0 / tp, 0.6 / tp),
        activation_bytes=prefix((0.2 if again else 1.5) * mbs / tp),
        working_bytes=prefix(0.0, 0.2),
        fixed_bytes=0.5,
        grad_bytes=prefix(0.5 / tp, 0.1 / tp),
        weight_bytes=prefix(0.25 / tp, 0.05 / tp),
        update_s=prefix(0.02 / tp),
        clear_s=prefix(0.005 / tp),
        message_bytes=0.1 * mbs / tp,
    )


def every_kind(problem: MixedProblem) -> Iterator[tuple[tuple[MixedStage, ...], int, int]]:
    """Yield every pipeline: its stages, micro-batch, and the most that the pools hold."""
    n_layers, n_pools = problem.n_layers, len(problem.pools)
    ways = sorted({(x.pool, x.tp, x.mbs) for x in problem.tables})
    kept = sorted({x.recompute for x in problem.tables})
    for n_spanned in range(1, n_pools + 1):
        for pools in permutations(range(n_pools), n_spanned):
            for chosen in product(*([w for w in ways if w[0] == k] for k in pools)):
                if len({mbs for _, _, mbs in chosen}) > 1:
                    continue
                for counts in product(range(1, n_layers + 1), repeat=n_spanned):
                    pp = sum(counts)
                    used = {pool: n * tp for (pool, tp, _), n in zip(chosen, counts, strict=True)}
                    most = min(problem.pools[k].n_devices // n for k, n in used.items())
                    if pp > n_layers or not most:
                        continue
                    places = [w for w, n in zip(chosen, counts, strict=True) for _ in range(n)]
                    for cuts in combinations(range(1, n_layers), pp - 1):
                        layers = np.diff((0, *cuts, n_layers)).tolist()
                        for recompute in product(kept, repeat=pp):
                            stages = tuple(
                                MixedStage(pool, tp, 1, n, again)
                                for (pool, tp, _), n, again in zip(
                                    places, layers, recompute, strict=True
                                )
                            )
                            yield stages, chosen[0][2], most


def every_plan(problem: MixedProblem, most_kinds: int) -> Iterator[MixedPlan]:
    """Yield every plan of up to some kinds; kinds that are alike but for their share too."""
    batch = problem.global_batch
    sized = [
        (stages, mbs, n) for stages, mbs, most in every_kind(problem) for n in range(1, most + 1)
    ]

    def made(one: tuple[tuple[MixedStage, ...], int, int], share: int) -> PipelineKind:
        stages, mbs, n = one
        return PipelineKind(stages, n, mbs, -(-share // (mbs * n)), share)

    for one in sized:
        if one[1] * one[2] <= batch:
            yield MixedPlan((made(one, batch),), problem.zero)
    if most_kinds < 2:
        return
    for a, b in combinations_with_replacement(sized, 2):
        used = [
            sum(n * sum(x.n_devices for x in stages if x.pool == k) for stages, _, n in (a, b))
            for k in range(len(problem.pools))
        ]
        if any(n > pool.n_devices for n, pool in zip(used, problem.pools, strict=True)):
            continue
        for share in range(a[1], batch, a[1]):
            if (batch - share) % b[1] == 0:
                yield MixedPlan((made(a, share), made(b, batch - share)), problem.zero)
