"""Where shards of a search are evaluated. Every executor returns results in shard order.

A shard takes 4 to 10 ms, so the executors that hand work over put several into one task.
"""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, redirect_stdout
from typing import Any, Protocol, TypeVar

Shard = TypeVar("Shard")
Answer = TypeVar("Answer")

NAMES = ("automatic", "serial", "processes", "ray")
"""Executors that `make_executor` knows."""

SHARDS_PER_TASK = 16
"""Most shards handed over at once: about 0.1 s of work against 1 ms for the hand-over."""
TASKS_PER_WORKER = 4
"""Tasks per worker between two looks at the clock; several, so that none waits for the slowest."""
MAX_RETRIES = 3
"""Times that work whose worker died is tried again."""
CONNECT_TIMEOUT_S = 5.0
"""How long a Ray cluster may take to accept a connection."""

PLANS_FOR_PROCESSES = 360_000
"""Plans to be priced from which worker processes pay: of the sizes that
`benchmarks/bench_executors.py` runs on two cores, the first where they are faster (359,192
plans: 0.55 s alone, 1.3 times as fast; at 123,271 a third slower). The table is in
docs/search.md."""
PLANS_FOR_RAY = 20_000_000
"""Plans to be priced from which a Ray cluster pays for being joined."""


class ExecutorError(RuntimeError):
    """An executor cannot start, or its workers keep dying. `fix` says what to change."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


class Executor(Protocol):
    """Runs one function over many shards and keeps their order."""

    name: str

    @property
    def group_size(self) -> int:
        """Shards worth handing over at once; a search may stop between groups."""
        ...

    def prepare(self, count_plans: Callable[[int], int]) -> None:
        """Be told, before the first shard, how to find out the size of the work.

        `count_plans(enough)` estimates the plans to be priced; beyond `enough` it stops counting.
        """
        ...

    def map(self, run: Callable[[Shard], Answer], shards: Sequence[Shard]) -> list[Answer]:
        """Return `run(shard)` for every shard, in the order of `shards`."""
        ...

    def close(self) -> None:
        """Give back what the executor holds."""
        ...


class SerialExecutor:
    """Evaluates in this process."""

    name = "serial"
    group_size = 1

    def prepare(self, count_plans: Callable[[int], int]) -> None:
        """Do nothing: any size will do."""

    def close(self) -> None:
        """Do nothing: this process is all there is."""

    def map(self, run: Callable[[Shard], Answer], shards: Sequence[Shard]) -> list[Answer]:
        """Return `run(shard)` for every shard, one after the other."""
        return [run(shard) for shard in shards]


def n_cpus() -> int:
    """Return the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_tasks(shards: Sequence[Shard], n_workers: int) -> list[Sequence[Shard]]:
    """Cut shards into tasks: enough to keep all workers busy, none above `SHARDS_PER_TASK`.

    >>> [list(task) for task in in_tasks(range(5), 1)]
    [[0, 1], [2, 3], [4]]
    """
    size = -(-len(shards) // (TASKS_PER_WORKER * n_workers))
    size = max(1, min(size, SHARDS_PER_TASK))
    return [shards[i : i + size] for i in range(0, len(shards), size)]


def _run_task(run: Callable[[Shard], Answer], shards: Sequence[Shard]) -> list[Answer]:
    return [run(shard) for shard in shards]


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that waits; workers end with their pool."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def can_fork() -> bool:
    """Tell whether forking is safe: on Linux, while no other Python thread may hold a lock."""
    return sys.platform == "linux" and threading.active_count() == 1


class ProcessExecutor:
    """Evaluates shards in worker processes on this machine.

    Workers are forked where that is safe (30 ms); elsewhere they are started afresh, which takes
    some 0.5 s and, as always in Python, needs a main script that can be imported. When a worker
    dies its pool is started again and the tasks without an answer are run again.
    """

    name = "processes"

    def __init__(self, n_workers: int | None = None) -> None:
        self._n_workers = n_workers or n_cpus()
        self._pool: ProcessPoolExecutor | None = None

    @property
    def group_size(self) -> int:
        """Enough for `TASKS_PER_WORKER` full tasks on every worker."""
        return self._n_workers * TASKS_PER_WORKER * SHARDS_PER_TASK

    def prepare(self, count_plans: Callable[[int], int]) -> None:
        """Do nothing: the pool starts with the first shard."""

    def _submit(
        self, run: Callable[[Shard], Answer], tasks: Sequence[Sequence[Shard]]
    ) -> list[Future[list[Answer]]]:
        import multiprocessing

        with warnings.catch_warnings():
            # Python 3.12 warns of any thread; those of BLAS get over a fork by themselves.
            warnings.simplefilter("ignore", DeprecationWarning)
            if self._pool is None:
                self._pool = ProcessPoolExecutor(
                    self._n_workers,
                    mp_context=multiprocessing.get_context("fork" if can_fork() else "spawn"),
                    initializer=_ignore_interrupts,
                )
            return [self._pool.submit(_run_task, run, task) for task in tasks]

    def map(self, run: Callable[[Shard], Answer], shards: Sequence[Shard]) -> list[Answer]:
        """Return `run(shard)` for every shard, in order; the first call starts the workers."""
        from concurrent.futures.process import BrokenProcessPool

        tasks = in_tasks(shards, self._n_workers)
        answers: dict[int, list[Answer]] = {}
        for _ in range(1 + MAX_RETRIES):
            left = [i for i in range(len(tasks)) if i not in answers]
            if not left:
                break
            try:
                futures = self._submit(run, [tasks[i] for i in left])
            except BrokenProcessPool:
                self.close()
                continue
            for i, future in zip(left, futures, strict=True):
                try:
                    answers[i] = future.result()
                except BrokenProcessPool:
                    self.close()
        if len(answers) < len(tasks):
            raise ExecutorError(
                f"worker processes died {1 + MAX_RETRIES} times in a row, perhaps for want of "
                "memory",
                "--executor serial, or free memory on this machine",
            )
        return [answer for i in range(len(tasks)) for answer in answers[i]]

    def close(self) -> None:
        """Stop the workers; tasks that have not begun are dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def check_reachable(address: str) -> None:
    """Raise `OSError` when nothing listens at HOST:PORT; Ray itself would try for minutes.

    Addresses of other forms (`auto`, an empty one) are left to Ray.
    """
    import socket

    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()


def ray_package() -> Any:
    """Return the package ray, imported; `ExecutorError` where it is not installed."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ExecutorError(
            f"the executor ray needs the package {error.name}, which is not installed",
            "pip install 'parallelism-planner[ray]', or --executor processes",
        ) from None
    return ray


