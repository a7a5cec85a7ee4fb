"""What a per cent of each hardware figure buys: d log t / d log x of a plan's step time.

t is the exact step time of one plan, x a figure of the hardware or a time that the software takes:
-0.6 says that one per cent more of a rate makes the step 0.6 % shorter. By the envelope theorem it
is also the elasticity of the best step time over all plans, wherever one plan is the best alone: a
small change of x changes which plan is best nowhere but where two are equally fast. See
docs/elasticities.md.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from threading import Lock
from typing import Any

import numpy as np

from costmodels.breakdown import (
    exact_step_times,
    join_layouts,
    same_layout_times,
    virtual_stage_columns,
)
from costmodels.plans import Layout
from costmodels.problem import Problem, in_columns
from costmodels.step import Rows, peak_bytes
from hardware.parts import Host, Link
from searches.pricing.shared_work import rates_key

LOG_EXPONENT = 16
LOG_STEP = 2.0**-LOG_EXPONENT
"""Half the distance of the central difference, in the logarithm of the figure: 0.0015 %, where
rounding leaves ten digits. Kinks that are nearer than that give the mean of both sides."""

Factor = Any
"""A number, or a column of them for problems in columns (`costmodels.problem.Problems`)."""
Change = Callable[[Problem, Factor], Problem]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure whose elasticity is taken."""

    name: str
    kind: str
    """`rate`: more is faster, elasticity at most 0 but for algorithms; `time`: the opposite."""
    meaning: str
    changed: Change
    """The problem with the figure times a factor."""


def _matmul(problem: Problem, factor: Factor) -> Problem:
    part = problem.pool.accelerator
    peaks = {name: rate * factor for name, rate in part.peak_flops_per_s.items()}
    return _with_accelerator(problem, peak_flops_per_s=peaks)


def _hbm(problem: Problem, factor: Factor) -> Problem:
    part = problem.pool.accelerator
    return _with_accelerator(problem, hbm_bytes_per_s=part.hbm_bytes_per_s * factor)


def _scale_up(problem: Problem, factor: Factor) -> Problem:
    part = problem.pool.accelerator
    names = ("scale_up_bytes_per_s", "ring_bytes_per_s", "in_switch_all_reduce_bytes_per_s")
    return _with_accelerator(problem, **{name: getattr(part, name) * factor for name in names})


def _scale_out(problem: Problem, factor: Factor) -> Problem:
    nic = replace(problem.pool.nic, bytes_per_s=problem.pool.nic.bytes_per_s * factor)
    return replace(problem, pool=replace(problem.pool, nic=nic))


def _protocols(problem: Problem, factor: Factor) -> Problem:
    def faster(link: Link) -> Link:
        first, second, third = link.protocol_bytes_per_s
        return replace(
            link, protocol_bytes_per_s=(first * factor, second * factor, third * factor)
        )

    pool = problem.pool
    pool = replace(pool, scale_up=faster(pool.scale_up), nic=faster(pool.nic))
    return replace(problem, pool=pool)


def _host_link(problem: Problem, factor: Factor) -> Problem:
    return _with_host(problem, lambda x: replace(x, link_bytes_per_s=x.link_bytes_per_s * factor))


def _host_memory(problem: Problem, factor: Factor) -> Problem:
    return _with_host(
        problem, lambda x: replace(x, memory_bytes_per_s=x.memory_bytes_per_s * factor)
    )


def _scale_up_latency(problem: Problem, factor: Factor) -> Problem:
    pool = problem.pool
    return replace(problem, pool=replace(pool, scale_up=_later(pool.scale_up, factor)))


def _scale_out_latency(problem: Problem, factor: Factor) -> Problem:
    pool = problem.pool
    return replace(problem, pool=replace(pool, nic=_later(pool.nic, factor)))


def _kernel_latency(problem: Problem, factor: Factor) -> Problem:
    eff = problem.pool.accelerator.efficiency
    eff = replace(eff, kernel_latency_s=eff.kernel_latency_s * factor)
    return _with_accelerator(problem, efficiency=eff)


def _host_launch(problem: Problem, factor: Factor) -> Problem:
    return _with_stack(problem, factor, "host_s_per_layer", "routing_host_s", "graph_launch_s")


def _waiting(problem: Problem, factor: Factor) -> Problem:
    return _with_stack(problem, factor, "tp_hop_s", "stalled_hop_s", "stalled_message_s")


def _fixed(problem: Problem, factor: Factor) -> Problem:
    return _with_stack(problem, factor, "fixed_step_s")


def _with_accelerator(problem: Problem, **changes: Any) -> Problem:
    part = replace(problem.pool.accelerator, **changes)
    return replace(problem, pool=replace(problem.pool, accelerator=part))


