"""The partial file of a sweep: nothing lost, nothing twice, whatever happens to it."""

import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from planner.errors import SweepFileError, UsageError
from planner.sweeps import storage
from planner.sweeps.storage import PartialSweep, format_of, partial_path

HEADER = {"sweep_id": "0123456789ab", "name": "hbm"}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "sweep.csv"


def text(index: int) -> str:
    return json.dumps({"index": index, "reason": f"é{index}\n"}, ensure_ascii=False)


def kept(out: Path, header: dict[str, Any] = HEADER) -> list[dict[str, Any]]:
    with closing(PartialSweep(out, header)) as partial:
        rows = list(partial.rows())
        assert [row["index"] for row in rows] == sorted(partial.done)
        return rows


def write(out: Path, *indices: int) -> list[bytes]:
    """Add rows one after the other; return the lines of the file."""
    with closing(PartialSweep(out, HEADER)) as partial:
        for index in indices:
            partial.append([(index, text(index))])
    return partial_path(out).read_bytes().splitlines(keepends=True)


def test_rows_come_back_in_the_order_of_the_points(out: Path) -> None:
    write(out, 7, 0, 3)
    write(out, 5)
    assert kept(out) == [json.loads(text(i)) for i in (0, 3, 5, 7)]


def test_a_file_cut_at_any_byte_keeps_its_whole_lines_and_goes_on(out: Path) -> None:
    lines = write(out, 2, 0, 1)
    whole = b"".join(lines)
    for size in range(len(whole) + 1):
        partial_path(out).write_bytes(whole[:size])
        rest = whole[:size].count(b"\n")
        with closing(PartialSweep(out, HEADER)) as partial:
            assert partial.done == frozenset([2, 0, 1][: max(0, rest - 1)])
            assert partial.n_damaged == 0
            partial.append([(i, text(i)) for i in (2, 0, 1) if i not in partial.done])
        assert partial_path(out).read_bytes() == whole


def test_a_damaged_line_is_found_and_its_row_written_again(out: Path) -> None:
    lines = write(out, 2, 0, 1)
    for place in range(len(lines[2]) - 1):
        bad = bytearray(lines[2])
        bad[place] ^= 1
        partial_path(out).write_bytes(b"".join([*lines[:2], bytes(bad), lines[3]]))
        with closing(PartialSweep(out, HEADER)) as partial:
            assert partial.done == {2, 1}
            assert partial.n_damaged >= 1  # two where the change makes a line end
            partial.append([(0, text(0))])
            assert [row["index"] for row in partial.rows()] == [0, 1, 2]
        assert len(kept(out)) == 3


def test_a_hole_that_a_power_failure_left_is_cut_off(out: Path) -> None:
    lines = write(out, 2, 0)
    partial_path(out).write_bytes(b"".join(lines[:2]) + bytes(len(lines[2])))
    assert [row["index"] for row in kept(out)] == [2]
    assert partial_path(out).read_bytes() == b"".join(lines[:2])


@pytest.mark.parametrize("place", [0, 12, 40])
def test_a_damaged_header_is_an_error_and_the_file_stays(out: Path, place: int) -> None:
    whole = bytearray(b"".join(write(out, 2, 0)))
    whole[place] ^= 1
    partial_path(out).write_bytes(whole)
    with pytest.raises(SweepFileError, match="no unfinished sweep, or its first line is damaged"):
        PartialSweep(out, HEADER)
    assert partial_path(out).read_bytes() == whole


@pytest.mark.parametrize("content", [b"my notes", b"index,status\n1,ok\n", b'{"crc32": 1}\n'])
def test_a_file_of_somebody_else_is_not_touched(out: Path, content: bytes) -> None:
    partial_path(out).write_bytes(content)
    with pytest.raises(SweepFileError, match="no unfinished sweep"):
        PartialSweep(out, HEADER)
    assert partial_path(out).read_bytes() == content


def test_a_partial_file_of_another_sweep_is_an_error_that_names_both(out: Path) -> None:
    before = write(out, 1)
    with pytest.raises(SweepFileError, match=r"another sweep \(hbm 0123456789ab\)") as caught:
        PartialSweep(out, {"sweep_id": "ffffffffffff", "name": "nic"})
    assert "(nic ffffffffffff)" in str(caught.value)
    assert "--out" in caught.value.hint
    assert partial_path(out).read_bytes() == b"".join(before)


def test_a_second_writer_is_refused_until_the_first_has_gone(out: Path) -> None:
    with closing(PartialSweep(out, HEADER)) as first:
        with pytest.raises(SweepFileError, match="written by another planner sweep"):
            PartialSweep(out, HEADER)
        first.append([(0, text(0))])
    assert len(kept(out)) == 1


WRITER = """
import os, sys, time
from pathlib import Path
from planner.sweeps.storage import PartialSweep

PartialSweep(Path(sys.argv[1]), {header}).append([(4, {row!r})])
if not os.fork():
    print(os.getpid(), flush=True)  # by the worker: the fork is over in it, too
time.sleep(60.0)
"""


