"""Fits a calibration to measured steps: robust least squares with a pull to what was known.

Minimised over the logarithms u of the values, in the bounds of the parameters:

    sum over runs  w rho( (ln(predicted / measured) / s)^2 )
      + sum over values ((u - u0) / sigma)^2

rho(z) = 2 (sqrt(1 + z) - 1) (soft L1), s = 4 %. The weights of one family add up to the same for
all. The model is linearised, the robust problem solved, and both repeated from there;
linearised anew only where steps with the old derivatives gain no more.

The pull. u0 of a number of a stack is the fitted number of its class, so that a class ends at
what its stacks have in common and an unseen stack of it starts from there; all other values are
pulled to their priors. sigma says how well a value was known before (`KNOWN`). For a number of a
stack it is wider the more generations its own runs cover, k, and narrower the more generations, K,
stand behind its class: sigma sqrt(k / (1 + K)). For a number that all share it is
sigma sqrt(k / (1 + k)) with its own k: what one generation says is carried to the others only in
part. A value that ends at a bound is refused: it keeps its prior, and the rest is fitted again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodels.comm.data_parallel import unhidden_once
from costmodels.stacks import EAGER, FUSED
from hardware.catalogue import load_catalogue
from planner.errors import UsageError
from planner.measure.calibrate.runs import Run, Runs
from planner.measure.calibrate.workers import mapped
from planner.solver.calibration.file import Calibration, rounded
from planner.solver.calibration.parameters import Parameter, known_parameters
from planner.specs.yaml.document import close_names

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

SCALE = 0.04
"""Error, in ln, up to which a run counts by its square: repeats of a layout differ by 2 to 5 %."""
STEP = 0.004
"""Change of a logarithm that derivatives are taken over."""
TRUST = 0.35
"""Largest change of a logarithm in one round."""
ROUNDS, CHORDS = 5, 4
"""Most linearisations, and most steps with the derivatives of one: these cost twenty steps."""
CLOSE = 3e-4
"""Decrease of the sum, as a share, below which the steps of a round have arrived."""
NOTHING = 1e-3
"""Weighted change of ln(predicted) below which a value is left at what it is pulled to."""
REWEIGHED, ARRIVED = 100, 1e-7
"""Most solutions of one robust problem, and the change of a logarithm that ends them."""
AT_BOUND = 0.01
"""A value this close to a bound, as a share of the range of its logarithm, is at it."""

KNOWN = {
    "gemm_frac": 0.06,
    "attention_scale": 0.10,
    "hbm_frac": 0.08,
    "kernel_latency_s": 0.40,
    "fp8_gain": 0.10,
    "gain": 0.10,
    "efficiency": 0.15,
    "ring_decline": 0.50,
    "hop_scale": 0.50,
    "base_scale": 0.50,
    "elementwise_factor": 0.40,
    "host_s_per_layer": 0.50,
    "tp_hop_s": 0.60,
    "overlap_slowdown": 0.50,
    "fixed_step_s": 0.50,
    "node_spread": 0.50,
    "stalled_hop_s": 0.50,
    "stalled_message_s": 0.50,
    "tensor_wire_frac": 0.60,
    "compiled_share": 0.25,
    "unfused_norm_factor": 0.30,
    "routing_host_s": 0.30,
    "synced_host_share": 0.30,
    "graph_launch_s": 0.50,
    "host_share_without_tp": 0.25,
}
"""Sigma of the logarithm of a value before any run was seen, by field: benchmarks of a part leave
6 % of its sustained GEMM rate open and 8 to 10 % of the rest, published fabrics 15 %; launch
times, latencies and traffic factors of software are known to a factor of 1.5 or so."""
SPREAD = {"gemm_frac": 0.08, "attention_scale": 0.08, "hbm_frac": 0.05}
"""The same of a number of a part around that of its generation, before runs of several parts were
seen; what they say is estimated with them (`estimated_spread`)."""
SPREAD_PARTS, LEAST_SPREAD, SPREAD_STEPS = 2.0, 0.02, 50
"""Parts that `SPREAD` counts as in the estimate; least spread; steps of it."""
OFFSETS = {
    "ring_decline": 0.05,
    "tp_hop_s": 5e-6,
    "host_s_per_layer": 0.5e-3,
    "fixed_step_s": 5e-3,
    "overlap_slowdown": 0.05,
    "node_spread": 0.005,
    "stalled_hop_s": 0.05e-3,
    "stalled_message_s": 0.1,
    "routing_host_s": 0.5e-3,
    "synced_host_share": 0.05,
    "graph_launch_s": 2e-6,
}
"""Added before the logarithm is taken of what may be 0."""
STACK_FIELDS = ("elementwise_factor", "host_s_per_layer", "fixed_step_s", "tp_hop_s")
"""Numbers of a stack that move a step time."""
SHARED_FIELDS = (
    "overlap_slowdown",
    "node_spread",
    "stalled_hop_s",
    "stalled_message_s",
    "tensor_wire_frac",
    "compiled_share",
    "unfused_norm_factor",
    "routing_host_s",
    "synced_host_share",
    "graph_launch_s",
    "host_share_without_tp",
)
CLASSES = {profile.kind: profile.name for profile in (FUSED, EAGER)}


@dataclass(frozen=True, slots=True)
class Free:
    """One value of a fit."""

    parameter: Parameter
    toward: str
    """Name of the value it is pulled to; empty for its prior."""
    sigma: float
    groups: tuple[int, ...]
    """Groups of runs that see it."""
    shift: float = 0.0
    """What its coordinate was known to be beyond that of the value it is pulled to."""

    @property
    def name(self) -> str:
        """Name of the parameter."""
        return self.parameter.name

    @property
    def offset(self) -> float:
        """What is added before the logarithm is taken."""
        return OFFSETS.get(self.parameter.field, 0.0)

    def log(self, value: float) -> float:
        """Return the coordinate of a value."""
        return float(np.log(value + self.offset))

    def value(self, u: float) -> float:
        """Return the value of a coordinate."""
        return min(max(float(np.exp(u)) - self.offset, self.parameter.low), self.parameter.high)


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a fit found."""

    calibration: Calibration
    """The start with the fitted values, to four digits."""
    free: tuple[Free, ...]
    start: Calibration
    refused: Mapping[str, float]
    """Values that ended at a bound, by name: not carried."""
    seen_by: Mapping[str, int]
    """How many runs each value moves by more than a thousandth of its own change."""
    jacobian: Floats
    """d ln(predicted) / du at the end, `(runs, values)`."""
    u: Floats
    """Coordinates at the end, `(values,)`."""
    log_errors: Floats
    """ln(predicted / measured) at the end, `(runs,)`."""
    cost: float
    rounds: int
    spread: Mapping[str, float] = field(default_factory=dict)
    """How far parts lie from their generation, by field (`estimated_spread`)."""
    notes: tuple[str, ...] = field(default=())