def _with_host(problem: Problem, changed: Callable[[Host], Host]) -> Problem:
    if problem.pool.host is None:
        return problem
    return replace(problem, pool=replace(problem.pool, host=changed(problem.pool.host)))


def _with_stack(problem: Problem, factor: Factor, *names: str) -> Problem:
    changes = {name: getattr(problem.stack, name) * factor for name in names}
    return replace(problem, stack=replace(problem.stack, **changes))


def _later(link: Link, factor: Factor) -> Link:
    """Return a link whose latencies, and the library's constants of it, are `factor` as long."""

    def times(triple: tuple[float, float, float]) -> Any:
        return triple[0] * factor, triple[1] * factor, triple[2] * factor

    return replace(
        link,
        ring_base_s=times(link.ring_base_s),
        ring_hop_s=times(link.ring_hop_s),
        tree_base_s=times(link.tree_base_s),
        tree_hop_s=times(link.tree_hop_s),
        p2p_latency_s=link.p2p_latency_s * factor,
        latency_factor=link.latency_factor * factor,
    )


RATE, TIME = "rate", "time"
FIGURES: tuple[Figure, ...] = (
    Figure("matmul_flops", RATE, "peak rates of matrix products, all precisions", _matmul),
    Figure("hbm_bandwidth", RATE, "bandwidth of the device's memory", _hbm),
    Figure(
        "scale_up_bandwidth",
        RATE,
        "bandwidth inside the scale-up domain, sums in the switch included",
        _scale_up,
    ),
    Figure("scale_out_bandwidth", RATE, "speed of the network ports", _scale_out),
    Figure(
        "protocol_bandwidth",
        RATE,
        "what the protocols for short messages reach at most on any link",
        _protocols,
    ),
    Figure("host_link_bandwidth", RATE, "bandwidth between device and host", _host_link),
    Figure("host_memory_bandwidth", RATE, "bandwidth of the host's memory", _host_memory),
    Figure(
        "scale_up_latency",
        TIME,
        "latencies of collectives and messages inside the domain, and of starting a collective",
        _scale_up_latency,
    ),
    Figure("scale_out_latency", TIME, "latencies of steps between domains", _scale_out_latency),
    Figure("kernel_latency", TIME, "what a kernel takes beside its work", _kernel_latency),
    Figure(
        "host_launch",
        TIME,
        "what the host needs to launch a layer, what routing adds to it, and graphs",
        _host_launch,
    ),
    Figure("rank_wait", TIME, "waits for the last rank of a tp group, and stalls", _waiting),
    Figure("fixed_step", TIME, "time of a step outside the model", _fixed),
)
"""Every rate and every time that a step depends on: with all rates times k and all times over k a
step takes 1/k as long."""
RATES = tuple(figure.name for figure in FIGURES if figure.kind == RATE)
TIMES = tuple(figure.name for figure in FIGURES if figure.kind == TIME)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What a plan's step time depends on."""

    elasticity: Mapping[str, float]
    """d log t / d log x by name of the figure (`FIGURES`)."""
    hbm_bytes: float
    """What a device moves to and from its memory in a step, the mean of the pipeline's stages."""
    sides_s: Mapping[str, tuple[float, float]]
    """Step times with the figure times e^h and e^-h, h = `LOG_STEP`: what the elasticity is of."""


def elasticities(problem: Problem, layout: Layout) -> dict[str, float]:
    """Return d log t / d log x of a layout's exact step time for every figure, by name.

    e_x = ( log t(x e^h) - log t(x e^-h) ) / 2 h,  h = `LOG_STEP`

    The sum over rates minus the sum over times is -1 (Euler: t is homogeneous of degree 1 in
    times and inverse rates). Exactly zero for figures that the plan does not use.
    """
    return dict(sensitivity(problem, layout).elasticity)


MOST_KNOWN = 64
"""Plans whose sensitivity is known: points of a sweep that differ in memory often have one plan.
"""
_KNOWN: OrderedDict[tuple[bytes, Layout], Sensitivity] = OrderedDict()
_KNOWN_LOCK = Lock()


def sensitivity(problem: Problem, layout: Layout) -> Sensitivity:
    """Return the elasticities of a layout, and the memory traffic that comes with them.

    All problems are priced in one table, so that both together cost about what one plan does.
    """
    key = rates_key(problem), layout
    with _KNOWN_LOCK:
        result = _KNOWN.pop(key, None)
    result = result or _sensitivity(problem, layout)
    with _KNOWN_LOCK:
        _KNOWN[key] = result
        if len(_KNOWN) > MOST_KNOWN:
            _KNOWN.popitem(last=False)
    return result


