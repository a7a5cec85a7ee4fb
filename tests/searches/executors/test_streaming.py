"""Streams: every item is answered once, whatever becomes of its worker."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import searches
from searches.executors import streaming
from searches.executors.executor import MAX_RETRIES, ExecutorError
from searches.executors.streaming import (
    Lost,
    ProcessStream,
    RayStream,
    SerialStream,
    Stream,
    make_stream,
)
from tests.searches.work import always_dies, fails_at_three, process_id, square

ROOT = Path(searches.__file__).parents[1]


def running(function: Callable[[Any], Any]) -> Callable[[], Callable[[Any], Any]]:
    """Return what a worker calls to have `function`."""
    return partial(partial, function)


def count_up(item: int, seen: list[int]) -> tuple[int, int]:
    time.sleep(0.02)
    seen.append(item)
    return os.getpid(), len(seen)


def with_memory() -> Callable[[int], tuple[int, int]]:
    return partial(count_up, seen=[])


def hangs_at_two(item: int) -> int:
    if item == 2:
        time.sleep(60.0)
    return item


def dies_at_first(item: int, folder: str) -> int:
    """Return the item, after killing the worker that first came upon it."""
    mark = Path(folder) / str(item)
    if item % 5 == 0 and not mark.exists():
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def cannot_begin() -> Callable[[int], int]:
    raise ImportError("no such library here")


def dies_at_its_start() -> Callable[[int], int]:
    os._exit(3)


class StreamContract:
    """What every stream does; subclasses say which."""

    @pytest.fixture
    def stream(self) -> Iterator[Stream]:
        raise NotImplementedError

    def test_every_item_is_answered_once(self, stream: Stream) -> None:
        chunks = [range(0, 7), [], range(7, 8), range(8, 30)]
        found = list(stream.answers(running(square), chunks))
        assert sorted(found) == [(x, x * x) for x in range(30)]

    def test_no_items_give_no_answers(self, stream: Stream) -> None:
        assert list(stream.answers(running(square), [])) == []

    def test_the_first_items_of_a_chunk_share_a_worker(self, stream: Stream) -> None:
        """And what it remembers; the last ones may be left to others."""
        found = dict(stream.answers(with_memory, [range(6)]))
        (worker, n), (same, n_later) = found[0], found[1]
        assert (same, n_later) == (worker, n + 1)

    def test_an_exception_comes_through(self, stream: Stream) -> None:
        with pytest.raises(ValueError, match="shard 3 is broken"):
            list(stream.answers(running(fails_at_three), [range(5)]))
        assert sorted(stream.answers(running(square), [[2], [3]])) == [(2, 4), (3, 9)]

    def test_an_item_that_hangs_is_stopped_alone(self, stream: Stream) -> None:
        found = dict(stream.answers(running(hangs_at_two), [range(6)], limit_s=0.5))
        assert found.pop(2) == Lost("stopped after 0.5 s", over_limit=True)
        assert found == {x: x for x in (0, 1, 3, 4, 5)}

    def test_has_a_name_that_make_stream_knows(self, stream: Stream) -> None:
        assert type(make_stream(stream.name)) is type(stream)


class TestSerial(StreamContract):
    @pytest.fixture
    def stream(self) -> Iterator[Stream]:
        return SerialStream()

    def test_nothing_rings_after_the_last_item(self, stream: Stream) -> None:
        list(stream.answers(running(square), [[1]], limit_s=5.0))
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


class Survives:
    """What streams with workers do besides."""

    def test_work_whose_worker_died_is_done_again(self, stream: Stream, tmp_path: Path) -> None:
        make = running(partial(dies_at_first, folder=str(tmp_path)))
        found = list(stream.answers(make, [range(8), range(8, 16)]))
        assert sorted(found) == [(x, x) for x in range(16)]
        assert {path.name for path in tmp_path.iterdir()} == {"0", "5", "10", "15"}

    def test_only_what_always_kills_its_worker_is_given_up(self, stream: Stream) -> None:
        found = dict(stream.answers(running(always_dies), [range(4), range(4, 6)]))
        lost = found.pop(1)
        assert isinstance(lost, Lost)
        assert not lost.over_limit
        assert lost.reason.startswith(f"its worker died {1 + MAX_RETRIES} times: ")
        assert found == {x: x for x in (0, 2, 3, 4, 5)}

    def test_items_are_answered_elsewhere(self, stream: Stream) -> None:
        found = dict(stream.answers(running(process_id), [range(4)]))
        assert os.getpid() not in found.values()

    def test_a_worker_that_cannot_begin_says_why(self, stream: Stream) -> None:
        with pytest.raises((ExecutorError, ImportError), match="no such library here"):
            list(stream.answers(cannot_begin, [[1]]))


class TestProcesses(StreamContract, Survives):
    @pytest.fixture
    def stream(self) -> Iterator[Stream]:
        return ProcessStream(2)

    def test_a_long_chunk_is_shared_out(self, stream: Stream) -> None:
        found = dict(stream.answers(running(process_id), [range(8)]))
        assert len(set(found.values())) == 2

    def test_the_end_of_a_worker_is_named(self, stream: Stream) -> None:
        found = dict(stream.answers(running(always_dies), [[1]]))
        assert found[1] == Lost("its worker died 4 times: exit code 1", over_limit=False)

    def test_workers_that_die_at_their_start_are_an_error(self, stream: Stream) -> None:
        with pytest.raises(ExecutorError, match="4 workers in a row died at their start: exit"):
            list(stream.answers(dies_at_its_start, [[1]]))

    def test_no_worker_outlives_a_stream_that_is_left(self, stream: Stream) -> None:
        answers = stream.answers(running(process_id), [range(100)])
        workers = {next(answers)[1] for _ in range(6)}
        answers.close()
        for worker in workers:
            with pytest.raises(ProcessLookupError):
                os.kill(worker, 0)

    def test_workers_end_with_the_process_that_waits(self, stream: Stream, tmp_path: Path) -> None:
        """Killed, it cannot tell them, and they are in the middle of an item of a minute."""
        child = os.fork()
        if not child:
            make = running(partial(says_and_hangs, folder=str(tmp_path)))
            list(stream.answers(make, [[1], [2]]))
        workers: list[int] = []
        while len(workers) < 2:
            time.sleep(0.01)
            workers = [int(path.name) for path in tmp_path.iterdir()]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        until = time.monotonic() + 30.0
        while any(map(is_alive, workers)) and time.monotonic() < until:
            time.sleep(0.01)
        assert not any(map(is_alive, workers))


@pytest.mark.ray
@pytest.mark.filterwarnings("default")  # Ray's own: unclosed files and sockets at shutdown
@pytest.mark.usefixtures("local_ray")
class TestRay(StreamContract, Survives):
    @pytest.fixture
    def stream(self) -> Iterator[Stream]:
        return RayStream()

    def test_workers_that_die_at_their_start_are_an_error(self, stream: Stream) -> None:
        with pytest.raises(ExecutorError, match="4 workers in a row died at their start"):
            list(stream.answers(dies_at_its_start, [[1]]))


def says_and_hangs(item: int, folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(60.0)


def is_alive(process: int) -> bool:
    """Tell whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_automatic_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "n_cpus", lambda: 1)
    assert isinstance(make_stream("automatic"), SerialStream)
    monkeypatch.setattr(streaming, "n_cpus", lambda: 4)
    assert isinstance(make_stream("automatic"), ProcessStream)
    assert isinstance(make_stream("automatic", "head:6379"), RayStream)
    with pytest.raises(ValueError, match=r"unknown executor 'dask'"):
        make_stream("dask")