class RayExecutor:
    """Evaluates shards as Ray tasks, on this machine or on a running cluster.

    Starting Ray takes 5 to 7 s and a task about a millisecond. A task whose worker dies is run
    again (`max_retries`). The packages of this project must be importable on the workers.
    """

    name = "ray"

    def __init__(self, address: str | None = None, n_cpus: int | None = None) -> None:
        self._address = address
        self._n_cpus = n_cpus
        self._started = False
        self._aside = ExitStack()

    @property
    def group_size(self) -> int:
        """Enough for `TASKS_PER_WORKER` full tasks on every processor of the cluster."""
        return self._workers() * TASKS_PER_WORKER * SHARDS_PER_TASK

    def prepare(self, count_plans: Callable[[int], int]) -> None:
        """Start Ray, or join the cluster, to know its size."""
        self._start()

    def _workers(self) -> int:
        ray = ray_package()
        if not ray.is_initialized():
            return self._n_cpus or n_cpus()
        resources: dict[str, float] = ray.cluster_resources()
        return max(1, int(resources.get("CPU", 1)))

    def _start(self) -> None:
        """Start Ray, or join the cluster, unless this process already has it."""
        import logging

        # Ray >= 2.59 turns token authentication on for local clusters and writes into the home.
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray = ray_package()
        if ray.is_initialized():
            return
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address:
            settings["address"] = self._address
        else:
            # "local": without it Ray joins a cluster of somebody else that runs on this machine.
            settings.update(address="local", num_cpus=self._n_cpus, include_dashboard=False)
        try:
            check_reachable(self._address or "")
            ray.init(**settings)
        except (OSError, RuntimeError, ValueError, OverflowError, AssertionError) as error:
            where = f"at {self._address}" if self._address else "on this machine"
            raise ExecutorError(
                f"Ray does not answer {where}: {str(error).splitlines()[0]}",
                "start it with `ray start --head` and name HOST:PORT, or --executor processes",
            ) from error
        self._started = True
        # A thread of Ray's prints what happens to workers, and answers are read from stdout.
        self._aside.enter_context(redirect_stdout(sys.stderr))

    def map(self, run: Callable[[Shard], Answer], shards: Sequence[Shard]) -> list[Answer]:
        """Return `run(shard)` for every shard, in order; the first call starts Ray."""
        self._start()
        import ray
        from ray.exceptions import WorkerCrashedError

        task: Any = ray.remote(max_retries=MAX_RETRIES)(_run_task)
        try:
            waiting = [task.remote(run, part) for part in in_tasks(shards, self._workers())]
            return [answer for answers in ray.get(waiting) for answer in answers]
        except WorkerCrashedError:
            raise ExecutorError(
                f"Ray workers died {1 + MAX_RETRIES} times on one task, perhaps for want of "
                "memory",
                "--executor serial, or free memory on the workers",
            ) from None

    def close(self) -> None:
        """Stop Ray if this executor started it."""
        if self._started:
            import ray

            ray.shutdown()
            self._aside.close()
            self._started = False


