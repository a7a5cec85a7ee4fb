"""How searches run: where, until when, who is told. No answer depends on it, unless stopped."""

from collections.abc import Callable
from dataclasses import dataclass

from planner.errors import UsageError
from searches.executors.executor import NAMES, Executor, make_executor
from searches.pricing.shared_work import SharedWork

Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Execution:
    """How a search runs."""

    executor: Executor
    stop: Stop | None = None
    """Asked now and then; true ends a search with the best so far."""
    progress: Callable[[int, int], None] | None = None
    """Told how much is done, of how much."""
    shared: SharedWork | None = None
    """Tables that searches of neighbouring models and clusters share: the same answer, sooner."""


def named_executor(name: str, ray_address: str = "") -> Executor:
    """Return an executor by its name."""
    check_executor(name, ray_address)
    return make_executor(name, ray_address or None)


def check_executor(name: str, ray_address: str) -> None:
    """Raise `UsageError` for an executor that does not exist or has no use for an address."""
    if name not in NAMES:
        choices = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"
        raise UsageError(f"--executor: unknown {name!r}", choices, code="unknown-name")
    if ray_address and name not in ("automatic", "ray"):
        raise UsageError(
            f"--ray-address does not go with --executor {name}",
            "--executor ray, or drop one",
            code="belongs-to",
        )


def either(first: Stop | None, second: Stop) -> Stop:
    """Return a question that is true where one of two is."""
    return second if first is None else lambda: first() or second()
