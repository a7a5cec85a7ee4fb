"""How sure a predicted step time is: its 80 % interval, learnt from measured runs by regime.

A regime is what a prediction knows of its own plan, never where a run was published or what its
model is called. It has two parts, as in `fitted.network`:

- what stands behind the prediction: `fitted` (stack, devices and the kind of numbers on them have
  values in the calibration), `new` (one of stack and devices has none), `unlike` (neither has:
  the job resembles nothing that was measured), `anchored-1` or `anchored-3` (so many measured
  steps of the user's own set the scale);
- what the step consists of, see `regime_kind_of`.

A third, `adapters`, follows for jobs that train adapters (LoRA).

The bounds are quantiles of ln(measured / predicted). Half of the weight have runs under the
calibration as it is, half have runs under fits that left out their whole family, generation,
precision or release (`planner.measure.calibrate.folds`): a job of one's own is of no family that
was measured. What is known less is never told to be surer.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.plans import Layout
from costmodels.problem import Problem
from hardware.nouns import DeviceNoun
from planner.solver.calibration.file import Calibration, load_calibration, rounded
from searches.frameworks.registry import GPU_VENDORS

Floats = NDArray[np.float64]
Interval = tuple[float, float]
"""10th and 90th percentile of a measured step over its prediction."""

FITTED, NEW, UNLIKE = "fitted", "new", "unlike"
ANCHORED, ANCHORED_WELL = "anchored-1", "anchored-3"
EVIDENCE = {
    FITTED: "of this stack and {noun}",
    NEW: "where stack or {noun} is new to the calibration",
    UNLIKE: "where stack and {noun} are new to the calibration",
    ANCHORED: "scaled by one measured step of yours",
    ANCHORED_WELL: "scaled by three measured steps of yours",
}
"""What stands behind a prediction, in words; `noun` is what a device is called."""
BY_UNKNOWNS = (FITTED, NEW, UNLIKE)
"""Without an anchor, by how much of stack and devices the calibration was not fitted to."""
KINDS = {
    "experts": "runs with experts",
    "tp-across-domains": "runs with TP across scale-up domains",
    "network": "network-bound runs",
    "host": "host-bound runs",
    "compute": "compute-bound runs",
    "mixed": "runs without one bottleneck",
}
"""What a step consists of, in words; the first that holds."""
NETWORK_TERMS = ("tp", "cp", "ep", "pp", "dp")
COMPUTE_TERMS = ("linear", "attention", "experts", "head", "recompute")
NETWORK_FRAC, HOST_FRAC, COMPUTE_FRAC = 0.25, 0.10, 0.65
"""Shares of the step from which on it is of that kind."""

LOW, HIGH = 0.1, 0.9
FAMILY_ROWS = 30.0
"""A family weighs as many rows as it has, at most this many, as in the fit."""
PARENT_ROWS = 10.0
"""Rows that all kinds together stand for in each: what a kind with few rows falls back to."""
MANY_ROWS = 30
"""A kind with as many rows keeps the share of its rows inside within `INSIDE`."""
INSIDE = (0.77, 0.86)
"""Of runs that the calibration knows; what it does not know may ask for more than 80 %."""
LESS_KNOWN = 2.0**0.5
"""How much wider an interval is, in ln, where stack and devices are both unknown, each apart from
the other, than where one is; the least, where the runs left out say no more."""
ADAPTERS = "adapters"
"""Third part of a regime: adapters are trained beside frozen weights."""
WIDER_WITH_ADAPTERS = 2.8
"""How much wider an interval is, in ln, with adapters and without an anchor: no run of them is
among those that the calibration was fitted to, and programs differ in what they compute beside
adapters. It holds 80 % of the measured runs with adapters, `widening`; of a family whose runs did
not set it, 79 % lie inside."""
NARROWEST = 0.01
"""The bounds stay this far from the prediction: repeats of one layout differ by as much."""


def regime_kind_of(
    problem: Problem, layout: Layout, time_s: Mapping[str, float], step_s: float
) -> str:
    """Return what a step consists of, one of `KINDS`; `time_s` is the predicted time by term."""

    def share(terms: Sequence[str]) -> float:
        return sum(time_s.get(term, 0.0) for term in terms) / step_s

    if problem.shape.n_experts:
        return "experts"
    if layout.tp > problem.pool.scale_up_domain:
        return "tp-across-domains"
    if share(NETWORK_TERMS) >= NETWORK_FRAC:
        return "network"
    if share(("host",)) >= HOST_FRAC:
        return "host"
    return "compute" if share(COMPUTE_TERMS) >= COMPUTE_FRAC else "mixed"


def evidence_for(problem: Problem, calibration: Calibration) -> str:
    """Return what stands behind a prediction, one of `EVIDENCE`."""
    if calibration.anchored:
        return ANCHORED_WELL if len(calibration.anchored_by) >= 3 else ANCHORED
    stack, part = problem.stack, problem.pool.accelerator
    # The class of a stack has fitted values too: those that an unseen stack starts from. On
    # devices of another kind a stack is another program.
    has_stack = stack.name != stack.kind and _has(f"stack.{stack.name}.", calibration)
    has_stack = has_stack and part.vendor in GPU_VENDORS
    has_part = _has(f"generation.{part.generation}.", calibration)
    if is_quantized(problem):
        has_part = has_part and f"generation.{part.generation}.fp8_gain" in calibration.values
    return BY_UNKNOWNS[2 - has_stack - has_part]


def is_quantized(problem: Problem) -> bool:
    """Tell whether the linear layers of a job run in fp8 or fp4."""
    return bool(problem.job.recipe.linear_precision)


def _has(beginning: str, calibration: Calibration) -> bool:
    return any(name.startswith(beginning) for name in calibration.values)


def regime_of(
    problem: Problem,
    layout: Layout,
    time_s: Mapping[str, float],
    step_s: float,
    calibration: Calibration,
) -> str:
    """Return the regime of a prediction."""
    kind = regime_kind_of(problem, layout, time_s, step_s)
    return regime_name(evidence_for(problem, calibration), kind, problem)


def regime_name(evidence: str, kind: str, problem: Problem) -> str:
    """Return the name of a regime: `fitted.compute`, `fitted.compute.adapters`."""
    return ".".join((evidence, kind, *([ADAPTERS] if problem.job.tuning else [])))


def interval_of(regime: str, calibration: Calibration) -> Interval:
    """Return the interval of a regime: the calibration's own, else the one that ships.

    With adapters that of a known stack and part is `WIDER_WITH_ADAPTERS` times as wide in ln. What
    this adds is independent of what is unknown of stack and part, so it is added to their bounds
    as squares: b = sqrt(plain^2 + (wider^2 - 1) fitted^2) of logarithms. A measured step of the
    user's own takes the place of all.
    """
    plain = regime.removesuffix(f".{ADAPTERS}")
    bounds = _plain_interval(plain, calibration)
    evidence, _, kind = plain.partition(".")
    if plain == regime or evidence not in BY_UNKNOWNS:
        return bounds
    known = np.log(_plain_interval(f"{FITTED}.{kind}", calibration))
    widths = np.sqrt(np.log(bounds) ** 2 + (WIDER_WITH_ADAPTERS**2 - 1.0) * known**2)
    low, high = np.exp(widths * (-1.0, 1.0)).tolist()
    return rounded(low, 3), rounded(high, 3)


def interval_of_several_pools(
    problem: Problem, network_frac: float, calibration: Calibration
) -> Interval:
    """Return the interval of a job over several pools: no run of that kind was measured.

    That of jobs that resemble nothing measured. `network_frac` is the share of the step in
    messages and exchanges; traffic inside stages and the host's share are not told apart from
    compute, so that it is the widest of the kinds that are left.
    """
    kinds = ["experts"] if problem.shape.n_experts else ["compute", "host", "mixed"]
    if network_frac >= NETWORK_FRAC and not problem.shape.n_experts:
        kinds = ["network"]
    bounds = [interval_of(regime_name(UNLIKE, kind, problem), calibration) for kind in kinds]
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def _plain_interval(regime: str, calibration: Calibration) -> Interval:
    return calibration.intervals.get(regime) or load_calibration().intervals[regime]


def widening(families: Sequence[str], log_ratio: Floats, bounds: Floats) -> float:
    """Return how many times as wide, in ln, intervals must be to hold 80 % of some residuals.

    `log_ratio`: ln(measured / predicted), `(n,)`; `bounds`: of their intervals, in ln, `(n, 2)`.
    The 80th percentile of each residual over the bound on its side; families weigh alike up to
    `FAMILY_ROWS`.
    """
    own = np.where(log_ratio > 0.0, log_ratio / bounds[:, 1], log_ratio / bounds[:, 0])
    rows = Counter(families)
    weight = np.array([min(1.0, FAMILY_ROWS / rows[family]) for family in families])
    return float(_weighted_quantiles(own, weight, (HIGH - LOW,))[0])


def regime_words(regime: str, noun: DeviceNoun) -> str:
    """Return a regime in words, to follow `calibrated on`.

    >>> from hardware.nouns import GPU
    >>> regime_words("fitted.compute", GPU)
    'compute-bound runs of this stack and GPU'
    """
    evidence, kind, *adapters = regime.split(".")
    wider = ", widened for adapters" if adapters and evidence in BY_UNKNOWNS else ""
    return f"{KINDS[kind]} {EVIDENCE[evidence].format(noun=noun.one)}{wider}"


@dataclass(frozen=True, slots=True)
class Residuals:
    """How far measured steps are from their predictions."""

    families: NDArray[np.str_]
    """Who published them, `(n,)`."""
    kinds: NDArray[np.str_]
    """One of `KINDS`, `(n,)`."""
    evidence: NDArray[np.str_]
    """What stood behind the prediction, one of `EVIDENCE`, `(n,)`."""
    log_ratio: Floats
    """ln(measured / predicted), `(n,)`."""
    weight: Floats
    """How many rows each stands for, `(n,)`."""

    @staticmethod
    def of(
        families: Sequence[str], kinds: Sequence[str], evidence: Sequence[str], log_ratio: Floats
    ) -> "Residuals":
        """Return residuals of which each is one row."""
        text = np.str_
        return Residuals(
            np.array(families, dtype=text),
            np.array(kinds, dtype=text),
            np.array(evidence, dtype=text),
            log_ratio,
            np.ones(len(log_ratio)),
        )

    def where(self, mask: NDArray[np.bool_]) -> "Residuals":
        """Return some of them."""
        return Residuals(
            self.families[mask],
            self.kinds[mask],
            self.evidence[mask],
            self.log_ratio[mask],
            self.weight[mask],
        )

    def behind(self, evidence: str) -> "Residuals":
        """Return those with some evidence."""
        return self.where(self.evidence == evidence)


def intervals_by_evidence(known: Residuals, left_out: Residuals) -> dict[str, Interval]:
    """Return the interval of every regime without an anchor.

    `known` are runs under the calibration as it is, `left_out` under fits without them.
    An interval with less evidence holds those with more; where nothing is known at all it is
    wider than where one thing is by `LESS_KNOWN` at least.
    """
    out: dict[str, Interval] = {}
    before: dict[str, Interval] = {}
    for evidence in BY_UNKNOWNS:
        learnt = learnt_intervals(known.behind(evidence), left_out.behind(evidence))
        wider = LESS_KNOWN if evidence == UNLIKE else 1.0
        for kind in KINDS:
            low, high = learnt.get(kind, (1.0, 1.0))
            least_low, least_high = before.get(kind, (1.0, 1.0))
            before[kind] = (
                rounded(min(low, least_low**wider), 3),
                rounded(max(high, least_high**wider), 3),
            )
            out[f"{evidence}.{kind}"] = before[kind]
    return out


def learnt_intervals(
    residuals: Residuals, left_out: Residuals | None = None
) -> dict[str, Interval]:
    """Return the interval of every kind.

    `residuals` and `left_out` have half of the weight each. In both, families weigh alike up to
    `FAMILY_ROWS`, and all kinds together stand for `PARENT_ROWS` rows of each. Where that leaves
    too many or too few of the rows of a kind in `residuals` inside, the bounds move towards those
    of its rows, in tenths. An interval holds its prediction.
    """
    parts = [x for x in (residuals, left_out) if x is not None and x.log_ratio.size]
    if not parts:
        return {}
    values = np.concatenate([part.log_ratio for part in parts])
    out = {}
    for kind in KINDS:
        with_rows = [bool((part.kinds == kind).any()) for part in parts]
        shares = [
            _of_kind(part, kind) * (has or not any(with_rows))
            for part, has in zip(parts, with_rows, strict=True)
        ]
        bounds = _quantiles(values, np.concatenate(shares))
        own = residuals.kinds == kind
        if residuals.weight[own].sum() >= MANY_ROWS:
            bounds = _held(bounds, residuals.log_ratio[own], residuals.weight[own])
        low, high = np.exp(bounds)
        out[kind] = (
            rounded(min(float(low), 1.0 - NARROWEST), 3),
            rounded(max(float(high), 1.0 + NARROWEST), 3),
        )
    return out


def _of_kind(residuals: Residuals, kind: str) -> Floats:
    """Return the share of each residual in what a kind looks like; their sum is 1."""
    own = residuals.kinds == kind
    rows = float(residuals.weight[own].sum())
    mixed = _shares(residuals) * PARENT_ROWS / (rows + PARENT_ROWS)
    if rows:
        mixed[own] += _shares(residuals.where(own)) * rows / (rows + PARENT_ROWS)
    return np.asarray(mixed / mixed.sum())


def _shares(residuals: Residuals) -> Floats:
    """Return the share of each residual, families alike up to `FAMILY_ROWS`; their sum is 1."""
    rows: Counter[str] = Counter()
    for family, weight in zip(residuals.families.tolist(), residuals.weight.tolist(), strict=True):
        rows[family] += weight
    scale = {family: min(1.0, FAMILY_ROWS / n) for family, n in rows.items()}
    weight = residuals.weight * [scale[family] for family in residuals.families.tolist()]
    return np.asarray(weight / weight.sum())


def _quantiles(values: Floats, weight: Floats) -> Floats:
    """Return the quantiles at `LOW` and `HIGH`, linear between the middles of the weights."""
    return _weighted_quantiles(values, weight, (LOW, HIGH))


def _weighted_quantiles(values: Floats, weight: Floats, at: tuple[float, ...]) -> Floats:
    order = np.argsort(values, kind="stable")
    mass = weight[order]
    middle = (np.cumsum(mass) - 0.5 * mass) / mass.sum()
    return np.interp(at, middle, values[order])


def _held(bounds: Floats, values: Floats, weight: Floats) -> Floats:
    """Return the bounds, moved as little as brings the share of rows inside into `INSIDE`."""
    of_rows = _quantiles(values, weight)
    for tenth in range(11):
        moved = bounds + 0.1 * tenth * (of_rows - bounds)
        inside = (values >= moved[0]) & (values <= moved[1])
        if INSIDE[0] <= weight[inside].sum() / weight.sum() <= INSIDE[1]:
            return np.asarray(moved)
    return of_rows


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many measured steps lie inside their intervals; shares of the rows."""

    regime: str
    """`all`, or one regime."""
    n: int
    inside: float
    below: float
    """Faster than the interval."""
    above: float


