"""Least squares on logarithms with a pull to known values, and what the data cannot tell.

Residuals are log(model / measured) in units of the error that the model's form leaves, softened
(soft l1) beyond `SOFT_ABOVE` of them, with one more per parameter: log(value / prior) / sigma. A
parameter whose standard deviation after the fit is not well below sigma is one that the data do
not show: it keeps its prior, and the rest is fitted again. So does one that ends at its bound.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import UsageError

Floats = NDArray[np.float64]

SOFT_ABOVE = 2.0
"""Residuals beyond so many standard deviations count linearly."""
UNKNOWN_ABOVE = 0.6
"""A parameter whose standard deviation stays above this share of sigma is not in the data."""
BLIND_ABOVE = 0.98
"""Parameters above this share move nothing at all; they are left out together."""
NEEDED_COST = 2.0
"""A parameter is kept, whatever its standard deviation, if the cost rises by this without it: at a
kink the slopes show less than the data do."""
N_DRAWN, N_STARTS, DRAWN_SIGMAS = 60, 3, 1.5
"""Points drawn around the priors, starts taken, spread of the points in standard deviations."""
P90 = 1.2815515655446004
"""Standard deviations from the median to the 90th percentile of a normal distribution."""

FITTED, UNSEEN, BOUND = "fitted", "not in the data", "at its bound"


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number to fit."""

    name: str
    """Its dotted name in a calibration file."""
    meaning: str
    prior: float
    sigma: float
    """Standard deviation of the logarithm around the prior, before any measurement."""
    low: float
    high: float
    """Range of the value; beyond it something else is wrong."""


@dataclass(frozen=True, slots=True)
class PulledEstimate:
    """One number after the fit."""

    quantity: Quantity
    value: float
    """The prior where `status` is not `FITTED`."""
    low: float
    high: float
    """10th and 90th percentile."""
    status: str


def carried_value(estimates: Sequence[PulledEstimate]) -> dict[str, float]:
    """Return the values that the data show, by dotted name."""
    return {e.quantity.name: e.value for e in estimates if e.status == FITTED}


def pulled_fit(
    quantities: Sequence[Quantity], residuals: Callable[[Mapping[str, float]], Floats]
) -> list[PulledEstimate]:
    """Fit `quantities`; `residuals` takes values by name and returns log errors over their sigma.

    The same input gives the same output. Raises `UsageError` where scipy is not installed.
    """
    free, left_out, needed = list(quantities), dict[str, str](), set[str]()
    best = _solve(free, residuals)
    while free:
        shares = best.sd / np.array([q.sigma for q in free])
        weak = [i for i, share in enumerate(shares) if share > UNKNOWN_ABOVE]
        weak = [i for i in weak if free[i].name not in needed]
        bound = [i for i, q in enumerate(free) if _at_bound(q, best.x[i])]
        if weak:
            blind = [i for i in weak if shares[i] > BLIND_ABOVE]
            gone = blind if len(blind) > 1 else [max(weak, key=lambda i: shares[i])]
            less = [q for i, q in enumerate(free) if i not in gone]
            without = _solve(less, residuals, np.delete(best.x, gone))
            if without.cost - best.cost > NEEDED_COST:
                needed |= {free[i].name for i in gone}
                continue
            left_out |= dict.fromkeys((free[i].name for i in gone), UNSEEN)
            free, best = less, without
        elif bound:
            left_out[free.pop(bound[0]).name] = BOUND
            best = _solve(free, residuals, np.delete(best.x, bound[0]))
        else:
            break
    entries = {q.name: (v, s) for q, v, s in zip(free, best.x, best.sd, strict=True)}
    estimates = []
    for q in quantities:
        shift, spread = entries.get(q.name, (0.0, q.sigma))
        value, wide = q.prior * math.exp(shift), math.exp(P90 * spread)
        low, high = max(min(q.low, q.prior), value / wide), min(max(q.high, q.prior), value * wide)
        estimates.append(PulledEstimate(q, value, low, high, left_out.get(q.name, FITTED)))
    return estimates


def _bounds(q: Quantity) -> tuple[float, float]:
    """Return the range of log(value / prior); the prior always lies inside."""
    return min(math.log(q.low / q.prior), -1e-6), max(math.log(q.high / q.prior), 1e-6)


def _at_bound(q: Quantity, x: float) -> bool:
    low, high = _bounds(q)
    return bool(x - low < 1e-3 or high - x < 1e-3)


@dataclass(frozen=True, slots=True)
class _Solution:
    x: Floats
    """log(value / prior)."""
    sd: Floats
    cost: float


def _solve(
    free: Sequence[Quantity],
    residuals: Callable[[Mapping[str, float]], Floats],
    near: Floats | None = None,
) -> _Solution:
    """Return the best point: from the prior and from `near`, or without it from many starts."""
    least_squares = _least_squares()
    sigma = np.array([q.sigma for q in free])

    def of(x: Floats) -> Floats:
        values = {q.name: q.prior * math.exp(v) for q, v in zip(free, x, strict=True)}
        return np.concatenate([residuals(values), x / sigma])

    if not free:
        return _Solution(sigma, sigma, _cost(of(sigma)))
    low, high = np.array([_bounds(q) for q in free]).T
    starts = _drawn(of, sigma) if near is None else [near]
    best: Any = None
    for start in (np.zeros(len(free)), *starts):
        inside = np.clip(start, low + 1e-7, high - 1e-7)
        result = least_squares(
            of, inside, bounds=(low, high), loss="soft_l1", f_scale=SOFT_ABOVE, diff_step=1e-4
        )
        if best is None or result.cost < best.cost - 1e-9:
            best = result
    covariance = np.linalg.inv(best.jac.T @ best.jac)
    return _Solution(best.x, np.sqrt(np.diag(covariance)), _cost(of(best.x)))


def _cost(residuals: Floats) -> float:
    """Return half the softened sum of squares."""
    soft = np.sqrt(1 + (residuals / SOFT_ABOVE) ** 2) - 1
    return float(SOFT_ABOVE**2 * soft.sum())


def _drawn(residuals: Callable[[Floats], Floats], sigma: Floats) -> list[Floats]:
    """Return the best of points drawn around the priors, to start from.

    The fastest of several algorithms changes along the way, so that one start can end in a hollow.
    """
    draws = np.random.default_rng(0).standard_normal((N_DRAWN, len(sigma))) * DRAWN_SIGMAS * sigma
    costs = [_cost(residuals(x)) for x in draws]
    order = sorted(range(N_DRAWN), key=lambda i: (costs[i], i))
    return [draws[i] for i in order[:N_STARTS]]


def _least_squares() -> Callable[..., Any]:
    try:
        from scipy.optimize import least_squares
    except ImportError:
        fix = "pip install 'planner[calibrate]'"
        raise UsageError("a fit needs scipy, which is not installed", fix) from None
    solver: Callable[..., Any] = least_squares
    return solver
