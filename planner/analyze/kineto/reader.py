"""Trace files as torch.profiler (Kineto) and `planner trace` write them, read as a stream.

A file of hundreds of megabytes is read row by row; what stays in memory is what ran on the
device and when it was launched, some 500 bytes a kernel.

Source of the keys: pytorch/kineto libkineto/src/output_json.cpp (the rows, and what a kernel
inherits from `record_param_comms`), pytorch torch/csrc/profiler/util.cpp and
torch/profiler/profiler.py (`distributedInfo`, `ProfilerStep#N`); Trace Event Format (Google).
Times are microseconds with three decimals, kept here as whole nanoseconds.
"""

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from planner.errors import FileError, UsageError

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver")
STEP = re.compile(r"ProfilerStep\s?#(\d+)$")
GZIP_MAGIC = b"\x1f\x8b"

DTYPE_BYTES = {
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Short": 2,
    "Int": 4,
    "Long": 8,
    "Half": 2,
    "BFloat16": 2,
    "Float": 4,
    "Double": 8,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
    "UInt16": 2,
    "UInt32": 4,
    "UInt64": 8,
    "Float8_e5m2": 1,
    "Float8_e4m3fn": 1,
    "Float8_e5m2fnuz": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e8m0fnu": 1,
}
"""Bytes of an element by the name that c10/core/ScalarType.h gives its type."""


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """What a trace says about the collective that a kernel runs; empty and 0 where it does not.

    Kernels of coalesced calls (`nccl:coalesced`, `batch_isend_irecv`) carry nothing: their launch
    lies outside `record_param_comms` (mlcommons/chakra issue 178, pytorch issue 194693).
    """

    collective: str = ""
    """As c10d names it, such as `_allgather_base`."""
    n_bytes: int = 0
    """The larger of what goes in and what comes out, of this rank."""
    group_size: int = 0
    group: str = ""
    """Name of the process group, unique in its process."""
    description: str = ""
    ranks: tuple[int, ...] = ()
    """Global ranks of the group; empty where the trace cuts the list short."""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One kernel, copy or fill on the device."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    """One of `GPU_CATEGORIES`."""
    stream: int
    correlation: int
    """Of the call that launched it; 0 when unknown."""
    operator: int
    """`External id` of the operator that launched it; 0 when unknown."""
    call: CollectiveCall | None
    """None where the row has none of the keys of a collective."""


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One `ProfilerStep#N`: from where its work starts on the device, else on the host."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class KinetoTrace:
    """One rank's trace."""

    path: str
    rank: int | None
    """Global rank; None where the file does not say."""
    rows: tuple[GpuRow, ...]
    """Of one device, by start."""
    steps: tuple[ProfiledStep, ...]
    """By number."""
    launched_ns: Mapping[int, int]
    """When the launch of a correlation returned."""
    hints: Mapping[int, str]
    """Operators (`External id`) that say more than their kernels' names: `head`, `experts`."""
    other_devices: tuple[int, ...]
    """Devices whose rows were left out."""


