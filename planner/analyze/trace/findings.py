"""What a measured step suggests, in words: the term that is off most, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from planner.analyze.kineto.communicators import AMBIGUOUS, OTHER
from planner.analyze.kineto.kernels import ELEMENTWISE, EXPERTS, GEMM, HEAD, UNKNOWN
from planner.analyze.kineto.measurement import HOST, IDLE

if TYPE_CHECKING:
    from planner.analyze.trace.comparison import TermRow, TraceComparison, TrafficRow

CLEAR = 1.2
"""Ratios beyond this, or below its inverse, are worth a word."""
NCCL_TESTS = {
    "all-reduce": "all_reduce_perf",
    "all-gather": "all_gather_perf",
    "reduce-scatter": "reduce_scatter_perf",
    "all-to-all": "alltoall_perf",
    "point-to-point": "sendrecv_perf",
    "broadcast": "broadcast_perf",
}
"""Programs of NVIDIA/nccl-tests by collective."""


def findings(comparison: TraceComparison) -> list[str]:
    """Return sentences: the term that is off most and what that suggests, then the next ones.

    Terms that are off by 2 % of the measured step or more are named, at most three.
    """
    worst = comparison.worst
    if worst is None:
        return ["every term is as predicted, to a microsecond"]
    least = 0.02 * comparison.measured_step_s
    rows = sorted(comparison.rows, key=lambda r: (-abs(r.difference_s), r.name))
    named = [row for row in rows if abs(row.difference_s) >= least][:3] or [worst]
    out = []
    for i, row in enumerate(named):
        head = "most off" if i == 0 else "then"
        hint = suggestion(comparison, row)
        out.append(f"{head}: {_off(row)}" + (f"; {hint}" if hint else ""))
    return out


def _off(row: TermRow) -> str:
    times = "not predicted" if row.factor is None else f"{_times(row.factor)} the prediction"
    return f"{row.name}, {row.difference_s * 1e3:+,.2f} ms, {times}"


def _times(factor: float) -> str:
    return f"{factor:.2f}x" if factor < 100 else f"{factor:,.0f}x"


def suggestion(comparison: TraceComparison, row: TermRow) -> str:
    """Return what a difference suggests; empty where nothing can be said."""
    if comparison.drawn:
        return "the file is not the one that planner trace writes for this plan today"
    name = row.name.split("+")[0]
    if name in ("tp", "cp", "ep", "dp", "pipeline"):
        return _communication(comparison, row, "pp" if name == "pipeline" else name)
    explain_row = _WORDS.get(name)
    return explain_row(comparison, row) if explain_row else ""


def _communication(comparison: TraceComparison, row: TermRow, axis: str) -> str:
    """Return which collective is off, and whether by count, size, speed or overlap."""
    own = [x for x in comparison.traffic if x.axis == axis]
    if axis == "pp":
        pp = comparison.plan.layout.pp
        text = (
            "a receive runs from its launch until the message is there: it holds the idle"
            " pipeline and every delay of another stage"
        )
        if pp == 1:
            return "the plan has no pipeline"
        if len(comparison.measured) == 1:
            return text + "; compare the compute of all stages (one trace a stage)"
        slow = comparison.slowest
        predicted, measured = comparison.compute_s(slow)
        name = comparison.measured[slow].path
        return (
            f"{text}; the stage that computes longest ({name}) takes {measured * 1e3:,.2f} ms"
            f" against {predicted * 1e3:,.2f} predicted"
        )
    if not own or not any(x.measured[0] for x in own):
        return f"the trace has no collective of {axis}: is it of this plan?"
    worst = max(own, key=lambda x: (abs(x.measured[2] - x.predicted[2]), x.collective))
    collective = _collective(axis, worst)
    wire = [sum(getattr(x, side)[2] for x in own) for side in ("predicted", "measured")]
    off = row.difference_s
    # Where the wire time is right, or off the other way, it is what hides it.
    if abs(wire[1] - wire[0]) < 0.5 * abs(off) or (wire[1] - wire[0]) * off < 0:
        hidden = [
            1.0 - min(1.0, part / total) if total else 0.0
            for part, total in ((row.predicted_s, wire[0]), (row.measured_s, wire[1]))
        ]
        collective = (
            f"on the wire {wire[1] * 1e3:,.2f} ms against {wire[0] * 1e3:,.2f} predicted, but"
            f" {hidden[1]:.0%} of it runs beside compute against {hidden[0]:.0%}: look at the"
            " overlap settings of the framework, and at ranks that arrive late"
        )
    return collective


def _collective(axis: str, one: TrafficRow) -> str:
    (calls, size, time_s), (n, message, seconds) = one.predicted, one.measured
    if not calls:
        return f"{n:,.0f} {one.collective}s of {axis} that the plan does not have"
    if not n:
        return f"the trace has none of the {calls:,.0f} {one.collective}s of {axis}"
    each, predicted = seconds / n, time_s / calls
    text = f"{one.collective}s of {axis} take {_times(each / predicted)} the prediction"
    text += f": {each * 1e6:,.0f} us each"
    if message:
        text += f" of {message / 1e6:,.2f} MB"
    text += f" against {predicted * 1e6:,.0f} us of {size / 1e6:,.2f} MB"
    if one.measured_bytes_per_s:
        text += (
            f"; a rank sends {one.measured_bytes_per_s / 1e9:,.1f} GB/s, predicted"
            f" {one.predicted_bytes_per_s / 1e9:,.1f}"
        )
    if not 1 / CLEAR <= n / calls <= CLEAR:
        return f"{text}; {n:,.0f} calls against {calls:,.0f}: other settings than the plan's?"
    if message and not 1 / CLEAR <= message / size <= CLEAR:
        return f"{text}; messages of another size: other buckets or precision than the plan's?"
    if one.least_each_s < each / CLEAR:
        text += (
            f"; {one.least_each_s * 1e6:,.0f} us on the rank that waits least: the others wait"
            " for it"
        )
    elif each / predicted > CLEAR:
        test = NCCL_TESTS.get(one.collective, "the tests")
        text += (
            f"; run {test} of nccl-tests in these groups: slower there too, it is the links, and"
        )
        text += " planner calibrate --nccl-tests LOG fits them"
        text += "; as predicted there, ranks arrive late"
    return text


def _gemm(comparison: TraceComparison, row: TermRow) -> str:
    share = comparison.problem.pool.accelerator.efficiency.gemm_frac
    if row.factor is None or row.measured_s <= 0.0:
        return ""
    fits = share / row.factor
    message = (
        f"a sustained share of {fits:.3f} of the peak would give that, {share:.3f} is assumed"
    )
    if fits > 1.0:
        return "less is multiplied than the plan says: is the model the same?"
    return f"{message}; look at clocks, power limits and the shapes of the products"


def _attention(comparison: TraceComparison, row: TermRow) -> str:
    if row.measured_s <= 0.0:
        return "no attention kernel was found: unfused attention counts as products and softmax"
    return "look at which attention kernel runs"


def _elementwise(comparison: TraceComparison, row: TermRow) -> str:
    if row.difference_s > 0:
        return "operators that the plan takes as fused may run one by one (--stack says which)"
    return "more is fused than the software profile says (--stack)"


def _host(comparison: TraceComparison, row: TermRow) -> str:
    if row.difference_s > 0:
        return (
            "the device waits for the host: larger micro-batches, CUDA graphs or a compiled model"
            " help, and data loading off the critical path"
        )
    return "the host keeps up better than assumed"


def _unknown(comparison: TraceComparison, row: TermRow) -> str:
    names = [name[:60] for name in comparison.unknown_s][:2]
    return f"kernels that no pattern knows: {', '.join(names)}"


def _ambiguous(comparison: TraceComparison, row: TermRow) -> str:
    return "the listed communicators serve one of several axes; name the groups (group_desc)"


_WORDS: dict[str, Callable[[TraceComparison, TermRow], str]] = {
    GEMM: _gemm,
    EXPERTS: lambda found, row: "compare the load of the experts and the grouped products",
    HEAD: lambda found, row: "look at whether the loss is fused and split over tp",
    "attention": _attention,
    ELEMENTWISE: _elementwise,
    "optimizer": lambda found, row: "look at whether it is fused, and what ZeRO shards",
    "copies": lambda found, row: "copies from and to the host hold the device up",
    HOST: _host,
    IDLE: lambda found, row: "work was queued and waited for another stream or a peer",
    OTHER: lambda found, row: "norms of gradients, barriers and logging are not in the plan",
    AMBIGUOUS: _ambiguous,
    UNKNOWN: _unknown,
}
"""What a difference suggests, by row."""
