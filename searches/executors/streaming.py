"""Work whose answers are wanted as they come, from workers that may die and items that may hang.

An executor (`searches.executors.executor`) answers in order and as a whole. A stream answers every
item on its own, whenever the answer is ready, and an item that takes too long or kills its worker
costs the others nothing: it is `Lost`, with the reason. Workers get their items one by one from
the process that waits for them, so that it knows at any time which item is being worked on.
"""

import math
import os
import pickle
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Protocol, TypeVar

from searches.executors.executor import (
    MAX_RETRIES,
    NAMES,
    ExecutorError,
    RayExecutor,
    can_fork,
    make_executor,
    n_cpus,
)

Item = TypeVar("Item", bound=Hashable)
Answer = TypeVar("Answer")
MakeRun = Callable[[], Callable[[Item], Answer]]
"""Called once by every worker: makes the function that answers items, with what they share."""

MAX_MACHINE_DEATHS = 10
"""Machines that may be lost under an item before it is given up: seldom is that its own doing."""
LOOK_S = 2.0
"""Time between two looks at how many workers there should be, seconds."""
NO_WORKER_S = 600.0
"""How long work waits while there is no worker at all, seconds."""
BATCH_S, MAX_BATCH = 0.25, 16
"""Items handed to a Ray worker together: as many as take so long, up to so many. Each call costs
the process that waits a millisecond, and a cluster may have a thousand workers."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Why an item has no answer."""

    reason: str
    over_limit: bool
    """It was stopped at the time limit; else its workers died."""


class Stream(Protocol):
    """Answers items in any order; the names are those of executors."""

    name: str

    def answers(
        self,
        make_run: MakeRun[Item, Answer],
        chunks: Sequence[Sequence[Item]],
        limit_s: float = math.inf,
    ) -> Iterator[tuple[Item, Answer | Lost]]:
        """Yield every item once with its answer, or `Lost`, as soon as that is known.

        A worker takes the items of a chunk one after the other, so that they can share work; the
        rest of a long chunk is shared out where workers would be idle. No item occurs twice. An
        item that takes more than `limit_s` seconds is lost. An exception of `run` comes through;
        `ExecutorError` when no worker can be started. Workers end with the generator.
        """
        ...


class _OverLimit(BaseException):
    """The time of an item in this process is up; no handler of `Exception` may keep it."""


@contextmanager
def _alarm(limit_s: float) -> Iterator[None]:
    """Raise `_OverLimit` in the body after so many seconds, where signals can be had."""
    able = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not able or math.isinf(limit_s):
        yield
        return

    def ring(*_: object) -> None:
        raise _OverLimit

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class SerialStream:
    """Answers in this process.

    The limit interrupts an item between two steps of Python, in the main thread and where there
    are signals; a library that does not return, or runs out of memory, takes the process with it.
    """

    name = "serial"

    def answers(
        self,
        make_run: MakeRun[Item, Answer],
        chunks: Sequence[Sequence[Item]],
        limit_s: float = math.inf,
    ) -> Iterator[tuple[Item, Answer | Lost]]:
        """Yield the items in their order with their answers (`Stream.answers`)."""
        run = make_run()
        for item in (item for chunk in chunks for item in chunk):
            answer: Answer | Lost
            try:
                with _alarm(limit_s):
                    answer = run(item)
            except _OverLimit:
                answer = Lost(_late(limit_s), over_limit=True)
                run = make_run()  # what items share may be half made
            yield item, answer


def _late(limit_s: float) -> str:
    return f"stopped after {limit_s:g} s"


@dataclass(frozen=True, slots=True)
class _Event:
    """What a worker did."""

    worker: Any
    kind: str
    """`ready`, `answers`, `raised` (`value` is the exception) or `died` (`value` says how)."""
    value: Any = None
    machine_died: bool = False


