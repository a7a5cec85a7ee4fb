"""What a trace measured: mean step, its parts, the traffic of each communicator."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.analyze.kineto.communicators import OTHER, Assigned, PlanGroups, assign
from planner.analyze.kineto.intervals import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    Work,
    occupancy,
    waited_for_host,
)
from planner.analyze.kineto.kernels import COMMUNICATION as COMMUNICATION_KERNEL
from planner.analyze.kineto.kernels import (
    COPIES,
    ELEMENTWISE,
    EXPERTS,
    GEMM,
    HEAD,
    ROUTING,
    UNKNOWN,
    collective_of,
    kind_of_copy,
    kind_of_kernel,
)
from planner.analyze.kineto.reader import CollectiveCall, GpuRow, KinetoTrace, ProfiledStep
from planner.errors import UsageError

HEAD_GEMM = "head gemm"
"""Products of the output head, where recorded shapes tell them from the others."""
HOST, IDLE = "host", "idle"
NO_CALL = CollectiveCall()


@dataclass(frozen=True, slots=True)
class MeasuredTraffic:
    """One kind of collective on one axis, means per step."""

    axis: str
    collective: str
    n_calls: float
    n_sized: float
    """Calls of which the trace says the size."""
    sized_bytes: float
    """Messages of those, summed."""
    sized_s: float
    """Time of those."""
    time_s: float
    """Of all calls, whether hidden or not."""

    @property
    def message_bytes(self) -> float:
        """Mean message of a call; 0 where no size is known."""
        return self.sized_bytes / self.n_sized if self.n_sized else 0.0


@dataclass(frozen=True, slots=True)
class MeasuredTrace:
    """One rank's trace in the words of a plan; seconds, means over the steps."""

    path: str
    rank: int | None
    steps: tuple[int, ...]
    step_times_s: tuple[float, ...]
    parts_s: Mapping[str, float]
    """What has the device: kinds of kernels, axes (where nothing hides them), `host` and `idle`;
    they sum to the mean step."""
    traffic: tuple[MeasuredTraffic, ...]
    unknown_s: Mapping[str, float]
    """Kernels that no pattern knows, by name, the longest first."""
    communicators: tuple[tuple[str, Assigned], ...]
    """Each group of the trace in words, and its axis."""
    notes: tuple[str, ...]

    @property
    def step_s(self) -> float:
        """Mean step."""
        return sum(self.step_times_s) / len(self.step_times_s)


def parse_steps(text: str) -> tuple[int, int] | None:
    """Return first and last number of `--steps A-B` or `--steps A`; None for an empty text."""
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,12})(?:-(\d{1,12}))?", text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if first > last:
        raise UsageError(f"--steps: {text!r} is not a range of steps", "--steps 3-5, or --steps 4")
    return first, last


def chosen_windows(
    path: str, steps: Sequence[ProfiledStep], wanted: tuple[int, int] | None
) -> tuple[ProfiledStep, ...]:
    """Return the steps to average, each up to the start of the next one.

    All but the first, which the profiler's own start slows down; with one step, that one. The
    last has no next one and ends with its own work. Raises `UsageError` without any.
    """
    if not steps:
        raise UsageError(
            f"{path} marks no steps: it has no ProfilerStep#N rows",
            "call prof.step() after each step, with schedule=torch.profiler.schedule(wait=1,"
            " warmup=1, active=3)",
        )
    full_steps = []
    for i, step in enumerate(steps):
        following = steps[i + 1] if i + 1 < len(steps) else None
        follows = following is not None and following.number == step.number + 1
        end = following.start_ns if following is not None and follows else step.end_ns
        full_steps.append(ProfiledStep(step.number, step.start_ns, end))
    if wanted is None:
        chosen = full_steps[1:] if len(full_steps) > 1 else full_steps
    else:
        chosen = [step for step in full_steps if wanted[0] <= step.number <= wanted[1]]
    if not chosen or any(step.end_ns <= step.start_ns for step in chosen):
        recorded = f"{full_steps[0].number} to {full_steps[-1].number}"
        problem = "is not in" if not chosen else "has a step without length in"
        raise UsageError(
            f"--steps {wanted[0]}-{wanted[1]} {problem} {path}"
            if wanted
            else f"{path} has a step without length",
            f"its steps are {recorded}",
        )
    return tuple(chosen)


