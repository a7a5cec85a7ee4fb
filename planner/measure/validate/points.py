"""Measured runs as typed rows: one `MeasuredPoint` per line of a CSV file."""

import csv
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.specs.yaml.document import close_names
from planner.units import GIB, shown_value

GB = 1e9
"""Bytes in a GB."""
REQUIRED = ("id", "model", "hardware", "n_gpus")
"""Columns that every file must have; another column that is absent counts as empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDegrees:
    """Degrees of a measured run, None where the source does not say."""

    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    vpp: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSwitches(MeasuredDegrees):
    """Degrees and switches of a measured run, see `COLUMNS.md` beside the runs."""

    release: str = ""
    """Release of the framework or container, as printed."""
    dispatcher: str = ""
    cuda_graph: str = ""
    """What is captured: `none`, `layer`, `full_iteration`, or modules joined by `+`."""
    tp_overlap: str = ""
    stage_layers: str = ""
    """Layers of every virtual stage in model order, or a layout string of Megatron-LM."""
    offload: str = ""
    optimizer: str = ""
    peft: str = ""
    seq_packing: str = ""
    switches_from: str = ""
    ep_overlap: bool | None = None
    delay_wgrad: bool | None = None
    segment: int | None = None
    """Devices of one scale-up domain that the launcher asks for as a block."""
    power_w: float | None = None
    """Power limit of one device, W."""
    fp8_attention: bool | None = None
    fp8_param_gather: bool | None = None


DEGREES = tuple(field.name for field in fields(MeasuredDegrees))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint(MeasuredSwitches):
    """One measured run. None or an empty text means that the source does not say."""

    id: str
    """`line-12` where the row names none."""
    model: str
    hardware: str
    n_gpus: int
    """0 where the source does not say."""
    line: int
    """Line of the file, from 1."""
    cells: Mapping[str, str]
    """The row as written, unknown columns included."""
    seq_len: int | None = None
    gbs: int | None = None
    """Sequences per step over all devices."""
    mbs: int | None = None
    """Sequences per micro-batch and data-parallel rank."""
    zero: int | None = None
    sp: bool | None = None
    oom: bool | None = None
    step_time_s: float | None = None
    tok_s_gpu: float | None = None
    """Tokens per second and device."""
    tflops_gpu: float | None = None
    mfu: float | None = None
    peak_mem_gb: float | None = None
    """In the unit that `mem_unit` names."""
    schedule: str = ""
    hsdp: str = ""
    recompute: str = ""
    precision: str = ""
    attention: str = ""
    overlap: str = ""
    framework: str = ""
    stack: str = ""
    norm_kernel: str = ""
    fp8_recipe: str = ""
    moe_routing: str = ""
    mem_unit: str = ""
    notes: str = ""
    compile: bool = False
    packed: bool = False
    lora: bool = False

    @property
    def source(self) -> str:
        """Family of the run: the id up to its first hyphen."""
        return self.id.split("-", 1)[0]

    @property
    def step_s(self) -> float | None:
        """Measured step time, seconds: printed, else gbs seq_len / (tok_s_gpu n_gpus)."""
        if self.oom:
            return None
        if self.step_time_s:
            return self.step_time_s
        if self.tok_s_gpu and self.gbs and self.seq_len and self.n_gpus:
            return self.gbs * self.seq_len / (self.tok_s_gpu * self.n_gpus)
        return None

    @property
    def peak_bytes(self) -> float | None:
        """Measured peak memory, bytes; None for a run that ran out of memory."""
        if self.peak_mem_gb is None or self.oom:
            return None
        return self.peak_mem_gb * (GIB if "gib" in self.mem_unit.lower() else GB)

    @property
    def only_rate(self) -> bool:
        """The source prints a FLOP rate and no time."""
        return self.step_s is None and (self.tflops_gpu is not None or self.mfu is not None)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number) or number < 0 or "_" in text:
        raise ValueError(text)
    return number


def _positive(text: str) -> float:
    number = _number(text)
    if number == 0:
        raise ValueError(text)
    return number


LARGEST_COUNT = 1_000_000_000
"""Above any number of devices, sequences or tokens of a sequence; the tables of plans hold it."""


def _count(text: str) -> int:
    number = _positive(text)
    if number != int(number) or number > LARGEST_COUNT:
        raise ValueError(text)
    return int(number)


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


def _zero(text: str) -> int:
    if text not in ("0", "1", "2", "3"):
        raise ValueError(text)
    return int(text)


_READERS: dict[Callable[[str], Any], tuple[str, tuple[str, ...]]] = {
    _count: (
        "a whole number from 1 to a thousand million",
        (
            "n_gpus",
            "seq_len",
            "gbs",
            "mbs",
            *DEGREES,
            "segment",
        ),
    ),
    _positive: ("a number above 0", ("step_time_s", "tok_s_gpu", "peak_mem_gb", "power_w")),
    _number: ("a number", ("tflops_gpu", "mfu")),
    _flag: (
        "0 or 1",
        (
            "sp",
            "oom",
            "compile",
            "packed",
            "lora",
            "ep_overlap",
            "delay_wgrad",
            "fp8_attention",
            "fp8_param_gather",
        ),
    ),
    _zero: ("0, 1, 2 or 3", ("zero",)),
}
_TYPED = {name: (read, what) for read, (what, names) in _READERS.items() for name in names}
_TEXTS = tuple(
    f.name
    for f in fields(MeasuredPoint)
    if f.name not in {*_TYPED, "line", "cells", *REQUIRED[:3]}
)


def read_measured_points(path: str | os.PathLike[str]) -> tuple[MeasuredPoint, ...]:
    """Read the measured runs of a CSV file; all bad cells are one `SpecError`.

    Unknown columns are kept in `MeasuredPoint.cells` and otherwise ignored. A cell that is empty
    never refuses the file: a run that lacks what its price needs is skipped with a reason.
    """
    name = os.fspath(path)
    results: list[MeasuredPoint] = []
    problems: list[InputProblem] = []
    for line, row in _rows(Path(path), name):
        point = _point(line, row, name, problems)
        if point is not None:
            results.append(point)
    if problems:
        raise SpecError(problems)
    if not results:
        raise SpecError(InputProblem("no measured run in the file", "add a row", name))
    return tuple(results)


def _rows(path: Path, name: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (first line, cells) of each record; short and long records are refused."""
    reader = csv.reader(io.StringIO(_text(path, name), newline=""), strict=True)
    start = 1
    try:
        header = [title.strip() for title in next(reader, [])]
        _check_header(header, name)
        start = reader.line_num + 1
        for row in reader:
            line, start = start, reader.line_num + 1
            if not any(row):
                continue
            if len(row) != len(header):
                message = f"{len(row)} cells in a table of {len(header)} columns"
                fix = "quote cells that hold commas, one cell a column"
                raise SpecError(InputProblem(message, fix, name, line))
            yield line, {t: cell.strip() for t, cell in zip(header, row, strict=True)}
    except csv.Error as error:
        fix = "separate cells by commas, and close every quote"
        raise SpecError(InputProblem(f"is no CSV text: {error}", fix, name, start)) from None


