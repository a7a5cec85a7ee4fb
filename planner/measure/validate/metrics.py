"""Numbers that compare predictions with measurements: errors, ranking, classification.

numpy only. Arrays are `(n,)`; every fraction is a fraction, never per cent.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

SLOW_FACTOR = 2.5
"""A run this much slower per slot than the same ranks at another size is unhealthy."""
INTERLEAVED_SLOT_FACTOR = 1.25
"""What the messages and smaller chunks of interleaving may add to a slot, and releases of one
framework may differ by on top (5 to 10 % where layouts are measured again)."""
TRIM_FRAC = 0.1
"""Share of the values that a trimmed mean drops at each end."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Summary of relative errors; None where there is nothing to compare."""

    n: int
    median_ape: float | None
    """Median of |predicted / measured - 1|."""
    p90_ape: float | None
    bias: float | None
    """Median of predicted / measured - 1."""


def errors(predicted: ArrayLike, measured: ArrayLike) -> Errors:
    """Return median, 90th percentile (linear between order statistics) and bias.

    >>> errors([1.1, 0.8, 1.0], [1.0, 1.0, 1.0]).n
    3
    """
    off = np.asarray(predicted, dtype=np.float64) / np.asarray(measured, dtype=np.float64) - 1.0
    if not off.size:
        return Errors(0, None, None, None)
    size = np.abs(off)
    return Errors(
        off.size, float(np.median(size)), float(np.quantile(size, 0.9)), float(np.median(off))
    )