class AutomaticExecutor:
    """Evaluates in this process unless the work is worth more.

    Processes from `PLANS_FOR_PROCESSES` on, where there are several processors and forking is
    safe; a Ray cluster, if one is named, from `PLANS_FOR_RAY` on. On one machine Ray has nothing
    to add to processes.
    """

    name = "automatic"

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._chosen: Executor = SerialExecutor()

    @property
    def group_size(self) -> int:
        """That of the executor chosen."""
        return self._chosen.group_size

    def prepare(self, count_plans: Callable[[int], int]) -> None:
        """Choose by the number of plans that are likely to be priced."""
        self._chosen.close()
        enough = PLANS_FOR_RAY if self._address else PLANS_FOR_PROCESSES
        self._chosen = self.choose(count_plans(enough))
        self._chosen.prepare(count_plans)

    def choose(self, n_plans: int) -> Executor:
        """Return the executor for a search that is likely to price `n_plans`."""
        if self._address and n_plans >= PLANS_FOR_RAY:
            return RayExecutor(self._address)
        if n_plans >= PLANS_FOR_PROCESSES and n_cpus() > 1 and can_fork():
            return ProcessExecutor()
        return SerialExecutor()

    def map(self, run: Callable[[Shard], Answer], shards: Sequence[Shard]) -> list[Answer]:
        """Return `run(shard)` for every shard, where `prepare` has decided."""
        return self._chosen.map(run, shards)

    def close(self) -> None:
        """Give back what the chosen executor holds."""
        self._chosen.close()


def make_executor(name: str, address: str | None = None) -> Executor:
    """Return the executor called `name`, one of `NAMES`; `address` is that of a Ray cluster."""
    if name not in NAMES:
        raise ValueError(f"unknown executor {name!r}: {', '.join(NAMES[:-1])} or {NAMES[-1]}")
    if address and name not in ("automatic", "ray"):
        raise ValueError(f"a Ray address does not go with executor {name!r}")
    if name == "ray":
        return RayExecutor(address)
    if name == "automatic":
        return AutomaticExecutor(address)
    return ProcessExecutor() if name == "processes" else SerialExecutor()
