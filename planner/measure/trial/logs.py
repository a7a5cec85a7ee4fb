"""Step time and memory from the logs of a short run.

The lines, by what prints them (formats only; read from the sources named):

    Megatron-LM, Megatron-Bridge   `iteration 7/ 25 | ... elapsed time per iteration (ms): 812.3 |
      ... global batch size: 512 |`, and `[Rank 0] (after 2 iterations) memory (MB) |
      allocated: a | max allocated: b | reserved: c | max reserved: d` in MiB:
      megatron/training/training.py, utils.py; ROCm's fork prints `812.3/815.0`, last and mean,
      BigScience's `elapsed time per iteration (s): 0.8123`
    DeepSpeed   `global_step=7, ... CurrSamplesPerSec=x, MemAllocated=aGB, MaxMemAllocated=bGB` in
      GiB: deepspeed/utils/timer.py; `steps: 7 loss: x iter time (s): y samples/sec: z`:
      runtime/pipe/engine.py; `time (ms) | fwd: a | bwd: b | ... step: c` with
      wall_clock_breakdown: runtime/engine.py; `Max_MA b GB ... Max_CA d GB`: runtime/utils.py
    torchtitan   `step: 7 loss: x grad_norm: y memory: 46.28GiB(58.50%) tps: 3,000 tflops: ...`,
      reserved memory, tokens per second of a device: torchtitan/components/metrics.py
    nanotron   `iteration: 7 / 25 | ... elapsed_time_per_iteration_ms: 1.23K | ...`, later
      `time_per_iteration_ms`, numbers of three digits: src/nanotron/trainer.py, logging/base.py;
      `Peak allocated 200.00MiB. Peak reserved: 300.00MiB`: utils.py

Settings that a framework prints at its start (`global_batch_size ..... 512`, `global batch size
64, ... sequence length 8192`) tell whether the log is of the plan.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from planner.units import GIB

WARM_UP_STEPS = 5
"""First steps that are dropped, where there are enough: compilation, allocator, autotuning."""
SETTLED = 1.15
"""A step this much above the median of those after it still belongs to the warm-up."""
MIN_STEPS = 3
"""Steps after the warm-up below which there is no step time."""
UNSTEADY = 0.15
"""Spread (80 % of the steps, over the median) above which the time is doubted."""
MAX_BYTES = 64_000_000
"""Most that is read of one log, from its end."""

MIB = 2.0**20
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = r"([0-9][0-9,]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?)"
_MEGATRON = re.compile(
    rf"iteration:?\s+(\d+)\s*/\s*\d+.*?elapsed time per iteration \((m?)s\): {_NUMBER}", re.I
)
_NANOTRON = re.compile(
    rf"iteration: (\d+)\s*/\s*\d+ .*?\btime_per_iteration_ms: {_NUMBER}([KMB]?)"
    rf"|iteration: (\d+)\s*/\s*\d+ .*?elapsed_time_per_iteration_ms: {_NUMBER}([KMB]?)"
)
_TORCHTITAN = re.compile(rf"(?<!validate )step:\s*(\d+)\s+loss:.*?tps:\s*{_NUMBER}")
_DEEPSPEED = re.compile(rf"global_step=(\d+).*?CurrSamplesPerSec={_NUMBER}")
_PIPELINE = re.compile(rf"steps: (\d+) .*?iter time \(s\): {_NUMBER}")
_BREAKDOWN = re.compile(
    rf"time \(ms\) \| (?:fwd|forward): {_NUMBER}.*?\| bwd: {_NUMBER}.*?\| step: {_NUMBER}"
)
_OOM = re.compile(
    r"OutOfMemoryError|(?:CUDA|HIP|XPU) out of memory|CUDA error: out of memory"
    r"|cudaErrorMemoryAllocation|NCCL .*out of memory",
    re.I,
)
_PEAKS = (
    ("allocated", re.compile(rf"max allocated: {_NUMBER}"), MIB),
    ("reserved", re.compile(rf"max reserved: {_NUMBER}"), MIB),
    ("allocated", re.compile(rf"MaxMemAllocated={_NUMBER}GB"), GIB),
    ("allocated", re.compile(rf"Max_MA {_NUMBER} GB"), GIB),
    ("reserved", re.compile(rf"Max_CA {_NUMBER} GB"), GIB),
    ("reserved", re.compile(rf"memory:\s*{_NUMBER}GiB"), GIB),
    ("allocated", re.compile(rf"Peak allocated:? {_NUMBER}MiB"), MIB),
    ("reserved", re.compile(rf"Peak reserved:? {_NUMBER}MiB"), MIB),
)
_RANK = re.compile(r"\[rank\s*(\d+)\]", re.I)
_SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9}
_SETTINGS = {
    "global_batch_size": "gbs",
    "train_batch_size": "train_batch_size",
    "micro_batch_size": "mbs",
    "train_micro_batch_size_per_gpu": "mbs",
    "gradient_accumulation_steps": "n_micro",
    "seq_length": "seq_len",
    "sequence_length": "seq_len",
    "seq_len": "seq_len",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "world_size": "n_devices",
    "num_layers": "layers",
    "hidden_size": "hidden",
}
"""Facts of a run by the name under which a framework lists them."""
_OF_DEEPSPEED = "[config.py:"
"""Marks the settings of DeepSpeed, whose world size may be that of data parallelism alone."""
_LISTED = re.compile(rf"\b({'|'.join(_SETTINGS)}) \.{{2,}} (\d+)\b")
_SAID = (
    ("gbs", re.compile(r"global[ _]batch[ _]size:?\s+(\d+)\b(?![.KMB])")),
    ("seq_len", re.compile(r"sequence length (\d+)\b")),
)
WORDS = {
    "gbs": "global batch",
    "seq_len": "sequence length",
    "mbs": "micro-batch",
    "n_micro": "micro-batches",
    "n_devices": "devices",
    "layers": "layers",
    "hidden": "hidden",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What the log of one run says. Seconds and bytes."""

    printed_by: str
    """`megatron`, `deepspeed`, `torchtitan` or `nanotron`; empty where no line is known."""
    steps_s: tuple[float, ...]
    """Time of every logged step in order, warm-up included."""
    n_warm_up: int
    peaks: Mapping[str, float] = field(default_factory=dict)
    """Largest printed peak by kind: allocated, reserved."""
    ranks: frozenset[int] = frozenset()
    """Ranks that printed a peak; 0 for one that does not say which it is."""
    ran_out: bool = False
    facts: Mapping[str, int] = field(default_factory=dict)
    """Settings of the run that the log states, by the names of `WORDS` and the degrees."""
    notes: tuple[str, ...] = ()

    @property
    def settled_s(self) -> tuple[float, ...]:
        """Steps after the warm-up."""
        return self.steps_s[self.n_warm_up :]

    @property
    def step_s(self) -> float | None:
        """Median step after the warm-up; None with fewer than `MIN_STEPS` of them."""
        if self.ran_out or len(self.settled_s) < MIN_STEPS:
            return None
        return float(np.median(self.settled_s))

    @property
    def spread(self) -> float:
        """Width of the middle 80 % of the steps over their median."""
        if len(self.settled_s) < MIN_STEPS:
            return 0.0
        low, middle, high = np.quantile(self.settled_s, (0.1, 0.5, 0.9))
        return float((high - low) / middle)

    @property
    def peak(self) -> tuple[float, str] | None:
        """The printed peak and its kind, what the allocator holds before what tensors take."""
        for kind in ("reserved", "allocated"):
            if kind in self.peaks:
                return self.peaks[kind], kind
        return None


