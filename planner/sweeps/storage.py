"""The files of a sweep: `OUT.partial` while it runs, `OUT` when all its points are there.

`OUT.partial` is JSON lines, appended to as points finish: what the sweep is, then one row a line,
each line with its checksum. `OUT` holds the rows in the order of the points, as Parquet, CSV or
JSON lines, and appears at once and whole. Parquet holds in itself what the sweep is; beside the
two others lies `OUT.header.json`.
"""

import csv
import errno
import io
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from planner.errors import SweepFileError, UsageError
from planner.sweeps.rows import (
    BOOL,
    COLUMNS,
    FLOAT,
    INT,
    TEXT,
    Row,
    RowColumn,
    Value,
    column_names,
)

FORMATS: Mapping[str, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"),
    "csv": (".csv",),
    "jsonl": (".jsonl", ".ndjson"),
}
"""Formats of a finished sweep, with the endings of files that mean them."""
GROUP_ROWS = 1024
"""Rows that are in memory at once while the finished file is written: a row group of Parquet."""
SYNC_S = 1.0
"""How much work a power failure may cost, seconds: a process that is killed loses no row."""
METADATA_KEY = b"planner.sweep"
"""Where a Parquet file says what the sweep is."""

Header: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Callable[[], Iterator[Row]]
"""Yields all rows in their order, again at every call."""

_START, _HEAD, _ROW = b'{"crc32":"', b'","sweep":', b'","row":'
_CRC_DIGITS = 8
_open_here: set[int] = set()
"""Descriptors of partial files in use by this process: forked workers would hold their locks."""


def _close_in_child() -> None:
    for descriptor in _open_here:
        with suppress(OSError):
            os.close(descriptor)
    _open_here.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def format_of(out: Path, named: str = "") -> str:
    """Return the format of a finished sweep: the one named, else by the ending, else Parquet.

    Raises `UsageError` for an unknown one, and for Parquet where its library is not installed.
    """
    by_ending = next((name for name, ends in FORMATS.items() if out.suffix.lower() in ends), "")
    chosen = named or by_ending or "parquet"
    if chosen not in FORMATS:
        raise UsageError(f"--format: unknown {chosen!r}", f"one of {', '.join(FORMATS)}")
    if chosen == "parquet":
        check_parquet()
    return chosen


def check_parquet() -> None:
    """Raise `UsageError` where the library for Parquet is not installed."""
    if find_spec("pyarrow") is None:
        raise UsageError(
            "Parquet needs the library pyarrow, which is not installed",
            "pip install 'parallelism-planner[parquet]', or --format csv or jsonl",
        )


def partial_path(out: Path) -> Path:
    """Return where the rows of an unfinished sweep are."""
    return out.with_name(out.name + ".partial")


def header_path(out: Path) -> Path:
    """Return what lies beside a CSV or JSON lines file and says what the sweep is."""
    return out.with_name(out.name + ".header.json")


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def row_text(row: Row) -> str:
    """Return a row as the one line of JSON that the files hold."""
    # Names of files need not be Unicode; what is not is written as an escape.
    return _dumps(row).encode(errors="backslashreplace").decode()


def _line(kind: bytes, text: str) -> bytes:
    data = text.encode()
    return b"".join((_START, b"%08x" % zlib.crc32(data), kind, data, b"}\n"))


def _content(kind: bytes, line: bytes) -> bytes | None:
    """Return what is in a line of a kind; None where it is damaged."""
    crc, rest = line[len(_START) :][:_CRC_DIGITS], line[len(_START) + _CRC_DIGITS :]
    data = rest[len(kind) : -2]
    is_whole = line.startswith(_START) and rest.startswith(kind) and line.endswith(b"}\n")
    return data if is_whole and b"%08x" % zlib.crc32(data) == crc else None


def partial_header(path: Path, first: bytes) -> Header | None:
    """Return what the first line of a partial file says; None where nothing is written yet.

    Raises `SweepFileError` where it is no line of ours.
    """
    if not first.endswith(b"\n") and (first.startswith(_START) or _START.startswith(first)):
        return None
    content = _content(_HEAD, first)
    if content is None:
        raise SweepFileError(
            f"{path} is no unfinished sweep, or its first line is damaged",
            "remove it, or name another file with --out",
        )
    header: Header = json.loads(content)
    return header


