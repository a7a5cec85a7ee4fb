"""Maps a function over items in processes that share what is large by being forked from here."""

import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")

_held: dict[str, Any] = {}
"""In a worker: the function, which a fork hands over without pickling what it closes over."""


def mapped(
    function: Callable[[Item], Found], items: Sequence[Item], processes: int = 1
) -> list[Found]:
    """Return `function` of every item, in order; items and what is found must be picklable.

    In this process where `processes` is 1 or the system cannot fork.
    """
    few = min(processes, len(items))
    if few <= 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [function(item) for item in items]
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        # Python warns of forks beside threads; those of the linear algebra are idle here.
        warnings.simplefilter("ignore", DeprecationWarning)
        with context.Pool(few, _hold, (function,)) as pool:
            return pool.map(_call, items, chunksize=1)


def _hold(function: Callable[[Any], Any]) -> None:
    _held["function"] = function


def _call(item: Any) -> Any:
    return _held["function"](item)
