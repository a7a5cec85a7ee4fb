"""The three plans that together most likely hold the best one.

Errors of predictions are shared: where tensor-parallel traffic is slower than predicted, it is so
for every plan, and plans with more of it lose more. So the times of plans are drawn together:

    time of plan p = (sum over groups g of its predicted time in g times exp(s_g z_g))
                     times exp(sum over features f of s_f z_(f, value of f in p))

with standard normals z, one for each group and one for each value of each feature (all plans of
one micro-batch size share theirs), so that plans which differ in little err alike. How large the
spreads of features are is drawn too, for all plans at once: some stacks the model knows well,
some not. The spreads are stated here; docs/trial.md shows how the promise made with them is kept
on measured sweeps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from costmodels.plans import Layout

Floats = NDArray[np.float64]

N_PLANS = 3
"""Plans of a shortlist."""
NEAR_FRAC = 0.01
"""A plan this close to the best is as good: repeats of one layout differ by as much."""
N_DRAWS = 4096
"""Draws of all times."""
MEASURED_SPREAD = 0.04
"""How well an error that was measured holds for plans like it (standard deviation of its
logarithm): measured steps repeat to 1 or 2 %, and the covariance is not known better."""
SURPRISE = 0.12
"""Logarithm beyond which an error is one of the plan alone, and no larger part carries over."""
SEED = 7
N_RANKED = 128
"""Plans of the ranking that are looked at."""
MAX_CANDIDATES = 48
"""Distinct plans among which the shortlist is chosen, the first of a ranking."""

SPREADS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "matrix products": (0.05, ("linear", "experts", "head", "embedding", "tower")),
    "attention": (0.15, ("attention",)),
    "memory-bound operators": (0.15, ("elementwise",)),
    "recomputation": (0.10, ("recompute",)),
    "launches": (0.25, ("host",)),
    "tensor-parallel traffic": (0.25, ("tp",)),
    "context-parallel traffic": (0.25, ("cp",)),
    "expert traffic": (0.25, ("ep",)),
    "slowdown by traffic": (0.50, ("overlap",)),
    "pipeline messages": (0.30, ("pp",)),
    "bubble": (0.15, ("bubble",)),
    "data-parallel traffic": (0.35, ("dp",)),
    "once a step": (0.25, ("optimizer", "offload", "straggler", "fixed")),
}
"""Spread of the factor on each group of time terms (standard deviation of its logarithm), and the
terms (`costmodels.breakdown.TIME_TERMS`). Stated: what is left of a group after the common part of
all, which changes no order."""
FEATURES: Mapping[str, tuple[float, Callable[[Layout], tuple[object, ...]]]] = {
    "width": (0.04, lambda x: (x.tp, x.cp, x.cp_comm, x.ep, x.etp, x.sp, x.tp_overlap)),
    "pipeline": (0.04, lambda x: (x.pp, x.vpp, x.schedule)),
    "sharding": (0.03, lambda x: (x.zero, x.dp_shard, x.hpz, x.dp_overlap)),
    "micro-batch": (0.04, lambda x: (x.mbs,)),
    "recomputation": (
        0.02,
        lambda x: (x.recompute, x.recompute_modules, x.activation_offload, x.optimizer_offload),
    ),
}
"""What no group of terms explains, by feature of the layout: its spread, and its value."""
PLAN_SPREAD = 0.01
"""The same for two plans that have all features in common."""
WELL_KNOWN = 0.7
"""Share of the draws in which the model knows the stack well."""
SCALES = (0.5, 1.8)
"""What the spreads of features are multiplied by in those draws, and in the others. On measured
sweeps most orders are right within 1 or 2 %, and some are off by 10 %."""


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The plans to time, and what they promise."""

    chosen: tuple[int, ...]
    """Positions in the ranking, in its order."""
    probability: float
    """That one of them is the best, or as good as it (`NEAR_FRAC`)."""
    expected_regret: float
    """Mean of the best of them over the best of all, less 1."""
    probability_of_first: float
    """The same two for the first plan alone."""
    regret_of_first: float
    n_candidates: int

    def to_json(self) -> dict[str, object]:
        """Return the promise with the field names of trial.json."""
        return {
            "probability": round(self.probability, 4),
            "expected_regret": round(self.expected_regret, 6),
            "first_alone": {
                "probability": round(self.probability_of_first, 4),
                "expected_regret": round(self.regret_of_first, 6),
            },
            "candidates": self.n_candidates,
            "near": NEAR_FRAC,
        }


