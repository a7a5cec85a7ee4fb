"""Who has the device when: a step cut into compute, exposed communication, copies and gaps."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

COMPUTE, COMMUNICATION, COPY = range(3)
"""Layers of work, the first hides the others."""


@dataclass(frozen=True, slots=True)
class Work:
    """One interval of work, whole nanoseconds."""

    start_ns: int
    end_ns: int
    layer: int
    """`COMPUTE`, `COMMUNICATION` or `COPY`."""
    label: str


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A window cut into parts: the parts and the gaps together are exactly the window."""

    parts_ns: Mapping[str, float]
    """By label. Compute counts whenever it runs, communication where no compute runs, copies
    where neither does. Labels of a layer that run at the same time share it equally."""
    gaps_ns: tuple[tuple[int, int], ...]
    """Where nothing runs: start and end."""


def occupancy(work: Iterable[Work], start_ns: int, end_ns: int) -> Occupancy:
    """Return who has the device from `start_ns` to `end_ns`; work outside is cut off.

    A sweep over starts and ends in order of time, exact in whole nanoseconds.

    >>> work = [Work(0, 6, COMPUTE, "gemm"), Work(4, 9, COMMUNICATION, "tp")]
    >>> occupancy(work, 0, 10)
    Occupancy(parts_ns={'gemm': 6.0, 'tp': 3.0}, gaps_ns=((9, 10),))
    """
    changes: list[tuple[int, int, int, str]] = []
    for one in work:
        begin, end = max(one.start_ns, start_ns), min(one.end_ns, end_ns)
        if begin < end:
            changes += [(begin, 1, one.layer, one.label), (end, -1, one.layer, one.label)]
    changes.sort()
    active: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    shared: Counter[tuple[str, ...]] = Counter()
    gaps: list[tuple[int, int]] = []
    now_ns = start_ns
    for time, change, layer, label in [*changes, (end_ns, 0, COPY, "")]:
        if time > now_ns:
            running = next((tuple(sorted(labels)) for labels in active if labels), ())
            if running:
                shared[running] += time - now_ns
            elif gaps and gaps[-1][1] == now_ns:
                gaps[-1] = gaps[-1][0], time
            else:
                gaps.append((now_ns, time))
            now_ns = time
        if change:
            active[layer][label] += change
            if not active[layer][label]:
                del active[layer][label]
    parts: dict[str, float] = {}
    for labels, length in sorted(shared.items()):
        for label in labels:
            parts[label] = parts.get(label, 0.0) + length / len(labels)
    return Occupancy(dict(sorted(parts.items())), tuple(gaps))


def waited_for_host(
    gaps_ns: Sequence[tuple[int, int]],
    launched_ns: Mapping[int, int],
    last_ns: int | None = None,
) -> int:
    """Return how much of some gaps the device had nothing queued, nanoseconds.

    A gap ends when some work starts; up to the moment at which the launch of that work returned
    (`launched_ns`, by start of the work) the device could not have begun. The rest of the gap it
    waited for something else: another stream, a peer, the launch itself. A gap that ends at
    `last_ns` without any work is the host's as a whole.

    >>> waited_for_host([(100, 130), (200, 210)], {130: 120, 210: 150})
    20
    """
    total = 0
    for begin, end in gaps_ns:
        if end in launched_ns:
            total += min(max(launched_ns[end] - begin, 0), end - begin)
        elif end == last_ns:
            total += end - begin
    return total