def fit(
    runs: Runs,
    names: Iterable[str] = (),
    start: Calibration | None = None,
    name: str = "fitted",
    progress: Callable[[str], None] | None = None,
    processes: int = 1,
) -> Fitted:
    """Return the calibration that fits some runs best.

    `names` are parameters, or beginnings of their names (`generation`, `stack.nanotron`); without
    them all that the runs see. Values of `start` that are not fitted stay as they are. The answer
    does not depend on the number of `processes`.
    Raises `UsageError` for a name that no run sees.
    """
    start = start or Calibration("priors")
    free = free_values(runs, names)
    refused: dict[str, float] = {}
    first = {one.name: one.log(start.value(one.name)) for one in free}
    while True:
        problem = FitProblem(runs, free, start)
        result = _minimise(problem, first, progress, processes)
        at_bound = [i for i, one in enumerate(free) if _at_bound(one, result.u[i])]
        if not at_bound:
            break
        refused |= {free[i].name: free[i].value(result.u[i]) for i in at_bound}
        first = {one.name: u for one, u in zip(free, result.u, strict=True)}
        free = _without(free, {free[i].name for i in at_bound})
    spread = estimated_spread(free, runs.weight, result.jacobian, result.log_errors, result.u)
    if spread:
        free = _with_spread(free, spread)
        first = {one.name: u for one, u in zip(free, result.u, strict=True)}
        result = _minimise(FitProblem(runs, free, start), first, progress, processes)
    seen = (np.abs(result.jacobian) > 1e-3).sum(axis=0)
    moved_names = {one.toward for one, n in zip(free, seen, strict=True) if n}
    moved_names |= {one.name for one, n in zip(free, seen, strict=True) if n}
    values = {key: rounded(x) for key, x in _values(free, result.u).items() if key in moved_names}
    calibration = start.with_values(values, "fitted", name)
    return Fitted(
        calibration=calibration,
        free=free,
        start=start,
        refused=refused,
        seen_by={one.name: int(n) for one, n in zip(free, seen, strict=True)},
        jacobian=result.jacobian,
        u=result.u,
        log_errors=result.log_errors,
        cost=result.cost,
        rounds=result.rounds,
        spread=spread,
    )


