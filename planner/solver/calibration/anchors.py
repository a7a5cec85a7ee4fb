"""Factors on time from one to three measured steps, and memory from their peaks.

A step is homogeneous in its three kinds of time: work of devices and hosts, traffic inside a
scale-up domain, traffic between domains. With all of them g times as long, it takes g times as
long. So one measured step sets one factor on all three, and a second and a third may part them.
numpy only; nothing here knows a model or a file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.units import GIB

Floats = NDArray[np.float64]

RIDGE = 0.3
"""Strength that holds the three factors together: squared error of one step (in logarithms) over
squared spread of a factor about their common part, as 8 % over 15 %. Chosen on the shipped
runs, docs/trial.md."""
RESIST = 0.1
"""Logarithm of measured over predicted beyond which a run counts less, in proportion: one slow
run of three does not carry the fit."""
NUDGE = 0.05
"""Relative change of a factor over which the share of its time in a step is taken."""
OWN_SPREAD = 0.1
"""How far, in logarithms, one layout's own error commonly carries a step away from what its stack
takes in general: nearer than that a run is half believed, well beyond it almost wholly."""
N_ROUNDS = 12
"""Rounds of Gauss-Newton at most; the step is nearly a power law in its factors."""
REACH = (0.1, 10.0)
"""Range of a factor."""

Steps = Callable[[Floats], Floats]
"""Predicted step times, seconds `(n_runs,)`, at three factors on time."""


def fit_factors(measured_s: ArrayLike, steps_s: Steps, ridge: float = RIDGE) -> Floats:
    """Return the factors on (compute, scale-up, scale-out) time, `(3,)`, that runs ask for.

    Minimises sum_i huber(log m_i - log p_i(x)) + ridge |P x|^2 over the logarithms x of the
    factors, P x being x less its mean: the common part is free, what parts the factors is shrunk.
    huber is the square, and grows linearly from `RESIST` on. One run asks for the ratio of
    measured to predicted on all three. The common part, c in logarithms, is then believed as far
    as n runs carry it (`believed`), for part of what one layout is off is its own. Factors end
    inside `REACH`.

    >>> fit_factors([3.0], lambda f: np.array([f @ [1.0, 0.5, 0.5]])).round(3).tolist()
    [1.467, 1.467, 1.467]
    """
    measured = np.log(np.asarray(measured_s, dtype=np.float64))
    start = measured - np.log(steps_s(np.ones(3)))
    x = np.full(3, np.median(start))
    if len(measured) > 1:
        for _ in range(N_ROUNDS):
            predicted, shares = _linearised(steps_s, x)
            after = ridge_step(measured - predicted, shares, x, ridge)
            moved, x = np.abs(after - x).max(), after
            if moved < 1e-6:
                break
    common = float(x.mean())
    x += believed(common, len(measured)) - common
    return np.asarray(np.exp(np.clip(x, *np.log(REACH))))


def believed(common: float, n_runs: int) -> float:
    """Return what is believed of a common deviation that `n_runs` runs show, both in logarithms.

    c n / (n + 1 / (1 + (c / OWN_SPREAD)^2)): a prior with heavy tails about "as predicted". Where
    a stack is near its prediction one run says as much of its layout as of the stack; where it is
    far off, the stack must be. Chosen on the shipped runs (docs/trial.md): without it one
    run made left-out sources no better than none.

    >>> round(believed(0.02, 1), 4), round(believed(0.5, 1), 4), round(believed(0.02, 3), 4)
    (0.0102, 0.4815, 0.0151)
    """
    return common * n_runs / (n_runs + 1.0 / (1.0 + (common / OWN_SPREAD) ** 2))


def ridge_step(missing: Floats, shares: Floats, x: Floats, ridge: float) -> Floats:
    """Return the logarithms of the factors that linearised runs ask for, `(3,)`.

    `missing` is log measured - log predicted at `x`, `(n_runs,)`; `shares`, `(n_runs, 3)`, the
    change of each run's log step by the log of each factor; a row sums to 1.
    """
    apart = np.eye(3) - 1.0 / 3.0
    weighed = shares / np.maximum(1.0, np.abs(missing) / RESIST)[:, None]
    left = weighed.T @ shares + ridge * apart
    return np.asarray(np.linalg.solve(left, weighed.T @ (missing + shares @ x)))


def _linearised(steps_s: Steps, x: Floats) -> tuple[Floats, Floats]:
    """Return log step times at `x` and their shares by factor."""
    log_s = np.log(steps_s(np.exp(x)))
    nudge = np.log1p(NUDGE)
    columns = []
    for k in range(3):
        up = x.copy()
        up[k] += nudge
        columns.append((np.log(steps_s(np.exp(up))) - log_s) / nudge)
    shares = np.stack(columns, axis=1)
    return log_s, shares / shares.sum(axis=1, keepdims=True)


PEAK_SPREAD_BYTES = 0.25 * GIB
"""How well a peak repeats."""
CONTEXT_SPREAD_BYTES = 1.0 * GIB
"""How far contexts and workspaces differ between stacks."""
FRAGMENTATION_SPREAD = 0.1
"""How far stacks differ in what comes on top of activations, share of them."""
LEAST_CONTEXT_BYTES = 0.5 * GIB
"""A process on a device with its libraries loaded holds this much."""


@dataclass(frozen=True, slots=True)
class Peak:
    """One measured peak beside its prediction, bytes."""

    measured: float
    predicted: float
    """Counted as the measurement counts."""
    activations: float
    """Of the device with the peak."""
    sees_context: bool
    """Whether the measurement counts what lies outside the framework's allocator."""
    at_least: bool = False
    """The run took more than `measured`: it ran out of memory."""

    @property
    def missing(self) -> float:
        """What the prediction lacks; of a run that ran out at least 0."""
        gap = self.measured - self.predicted
        return max(0.0, gap) if self.at_least else gap


