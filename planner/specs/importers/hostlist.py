"""Lists of host names as Slurm writes them: `rack[1-2]-n[01-08,10]`.

`compress_hosts` keeps the order of the names, because here the order says who is near whom.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from planner.errors import BadValue
from planner.units import shown_value

MAX_HOSTS = 200_000
"""Most names that a list may stand for."""
_MAX_BRACKETS = 6
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_RANGE = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")
_DIGITS = re.compile(r"([0-9]{1,15})")


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the names that a host list stands for, in its order; the last bracket runs fastest.

    Raises `BadValue` for a list that is not well formed or stands for too many names.

    >>> expand_hosts("rack[1-2]-n[08-10],login")[1:]
    ('rack1-n09', 'rack1-n10', 'rack2-n08', 'rack2-n09', 'rack2-n10', 'login')
    """
    names: list[str] = []
    for item in _split(text):
        names += _expand_item(item, MAX_HOSTS - len(names))
    return tuple(names)


def compress_hosts(names: Iterable[str], *, for_slurm: bool = False) -> str:
    """Return a host list that expands to exactly these names in this order.

    Slurm reads brackets at the end of a name only ("unit[0-31]rack" is invalid, slurm.conf(5)):
    `for_slurm` spells names out whose numbers stand elsewhere.

    >>> compress_hosts(["n008", "n009", "n010", "m1", "n3"])
    'n[008-010],m1,n3'
    >>> compress_hosts(["n1-ib", "n2-ib"]), compress_hosts(["n1-ib", "n2-ib"], for_slurm=True)
    ('n[1-2]-ib', 'n1-ib,n2-ib')
    """
    items: list[str] = []
    for run in _runs(list(names)):
        text = run[0] if len(run) == 1 else _bracketed(run)
        items += run if for_slurm and not text.endswith("]") else [text]
    return ",".join(items)


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which n2 comes before n10."""
    parts = _DIGITS.split(name)
    return tuple((1, int(p), p) if p.isdecimal() else (0, 0, p) for p in parts if p)


def _split(text: str) -> Iterator[str]:
    """Yield the items between commas outside brackets."""
    depth, item = 0, ""
    for sign in text.strip():
        depth += (sign == "[") - (sign == "]")
        if not 0 <= depth <= 1:
            break
        if sign == "," and not depth:
            yield item.strip()
            item = ""
        else:
            item += sign
    if depth:
        raise BadValue(
            f"{shown_value(text)} is not a host list", "close every bracket, as in n[001-016]"
        )
    yield item.strip()


def _expand_item(item: str, room: int) -> list[str]:
    pieces = re.split(r"\[([^\[\]]*)\]", item)
    choices: list[Sequence[str]] = []
    count = 1
    for i, piece in enumerate(pieces):
        values = _numbers(piece, item, room) if i % 2 else (piece,)
        count *= len(values)
        choices.append(values)
        if count > room or len(pieces) > 2 * _MAX_BRACKETS + 1:
            raise BadValue(
                f"{shown_value(item)} stands for too many hosts", f"{MAX_HOSTS:,} at most"
            )
    names = ["".join(parts) for parts in itertools.product(*choices)]
    for name in names:
        if not _NAME.fullmatch(name):
            raise BadValue(
                f"{shown_value(name or item)} is not a host name", "as in n[001-016],n020"
            )
    return names


def _numbers(text: str, item: str, room: int) -> Sequence[str]:
    """Return the numbers of one bracket as text, padded as the first of their range."""
    results: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise BadValue(
                f"[{text}] in {shown_value(item)} is not a range", "as in n[001-004,007]"
            )
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise BadValue(
                f"[{text}] in {shown_value(item)} runs backwards", "as in n[001-004,007]"
            )
        if int(high) - int(low) >= room - len(results):
            raise BadValue(
                f"{shown_value(item)} stands for too many hosts", f"{MAX_HOSTS:,} at most"
            )
        results += [str(n).zfill(len(low)) for n in range(int(low), int(high) + 1)]
    return results


def _runs(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield neighbours that differ in one and the same number."""
    run: list[str] = []
    place = -1
    for name in names:
        here = _differing(run[-1], name) if run else -1
        if run and here >= 0 and place in (-1, here):
            run.append(name)
            place = here
            continue
        if run:
            yield run
        run, place = [name], -1
    if run:
        yield run


def _differing(left: str, right: str) -> int:
    """Return which piece is the only one that differs, a number in both; else -1."""
    ours, theirs = _DIGITS.split(left), _DIGITS.split(right)
    if len(ours) != len(theirs):
        return -1
    places = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    return places[0] if len(places) == 1 and places[0] % 2 else -1


def _bracketed(run: Sequence[str]) -> str:
    """Return a run of at least two names with their number in brackets."""
    place = _differing(run[0], run[1])
    pieces = _DIGITS.split(run[0])
    ranges: list[tuple[str, str]] = []
    for number in (_DIGITS.split(name)[place] for name in run):
        if ranges and number == str(int(ranges[-1][1]) + 1).zfill(len(ranges[-1][0])):
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    inside = ",".join(low if low == high else f"{low}-{high}" for low, high in ranges)
    return "".join(pieces[:place]) + f"[{inside}]" + "".join(pieces[place + 1 :])
