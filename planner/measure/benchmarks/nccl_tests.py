"""The output of nccl-tests (and rccl-tests, which print the same): tables of times by size.

    # nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20
    # Using devices
    #  Rank  0 Group  0 Pid   1887 on   worker-1 device  0 [0x8d] NVIDIA H100 80GB HBM3
    #       size         count      type   redop    root     time   algbw   busbw #wrong  ...
    #        (B)    (elements)                               (us)  (GB/s)  (GB/s)
         8388608       2097152     float     sum      -1    992.6    8.45   16.20      0  ...

Eleven to thirteen fields a row: releases and tests print operation and root or not. Times are in
microseconds, rates in 1e9 bytes/s. The size is that of the whole logical tensor in every test, and
algbw = size / time. busbw is algbw times a factor of the collective, which tells collectives apart
and shows where a table is taken for another. Lines of a launcher's other output are passed over.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.measure.benchmarks.sweep import SEND_RECEIVE, SizeSweep
from planner.specs.importers.dump_text import bad_dump, clean, read_dump

COLLECTIVES: Mapping[str, str] = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": SEND_RECEIVE,
}
"""What the programs (`..._perf`) time, in the words of the cost model."""
TOLERANCE = 0.03
"""Relative difference of busbw / algbw from the factor of the collective that is let pass, beyond
the rounding of the printed digits."""

_TIME = r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*\s)?"
_PREFIX = re.compile(rf"^\s*{_TIME}(?:(?:\[\d+,\d+\]<std\w+>:?|\[?[\w.-]*\d\]?:(?=\s|#))\s?)?")
"""What a launcher puts before a line: a time (kubectl logs --timestamps), a rank, a host."""
_RANK = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)"
    r"(?:\s+\[[^\]]*\])?\s*(.*?)\s*$"
)
_START = re.compile(r"#\s*(?:nThreads?\s+\d+|nccl-tests version|rccl-tests)")
_PROGRAM = re.compile(r"(?<![A-Za-z0-9])([a-z]+(?:_[a-z]+)?)_perf\b")
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([a-z]\w*)(\s.*|)$")
_FAILED = re.compile(r"Test (?:NCCL|CUDA|HIP) failure.*")
_NUMBER = re.compile(r"^\d+(?:\.\d*)?(?:[eE][+-]?\d+)?$")
_IN_NAMES = re.compile(
    r"all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|broadcast|send[-_]?recv"
)
_BY_NAME = {name.replace("_", ""): name for name in COLLECTIVES} | {"alltoall": "alltoall"}


@dataclass(frozen=True, slots=True)
class SizeTiming:
    """One row of a table."""

    line: int
    size_bytes: int
    out_of_place_s: float | None
    in_place_s: float | None

    @property
    def time_s(self) -> float:
        """Mean of the two times, or the one that there is."""
        times_s = [t for t in (self.out_of_place_s, self.in_place_s) if t]
        return sum(times_s) / len(times_s)


@dataclass(frozen=True, slots=True)
class TimesTable:
    """The rows of one run of one program, and where it ran."""

    file: str
    line: int
    """Line of the first row."""
    collective: str
    n_ranks: int
    n_nodes: int
    busy_per_node: int
    device: str
    timings: tuple[SizeTiming, ...]
    notes: tuple[str, ...] = ()

    def sweep(self) -> SizeSweep:
        """Return the table as times of a collective over sizes, a size once."""
        by_size: dict[int, list[float]] = {}
        for timing in self.timings:
            by_size.setdefault(timing.size_bytes, []).append(timing.time_s)
        sizes = sorted(by_size)
        return SizeSweep(
            source=f"{self.file}:{self.line}",
            collective=self.collective,
            n_ranks=self.n_ranks,
            n_nodes=self.n_nodes,
            busy_per_node=self.busy_per_node,
            sizes_bytes=tuple(float(size) for size in sizes),
            times_s=tuple(sum(by_size[size]) / len(by_size[size]) for size in sizes),
            device=self.device,
        )


def bus_bandwidth_factor(collective: str, n_ranks: int) -> float:
    """Return busbw over algbw as nccl-tests defines it."""
    if collective == "all-reduce":
        return 2 * (n_ranks - 1) / n_ranks
    if collective in ("all-gather", "reduce-scatter", "all-to-all", "gather", "scatter"):
        return (n_ranks - 1) / n_ranks
    return 1.0


def read_nccl_tests(files: Iterable[str]) -> list[TimesTable]:
    """Read logs; return the tables of all, in the order of the files.

    Raises `SpecError` with file and line for one that cannot be used.
    """
    return [table for file in files for table in parse_nccl_tests(read_dump(file), file)]


@dataclass(slots=True)
class _Run:
    """What is known of the program whose table is being read."""

    ranks: dict[int, tuple[int, str, int, str]] = field(default_factory=dict)
    """Group, host, device and its name by rank."""
    program: str = ""
    rows: list[SizeTiming] = field(default_factory=list)
    rates: list[tuple[int, float, float]] = field(default_factory=list)
    """Line, algbw and busbw of rows, GB/s."""
    operations: set[str] = field(default_factory=set)
    roots: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def parse_nccl_tests(text: str, file: str) -> list[TimesTable]:
    """Return the tables in the text of one log; `file` is the name that messages give."""
    if text.lstrip()[:1] == "{":
        fix = "give the text that the program prints to the screen"
        raise bad_dump(file, "is JSON; only the printed table is read", fix)
    lines = clean(text).split("\n")
    last = max((i for i, line in enumerate(lines, 1) if line.strip()), default=0)
    tables: list[TimesTable] = []
    run = _Run()
    failed: tuple[int, str] | None = None
    for number, raw in enumerate(lines, 1):
        line = _PREFIX.sub("", raw, count=1)
        if _START.match(line) and run.rows:
            tables.append(_table(run, file))
            run = _Run()
        if match := _RANK.search(line):
            if run.rows:
                tables.append(_table(run, file))
                run = _Run()
            rank, group, host, device, name = match.groups()
            run.ranks[int(rank)] = (int(group or 0), host, int(device), name)
        elif match := _FAILED.search(line):
            failed = failed or (number, match[0].strip())
        elif match := _ROW.match(line):
            _read_row(run, match, file, number, last)
        elif match := _PROGRAM.search(line):
            if run.rows:
                tables.append(_table(run, file))
                run = _Run()
            run.program = match[1]
        elif "Out of bounds values" in line and "FAILED" in line:
            run.notes.append(f"{file}:{number}: some results were wrong (Out of bounds values)")
    if run.rows:
        if "Avg bus bandwidth" not in text:
            run.notes.append(f"{file}:{last}: the log ends before the program did")
        tables.append(_table(run, file))
    if failed and tables:
        line_of, failure_text = failed
        note = f"{file}:{line_of}: the run failed there ({failure_text})"
        tables[-1] = _noted(tables[-1], note)
    if not tables:
        if failed:
            raise bad_dump(file, f"the run failed ({failed[1]})", "run the test again", failed[0])
        fix = "give what all_reduce_perf, all_gather_perf, ... print, with the lines before it"
        raise bad_dump(file, "holds no table of nccl-tests", fix)
    return tables


def _noted(table: TimesTable, note: str) -> TimesTable:
    return replace(table, notes=(*table.notes, note))


def _read_row(run: _Run, match: re.Match[str], file: str, number: int, last: int) -> None:
    """Add one row to the run; one whose results were wrong is left out and noted."""
    size, fields = int(match[1]), match[4].split()
    labels, figures = fields[: max(0, len(fields) - 8)], fields[-8:]
    if len(fields) < 8 or len(labels) > 2 or any(_is_figure(word) for word in labels[:1]):
        if number == last and len(fields) < 10:
            run.notes.append(f"{file}:{number}: the last row is cut off and left out")
            return
        message = f"a row of {3 + len(fields)} fields, where 11 to 13 are known"
        fix = "give the output as it was printed; remove the line if it is damaged"
        raise bad_dump(file, message, fix, number)
    figures_of = []
    for start in (0, 4):
        time, algbw, busbw, wrong = figures[start : start + 4]
        for word in (time, algbw, busbw):
            if word != "N/A" and not _NUMBER.match(word):
                fix = "times are in us and rates in GB/s, as the program prints them"
                raise bad_dump(file, f"{word!r} is no number", fix, number)
        if _is_wrong(wrong):
            run.notes.append(f"{file}:{number}: {wrong} wrong results, the row is left out")
            return
        figures_of.append(None if time == "N/A" else float(time) * 1e-6)
        if "N/A" not in (algbw, busbw):
            run.rates.append((number, float(algbw), float(busbw)))
    if size and any(figures_of):
        run.rows.append(SizeTiming(number, size, figures_of[0] or None, figures_of[1] or None))
    for label in labels:
        if re.fullmatch(r"-?\d+", label):
            run.roots.add(label)
        else:
            run.operations.add(label)


def _is_figure(word: str) -> bool:
    return "." in word and bool(_NUMBER.match(word))


def _is_wrong(word: str) -> bool:
    """Tell whether the last field of a block counts wrong results; old releases print a float."""
    try:
        return float(word) > 0.5 if "e" not in word.lower() else float(word) > 1e-2
    except ValueError:
        return False


def _table(run: _Run, file: str) -> TimesTable:
    first = run.rows[0].line
    if not run.ranks:
        message = "no `# Rank ...` lines before the table, so ranks and nodes are not known"
        raise bad_dump(file, message, "keep the lines that the program prints first", first)
    groups = Counter(group for group, *_ in run.ranks.values())
    members = {host for group, host, *_ in run.ranks.values() if group == min(groups)}
    n_ranks = groups[min(groups)]
    _same(groups.values(), "groups", file, first)
    hosts = Counter(host for _, host, *_ in run.ranks.values())
    _same(hosts.values(), "nodes", file, first)
    in_group = Counter(host for group, host, *_ in run.ranks.values() if group == min(groups))
    _same(in_group.values(), "nodes of a group", file, first)
    if n_ranks < 2:
        raise bad_dump(
            file, "one rank talks to nobody", "run the test on two devices or more", first
        )
    devices = {name for *_, name in run.ranks.values()}
    if len(devices) > 1:
        message = f"ranks on different accelerators: {', '.join(sorted(devices))}"
        raise bad_dump(file, message, "run the test on one kind at a time", first)
    collective = _collective(run, n_ranks, file, first)
    return TimesTable(
        file=file,
        line=first,
        collective=collective,
        n_ranks=n_ranks,
        n_nodes=len(members),
        busy_per_node=hosts.most_common(1)[0][1],
        device=devices.pop(),
        timings=tuple(run.rows),
        notes=tuple(run.notes),
    )


def _same(counts: Iterable[int], unit: str, file: str, line: int) -> None:
    result = sorted(set(counts))
    if len(result) > 1:
        message = f"{unit} of {result[0]} and of {result[-1]} ranks in one test"
        raise bad_dump(file, message, "run the test with the same number of ranks on each", line)


def _collective(run: _Run, n_ranks: int, file: str, line: int) -> str:
    """Return what was timed: the program if it is named, else what agrees with the rates."""
    name, from_where = run.program, f"{run.program}_perf"
    if not name and (match := _IN_NAMES.search(os.path.basename(file).lower())):
        name, from_where = _BY_NAME[re.sub("[-_]", "", match[0])], "the name of the file"
    if name and name not in COLLECTIVES:
        names = ", ".join(f"{names}_perf" for names in COLLECTIVES)
        raise bad_dump(file, f"{name}_perf times nothing that the model has", names, line)
    ratio = _ratio(run.rates)
    if name:
        collective = COLLECTIVES[name]
        if ratio and not _agrees(collective, n_ranks, ratio):
            message = (
                f"busbw is {ratio[0]:.3f} of algbw, which is not {collective} on {n_ranks} ranks"
                f" ({bus_bandwidth_factor(collective, n_ranks):.3f}), as {from_where} says"
            )
            fix = "is the `# Rank` list that of this table, and complete?"
            raise bad_dump(file, message, fix, line)
        return collective
    fitting = _fitting(run, n_ranks, ratio)
    if len(fitting) == 1:
        return fitting[0]
    what = " or ".join(fitting) or "no collective that is known"
    fix = "keep the line with the command, or name the file after it (all_gather.log)"
    raise bad_dump(file, f"nothing says which collective this is; it may be {what}", fix, line)


def _ratio(rates: Sequence[tuple[int, float, float]]) -> tuple[float, float] | None:
    """Return busbw over algbw of the fastest row, and how much its rounding may be off."""
    algbw, busbw = max(((a, b) for _, a, b in rates), default=(0.0, 0.0))
    if algbw < 0.2:
        return None
    return busbw / algbw, 0.005 * (1 + busbw / algbw) / algbw


def _agrees(collective: str, n_ranks: int, ratio: tuple[float, float]) -> bool:
    measured, rounding = ratio
    factor = bus_bandwidth_factor(collective, n_ranks)
    return abs(measured - factor) <= TOLERANCE * factor + rounding


def _fitting(run: _Run, n_ranks: int, ratio: tuple[float, float] | None) -> list[str]:
    """Return the collectives that the labels and rates of a table leave."""
    reduces = any(op not in ("none", "N/A") for op in run.operations)
    rooted = any(root != "-1" for root in run.roots)
    if run.operations and reduces:
        left = ["reduce"] if rooted else ["all-reduce", "reduce-scatter"]
        if not run.roots:
            left = ["all-reduce", "reduce-scatter", "reduce"]
    elif rooted:
        left = ["broadcast", "gather", "scatter"]
    else:
        left = ["all-gather", "all-to-all", SEND_RECEIVE]
    if ratio:
        left = [one for one in left if _agrees(one, n_ranks, ratio)]
    return left
