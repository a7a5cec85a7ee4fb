"""Time and memory of pipeline ranks as functions of the layers that their chunks hold.

Under one shape and one choice of the free axes both are linear in a few counts of a rank: layers,
those of each other kind than the model's first, recomputed layers, recomputed ones of each other
kind. The coefficients are the differences of the model's own figures (`stage_times`,
`memory_terms`) for ranks that hold one layer more of a kind, so no formula stands here twice.
Interleaved ranks hold more micro-batches of some chunks than of others (`schedule.in_flight`): the
peak is the largest of several such sums over the chunks. For schedules that keep the backward
whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import SCHEDULES as PLAN_SCHEDULES
from costmodels.layers.layer_terms import LayerTable
from costmodels.memory import in_flight_chunks
from costmodels.optimizers.groups import GroupTerms
from costmodels.plans import Layout, PlanTable
from costmodels.problem import Problem
from costmodels.schedule.in_flight import ROUNDS, beyond_mean
from costmodels.schedule.stages import LOOPED, StageKinds, other_kinds
from costmodels.shape_terms import (
    all_frozen_bytes,
    dense_groups,
    expert_groups,
    kind_expert_params,
    kind_params,
    quantized_bytes,
    shape_terms,
    step_phases,
    tuned_states,
)
from costmodels.shapes import ModelShape
from costmodels.step import Rows, join, memory_terms, stage_times

Floats = NDArray[np.float64]

SCHEDULES = ("gpipe", "1f1b", "interleaved")
"""Schedules whose ranks have these costs."""


def _held_rows(n_others: int) -> list[tuple[int, ...]]:
    """Return what ranks hold whose differences give the coefficients, nothing last.

    Layers, those of each other kind, recomputed layers, recomputed ones of each other kind.
    """
    none = (0,) * n_others
    units = [tuple(int(i == j) for j in range(n_others)) for i in range(n_others)]
    return [
        (1, *none, 0, *none),
        (2, *none, 0, *none),
        (2, *none, 1, *none),
        (2, *none, 2, *none),
        *((2, *unit, 0, *none) for unit in units),
        *((2, *unit, 2, *unit) for unit in units),
        (0, *none, 0, *none),
    ]


def with_kinds(
    rows: Rows,
    kinds: StageKinds,
    recomputed: Floats,
    recomputed_others: Floats | None,
    *,
    is_linear: bool = False,
) -> Rows:
    """Return joined plans whose kinds of rank are others: `kinds` is `(n_shapes, n_kinds)`.

    `recomputed` is `(n_kinds, n)`, `recomputed_others` `(n_other_kinds, n_kinds, n)`. For memory
    and stage times; terms of the data-parallel traffic stay those of the old kinds. With
    `is_linear` shards of whole matrices count as the mean of those of the first kind, so that what
    a rank holds stays linear in its layers.
    """
    problem, terms, shapes = rows.problem, rows.shapes, rows.table.shapes
    params = kind_params(problem, shapes, kinds)
    shardings = rows.table.shardings
    if problem.job.tuning:
        tuned = tuned_states(problem, shapes, shardings, kinds)
        result = replace(terms, kinds=kinds, **tuned)
        return replace(
            rows, shapes=result, recomputed=recomputed, recomputed_others=recomputed_others
        )
    dense = None if is_linear else dense_groups(problem, shapes, shardings, kinds)
    states = _states_as_held(terms.state_bytes, terms.groups, dense)
    per_param = states[..., :1] / terms.params[:, :1]
    result = replace(terms, kinds=kinds, params=params, state_bytes=per_param * params)
    if dense is not None:
        result = replace(result, state_bytes=result.state_bytes + dense.state_bytes)
    if terms.phases is not None:
        result = replace(result, phases=step_phases(problem, shapes, shardings, kinds))
    if terms.frozen_bytes is not None:
        frozen = all_frozen_bytes(problem, shapes, shardings, kinds)
        result = replace(result, frozen_bytes=frozen)
    if terms.quantized_bytes is not None:
        copies = quantized_bytes(problem, shapes, kinds, shardings.zero)
        result = replace(result, quantized_bytes=copies)
    if terms.experts:
        routed = kind_expert_params(problem, shapes, kinds)
        # The fullest kind holds experts; a first stage of dense layers may hold none.
        fullest = terms.experts.params.argmax(axis=1)[:, None]
        maximum = np.take_along_axis(terms.experts.params, fullest, axis=1)
        of_experts = None if is_linear else expert_groups(problem, shapes, shardings, kinds)
        states = _states_as_held(terms.experts.state_bytes, terms.experts.groups, of_experts)
        kind_idx = np.broadcast_to(fullest, (*states.shape[:-2], *fullest.shape))
        per_param = np.take_along_axis(states, kind_idx, axis=-1) / maximum
        state_bytes = (
            per_param * routed
            if of_experts is None
            else per_param * routed + of_experts.state_bytes
        )
        more = replace(terms.experts, params=routed, state_bytes=state_bytes)
        result = replace(result, experts=more)
    return replace(rows, shapes=result, recomputed=recomputed, recomputed_others=recomputed_others)


def _states_as_held(states: Floats, old: GroupTerms | None, new: GroupTerms | None) -> Floats:
    """Return states without what groups of parameters take more, where that is counted anew."""
    return states if old is None or new is None else states - old.state_bytes


@dataclass(frozen=True, slots=True)
class RankCosts:
    """What the ranks of one pipeline cost, whatever layers they hold.

    Seconds are of forward and backward of one micro-batch, bytes the peak of a rank, `(pp,)`
    each. Coefficients are in the order of `held`; those of other kinds are what a layer of them
    costs more than one of the model's first kind, those of recomputed layers what one costs more
    than a layer that is kept.
    """

    pp: int
    vpp: int
    n_micro: int
    each_s: tuple[float, ...]
    embedding_s: float
    head_s: float
    """Head, loss and multi-token prediction."""
    fixed_bytes: Floats
    """Of a rank without layers and recomputation."""
    fixed_recompute_bytes: Floats
    """Of a rank without layers that recomputes: one layer is rebuilt at a time."""
    each_bytes: Floats
    """`(n_counts, pp)`; activations by the mean of the chunks in flight."""
    others_before: tuple[tuple[int, ...], ...]
    """By other kind, its layers among the first 0, 1, ... layers of the model."""
    n_layers: int
    in_flight_bytes: Floats
    """What one micro-batch in flight keeps, `(n_counts,)`."""
    beyond_mean: tuple[Floats, ...]
    """By rank, the micro-batches in flight of each chunk beyond the mean at the moments that may
    be the peak, `(n_moments, vpp)` each (`in_flight.beyond_mean`); empty without chunks."""
    empty_bytes: Floats | None = None
    """Of a rank that holds no layer at all, `(pp,)`: no layer runs, and what comes is passed on.
    None: `fixed_bytes`."""

    @property
    def layer_s(self) -> float:
        """Time of a layer of the model's first kind."""
        return self.each_s[0]

    def held(self, counts: Sequence[int], recompute_layers: int) -> NDArray[np.int64]:
        """Return layers, those of other kinds, recomputed ones, recomputed ones of other kinds.

        By virtual stage, `(n_counts, n_stages)`. `counts` are the layers of each virtual stage in
        model order, of which the first `recompute_layers` are recomputed.
        """
        sizes = np.array(counts)
        ends = np.cumsum(sizes)
        starts, recomputed = ends - sizes, np.minimum(sizes, recompute_layers)
        rows = []
        for n in (sizes, recomputed):
            rows.append(n)
            for other in self.others_before:
                before = np.array(other)
                rows.append(before[starts + n] - before[starts])
        return np.array(rows)

    def stage_s(self, counts: Sequence[int], recompute_layers: int) -> Floats:
        """Return forward and backward of each virtual stage, seconds per micro-batch."""
        times = np.array(self.each_s) @ self.held(counts, recompute_layers)
        times[0] += self.embedding_s
        times[-1] += self.head_s
        return np.asarray(times)

    def rank_s(self, counts: Sequence[int], recompute_layers: int) -> Floats:
        """Return forward and backward of each rank, seconds per micro-batch, `(pp,)`."""
        times = self.stage_s(counts, recompute_layers)
        return np.asarray(times.reshape(self.vpp, self.pp).sum(axis=0))

    def rank_bytes(self, counts: Sequence[int], recompute_layers: int) -> Floats:
        """Return the peak memory of each rank, bytes, `(pp,)`."""
        n_layers = self.held(counts, recompute_layers)
        by_chunk = n_layers.reshape(len(n_layers), self.vpp, self.pp)
        fixed = self.fixed_recompute_bytes if recompute_layers else self.fixed_bytes
        total = fixed + (self.each_bytes * by_chunk.sum(axis=1)).sum(axis=0)
        if self.empty_bytes is not None:
            total = np.where(by_chunk[0].sum(axis=0) > 0, total, self.empty_bytes)
        if self.beyond_mean:
            chunk_bytes = np.tensordot(self.in_flight_bytes, by_chunk, axes=1)
            total = total + [
                float((more @ chunk_bytes[:, rank]).max())
                for rank, more in enumerate(self.beyond_mean)
            ]
        return np.asarray(total)

    def pipeline_s(self, counts: Sequence[int], recompute_layers: int) -> float:
        """Return the closed-form pipeline time without messages (`pipeline.compute_s`), s."""
        times = self.rank_s(counts, recompute_layers)
        slowest = float(times.max())
        return self.n_micro * slowest + (float(times.sum()) - slowest) / self.vpp