def partial_row(line: bytes) -> bytes | None:
    """Return the row in a line of a partial file as JSON; None where the line is damaged."""
    return _content(_ROW, line)


def check_same_sweep(path: Path, own_header: Header, header: Header) -> None:
    """Raise `SweepFileError` where a file is of another sweep than the one that is asked for."""
    if own_header.get("sweep_id") != header["sweep_id"]:
        requested, there = (
            " ".join(str(x[key]) for key in ("name", "sweep_id") if x.get(key))
            for x in (header, own_header)
        )
        raise SweepFileError(
            f"{path} holds another sweep ({there or 'unknown'}), not this one ({requested})",
            "name another file with --out, or remove that one; a sweep is another one too when an"
            " input, the calibration, the catalogue or the version has changed",
        )


def _lock(path: Path) -> int:
    """Open a file to append to, which no other process may do until this one closes it or dies."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            _flock(descriptor, path)
            # Whoever held the lock may have finished, and removed the file, in the meantime.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    _open_here.add(descriptor)
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _flock(descriptor: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise SweepFileError(
                f"{path} is being written by another planner sweep",
                "wait until that one ends, or name another file with --out",
            ) from None
        # File systems without locks say so in several ways, and are used by one process at a time.


class PartialSweep:
    """The rows of a sweep that is not finished, on disk; for one process at a time.

    Opening it makes the file, or goes on with one of the same sweep: a last line that is half
    written is dropped. `SweepFileError` where the folder cannot be written, where another process
    writes it, and where the file is of another sweep or none.
    """

    def __init__(self, out: Path, header: Header) -> None:
        self.path = partial_path(out)
        self.n_damaged = 0
        """Lines that somebody or something changed; their points are searched again."""
        self._header = header
        self._places: dict[int, tuple[int, int]] = {}
        self._synced = time.monotonic()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = _lock(self.path)
        except OSError as error:
            raise _unwritable(self.path, error) from None
        try:
            self._end = self._read(header)
            os.ftruncate(self._descriptor, self._end)
            if not self._end:
                self._end = self._write(_line(_HEAD, _dumps(header)))
                self.sync()
                _sync_folder(self.path)
        except OSError as error:
            self.close()
            raise _unwritable(self.path, error) from None
        except BaseException:
            self.close()
            raise

    def _read(self, header: Header) -> int:
        """Find the rows that are there; return where the next one goes."""
        with open(self.path, "rb") as file:
            first = file.readline()
            result = partial_header(self.path, first)
            if result is None:
                return 0
            check_same_sweep(self.path, result, header)
            end = place = len(first)
            for line in file:
                data = partial_row(line)
                place += len(line)
                if data is not None:
                    where = place - 2 - len(data)
                    self._places.setdefault(json.loads(data)["index"], (where, len(data)))
                    end = place
                elif line.endswith(b"\n"):
                    self.n_damaged += 1
        return end

    @property
    def done(self) -> frozenset[int]:
        """The indices of the points whose rows are there."""
        return frozenset(self._places)

    @property
    def n_done(self) -> int:
        """How many there are."""
        return len(self._places)

    def append(self, rows: Sequence[tuple[int, str]]) -> None:
        """Add rows, each with the index of its point (`row_text`).

        Where that fails (`OSError`) the file is left as it was before.
        """
        lines = [_line(_ROW, text) for _, text in rows]
        try:
            self._write(b"".join(lines))
            if time.monotonic() - self._synced > SYNC_S:
                self.sync()
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise
        for (index, _), line in zip(rows, lines, strict=True):
            self._end += len(line)
            size = len(line) - len(_START) - _CRC_DIGITS - len(_ROW) - 2
            self._places.setdefault(index, (self._end - 2 - size, size))

    def count_again(self) -> None:
        """Count the rows of the file, after an interrupt that may have come amid `append`."""
        self._places.clear()
        self.n_damaged = 0
        self._end = self._read(self._header)

    def _write(self, data: bytes) -> int:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
        return len(data)

    def sync(self) -> None:
        """Have the rows on the disk, so that they outlive a power failure."""
        os.fsync(self._descriptor)
        self._synced = time.monotonic()

    def rows(self) -> Iterator[Row]:
        """Yield the rows in the order of their points."""
        for _, (place, size) in sorted(self._places.items()):
            yield json.loads(os.pread(self._descriptor, size, place))

    def remove(self) -> None:
        """Remove the file, then let others have it."""
        with suppress(FileNotFoundError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        """Let other processes go on with the file."""
        if self._descriptor in _open_here:
            _open_here.discard(self._descriptor)
            os.close(self._descriptor)


def _unwritable(path: Path, error: OSError) -> SweepFileError:
    """Return what to say where a file cannot be made."""
    if error.errno == errno.ENOSPC:
        return SweepFileError(f"{path}: the disk is full", "free space, or another --out")
    reason = error.strerror or str(error)
    return SweepFileError(f"cannot write {path}: {reason}", "name another file with --out")


def _sync_folder(path: Path) -> None:
    """Have the name of a file on the disk; file systems that cannot are left to themselves."""
    with suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` once it is whole and on the disk."""
    part = path.with_name(path.name + ".writing")
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    _sync_folder(path)


