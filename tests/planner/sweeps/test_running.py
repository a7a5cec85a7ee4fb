"""A sweep from its first to its last row: the same file, however it came about."""

import errno
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.errors import SearchError, SweepFileError, UsageError
from planner.sweeps import run as running
from planner.sweeps import storage
from planner.sweeps.reader import read_sweep
from planner.sweeps.run import (
    SweepExecution,
    SweepProgress,
    SweepRun,
    Twins,
    chunks_of,
    solver_of_worker,
)
from planner.sweeps.storage import header_path, partial_path
from searches.executors.executor import ExecutorError
from tests.planner.sweeps.fakes import FakeSweep

N = 12


def run_sweep(sweep: Any, out: Path, form: str = "", **options: Any) -> SweepRun:
    execution = SweepExecution(**{"executor": "serial", **options})
    return running.run_sweep(sweep, out, execution, form=form)


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """The undisturbed sweep in each format."""
    files = {}
    for form in ("jsonl", "csv", "parquet"):
        out = tmp_path / f"whole.{form}"
        run = run_sweep(FakeSweep(N), out)
        assert (run.n_done, run.n_before, run.exit_code) == (N, 0, 0)
        files[form] = out.read_bytes()
    return files


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "sweep.jsonl"


def test_nothing_but_the_finished_file_is_left(tmp_path: Path) -> None:
    run_sweep(FakeSweep(N), tmp_path / "a" / "sweep.parquet")
    run_sweep(FakeSweep(N), tmp_path / "b" / "sweep.csv")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["sweep.parquet"]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        "sweep.csv",
        "sweep.csv.header.json",
    ]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_finished_sweep_reads_the_same_in_every_format(
    form: str, whole: dict[str, bytes], tmp_path: Path
) -> None:
    found = read_sweep(tmp_path / f"whole.{form}")
    assert found.finished
    assert found.header["sweep_id"] == FakeSweep().sweep_id
    assert found.header["n_rows"] == len(found) == N
    assert found.values["index"] == list(range(0, 2 * N, 2))
    assert found.values["in.x"] == list(range(N))
    assert found.values["in.share"] == [2 * i / 7 for i in range(N)]
    assert found.values["in.text"] == [None if i % 2 == 0 else "a,\n\"b'" for i in range(N)]
    assert found.values["let.flag"] == [2 * i > 4 for i in range(N)]
    assert found.values["in.mixed"] == ["one", *["1"] * (N - 1)]
    assert found.values["reason"][1] == "pools.0.nodes: no inputs at 2; fix: change é"
    assert set(found.values["best.step_time_s"]) == {None}
    column = {c.name: c for c in found.columns}
    assert (column["in.x"].kind, column["in.x"].unit) == ("int", "B")
    assert list(column) == list(found.values)
    assert list(column)[:6] == ["index", "point_id", "status", "reason", "in.x", "in.text"]


def test_processes_give_the_same_bytes(whole: dict[str, bytes], out: Path) -> None:
    run_sweep(FakeSweep(N, delay_s=0.002), out, executor="processes")
    assert out.read_bytes() == whole["jsonl"]


class Shuffled:
    """A stream whose answers come in an order of its own."""

    name = "shuffled"

    def __init__(self, seed: int) -> None:
        self._order = random.Random(seed)

    def answers(
        self, make_run: Callable[[], Any], chunks: Sequence[Sequence[Any]], limit_s: float
    ) -> Iterator[tuple[Any, Any]]:
        run, items = make_run(), [item for chunk in chunks for item in chunk]
        self._order.shuffle(items)
        yield from ((item, run(item)) for item in items)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_answers_leaves_no_trace(
    seed: int, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "make_stream", lambda *_: Shuffled(seed))
    for form, wanted in whole.items():
        run_sweep(FakeSweep(N), tmp_path / f"shuffled.{form}")
        assert (tmp_path / f"shuffled.{form}").read_bytes() == wanted


def stop_after(n: int) -> Callable[[SweepProgress], None]:
    """Return what presses Ctrl-C once so many rows are there."""

    def progress(at: SweepProgress) -> None:
        if at.n_done == n:
            os.kill(os.getpid(), signal.SIGINT)

    return progress


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_ctrl_c_keeps_the_rows_and_the_next_run_goes_on(
    executor: str, whole: dict[str, bytes], out: Path
) -> None:
    first = run_sweep(FakeSweep(N), out, progress=stop_after(5), executor=executor)
    assert first.interrupted
    assert (first.exit_code, first.n_done) == (130, 5)
    assert not out.exists()
    assert len(read_sweep(out)) == 5  # of the partial file
    told: list[SweepProgress] = []
    second = run_sweep(FakeSweep(N), out, progress=told.append, executor=executor)
    assert (second.n_before, second.n_done, second.statuses["failed"]) == (5, N, N - 5)
    assert (told[0].n_done, told[0].left_s) == (5, None)
    assert (told[-1].n_done, told[-1].left_s) == (N, 0.0)
    assert out.read_bytes() == whole["jsonl"]