def read_log(text: str, tokens_per_step: float, gbs: int, n_devices: int) -> Reading:
    """Return what a log says of a run of `tokens_per_step` tokens on `n_devices`.

    Frameworks that print tokens or samples per second give the step time by the tokens and
    sequences (`gbs`) of a step, or by the batch that the log itself states. Of several runs in
    one log (a restart counts its steps anew) the last is read; a run out of memory that was
    started again counts by how that went.
    """
    facts: dict[str, int] = {}
    by: dict[str, list[tuple[int, float]]] = {}
    peaks: dict[str, float] = {}
    ranks: set[int] = set()
    ran_out, n_runs = False, 1
    peaks_before: dict[str, float] = {}
    steps_after: set[int] = set()
    last: dict[str, int] = {}
    lines = _ANSI.sub("", text).splitlines()
    for line in lines:
        facts |= _stated(line)
        timed_step = _step(
            line,
            tokens_per_step,
            facts.get("train_batch_size", gbs),
            n_devices,
            last.get("deepspeed", 0),
        )
        if timed_step is not None and 0.0 < timed_step[2] < math.inf:
            name, step, seconds = timed_step
            family = name.split(" ")[0]
            before = last.get(family, 0)
            if step < before - 1:  # ranks print a step or two apart
                by = {one: rows for one, rows in by.items() if one.split(" ")[0] != family}
                peaks, ranks, ran_out, before = {}, set(), False, 0
                n_runs += 1
            last[family] = max(step, before)
            by.setdefault(name, []).append((step, seconds))
            steps_after.add(step)
        for kind, pattern, unit in _PEAKS:
            match = pattern.search(line)
            if match:
                peaks[kind] = max(peaks.get(kind, 0.0), _number(match[1]) * unit)
                rank = _RANK.search(line)
                ranks.add(int(rank[1]) if rank else 0)
        if _OOM.search(line):
            if not ran_out:
                peaks_before, peaks = peaks, {}
            ran_out, steps_after = True, set()
    # Other ranks may still print a step or two; more of them are another attempt's.
    went_on = ran_out and len(steps_after) >= MIN_STEPS
    if ran_out and not went_on:
        peaks = {
            kind: max(d.get(kind, 0.0) for d in (peaks, peaks_before))
            for kind in {**peaks_before, **peaks}
        }
    name = _chosen(by)
    steps = _by_step(by.get(name, []))
    notes = [f"holds {n_runs} runs; the last is read"] if n_runs > 1 else []
    if went_on:
        notes.append("memory ran out at first, and steps follow: taken as a later attempt")
    others = {one.split(" ")[0] for one in by} - {name.split(" ")[0]}
    if others - {"deepspeed"}:  # Megatron-DeepSpeed prints the lines of both
        notes.append(f"also holds lines of {', '.join(sorted(others))}, which are not read")
    n_warm_up = _warm_up(steps)
    settled = len(steps) - n_warm_up
    found_ = Reading(
        name.split(" ")[0],
        steps,
        n_warm_up,
        peaks,
        frozenset(ranks),
        ran_out and not went_on,
        facts,
    )
    if not found_.ran_out and settled < MIN_STEPS:
        notes.append(
            f"only {len(steps)} step(s) are logged, {settled} after the warm-up: cut short, or "
            "not one line a step"
            if steps
            else "holds no step line of Megatron-LM, DeepSpeed, torchtitan or nanotron"
        )
    elif found_.step_s and found_.spread > UNSTEADY:
        notes.append(
            f"8 of 10 steps differ by {found_.spread:.0%}: a busy network or file system, or "
            "uneven data; time more steps"
        )
    return replace(found_, notes=tuple(notes))


