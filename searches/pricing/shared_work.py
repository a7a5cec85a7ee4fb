"""What searches of neighbouring problems share: tables that do not depend on what differs.

Points of a sweep, and the questions of a service, ask for the same model on the same number of
devices again and again. A table is kept under a key that holds everything it depends on, so an
answer is the same, byte for byte, with what was kept and without.
"""

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from costmodels.plans import ShapeTable, ShardingTable
from costmodels.problem import Problem
from costmodels.shapes import TrainingJob
from searches.options import SearchOptions

Item = TypeVar("Item", bound=Hashable)
Value = TypeVar("Value")

LIMIT_BYTES = 128 * 2**20
"""What is kept at most; the tables of a search take some 0.1 to 20 MB."""
MOST_EACH = 20_000
"""Values that `SharedWork.each` keeps under one key at most."""
ITEM_BYTES = 1000
"""What a layout takes as a key, about: its numbers are shared with others."""
OVERHEAD_BYTES = 200
"""What an object takes besides the arrays in it, about."""


class SharedWork:
    """Values by key, those used last, up to a number of bytes. For one thread at a time."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.n_found = 0
        """Values that were there when they were asked for."""
        self.n_made = 0
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        # Other processes start with nothing: sending tables takes longer than they save.
        return SharedWork, (self.limit_bytes,)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return what is kept under `key`, else what `make` returns, which is kept then.

        Nobody may write into what is returned.
        """
        if key in self._kept:
            self._kept.move_to_end(key)
            self.n_found += 1
            return cast(Value, self._kept[key][0])
        value = make()
        self.n_made += 1
        self.keep(key, value)
        return value

    def each(
        self,
        key: Hashable,
        items: Sequence[Item],
        make: Callable[[list[Item]], Sequence[Value]],
    ) -> list[Value]:
        """Return the value of each item: what is kept under `key`, else what `make` returns.

        `make` takes the items that are missing, together; what it returns of one must not depend
        on the others, to the last bit.
        """
        known: dict[Item, Value] = self.look(key) or {}
        missing = [x for x in dict.fromkeys(items) if x not in known]
        if missing:
            if len(known) + len(missing) > MOST_EACH:
                known = {x: known[x] for x in items if x in known}
            known = {**known, **dict(zip(missing, make(missing), strict=True))}
            one = next(iter(known.values()))
            self.keep(key, known, len(known) * (ITEM_BYTES + n_bytes(one)))
        elif key in self._kept:
            self._kept.move_to_end(key)
        self.n_found, self.n_made = self.n_found + (not missing), self.n_made + bool(missing)
        return [known[x] for x in items]

    def look(self, key: Hashable) -> Any:
        """Return what is kept under `key`, None where nothing is."""
        return self._kept[key][0] if key in self._kept else None

    def keep(self, key: Hashable, value: Any, size_bytes: int = 0) -> None:
        """Keep a value under `key`, in place of the one before.

        `size_bytes` is about what it takes, where that is known without looking at all of it.
        """
        self.used_bytes -= self._kept.pop(key, (None, 0))[1]
        size = (size_bytes or n_bytes(value)) + n_bytes(key)
        if size > self.limit_bytes:
            return
        self._kept[key] = value, size
        self.used_bytes += size
        while self.used_bytes > self.limit_bytes:
            _, (_, gone) = self._kept.popitem(last=False)
            self.used_bytes -= gone


def shared(
    work: SharedWork | None, key: Callable[[], Hashable], make: Callable[[], Value]
) -> Value:
    """Return `make()`, from what is shared where something is; `key` is asked for only then."""
    return make() if work is None else work.get(key(), make)


def shared_each(
    work: SharedWork | None,
    key: Callable[[], Hashable],
    items: Sequence[Item],
    make: Callable[[list[Item]], Sequence[Value]],
) -> list[Value]:
    """Return `make(items)`, from what is shared where something is (`SharedWork.each`)."""
    return list(make(list(items))) if work is None else work.each(key(), items, make)


def digest(*parts: object) -> bytes:
    """Return a hash of some values: arrays by their bytes, others as they are pickled."""
    result = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            result.update(f"{part.dtype}{part.shape}".encode())
            result.update(np.ascontiguousarray(part).tobytes())
        else:
            result.update(pickle.dumps(part))
    return result.digest()


def options_key(options: SearchOptions) -> tuple[Hashable, ...]:
    """Return everything in the options of a search."""
    named = {"only", "at_most", "open"}
    plain = tuple(getattr(options, x.name) for x in fields(options) if x.name not in named)
    only = tuple(sorted((axis, tuple(sorted(values))) for axis, values in options.only.items()))
    opened = tuple(sorted((axis, tuple(sorted(values))) for axis, values in options.open.items()))
    return (*plain, only, opened, tuple(sorted(options.at_most.items())))


def shapes_key(shapes: ShapeTable) -> bytes:
    """Return a hash of a table of shapes."""
    columns = (getattr(shapes, x.name) for x in fields(shapes))
    return digest(*columns)


def shardings_key(shardings: ShardingTable) -> bytes:
    """Return a hash of a table of shardings."""
    return digest(*(getattr(shardings, x.name) for x in fields(shardings)))


def job_key(problem: Problem) -> TrainingJob:
    """Return what a search depends on of a job: not how long the whole run is."""
    return replace(problem.job, tokens=0.0)


MOST_RATES = 32
"""Problems whose `rates_key` is known."""
_RATES: OrderedDict[tuple[int, bool], tuple[Problem, bytes]] = OrderedDict()


def rates_key(problem: Problem, batch: bool = True) -> bytes:
    """Return a hash of all that times depend on: not the memory, nor power, nor sources.

    Without `batch`, neither the batch: for tables of micro-batches.
    """
    cached = _RATES.get((id(problem), batch))
    if cached is None or cached[0] is not problem:
        cached = problem, _rates_key(problem, batch)
        _RATES[id(problem), batch] = cached  # which keeps the problem, and so its id
        if len(_RATES) > MOST_RATES:
            _RATES.popitem(last=False)
    return cached[1]


def _rates_key(problem: Problem, batch: bool) -> bytes:
    pool, job = problem.pool, job_key(problem)
    part = replace(pool.accelerator, memory_bytes=0.0, tdp_w=0.0, provenance={}, aliases=())
    links = (replace(x, provenance={}, aliases=()) for x in (pool.scale_up, pool.nic))
    scale_up, nic = links
    bare = replace(
        pool, name="", accelerator=part, scale_up=scale_up, nic=nic, memory_margin_bytes=0.0
    )
    return digest(replace(problem, pool=bare, job=job if batch else replace(job, global_batch=0)))


def n_bytes(value: Any) -> int:
    """Return about what a value of arrays, numbers and containers of them takes, bytes."""
    if isinstance(value, np.ndarray):
        return OVERHEAD_BYTES + int(value.nbytes)
    if isinstance(value, (str, bytes)):
        return OVERHEAD_BYTES + len(value)
    if isinstance(value, Mapping):
        return OVERHEAD_BYTES + sum(n_bytes(k) + n_bytes(v) for k, v in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return OVERHEAD_BYTES + sum(map(n_bytes, value))
    if is_dataclass(value):
        return OVERHEAD_BYTES + sum(n_bytes(getattr(value, field.name)) for field in fields(value))
    return OVERHEAD_BYTES
