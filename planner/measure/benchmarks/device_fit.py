"""Fits the rates of a device generation to measured products, attention cores and memory passes.

The formulas are those that price a plan (`costmodels.layers.gemm.gemm_s`,
`costmodels.layers.compute. attention_times`), through the parameters of a calibration.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodels.layers.compute import AttentionKernels, attention_times
from costmodels.layers.gemm import gemm_s
from costmodels.precision import FP8_RATE_FRAC
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import STACKS
from hardware.parts import Accelerator, Pool
from planner.measure.benchmarks.pulled_fit import (
    PulledEstimate,
    Quantity,
    carried_value,
    pulled_fit,
)
from planner.measure.benchmarks.results import MeasuredCore, MeasuredProduct, MeasuredSizes, Pass
from planner.solver.calibration.apply import calibrated_pool
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.parameters import known_parameters

Floats = NDArray[np.float64]

PRODUCT_ERROR, PASS_ERROR, CORE_ERROR = 0.06, 0.05, 0.08
"""Standard deviations of log(model / measured) that the forms leave."""
LATENCY_BYTES, CACHE_BYTES = 2e5, 5e8
"""Passes over less show the latency of a kernel, over more the memory; caches lie between."""
SIGMAS = {
    "gemm_frac": 0.3,
    "gemm_k_half": math.log(2.5),
    "hbm_frac": 0.2,
    "kernel_latency_s": math.log(2),
    "fp8_gain": 0.3,
}
"""How far the catalogue may be off: the standard deviation of the logarithm."""
PEAK_MARGIN = 1.1
"""Rates this many times those of the data sheet are no measurements; clocks exceed it a bit."""
KERNEL_SIGMA, LENGTH_SIGMA = 0.4, math.log(2)
BEST_KERNEL = "flash3"
"""The catalogue's word for the best kernel of a generation, cuDNN's where it lists none apart."""


@dataclass(frozen=True, slots=True)
class FittedItem:
    """One timed item with the model's times before and after."""

    kind: str
    """`product`, `memory`, `attention forward` or `attention backward`."""
    label: str
    measured_s: float
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True)
class DeviceFit:
    """What measurements say of the generation of one pool's accelerator."""

    estimates: tuple[PulledEstimate, ...]
    items: tuple[FittedItem, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Item:
    """One timed item and how the model prices it."""

    kind: str
    label: str
    time_s: float
    error: float
    price_s: Callable[[Accelerator], float]


def _product(row: MeasuredProduct) -> _Item:
    frac = FP8_RATE_FRAC if row.precision == "fp8" else 1.0

    def price(part: Accelerator) -> float:
        return float(gemm_s(row.rows, row.inner, row.columns, part, row.precision, frac))

    text = f"{row.rows} x {row.inner} x {row.columns} {row.precision}"
    return _Item("product", text, row.time_s, PRODUCT_ERROR, price)


def _pass(row: Pass) -> _Item:
    def price(part: Accelerator) -> float:
        eff = part.efficiency
        return row.bytes / (part.hbm_bytes_per_s * eff.hbm_frac) + eff.kernel_latency_s

    text = f"{row.bytes / 2**20:.4g} MiB read and written"
    return _Item("memory", text, row.time_s, PASS_ERROR, price)


def price_core(row: MeasuredCore, kernel: str, part: Accelerator, back: bool) -> float:
    """Return the model's time of one attention core, forward or backward, seconds."""
    width = row.heads * row.head_dim
    shape = ModelShape(
        "core", 1, width, row.heads, row.heads, row.head_dim, 4 * width, True, 32000, False
    )
    stack = replace(STACKS["megatron-core"], attention_kernels=(kernel,))
    job = TrainingJob(row.length, row.batch)
    tokens, tp = np.array([float(row.batch * row.length)]), np.array([1], dtype=np.int32)
    result = attention_times(shape, job, part, stack, tokens, AttentionKernels(tp))
    return float((result.backward_s if back else result.forward_s)[0])


def _core(row: MeasuredCore, kernel: str) -> list[_Item]:
    """Return the forward and the backward of one attention core."""
    text = f"{kernel}, {row.batch} x {row.heads} heads x {row.length}"

    def item(kind: str, time_s: float, back: bool) -> _Item:
        return _Item(
            kind, text, time_s, CORE_ERROR, lambda part: price_core(row, kernel, part, back)
        )

    return [
        item("attention forward", row.forward_s, False),
        item("attention backward", row.backward_s, True),
    ]


def fit_device(measured: MeasuredSizes, pool: Pool, base: Calibration) -> DeviceFit:
    """Fit the generation of the pool's accelerator; `pool` has the catalogue's figures."""
    part, notes = pool.accelerator, []
    products = [row for row in measured.products if row.precision in part.peak_flops_per_s]
    strange = {row.precision for row in measured.products} - set(part.peak_flops_per_s)
    if strange:
        notes.append(f"{part.name} has no {', '.join(sorted(strange))} rate: left out")
    passes = [p for p in measured.passes if not LATENCY_BYTES < p.bytes < CACHE_BYTES]
    possible = [row for row in products if _flops_per_s(row) <= PEAK_MARGIN * _peak(row, part)]
    steady = [
        p
        for p in passes
        if p.bytes / p.time_s <= PEAK_MARGIN * part.hbm_bytes_per_s or p.bytes <= LATENCY_BYTES
    ]
    for usable, timed, what in ((possible, products, "product"), (steady, passes, "memory pass")):
        if len(usable) < len(timed):
            notes.append(
                f"{len(timed) - len(usable)} {what} times are beyond the peak of {part.name}, and "
                "left out: another part, or its clock was not waited for"
            )
    products, passes = possible, steady
    cores = []
    for row in measured.cores:
        kernel = _kernel_of(row.kernel, part)
        if kernel:
            cores.append((row, kernel))
    unknown = {row.kernel for row in measured.cores} - {row.kernel for row, _ in cores}
    if unknown:
        notes.append(
            f"{part.generation} lists no attention {', '.join(sorted(unknown))}: left out"
        )
    untimed = sorted(set(part.efficiency.attention_frac) - {kernel for _, kernel in cores})
    if cores and (untimed := [kernel for kernel in untimed if kernel != "unfused"]):
        notes.append(f"not timed, so as before: attention {', '.join(untimed)}")
    work = [_product(row) for row in products] + [_pass(row) for row in passes]
    estimates: list[PulledEstimate] = []
    if work:
        fields = [
            f for f in SIGMAS if f != "fp8_gain" or any(p.precision == "fp8" for p in products)
        ]
        estimates += _fit(work, pool, base, [(f, SIGMAS[f]) for f in fields])
    attention = [item for row, kernel in cores for item in _core(row, kernel)]
    if attention:
        so_far = base.with_values(carried_value(estimates), "measured")
        kernels = dict.fromkeys(kernel for _, kernel in cores)
        named = [(f"{k}_{way}", KERNEL_SIGMA) for k in kernels for way in ("forward", "backward")]
        named.append(("attention_seq_half", LENGTH_SIGMA))
        estimates += _fit(attention, pool, so_far, named)
    before = calibrated_pool(pool, base).accelerator
    after = base.with_values(carried_value(estimates), "measured")
    fitted = calibrated_pool(pool, after).accelerator
    items = tuple(
        FittedItem(item.kind, item.label, item.time_s, item.price_s(before), item.price_s(fitted))
        for item in (*work, *attention)
    )
    return DeviceFit(tuple(estimates), items, tuple(notes))


def _flops_per_s(row: MeasuredProduct) -> float:
    return 2.0 * row.rows * row.inner * row.columns / row.time_s


def _peak(row: MeasuredProduct, part: Accelerator) -> float:
    return part.peak_flops_per_s[row.precision]


def _kernel_of(name: str, part: Accelerator) -> str:
    """Return the catalogue's kernel for a measured one; empty where it lists none."""
    by_kernel = part.efficiency.attention_frac
    if name in by_kernel:
        return name
    return BEST_KERNEL if name == "cudnn" and BEST_KERNEL in by_kernel else ""


def _fit(
    items: Sequence[_Item], pool: Pool, base: Calibration, fields: Sequence[tuple[str, float]]
) -> list[PulledEstimate]:
    parameters, part = known_parameters(), pool.accelerator

    def owned(field: str) -> str:
        """Name the number that prices the part: its own where the calibration has it."""
        own = f"part.{part.name}.{field}"
        return own if own in base.values else f"generation.{part.generation}.{field}"

    quantities = [
        Quantity(
            name,
            parameters[name].meaning,
            base.value(name),
            sigma,
            parameters[name].low,
            parameters[name].high,
        )
        for name, sigma in ((owned(field), sigma) for field, sigma in fields)
        if name in parameters
    ]
    log_s = np.log([item.time_s for item in items])
    error = np.array([item.error for item in items])

    def residuals(values: Mapping[str, float]) -> Floats:
        there = calibrated_pool(pool, Calibration("fit", {**base.values, **values})).accelerator
        times = np.array([item.price_s(there) for item in items])
        return np.asarray((np.log(times) - log_s) / error)

    return pulled_fit(quantities, residuals)
