"""What gradients and the optimizer add to the step of a kind of pipelines at least.

Of a pipeline of p stages some stage holds at least the p-th part of the model. The bounds below
increase with what a stage holds, so that part bounds the last stage to end.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedPool, MixedProblem, Prefix, Ring
from searches.mixed.bounds.capacity import least_sums
from searches.mixed.fills import Way

Floats = NDArray[np.float64]

COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")


class Ends(NamedTuple):
    """Which ends of the model a stage holds besides its layers, by name in a `Prefix`."""

    held: tuple[str, ...]
    """Held for certain."""
    possible: tuple[str, ...]
    """Held at most."""

    def sum_held(self, figures: Prefix) -> float:
        """Return what the ends add to a figure at least."""
        return sum(float(getattr(figures, x)) for x in self.held)

    def sum_possible(self, figures: Prefix) -> float:
        """Return what the ends add to a figure at most."""
        return sum(float(getattr(figures, x)) for x in self.possible)


ANY = Ends((), ("embedding", "head"))
NOT_LAST = Ends((), ("embedding",))
INNER = Ends((), ())
FIRST = Ends(("embedding",), ("embedding",))
LAST = Ends(("head",), ("head",))


def _rings(pool: MixedPool, n_devices: int, most: int) -> dict[str, tuple[Floats, Floats]]:
    """Return latency and seconds a byte of each collective by pipelines, `(1 + most,)`; else 0."""
    nothing = Ring((0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
    rings = [pool.rings.get((n_devices, d), nothing) for d in range(most + 1)]
    results = {}
    for name in COLLECTIVES:
        pairs = np.array([getattr(x, name) for x in rings])
        results[name] = pairs[:, 0], pairs[:, 1]
    return results


def _least_share(ways: Sequence[Way]) -> float:
    """Return the sum over layers of the least share that any way has of its gradients there.

    1 where layers have the same proportions in all ways: some of p stages then holds 1/p.
    """
    shares = []
    for way in ways:
        layers = way.tables[0].grad_bytes.layers
        if layers[-1] > 0:
            shares.append(np.diff(layers) / layers[-1])
    return float(np.min(shares, axis=0).sum()) if shares else 0.0


def _most_ratio(seconds: Floats, sizes: Floats) -> float:
    """Return the most seconds a byte of any layer; infinite where a layer has no bytes."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(sizes > 0, seconds / sizes, np.where(seconds > 0, np.inf, 0.0))
    return float(ratios.max(initial=0.0))


def _least_ratio(figures: Prefix, grads: Prefix) -> float:
    """Return the least of a figure over gradients, of any layer and the ends of the model."""
    above = np.array([*np.diff(figures.layers), figures.embedding, figures.head])
    below = np.array([*np.diff(grads.layers), grads.embedding, grads.head])
    has = below > 0
    return float((above[has] / below[has]).min()) if has.any() else 0.0


def _window(way: Way, name: str, ends: Ends) -> tuple[float, float]:
    """Return the most seconds a byte of gradients of any layer, and the seconds of the ends."""
    layers = np.diff(way.tables[0].grad_bytes.layers)
    prefixes = [getattr(x, name) for x in way.tables]
    ratio = max(_most_ratio(np.diff(x.layers), layers) for x in prefixes)
    return ratio, max(ends.sum_possible(x) for x in prefixes)


def least_sync_s(
    problem: MixedProblem, way: Way, share: Floats, most: int, ends: Ends = ANY
) -> NDArray[np.float64]:
    """Return what gradients and weights of a stage add at least, seconds, `(n_shares, 1 + most)`.

    By the share of the model's layers that it holds at least, and by pipelines. With transfer
    t = n lat + g c in n = ceil(g/piece) pieces and a window w, `prices.sync_s` is

        s t + (1 - s) max( t/n, t - w )

    From below: n >= max(1, g/piece) in t, n <= g/piece + 1 in t/n >= lat + g c/n, and
    w <= r (g - h) + e with h and e the gradients and the seconds of the ends of the model, r the
    most seconds a byte of any layer. Of a stage with more layers t - w may be less: it is convex,
    so least at g, where g is one piece, or with all layers; without ends t/n exceeds it where it
    falls. All else increases with g.
    """
    pool, table = problem.pools[way.pool], way.tables[0]
    layers, pipelines = table.grad_bytes.layers, np.arange(most + 1, dtype=np.float64)[None, :]
    held = ends.sum_held(table.grad_bytes)
    grads = (held + share * layers[-1])[:, None]
    weights_ratio = _least_ratio(table.weight_bytes, table.grad_bytes)
    rings = _rings(pool, way.n_devices, most)

    def least(ratio: float, operation: str, side: str) -> Floats:
        latency, per_byte = (x[None, :] for x in rings[operation])
        overlap = problem.overlap
        if overlap is None:
            return np.asarray(latency + grads * ratio * per_byte)
        piece = np.maximum(overlap.piece_bytes, overlap.piece_bytes_per_rank * pipelines)
        rate, ends_s = _window(way, side, ends)

        def transfer_s(sizes: Floats) -> Floats:
            return np.maximum(1.0, sizes / piece) * latency + sizes * ratio * per_byte

        def after_window_s(sizes: Floats) -> Floats:
            with np.errstate(invalid="ignore"):  # a layer without gradients has an infinite rate
                window_s = np.where(sizes > held, (sizes - held) * rate, 0.0) + ends_s
            return transfer_s(sizes) - window_s

        one = latency + grads * ratio * per_byte * piece / (grads + piece)
        after_s = after_window_s(grads)
        if held:
            whole = np.full_like(grads, held + layers[-1])
            after_s = np.minimum(after_s, after_window_s(whole))
            after_s = np.minimum(after_s, after_window_s(np.clip(piece, grads, whole)))
        exposed = np.maximum(one, after_s)
        return np.asarray(
            overlap.slowdown * transfer_s(grads) + (1.0 - overlap.slowdown) * exposed
        )

    if not problem.zero:
        total = least(1.0, "all_reduce", "backward_s")
    else:
        total = least(1.0, "reduce_scatter", "backward_s")
        total = total + least(weights_ratio, "all_gather", "forward_s")
    total[:, :2] = 0.0
    return total