def _text(path: Path, name: str) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise SpecError(
            InputProblem(f"cannot be read: {reason}", "name a CSV file", name)
        ) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        message = "is not UTF-8 text"
        raise SpecError(InputProblem(message, "save it as UTF-8", name, line)) from None


def _check_header(header: list[str], name: str) -> None:
    missing = [title for title in REQUIRED if title not in header]
    if missing:
        fix = "the first line names the columns; see the README beside the shipped points.csv"
        raise SpecError(InputProblem(f"column {', '.join(missing)} is missing", fix, name, 1))
    twice = sorted({title for title in header if title and header.count(title) > 1})
    if twice:
        raise SpecError(InputProblem(f"column {twice[0]} appears twice", "keep one", name, 1))


REMARKS = ("source", "flops_convention", "switches_from")
"""Columns that say where a row comes from, which nothing is computed from."""


def unread_columns(points: Sequence[MeasuredPoint]) -> tuple[tuple[str, str], ...]:
    """Return the columns that mean nothing here, each with a column of a like name or ""."""
    known = (*REQUIRED, *_TYPED, *_TEXTS, *REMARKS)
    titles = dict.fromkeys(title for point in points[:1] for title in point.cells if title)
    return tuple(
        (title, next(iter(close_names(title, known, 1)), ""))
        for title in titles
        if title not in known
    )


def _point(
    line: int, row: Mapping[str, str], name: str, problems: list[InputProblem]
) -> MeasuredPoint | None:
    """Return the typed row, or add what is wrong with it to `problems`."""
    before = len(problems)
    values: dict[str, Any] = {}
    for title, (read, what) in _TYPED.items():
        text = row.get(title, "")
        if not text:
            continue
        try:
            values[title] = read(text)
        except ValueError:
            message = f"{shown_value(text)} is not {what}"
            fix = "a plain number, or an empty cell when the source does not say"
            problems.append(InputProblem(message, fix, name, line, path=title))
    if len(problems) > before:
        return None
    texts: dict[str, Any] = {title: row.get(title, "") for title in _TEXTS}
    named: dict[str, Any] = {title: row[title] for title in REQUIRED[:3]}
    named["id"] = named["id"] or f"line-{line}"
    values.setdefault("n_gpus", 0)
    return MeasuredPoint(line=line, cells=row, **named, **values, **texts)