def stored_columns_of(rows: Iterable[Row], header: Header) -> list[RowColumn]:
    """Return the columns of a sweep: its varied inputs as they occur, and those of all rows."""
    shared = {column.name for column in COLUMNS}
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in shared:
                kinds.setdefault(name, set()).update([_kind(value)] if value is not None else [])
    of_name = {column.name: column for column in COLUMNS}
    units = {item.get("column"): item.get("unit", "") for item in header.get("inputs", ())}
    for name, value_kinds in kinds.items():
        meaning = "derived" if name.startswith("let.") else "varied"
        of_name[name] = RowColumn(name, _one_kind(value_kinds), units.get(name) or "", meaning)
    return [of_name[name] for name in column_names(kinds)]


def _kind(value: Value) -> str:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return INT if abs(value) < 2**63 else FLOAT
    return FLOAT if isinstance(value, float) else TEXT


def _one_kind(kinds: set[str]) -> str:
    """Return the kind of a column with values of these kinds."""
    if len(kinds) == 1:
        return next(iter(kinds))
    return FLOAT if kinds == {INT, FLOAT} else TEXT


def cell(kind: str, value: Value) -> Value:
    """Return a value as its column holds it."""
    if value is None:
        return None
    if kind == FLOAT:
        return float(value)
    return str(value) if kind == TEXT else value


def write_finished(out: Path, form: str, header: Header, rows: Rows) -> None:
    """Write the file of a finished sweep; `OSError` leaves no part of it behind.

    Besides what the sweep is it says which columns there are, with units and meanings.
    """
    columns = stored_columns_of(rows(), header)
    final_header = {**header, "columns": [asdict(column) for column in columns]}
    if form != "parquet":
        with _replacing(header_path(out)) as file:
            file.write((json.dumps(final_header, indent=1, ensure_ascii=False) + "\n").encode())
    with _replacing(out) as file:
        _WRITERS[form](file, columns, final_header, rows())


def _write_csv(
    file: BinaryIO, columns: Sequence[RowColumn], header: Header, rows: Iterator[Row]
) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    for row in rows:
        values = [cell(column.kind, row.get(column.name)) for column in columns]
        writer.writerow([str(v).lower() if isinstance(v, bool) else v for v in values])
    text.detach()


def _write_jsonl(
    file: BinaryIO, columns: Sequence[RowColumn], header: Header, rows: Iterator[Row]
) -> None:
    for row in rows:
        cells = {column.name: cell(column.kind, row.get(column.name)) for column in columns}
        file.write(row_text(cells).encode() + b"\n")


def _write_parquet(
    file: BinaryIO, columns: Sequence[RowColumn], header: Header, rows: Iterator[Row]
) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    types = {FLOAT: pa.float64(), INT: pa.int64(), TEXT: pa.string(), BOOL: pa.bool_()}
    fields = [
        pa.field(c.name, types[c.kind], metadata={"unit": c.unit, "meaning": c.meaning})
        for c in columns
    ]
    schema = pa.schema(fields, metadata={METADATA_KEY: _dumps(header).encode()})
    with ParquetWriter(file, schema, compression="zstd") as writer:
        while group := list(islice(rows, GROUP_ROWS)):
            arrays = [
                pa.array([cell(c.kind, row.get(c.name)) for row in group], types[c.kind])
                for c in columns
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


_WRITERS = {"parquet": _write_parquet, "csv": _write_csv, "jsonl": _write_jsonl}
