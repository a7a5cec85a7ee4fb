"""The file that `measure.py` writes: times of products, attention, memory and collectives."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from costmodels.comm.collectives import ALGORITHMS
from planner.errors import SpecError
from planner.measure.benchmarks.sweep import SEND_RECEIVE, SizeSweep
from planner.specs.importers.dump_text import bad_dump, read_dump
from planner.units import shown_value

FORMAT, VERSION = "planner-measured", 1
MOST = 10**15
"""Largest count that makes sense: bytes, ranks, extents."""


@dataclass(frozen=True, slots=True)
class MeasuredProduct:
    """One matrix product: (rows x inner) times (inner x columns)."""

    rows: int
    inner: int
    columns: int
    precision: str
    time_s: float


@dataclass(frozen=True, slots=True)
class MeasuredCore:
    """One causal attention core."""

    kernel: str
    """A key of `Efficiency.attention_frac`."""
    batch: int
    heads: int
    length: int
    head_dim: int
    precision: str
    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over memory."""

    bytes: float
    """Read and written."""
    time_s: float


@dataclass(frozen=True, slots=True)
class MeasuredSizes:
    """All that one run of the script timed."""

    file: str
    device: str
    """What the driver calls the accelerator."""
    provenance: Mapping[str, Any]
    products: tuple[MeasuredProduct, ...]
    cores: tuple[MeasuredCore, ...]
    passes: tuple[Pass, ...]
    sweeps: tuple[SizeSweep, ...]
    notes: tuple[str, ...]

    @property
    def on_cpu(self) -> bool:
        """Whether no accelerator was timed."""
        return self.device.startswith("CPU")


def read_measured(file: str) -> MeasuredSizes:
    """Read what `measure.py` wrote; `SpecError` with the entry for a file that is not that."""
    text = read_dump(file)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        fix = "give the file that measure.py wrote; it is written whole or not at all"
        raise bad_dump(file, f"is no JSON: {error.msg}", fix, error.lineno) from None
    except RecursionError:
        raise bad_dump(file, "is nested too deeply") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        fix = "`planner measure CLUSTER` writes the script; logs of nccl-tests go to --nccl-tests"
        raise bad_dump(file, "is not a file of measure.py", fix)
    if data.get("version") != VERSION:
        message = (
            f"is of version {shown_value(data.get('version'))}, and this release reads {VERSION}"
        )
        raise bad_dump(file, message, "write the script anew and run it again")
    read = _Reader(file)
    origin = data.get("provenance")
    if not isinstance(origin, dict):
        raise read.wrong("provenance", "is missing", "give the file as it was written")
    notes = []
    if data.get("complete") is not True:
        notes.append(f"{file}: the script ended before it was done; what it timed is used")
    left_out = read.rows(data, "left_out")
    if left_out:
        first = left_out[0]
        notes.append(
            f"{file}: {len(left_out)} items could not be run, such as {first.get('what')}"
            f" ({first.get('why')})"
        )
    rows = {key: read.rows(data, key) for key in ("gemm", "attention", "memory", "collectives")}
    products = tuple(
        MeasuredProduct(
            rows=read.count(row, "rows", i, "gemm"),
            inner=read.count(row, "inner", i, "gemm"),
            columns=read.count(row, "columns", i, "gemm"),
            precision=read.text(row, "precision", i, "gemm"),
            time_s=read.time(row, "time_s", i, "gemm"),
        )
        for i, row in enumerate(rows["gemm"])
    )
    cores = tuple(
        MeasuredCore(
            kernel=read.text(row, "kernel", i, "attention"),
            batch=read.count(row, "batch", i, "attention"),
            heads=read.count(row, "heads", i, "attention"),
            length=read.count(row, "length", i, "attention"),
            head_dim=read.count(row, "head_dim", i, "attention"),
            precision=read.text(row, "precision", i, "attention"),
            forward_s=read.time(row, "forward_s", i, "attention"),
            backward_s=read.time(row, "backward_s", i, "attention"),
        )
        for i, row in enumerate(rows["attention"])
    )
    passes = tuple(
        Pass(float(read.count(row, "bytes", i, "memory")), read.time(row, "time_s", i, "memory"))
        for i, row in enumerate(rows["memory"])
    )
    device = read.text(origin, "device", -1, "provenance")
    return MeasuredSizes(
        file=file,
        device=device,
        provenance=origin,
        products=products,
        cores=cores,
        passes=passes,
        sweeps=_sweeps(rows["collectives"], read, device),
        notes=tuple(notes),
    )


def _sweeps(rows: list[dict[str, Any]], read: "_Reader", device: str) -> tuple[SizeSweep, ...]:
    """Return the collectives by what and where, in the order of the file."""
    entries: dict[tuple[str, int, int, int], list[tuple[float, float]]] = {}
    for i, row in enumerate(rows):
        name = read.text(row, "collective", i, "collectives")
        if name not in (*ALGORITHMS, SEND_RECEIVE):
            raise read.wrong(f"collectives.{i}", f"no collective is called {name!r}")
        ranks, nodes, busy = (
            read.count(row, key, i, "collectives")
            for key in ("n_ranks", "n_nodes", "busy_per_node")
        )
        if ranks < 2 or ranks % nodes or busy % (ranks // nodes):
            message = f"{ranks} ranks on {nodes} nodes of {busy} are no equal groups"
            raise read.wrong(f"collectives.{i}", message)
        size = float(read.count(row, "size_bytes", i, "collectives"))
        time = read.time(row, "time_s", i, "collectives")
        entries.setdefault((name, ranks, nodes, busy), []).append((size, time))
    return tuple(
        SizeSweep(
            source=read.file,
            collective=name,
            n_ranks=ranks,
            n_nodes=nodes,
            busy_per_node=busy,
            sizes_bytes=tuple(size for size, _ in pairs),
            times_s=tuple(time for _, time in pairs),
            device=device,
        )
        for (name, ranks, nodes, busy), pairs in entries.items()
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Takes figures out of entries, with errors that name them."""

    file: str

    def wrong(self, path: str, message: str, fix: str = "") -> SpecError:
        return bad_dump(self.file, f"{path}: {message}", fix or "remove the entry, or time again")

    def rows(self, data: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
        result = data.get(key, [])
        if not isinstance(result, list) or not all(isinstance(row, dict) for row in result):
            raise self.wrong(key, "is no list of entries")
        return result

    def _of(self, row: Mapping[str, Any], key: str, i: int, part: str) -> tuple[Any, str]:
        return row.get(key), f"{part}.{i}.{key}" if i >= 0 else f"{part}.{key}"

    def text(self, row: Mapping[str, Any], key: str, i: int, part: str) -> str:
        value, path = self._of(row, key, i, part)
        if not isinstance(value, str) or not value:
            raise self.wrong(path, f"{shown_value(value)} is no name")
        return value

    def count(self, row: Mapping[str, Any], key: str, i: int, part: str) -> int:
        value, path = self._of(row, key, i, part)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
            raise self.wrong(path, f"{shown_value(value)} is no whole number from 1 to {MOST:g}")
        return value

    def time(self, row: Mapping[str, Any], key: str, i: int, part: str) -> float:
        value, path = self._of(row, key, i, part)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise self.wrong(path, f"{shown_value(value)} is no time in seconds")
        return float(value)