_ORDER = (
    "megatron",
    "nanotron",
    "torchtitan",
    "deepspeed pipeline",
    "deepspeed",
    "deepspeed breakdown",
)
"""Kinds of step lines, those that time the whole step before those that add up its parts."""


def _chosen(by: Mapping[str, list[tuple[int, float]]]) -> str:
    """Return the first kind of line that gives a step time, else the most frequent."""
    enough = [name for name in _ORDER if len(by.get(name, ())) >= 2 * MIN_STEPS]
    return enough[0] if enough else max(by, key=lambda one: len(by[one]), default="")


def _stated(line: str) -> dict[str, int]:
    """Return the settings that a line states."""
    entries = {_SETTINGS[name]: int(value) for name, value in _LISTED.findall(line)}
    if _OF_DEEPSPEED in line:
        entries.pop("n_devices", None)
    for fact, pattern in _SAID:
        match = pattern.search(line)
        if match:
            entries[fact] = int(match[1])
    return entries


def _step(
    line: str, tokens_per_step: float, batch: int, n_devices: int, last: int
) -> tuple[str, int, float] | None:
    """Return what printed a step line, the number of the step and its seconds."""
    match = _MEGATRON.search(line)
    if match:
        return "megatron", int(match[1]), _number(match[3]) * (1e-3 if match[2] else 1.0)
    match = _NANOTRON.search(line)
    if match:
        step, value, suffix = (g for g in match.groups() if g is not None)
        return "nanotron", int(step), _number(value) * _SUFFIX[suffix] * 1e-3
    match = _TORCHTITAN.search(line)
    if match and _number(match[2]):
        seconds = tokens_per_step / (_number(match[2]) * n_devices)
        return "torchtitan", int(match[1]), seconds
    match = _DEEPSPEED.search(line)
    if match and _number(match[2]):
        return "deepspeed", int(match[1]), batch / _number(match[2])
    match = _PIPELINE.search(line)
    if match:
        return "deepspeed pipeline", int(match[1]), _number(match[2])
    match = _BREAKDOWN.search(line)
    if match:
        # Such a line has no number; it follows the step line of its step, if there is one.
        return "deepspeed breakdown", last, sum(_number(x) for x in match.groups()) * 1e-3
    return None


def _number(text: str) -> float:
    return float(text.replace(",", "").rstrip("."))


def _by_step(steps: list[tuple[int, float]]) -> tuple[float, ...]:
    """Return the seconds of every step in order, the median where several ranks print one.

    Lines without a number of their own (all of one step) count one by one.
    """
    if len({step for step, _ in steps}) == 1:
        return tuple(seconds for _, seconds in steps)
    groups: dict[int, list[float]] = {}
    for step, seconds in steps:
        groups.setdefault(step, []).append(seconds)
    return tuple(float(np.median(groups[step])) for step in sorted(groups))


def _warm_up(steps: tuple[float, ...]) -> int:
    """Return how many first steps are dropped: at most half of them."""
    maximum = len(steps) // 2
    n = min(WARM_UP_STEPS, len(steps) // 3)
    while n < maximum and steps[n] > SETTLED * float(np.median(steps[n + 1 :])):
        n += 1
    return n