def bounds_of(free: Sequence[Free]) -> tuple[Floats, Floats]:
    """Return the least and the largest coordinate of each value."""
    low = np.array([one.log(one.parameter.low) for one in free])
    high = np.array([one.log(one.parameter.high) for one in free])
    return low, high


def linear_at(runs: Runs, calibration: Calibration, processes: int = 1) -> Fitted:
    """Return what a fit that had ended at the values of a calibration would hold.

    For what the derivatives there say: groups left out, intervals, the runs that see a value.
    """
    free, start = free_values(runs), Calibration("priors")
    low, high = bounds_of(free)
    u = np.clip(np.array([one.log(calibration.value(one.name)) for one in free]), low, high)
    errors = runs.all_log_errors(calibration)
    everything = tuple(range(len(free)))
    jacobian = FitProblem(runs, free, calibration).jacobian(u, errors, everything, processes)
    seen = (np.abs(jacobian) > 1e-3).sum(axis=0)
    return Fitted(
        calibration=calibration,
        free=free,
        start=start,
        refused={},
        seen_by={one.name: int(n) for one, n in zip(free, seen, strict=True)},
        jacobian=jacobian,
        u=u,
        log_errors=errors,
        cost=robust_cost(errors, runs.weight, Pull.of(free).residuals(u)),
        rounds=0,
        spread={},
    )


def estimated_spread(
    free: Sequence[Free], weight: Floats, jacobian: Floats, log_errors: Floats, u: Floats
) -> dict[str, float]:
    """Return by field how far parts lie from their generation, in the logarithm; empty without.

    sigma^2 = (n0 s0^2 + sum of (d^2 + var d)) / (n0 + n) over the n parts that runs see, d the
    distance of one, var d what the fit leaves open of it, s0 `SPREAD` as if n0 = 2 parts had shown
    it; repeated with the fit linear around its end until it stays (empirical Bayes, by expectation
    and maximisation). A part that no run has seen starts at its generation with this spread.
    """
    fields = {one.parameter.field for one in free if one.parameter.kind == "part" and one.toward}
    spread = {name: SPREAD[name] for name in sorted(fields)}
    low, high = bounds_of(free)
    idx_of = {one.name: i for i, one in enumerate(free)}
    start, errors = u, log_errors
    for _ in range(SPREAD_STEPS if spread else 0):
        free = _with_spread(free, spread)
        pull = Pull.of(free)
        u = solve_linear(jacobian, errors, weight, pull, u, (low, high))
        errors = log_errors + jacobian @ (u - start)
        each = weight / np.sqrt(1.0 + (errors / SCALE) ** 2) / SCALE**2
        curve = pull.matrix.T @ pull.matrix + (jacobian.T * each) @ jacobian
        open_ = np.linalg.inv(curve)
        before, squares = spread, {name: [SPREAD_PARTS * SPREAD[name] ** 2] for name in spread}
        for i, one in enumerate(free):
            if one.parameter.kind == "part" and one.toward:
                j = idx_of[one.toward]
                var = open_[i, i] + open_[j, j] - 2.0 * open_[i, j]
                squares[one.parameter.field].append((u[i] - u[j] - one.shift) ** 2 + var)
        spread = {
            name: max(LEAST_SPREAD, float(np.sqrt(sum(x) / (SPREAD_PARTS + len(x) - 1))))
            for name, x in squares.items()
        }
        if max(abs(spread[name] - before[name]) for name in spread) < ARRIVED:
            break
    return spread


