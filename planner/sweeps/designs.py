"""Designs: which combinations of values are points, in which order, made as they are asked for.

A grid is every combination, the last axis fastest. A Latin hypercube of n samples cuts every axis
into n strata of equal probability and uses each once (McKay, Beckman, Conover, 1979); an axis with
a list of values takes each of them equally often, but for one.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence

from planner.errors import BadValue
from planner.option_names import option
from planner.sweeps.axes import SweepAxis

DESIGNS = ("grid", "list", "latin")
MAX_POINTS = 1_000_000
"""Most points of a sweep, before constraints."""

Values = tuple[tuple[str, object], ...]
"""Axes by name and their values as written."""


def check_size(n: int) -> None:
    """Raise `BadValue` for a sweep that nobody waits for."""
    if n > MAX_POINTS:
        raise BadValue(
            f"{_count(n)} points, more than {MAX_POINTS:,}",
            "list fewer values, or sample: "
            + option("design", "latin")
            + " "
            + option("samples", "1000")
            + " (`design: latin`, `samples: 1000`)",
        )


def _count(n: int) -> str:
    return f"{n:,}" if n < 10**15 else f"{n:.3g}"


def grid_size(axes: Sequence[SweepAxis]) -> int:
    """Return the number of points of a grid."""
    return math.prod(len(axis.choices) for axis in axes)


def grid_points(axes: Sequence[SweepAxis]) -> Iterator[Values]:
    """Yield every combination, the last axis fastest."""
    sizes = [len(axis.choices) for axis in axes]
    for index in range(grid_size(axes)):
        places, rest = [], index
        for size in reversed(sizes):
            rest, place = divmod(rest, size)
            places.append(place)
        yield tuple(
            (axis.name, axis.choices[place].value)
            for axis, place in zip(axes, reversed(places), strict=True)
        )


def latin_points(axes: Sequence[SweepAxis], n_samples: int, seed: int) -> Iterator[Values]:
    """Yield the points of a Latin hypercube.

    Every axis has random numbers of its own, from the seed and its name, so that its values stay
    when another axis is added. Axes with few values can meet the same combination again.
    """
    shares = [latin_shares(axis.name, n_samples, seed) for axis in axes]
    for i in range(n_samples):
        yield tuple(
            (axis.name, axis.at(share[i])) for axis, share in zip(axes, shares, strict=True)
        )


def latin_shares(name: str, n_samples: int, seed: int) -> list[float]:
    """Return where the samples lie on an axis: one in each of n equal parts of 0 to 1."""
    import numpy as np

    word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    random = np.random.default_rng([seed, word])
    shares = (random.permutation(n_samples) + random.random(n_samples)) / n_samples
    below_one = np.nextafter(1.0, 0.0)
    return [float(x) for x in np.minimum(shares, below_one)]