def measure_trace(
    trace: KinetoTrace,
    plan: PlanGroups,
    *,
    with_experts: bool,
    wanted: tuple[int, int] | None = None,
) -> MeasuredTrace:
    """Return what a trace measured over the chosen steps.

    Of a dense model (`with_experts` false) grouped products are products and permutations are
    elementwise.
    """
    windows = chosen_windows(trace.path, trace.steps, wanted)
    axes = _axes(trace.rows, plan)
    kinds = [_kind(row, axes, trace.hints, with_experts) for row in trace.rows]
    launched = _launched(trace)
    parts: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for window in windows:
        begin, end = window.start_ns, window.end_ns
        inside = [
            (row, kind)
            for row, kind in zip(trace.rows, kinds, strict=True)
            if row.end_ns > begin and row.start_ns < end
        ]
        work = [Work(r.start_ns, r.end_ns, layer, label) for r, (layer, label) in inside]
        result = occupancy(work, begin, end)
        parts.update(result.parts_ns)
        idle = sum(b - a for a, b in result.gaps_ns)
        host = waited_for_host(result.gaps_ns, launched, end) if trace.launched_ns else 0
        parts.update({HOST: host, IDLE: idle - host})
        for row, (_, label) in inside:
            if label == UNKNOWN:
                unknown[row.name] += min(row.end_ns, end) - max(row.start_ns, begin)
    scale = 1e-9 / len(windows)
    return MeasuredTrace(
        path=trace.path,
        rank=trace.rank,
        steps=tuple(window.number for window in windows),
        step_times_s=tuple((w.end_ns - w.start_ns) * 1e-9 for w in windows),
        parts_s={name: value * scale for name, value in sorted(parts.items())},
        traffic=_traffic(trace.rows, axes, windows),
        unknown_s={name: value * scale for name, value in unknown.most_common()},
        communicators=_communicators(trace.rows, axes),
        notes=_notes(trace, windows),
    )


def _notes(trace: KinetoTrace, windows: Sequence[ProfiledStep]) -> tuple[str, ...]:
    notes = []
    if trace.other_devices:
        left = ", ".join(map(str, trace.other_devices))
        notes.append(f"rows of device {left} are left out: a trace is read as one rank")
    if not trace.launched_ns:
        notes.append(
            "no launches were recorded (ProfilerActivity.CPU): gaps cannot be told apart, all"
            " count as idle"
        )
    if len(windows) == 1 and len(trace.steps) == 1:
        notes.append(
            "one step only: how far steps differ, and how slow the first is, is not known"
        )
    return tuple(notes)


def _launched(trace: KinetoTrace) -> dict[int, int]:
    """Return by start of some work when the first launch of what starts there had returned."""
    out: dict[int, int] = {}
    for row in trace.rows:
        launched_ns = trace.launched_ns.get(row.correlation)
        if launched_ns is not None:
            out[row.start_ns] = min(launched_ns, out.get(row.start_ns, launched_ns))
    return out


def _is_communication(row: GpuRow) -> bool:
    return row.category == "kernel" and kind_of_kernel(row.name) == COMMUNICATION_KERNEL


def _axes(rows: Iterable[GpuRow], plan: PlanGroups) -> dict[tuple[object, ...], Assigned]:
    """Return the axis of each kind of communication row, by `_group_key`.

    Rows that say nothing of their group belong to what else runs on their stream: PyTorch gives
    every process group a stream of its own (ProcessGroupNCCL.cpp, `ncclStreams_`). On a stream
    of their own they belong to none of the axes that run on others.
    """
    out: dict[tuple[object, ...], Assigned] = {}
    mute: dict[tuple[object, ...], GpuRow] = {}
    of_stream: dict[int, set[str]] = {}
    for row in rows:
        if not _is_communication(row):
            continue
        key = _group_key(row)
        if _says_nothing(row.call):
            mute.setdefault(key, row)
            continue
        if key not in out:
            out[key] = assign(row.call or NO_CALL, row.name, plan)
        of_stream.setdefault(row.stream, set()).add(out[key].axis)
    elsewhere = set().union(*of_stream.values()) if of_stream else set()
    for key, row in mute.items():
        beside = of_stream.get(row.stream, set())
        if len(beside) == 1:
            out[key] = Assigned(next(iter(beside)), "stream")
            continue
        result = assign(NO_CALL, row.name, plan)
        left = [axis for axis in result.candidates if axis not in elsewhere]
        out[key] = Assigned(left[0], "elimination") if len(left) == 1 else result
    return out