def _with_spread(free: Sequence[Free], spread: Mapping[str, float]) -> tuple[Free, ...]:
    """Return the values with parts pulled to their generation by some spread."""
    return tuple(
        replace(one, sigma=spread[one.parameter.field]) if _is_spread(one, spread) else one
        for one in free
    )


def _is_spread(one: Free, spread: Mapping[str, float]) -> bool:
    return one.parameter.kind == "part" and bool(one.toward) and one.parameter.field in spread


def free_values(runs: Runs, names: Iterable[str] = ()) -> tuple[Free, ...]:
    """Return the parameters that the runs see, with what each is pulled to and how strongly."""
    wanted, parameters = tuple(names), known_parameters()
    check_names(wanted)
    generations = _generations_of(runs)
    results: list[Free] = []
    alone = _parts_alone(runs)
    for name, parameter in parameters.items():
        # Figures that only benchmarks show have no entry in KNOWN.
        sees = _sees(parameter) if parameter.field in KNOWN else None
        if (
            sees is None
            or parameter.of in alone
            or (wanted and not any(_named(name, one) for one in wanted))
        ):
            continue
        groups = tuple(runs.groups_where(sees))
        is_class = parameter.kind == "stack" and parameter.of in generations["class"]
        if not groups and not is_class:
            continue
        results.append(Free(parameter, "", _sigma(parameter, runs, sees, generations), groups))
    listed = {one.name for one in results}
    if not any(one.groups for one in results):
        raise UsageError("no run sees any of the parameters to fit", "name others with --fit")
    return tuple(_pulled(one, listed, runs) for one in results)


def check_names(wanted: Iterable[str]) -> None:
    """Raise `UsageError` for a name that is neither a parameter nor a beginning of some."""
    parameters = known_parameters()
    for one in wanted:
        if not any(_named(name, one) for name in parameters):
            close = close_names(one, parameters)
            fix = (
                f"did you mean {' or '.join(close)}?"
                if close
                else "planner calibrate --list shows all"
            )
            raise UsageError(f"--fit: no parameter is called {one!r}", fix)


def _named(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}.")


def _pulled(one: Free, listed: set[str], runs: Runs) -> Free:
    """Return a number of a stack pulled to that of its class, of a part to its generation's.

    A variant of a generation (`blackwell-ultra`) is pulled to what that one's was found to be,
    times what the catalogue has between them.
    """
    parameter = one.parameter
    if parameter.kind in ("part", "generation"):
        above = _above(parameter)
        toward = f"generation.{above}.{parameter.field}" if above else ""
        if toward not in listed:
            return one
        shift = one.log(parameter.prior) - one.log(known_parameters()[toward].prior)
        return replace(one, toward=toward, shift=shift)
    if parameter.kind != "stack" or parameter.of in CLASSES.values():
        return one
    kind = next(r.case.problem.stack.kind for r in runs.runs if r.stack == parameter.of)
    toward = f"stack.{CLASSES[kind]}.{parameter.field}"
    return Free(parameter, toward if toward in listed else "", one.sigma, one.groups)


