"""What a group of ranks has of the links of a torus: lines and rings along its axes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware.parts import Pool
from hardware.torus import Torus, closed_axes

Floats = NDArray[np.float64]
LEAST_LINKS = 1e-9
"""In place of none, where the links of groups within a chip are not asked for."""
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


def _axis_ends(shape: tuple[int, ...], n_dies: int = 1) -> list[tuple[int, int]]:
    """Return the stride of each axis in rank order, and that of the next: shortest axis first.

    Within all of them lie the `n_dies` devices of a chip.
    """
    ends, inner = [], n_dies
    for edge in shape:
        ends.append((inner, inner * edge))
        inner *= edge
    return ends


def links_apart(pool: Pool, stride: float) -> float:
    """Return how many links lie between ranks `stride` apart in rank order; 1 without a torus.

    Links that the devices of a chip share count for each of them; the one between them is a part.
    """
    torus = pool.accelerator.torus
    if torus is None:
        return 1.0
    n_dies = torus.devices_per_chip
    if stride < n_dies:
        return 1.0 / torus.die_links
    for inner, outer in _axis_ends(pool.slice_shape, n_dies):
        if inner <= stride < outer:
            return n_dies * stride / inner
    return float(n_dies)


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

    Where a chip is several devices see `_over_dies`.
    """
    torus = pool.accelerator.torus
    assert torus is not None
    shape = pool.slice_shape
    n_links = 2.0 * torus.n_axes
    rate, hops, ranks = np.zeros_like(inside), np.zeros_like(inside), np.ones_like(inside)
    exchange, apart = np.full_like(inside, np.inf), np.zeros_like(inside)
    is_box = np.ones(inside.shape, dtype=bool)
    n_dies = torus.devices_per_chip
    axes = _axis_ends(shape, n_dies)
    ends = zip(axes, shape, closed_axes(torus, shape), strict=True)
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
    dies = np.ones_like(inside)
    if n_dies > 1:
        (one, _), (more, _) = (_extent(x, 1, n_dies) for x in (runs, copies))
        dies = one * more
    is_box &= ranks * dies == inside
    several = inside > 1
    exchange = np.where(is_box & several, exchange, 4.0 / np.maximum(2.0, inside))
    rate = np.where(is_box & several, rate, 1.0)
    hops = np.where(is_box, hops, inside - 1)
    apart = np.where(is_box, np.maximum(1.0, apart), 1.0)
    if n_dies > 1:
        of_chips = _ChipShare(rate, hops, exchange, apart, np.where(is_box, dies, 1.0))
        rate, hops, exchange, apart = _over_dies(of_chips, inside, torus)
    exchange = exchange * np.where(several, (inside - 1) / inside, 1.0)
    return TorusShare(rate / n_links, hops, exchange / n_links, apart)


class _ChipShare(NamedTuple):
    """What a group has of the links between chips, in links, and how many dies of each."""

    rate: Floats
    hops: Floats
    exchange: Floats
    apart: Floats
    dies: Floats


def _over_dies(chips: _ChipShare, inside: Floats, torus: Torus) -> tuple[Floats, ...]:
    """Return rate, hops, exchange and links apart where a chip is k devices that share its links.

    A group of all dies of c chips gathers by parts of its dies between chips, then between dies:
    t = (c - 1)/c n/B + (k - 1)/k n/D, with the links of the chips, B, and those between dies, D.
    One that has a die of each leaves (k - 1)/k of the links to the others. In an all-to-all k
    ranks send over the links of a chip, and half of all crosses to another die: 4 D / k.

    Source: jax/_src/mesh_utils.py: dies are the last axis of the mesh of TPU7x, "higher bandwidth"
    than the others. Left out: that both parts may overlap.
    """
    n_dies, link = torus.devices_per_chip, torus.die_links
    n_chips = np.maximum(1.0, inside / chips.dies)
    rate = np.maximum(chips.rate, LEAST_LINKS) * chips.dies / n_dies
    between = np.where(n_chips > 1, (n_chips - 1) / n_chips / rate, 0.0)
    within = (chips.dies - 1) / chips.dies / link
    waits = np.where(inside > 1, between + within, 1.0)
    has_dies = chips.dies > 1
    exchange = np.where(n_chips > 1, chips.exchange / n_dies, np.inf)
    crossing = np.where(has_dies, 4.0 * link / n_dies, np.inf)
    exchange = np.minimum(exchange, crossing)
    # Round a chip's dies one rank sends to the next chip; of one die all of them do.
    apart = chips.apart * np.where(has_dies, 1.0, n_dies)
    apart = np.where(has_dies & (n_chips <= 1), 1.0 / link, apart)
    share = np.where(inside > 1, (inside - 1) / inside, 1.0)
    return (
        np.where(inside > 1, share / waits, 1.0),
        chips.hops * (n_chips > 1) + has_dies,
        np.where(np.isfinite(exchange), exchange, 1.0),
        apart,
    )
