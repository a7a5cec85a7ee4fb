"""Which sizes a scaling curve has: numbers of devices, sequence lengths, numbers of layers.

Sizes are inputs of a search each. A number of devices is legal where some degrees divide heads,
layers and batch (`searches.device_counts.shape_degrees`); of very many, a few an octave are taken.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.analyze.recommend.questions import MAX_LAYERS, MAX_SEQ_LEN
from planner.errors import SpecError, UsageError
from planner.option_names import option
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_from_dict, model_from_dict
from planner.specs.search.axis_values import DEVICES
from searches.device_counts import device_counts, shape_degrees
from searches.feasibility import any_fits, states_can_fit
from searches.rules import Context

STRONG, WEAK = SCALINGS = ("strong", "weak")
"""`strong`: the tokens of a step stay. `weak`: they grow in proportion to the size."""
OVER = ("devices", "seq_len", "layers")
LIMITS = {"devices": 1_000_000, "seq_len": MAX_SEQ_LEN, "layers": MAX_LAYERS}
"""Largest size that may be asked for."""
POINTS = 16
"""Numbers of devices of a curve, unless told otherwise."""
PARTS = 8
"""Where a doubling does not fit, sizes between are tried in steps of so many parts of it."""


@dataclass(frozen=True, slots=True)
class CurveSize:
    """One point of a curve."""

    value: int
    """Devices, tokens of a sequence, or layers."""
    model: ModelInput
    cluster: ClusterInput
    options: SolveOptions
    """With the number of devices pinned."""


@dataclass(frozen=True, slots=True)
class SizeRange:
    """What is asked: over which axis, how the batch goes with it, from where to where."""

    over: str
    scaling: str
    least: int = 0
    """0: from the first that fits (devices), or from what the model file says."""
    most: int = 0
    """0: to the whole cluster (devices), or until nothing fits."""
    points: int = POINTS
    """Most numbers of devices."""

    def __post_init__(self) -> None:
        if self.over not in OVER:
            raise UsageError(
                option("over") + f": unknown {self.over!r}",
                f"one of {', '.join(OVER)}",
                code="unknown-name",
            )
        if self.scaling not in SCALINGS:
            raise UsageError(
                option("scaling") + f": unknown {self.scaling!r}",
                f"one of {', '.join(SCALINGS)}",
                code="unknown-name",
            )
        if self.over == "layers" and self.scaling == WEAK:
            raise UsageError(
                option("scaling", "weak")
                + " does not go with "
                + option("over", "layers")
                + ": depth does not change the batch",
                "drop " + option("scaling"),
                code="belongs-to",
            )
        for end, value in (("from", self.least), ("to", self.most)):
            if not 0 <= value <= LIMITS[self.over]:
                raise UsageError(
                    option(end)
                    + f" must be 1 to {LIMITS[self.over]:,} {self.over}, not {value:,}",
                    "for example " + option(end, "64"),
                    code="out-of-range",
                )
        if self.least and self.most and self.least > self.most:
            raise UsageError(
                option("from", str(self.least)) + " is above " + option("to", str(self.most)),
                "the smaller one first",
            )
        if not 2 <= self.points <= 10_000:
            raise UsageError(
                option("points") + f" must be 2 to 10000, not {self.points}",
                "for example " + option("points", "16"),
                code="out-of-range",
            )


@dataclass(frozen=True, slots=True)
class Job:
    """What is scaled: one model in one recipe on one pool."""

    model: ModelInput
    cluster: ClusterInput
    options: SolveOptions

    def with_model(self, fields: dict[str, int]) -> ModelInput:
        """Return the model with some fields changed."""
        if not fields:
            return self.model
        result = model_from_dict(self.model.document, list(fields.items()))
        return replace(result, notes=self.model.notes, details=self.model.details)

    def context(self, size: CurveSize) -> Context:
        """Return the search of a size for any plan."""
        problem = make_problem(size.model, size.cluster, size.options)
        restrictions = replace(size.options.search_options(problem), n_finalists=1)
        return Context(problem, restrictions, problem.pool.n_devices)


def grown(cluster: ClusterInput, n_devices: int) -> ClusterInput:
    """Return a cluster of one pool with nodes for at least so many devices, in whole domains."""
    pool = cluster.cluster.pools[0]
    if n_devices <= pool.n_devices:
        return cluster
    total = math.lcm(pool.devices_per_node, pool.scale_up_domain)
    nodes = -(-n_devices // total) * total // pool.devices_per_node
    source = cluster.sources[0]
    fields = [(f"pools.0.{key}", nodes) for key in source.node_keys or ("nodes",)]
    try:
        result = cluster_from_dict(cluster.document, fields)
    except SpecError as error:
        raise UsageError(
            option("to", str(n_devices))
            + f": the cluster does not grow to {nodes} nodes: {error}",
            option("to", str(pool.n_devices)) + ", or a cluster file with more nodes",
        ) from None
    return replace(result, notes=cluster.notes)


def device_sizes(job: Job, sizes: SizeRange) -> list[CurveSize]:
    """Return the sizes of a curve over devices, ascending.

    Numbers without a legal layout are left out, and without `--from` those on which nothing fits
    before the first on which something does. Where that leaves none: the largest, for its reasons.
    """
    own = job.cluster.cluster.pools[0].n_devices
    maximum = sizes.most or own
    cluster = grown(job.cluster, maximum)
    problem = make_problem(job.model, cluster, job.options)
    batch = job.model.job.global_batch

    def size(n: int) -> CurveSize | None:
        fields = {}
        if sizes.scaling == WEAK:
            if batch * n % own:
                return None
            fields = {"training.global_batch": batch * n // own}
        pinned = replace(job.options, pins={**job.options.pins, DEVICES: n})
        model = job.model if n == own else job.with_model(fields)
        return CurveSize(n, model, cluster, pinned)

    results, fits = [], bool(sizes.least)
    counts = [n for n in device_counts(problem.pool) if n <= maximum]
    for n in counts:
        if n < sizes.least or not (fits or states_can_fit(problem, n)):
            continue
        one = size(n)
        if one is None or next(shape_degrees(job.context(one)), None) is None:
            continue
        fits = fits or any_fits(job.context(one))
        if fits:
            results.append(one)
    if not results:
        asked_for = [n for n in counts[::-1] if n >= sizes.least]
        results = [x for x in map(size, asked_for) if x is not None][:1]
    if not results:
        near = ", ".join(f"{n:,}" for n in sorted(counts, key=lambda n: abs(n - maximum))[:3])
        raise UsageError(
            f"no number of devices from {sizes.least or 1:,} to {maximum:,} makes whole nodes or"
            " equal parts of one, and whole sequences a step",
            f"numbers near it: {near}" if near else "a larger " + option("to"),
        )
    return thinned(results, sizes.points, keep=own)


def thinned(sizes: Sequence[CurveSize], points: int, keep: int) -> list[CurveSize]:
    """Return at most `points` sizes, evenly in the logarithm: first, last and `keep` among them.

    Of each stretch the number that two divides most often, then the one nearest to its middle:
    degrees are powers of two in most layouts.
    """
    if len(sizes) <= points:
        return list(sizes)
    low, high = math.log(sizes[0].value), math.log(sizes[-1].value)
    chosen = {i for i, x in enumerate(sizes) if x.value == keep} | {0, len(sizes) - 1}
    n_bins = max(1, points - len(chosen))
    bins: dict[int, list[int]] = {}
    for i, x in enumerate(sizes):
        bin_idx = int((math.log(x.value) - low) / (high - low) * n_bins)
        bins.setdefault(min(bin_idx, n_bins - 1), []).append(i)
    for bin_idx, members in bins.items():
        middle = low + (bin_idx + 0.5) * (high - low) / n_bins

        def order(i: int, middle: float = middle) -> tuple[int, float]:
            n = sizes[i].value
            return -(n & -n), abs(math.log(n) - middle)

        if not chosen & set(members) or len(members) > 2:
            chosen.add(min(members, key=order))
    return [sizes[i] for i in sorted(chosen)]


def job_sizes(job: Job, sizes: SizeRange) -> list[CurveSize]:
    """Return the sizes of a curve over `seq_len` or `layers`, ascending, on the whole pool.

    Doublings from the first size on to `--to`, or to the first that does not fit, which is in the
    list. Below it the largest that fits of the steps of 1 / `PARTS` of the last doubling is added:
    the wall.
    """
    own_size = job.model.job.seq_len if sizes.over == "seq_len" else job.model.shape.layers
    value, maximum = sizes.least or own_size, sizes.most or LIMITS[sizes.over]
    results: list[CurveSize] = []
    while value <= maximum:
        one = job_size(job, sizes, value)
        if one is None and not results:
            tokens = job.model.job.global_batch * job.model.job.seq_len
            raise UsageError(
                f"a step of {tokens:,} tokens is no whole number of sequences of {value:,}",
                "another "
                + option("from")
                + ", or "
                + option("scaling", "weak")
                + ": as many sequences whatever their length",
            )
        if one is None:
            break
        results.append(one)
        if not any_fits(job.context(one)):
            if len(results) > 1:
                wall = _wall(job, sizes, results[-2].value, value)
                results[-1:] = [*wall, results[-1]]
            return results
        last, value = value, value * 2
        if last < maximum < value and sizes.most:
            value = maximum
    return results


def _wall(job: Job, sizes: SizeRange, fits: int, fails: int) -> list[CurveSize]:
    """Return the largest size between two that fits, on a grid of parts of the smaller one."""
    step = max(1, fits // PARTS)
    for value in range(fits + (fails - fits - 1) // step * step, fits, -step):
        one = job_size(job, sizes, value)
        if one is not None and any_fits(job.context(one)):
            return [one]
    return []


def job_size(job: Job, sizes: SizeRange, value: int) -> CurveSize | None:
    """Return one size of `seq_len` or `layers`; None where the model or batch has no such size."""
    fields: dict[str, int] = {"model.layers": value}
    if sizes.over == "seq_len":
        fields = {"training.seq_len": value}
        if sizes.scaling == STRONG:
            tokens = job.model.job.global_batch * job.model.job.seq_len
            if tokens % value:
                return None
            fields["training.global_batch"] = tokens // value
    n_devices = job.cluster.cluster.pools[0].n_devices
    pinned = replace(job.options, pins={**job.options.pins, DEVICES: n_devices})
    try:
        return CurveSize(value, job.with_model(fields), job.cluster, pinned)
    except SpecError:
        if value == sizes.least:  # what the user named has to be said
            raise
        return None


Sizes = Callable[[Job, SizeRange], list[CurveSize]]


def sizes_of(job: Job, sizes: SizeRange) -> list[CurveSize]:
    """Return the sizes of the curve that is asked for."""
    chosen: Sizes = device_sizes if sizes.over == "devices" else job_sizes
    return chosen(job, sizes)