def least_tail_s(
    problem: MixedProblem,
    ways: Sequence[Way],
    ranges: Sequence[tuple[int, int]],
    most_stages: int,
    most_kinds: int,
) -> Floats:
    """Return what follows the pipeline at least, `(n_kinds, n_ways, 1 + most_stages, n_ranges)`.

    Seconds, by the kinds of the plan, from one; by the way of the stage that holds most, by
    stages, and by ranges of the pipelines of a kind.
    """
    result = np.zeros((most_kinds, len(ways), 1 + most_stages, len(ranges)))
    share = _least_share(ways) / np.maximum(1, np.arange(1 + most_stages))
    for i, way in enumerate(ways):
        _set_tails_s(result[:, i], problem, way, share, ranges, ANY)
    return result


def whole_layers_tail_s(
    problem: MixedProblem,
    ways: Sequence[Way],
    ranges: Sequence[tuple[int, int]],
    most_kinds: int,
    ends: Ends,
) -> Floats:
    """Return the same for stages of 0, 1, ... layers, `(n_kinds, n_ways, 1 + n_layers, n_ranges)`.

    Of so many layers, or more, those with the least gradients.
    """
    result = np.zeros((most_kinds, len(ways), 1 + problem.n_layers, len(ranges)))
    for i, way in enumerate(ways):
        layers = way.tables[0].grad_bytes.layers
        share = least_sums(np.diff(layers)) / max(float(layers[-1]), 1e-30)
        _set_tails_s(result[:, i], problem, way, share, ranges, ends)
    return result


def _set_tails_s(
    result: Floats,
    problem: MixedProblem,
    way: Way,
    share: Floats,
    ranges: Sequence[tuple[int, int]],
    ends: Ends,
) -> None:
    """Set the tails of stages of one way, `(n_kinds, n_shares, n_ranges)`, by kinds of the plan.

    With U kinds each layer is held by U groups, whose exchange takes 2 (U - 1)/U times the shard
    over the NIC of a device at least.
    """
    alone_s, exchange_s = _parts_s(problem, way, share, ends)
    for i in range(len(result)):
        result[i] = _by_range(alone_s + 2.0 * i / (i + 1) * exchange_s, ranges)


def _by_range(each: Floats, ranges: Sequence[tuple[int, int]]) -> Floats:
    """Return the least of each range of pipelines, `(n_shares, n_ranges)`; 0 beyond the last."""
    result = np.zeros((len(each), len(ranges)))
    for k, (first, last) in enumerate(ranges):
        if first < each.shape[1]:
            result[:, k] = each[:, first : last + 1].min(axis=1)
    return result


def _parts_s(problem: MixedProblem, way: Way, share: Floats, ends: Ends) -> tuple[Floats, Floats]:
    """Return what a kind adds at least, and a shard over the NIC, `(n_shares, 1 + pipelines)`.

    By the share of the model's layers in a stage of a way, and by the pipelines of its kind.
    """
    pool, table = problem.pools[way.pool], way.tables[0]
    most = max(1, pool.n_devices // way.n_devices)
    pipelines = np.maximum(1.0, np.arange(most + 1, dtype=np.float64))[None, :]
    states = pipelines if problem.zero else np.ones_like(pipelines)
    total = least_sync_s(problem, way, share, most, ends)
    grads = ends.sum_held(table.grad_bytes) + share[:, None] * table.grad_bytes.layers[-1]
    total = total + grads * _least_ratio(table.update_s, table.grad_bytes) / states
    total = total + grads * _least_ratio(table.clear_s, table.grad_bytes)
    return total, grads / pipelines / pool.nic_bytes_per_s