def _above(parameter: Parameter) -> str:
    """Return the generation that a number of a part, or of a variant of one, is pulled to."""
    if parameter.kind == "part":
        return load_catalogue().accelerators[parameter.of].generation
    base = parameter.of.partition("-")[0]
    return "" if base == parameter.of else base


def _generations_of(runs: Runs) -> dict[str, dict[str, set[str]]]:
    """Return the generations with runs of each stack, and of each class of stacks."""
    entries: dict[str, dict[str, set[str]]] = {"stack": {}, "class": {}}
    for run in runs.runs:
        stack = run.case.problem.stack
        entries["stack"].setdefault(stack.name, set()).add(run.generation)
        entries["class"].setdefault(CLASSES[stack.kind], set()).add(run.generation)
    return entries


def _sigma(
    parameter: Parameter,
    runs: Runs,
    sees: Callable[[Run], bool],
    generations: Mapping[str, Mapping[str, set[str]]],
) -> float:
    sigma, owner = KNOWN[parameter.field], parameter.of
    if parameter.kind == "part":
        return SPREAD[parameter.field]
    if parameter.kind == "stack" and owner not in CLASSES.values():
        run = next(run for run in runs.runs if run.stack == owner)
        behind = len(generations["class"][CLASSES[run.case.problem.stack.kind]])
        return sigma * float(np.sqrt(len(generations["stack"][owner]) / (1 + behind)))
    if parameter.kind == "shared":
        k = len({run.generation for run in runs.runs if sees(run)})
        return sigma * float(np.sqrt(k / (1 + k)))
    return sigma


def _sees(parameter: Parameter) -> Callable[[Run], bool] | None:
    """Return for which runs a parameter may matter; None for what moves no step time."""
    owner, field_name = parameter.of, parameter.field
    if parameter.kind == "recipe":
        return lambda run: _recipe_of(run) == owner
    if parameter.kind == "part":
        return lambda run: run.case.problem.pool.accelerator.name == owner
    if parameter.kind == "generation":
        if field_name == "fp8_gain":
            return lambda run: (
                run.generation == owner and run.case.problem.job.recipe.linear == "fp8"
            )
        return lambda run: run.generation == owner
    if parameter.kind == "link":
        if field_name == "base_scale":
            return None
        return _sees_link(owner, field_name)
    if parameter.kind == "stack":
        return (lambda run: run.stack == owner) if field_name in STACK_FIELDS else None
    if parameter.kind == "shared" and field_name in SHARED_FIELDS:
        return _SHARED_SEEN.get(field_name, _always)
    return None


def _sees_link(link_name: str, field_name: str) -> Callable[[Run], bool]:
    """Return which runs a link matters for; a latency inside a node is the stack's `tp_hop_s`."""

    def seen(run: Run) -> bool:
        pool = run.case.problem.pool
        if pool.scale_up.name == link_name:
            return field_name == "efficiency" and pool.n_devices > 1
        level = run.case.layout.zero
        if field_name == "ring_decline" and (
            level > 1 or not any(unhidden_once(run.case.problem.stack, level))
        ):
            return False
        return pool.nic.name == link_name and pool.n_nodes > 1

    return seen


def _recipe_of(run: Run) -> str:
    recipe = run.case.problem.job.recipe
    return recipe.fp8_recipe or recipe.fp4_recipe


def _parts_alone(runs: Runs) -> set[str]:
    """Return the parts that no run is on, or that have all runs of their generation."""
    entries: dict[str, set[str]] = {}
    for run in runs.runs:
        entries.setdefault(run.generation, set()).add(run.case.problem.pool.accelerator.name)
    shared = {name for names in entries.values() if len(names) > 1 for name in names}
    return set(load_catalogue().accelerators) - shared


def _always(run: Run) -> bool:
    return True