def coverage(regimes: Sequence[str], log_ratio: Floats, bounds: Floats) -> tuple[Coverage, ...]:
    """Return the coverage of all rows, then by regime in order; `bounds` are factors, `(n, 2)`."""
    if not len(regimes):
        return ()
    ratio, names = np.exp(log_ratio), np.array(regimes)
    below, above = ratio < bounds[:, 0], ratio > bounds[:, 1]

    def coverage_of(name: str, rows: NDArray[np.bool_]) -> Coverage:
        low, high = float(below[rows].mean()), float(above[rows].mean())
        inside = float((~below & ~above)[rows].mean())
        return Coverage(name, int(rows.sum()), inside, low, high)

    plain = [f"{evidence}.{kind}" for evidence in EVIDENCE for kind in KINDS]
    order = [name for x in plain for name in (x, f"{x}.{ADAPTERS}")]
    present = sorted(set(regimes), key=order.index)
    return (
        coverage_of("all", np.ones(len(names), bool)),
        *(coverage_of(name, names == name) for name in present),
    )


def left_out_coverage(known: Residuals, left_out: Residuals) -> tuple[Coverage, ...]:
    """Return the coverage of runs left out by the intervals that the other families give.

    Of all, then by regime: each family is judged under fits and intervals that have not seen it.
    """
    regimes: list[str] = []
    ratios, bounds = [], []
    for family in sorted(set(left_out.families.tolist())):
        own = left_out.families == family
        learnt = intervals_by_evidence(known.where(known.families != family), left_out.where(~own))
        judged = left_out.where(own)
        names = [f"{e}.{k}" for e, k in zip(judged.evidence, judged.kinds, strict=True)]
        regimes += names
        ratios.append(judged.log_ratio)
        bounds += [learnt[name] for name in names]
    if not regimes:
        return ()
    return coverage(regimes, np.concatenate(ratios), np.array(bounds))