class _Workers(Protocol):
    """Workers of one kind: how to start them, to give them items, and to hear from them."""

    def n_wanted(self) -> int:
        """Return how many there should be now."""
        ...

    def n_at_once(self, item_s: float) -> int:
        """Return how many items to give at once that take so many seconds each."""
        ...

    def start(self) -> Any:
        """Start one and return it."""
        ...

    def give(self, worker: Any, items: Sequence[Any]) -> None:
        """Give items to a worker that is ready; one that has died is an event later."""
        ...

    def events(self, timeout_s: float) -> list[_Event]:
        """Return what workers did since the last call; wait so long at most for the first."""
        ...

    def stop(self, worker: Any) -> None:
        """End a worker at once, whatever it does; nothing more is heard of it."""
        ...

    def close(self) -> None:
        """End them all."""
        ...


@dataclass(slots=True)
class _Post(Generic[Item]):
    """What one worker has to do."""

    since: float
    """When it began with what it has."""
    ready: bool = False
    batch: list[Item] = field(default_factory=list)
    """What it has."""
    queue: deque[Item] = field(default_factory=deque)
    """The rest of its chunk."""


class _Crew(Generic[Item, Answer]):
    """Gives items to workers, and deals with those that die or are late."""

    def __init__(
        self, workers: _Workers, chunks: Sequence[Sequence[Item]], limit_s: float
    ) -> None:
        self._workers = workers
        self._limit_s = limit_s
        self._left = deque(deque(chunk) for chunk in chunks if chunk)
        """Chunks, or the rest of them, that no worker has."""
        self._again: deque[Item] = deque()
        """Items whose worker died, to be tried alone."""
        self._posts: dict[Any, _Post[Item]] = {}
        self._deaths: dict[tuple[Item, bool], int] = {}
        self._item_s = math.inf
        self._failed_starts = 0
        self._n_wanted = 0
        self._looked = -math.inf
        self._last_ready = time.monotonic()

    def answers(self) -> Iterator[tuple[Item, Answer | Lost]]:
        """Yield every item with its answer."""
        while self._n_waiting() or any(post.batch for post in self._posts.values()):
            self._staff()
            self._give()
            value = self._hear() + self._stop_late()
            self._give()  # so that nobody is idle while the answers are dealt with
            yield from value

    def _n_waiting(self) -> int:
        """Return how many items no worker has begun with."""
        queued = sum(len(post.queue) for post in self._posts.values())
        return len(self._again) + queued + sum(map(len, self._left))

    def _staff(self) -> None:
        """Start workers where there are too few for the work that waits."""
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._looked, self._n_wanted = now, self._workers.n_wanted()
        n_ready = sum(post.ready for post in self._posts.values())
        n_starting = len(self._posts) - n_ready
        for _ in range(min(self._n_wanted - len(self._posts), self._n_waiting() - n_starting)):
            self._posts[self._workers.start()] = _Post(now)
        if n_ready:
            self._last_ready = now
        elif now - self._last_ready > NO_WORKER_S:
            raise ExecutorError(
                f"there has been no worker for {NO_WORKER_S:g} s",
                "add machines to the cluster, or --executor processes",
            )

    def _give(self) -> None:
        """Give items to every worker that has none."""
        for worker, post in self._posts.items():
            if post.ready and not post.batch:
                post.batch, post.since = self._next(post), time.monotonic()
                if post.batch:
                    self._workers.give(worker, post.batch)

    def _next(self, post: _Post[Item]) -> list[Item]:
        """Return items of the worker's chunk, of another one, or what is to be tried again."""
        if not post.queue and self._left:
            post.queue = self._left.popleft()
        if not post.queue and not self._again:
            longest = max((x.queue for x in self._posts.values()), key=len)
            for _ in range(-(-len(longest) // 2)):
                post.queue.appendleft(longest.pop())
        if post.queue:
            n = min(self._workers.n_at_once(self._item_s), len(post.queue))
            return [post.queue.popleft() for _ in range(n)]
        return [self._again.popleft()] if self._again else []

    def _hear(self) -> list[tuple[Item, Answer | Lost]]:
        """Wait for workers; return what is answered or lost."""
        now = time.monotonic()
        due = [p.since + self._limit_s * len(p.batch) for p in self._posts.values() if p.batch]
        results: list[tuple[Item, Answer | Lost]] = []
        for event in self._workers.events(max(0.0, min([LOOK_S, *(x - now for x in due)]))):
            post = self._posts[event.worker]
            if event.kind == "ready":
                post.ready, self._failed_starts = True, 0
            elif event.kind == "answers":
                each = (time.monotonic() - post.since) / len(post.batch)
                first = math.isinf(self._item_s)
                self._item_s = each if first else 0.8 * self._item_s + 0.2 * each
                results += zip(post.batch, event.value, strict=True)
                post.batch = []
            elif event.kind == "raised":
                raise event.value
            else:
                results += self._bury(event)
        return results

    def _leave(self, worker: Any) -> _Post[Item]:
        """Take a worker off the list; what it had not begun is left to the others."""
        post = self._posts.pop(worker)
        if post.queue:
            self._left.appendleft(post.queue)
        self._looked = -math.inf
        return post

    def _bury(self, event: _Event) -> list[tuple[Item, Answer | Lost]]:
        """Have the items of a dead worker tried again; return those that are given up."""
        post = self._leave(event.worker)
        if not post.ready:
            self._failed_starts += 1
            if self._failed_starts > MAX_RETRIES and not event.machine_died:
                raise ExecutorError(
                    f"{self._failed_starts} workers in a row died at their start: {event.value}",
                    "--executor serial, or free memory on the machine",
                )
            time.sleep(min(LOOK_S, 0.05 * 2.0**self._failed_starts))
        maximum = MAX_MACHINE_DEATHS if event.machine_died else MAX_RETRIES
        given_up: list[tuple[Item, Answer | Lost]] = []
        for item in post.batch:
            key = item, event.machine_died
            self._deaths[key] = self._deaths.get(key, 0) + 1
            if self._deaths[key] > maximum:
                reason = f"its worker died {self._deaths[key]} times: {event.value}"
                given_up.append((item, Lost(reason, over_limit=False)))
            else:
                self._again.append(item)
        return given_up

    def _stop_late(self) -> list[tuple[Item, Answer | Lost]]:
        """End workers that take too long; an item that had its worker to itself is lost."""
        now = time.monotonic()
        lost: list[tuple[Item, Answer | Lost]] = []
        for worker, post in list(self._posts.items()):
            if post.batch and now - post.since > self._limit_s * len(post.batch):
                self._workers.stop(worker)
                self._leave(worker)
                if len(post.batch) == 1:
                    lost.append((post.batch[0], Lost(_late(self._limit_s), over_limit=True)))
                else:
                    self._again.extend(post.batch)
        return lost


def _end_with_parent(life: Connection) -> None:
    """End this process as soon as nobody holds the other end of `life`: the parent is gone."""
    with suppress(EOFError, OSError):
        life.recv_bytes()
    os._exit(1)


def _sendable(error: Exception) -> Exception:
    """Return an exception that survives a pipe."""
    try:
        return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return]
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _work(
    link: Connection,
    life: Connection,
    inherited: Sequence[Connection],
    make_run: MakeRun[Any, Any],
) -> None:
    """Answer items until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    for end in inherited:  # held here, the other workers would not hear that the parent has gone
        end.close()
    threading.Thread(target=_end_with_parent, args=(life,), daemon=True).start()
    try:
        run = make_run()
        link.send(("ready", None))
        while True:
            items = link.recv()
            link.send(("answers", [run(item) for item in items]))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        link.send(("raised", _sendable(error)))


@dataclass(frozen=True, slots=True, eq=False)
class _Process:
    process: Any
    link: Connection
    life: Connection


class _Processes:
    """Workers on this machine, forked where that is safe (`can_fork`)."""

    def __init__(self, make_run: MakeRun[Any, Any], n_workers: int) -> None:
        import multiprocessing

        self._forks = can_fork()
        self._context: Any = multiprocessing.get_context("fork" if self._forks else "spawn")
        self._make_run = make_run
        self._n_workers = n_workers
        self._workers: list[_Process] = []

    def n_wanted(self) -> int:
        return self._n_workers

    def n_at_once(self, item_s: float) -> int:
        return 1

    def start(self) -> _Process:
        link, its_link = self._context.Pipe()
        its_life, life = self._context.Pipe(duplex=False)
        inherited = [end for x in self._workers for end in (x.link, x.life)] + [link, life]
        process = self._context.Process(
            target=_work,
            args=(its_link, its_life, inherited if self._forks else [], self._make_run),
            daemon=True,
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of any thread; those of BLAS get over a fork by themselves.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        its_link.close()
        its_life.close()
        worker = _Process(process, link, life)
        self._workers.append(worker)
        return worker

    def give(self, worker: _Process, items: Sequence[Any]) -> None:
        with suppress(OSError):
            worker.link.send(items)

    def events(self, timeout_s: float) -> list[_Event]:
        by_end = {end: x for x in self._workers for end in (x.link, x.process.sentinel)}
        heard = {id(by_end[end]): by_end[end] for end in wait(list(by_end), timeout_s)}
        results = []
        for worker in heard.values():
            try:
                # What it said before it died is still to be heard.
                if worker.link.poll():
                    results.append(_Event(worker, *worker.link.recv()))
                    continue
            except (EOFError, OSError):
                pass
            self.stop(worker)
            results.append(_Event(worker, "died", _how_it_died(worker.process.exitcode)))
        return results

    def stop(self, worker: _Process) -> None:
        self._workers.remove(worker)
        # One that has ended by itself keeps its own exit code.
        worker.process.join(0.0 if worker.process.is_alive() else None)
        worker.process.kill()
        worker.process.join()
        worker.link.close()
        worker.life.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in list(self._workers):
            self.stop(worker)


def _how_it_died(exit_code: int) -> str:
    """Return the end of a process in words."""
    if exit_code == -getattr(signal, "SIGKILL", 9):
        return "killed (SIGKILL), perhaps for want of memory"
    if exit_code < 0:
        return f"ended by {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"


class ProcessStream:
    """Answers in worker processes on this machine."""

    name = "processes"

    def __init__(self, n_workers: int | None = None) -> None:
        self._n_workers = n_workers or n_cpus()

    def answers(
        self,
        make_run: MakeRun[Item, Answer],
        chunks: Sequence[Sequence[Item]],
        limit_s: float = math.inf,
    ) -> Iterator[tuple[Item, Answer | Lost]]:
        """Yield every item with its answer (`Stream.answers`)."""
        workers = _Processes(make_run, self._n_workers)
        try:
            yield from _Crew[Item, Answer](workers, chunks, limit_s).answers()
        finally:
            workers.close()


class _RayWorker:
    """What runs in a Ray actor."""

    def __init__(self, make_run: MakeRun[Any, Any]) -> None:
        self._run = make_run()

    def machine(self) -> str:
        """Return the id of the Ray node; that it comes says that the worker is ready."""
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return node

    def answers(self, items: Sequence[Any]) -> list[Any]:
        return [self._run(item) for item in items]


@dataclass(slots=True, eq=False)
class _RayPost:
    actor: Any
    machine: str = ""


class _RayWorkers:
    """Ray actors, one for each processor that the cluster has at the time."""

    def __init__(self, make_run: MakeRun[Any, Any]) -> None:
        import ray

        self._make_run = ray.put(make_run)
        remote: Any = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)
        self._start: Any = remote(_RayWorker)
        self._calls: dict[Any, tuple[_RayPost, str]] = {}

    def n_wanted(self) -> int:
        import ray

        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        return max(1, int(resources.get("CPU", 1)))

    def n_at_once(self, item_s: float) -> int:
        return max(1, min(MAX_BATCH, int(BATCH_S / max(item_s, 1e-3))))

    def start(self) -> _RayPost:
        worker = _RayPost(self._start.remote(self._make_run))
        self._calls[worker.actor.machine.remote()] = worker, "ready"
        return worker

    def give(self, worker: _RayPost, items: Sequence[Any]) -> None:
        self._calls[worker.actor.answers.remote(items)] = worker, "answers"

    def events(self, timeout_s: float) -> list[_Event]:
        import ray

        if not self._calls:
            time.sleep(min(timeout_s, 0.1))
            return []
        calls = list(self._calls)
        ray.wait(calls, timeout=timeout_s)
        done, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        return [self._event(call) for call in done]

    def _event(self, call: Any) -> _Event:
        import ray
        from ray.exceptions import RayError, RayTaskError

        worker, kind = self._calls.pop(call)
        try:
            value = ray.get(call)
        except RayTaskError as error:
            return _Event(worker, "raised", error.cause)
        except RayError as error:
            return self._died(worker, error)
        if kind == "ready":
            worker.machine = value
        return _Event(worker, kind, value)

    def _died(self, worker: _RayPost, error: Exception) -> _Event:
        """Return the event of an actor that does not answer: it, or its machine, has died."""
        import ray
        from ray.exceptions import RayActorError

        self.stop(worker)
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        alive = {node["NodeID"] for node in nodes if node["Alive"]}
        if worker.machine and worker.machine not in alive:
            return _Event(worker, "died", "the machine has left the Ray cluster", True)
        if isinstance(error, RayActorError) and error.actor_init_failed:
            messages = [line for line in str(error).splitlines() if line.strip()]
            return _Event(
                worker,
                "raised",
                ExecutorError(
                    f"a Ray worker cannot begin: {messages[-1].strip()}",
                    "install the same version of planner on all machines of the cluster",
                ),
            )
        return _Event(worker, "died", "a Ray worker ended, perhaps for want of memory")

    def stop(self, worker: _RayPost) -> None:
        import ray

        self._calls = {call: x for call, x in self._calls.items() if x[0] is not worker}
        ray.kill(worker.actor)

    def close(self) -> None:
        for worker in {id(x): x for x, _ in self._calls.values()}.values():
            self.stop(worker)


class RayStream:
    """Answers in Ray actors, on this machine or on a running cluster, which may grow and shrink.

    The packages of this project must be importable on the workers.
    """

    name = "ray"

    def __init__(self, address: str | None = None, n_cpus: int | None = None) -> None:
        self._executor = RayExecutor(address, n_cpus)

    def answers(
        self,
        make_run: MakeRun[Item, Answer],
        chunks: Sequence[Sequence[Item]],
        limit_s: float = math.inf,
    ) -> Iterator[tuple[Item, Answer | Lost]]:
        """Yield every item with its answer (`Stream.answers`); starts or joins Ray."""
        self._executor.prepare(lambda enough: 0)
        from ray.exceptions import RayError

        workers = _RayWorkers(make_run)
        try:
            yield from _Crew[Item, Answer](workers, chunks, limit_s).answers()
        except (RayError, ConnectionError) as error:
            raise ExecutorError(
                f"the Ray cluster is lost: {str(error).splitlines()[0]}",
                "start it again, or --executor processes",
            ) from error
        finally:
            with suppress(RayError, ConnectionError):
                workers.close()
            self._executor.close()


def make_stream(name: str, address: str | None = None) -> Stream:
    """Return the stream called `name`, one of `searches.executors.executor.NAMES`.

    `automatic` is Ray where an address is given, else processes where there are several
    processors. `ValueError` for an unknown name.
    """
    make_executor(name, address)
    if name == "ray" or address:
        return RayStream(address)
    if name == "serial" or (name == "automatic" and n_cpus() == 1):
        return SerialStream()
    return ProcessStream()


__all__ = ["NAMES", "Lost", "ProcessStream", "RayStream", "SerialStream", "Stream", "make_stream"]