@dataclass(slots=True)
class _Found:
    """What accumulates while the rows go by."""

    rows: dict[int, list[GpuRow]] = field(default_factory=dict)
    """By device."""
    on_host: dict[int, tuple[int, int]] = field(default_factory=dict)
    on_device: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Steps by number: start and end."""
    launched_ns: dict[int, int] = field(default_factory=dict)
    hints: dict[int, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    calls: dict[CollectiveCall, CollectiveCall] = field(default_factory=dict)


def header_of(path: str) -> dict[str, Any]:
    """Return what a trace file says before its rows; empty for a bare list of rows.

    Raises `UsageError` for what is no trace.
    """
    import ijson

    builder, empty = ijson.ObjectBuilder(), True
    with _opened(path) as stream, _readable(path):
        for prefix, event, value in ijson.parse(stream, use_float=True):
            if empty and event == "start_array":
                return {}
            if empty and event != "start_map":
                break
            empty = False
            if (prefix, event, value) == ("", "map_key", "traceEvents"):
                result = dict(builder.value)
                return result
            builder.event(event, value)
    raise UsageError(
        f"{path} is not a trace: it has no traceEvents",
        "give the file of prof.export_chrome_trace(), of tensorboard_trace_handler, or of"
        " planner trace; PLAN comes last",
    )


def events_of(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a trace file in its order, also of a bare list of rows.

    Raises `UsageError` for a file that breaks off or is damaged.
    """
    import ijson

    with _opened(path) as stream, _readable(path):
        bare = stream.read(256).lstrip().startswith(b"[")
        stream.seek(0)
        prefix = "item" if bare else "traceEvents.item"
        for event in ijson.items(stream, prefix, use_float=True):
            if not isinstance(event, dict):
                raise UsageError(f"{path}: a row of traceEvents is {event!r}, not an object")
            yield event


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == GZIP_MAGIC
            raw.seek(0)
            yield cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
    except FileNotFoundError:
        raise FileError(f"no trace file {path}", "name the file that the profiler wrote") from None
    except (IsADirectoryError, PermissionError) as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Turn what a damaged file makes of its readers into one error."""
    import ijson

    fix = "let the profiler finish its export, and copy the whole file"
    broken = (EOFError, gzip.BadGzipFile, zlib.error, ijson.JSONError, UnicodeDecodeError)
    try:
        yield
    except broken as error:
        first_line = _first_line(error)
        # yajl calls every error an incomplete file.
        ends = isinstance(error, EOFError) or "premature EOF" in first_line
        text = "breaks off" if ends else "is damaged, or no trace"
        raise UsageError(f"{path} {text}: {first_line}", fix) from None


def _first_line(error: Exception) -> str:
    # yajl quotes the place over three lines, which may hold bytes.
    text = error.args[0] if error.args else error
    text = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return text.strip().split("\n")[0]


def read_kineto(
    path: str, header: Mapping[str, Any], head_sizes: frozenset[int] = frozenset()
) -> KinetoTrace:
    """Return the trace of one rank.

    `head_sizes` are extents that only operands of the output head have: operators with one among
    their `Input Dims` (`record_shapes=True`) are marked `head`. Of a process that drives several
    devices the one with most rows is kept. Raises `UsageError` where nothing ran on a device.
    """
    groups = _groups(header)
    result = _Found()
    n_events = 0
    for event in events_of(path):
        n_events += 1
        if event.get("ph") == "X":
            _take(path, event, result, groups, head_sizes)
    if not result.rows:
        raise UsageError(
            f"{path} holds no kernels: none of its {n_events:,} rows ran on a device",
            "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    device = max(result.rows, key=lambda d: (len(result.rows[d]), -d))
    return KinetoTrace(
        path=path,
        rank=_whole(_distributed(header).get("rank")),
        rows=tuple(sorted(result.rows[device], key=lambda r: (r.start_ns, r.end_ns, r.stream))),
        steps=_steps(result),
        launched_ns=result.launched_ns,
        hints=result.hints,
        other_devices=tuple(sorted(set(result.rows) - {device})),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _distributed(header: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a header says of the job: `rank`, `world_size`, `pg_config`."""
    about = header.get("distributedInfo")
    return about if isinstance(about, dict) else {}


def ranks_of_job(header: Mapping[str, Any]) -> int | None:
    """Return how many ranks ran; None where the header does not say."""
    return _whole(_distributed(header).get("world_size"))


