"""Reading the file of a sweep: finished, in any of its formats, or as far as it has come."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import SweepFileError
from planner.sweeps.rows import BOOL, COLUMNS, FLOAT, INT, STATUSES, TEXT, Row, RowColumn, Value
from planner.sweeps.storage import (
    METADATA_KEY,
    Header,
    check_parquet,
    header_path,
    partial_header,
    partial_path,
    partial_row,
    stored_columns_of,
)

PARQUET_MAGIC = b"PAR1"
PARTIAL_MAGIC = b'{"crc32":"'


@dataclass(frozen=True, slots=True)
class SweepRows:
    """The rows of a sweep, by column."""

    path: Path
    """The file that was read."""
    header: Header
    """What the sweep is (`Sweep.header`); empty where a CSV or JSON lines file lies alone."""
    columns: tuple[RowColumn, ...]
    values: Mapping[str, list[Value]]
    """By column, in the order of the points; None for what is missing."""
    finished: bool
    n_damaged: int = 0
    """Rows of an unfinished sweep that could not be read."""

    def __len__(self) -> int:
        return len(self.values["index"])


def read_sweep(path: Path) -> SweepRows:
    """Return the rows of a sweep; of an unfinished one where `path` is not there yet.

    Raises `SweepFileError` for a file that is no sweep, or damaged, and `UsageError` for Parquet
    without its library.
    """
    if not path.exists() and partial_path(path).exists():
        path = partial_path(path)
    start = _start_of(path)
    if start.startswith(PARTIAL_MAGIC):
        return _read_partial(path)
    columns: Iterable[RowColumn] | None
    if start.startswith(PARQUET_MAGIC):
        header, columns, values = _read_parquet(path)
    else:
        header = _header_beside(path) or {}
        columns = _columns_in(header)
        read = _read_jsonl if start.startswith(b"{") else _read_csv
        columns, values = read(path, columns)
    if "index" not in values or "status" not in values:
        raise _no_sweep(path)
    return SweepRows(path, header, tuple(columns), values, finished=True)


def read_header(path: Path) -> Header | None:
    """Return what the finished sweep in a file is; None where that is not to be found out."""
    try:
        if _start_of(path).startswith(PARQUET_MAGIC):
            check_parquet()
            from pyarrow.parquet import read_schema

            result: Header = json.loads((read_schema(path).metadata or {}).get(METADATA_KEY, "{}"))
            return result or None
        return _header_beside(path)
    except (OSError, ValueError, SweepFileError):
        return None


def _start_of(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(len(PARTIAL_MAGIC))
    except FileNotFoundError:
        raise SweepFileError(
            f"there is no sweep {path}", "planner sweep SWEEP.yaml --out FILE makes one"
        ) from None
    except OSError as error:
        raise SweepFileError(f"cannot read {path}: {error.strerror}") from None


def _no_sweep(path: Path, why: object = "") -> SweepFileError:
    return SweepFileError(
        f"{path} is no sweep" + (f": {why}" if why else ""),
        "name a file that planner sweep has written",
    )


def _header_beside(path: Path) -> Header | None:
    beside = header_path(path)
    try:
        result: Header = json.loads(beside.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SweepFileError(f"cannot read {beside}: {error}", "remove it") from None
    return result


def _columns_in(header: Header) -> tuple[RowColumn, ...]:
    return tuple(RowColumn(**column) for column in header.get("columns", ()))


def _by_column(rows: Iterable[Row], columns: Iterable[RowColumn]) -> dict[str, list[Value]]:
    names = [column.name for column in columns]
    values: dict[str, list[Value]] = {name: [] for name in names}
    for row in rows:
        for name in names:
            values[name].append(row.get(name))
    return values


def _read_partial(path: Path) -> SweepRows:
    rows: dict[int, Row] = {}
    n_damaged = 0
    with open(path, "rb") as file:
        header = partial_header(path, file.readline()) or {}
        for line in file:
            data = partial_row(line)
            if data is not None:
                row = json.loads(data)
                rows.setdefault(row["index"], row)
            elif line.endswith(b"\n"):
                n_damaged += 1
    ordered = [rows[index] for index in sorted(rows)]
    columns = tuple(stored_columns_of(ordered, header))
    return SweepRows(path, header, columns, _by_column(ordered, columns), False, n_damaged)


def _read_parquet(path: Path) -> tuple[Header, tuple[RowColumn, ...], dict[str, list[Value]]]:
    check_parquet()
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            schema = file.schema_arrow
            header: Header = json.loads((schema.metadata or {}).get(METADATA_KEY, b"{}"))
            values: dict[str, list[Any]] = {name: [] for name in schema.names}
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, use_threads=False)
                for name in schema.names:
                    values[name] += table.column(name).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _no_sweep(path, str(error).splitlines()[0]) from None
    return header, _columns_in(header), values


def _read_jsonl(
    path: Path, columns: tuple[RowColumn, ...]
) -> tuple[tuple[RowColumn, ...], dict[str, list[Value]]]:
    rows: list[Row] = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise _no_sweep(path, f"line {number}: {error}") from None
            if not isinstance(row, dict):
                raise _no_sweep(path, f"line {number} is no JSON object")
            if not isinstance(row.get("index"), int) or row.get("status") not in STATUSES:
                raise _no_sweep(path, f"line {number} has no index or no status of a point")
            rows.append(row)
    columns = columns or tuple(stored_columns_of(rows, {}))
    return columns, _by_column(rows, columns)


_FROM_TEXT: Mapping[str, Callable[[str], Value]] = {
    FLOAT: float,
    INT: int,
    BOOL: lambda text: text == "true",
    TEXT: str,
}


def _read_csv(
    path: Path, columns: tuple[RowColumn, ...]
) -> tuple[tuple[RowColumn, ...], dict[str, list[Value]]]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            names = next(lines, [])
            cells = [list(x) for x in zip(*lines, strict=True)] or [[] for _ in names]
    except (OSError, ValueError, csv.Error) as error:
        raise _no_sweep(path, error) from None
    columns_by_name = {column.name: column for column in (*COLUMNS, *columns)}
    results = [
        columns_by_name.get(name) or RowColumn(name, _kind_of(texts), "", "varied")
        for name, texts in zip(names, cells, strict=True)
    ]
    try:
        values = {
            column.name: [_FROM_TEXT[column.kind](text) if text else None for text in texts]
            for column, texts in zip(results, cells, strict=True)
        }
    except ValueError as error:
        raise _no_sweep(path, error) from None
    return tuple(results), values


def _kind_of(texts: list[str]) -> str:
    """Return the kind of a column of a CSV file that nothing else describes."""
    values = [text for text in texts if text]
    if values and all(text in ("true", "false") for text in values):
        return BOOL
    for kind in (INT, FLOAT):
        try:
            if [_FROM_TEXT[kind](text) for text in values]:
                return kind
        except ValueError:
            continue
    return TEXT