def test_a_crash_gives_the_lock_back_though_its_workers_live(out: Path) -> None:
    """The writer is killed; a worker that it has forked goes on for a while."""
    program = WRITER.format(header=HEADER, row=text(4))
    writer = subprocess.Popen([sys.executable, "-c", program, out], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    with writer.stdout:
        worker = int(writer.stdout.readline())
    writer.kill()
    writer.wait()
    os.kill(worker, 0)
    try:
        assert kept(out) == [json.loads(text(4))]
    finally:
        os.kill(worker, signal.SIGKILL)


def test_rows_written_before_an_interrupt_are_counted(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the write and before the count."""
    write(out, 1)
    with closing(PartialSweep(out, HEADER)) as partial:
        plain = PartialSweep._write

        def interrupted(self: PartialSweep, data: bytes) -> int:
            plain(self, data)
            raise KeyboardInterrupt

        monkeypatch.setattr(PartialSweep, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            partial.append([(0, text(0)), (2, text(2))])
        assert partial.n_done == 1
        partial.count_again()
        assert partial.done == {0, 1, 2}
        monkeypatch.undo()
        partial.append([(3, text(3))])
        assert [row["index"] for row in partial.rows()] == [0, 1, 2, 3]


def test_a_file_that_was_finished_while_waiting_is_begun_anew(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking it, the other process has removed it."""
    write(out, 1)
    lock, removed = storage._flock, []

    def flock(descriptor: int, path: Path) -> None:
        lock(descriptor, path)
        if not removed:
            removed.append(path.unlink())

    monkeypatch.setattr(storage, "_flock", flock)
    assert kept(out) == []
    assert partial_path(out).exists()


LIMITED = """
import errno, json, resource, sys
from pathlib import Path
from planner.sweeps.storage import PartialSweep

resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
partial = PartialSweep(Path(sys.argv[1]), {header})
row = json.loads({row!r})
try:
    for index in range(100):
        partial.append([(index, json.dumps(row | {{"index": index}}))])
except OSError as error:
    sys.exit(0 if error.errno == errno.EFBIG else 1)
sys.exit(2)
"""


class TestFullDisk:
    @pytest.fixture
    def full(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Let the disk take so many more bytes."""
        write, room = os.write, [10**9]

        def short(descriptor: int, data: Any) -> int:
            if room[0] <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            n = write(descriptor, bytes(data)[: min(room[0], 11)])
            room[0] -= n
            return n

        monkeypatch.setattr(storage.os, "write", short)
        return room

    def test_what_was_written_stays_whole(self, out: Path, full: list[int]) -> None:
        partial = PartialSweep(out, HEADER)
        partial.append([(0, text(0)), (1, text(1))])
        before = partial_path(out).read_bytes()
        full[0] = 30
        with pytest.raises(OSError, match="No space left"):
            partial.append([(2, text(2))])
        assert partial_path(out).read_bytes() == before
        full[0] = 10**6
        partial.append([(3, text(3))])
        partial.close()
        assert [row["index"] for row in kept(out)] == [0, 1, 3]

    def test_no_room_for_the_header(self, out: Path, full: list[int]) -> None:
        full[0] = 5
        with pytest.raises(SweepFileError, match=r"partial: the disk is full"):
            PartialSweep(out, HEADER)
        full[0] = 10**6
        assert kept(out) == []

    @pytest.mark.slow
    def test_a_limit_of_the_system_is_met_alike(self, out: Path) -> None:
        """In a process of its own: its files may hold 400 bytes."""
        program = LIMITED.format(header=HEADER, row=text(0))
        assert subprocess.run([sys.executable, "-c", program, out]).returncode == 0
        rows = kept(out)
        assert [row["index"] for row in rows] == list(range(len(rows)))
        assert 0 < len(rows) < 100


def test_a_folder_that_cannot_be_written_is_named(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(storage.os, "open", refuse)
    with pytest.raises(SweepFileError, match=r"cannot write .*Read-only file system") as caught:
        PartialSweep(out, HEADER)
    assert "--out" in caught.value.hint


def test_folders_are_made(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "sweep.csv"
    write(out, 1)
    assert len(kept(out)) == 1
    with pytest.raises(SweepFileError, match="cannot write"):
        PartialSweep(partial_path(out) / "sweep.csv", HEADER)


def test_formats_go_by_the_ending_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    endings = {"a.parquet": "parquet", "a.CSV": "csv", "a.jsonl": "jsonl", "a": "parquet"}
    assert {name: format_of(Path(name)) for name in endings} == endings
    assert format_of(Path("a.csv"), "jsonl") == "jsonl"
    with pytest.raises(UsageError, match="unknown 'xlsx'"):
        format_of(Path("a.csv"), "xlsx")
    monkeypatch.setattr(storage, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pyarrow, which is not installed") as caught:
        format_of(Path("a.parquet"))
    assert "[parquet]" in caught.value.hint
