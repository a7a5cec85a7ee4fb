"""Whose job is next: priorities first, then groups by weight and the CPU seconds they have had.

Start-time fair queueing. Within a priority every group has a clock that CPU seconds of its jobs
move on, the slower the more weight it has; the group whose clock is furthest behind is next. A
group that had nothing to do joins at the time that the priority has: it neither owes nor is owed
for the time in which it asked for nothing. So inside one priority nobody starves, and what is
leased next depends on nothing but the store.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

EXPECTED_S = 60.0
"""CPU seconds that a job which was just leased stands for, until it is charged: else the first
group would get all workers that are free at one moment."""


@dataclass(frozen=True, slots=True)
class Line:
    """Jobs of one group and one priority that wait."""

    tenant: str
    priority: int
    """The smaller the earlier."""
    n_running: int = 0
    """Jobs of the group and this priority that are worked on."""


@dataclass(frozen=True, slots=True)
class Share:
    """What the choice knows of a group."""

    weight: float = 1.0
    most_running: int | None = None
    """Jobs of all priorities that may be worked on at the same time."""
    n_running: int = 0
    """The same that are."""

    @property
    def has_place(self) -> bool:
        """Whether another job of the group may be worked on."""
        return self.most_running is None or self.n_running < self.most_running


def lines_in_order(
    lines: Iterable[Line],
    shares: Mapping[str, Share],
    clocks: Mapping[tuple[str, int], float],
) -> Iterator[Line]:
    """Yield the lines of which a job may be leased, the one whose turn it is first.

    `clocks` are the clocks of groups by name and priority; one that is missing stands at 0.
    """

    def rank(line: Line) -> tuple[int, float, str]:
        weight = shares.get(line.tenant, Share()).weight
        ahead_s = line.n_running * EXPECTED_S / weight
        clock_s = clocks.get((line.tenant, line.priority), 0.0)
        return line.priority, clock_s + ahead_s, line.tenant

    for line in sorted(lines, key=rank):
        if shares.get(line.tenant, Share()).has_place:
            yield line
