"""The rows of a sweep as columns, with the axes that were varied and what points are judged by."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.render.report.quantities import Scale, axis_scale, kind_of_axis, scale_for

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

MAX_TEXT = 60
"""Characters of a name that a figure or a sentence shows."""
SAME_WORK_FRAC = 1e-3
"""Tokens of a step that differ by less are the same work."""
HARDWARE_ROOTS = ("pools", "cluster", "fabric")


def shortened_name(text: object, limit: int = MAX_TEXT) -> str:
    """Return text on one line, at most `limit` characters long."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


@dataclass(frozen=True)
class PointAxis:
    """One thing that was varied."""

    path: str
    """As the sweep gave it, such as `pools.0.nodes`."""
    title: str
    """In words, such as `nodes`."""
    column: str
    numeric: bool
    values: tuple[float | str, ...]
    """What it took, numbers ascending in base units, text in the order given."""
    scale: Scale
    fields: tuple[str, ...] = ()
    """Fields that it sets, where they are known and it is not one itself."""

    @property
    def label(self) -> str:
        """Title and unit, for an axis of a figure or the head of a column."""
        return f"{self.title} ({self.scale.unit})" if self.scale.unit else self.title

    def text(self, value: object) -> str:
        """Return one value as it is read."""
        if self.numeric and isinstance(value, int | float):
            return self.scale.text(float(value))
        return "-" if value is None else shortened_name(value)

    def at(self, text: str) -> str:
        """Return a value as a place: `memory 80 GiB`, `64 nodes`."""
        return f"{text} {self.title}" if self.is_size else f"{self.title} {text}"

    @property
    def spans(self) -> str:
        """How many values from where to where."""
        n = len(self.values)
        if n == 1:
            return self.text(self.values[0])
        if not self.numeric:
            shown = ", ".join(self.text(value) for value in self.values[:6])
            return f"{n} values: {shown}{', ...' if n > 6 else ''}"
        return f"{n} values, {self.text(self.values[0])} to {self.text(self.values[-1])}"

    @property
    def is_size(self) -> bool:
        """Whether it changes how many devices there are."""
        return self.path.rsplit(".", 1)[-1] in ("nodes", "n_devices", "devices")

    @property
    def is_money_or_power(self) -> bool:
        """Whether it changes cost or energy and nothing else."""
        last = self.path.rsplit(".", 1)[-1]
        return any(word in last for word in ("price", "power", "usd", "cost"))

    @property
    def is_price_worthy(self) -> bool:
        """Whether more of it is a better part, which may cost more: rates and sizes, no times."""
        last = self.path.rsplit(".", 1)[-1]
        return (
            self.is_hardware
            and not self.is_size
            and not any(
                word in last
                for word in ("latency", "overhead", "oversubscription", "mtbf", "time")
            )
        )

    @property
    def is_hardware(self) -> bool:
        """Whether it is a figure of the machines."""
        set_ = self.fields or (self.path,)
        return all(path.split(".", 1)[0] in HARDWARE_ROOTS for path in set_)


@dataclass(frozen=True)
class Measure:
    """What points are compared by; less is better."""

    key: str
    title: str
    values: Array
    """By row, base units; NaN where there is none."""
    scale: Scale
    fields: tuple[str, ...] = ()
    """Fields that it sets, where they are known and it is not one itself."""

    @property
    def label(self) -> str:
        """Title and unit."""
        unit = self.scale.unit
        return f"{self.title} ({unit})" if unit and unit != self.title.lower() else self.title


