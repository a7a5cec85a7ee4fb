"""How far apart two predictions of one job must be for their order to be trusted.

Most of what a prediction misses, all plans of a job share; what is left decides whether the
faster of two plans is the faster one in truth. Learnt from pairs of measured layouts of one sweep:
the least predicted gap from which on the order is right in four of five pairs. Plans that differ
in how they cut layers and matrices are harder to compare than plans that do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import expm1, log

import numpy as np
from numpy.typing import NDArray

from costmodels.plans import Layout
from planner.solver.calibration.file import Calibration, load_calibration, rounded
from planner.solver.calibration.intervals import FAMILY_ROWS

Floats = NDArray[np.float64]

SAME_CUT, OTHER_CUT = "same-tp-pp", "other-tp-pp"
LIKENESS = (SAME_CUT, OTHER_CUT)
"""How alike two plans are."""
RIGHT_FRAC = 0.8
"""Share of pairs in the right order from which on plans count as told apart."""
WIDEST = 0.30
"""Largest predicted gap, in ln, of the pairs that are looked at."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A measured layout of a sweep. Seconds."""

    layout: Layout
    predicted_s: float
    measured_s: float


def likeness(a: Layout, b: Layout) -> str:
    """Return how alike two plans are, one of `LIKENESS`."""
    return SAME_CUT if (a.tp, a.pp) == (b.tp, b.pp) else OTHER_CUT


def resolution_of(a: Layout, b: Layout, calibration: Calibration) -> float:
    """Return the relative gap up to which the calibration cannot tell two plans apart."""
    kind = likeness(a, b)
    own = calibration.resolution.get(kind)
    return load_calibration().resolution[kind] if own is None else own


def learn_resolution(sweeps: Sequence[tuple[str, Sequence[Timed]]]) -> dict[str, float]:
    """Return the resolution by likeness, from sweeps with the family of each.

    A pair weighs one over the number of plans of its sweep, a family at most what
    `FAMILY_ROWS` pairs weigh. Monotone regression (pool adjacent violators) gives the share in
    the right order over the gap; a kind whose share never reaches `RIGHT_FRAC` has `WIDEST`.
    """
    entries: dict[str, list[tuple[str, float, float, float]]] = {kind: [] for kind in LIKENESS}
    for family, plans in sweeps:
        for a, b in combinations(plans, 2):
            gap, measured = log(a.predicted_s / b.predicted_s), log(a.measured_s / b.measured_s)
            if abs(gap) > WIDEST or gap == 0.0:
                continue
            right = 0.5 if measured == 0.0 else float((gap > 0) == (measured > 0))
            entries[likeness(a.layout, b.layout)].append(
                (family, abs(gap), right, 1.0 / len(plans))
            )
    return {kind: _threshold(pairs) for kind, pairs in entries.items() if pairs}


def _threshold(pairs: Sequence[tuple[str, float, float, float]]) -> float:
    total: dict[str, float] = {}
    for family, _, _, weight in pairs:
        total[family] = total.get(family, 0.0) + weight
    ordered = sorted(
        (gap, right, w * min(1.0, FAMILY_ROWS / total[family])) for family, gap, right, w in pairs
    )
    gaps = np.array([gap for gap, _, _ in ordered])
    fitted = monotone(
        np.array([right for _, right, _ in ordered]), np.array([w for _, _, w in ordered])
    )
    reached = np.flatnonzero(fitted >= RIGHT_FRAC)
    return rounded(expm1(float(gaps[reached[0]]) if reached.size else WIDEST), 2)


def monotone(values: Floats, weight: Floats) -> Floats:
    """Return the rising sequence nearest to `values` in weighted squares.

    >>> monotone(np.array([1.0, 0.0, 2.0]), np.array([1.0, 1.0, 1.0])).tolist()
    [0.5, 0.5, 2.0]
    """
    blocks: list[tuple[float, float, int]] = []
    for value, mass in zip(values.tolist(), weight.tolist(), strict=True):
        mean, total, n = value, mass, 1
        while blocks and blocks[-1][0] >= mean:
            before, more, count = blocks.pop()
            mean = (mean * total + before * more) / (total + more)
            total, n = total + more, n + count
        blocks.append((mean, total, n))
    return np.repeat([mean for mean, _, _ in blocks], [n for _, _, n in blocks])