_SHARED_SEEN: Mapping[str, Callable[[Run], bool]] = {
    "stalled_hop_s": lambda run: run.case.problem.stack.blocking_p2p,
    "tensor_wire_frac": lambda run: (
        run.case.problem.stack.zero3_traffic == "by-tensor" and run.case.layout.zero >= 2
    ),
    "compiled_share": lambda run: bool(run.point.compile),
    "unfused_norm_factor": lambda run: not run.case.problem.stack.fused_norms,
    "host_share_without_tp": lambda run: run.case.layout.tp == 1,
    "routing_host_s": lambda run: run.is_moe,
    "synced_host_share": lambda run: run.is_moe,
    "graph_launch_s": lambda run: bool(run.point.cuda_graph),
    "node_spread": lambda run: run.case.problem.pool.n_nodes > 1,
}


@dataclass(frozen=True, slots=True)
class _Minimum:
    u: Floats
    jacobian: Floats
    log_errors: Floats
    cost: float
    rounds: int


def _values(free: Sequence[Free], u: Floats) -> dict[str, float]:
    return {one.name: one.value(x) for one, x in zip(free, u, strict=True)}


def _at_bound(one: Free, u: float) -> bool:
    low, high = one.log(one.parameter.low), one.log(one.parameter.high)
    margin = AT_BOUND * (high - low)
    return not low + margin < u < high - margin


def _without(free: Sequence[Free], names: set[str]) -> tuple[Free, ...]:
    """Return the values without some; what was pulled to one of them is pulled to its prior."""
    return tuple(
        replace(one, toward="" if one.toward in names else one.toward)
        for one in free
        if one.name not in names
    )


@dataclass(frozen=True, slots=True)
class Pull:
    """The pull to what was known, as linear residuals of the coordinates."""

    matrix: Floats
    """`(values, values)`."""
    target: Floats
    """`(values,)`."""

    @staticmethod
    def of(free: Sequence[Free]) -> "Pull":
        """Return the pull of some values."""
        idx_of = {one.name: i for i, one in enumerate(free)}
        matrix, target = np.zeros((len(free), len(free))), np.zeros(len(free))
        for i, one in enumerate(free):
            matrix[i, i] = 1.0 / one.sigma
            if one.toward:
                matrix[i, idx_of[one.toward]] = -1.0 / one.sigma
                target[i] = one.shift / one.sigma
            else:
                target[i] = one.log(one.parameter.prior) / one.sigma
        return Pull(matrix, target)

    def residuals(self, u: Floats) -> Floats:
        """Return how far each value is from what it is pulled to, in sigmas."""
        return np.asarray(self.matrix @ u - self.target)


def robust_cost(log_errors: Floats, weight: Floats, pulled: Floats) -> float:
    """Return the sum that a fit minimises."""
    z = (log_errors / SCALE) ** 2
    return float((weight * 2.0 * (np.sqrt(1.0 + z) - 1.0)).sum() + (pulled**2).sum())


