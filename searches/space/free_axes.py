"""The free axes: values of micro-batch, ZeRO, recompute and what leaves, before the rules."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import RECOMPUTES
from costmodels.offload.activations import INPUTS_AT_ONCE, RESIDENT_LAYERS
from costmodels.plans import ShapeTable, ShardingTable
from costmodels.schedule.stages import StageSplits, stage_kinds
from searches.options import MAX_RECOMPUTE_STEPS
from searches.pricing.shared_work import rates_key, shapes_key, shardings_key, shared
from searches.rules import CORE, Context, module_sets, offers_activation_offload, offers_offload
from searches.space.dominance import overlap_never_slower
from searches.space.shape_space import divisors

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FreeAxes:
    """The values that the free axes may take, before the rules."""

    mbs: Ints
    shardings: ShardingTable
    recompute: Ints
    """Kind of each recompute option, `(n_options,)`; index into `RECOMPUTES`."""
    recompute_layers: Ints
    """Layers per virtual stage of each option, 0 unless `full`."""
    recompute_modules: Ints
    """Set of modules of each option (`axes.modules_code`), 0 unless selective."""
    activation_offload_layers: Ints
    """Layers of each option whose activations lie on the host."""
    exists: Bools
    """Which shardings each shape has, `(n_shapes, n_shardings)`."""
    dominates: Bools
    """Which of them stand for the same without overlap, which is never better (DOM001)."""


def batch_sizes(context: Context) -> Ints:
    """Return the micro-batch sizes that a search looks at, ascending."""
    options, job = context.options, context.problem.job
    pinned, maximum = options.only.get("mbs", frozenset()), options.most_mbs(job.seq_len)
    # A pinned size that does not divide the batch is kept, so that BAT001 names it.
    sizes = sorted({d for d in divisors(job.global_batch) if d <= maximum} | set(pinned))
    return np.array([d for d in sizes if options.allows("mbs", d)], dtype=np.int32)


def free_axes(context: Context, shapes: ShapeTable) -> FreeAxes:
    """Return the values of the free axes for a set of shapes."""
    mbs, longest = batch_sizes(context), longest_chunks(context, shapes)
    sets = module_sets_of(context)
    depths = range(1, int(longest.max(initial=0)) + 1)
    kinds = [0, *[RECOMPUTES.index("selective")] * len(sets)]
    kinds += [RECOMPUTES.index("full")] * len(depths)
    layers, modules = [0] * (1 + len(sets)) + [*depths], [0, *sets] + [0] * len(depths)
    plain = list(zip(kinds, layers, modules, [0] * len(kinds), strict=True))
    options = np.array(plain + _offload_options(context, plain), dtype=np.int32)
    kind, depth, named, offloaded = (np.ascontiguousarray(column) for column in options.T)
    least = int(mbs[0]) if len(mbs) else 1
    shardings, proven = with_overlap_off(context, shapes, sharding_options(context, shapes), least)
    exists = existing_shardings(shapes, shardings)
    if "dp_overlap" in context.options.only:
        dominates = np.zeros_like(exists)
    else:
        overlaps, apart = shardings.dp_blocking == 0, shapes.replicas[:, None] > 1
        exists &= overlaps | (~proven & apart)
        dominates = exists & overlaps & proven & apart
    return FreeAxes(mbs, shardings, kind, depth, named, offloaded, exists, dominates)


def _offload_options(
    context: Context, plain: list[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    """Return recompute options (kind, layers, modules, offloaded layers) with activations away.

    The first 1, 2, ... layers without recomputation, the recomputed ones with full where they are
    more than stay on the device anyhow; and pinned numbers with every option, so that the rule
    that they break is named.
    """
    if not offers_activation_offload(context):
        return []
    none, full = (RECOMPUTES.index(name) for name in ("none", "full"))
    maximum = context.problem.shape.layers - RESIDENT_LAYERS
    results = [(none, 0, 0, n) for n in range(1, maximum + 1)]
    deep = [x for x in plain if x[0] == full and x[1] > INPUTS_AT_ONCE]
    results += [(kind, k, modules, k) for kind, k, modules, _ in deep]
    named = context.options.only.get("activation_offload_layers", frozenset()) - {0}
    pinned = [(*option[:3], n) for n in sorted(named) for option in plain]
    return list(dict.fromkeys(results + pinned))


def with_overlap_off(
    context: Context, shapes: ShapeTable, shardings: ShardingTable, least_mbs: int
) -> tuple[ShardingTable, Bools]:
    """Return the shardings, also without overlap where that may be wanted, and what is proven.

    It may where the user names it, or where it is not proven for all shapes that overlap is never
    slower; the second is `(n_shapes, n_shardings)`.
    """
    named = context.options.only.get("dp_overlap")
    proven = np.ones((len(shapes), len(shardings)), dtype=bool)
    if named is None:
        # The update on the host comes after, so both places have the same answer.
        alike = shardings.take(np.flatnonzero(shardings.optimizer_offload == 0))
        result = shared(
            context.shared,
            lambda: (
                "overlap",
                rates_key(context.problem, batch=False),
                shapes_key(shapes),
                shardings_key(alike),
                least_mbs,
            ),
            lambda: overlap_never_slower(context, shapes, alike, least_mbs),
        ).T
        proven = np.tile(result, len(shardings) // len(alike))
    if proven.all() if named is None else 0 not in named:
        return shardings, proven
    off = shardings.with_blocking(1)
    return shardings.followed_by(off), np.concatenate((proven, proven), axis=1)


def sharding_options(context: Context, shapes: ShapeTable) -> ShardingTable:
    """Return every ZeRO stage with every number of copies of its groups that some shape has.

    Each with the optimizer on the device and, where there is a host, on that; and with groups of a
    second copy of the weights (hpZ) of the sizes that the user names.
    """
    copies = sorted({c for ranks in np.unique(shapes.replicas) for c in copies_of(int(ranks))})
    rows = [(0, 1), *((zero, c) for zero in (1, 2, 3) for c in copies or [1])]
    places = (0, 1) if offers_offload(context) else (0,)
    groups = [1, *sorted(context.options.only.get("hpz", frozenset()) - {1})]
    return ShardingTable.from_tuples(
        [(*row, place, 0, hpz) for place in places for hpz in groups for row in rows]
    )


def copies_of(ranks: int) -> list[int]:
    """Return how often the ZeRO groups among `ranks` may be replicated: two ranks stay in each.

    >>> copies_of(8)
    [1, 2, 4]
    """
    return [c for c in divisors(ranks) if ranks // c > 1 or c == 1]


def existing_shardings(shapes: ShapeTable, shardings: ShardingTable) -> Bools:
    """Return which shardings each shape has, `(n_shapes, n_shardings)`."""
    ranks, copies = shapes.replicas[:, None], shardings.copies[None, :]
    return np.asarray((ranks % copies == 0) & ((ranks // copies > 1) | (copies == 1)))


def module_sets_of(context: Context) -> list[int]:
    """Return the sets of recomputed modules that a search looks at, the attention core first.

    The core's own set and pinned ones are looked at even where no rule allows them, so that the
    rule that they break is named.
    """
    named = context.options.only.get("recompute_modules", frozenset()) - {0}
    others = {*module_sets(context.problem.shape), *named} - {CORE}
    return [CORE, *sorted(others)]


def longest_chunks(context: Context, shapes: ShapeTable) -> Ints:
    """Return the layers of the largest virtual stage of each shape."""
    splits = StageSplits(shapes.pp, shapes.vpp, shapes.split, shapes.splits)
    kinds = stage_kinds(context.problem.shape.layers, splits, with_held=False)
    layers = np.where(kinds.chunk_counts > 0, kinds.chunk_layers, 0.0)
    return np.asarray(layers.max(axis=(1, 2)).astype(np.int32))


def recompute_options(context: Context, shapes: ShapeTable, axes: FreeAxes) -> Bools:
    """Return which recompute options exist for each shape, `(n_shapes, n_options)`.

    `full` runs over 1 .. layers of the largest virtual stage; longer ranges than
    `MAX_RECOMPUTE_STEPS` are thinned evenly, ends kept. A pinned value is never thinned. The
    same of layers whose activations leave without recomputation.
    """
    longest = longest_chunks(context, shapes)[:, None]
    k = axes.recompute_layers[None, :]
    step = np.maximum(1, -(-longest // MAX_RECOMPUTE_STEPS))
    on_grid = ((longest - k) % step == 0) | (k == 1)
    if "recompute_layers" in context.options.only:
        on_grid = np.ones_like(on_grid)
    exists = (k == 0) | ((k <= longest) & on_grid)
    if axes.activation_offload_layers.any():
        exists = exists & _offload_exists(context, axes)[None]
    return np.asarray(exists)


def _offload_exists(context: Context, axes: FreeAxes) -> Bools:
    """Return which options are on the grid of layers whose activations leave, `(n_options,)`."""
    n, maximum = axes.activation_offload_layers, context.problem.shape.layers - RESIDENT_LAYERS
    if "activation_offload_layers" in context.options.only:
        return np.ones(len(n), dtype=bool)
    step = max(1, -(-maximum // MAX_RECOMPUTE_STEPS))
    on_grid = (n == 0) | (n == 1) | ((maximum - n) % step == 0)
    return np.asarray(on_grid | (axes.recompute != RECOMPUTES.index("none")))