def _sensitivity(problem: Problem, layout: Layout) -> Sensitivity:
    n = 2 * len(FIGURES) + 1
    changed = problem
    for figure, factors in zip(FIGURES, _factors(), strict=True):
        changed = figure.changed(changed, factors)
    rows = join_layouts(in_columns(changed), [layout] * n)
    times = same_layout_times(rows, layout)
    pairs = zip(FIGURES, times[:-1:2], times[1::2], strict=True)
    sides = {figure.name: (more, less) for figure, more, less in pairs}
    entries = {name: _slope(*side) for name, side in sides.items()}
    part = problem.pool.accelerator
    reached = part.hbm_bytes_per_s * part.efficiency.hbm_frac
    return Sensitivity(entries, _memory_s(rows, layout, n - 1) * reached, sides)


def _slope(more_s: float, less_s: float) -> float:
    """Return the central difference of the logarithm of two step times."""
    return (log(more_s) - log(less_s)) / (2.0 * LOG_STEP)


def after_changes(
    problem: Problem,
    layout: Layout,
    changes: Sequence[tuple[str, float]],
    names: Sequence[str],
) -> list[tuple[float, dict[str, float]]]:
    """Return step time, s, and elasticities to some figures after changes, each made alone.

    `changes` are names of figures and their factors, `names` the figures whose elasticity is
    taken. All are priced in one table, so that many cost little more than one.
    """
    each = 2 * len(names) + 1
    columns = {figure.name: np.ones(each * len(changes)) for figure in FIGURES}
    for i, (name, factor) in enumerate(changes):
        columns[name][i * each : (i + 1) * each] *= factor
        for k, figure_name in enumerate(names):
            first_row = i * each + 2 * k
            columns[figure_name][first_row : first_row + 2] *= exp(LOG_STEP), exp(-LOG_STEP)
    changed = problem
    for figure in FIGURES:
        changed = figure.changed(changed, columns[figure.name])
    rows = join_layouts(in_columns(changed), [layout] * (each * len(changes)))
    times, out = same_layout_times(rows, layout), []
    for first_row in range(0, len(times), each):
        entries = {
            figure_name: _slope(*times[first_row + 2 * k : first_row + 2 * k + 2])
            for k, figure_name in enumerate(names)
        }
        out.append((times[first_row + each - 1], entries))
    return out


def _factors() -> list[Any]:
    """Return the factor of each figure in every problem: both sides of each, memory alone last."""
    columns = np.ones((len(FIGURES), 2 * len(FIGURES) + 1))
    for i, figure in enumerate(FIGURES):
        columns[i, 2 * i : 2 * i + 2] = exp(LOG_STEP), exp(-LOG_STEP)
        if figure.name != "hbm_bandwidth":
            columns[i, -1] = ENDLESS if figure.kind == RATE else 0.0
    return list(columns)


ENDLESS = 1e4
"""How much faster all else is where memory traffic alone counts; what is left is below 1 %."""


def _memory_s(rows: Rows, layout: Layout, row: int) -> float:
    """Return the time that a device's memory traffic takes in a step, seconds, mean of stages.

    The backward of routed experts counts as twice their forward: the share of the peak that its
    weight gradients reach depends on the ratio of peak and bandwidth, which is not that of the
    part here. Left out: what flash kernels move; what is hidden in the epilogue of fused weight
    gradients counts by `costmodels.layers.compute.accumulated_s`.
    """
    forward, backward = virtual_stage_columns(rows, layout, [row])
    total = float(forward.sum() + backward.sum())
    if rows.layers.experts:
        shape, routed = rows.problem.shape, rows.layers.experts.routed
        shape_row = rows.index[row]
        n_layers = shape.n_expert_layers + shape.mtp_layers * shape.expert_layers[-1]
        total -= n_layers * float(routed.backward_s[shape_row] - 2.0 * routed.forward_s[shape_row])
    optimizer_s = rows.shapes.optimizer_s[rows.table.sharding[row], rows.table.shape[row]]
    return total * layout.n_passes / layout.pp + float(optimizer_s)


@dataclass(frozen=True, slots=True)
class MoreMemory:
    """A faster plan that more memory is known to allow."""

    memory_bytes: float
    """Memory of a device, the margin included, in which it fits."""
    step_s: float


def more_memory(problem: Problem, layout: Layout) -> MoreMemory | None:
    """Return what the layout needs and takes without recomputation; None where it has none.

    It is the first faster plan for more memory that is known without another search: one with
    other degrees may fit in less. None as well where it is not faster.
    """
    if layout.recompute == "none":
        return None
    plain = replace(layout, recompute="none", recompute_layers=0, recompute_modules=())
    rows = join_layouts(problem, [layout, plain])
    step_s, without_s = exact_step_times(rows, [layout, plain])
    if without_s >= step_s:
        return None
    needed = float(peak_bytes(rows)[1]) + problem.pool.memory_margin_bytes
    return MoreMemory(needed, without_s)