def solve_linear(
    jacobian: Floats,
    log_errors: Floats,
    weight: Floats,
    pull: Pull,
    u: Floats,
    bounds: tuple[Floats, Floats],
) -> Floats:
    """Return the coordinates that minimise the sum for errors linear in them around `u`.

    Soft L1 is the least of the squares weighed by w / sqrt(1 + z), so weighing by the last errors
    and solving, again and again, never goes up (iteratively reweighted least squares); every
    solution is that of a bounded linear problem in as many rows as there are values.
    """
    from scipy.linalg import solve_triangular
    from scipy.optimize import lsq_linear

    low, high = bounds
    x = np.clip(u, low, high)
    curve, slope = pull.matrix.T @ pull.matrix, pull.matrix.T @ pull.target
    for _ in range(REWEIGHED):
        errors = log_errors + jacobian @ (x - u)
        each = weight / np.sqrt(1.0 + (errors / SCALE) ** 2) / SCALE**2
        total = curve + (jacobian.T * each) @ jacobian
        right = slope + (jacobian.T * each) @ (jacobian @ u - log_errors)
        lower = np.linalg.cholesky(total)
        target = solve_triangular(lower, right, lower=True)
        new = solve_triangular(lower.T, target)
        if not ((low <= new) & (new <= high)).all():
            new = lsq_linear(lower.T, target, (low, high), method="bvls").x
        moved = float(np.abs(new - x).max())
        x = new
        if moved < ARRIVED:
            break
    return np.asarray(x, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class FitProblem:
    """What is fitted: values of a calibration to runs."""

    runs: Runs
    free: Sequence[Free]
    start: Calibration
    """The calibration whose values are free, and which keeps the others."""

    def jacobian(
        self, u: Floats, log_errors: Floats, looked_at: Sequence[int], processes: int = 1
    ) -> Floats:
        """Return d ln(predicted) / du, `(runs, values)`; 0 for values not `looked_at`.

        Each value prices only the groups that see it.
        """
        out = np.zeros((len(self.runs.runs), len(self.free)))
        base = _values(self.free, u)

        def column(i: int) -> tuple[Ints, Floats]:
            """Return runs and their derivatives by one value."""
            one = self.free[i]
            # Away from the nearer bound, so that the step is whole.
            low, high = one.log(one.parameter.low), one.log(one.parameter.high)
            step = STEP if u[i] + STEP <= high or u[i] - STEP < low else -STEP
            moved = {**base, one.name: one.value(u[i] + step)}
            idx, errors = self.runs.log_errors(_priced(self.start, moved), one.groups)
            return idx, (errors - log_errors[idx]) / step

        # The costliest first, so that no process is left with it at the end.
        seen = [i for i in looked_at if self.free[i].groups]
        seen.sort(key=lambda i: -len(self.free[i].groups))
        for i, (row_idx, slopes) in zip(seen, mapped(column, seen, processes), strict=True):
            out[row_idx, i] = slopes
        return out


def _priced(start: Calibration, values: Mapping[str, float]) -> Calibration:
    return Calibration(start.name, {**start.values, **values})


def _minimise(
    problem: FitProblem,
    first: Mapping[str, float],
    progress: Callable[[str], None] | None,
    processes: int,
) -> _Minimum:
    """Return the coordinates that minimise the sum, from `first` on."""
    runs, free, start = problem.runs, problem.free, problem.start
    pull = Pull.of(free)
    low, high = bounds_of(free)
    u = np.clip(np.array([first[one.name] for one in free]), low, high)

    def errors_at(u: Floats) -> Floats:
        return runs.all_log_errors(_priced(start, _values(free, u)))

    errors = errors_at(u)
    cost = robust_cost(errors, runs.weight, pull.residuals(u))
    jacobian = np.zeros((len(errors), len(free)))
    looked_at = tuple(range(len(free)))
    for n_rounds in range(1, ROUNDS + 1):
        if progress:
            progress(f"round {n_rounds}: {cost:.3f}")
        jacobian = problem.jacobian(u, errors, looked_at, processes)
        looked_at = tuple(i for i in looked_at if _matters(free[i], jacobian[:, i], runs.weight))
        before, trust, chords = cost, TRUST, 0
        centre = u
        while chords < CHORDS and trust > TRUST / 10.0:
            box = np.maximum(low, centre - trust), np.minimum(high, centre + trust)
            tried = solve_linear(jacobian, errors, runs.weight, pull, u, box)
            new = errors_at(tried)
            new_cost = robust_cost(new, runs.weight, pull.residuals(tried))
            if new_cost < cost:
                done = cost - new_cost < CLOSE * cost
                u, errors, cost, chords = tried, new, new_cost, chords + 1
                if done:
                    break
            else:
                trust, centre = trust / 3.0, u
        if before - cost < 10.0 * CLOSE * before:
            break
    return _Minimum(u, jacobian, errors, cost, n_rounds)


def _matters(one: Free, column: Floats, weight: Floats) -> bool:
    """Tell whether a value moved by its sigma moves any run by enough to be looked at again."""
    return float((np.sqrt(weight) * np.abs(column)).max(initial=0.0)) * one.sigma > NOTHING
