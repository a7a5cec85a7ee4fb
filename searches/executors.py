"""Where shards of a search are evaluated. Every executor returns results in shard order."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

Shard = TypeVar("Shard")
Answer = TypeVar("Answer")


class Executor(Protocol):
    """Runs one function over many shards and keeps their order."""

    name: str
    group_size: int
    """Shards worth handing over at once; a search may stop between groups."""

    def map(self, run: Callable[[Shard], Answer], shards: Sequence[Shard]) -> list[Answer]:
        """Return `run(shard)` for every shard, in the order of `shards`."""
        ...

    def close(self) -> None:
        """Give back what the executor holds."""
        ...


class SerialExecutor:
    """Evaluates in this process.

    Right below some ten million plans: Ray starts in 5 to 7 s, in which one core prices as many.
    """

    name = "serial"
    group_size = 1

    def close(self) -> None:
        """Do nothing: this process is all there is."""

    def map(self, run: Callable[[Shard], Answer], shards: Sequence[Shard]) -> list[Answer]:
        """Return `run(shard)` for every shard, one after the other."""
        return [run(shard) for shard in shards]


class RayExecutor:
    """Evaluates shards as Ray tasks, on this machine or on a running cluster.

    Starting Ray costs some seconds and a task about a millisecond, so a shard should be worth
    a tenth of a second. A task whose worker dies is run again (`max_retries`).
    """

    name = "ray"
    group_size = 16

    def __init__(self, address: str | None = None, n_cpus: int | None = None) -> None:
        self._address = address
        self._n_cpus = n_cpus
        self._started = False

    def _start(self) -> None:
        """Start Ray, or join the cluster, unless this process already has it."""
        import logging
        import os

        # Ray >= 2.59 turns token authentication on for local clusters and writes into the home.
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        if ray.is_initialized():
            return
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address:
            settings["address"] = self._address
        else:
            settings.update(num_cpus=self._n_cpus, include_dashboard=False)
        ray.init(**settings)
        self._started = True

    def map(self, run: Callable[[Shard], Answer], shards: Sequence[Shard]) -> list[Answer]:
        """Return `run(shard)` for every shard, in order; the first call starts Ray."""
        self._start()
        import ray

        task = ray.remote(max_retries=3)(run)
        return list(ray.get([task.remote(shard) for shard in shards]))

    def close(self) -> None:
        """Stop Ray if this executor started it."""
        if self._started:
            import ray

            ray.shutdown()
            self._started = False


def make_executor(name: str, address: str | None = None) -> Executor:
    """Return the executor called `name`: `serial` or `ray`."""
    if name == "ray":
        return RayExecutor(address)
    if name == "serial":
        return SerialExecutor()
    raise ValueError(f"unknown executor {name!r}: serial or ray")
