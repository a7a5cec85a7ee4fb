"""Time and memory of pipeline ranks as functions of the layers that their chunks hold.

Under one shape and one choice of the free axes both are linear in four counts of a rank: layers,
expert layers, recomputed layers, recomputed expert layers. The coefficients are the differences of
the model's own figures (`stage_times`, `memory_terms`) for ranks that hold one layer more of a
kind, so no formula stands here twice. For schedules that keep the backward whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from costmodels.layers.layer_terms import LayerTable
from costmodels.plans import Layout, PlanTable
from costmodels.problem import Problem
from costmodels.schedule.stages import LOOPED, StageKinds
from costmodels.shape_terms import kind_expert_params, kind_params, shape_terms
from costmodels.step import Rows, join, memory_terms, stage_times

Floats = NDArray[np.float64]

SCHEDULES = ("gpipe", "1f1b", "interleaved")
"""Schedules whose ranks have these costs."""

_HELD = ((1, 0, 0, 0), (2, 0, 0, 0), (2, 1, 0, 0), (2, 0, 1, 0), (2, 0, 2, 0), (2, 1, 2, 1))
"""What ranks hold whose differences give the coefficients: layers, expert layers, recomputed
layers, recomputed expert layers."""


def with_kinds(
    rows: Rows, kinds: StageKinds, recomputed: Floats, recomputed_experts: Floats | None
) -> Rows:
    """Return joined plans whose kinds of rank are others: `kinds` is `(n_shapes, n_kinds)`.

    `recomputed` and `recomputed_experts` are `(n_kinds, n)`. For memory and stage times; terms of
    the data-parallel traffic stay those of the old kinds.
    """
    problem, terms, shapes = rows.problem, rows.shapes, rows.table.shapes
    params = kind_params(problem, shapes, kinds)
    per_param = terms.state_bytes[..., :1] / terms.params[:, :1]
    result = replace(terms, kinds=kinds, params=params, state_bytes=per_param * params)
    if terms.experts:
        routed = kind_expert_params(problem, shapes, kinds)
        # The fullest kind holds experts; a first stage of dense layers may hold none.
        fullest = terms.experts.params.argmax(axis=1)[:, None]
        maximum = np.take_along_axis(terms.experts.params, fullest, axis=1)
        states = terms.experts.state_bytes
        at = np.broadcast_to(fullest, (*states.shape[:-2], *fullest.shape))
        per_param = np.take_along_axis(states, at, axis=-1) / maximum
        more = replace(terms.experts, params=routed, state_bytes=per_param * routed)
        result = replace(result, experts=more)
    return replace(
        rows, shapes=result, recomputed=recomputed, recomputed_experts=recomputed_experts
    )


@dataclass(frozen=True, slots=True)
class RankCosts:
    """What the ranks of one pipeline cost, whatever layers they hold.

    Seconds are of forward and backward of one micro-batch, bytes the peak of a rank, `(pp,)`
    each. Expert layers cost what dense ones do and the expert figure more.
    """

    pp: int
    vpp: int
    n_micro: int
    layer_s: float
    expert_s: float
    recompute_s: float
    recompute_expert_s: float
    embedding_s: float
    head_s: float
    """Head, loss and multi-token prediction."""
    fixed_bytes: Floats
    """Of a rank without layers and recomputation."""
    fixed_recompute_bytes: Floats
    """Of a rank without layers that recomputes: one layer is rebuilt at a time."""
    layer_bytes: Floats
    expert_bytes: Floats
    recompute_bytes: Floats
    """Of a recomputed layer beyond one that is kept: negative."""
    recompute_expert_bytes: Floats
    n_experts_before: tuple[int, ...]
    """Expert layers among the first 0, 1, ... layers of the model."""

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return len(self.n_experts_before) - 1

    def held(self, counts: Sequence[int], recompute_layers: int) -> NDArray[np.int64]:
        """Return layers, expert, recomputed and recomputed expert layers by virtual stage.

        `counts` are the layers of each virtual stage in model order, of which the first
        `recompute_layers` are recomputed; `(4, n_stages)`.
        """
        sizes, before = np.array(counts), np.array(self.n_experts_before)
        ends = np.cumsum(sizes)
        starts, recomputed = ends - sizes, np.minimum(sizes, recompute_layers)
        routed, routed_again = (before[starts + n] - before[starts] for n in (sizes, recomputed))
        return np.array([sizes, routed, recomputed, routed_again])

    def stage_s(self, counts: Sequence[int], recompute_layers: int) -> Floats:
        """Return forward and backward of each virtual stage, seconds per micro-batch."""
        each = (self.layer_s, self.expert_s, self.recompute_s, self.recompute_expert_s)
        times = np.array(each) @ self.held(counts, recompute_layers)
        times[0] += self.embedding_s
        times[-1] += self.head_s
        return np.asarray(times)

    def rank_s(self, counts: Sequence[int], recompute_layers: int) -> Floats:
        """Return forward and backward of each rank, seconds per micro-batch, `(pp,)`."""
        times = self.stage_s(counts, recompute_layers)
        return np.asarray(times.reshape(self.vpp, self.pp).sum(axis=0))

    def rank_bytes(self, counts: Sequence[int], recompute_layers: int) -> Floats:
        """Return the peak memory of each rank, bytes, `(pp,)`."""
        held = self.held(counts, recompute_layers).reshape(4, self.vpp, self.pp).sum(axis=1)
        fixed = self.fixed_recompute_bytes if recompute_layers else self.fixed_bytes
        each = np.stack(
            [
                self.layer_bytes,
                self.expert_bytes,
                self.recompute_bytes,
                self.recompute_expert_bytes,
            ]
        )
        return np.asarray(fixed + (each * held).sum(axis=0))

    def pipeline_s(self, counts: Sequence[int], recompute_layers: int) -> float:
        """Return the closed-form pipeline time without messages (`pipeline.compute_s`), s."""
        times = self.rank_s(counts, recompute_layers)
        slowest = float(times.max())
        return self.n_micro * slowest + (float(times.sum()) - slowest) / self.vpp


def rank_costs(
    problem: Problem, layouts: Sequence[Layout], layers: LayerTable | None = None
) -> list[RankCosts]:
    """Return the costs of the ranks of each layout, whatever its split and `recompute_layers`.

    Layouts with `recompute` `selective` recompute so; the others `full`, as far as they recompute.
    Raises ValueError for a schedule that is not one of `SCHEDULES`.
    """
    for layout in layouts:
        if layout.schedule not in SCHEDULES or layout.placement != LOOPED:
            raise ValueError(f"schedule {layout.schedule}: its ranks have no linear costs")
    table = PlanTable.from_layouts(layouts)
    rows = join(problem, shape_terms(problem, table.shapes, table.shardings), table, layers)
    held = np.array(_HELD, dtype=np.float64)
    routed = bool(rows.layers.experts)
    largest, n = max(x.pp for x in layouts), len(layouts)
    # Kinds: every rank with everything that it may hold; ranks beyond pp repeat the last.
    ranks = np.minimum(np.arange(largest)[None], table.shapes.pp[:, None] - 1)
    size = (n, largest, len(_HELD))
    shape = (n, largest * len(_HELD))

    def column(values: NDArray[np.float64] | NDArray[np.int32]) -> Floats:
        return np.broadcast_to(values, size).reshape(shape).astype(np.float64)

    every = column(ranks[..., None]).astype(np.int32)
    layer_counts, expert_counts, again, again_experts = (column(held[:, i]) for i in range(4))
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
        expert_prefix=expert_counts[..., None] if routed else None,
    )
    priced = with_kinds(rows, kinds, again.T, again_experts.T if routed else None)
    times = stage_times(priced)
    by_rank = (times.forward_s + times.backward_s).T.reshape(size)
    memory = np.asarray(sum(memory_terms(priced).values())).T.reshape(size)
    sequence = problem.shape.expert_layers if problem.shape.n_experts else ()
    flags = sequence or (False,) * problem.shape.layers
    before = tuple(accumulate((int(x) for x in flags), initial=0))
    return [
        _costs(x, by_rank[i, : x.pp], memory[i, : x.pp], before) for i, x in enumerate(layouts)
    ]


def _costs(layout: Layout, times: Floats, memory: Floats, before: tuple[int, ...]) -> RankCosts:
    """Return the coefficients from the figures of ranks that hold what `_HELD` says."""
    layer_s, expert_s, again_s, again_expert_s = _differences(times)
    layer, expert, again, again_expert = _differences(memory)
    # Without layers; interior ranks of the same layers leave the ends' own times.
    empty_s = times[:, 0] - layer_s
    return RankCosts(
        pp=layout.pp,
        vpp=layout.vpp,
        n_micro=layout.n_micro,
        layer_s=float(layer_s[0]),
        expert_s=float(expert_s[0]),
        recompute_s=float(again_s[0]),
        recompute_expert_s=float(again_expert_s[0]),
        embedding_s=float(empty_s[0]),
        head_s=float(empty_s[-1]),
        fixed_bytes=memory[:, 0] - layer,
        fixed_recompute_bytes=memory[:, 3] - 2 * layer - again,
        layer_bytes=layer,
        expert_bytes=expert,
        recompute_bytes=again,
        recompute_expert_bytes=again_expert,
        n_experts_before=before,
    )


def _differences(figures: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return what one layer more of each kind adds, `(pp,)` each; `figures` is `(pp, 6)`."""
    one, two, expert, again, again_two, again_expert = figures.T
    layer, more, recomputed = two - one, expert - two, again_two - again
    return layer, more, recomputed, again_expert - again_two - more