@dataclass(frozen=True, slots=True)
class PricedRanks:
    """Ranks of some layouts that hold what `_held_rows` says, priced.

    Arrays are `(n_layouts, most pp, n_rows)`; ranks beyond the pp of a layout repeat its last.
    """

    forward_s: Floats
    backward_s: Floats
    memory_bytes: dict[str, Floats]
    """By term."""
    params: Floats
    """Trained parameters on a device, routed experts included."""


def priced_ranks(
    problem: Problem, layouts: Sequence[Layout], layers: LayerTable | None = None
) -> PricedRanks:
    """Return ranks of each layout that hold what `_held_rows` says, with times and memory.

    Raises ValueError for a schedule that is not one of `SCHEDULES`.
    """
    for layout in layouts:
        if layout.schedule not in SCHEDULES or layout.placement != LOOPED:
            raise ValueError(f"schedule {layout.schedule}: its ranks have no linear costs")
    table = PlanTable.from_layouts(layouts)
    rows = join(problem, shape_terms(problem, table.shapes, table.shardings), table, layers)
    n_others = len(rows.layers.others)
    contents = np.array(_held_rows(n_others), dtype=np.float64)
    largest, n = max(x.pp for x in layouts), len(layouts)
    # Kinds: every rank with everything that it may hold; ranks beyond pp repeat the last.
    ranks = np.minimum(np.arange(largest)[None], table.shapes.pp[:, None] - 1)
    size = (n, largest, len(contents))
    shape = (n, largest * len(contents))

    def column(values: NDArray[np.float64] | NDArray[np.int32]) -> Floats:
        return np.broadcast_to(values, size).reshape(shape).astype(np.float64)

    every = column(ranks[..., None]).astype(np.int32)
    layer_counts, *others, recomputed = (column(contents[:, i]) for i in range(2 + n_others))
    others_again = np.array([column(contents[:, 2 + n_others + i]).T for i in range(n_others)])
    last = column((ranks == table.shapes.pp[:, None] - 1)[..., None].astype(np.float64))
    kinds = StageKinds(
        rank=every,
        late_rank=every,
        n_ranks=np.ones(shape),
        layers=layer_counts,
        has_embedding=column((ranks == 0)[..., None].astype(np.float64)),
        has_head=last,
        chunk_layers=layer_counts[..., None],
        chunk_counts=np.ones((*shape, 1)),
        prefix=np.array(others)[..., None] if others else None,
        passing=np.where((layer_counts == 0.0) & (every > 0), 1.0, 0.0),
    )
    priced = with_kinds(
        rows, kinds, recomputed.T, others_again if others else None, is_linear=True
    )
    times = stage_times(priced)
    params = priced.shapes.params
    if priced.shapes.experts:
        params = params + priced.shapes.experts.params
    return PricedRanks(
        forward_s=times.forward_s.T.reshape(size),
        backward_s=times.backward_s.T.reshape(size),
        memory_bytes={
            k: x.T.reshape(size) for k, x in memory_terms(priced, is_linear=True).items()
        },
        params=params.reshape(size),
    )


