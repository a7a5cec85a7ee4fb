"""How far a search of several parts is, told as one share that never falls."""

from collections.abc import Callable, Sequence

Progress = Callable[[int, int], None] | None
"""Told (done, total), and by its method `found`, if it has one, the best step time, seconds."""
TOTAL = 100
"""Per cent: parts count shards or numbers of devices, of which there are more only later."""


class Share:
    """Tells (done, `TOTAL`) of all parts to one listener; a part that starts anew adds nothing."""

    def __init__(self, tell: Callable[[int, int], None]) -> None:
        self._tell, self._done = tell, 0
        self._best = getattr(tell, "found", None)

    def reach(self, share: float) -> None:
        """Tell a share of the whole, or the last one where it is smaller."""
        self._done = max(self._done, min(TOTAL, int(share * TOTAL)))
        self._tell(self._done, TOTAL)

    def found(self, step_s: float) -> None:
        """Pass on the step time of the best plan of a part."""
        if self._best is not None:
            self._best(step_s)


class Part:
    """A part of a search, from one share of the whole to another; a listener of its own."""

    def __init__(self, share: Share, start: float = 0.0, end: float = 1.0) -> None:
        self._whole, self._start, self._end = share, start, end
        self.found = share.found

    def __call__(self, done: int, total: int) -> None:
        """Tell that so many of the part's own steps are done."""
        self._whole.reach(self._start + (self._end - self._start) * (done / total if total else 1))

    def piece(self, i: int, n: int) -> "Part":
        """Return piece i of n equal ones."""
        each = (self._end - self._start) / n
        return Part(self._whole, self._start + i * each, self._start + (i + 1) * each)


def whole_of(progress: Progress) -> Part | None:
    """Return the whole of a search, to be cut into pieces; None where nobody listens."""
    return Part(Share(progress)) if progress is not None else None


def pieces_of(part: Part | None, n: int) -> Sequence[Part | None]:
    """Return n equal pieces of a part, None each where nobody listens."""
    return [part.piece(i, n) if part is not None else None for i in range(n)]
