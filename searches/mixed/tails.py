"""What gradients and the optimizer add to the step of a kind of pipelines at least.

Of a pipeline of p stages some stage holds at least the p-th part of the model. The bounds below
increase with what a stage holds, so that part bounds the last stage to end.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedPool, MixedProblem, Prefix, Ring
from searches.mixed.capacity import least_sums
from searches.mixed.fills import Way

Floats = NDArray[np.float64]

COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")


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


def least_sync_s(
    problem: MixedProblem, way: Way, share: Floats, most: int, has_head: bool = True
) -> NDArray[np.float64]:
    """Return what gradients and weights of a stage add at least, seconds, `(n_shares, 1 + most)`.

    By the share of the model's layers that it holds at least, and by pipelines. With transfer
    t = n lat + g c in n = ceil(g/piece) pieces and a window w, `prices.sync_s` is

        s t + (1 - s) max( t/n, t - w )

    From below: n >= max(1, g/piece) in t, n <= g/piece + 1 in t/n >= lat + g c/n, and w <= r g + e
    with r the most seconds a byte of any layer and e those of the ends (of the embedding alone
    where the stage has no head). Increases with g: where
    the window grows faster than the transfer, the piece exceeds t - w.
    """
    pool, table = problem.pools[way.pool], way.tables[0]
    layers = np.diff(table.grad_bytes.layers)
    grads = (share * table.grad_bytes.layers[-1])[:, None]
    weights = grads * _least_ratio(table.weight_bytes, table.grad_bytes)
    rings = _rings(pool, way.n_devices, most)
    pipelines = np.arange(most + 1, dtype=np.float64)[None, :]

    def window(name: str) -> Floats:
        prefixes = [getattr(x, name) for x in way.tables]
        ratio = max(_most_ratio(np.diff(x.layers), layers) for x in prefixes)
        ends = max(x.embedding + (x.head if has_head else 0.0) for x in prefixes)
        return np.asarray(grads * ratio + ends)

    def least(sizes: Floats, operation: str, side: str) -> Floats:
        latency, per_byte = (x[None, :] for x in rings[operation])
        overlap = problem.overlap
        if overlap is None:
            return np.asarray(latency + sizes * per_byte)
        piece = np.maximum(overlap.piece_bytes, overlap.piece_bytes_per_rank * pipelines)
        transfer = np.maximum(1.0, grads / piece) * latency + sizes * per_byte
        one = latency + sizes * per_byte * piece / (grads + piece)
        exposed = np.maximum(one, transfer - window(side))
        return np.asarray(overlap.slowdown * transfer + (1.0 - overlap.slowdown) * exposed)

    if not problem.zero:
        total = least(grads, "all_reduce", "backward_s")
    else:
        total = least(grads, "reduce_scatter", "backward_s")
        total = total + least(weights, "all_gather", "forward_s")
    total[:, :2] = 0.0
    return total


def least_tail_s(
    problem: MixedProblem,
    ways: Sequence[Way],
    ranges: Sequence[tuple[int, int]],
    most_stages: int,
    is_several: bool,
) -> Floats:
    """Return what follows the pipeline at least, seconds, `(n_ways, 1 + most_stages, n_ranges)`.

    By the way of the stage that holds most, by stages, and by ranges of the pipelines of a kind.
    With several kinds each layer is held by two groups at least, whose exchange takes
    2 (U - 1)/U >= 1 times the shard over the NIC of a device.
    """
    result = np.zeros((len(ways), 1 + most_stages, len(ranges)))
    share = _least_share(ways) / np.maximum(1, np.arange(1 + most_stages))
    for i, way in enumerate(ways):
        result[i] = _by_range(tail_s(problem, way, share, is_several), ranges)
    return result


def whole_layers_tail_s(
    problem: MixedProblem,
    ways: Sequence[Way],
    ranges: Sequence[tuple[int, int]],
    is_several: bool,
    has_head: bool,
) -> Floats:
    """Return the same for a stage of 0, 1, ... layers, `(n_ways, 1 + n_layers, n_ranges)`.

    Of so many layers those with the least gradients; `has_head` tells whether the stage may be
    the last of its pipeline.
    """
    result = np.zeros((len(ways), 1 + problem.n_layers, len(ranges)))
    for i, way in enumerate(ways):
        layers = way.tables[0].grad_bytes.layers
        share = least_sums(np.diff(layers)) / max(float(layers[-1]), 1e-30)
        result[i] = _by_range(tail_s(problem, way, share, is_several, has_head), ranges)
    return result


def _by_range(each: Floats, ranges: Sequence[tuple[int, int]]) -> Floats:
    """Return the least of each range of pipelines, `(n_shares, n_ranges)`; 0 beyond the last."""
    result = np.zeros((len(each), len(ranges)))
    for k, (first, last) in enumerate(ranges):
        if first < each.shape[1]:
            result[:, k] = each[:, first : last + 1].min(axis=1)
    return result


def tail_s(
    problem: MixedProblem, way: Way, share: Floats, is_several: bool, has_head: bool = True
) -> Floats:
    """Return what follows the pipeline at least, seconds, `(n_shares, 1 + most pipelines)`.

    By the share of the model's gradients in a stage of a way, and by the pipelines of its kind.
    """
    pool, table = problem.pools[way.pool], way.tables[0]
    most = max(1, pool.n_devices // way.n_devices)
    pipelines = np.maximum(1.0, np.arange(most + 1, dtype=np.float64))[None, :]
    states = pipelines if problem.zero else np.ones_like(pipelines)
    total = least_sync_s(problem, way, share, most, has_head)
    grads = share[:, None] * table.grad_bytes.layers[-1]
    total = total + grads * _least_ratio(table.update_s, table.grad_bytes) / states
    total = total + grads * _least_ratio(table.clear_s, table.grad_bytes)
    if is_several:
        total = total + grads / pipelines / pool.nic_bytes_per_s
    return np.asarray(total)