def _says_nothing(call: CollectiveCall | None) -> bool:
    return call is None or not (call.group_size or call.description or call.ranks)


def _group_key(row: GpuRow) -> tuple[object, ...]:
    """Return what tells the communicator of a row: its call, or its stream and kernel."""
    if _says_nothing(row.call):
        return ("stream", row.stream, collective_of(row.name))
    return ("call", row.call, collective_of(row.name))


def _kind(
    row: GpuRow,
    axes: Mapping[tuple[object, ...], Assigned],
    hints: Mapping[int, str],
    with_experts: bool,
) -> tuple[int, str]:
    """Return layer and label of a row."""
    if row.category != "kernel":
        kind = ELEMENTWISE if row.category == "gpu_memset" else kind_of_copy(row.name)
        return (COPY if kind == COPIES else COMPUTE), kind
    kind = kind_of_kernel(row.name)
    if kind == COMMUNICATION_KERNEL:
        return COMMUNICATION, axes[_group_key(row)].axis
    hint = hints.get(row.operator, "")
    if hint == "experts" and kind == GEMM:
        kind = EXPERTS
    if not with_experts:
        kind = {EXPERTS: GEMM, ROUTING: ELEMENTWISE}.get(kind, kind)
    if hint == HEAD and kind == GEMM:
        kind = HEAD_GEMM
    return COMPUTE, kind


def _traffic(
    rows: Iterable[GpuRow],
    axes: Mapping[tuple[object, ...], Assigned],
    windows: Sequence[ProfiledStep],
) -> tuple[MeasuredTraffic, ...]:
    """Return calls, bytes and time of the calls that start in the windows, means per step.

    The receiving half of a point-to-point message has time, but is no call of its own: a plan
    counts what a rank sends.
    """
    sums: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if not _is_communication(row):
            continue
        if not any(w.start_ns <= row.start_ns < w.end_ns for w in windows):
            continue
        named = row.call.collective if row.call else ""
        key = axes[_group_key(row)].axis, collective_of(row.name, named)
        total = sums.setdefault(key, [0.0] * 5)
        seconds = (row.end_ns - row.start_ns) * 1e-9
        received = "recv" in named.lower() and "send" not in named.lower()
        n_bytes = 0 if row.call is None or received else row.call.n_bytes
        sized = n_bytes > 0
        for i, value in enumerate((not received, sized, n_bytes, seconds * sized, seconds)):
            total[i] += value
    n = len(windows)
    return tuple(
        MeasuredTraffic(axis, name, *(value / n for value in total))
        for (axis, name), total in sorted(sums.items())
    )


def _communicators(
    rows: Iterable[GpuRow], axes: Mapping[tuple[object, ...], Assigned]
) -> tuple[tuple[str, Assigned], ...]:
    """Return the groups of a trace in words, each once for each axis that it was given."""
    out: dict[tuple[str, str, str], tuple[str, Assigned]] = {}
    for row in rows:
        if not _is_communication(row):
            continue
        assigned = axes[_group_key(row)]
        if _says_nothing(row.call) or row.call is None:
            text = f"{collective_of(row.name)} of stream {row.stream}, which names no group"
        else:
            call = row.call
            name = call.description or f"group {call.group}"
            text = f"{name} of {call.group_size} ranks" if call.group_size else name
        out.setdefault((text, assigned.axis, assigned.by), (text, assigned))
    return tuple(measurement for _, measurement in sorted(out.items()))


def size_conflicts(rows: Iterable[GpuRow], plan: PlanGroups) -> tuple[str, ...]:
    """Return what shows that a trace is of another layout: an axis with groups of other sizes."""
    out: dict[str, None] = {}
    for call in dict.fromkeys(row.call for row in rows if row.call and _is_communication(row)):
        assigned = assign(call, "", plan)
        axis, size = assigned.axis, call.group_size
        if assigned.by != "description" or axis == OTHER or size < 2:
            continue
        sizes = plan.sizes.get(axis, frozenset())
        if axis == "dp" or size in sizes:
            continue
        planned = " or ".join(map(str, sorted(sizes))) or "1"
        text = f"{axis} has {size} ranks in the trace ({call.description}), {planned} in the plan"
        out[text] = None
    return tuple(out)