class SweepPoints:
    """Rows of a sweep by column, and what was varied."""

    def __init__(self, columns: Mapping[str, Sequence[Any]], header: Mapping[str, Any]) -> None:
        """Take the columns (all of one length, None where there is no value) and the header."""
        self.columns = {name: list(values) for name, values in columns.items()}
        self._numbers: dict[str, Array] = {}
        self._texts: dict[str, list[str]] = {}
        self.header = dict(header)
        self.n = max((len(values) for values in self.columns.values()), default=0)
        self._missing = [None] * self.n
        self.axes = _axes(self.columns, self.header)

    def only(self, rows: Sequence[int]) -> "SweepPoints":
        """Return some of the rows, with the same header."""
        columns = {name: [column[r] for r in rows] for name, column in self.columns.items()}
        return SweepPoints(columns, self.header)

    def values(self, name: str) -> list[Any]:
        """Return a column as it is; None for each row where there is no such column."""
        return self.columns.get(name) or self._missing

    def numbers(self, name: str) -> Array:
        """Return a column as numbers, NaN where it has none."""
        if name not in self._numbers:
            results = [_number(value) for value in self.values(name)]
            self._numbers[name] = np.array(results, dtype=np.float64)
        return self._numbers[name]

    def texts(self, name: str) -> list[str]:
        """Return a column as text, empty where it has none."""
        if name not in self._texts:
            results = ["" if value is None else str(value) for value in self.values(name)]
            self._texts[name] = results
        return self._texts[name]

    def scale(self, kind: str, name: str) -> Scale:
        """Return the scale in which a column reads well."""
        return scale_for(kind, self.numbers(name).tolist())

    @cached_property
    def solved(self) -> Mask:
        """By row: whether there is a plan with a step time."""
        step = self.numbers("best.step_time_s")
        return np.isfinite(step) & (step > 0)

    @cached_property
    def statuses(self) -> list[str]:
        """By row: its status; told from the step time where not given."""
        value = self.texts("status")
        return [
            status or ("ok" if solved else "failed")
            for status, solved in zip(value, self.solved.tolist(), strict=True)
        ]

    @cached_property
    def tokens_per_step(self) -> Array:
        """By row."""
        return self.numbers("best.tokens_per_s") * self.numbers("best.step_time_s")

    @cached_property
    def devices(self) -> Array:
        """By row: devices that the best plan uses, or that were given."""
        used = self.numbers("best.devices")
        return np.where(np.isfinite(used), used, self.numbers("n_devices"))

    @cached_property
    def same_work(self) -> bool:
        """Whether a step is the same number of tokens everywhere."""
        return _all_same(self.tokens_per_step[self.solved])

    @cached_property
    def time(self) -> Measure:
        """Step time, or the time for a million tokens where steps differ in tokens."""
        step = np.where(self.solved, self.numbers("best.step_time_s"), np.nan)
        rate = self.numbers("best.tokens_per_s")
        if self.same_work or not np.isfinite(rate).any():
            return Measure("step_time", "Step time", step, scale_for("seconds", _finite(step)))
        per_million = np.where(self.solved & (rate > 0), 1e6 / np.where(rate > 0, rate, 1), np.nan)
        title = "Time per million tokens"
        return Measure(
            "time_per_million_tokens",
            title,
            per_million,
            scale_for("seconds", _finite(per_million)),
        )

    @cached_property
    def cost(self) -> Measure | None:
        """Cost of the run, of a million tokens where runs have no length; None without prices."""
        return self._run_or_per_token(
            "cost",
            "usd",
            ("best.cost_usd", "Cost of the run"),
            ("best.usd_per_million_tokens", "Cost per million tokens"),
            1.0,
        )

    @cached_property
    def energy(self) -> Measure | None:
        """Energy of the run, or of a million tokens; None without power figures."""
        return self._run_or_per_token(
            "energy",
            "joules",
            ("best.energy_j", "Energy of the run"),
            ("best.energy_j_per_token", "Energy per million tokens"),
            1e6,
        )

    def _run_or_per_token(
        self, key: str, kind: str, run: tuple[str, str], token: tuple[str, str], factor: float
    ) -> Measure | None:
        for (name, title), times in ((run, 1.0), (token, factor)):
            values = np.where(self.solved, self.numbers(name) * times, np.nan)
            if np.isfinite(values[self.solved]).any() and np.nanmax(values) > 0:
                return Measure(key, title, values, scale_for(kind, _finite(values)))
        return None

    @cached_property
    def size(self) -> Measure:
        """Devices of the best plan."""
        values = np.where(self.solved, self.devices, np.nan)
        return Measure("devices", "Devices", values, Scale(unit="devices"))

    @cached_property
    def aim(self) -> Measure:
        """What the search was to make small, as far as points are judged by it; else the time."""
        named = [self.header.get(part) for part in ("search", "options")]
        goals = [str(part.get("objective") or "") for part in named if isinstance(part, Mapping)]
        by_name = {"cost": self.cost, "energy": self.energy, "devices": self.size}
        return next((by_name[goal] for goal in goals if by_name.get(goal)), None) or self.time

    @cached_property
    def job_axes(self) -> tuple[PointAxis, ...]:
        """Axes along which the model or the sequence changes, so that times do not compare."""
        results = []
        model, n_params = self.texts("model"), self.values("n_params")
        job_of_row = list(zip(model, n_params, strict=True))
        for axis in self.axes:
            if axis.path.split(".")[-1] == "seq_len" or axis.path.split(".")[0] == "model":
                results.append(axis)
                continue
            if axis.is_hardware:
                continue
            jobs: dict[object, set[object]] = {}
            for value, job in zip(self.values(axis.column), job_of_row, strict=True):
                jobs.setdefault(value, set()).add(job)
            if len({job for group in jobs.values() for job in group}) > 1 and all(
                len(group) == 1 for group in jobs.values()
            ):
                results.append(axis)
        return tuple(results)

    @cached_property
    def jobs(self) -> list[tuple[Any, ...]]:
        """By row: its values of the job axes, so that rows with equal ones compare."""
        columns = [self.values(axis.column) for axis in self.job_axes]
        return list(zip(*columns, strict=True)) if columns else [()] * self.n

    def job_text(self, job: tuple[Any, ...]) -> str:
        """Return the values of the job axes in words."""
        return ", ".join(
            f"{axis.title} {axis.text(value)}"
            for axis, value in zip(self.job_axes, job, strict=True)
        )

    def best(self, measure: Measure, rows: Iterable[int] | None = None) -> int | None:
        """Return the row with the least of a measure; of equal ones the faster, then the first."""
        chosen = range(self.n) if rows is None else rows
        values, time = measure.values, self.time.values
        results = [row for row in chosen if math.isfinite(values[row])]
        return min(results, key=lambda row: (values[row], time[row], row), default=None)

    def axis(self, path: str) -> PointAxis | None:
        """Return the axis of a path, told without its first words where that is unique."""
        for axis in self.axes:
            if path in (axis.path, axis.column, axis.title):
                return axis
        ends = [axis for axis in self.axes if axis.path.endswith(f".{path}")]
        return ends[0] if len(ends) == 1 else None

    def number(self, row: int) -> int:
        """Return the place of a row's point in the design: its index."""
        index = self.values("index")[row]
        return row if index is None else int(index)

    def where(self, row: int, without: Sequence[PointAxis] = ()) -> str:
        """Return what was varied and its values in one row: `nodes 64, memory 80 GiB`."""
        return ", ".join(
            axis.at(axis.text(self.values(axis.column)[row]))
            for axis in self.axes
            if axis not in without
        )

    def machines(self, row: int) -> str:
        """Return devices and accelerator of a row: `512 x h100-sxm-80gb`."""
        devices = self.devices[row]
        count = f"{int(devices):,}" if math.isfinite(devices) else "?"
        name = self.texts("accelerator")[row]
        return f"{count} x {shortened_name(name)}" if name else f"{count} devices"