@dataclass(frozen=True, slots=True)
class Slack:
    """What a device holds besides counted tensors."""

    context_bytes: float
    fragmentation_frac: float
    """Share of the activations."""
    unexplained_bytes: float
    """What some run took beyond even the largest values that make sense."""


def fit_slack(
    peaks: Sequence[Peak],
    context: tuple[float, float],
    fragmentation: tuple[float, float],
) -> Slack:
    """Return context and fragmentation that measured peaks ask for.

    `context` and `fragmentation` are the present value and the largest. States, activations and
    logits are counted, these two are assumed, and so they alone move: the least change in units
    of their spreads that explains the peaks (ridge least squares). They fall to `LEAST_CONTEXT`
    and 0 at most, so that a plan is never promised room that its counted tensors need. They rise
    until no run is predicted to need less than it took, or to the largest value.
    """
    if not peaks:
        return Slack(context[0], fragmentation[0], 0.0)
    seen = np.array([[float(p.sees_context), p.activations] for p in peaks])
    missing = np.array([p.missing for p in peaks])
    spread = np.array([CONTEXT_SPREAD_BYTES, FRAGMENTATION_SPREAD])
    scaled = seen * spread / PEAK_SPREAD_BYTES
    change = spread * np.linalg.solve(
        scaled.T @ scaled + np.eye(2), scaled.T @ (missing / PEAK_SPREAD_BYTES)
    )
    bytes_ = min(max(context[0] + change[0], LEAST_CONTEXT_BYTES), context[1])
    frac = min(max(fragmentation[0] + change[1], 0.0), fragmentation[1])

    def short() -> float:
        explained = [
            (bytes_ - context[0]) * (p.sees_context or bytes_ > context[0])
            + (frac - fragmentation[0]) * p.activations
            for p in peaks
        ]
        return float(max(gap - more for gap, more in zip(missing, explained, strict=True)))

    if short() > 1.0:
        # What the run has on top of its activations first: it grows with the plan.
        largest = max(p.activations for p in peaks)
        frac = min(frac + short() / largest, fragmentation[1]) if largest else frac
    if short() > 1.0:
        bytes_ = min(max(bytes_, context[0]) + short(), context[1])
    return Slack(float(bytes_), float(frac), max(0.0, short() - 1.0))