def test_a_cut_anywhere_is_made_good(whole: dict[str, bytes], out: Path) -> None:
    run_sweep(FakeSweep(N), out, progress=stop_after(6))
    begun = partial_path(out).read_bytes()
    for size in random.Random(8).sample(range(len(begun)), 6):
        partial_path(out).write_bytes(begun[:size])
        assert run_sweep(FakeSweep(N), out).n_damaged == 0
        assert out.read_bytes() == whole["jsonl"]
        out.unlink()


def test_a_damaged_row_is_searched_again_and_counted(whole: dict[str, bytes], out: Path) -> None:
    run_sweep(FakeSweep(N), out, progress=stop_after(6))
    partial = partial_path(out)
    partial.write_bytes(partial.read_bytes().replace(b"no inputs at 22;", b"no inputs at 23;", 1))
    damaged = read_sweep(partial)
    assert (damaged.n_damaged, len(damaged), damaged.finished) == (1, 5, False)
    run = run_sweep(FakeSweep(N), out)
    assert (run.n_damaged, run.n_before) == (1, 5)
    assert out.read_bytes() == whole["jsonl"]


def test_a_crash_after_the_finished_file_was_written_is_made_good(
    whole: dict[str, bytes], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there, and so is the partial one."""
    monkeypatch.setattr(storage.PartialSweep, "remove", lambda self: self.close())
    run_sweep(FakeSweep(N), out)
    monkeypatch.undo()
    assert partial_path(out).exists()
    run_sweep(FakeSweep(N), out)
    assert out.read_bytes() == whole["jsonl"]
    assert not partial_path(out).exists()


def test_a_finished_sweep_is_not_run_again(whole: dict[str, bytes], tmp_path: Path) -> None:
    for form, wanted in whole.items():
        run = run_sweep(FakeSweep(N, deeds={0: "die"}), tmp_path / f"whole.{form}")
        assert (run.n_points, run.n_done, run.n_before, run.statuses) == (N, N, N, Counter())
        assert run.was_finished
        assert (tmp_path / f"whole.{form}").read_bytes() == wanted


@pytest.mark.parametrize(
    "line",
    ["{}", '{"index": 0}', '{"index": "0", "status": "ok"}', '{"index": 0, "status": "fine"}'],
)
def test_lines_that_are_no_points_are_no_sweep(line: str, tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text(line + "\n")
    with pytest.raises(SweepFileError, match="is no sweep: line 1 has no index or no status"):
        read_sweep(tmp_path / "other.jsonl")


def test_another_file_is_not_written_over(whole: dict[str, bytes], tmp_path: Path) -> None:
    for form, wanted in whole.items():
        with pytest.raises(SweepFileError, match="holds another sweep"):
            run_sweep(FakeSweep(N, sweep_id="000000000000"), tmp_path / f"whole.{form}")
        assert (tmp_path / f"whole.{form}").read_bytes() == wanted
    for content in (b"", b"my notes", b"PAR1 my notes", b"{}"):
        other = tmp_path / "other.csv"
        other.write_bytes(content)
        with pytest.raises(SweepFileError, match="exists and is no sweep"):
            run_sweep(FakeSweep(N), other)
        assert other.read_bytes() == content
    with pytest.raises(SweepFileError, match="is a folder"):
        run_sweep(FakeSweep(N), tmp_path)


class TestFaults:
    @pytest.fixture(autouse=True)
    def _short_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(running, "LEAST_HARD_LIMIT_S", 0.3)

    def others(self, out: Path, *strange: int) -> dict[int, tuple[str, str]]:
        """Return status and reason of the strange points; the others have their usual rows."""
        values = read_sweep(out).values
        found = dict(
            zip(
                values["index"],
                zip(values["status"], values["reason"], strict=True),
                strict=True,
            )
        )
        for index in range(0, 2 * N, 2):
            if index not in strange:
                text = f"pools.0.nodes: no inputs at {index}; fix: change é"
                assert found[index] == ("failed", text)
        return {index: found[index] for index in strange}  # type: ignore[return-value, index]

    @pytest.mark.parametrize("executor", ["serial", "processes"])
    def test_a_point_that_hangs_is_a_row(self, executor: str, out: Path) -> None:
        sweep = FakeSweep(N, deeds={4: "hang"})
        run = run_sweep(sweep, out, executor=executor, point_limit_s=0.1)
        assert self.others(out, 4) == {4: ("stopped", "stopped after 0.5 s")}
        assert run.statuses == {"stopped": 1, "failed": N - 1}

    def test_a_point_that_kills_its_worker_is_a_row(self, out: Path) -> None:
        run_sweep(FakeSweep(N, deeds={4: "die"}), out, executor="processes")
        reason = "its worker died 4 times: killed (SIGKILL), perhaps for want of memory"
        assert self.others(out, 4) == {4: ("failed", reason)}

    def test_a_worker_that_is_killed_leaves_no_trace(
        self, whole: dict[str, bytes], out: Path, tmp_path: Path
    ) -> None:
        deeds = {4: "die once", 10: "die once", 22: "die once"}
        sweep = FakeSweep(N, deeds=deeds, folder=str(tmp_path))
        run_sweep(sweep, out, executor="processes")
        assert (tmp_path / "4").exists()
        assert out.read_bytes() == whole["jsonl"]

    def test_an_error_that_nobody_foresaw_is_a_row(self, out: Path) -> None:
        run_sweep(FakeSweep(N, deeds={4: "bug", 6: "memory"}), out)
        assert self.others(out, 4, 6) == {
            4: ("failed", "unexpected RuntimeError: two lines about <object object at 0x...>"),
            6: ("failed", "unexpected MemoryError"),
        }

    def test_workers_that_cannot_be_had_are_one_error(
        self, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Broken(Shuffled):
            def answers(self, *args: Any) -> Iterator[tuple[Any, Any]]:
                yield next(super().answers(*args))
                raise ExecutorError("Ray does not answer", "start it")

        monkeypatch.setattr(running, "make_stream", lambda *_: Broken(0))
        with pytest.raises(SearchError, match=r"Ray does not answer; 1 of 12 points are in .*"):
            run_sweep(FakeSweep(N), out)
        assert len(read_sweep(out)) == 1


class TestFullDisk:
    """Neither the rows nor the finished file can be written."""

    @pytest.mark.parametrize("executor", ["serial", "processes"])
    def test_while_points_are_searched(
        self, executor: str, whole: dict[str, bytes], out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append = storage.PartialSweep.append

        def full(self: storage.PartialSweep, rows: Any) -> None:
            if len(self.done) == 7:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            append(self, rows)

        monkeypatch.setattr(storage.PartialSweep, "append", full)
        with pytest.raises(SweepFileError, match="the disk is full; 7 of 12 points are in") as e:
            run_sweep(FakeSweep(N), out, executor=executor)
        assert "same command again" in e.value.hint
        monkeypatch.undo()
        assert run_sweep(FakeSweep(N), out).n_before == 7
        assert out.read_bytes() == whole["jsonl"]

    @pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
    def test_while_the_finished_file_is_written(
        self,
        form: str,
        whole: dict[str, bytes],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        out = tmp_path / "full" / f"sweep.{form}"
        cell, calls = storage.cell, []

        def full(kind: str, value: Any) -> Any:
            calls.append(value)
            if len(calls) > 500:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return cell(kind, value)

        monkeypatch.setattr(storage, "cell", full)
        with pytest.raises(SweepFileError, match="the disk is full; 12 of 12 points are in"):
            run_sweep(FakeSweep(N), out)
        monkeypatch.undo()
        assert {path.name for path in out.parent.iterdir()} <= {
            partial_path(out).name,
            header_path(out).name,
        }
        run = run_sweep(FakeSweep(N), out)
        assert (run.n_before, run.was_finished) == (N, False)
        assert out.read_bytes() == whole[form]


def test_a_worker_of_another_version_is_refused() -> None:
    sweep = FakeSweep(N)
    (chunk, *_) = chunks_of(sweep.points())
    same = solver_of_worker(sweep, 1.0, sweep.header().get("calibration"))
    assert same(chunk[0])[0][0] == chunk[0].points[0].index
    with pytest.raises(ExecutorError, match="another version or catalogue of planner"):
        solver_of_worker(sweep, 1.0, {"version": "0.0.1"})


def test_a_sweep_that_yields_no_row_leaves_no_file(out: Path) -> None:
    class Empty(FakeSweep):
        def points(self) -> Any:
            raise UsageError("no point keeps the constraints")

    with pytest.raises(UsageError, match="no point keeps"):
        run_sweep(Empty(), out)
    assert list(out.parent.iterdir()) == []


def test_points_are_searched_in_chunks_that_share_work() -> None:
    points = list(FakeSweep(N).points())
    same = [replace(point, costless_key="one") for point in points[:3]]
    found = [
        [[p.index for p in twins.points] for twins in chunk]
        for chunk in chunks_of([*same, *points[3:]])
    ]
    assert found == [[[20], [22]], [[10], [12], [14], [16], [18]], [[0, 2, 4], [6], [8]]]


def test_very_many_twins_are_cut_so_that_no_search_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MAX_TWINS", 5)
    points = [replace(p, costless_key="one", shared_key="") for p in FakeSweep(N).points()]
    (chunk,) = chunks_of(points)
    assert [len(twins.points) for twins in chunk] == [5, 5, 2]
    assert isinstance(chunk[0], Twins)


def test_bad_options_are_refused_first(tmp_path: Path) -> None:
    for options, said in (
        ({"executor": "dask"}, "unknown 'dask'"),
        ({"executor": "processes", "ray_address": "head:6379"}, "does not go with"),
        ({"form": "xlsx"}, "unknown 'xlsx'"),
        ({"point_limit_s": -1.0}, "above 0 s"),
    ):
        with pytest.raises(UsageError, match=said):
            run_sweep(FakeSweep(N), tmp_path / "a.csv", **options)
    assert list(tmp_path.iterdir()) == []