def distinct_layouts(layouts: Sequence[Layout]) -> list[int]:
    """Return the positions of the first layout of each set of features, `MAX_CANDIDATES` at most.

    Layouts that differ in nothing else (in how many layers are recomputed, in the split) are
    better told apart by the model than by a trial.
    """
    first: dict[tuple[object, ...], int] = {}
    for i, layout in enumerate(layouts):
        key = (layout.n_devices, *(value(layout) for _, value in FEATURES.values()))
        first.setdefault(key, i)
    return list(first.values())[:MAX_CANDIDATES]


def shortlist(
    times_s: Sequence[Mapping[str, float]], layouts: Sequence[Layout], n: int = N_PLANS
) -> Shortlist:
    """Return the `n` plans that together most likely hold one as good as the best.

    `times_s` holds the seconds of each plan by term, `layouts` its layout. All sets of `n` are
    compared; among equals the one with the smaller expected regret, then the one earlier in the
    ranking wins.
    """
    if not times_s:
        raise ValueError("no plans to choose from")
    slower = draws(times_s, layouts)
    slower = slower / slower.min(axis=1, keepdims=True)
    missed = slower > 1.0 + NEAR_FRAC
    chosen = _fewest_misses(missed, slower, min(n, len(times_s)))
    best = slower[:, list(chosen)].min(axis=1)
    return Shortlist(
        chosen=chosen,
        probability=float((best <= 1.0 + NEAR_FRAC).mean()),
        expected_regret=float(best.mean() - 1.0),
        probability_of_first=float((~missed[:, 0]).mean()),
        regret_of_first=float(slower[:, 0].mean() - 1.0),
        n_candidates=len(times_s),
    )


def draws(times_s: Sequence[Mapping[str, float]], layouts: Sequence[Layout]) -> Floats:
    """Return step times drawn together, `(N_DRAWS, n_plans)` seconds."""
    groups = list(SPREADS.values())
    by_group = np.array(
        [[sum(one.get(term, 0.0) for term in terms) for _, terms in groups] for one in times_s]
    )
    apart, spread_of = _differences(layouts)
    normal = normals(1 + len(groups) + apart.shape[1])
    of_all, of_groups, of_plans = np.split(normal, [1, 1 + len(groups)], axis=1)
    scale = np.where(of_all < NormalDist().inv_cdf(WELL_KNOWN), *SCALES)
    spread = np.array([s for s, _ in groups])
    shared = np.exp(of_groups * spread) @ by_group.T
    return np.asarray(shared * np.exp((of_plans * spread_of * scale) @ apart.T))


@dataclass(frozen=True, slots=True)
class Carried:
    """What measured plans say about others: factors on their predictions, `(n_plans,)` each."""

    factor: Floats
    spread: Floats
    """Standard deviation of the logarithm that is left."""


