"""Nodes that joined the pools of a running plan."""

from collections.abc import Mapping

from planner.errors import UsageError
from planner.option_names import option

Gained = int | Mapping[str, int]
"""Nodes that joined: how many, or how many by pool."""


def gained_of_text(text: str) -> Gained:
    """Return what `--gained` names: a number of nodes, or numbers by pool.

    >>> gained_of_text("8"), gained_of_text("old=1, new=2"), gained_of_text("")
    (8, {'old': 1, 'new': 2}, 0)
    """
    plain = text.strip()
    if not plain:
        return 0
    if plain.removeprefix("-").isdecimal() and plain.isascii() and len(plain) < 8:
        return int(plain)
    counts: dict[str, int] = {}
    for part in plain.split(","):
        name, equals, n = (x.strip() for x in part.partition("="))
        if not equals or not n.isascii() or not n.isdecimal() or len(n) > 7:
            fix = "a number of nodes, or POOL=N, such as old=2, several with commas"
            raise UsageError(option("gained") + f": {part.strip()!r} is no number", fix, "gained")
        if name in counts:
            message = option("gained") + f" {part.strip()}: pool {name} is named twice"
            raise UsageError(message, f"one number: {name}=N", "gained")
        counts[name] = int(n)
    return counts


def gained_of_pool(gained: Gained, name: str) -> int:
    """Return how many nodes joined the one pool of a plan; `UsageError` for those of others."""
    if isinstance(gained, int):
        return gained
    if strange := [x for x in gained if x != name]:
        raise UsageError(
            option("gained") + f": the plan runs on pool {name} alone, not on {strange[0]}",
            f"{name}=N, or solve for all pools: " + option("pools", "together"),
            "gained",
        )
    return sum(gained.values())