def _groups(header: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return description and ranks of each process group of `distributedInfo`, by name."""
    listed = _distributed(header).get("pg_config")
    out = {}
    for one in listed if isinstance(listed, list) else []:
        if isinstance(one, dict) and "pg_name" in one:
            ranks = one.get("ranks")
            ranks = ranks if isinstance(ranks, list) else []
            numbered = all(_whole(rank) is not None for rank in ranks)
            name = str(one["pg_name"])
            out[name] = (str(one.get("pg_desc", "")), tuple(ranks) if numbered else ())
    return out


def _span(path: str, event: Mapping[str, Any]) -> tuple[int, int]:
    try:
        start = _nanoseconds(event["ts"])
        return start, start + max(0, _nanoseconds(event["dur"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        name = str(event.get("name", "without a name"))[:60]
        raise UsageError(
            f"{path}: the row {name!r} has no time (ts) or duration (dur)",
            "give the trace as the profiler wrote it",
        ) from None


def _nanoseconds(us: float) -> int:
    """Return microseconds with three decimals as nanoseconds, exact up to a hundred days."""
    total = int(us)
    return total * 1000 + round((us - total) * 1000.0)


def _take(
    path: str,
    event: Mapping[str, Any],
    contents: _Found,
    groups: Mapping[str, tuple[str, tuple[int, ...]]],
    head_sizes: frozenset[int],
) -> None:
    """Keep what the comparison needs of one row."""
    category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    if category in GPU_CATEGORIES:
        start, end = _span(path, event)
        device = _whole(args.get("device"))
        stream = _whole(args.get("stream"))
        call = _call(args, groups)
        row = GpuRow(
            start_ns=start,
            end_ns=end,
            name=contents.names.setdefault(name, name),
            category=category,
            stream=stream if stream is not None else _whole(event.get("tid")) or 0,
            correlation=_whole(args.get("correlation")) or 0,
            operator=_whole(args.get("External id")) or 0,
            call=None if call is None else contents.calls.setdefault(call, call),
        )
        key = device if device is not None else _whole(event.get("pid")) or 0
        contents.rows.setdefault(key, []).append(row)
    elif category in LAUNCH_CATEGORIES:
        if correlation := _whole(args.get("correlation")):
            contents.launched_ns[correlation] = _span(path, event)[1]
    elif category in ("user_annotation", "gpu_user_annotation"):
        if step := STEP.match(name):
            start, end = _span(path, event)
            # On the device a step has a row for each stream.
            where = contents.on_device if category.startswith("gpu") else contents.on_host
            old = where.get(int(step[1]), (start, end))
            where[int(step[1])] = min(old[0], start), max(old[1], end)
    elif category == "cpu_op":
        hint = _hint(name, args, head_sizes)
        if hint and (operator := _whole(args.get("External id"))):
            contents.hints[operator] = hint


def _hint(name: str, args: Mapping[str, Any], head_sizes: frozenset[int]) -> str:
    lowered = name.lower()
    if "grouped" in lowered or "expert" in lowered:
        return "experts"
    if head_sizes and ("mm" in lowered or "linear" in lowered):
        return "head" if head_sizes.intersection(_extents(args.get("Input Dims"))) else ""
    return ""


def _extents(dims: object) -> Iterator[int]:
    """Yield all extents of the operands of an operator; lists of tensors are one level deeper."""
    for x in dims if isinstance(dims, list) else ():
        if isinstance(x, list):
            yield from _extents(x)
        elif isinstance(x, int):
            yield x


def _call(
    args: Mapping[str, Any], groups: Mapping[str, tuple[str, tuple[int, ...]]]
) -> CollectiveCall | None:
    if "Collective name" not in args and "Process Group Name" not in args:
        return None
    group = str(args.get("Process Group Name", ""))
    description, ranks = groups.get(group, ("", ()))
    width = DTYPE_BYTES.get(str(args.get("dtype", "")), 0)
    sizes = (_whole(args.get("In msg nelems")) or 0, _whole(args.get("Out msg nelems")) or 0)
    return CollectiveCall(
        collective=str(args.get("Collective name", "")),
        n_bytes=width * max(sizes),
        group_size=_whole(args.get("Group size")) or len(ranks),
        group=group,
        description=str(args.get("Process Group Description", "")) or description,
        ranks=ranks or _listed(args.get("Process Group Ranks")),
    )


def _listed(ranks: object) -> tuple[int, ...]:
    """Return the ranks of a list such as "[0, 1]"; nothing of one cut short ("[0, 1, ...]")."""
    text = str(ranks or "").strip()
    if not re.fullmatch(r"\[\d+(, ?\d+)*\]", text):
        return ()
    return tuple(int(x) for x in text[1:-1].split(","))


def _steps(contents: _Found) -> tuple[ProfiledStep, ...]:
    """Return the steps by number.

    The host runs ahead of the device: a step starts with its first work on the device where the
    trace marks that, and ends when both are done.
    """
    out = []
    for number in sorted(contents.on_host.keys() | contents.on_device.keys()):
        host, device = contents.on_host.get(number), contents.on_device.get(number)
        start = (device or host or (0, 0))[0]
        end = max(span[1] for span in (host, device) if span)
        out.append(ProfiledStep(number, start, end))
    return tuple(out)