def carried_rank(
    times_s: Sequence[Mapping[str, float]],
    layouts: Sequence[Layout],
    measured_s: Mapping[int, float],
) -> Carried:
    """Return how the errors of measured plans carry over to plans like them.

    The model of the draws, linear in logarithms: plans are jointly normal, with covariance
    sum_g s_g^2 w_pg w_qg (w: share of a plan's predicted time in a group) + sum_f s_f^2 [same
    value] and `PLAN_SPREAD`^2 for a plan with itself. Conditioned on the measured ones, by their
    position, each known to `MEASURED_SPREAD` and cut at `SURPRISE`. What all plans share is not
    seen: predictions are taken to be anchored. Both constants left the smallest errors, and the
    best next plan, of those tried on the measured sweeps.
    """
    groups = list(SPREADS.values())
    share = np.array(
        [[sum(one.get(term, 0.0) for term in terms) for _, terms in groups] for one in times_s]
    )
    total = share.sum(axis=1)
    parts = share / total[:, None] * np.array([s for s, _ in groups])
    apart, spread = _differences(layouts)
    scale = WELL_KNOWN * SCALES[0] ** 2 + (1.0 - WELL_KNOWN) * SCALES[1] ** 2
    joint = parts @ parts.T + scale * (apart * spread**2) @ apart.T
    ranks = sorted(measured_s)
    if not ranks:
        return Carried(np.ones(len(total)), np.sqrt(np.diag(joint)))
    off = np.log([measured_s[i] for i in ranks]) - np.log(total[ranks])
    off = np.clip(off, -SURPRISE, SURPRISE)
    among = joint[np.ix_(ranks, ranks)] + MEASURED_SPREAD**2 * np.eye(len(ranks))
    weights = np.linalg.solve(among, joint[ranks]).T
    left = np.diag(joint) - (weights * joint[:, ranks]).sum(axis=1)
    return Carried(np.exp(weights @ off), np.sqrt(np.maximum(left, 0.0)))


def _differences(layouts: Sequence[Layout]) -> tuple[Floats, Floats]:
    """Return which value of a feature each plan has, `(n_plans, n_values)`, and their spreads."""
    columns, spreads = [], []
    for spread, value in FEATURES.values():
        results = [value(layout) for layout in layouts]
        for one in dict.fromkeys(results):
            columns.append([float(x == one) for x in results])
            spreads.append(spread)
    columns += np.eye(len(layouts)).tolist()
    spreads += [PLAN_SPREAD] * len(layouts)
    return np.array(columns).T, np.array(spreads)


@cache
def _quantiles() -> Floats:
    """Return the middles of equally likely strata of a standard normal."""
    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / N_DRAWS) for i in range(N_DRAWS)])


def normals(n: int) -> Floats:
    """Return a Latin hypercube of standard normals, `(N_DRAWS, n)`: every stratum once a column.

    The columns are shuffled by the raw bits of PCG64, which no release of numpy changes.
    """
    bits, strata = np.random.PCG64(SEED), _quantiles()
    columns = [strata[np.argsort(bits.random_raw(N_DRAWS), kind="stable")] for _ in range(n)]
    return np.stack(columns, axis=1)


def _fewest_misses(missed: NDArray[np.bool_], slower: Floats, n: int) -> tuple[int, ...]:
    """Return the set of `n` columns that miss together in the fewest rows."""
    n_plans = missed.shape[1]
    if n == n_plans:
        return tuple(range(n))
    if n != 3:
        return _best_set(missed, slower, list(combinations(range(n_plans), n)))
    results: list[tuple[float, tuple[int, ...]]] = []
    for i in range(n_plans):
        rows = missed[missed[:, i]].astype(np.float64)
        both = rows.T @ rows
        upper = np.triu(np.ones_like(both, dtype=bool), 1)
        upper[: i + 1] = False
        if upper.any():
            least = both[upper].min()
            pairs = np.argwhere(upper & (both == least))
            results += [(float(least), (i, int(j), int(k))) for j, k in pairs]
    least = min(misses for misses, _ in results)
    return _best_set(missed, slower, [which for misses, which in results if misses == least])


def _best_set(
    missed: NDArray[np.bool_], slower: Floats, sets: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    """Return the set with the fewest joint misses, then the least regret, then the earliest."""

    def worth(which: tuple[int, ...]) -> tuple[float, float, tuple[int, ...]]:
        columns = list(which)
        misses = int(missed[:, columns].all(axis=1).sum())
        return misses, round(float(slower[:, columns].min(axis=1).mean()), 12), which

    return min(sets, key=worth)