def _axes(
    columns: Mapping[str, Sequence[Any]], header: Mapping[str, Any]
) -> tuple[PointAxis, ...]:
    """Return the varied axes: those of the header; without one, columns `in.*` of several values.

    Other columns `in.*` beside those of the header are derived from them.
    """
    entries = [entry for entry in header.get("axes") or () if isinstance(entry, Mapping)]
    described = {str(entry["path"]): entry for entry in entries if entry.get("path")}
    paths = [path for path in described if f"in.{path}" in columns]
    if not paths:
        paths = [name.removeprefix("in.") for name in columns if name.startswith("in.")]
    results, titles = [], _titles(paths)
    for path in paths:
        column = columns[f"in.{path}"]
        seen = list(dict.fromkeys(value for value in column if value is not None))
        if len(seen) < 2 and path not in described:
            continue
        entry = described.get(path, {})
        numeric = bool(seen) and all(math.isfinite(_number(value)) for value in seen)
        unit = None if entry.get("unit") is None else str(entry["unit"])
        kind = kind_of_axis(path, unit) if numeric else "text"
        if numeric:
            values: tuple[Any, ...] = tuple(sorted(float(value) for value in seen))
        else:
            listed = entry.get("numbers") or entry.get("values") or ()
            order = {str(value): place for place, value in enumerate(listed)}
            values = tuple(sorted((str(v) for v in seen), key=lambda v: order.get(v, len(order))))
        scale = axis_scale(kind, values) if numeric else Scale()
        title = shortened_name(entry.get("label") or titles[path], 48)
        fields = tuple(str(field) for field in entry.get("fields") or ())
        results.append(PointAxis(path, title, f"in.{path}", numeric, values, scale, fields))
    return tuple(results)


def _titles(paths: Sequence[str]) -> dict[str, str]:
    """Return paths in words: without the pool where one pool is varied, and without training."""
    pools = {path.split(".")[1] for path in paths if path.startswith("pools.") and "." in path}
    titles = {}
    for path in paths:
        keys = path.split(".")
        if keys[0] == "pools" and len(keys) > 2:
            keys = keys[2:] if len(pools) == 1 else [f"pool {keys[1]}", *keys[2:]]
        elif keys[0] in ("training", "together", "fabric", "model") and len(keys) > 1:
            keys = keys[1:]
        titles[path] = " ".join(keys).replace("_", " ")
    if len(set(titles.values())) < len(titles):
        return {path: path for path in paths}
    return titles


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value)


def _finite(values: Array) -> list[float]:
    return [float(value) for value in values[np.isfinite(values)]]


def _all_same(values: Array) -> bool:
    values = values[np.isfinite(values)]
    return not len(values) or float(np.ptp(values)) <= SAME_WORK_FRAC * float(values.max())
