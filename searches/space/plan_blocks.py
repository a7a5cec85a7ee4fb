"""The legal plans of some shapes as blocks of arrays, ready to be priced."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.plans import PlanBlock, ShapeTable
from searches.rules import Context
from searches.space.free_axes import FreeAxes
from searches.space.plan_masks import Masks

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class LegalBlock:
    """A block of plans, and which of them are legal."""

    block: PlanBlock
    legal: Bools
    """Of the size of the block."""
    mbs: NDArray[np.intp]
    """Position of each batch's size in `FreeAxes.mbs`, `(n_batches,)`."""
    mode: NDArray[np.intp]
    """Position of each batch in `SearchOptions.modes`, `(n_batches,)`."""

    def of_batches(self, batches: Rows) -> "LegalBlock":
        """Return the block of some of the batches."""
        block = self.block.of_batches(batches)
        return LegalBlock(block, self.legal[..., batches], self.mbs[batches], self.mode[batches])


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """Which batches of plans are left out of a search: without bounds none."""

    least_s: Floats | None = None
    """A lower bound of the step by shape, mbs and mode."""
    limit_s: Callable[[], float] = lambda: np.inf
    """The bound from which on batches are left out, asked when it is their turn."""
    may_fit: Callable[[PlanBlock, Bools, Bools], Bools] | None = None
    """Whether batches may fit the memory. Asked of whole batches: a block, and which of its
    shardings and options each has, `(n_shardings, n_batches)` and `(n_options, n_batches)`."""


UNBOUNDED = BatchBounds()


def plan_blocks(
    context: Context,
    shapes: ShapeTable,
    axes: FreeAxes,
    masks: Masks,
    n_cells: int,
    bounds: BatchBounds = UNBOUNDED,
) -> Iterator[LegalBlock]:
    """Yield the legal plans as blocks of about `n_cells` cells, every plan in exactly one.

    With lower bounds batches come in the order of them, and those above the limit are left out; so
    are those that do not fit (`BatchBounds`).
    ZeRO stages that move traffic once per step stand in blocks of their own, apart from those that
    move it per micro-batch: the formulas of the two differ.
    """
    used_rows, may_fit = masks.shardings_used, bounds.may_fit
    sp_of, switch_of = context.options.modes
    for stages in ((0, 1), (2, 3)):
        rows = np.flatnonzero(np.isin(axes.shardings.zero, stages) & used_rows)
        if not len(rows):
            continue
        with_mode, offered = masks.of_stages(rows)
        shape_idx, mbs, mode = np.nonzero(masks.batches[:, :, None] & with_mode[:, None, :])
        options, exists = _options_of(offered)
        n_options, least_s = exists.sum(axis=1), np.zeros(len(shape_idx))
        if bounds.least_s is None:
            # Batches with equally many plans side by side leave few places of a block empty.
            n_shardings = np.count_nonzero(masks.sharding[:, rows], axis=1)
            order = np.lexsort((n_shardings[shape_idx], n_options[shape_idx]))
        else:
            least_s = bounds.least_s[shape_idx, mbs, mode]
            order = np.argsort(least_s, kind="stable")[: np.count_nonzero(np.isfinite(least_s))]
            least_s = least_s[order]
        shape_idx, mbs, mode = shape_idx[order], mbs[order], mode[order]
        size = max(1, n_cells // (len(rows) * options.shape[1]))
        # Whole batches are looked at many at a time: that takes no cell for each plan.
        step = size if may_fit is None else max(size, n_cells // (len(rows) + options.shape[1]))

        def block_of(option_idx: NDArray[np.intp], used: NDArray[np.intp]) -> PlanBlock:
            s = shape_idx[option_idx]  # noqa: B023  # used up within the round
            option = options[s, : n_options[s].max()].T  # noqa: B023
            return PlanBlock(
                shapes=shapes,
                shardings=axes.shardings,
                gbs=context.problem.job.global_batch,
                shape=s.astype(np.int32)[None, None],
                mbs=axes.mbs[mbs[option_idx]][None, None],  # noqa: B023
                sharding=used.astype(np.int32)[:, None, None],
                sp=sp_of[mode[option_idx]][None, None],  # noqa: B023
                switch=switch_of[mode[option_idx]][None, None],  # noqa: B023
                recompute=axes.recompute[option],
                recompute_layers=axes.recompute_layers[option],
                recompute_modules=axes.recompute_modules[option],
                activation_offload_layers=axes.activation_offload_layers[option],
                switches=context.options.switches,
            )

        waiting = np.zeros(0, dtype=np.intp)
        for start in range(0, len(shape_idx), step):
            end = start + int(
                np.searchsorted(least_s[start : start + step], bounds.limit_s(), "right")
            )
            more = np.arange(start, end)
            if may_fit is not None and len(more):
                has = masks.sharding[shape_idx[more]][:, rows].T
                existing = exists[shape_idx[more], : n_options[shape_idx[more]].max()].T
                more = more[may_fit(block_of(more, rows), has, existing)]
            waiting = np.concatenate((waiting, more))
            last = end < min(start + step, len(shape_idx)) or end == len(shape_idx)
            while len(waiting) >= size or (last and len(waiting)):
                now, waiting = waiting[:size], waiting[size:]
                s = shape_idx[now]
                legal = masks.of_batches(s, mode[now], rows)
                used = np.flatnonzero(legal.any(axis=(0, 2)))
                legal = legal[:, used].transpose(1, 2, 0)
                block = block_of(now, rows[used])
                maximum = n_options[s].max()
                option_idx = options[s, :maximum].T[None]
                value = np.take_along_axis(legal, option_idx, axis=1) & exists[s, :maximum].T[None]
                yield LegalBlock(block, value, mbs[now], mode[now])
            if last:
                break


def _options_of(offered: Bools) -> tuple[NDArray[np.intp], Bools]:
    """Return the recompute options that each shape has, side by side, and which places are used.

    `offered` is `(n_shapes, n_options)`; both results are `(n_shapes, most options of a shape)`.
    Shapes thin long ranges of layers differently, so their own options are far fewer than all.
    """
    counts = offered.sum(axis=1)
    order = np.argsort(~offered, axis=1, kind="stable")[:, : max(1, int(counts.max(initial=0)))]
    return order, np.arange(order.shape[1])[None] < counts[:, None]
