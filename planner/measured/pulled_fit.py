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
    starts_shifted: bool = False
    """Further starts have it twice as large and half as large: the model has kinks there."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One number after the fit."""

    quantity: Quantity
    value: float
    """The prior where `status` is not `FITTED`."""
    low: float
    high: float
    """10th and 90th percentile."""
    status: str


def carried(estimates: Sequence[Estimate]) -> dict[str, float]:
    """Return the values that the data show, by dotted name."""
    return {e.quantity.name: e.value for e in estimates if e.status == FITTED}


def pulled_fit(
    quantities: Sequence[Quantity], residuals: Callable[[Mapping[str, float]], Floats]
) -> list[Estimate]:
    """Fit `quantities`; `residuals` takes values by name and returns log errors over their sigma.

    The same input gives the same output. Raises `UsageError` where scipy is not installed.
    """
    free, left_out = list(quantities), dict[str, str]()
    x = sd = np.zeros(0)
    while free:
        x, sd = _solve(free, residuals)
        shares = sd / np.array([q.sigma for q in free])
        bound = [i for i, (q, v) in enumerate(zip(free, x, strict=True)) if _at_bound(q, v)]
        if shares.max() > UNKNOWN_ABOVE:
            left_out[free.pop(int(shares.argmax())).name] = UNSEEN
        elif bound:
            left_out[free.pop(bound[0]).name] = BOUND
        else:
            break
    found = {q.name: (v, s) for q, v, s in zip(free, x, sd, strict=True)} if free else {}
    estimates = []
    for q in quantities:
        shift, spread = found.get(q.name, (0.0, q.sigma))
        value, wide = q.prior * math.exp(shift), math.exp(P90 * spread)
        low, high = max(min(q.low, q.prior), value / wide), min(max(q.high, q.prior), value * wide)
        estimates.append(Estimate(q, value, low, high, left_out.get(q.name, FITTED)))
    return estimates


def _bounds(q: Quantity) -> tuple[float, float]:
    """Return the range of log(value / prior); the prior always lies inside."""
    return min(math.log(q.low / q.prior), -1e-6), max(math.log(q.high / q.prior), 1e-6)


def _at_bound(q: Quantity, x: float) -> bool:
    low, high = _bounds(q)
    return bool(x - low < 1e-3 or high - x < 1e-3)


def _solve(
    free: Sequence[Quantity], residuals: Callable[[Mapping[str, float]], Floats]
) -> tuple[Floats, Floats]:
    """Return log(value / prior) at the best point over a few starts, and standard deviations."""
    least_squares = _least_squares()
    sigma = np.array([q.sigma for q in free])
    low, high = np.array([_bounds(q) for q in free]).T

    def of(x: Floats) -> Floats:
        values = {q.name: q.prior * math.exp(v) for q, v in zip(free, x, strict=True)}
        return np.concatenate([residuals(values), x / sigma])

    shifted = np.array([q.starts_shifted for q in free])
    best: Any = None
    for shift in (0.0, math.log(2), -math.log(2)) if shifted.any() else (0.0,):
        start = np.clip(np.where(shifted, shift, 0.0), low + 1e-7, high - 1e-7)
        found = least_squares(
            of, start, bounds=(low, high), loss="soft_l1", f_scale=SOFT_ABOVE, diff_step=1e-4
        )
        if best is None or found.cost < best.cost - 1e-9:
            best = found
    covariance = np.linalg.inv(best.jac.T @ best.jac)
    return best.x, np.sqrt(np.diag(covariance))


def _least_squares() -> Callable[..., Any]:
    try:
        from scipy.optimize import least_squares
    except ImportError:
        fix = "pip install 'planner[calibrate]'"
        raise UsageError("a fit needs scipy, which is not installed", fix) from None
    solver: Callable[..., Any] = least_squares
    return solver
