"""Fits the figures of a link (latency, hops, bandwidth by size) to measured collectives.

The model of `costmodels.comm.collectives` is fitted as it stands, through the parameters of a
calibration, so that what comes out is what a solve uses: t = base + steps x hop + bytes /
bandwidth by wire protocol and algorithm, the fastest winning. Sweeps inside a scale-up domain fit
the scale-up link; sweeps over several then fit the scale-out link beside it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardware.parts import Fabric, Link, Pool
from planner.measure.benchmarks.pulled_fit import (
    PulledEstimate,
    Quantity,
    carried_value,
    pulled_fit,
)
from planner.measure.benchmarks.sweep import SizeSweep, n_domains, predicted_s
from planner.solver.calibration.apply import calibrated_pool
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.parameters import known_parameters

Floats = NDArray[np.float64]

MODEL_ERROR = 0.10
"""Standard deviation of log(model / measured) of one size that the form itself leaves."""
LATENCY_BYTES = 4096.0
"""Messages up to here all show the same latency: together they weigh as much as one size."""
ROWS_OF_A_SWEEP = 8.0
"""Most sizes that a sweep counts as: neighbours repeat one another."""
POOR_ERROR = 0.25
"""Median error above which a fit is said to follow the times badly."""
SIGMAS = {
    "efficiency": 0.3,
    "in_switch_scale": 0.2,
    "ll_cap_scale": math.log(1.5),
    **dict.fromkeys(
        ("base_scale", "hop_scale", "simple_scale", "library_latency_scale", "p2p_scale"),
        math.log(2),
    ),
}
"""The parameters of a link that are fitted, and how far the catalogue may be off: the standard
deviation of the logarithm."""


@dataclass(frozen=True, slots=True)
class FittedSweep:
    """A sweep with the model's times before and after."""

    sweep: SizeSweep
    before_s: tuple[float, ...]
    after_s: tuple[float, ...]

    def median_error(self, times_s: Sequence[float]) -> float:
        """Return the median of |model / measured - 1|."""
        measured = np.asarray(self.sweep.times_s)
        return float(np.median(np.abs(np.asarray(times_s) / measured - 1)))


@dataclass(frozen=True, slots=True)
class LinkFit:
    """What sweeps say of the links of one pool."""

    estimates: tuple[PulledEstimate, ...]
    sweeps: tuple[FittedSweep, ...]
    notes: tuple[str, ...]


def link_quantities(link: Link, base: Calibration) -> list[Quantity]:
    """Return what can be fitted of a link, starting from a calibration.

    The fixed latency of a collective is the scale-up link's, also where it leaves the domain.
    """
    parameters = known_parameters()
    names = {field: f"link.{link.name}.{field}" for field in SIGMAS}
    return [
        Quantity(
            name,
            parameters[name].meaning,
            base.value(name),
            SIGMAS[field],
            parameters[name].low,
            parameters[name].high,
        )
        for field, name in names.items()
        if name in parameters and not (field == "base_scale" and link.kind == "scale-out")
    ]


def fit_links(
    sweeps: Sequence[SizeSweep], pool: Pool, fabric: Fabric, base: Calibration
) -> LinkFit:
    """Fit the links of `pool` that the sweeps run over.

    `pool` has the catalogue's figures, `base` the values that are known so far.
    """
    near = [sweep for sweep in sweeps if n_domains(sweep, pool) == 1]
    far = [sweep for sweep in sweeps if n_domains(sweep, pool) > 1]
    estimates: list[PulledEstimate] = []
    used: list[SizeSweep] = []
    for link, some in ((pool.scale_up, near), (pool.nic, far)):
        if some:
            so_far = base.with_values(carried_value(estimates), "measured")
            estimates += _fit_one(some, pool, fabric, so_far, link)
            used += some
    before = calibrated_pool(pool, base)
    after = calibrated_pool(pool, base.with_values(carried_value(estimates), "measured"))
    compared = tuple(
        FittedSweep(
            sweep,
            tuple(predicted_s(sweep, before, fabric)),
            tuple(predicted_s(sweep, after, fabric)),
        )
        for sweep in used
    )
    errors = [(one.sweep, one.median_error(one.after_s)) for one in compared]
    notes = tuple(
        f"{sweep.source}: {sweep.collective} on {sweep.place_words} stays {error:.0%} off in the"
        " median: the library chose otherwise than the model, or the placement is another"
        for sweep, error in errors
        if error > POOR_ERROR
    )
    if far and not near:
        link_name = pool.scale_up.name
        notes += (f"no times inside a node: {link_name} stays, and what it limits is not fitted",)
    return LinkFit(tuple(estimates), compared, notes)


def _weights(sweep: SizeSweep) -> Floats:
    """Return what each size counts for: latencies as one, a sweep as `ROWS_OF_A_SWEEP` at most."""
    small = np.asarray(sweep.sizes_bytes) <= LATENCY_BYTES
    weights = np.where(small, 1.0 / max(1, int(small.sum())), 1.0)
    return np.asarray(weights * min(1.0, ROWS_OF_A_SWEEP / weights.sum()))


def _fit_one(
    sweeps: Sequence[SizeSweep], pool: Pool, fabric: Fabric, base: Calibration, link: Link
) -> list[PulledEstimate]:
    """Return every parameter of one link after the fit."""
    log_s = [np.log(np.asarray(sweep.times_s)) for sweep in sweeps]
    weights = [np.sqrt(_weights(sweep)) / MODEL_ERROR for sweep in sweeps]

    def residuals(values: Mapping[str, float]) -> Floats:
        there = calibrated_pool(pool, Calibration("fit", {**base.values, **values}))
        return np.concatenate(
            [
                weight * (np.log(predicted_s(sweep, there, fabric)) - measured)
                for sweep, weight, measured in zip(sweeps, weights, log_s, strict=True)
            ]
        )

    return pulled_fit(link_quantities(link, base), residuals)
