"""What a group of ranks has of the links of a torus: lines and rings along its axes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware.parts import Pool
from hardware.torus import closed_axes

Floats = NDArray[np.float64]
Runs = tuple[Floats, Floats]
"""Ranks of a run, and how far apart they are in rank order."""


class TorusShare(NamedTuple):
    """Shares of a chip's links, 2 a axes of them; arrays of the group's shape, or numbers."""

    ring_frac: Any
    """What an all-gather receives at, of all links of a chip."""
    hops: Any
    """Links that the last piece of an all-gather passes, axis after axis."""
    exchange_frac: Any
    """What a rank of an all-to-all sends at, of all links of a chip."""
    links_apart: Any
    """Links from a rank to the next, each shared by as many groups."""

    def each(self, change: Callable[[Any], Any]) -> "TorusShare":
        """Return the shares, each changed."""
        return TorusShare(*(change(column) for column in self))


def _axis_ends(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the stride of each axis in rank order, and that of the next: shortest axis first."""
    ends, inner = [], 1
    for edge in shape:
        ends.append((inner, inner * edge))
        inner *= edge
    return ends


def links_apart(pool: Pool, stride: float) -> float:
    """Return how many links lie between ranks `stride` apart in rank order; 1 without a torus."""
    for inner, outer in _axis_ends(pool.slice_shape):
        if inner <= stride < outer:
            return stride / inner
    return 1.0


def _extent(runs: Runs, inner: int, outer: int) -> tuple[Floats, Floats]:
    """Return how many chips of an axis ranks lie on, and how many links apart."""
    n_ranks, stride = runs
    low, high = np.maximum(stride, inner), np.minimum(stride * n_ranks, outer)
    extent = np.where(n_ranks > 1, np.maximum(1.0, high / low), 1.0)
    return extent, np.where(extent > 1, np.maximum(1.0, stride / inner), 1.0)


def torus_share(runs: Runs, copies: Runs, inside: Floats, pool: Pool) -> TorusShare:
    """Return what a group has of the torus of a slice, where ranks follow its axes.

    Ranks are numbered along the shortest axis first. Along an axis a group has d ranks, s links
    apart, and shares each link with s others. An axis is a ring where the group reaches all around
    one that closes: B = 2 w / s, d s/2 hops, all-to-all 8 w / (d s) (g - 1)/g a rank of g; else a
    line: w / s, (d - 1) s, 4 w / (d s) (g - 1)/g. Rates of all-gathers add over axes, hops too; of
    all-to-alls the slowest axis counts. A group that is no box of chips is a line through all its
    ranks with one link.

    `runs` and `copies` are those of `RankSpacing`, `inside` the ranks of the group in a slice.
    Source: jax-ml/scaling-book, sharding.md; jax/experimental/mesh_utils.py gives axes of the mesh
    whole axes of the torus where it can. Left out: twisted tori.
    """
    torus = pool.accelerator.torus
    assert torus is not None
    shape = pool.slice_shape
    n_links = 2.0 * torus.n_axes
    rate, hops, ranks = np.zeros_like(inside), np.zeros_like(inside), np.ones_like(inside)
    exchange, apart = np.full_like(inside, np.inf), np.zeros_like(inside)
    is_box = np.ones(inside.shape, dtype=bool)
    ends = zip(_axis_ends(shape), shape, closed_axes(torus, shape), strict=True)
    for (inner, outer), edge, closes in ends:
        (one, skip), (more, skip_more) = (_extent(x, inner, outer) for x in (runs, copies))
        chips = one * more
        links = np.where(one > 1, skip, skip_more)
        used = chips > 1
        # Runs on one axis, one behind the other, are a box where they leave no gap.
        is_box &= (chips == np.rint(chips)) & (chips * links <= edge)
        is_ring = closes & (chips * links == edge)
        rate += np.where(used, np.where(is_ring, 2.0, 1.0) / links, 0.0)
        steps = np.where(is_ring, np.floor(chips / 2), chips - 1)
        hops += np.where(used, steps * links, 0.0)
        crossed = np.where(is_ring, 8.0, 4.0) / (chips * links)
        exchange = np.where(used, np.minimum(exchange, crossed), exchange)
        ranks = ranks * chips
        apart = np.where((apart == 0) & used, links, apart)
    is_box &= ranks == inside
    several = inside > 1
    exchange = np.where(is_box & several, exchange, 4.0 / np.maximum(2.0, inside))
    exchange = exchange * np.where(several, (inside - 1) / inside, 1.0)
    return TorusShare(
        np.where(is_box & several, rate, 1.0) / n_links,
        np.where(is_box, hops, inside - 1),
        exchange / n_links,
        np.where(is_box, np.maximum(1.0, apart), 1.0),
    )