def kendall_tau(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Return Kendall's tau-b: (concordant - discordant) / sqrt(pairs untied in x, in y).

    Pairs tied in either count neither way. 0 when one of the two does not vary at all.

    >>> kendall_tau([1, 2, 3], [10, 30, 20])  # two of three pairs agree: (2 - 1) / 3
    0.3333333333333333
    """
    x, y = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    upper = np.triu_indices(len(x), 1)
    dx = np.sign(x[:, None] - x[None, :])[upper]
    dy = np.sign(y[:, None] - y[None, :])[upper]
    untied = np.count_nonzero(dx) * np.count_nonzero(dy)
    return float((dx * dy).sum() / np.sqrt(untied)) if untied else 0.0


def regret(predicted: ArrayLike, measured: ArrayLike, n_first: int) -> float:
    """Return the best measured time among the first `n_first` choices over the best of all, - 1.

    Where equal predictions straddle the cut, the mean over all ways to choose among them.

    >>> regret([1, 2, 3], [12.0, 10.0, 11.0], 1), regret([1, 2, 3], [12.0, 10.0, 11.0], 3)
    (0.19999999999999996, 0.0)
    >>> regret([1, 1, 3], [10.0, 12.0, 11.0], 1)  # the mean of 10 and 12
    0.10000000000000009
    """
    x, y = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    n_first = min(n_first, len(x))
    cut = np.sort(x)[n_first - 1]
    sure, tied = y[x < cut], np.sort(y[x == cut])
    n_open = n_first - len(sure)
    # The smallest of n_open out of the tied is the i-th with C(left, n_open - 1) of all subsets.
    ways = [comb(len(tied) - i - 1, n_open - 1) for i in range(len(tied))]
    best = np.minimum(tied, sure.min()) if len(sure) else tied
    expected = float(np.dot(ways, best)) / sum(ways)
    return expected / float(y.min()) - 1.0


def trimmed_mean(values: Sequence[float], trim_frac: float = TRIM_FRAC) -> float | None:
    """Return the mean without the smallest and the largest `trim_frac` of the values.

    >>> trimmed_mean([0.0, 1.0, 2.0, 3.0, 100.0], 0.2)
    2.0
    """
    if not values:
        return None
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    cut = int(len(ordered) * trim_frac)
    return float(ordered[cut : len(ordered) - cut].mean())


@dataclass(frozen=True, slots=True)
class Classified:
    """How well out-of-memory runs are told from those that fit."""

    n_oom: int
    n_fit: int
    recall_oom: float | None
    """Share of the runs out of memory that are predicted so."""
    recall_fit: float | None
    balanced_accuracy: float | None
    """Mean of the two; None unless both kinds were measured."""


def classify(predicted_oom: Sequence[bool], measured_oom: Sequence[bool]) -> Classified:
    """Return recall of both kinds and the balanced accuracy.

    >>> classify([True, False, False, False], [True, True, False, False]).balanced_accuracy
    0.75
    """
    message, true = np.asarray(predicted_oom, dtype=bool), np.asarray(measured_oom, dtype=bool)
    n_oom, n_fit = int(true.sum()), int((~true).sum())
    oom = float((message & true).sum() / n_oom) if n_oom else None
    fit = float((~message & ~true).sum() / n_fit) if n_fit else None
    both = (oom + fit) / 2 if oom is not None and fit is not None else None
    return Classified(n_oom, n_fit, oom, fit, both)


def slow_runs(
    groups: Sequence[Hashable], sizes: Sequence[int], per_slot_s: Sequence[float]
) -> list[bool]:
    """Return which runs are unhealthy, without any model.

    A run is slow when its time per pipeline slot (m + p - 1) is above 2.5 times the least of its
    group at another number of devices. A group is one set of model, tp, pp, mbs and kernels, so
    that the work of a slot, and the layers of a stage, are the same in all of it.

    >>> slow_runs(["a"] * 4, [8, 16, 32, 32], [1.0, 1.1, 2.4, 2.6])
    [False, False, False, True]
    """
    best: dict[Hashable, dict[int, float]] = {}
    for group, size, time_s in zip(groups, sizes, per_slot_s, strict=True):
        times_by_size = best.setdefault(group, {})
        times_by_size[size] = min(time_s, times_by_size.get(size, time_s))
    results = []
    for group, size, time_s in zip(groups, sizes, per_slot_s, strict=True):
        others = [least for other, least in best[group].items() if other != size]
        results.append(bool(others) and time_s > SLOW_FACTOR * min(others))
    return results


def slower_than_more_work(
    groups: Sequence[Hashable],
    sizes: Sequence[tuple[int, int, int]],
    per_slot_s: Sequence[float],
) -> list[bool]:
    """Return which pipelines are unhealthy because one with more work is much faster.

    `sizes` are stages, sequences of a micro-batch and devices. A run is slow when its time per
    slot is above 2.5 times that of a run of its group at another layout or size, with no more
    stages (so no fewer layers in each) and no smaller micro-batch. A group is one set of model,
    tp and kernels; pipelines alone are compared, as their messages may cost what a run without
    any does not pay.

    >>> slower_than_more_work(["a"] * 3, [(4, 2, 64), (2, 2, 64), (2, 4, 64)], [9.0, 1.0, 2.0])
    [True, False, False]
    """
    rows = list(zip(groups, sizes, per_slot_s, strict=True))

    def slow(row: tuple[Hashable, tuple[int, int, int], float]) -> bool:
        group, (stages, batch, devices), time_s = row
        return stages > 1 and any(
            time_s > SLOW_FACTOR * other_s
            for other, (others, other_batch, other_devices), other_s in rows
            if other == group
            and 1 < others <= stages
            and other_batch >= batch
            and (others, other_batch, other_devices) != (stages, batch, devices)
        )

    return [slow(row) for row in rows]


def beyond_their_bubble(
    groups: Sequence[Hashable], chunks: Sequence[int], per_slot_s: Sequence[float]
) -> list[bool]:
    """Return which pipelines are too fast for the interleaving that they print, without any model.

    `chunks` are model chunks per device (v), the time per slot is that of m + (p - 1)/v. All that
    interleaving saves is bubble, so with v as printed a slot takes no less than one of the same
    layout in more chunks, but for what these add. A run is contradicted when 1.25 times its slot
    is below every slot of its group in more chunks. A group is one set of model, tp, pp, mbs and
    kernels, so that the work of a slot is the same in all of it.

    >>> beyond_their_bubble(["a"] * 4, [1, 1, 12, 12], [0.79, 0.81, 1.0, 1.1])
    [True, False, False, False]
    """
    rows = list(zip(groups, chunks, per_slot_s, strict=True))

    def least_of_more(group: Hashable, n_members: int) -> float:
        more = (time_s for other, n, time_s in rows if other == group and n > n_members)
        return min(more, default=0.0)

    return [INTERLEAVED_SLOT_FACTOR * t < least_of_more(group, n) for group, n, t in rows]


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that exist."""
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else None


def weighted_mean(values: Sequence[float], weights: Sequence[int]) -> float | None:
    """Return the mean of the values with these weights; None without values."""
    return float(np.average(values, weights=weights)) if len(values) else None