def rank_costs(
    problem: Problem, layouts: Sequence[Layout], layers: LayerTable | None = None
) -> list[RankCosts]:
    """Return the costs of the ranks of each layout, whatever its split and `recompute_layers`.

    Layouts with `recompute` `selective` recompute so; the others `full`, as far as they recompute.
    Raises ValueError for a schedule that is not one of `SCHEDULES`.
    """
    ranks = priced_ranks(problem, layouts, layers)
    by_rank = ranks.forward_s + ranks.backward_s
    terms = ranks.memory_bytes
    memory = np.asarray(sum(terms.values()))
    in_flight = terms["activations"] + terms["fragmentation"]
    figures = (
        _RankFigures(*(y[i, : x.pp] for y in (by_rank, memory, in_flight)))
        for i, x in enumerate(layouts)
    )
    return [_costs(x, one, problem.shape) for x, one in zip(layouts, figures, strict=True)]


@dataclass(frozen=True, slots=True)
class _RankFigures:
    """Figures of the ranks of one layout that hold what `_held_rows` says, `(pp, n_rows)`."""

    times_s: Floats
    memory_bytes: Floats
    activation_bytes: Floats


def _costs(layout: Layout, figures: _RankFigures, shape: ModelShape) -> RankCosts:
    """Return the coefficients from the figures of ranks that hold what `_held_rows` says."""
    flags = other_kinds(shape.layer_sequence)
    before = tuple(tuple(accumulate(map(int, x), initial=0)) for x in flags)
    times, memory = figures.times_s, figures.memory_bytes
    each_s, each_bytes = count_differences(times), count_differences(memory)
    # Without layers; interior ranks of the same layers leave the ends' own times.
    empty_s = times[:, 0] - each_s[0]
    code = PLAN_SCHEDULES.index(layout.schedule)
    args = (layout.pp, layout.vpp, layout.n_micro)
    in_flight = in_flight_chunks(code, 0, *args) / layout.vpp
    n_rounds = min(ROUNDS, max(1, layout.n_micro // layout.pp))
    chunked = range(layout.pp) if layout.vpp > 1 else ()
    return RankCosts(
        pp=layout.pp,
        vpp=layout.vpp,
        n_micro=layout.n_micro,
        each_s=tuple(float(x[0]) for x in each_s),
        embedding_s=float(empty_s[0]),
        head_s=float(empty_s[-1]),
        fixed_bytes=memory[:, 0] - each_bytes[0],
        fixed_recompute_bytes=memory[:, 2] - 2 * each_bytes[0] - each_bytes[1 + len(before)],
        each_bytes=np.array(each_bytes),
        others_before=before,
        n_layers=shape.layers,
        in_flight_bytes=np.array([x[0] for x in count_differences(figures.activation_bytes)])
        / in_flight,
        beyond_mean=tuple(beyond_mean(r, layout.pp, layout.vpp, n_rounds) for r in chunked),
        empty_bytes=memory[:, -1] if layout.vpp == 1 else None,
    )


def count_differences(figures: Floats) -> list[Floats]:
    """Return what one layer more of each count adds, `(pp,)` each; `figures` is `(pp, n_rows)`.

    Layers, those of each other kind beyond the first, recomputed ones, those of each other kind.
    """
    one, two, recompute, recompute_two, *of_others, _ = figures.T
    n_others = len(of_others) // 2
    layer, recomputed = two - one, recompute_two - recompute
    others = [other - two for other in of_others[:n_others]]
    pairs = zip(of_others[n_others:], others, strict=True)
    others_again = [figure - recompute_two - more for figure, more in pairs]
    return [layer, *others, recomputed, *others_again]
