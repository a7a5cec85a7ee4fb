"""One plan opened up: exact step time by term, memory by stage and term, traffic by collective."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodels import pipeline
from costmodels.compute import ForwardBackward
from costmodels.layer_grid import LayerGrid
from costmodels.layer_terms import LayerTerms, SplitDegrees, layer_terms, sets_of
from costmodels.plans import ZERO_BUBBLE, Layout, PlanTable
from costmodels.problem import Problem
from costmodels.rank_costs import with_kinds
from costmodels.shape_terms import shape_terms
from costmodels.stages import N_KINDS, expert_prefix
from costmodels.step import (
    Rows,
    activation_waits,
    boundary_hops_columns,
    boundary_hops_s,
    data_parallel_exposed,
    join_at,
    memory_terms,
    offload_exposed,
    outside_pipeline,
    stage_times,
    stalled,
    step_times,
    straggler_factor,
)
from costmodels.traffic import Transfer, selective_again, transfers

Floats = NDArray[np.float64]

TIME_TERMS = (
    "linear",
    "attention",
    "elementwise",
    "experts",
    "head",
    "embedding",
    "recompute",
    "host",
    "tp",
    "cp",
    "ep",
    "overlap",
    "pp",
    "bubble",
    "dp",
    "optimizer",
    "offload",
    "straggler",
    "fixed",
)
"""The terms of a step in the order in which they are printed; their sum is the step time."""
COMPUTE_TERMS = ("linear", "attention", "elementwise", "experts", "head", "embedding")
"""Terms in which the slowest rank computes for the first time."""
NETWORK_TERMS = ("tp", "cp", "ep", "pp", "dp")
"""Terms in which it waits for the network, by axis."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Everything about one plan. Seconds and bytes."""

    layout: Layout
    step_s: float
    """With the exact pipeline recurrence."""
    closed_form_step_s: float
    """What the ranking of all plans used."""
    time_s: Mapping[str, float]
    """By term (`TIME_TERMS`), of `critical_stage`; sums to `step_s`."""
    stages: tuple[Mapping[str, float], ...]
    """Memory by term of every pipeline rank, bytes."""
    peak_bytes: float
    peak_stage: int
    transfers: tuple[Transfer, ...]
    critical_stage: int
    """The pipeline rank of `time_s` and `transfers`: the slowest, where none was asked for."""
    n_micro: int
    rows: Rows
    """The joined one-row table: what explanations take their numbers from."""

    @property
    def bubble_frac(self) -> float:
        """Idle share of the step."""
        return self.time_s["bubble"] / self.step_s

    @property
    def exposed_comm_frac(self) -> float:
        """Share of the step that waits for the network."""
        return sum(self.time_s[axis] for axis in NETWORK_TERMS) / self.step_s


def join_one(problem: Problem, layout: Layout, grid: LayerGrid | None = None) -> Rows:
    """Return the joined table that holds just `layout`, with the layer terms of that row alone.

    `grid` holds them, if they are known.
    """
    return join_layouts(problem, [layout], grid)


def join_layouts(
    problem: Problem, layouts: Sequence[Layout], grid: LayerGrid | None = None
) -> Rows:
    """Return the joined table of a few layouts, with the layer terms of every row alone."""
    table = PlanTable.from_layouts(layouts)
    terms = shape_terms(problem, table.shapes, table.shardings)
    if grid is not None and grid.holds(table):
        alone = grid.one(table)
    else:
        alone = layer_terms(problem, SplitDegrees.of_shapes(table.shapes), table.mbs, table.sp)
    sets = sets_of(problem, alone, table.recompute_modules)
    return join_at(problem, terms, table, alone, sets, np.arange(len(layouts)))


def virtual_stage_times(
    rows: Rows, layout: Layout, row: int = 0, late: ForwardBackward | None = None
) -> tuple[list[float], list[float]]:
    """Return forward and backward seconds per micro-batch of each virtual stage in model order.

    `layout` is row `row` of the joined table; `late` is `stalled` of all its rows, if known.
    """
    forward, backward = virtual_stage_columns(rows, layout, [row], late)
    return forward[0].tolist(), backward[0].tolist()


def virtual_stage_columns(
    rows: Rows, layout: Layout, some: Sequence[int], late: ForwardBackward | None = None
) -> tuple[Floats, Floats]:
    """Return the same of several rows that all hold `layout`, `(n_rows, n_stages)` each."""
    of = np.asarray(some, dtype=np.intp)
    terms, at = rows.layers, rows.index[of][:, None]
    late = late or stalled(rows)
    one_forward = terms.layer.forward_s[at] + late.forward_s[of][:, None]
    one_backward = terms.layer.backward_s[at] + late.backward_s[of][:, None]
    modules, of_set = rows.sets, rows.set_index.reshape(-1)[of][:, None]
    held = np.array(layout.stage_layers, dtype=np.float64)
    recomputed = np.minimum(held, layout.recompute_layers)
    again = recomputed * terms.recompute_full_s[at] + held * modules.again_s.take(of_set)
    forward, backward = held * one_forward, held * one_backward + again
    if terms.experts:
        more = terms.experts
        routed, routed_again = (
            np.array([_expert_layers(rows, layout, [j], k) for j in range(len(held))])
            for k in (max(layout.stage_layers), layout.recompute_layers)
        )
        forward = forward + routed * (more.layer.forward_s - terms.layer.forward_s)[at]
        backward = backward + routed * (more.layer.backward_s - terms.layer.backward_s)[at]
        backward = backward + routed_again * (more.recompute_full_s - terms.recompute_full_s)[at]
        if modules.expert_again_s is not None:
            backward = backward + routed * modules.expert_again_s.take(of_set)
    alone = at[:, 0]
    forward[:, 0] += terms.embedding.forward_s[alone]
    backward[:, 0] += terms.embedding.backward_s[alone]
    forward[:, -1] += terms.head.forward_s[alone]
    backward[:, -1] += terms.head.backward_s[alone] + _mtp_again_s(rows, of_set[:, 0])
    if layout.activation_offload:
        copies = activation_waits(rows)
        forward[:, 0] += copies.forward_s[0, of]
        backward[:, 0] += copies.backward_s[0, of]
    return forward, backward


def _mtp_again_s(rows: Rows, at: NDArray[np.intp]) -> Floats:
    """Return what the modules of multi-token prediction, each like the last layer, run again.

    Of some positions in `rows.sets`.
    """
    shape, again = rows.problem.shape, rows.sets.again_s.take(at)
    if rows.sets.expert_again_s is not None and shape.expert_layers[-1]:
        again = again + rows.sets.expert_again_s.take(at)
    return np.asarray(shape.mtp_layers * again)


def virtual_weight_grad_times(rows: Rows, layout: Layout, row: int = 0) -> list[float]:
    """Return the part of each virtual stage's backward that can wait, seconds per micro-batch.

    Empty for schedules that do not split the backward.
    """
    if layout.schedule not in ZERO_BUBBLE:
        return []
    terms, at = rows.layers, rows.index[row]
    late = np.array(layout.stage_layers, dtype=np.float64) * terms.weight_grad_s[at]
    late[-1] += terms.head_weight_grad_s[at]
    return [float(x) for x in late]


def same_layout_times(rows: Rows, layout: Layout) -> list[float]:
    """Return `exact_step_times` of a table of which every row is `layout`, seconds.

    For problems with figures in columns (`costmodels.problem.in_columns`).
    """
    n = len(rows.index)
    stages = [x.tolist() for x in virtual_stage_columns(rows, layout, range(n))]
    hops = boundary_hops_columns(rows, layout)
    runs = []
    for i in range(n):
        late = tuple(virtual_weight_grad_times(rows, layout, i))
        times = (tuple(stages[0][i]), tuple(stages[1][i]), tuple(hops[i]), late)
        runs.append(
            pipeline.PipelineRun(layout.schedule, layout.pp, layout.vpp, layout.n_micro, *times)
        )
    return _with_the_rest(rows, runs)


def pipeline_run(
    rows: Rows, layout: Layout, row: int = 0, late_s: ForwardBackward | None = None
) -> pipeline.PipelineRun:
    """Return the step through the pipeline of `layout`, which is row `row` of the joined table.

    `late_s` is `stalled` of all rows, if known.
    """
    forward, backward = virtual_stage_times(rows, layout, row, late_s)
    hops, late = boundary_hops_s(rows, layout, row), virtual_weight_grad_times(rows, layout, row)
    times = (tuple(forward), tuple(backward), tuple(hops), tuple(late))
    return pipeline.PipelineRun(layout.schedule, layout.pp, layout.vpp, layout.n_micro, *times)


def exact_step_times(rows: Rows, layouts: Sequence[Layout]) -> list[float]:
    """Return the step of every row with the pipeline simulated, seconds; `layouts` are the rows.

    The closed form's pipeline part is exchanged for the recurrence; all other terms are the same.
    """
    late = stalled(rows)
    return _with_the_rest(rows, [pipeline_run(rows, x, i, late) for i, x in enumerate(layouts)])


def _with_the_rest(rows: Rows, runs: Sequence[pipeline.PipelineRun]) -> list[float]:
    rest = outside_pipeline(rows, stage_times(rows))
    straggle = straggler_factor(rows.problem, rows.table.shapes.n_devices)
    flush = pipeline.flush_times_s(runs)
    return [straggle * one + float(rest[i]) for i, one in enumerate(flush)]


def _expert_layers(rows: Rows, layout: Layout, chunks: Sequence[int], first: int) -> float:
    """Return the expert layers among the first `first` layers of some virtual stages."""
    routing = rows.problem.shape.expert_layers
    return expert_prefix(layout.stage_layers, chunks, routing, first)[-1]


def break_down(
    problem: Problem, layout: Layout, of_rank: int | None = None, grid: LayerGrid | None = None
) -> Breakdown:
    """Return times, memory and traffic of one plan, the pipeline simulated exactly.

    Times and traffic are those of pipeline rank `of_rank`, without it of the slowest. `grid` holds
    the terms of its layers, if they are known.
    """
    rows = join_one(problem, layout, grid)
    forward, backward = virtual_stage_times(rows, layout)
    run = pipeline_run(rows, layout)
    at_once = replace(run, hop_s=(0.0,) * layout.pp)
    with_hops, without = pipeline.flush_times_s([run, at_once])
    held = [layout.stages_of(r) for r in range(layout.pp)]
    per_rank = [sum(forward[j] for j in js) + sum(backward[j] for j in js) for js in held]
    critical = max(range(layout.pp), key=lambda r: (per_rank[r], -r))
    critical = critical if of_rank is None else of_rank
    time_s = _time_terms(rows, layout, critical)
    busy = layout.n_passes * per_rank[critical]
    hops_waited = with_hops - without
    time_s["pp"] = hops_waited + rows.shapes.embedding_sync_s.item()
    time_s["bubble"] = max(0.0, without - busy)
    time_s["straggler"] = (straggler_factor(problem, layout.n_devices) - 1.0) * with_hops
    stages = _memory_by_stage(rows, layout)
    peaks = [sum(stage.values()) for stage in stages]
    worst = max(range(layout.pp), key=lambda r: (peaks[r], -r))
    ordered = {term: time_s[term] for term in TIME_TERMS}
    return Breakdown(
        layout=layout,
        step_s=sum(ordered.values()),
        closed_form_step_s=step_times(rows).item(),
        time_s=ordered,
        stages=stages,
        peak_bytes=peaks[worst],
        peak_stage=worst,
        transfers=transfers(rows, layout, critical, hops_waited),
        critical_stage=critical,
        n_micro=layout.n_micro,
        rows=rows,
    )


def _time_terms(rows: Rows, layout: Layout, critical: int) -> dict[str, float]:
    """Return all terms but those of the pipeline, for rank `critical`, seconds per step."""
    layers, m = rows.layers, layout.n_passes
    chunks = layout.chunks_of(critical)
    held = sum(chunks)
    full = sum(min(c, layout.recompute_layers) for c in chunks)
    core = held if "core_attn" in layout.recompute_modules else 0
    last, first = layout.has_head(critical), layout.has_embedding(critical)
    modules = selective_again(rows, layout, critical)
    again_tp = full * layers.tp_forward.exposed_s.item()
    core += rows.problem.shape.mtp_layers * last if core else 0
    again_cp = (full + core) * layers.cp_forward.exposed_s.item()
    cp_exposed = layers.cp_forward.exposed_s.item() + layers.cp_backward.exposed_s.item()
    again = full * layers.recompute_full_s.item() + modules.forward_s
    routed, routed_again = 0.0, 0.0
    if layers.experts:
        ranks = layout.stages_of(critical)
        routed = _expert_layers(rows, layout, ranks, max(layout.stage_layers))
        routed_again = _expert_layers(rows, layout, ranks, layout.recompute_layers)
    more = _expert_terms(layers, routed, routed_again)
    again_tp, again = again_tp + more["again_tp"] + modules.tp_exposed_s, again + more["again"]
    again_ep = more["again_ep"] + modules.exchange_s
    exposed, hidden = data_parallel_exposed(rows, stage_times(rows))
    slowdown = rows.problem.stack.overlap_slowdown
    kind = int((exposed + slowdown * hidden)[:, 0].argmax())
    tp_exposed = layers.tp_forward.exposed_s.item() + layers.tp_backward.exposed_s.item()
    head, embedding = layers.head.total_s.item(), layers.embedding.total_s.item()
    head_tp, embedding_tp = layers.head_tp.total_s.item(), layers.embedding_tp.total_s.item()
    head_cp, head_ep = layers.head_cp.total_s.item(), layers.head_ep.total_s.item()
    ends_tp = head_tp * last + embedding_tp * first
    copied = activation_waits(rows).total_s[0].item() if layout.activation_offload else 0.0
    return {
        "linear": m * held * layers.linear.total_s.item() + m * more["linear"],
        "attention": m * held * layers.attention.total_s.item(),
        "elementwise": m * held * layers.elementwise.total_s.item() + m * more["elementwise"],
        "experts": m * more["experts"],
        "head": m * (head - head_tp - head_cp - head_ep) * last,
        "embedding": m * (embedding - embedding_tp) * first,
        "recompute": m * (again - again_tp - again_cp - again_ep),
        "host": m * held * (layers.host.total_s.item() + stalled(rows).total_s.item())
        + m * more["host"],
        "tp": m * (held * tp_exposed + again_tp + ends_tp + more["tp"]),
        "cp": m * (held * cp_exposed + again_cp + head_cp * last),
        "ep": m * (more["ep"] + again_ep + head_ep * last),
        "overlap": m * held * layers.tax.total_s.item()
        + m * more["tax"]
        + slowdown * hidden[kind, 0].item(),
        "dp": exposed[kind, 0].item(),
        "optimizer": rows.shapes.optimizer_s.item(),
        "offload": offload_exposed(rows, stage_times(rows)).max().item() + m * copied,
        "fixed": rows.problem.stack.fixed_step_s,
    }


def _expert_terms(layers: LayerTerms, routed: float, again: float) -> dict[str, float]:
    """Return what expert layers add to each term over dense ones, seconds per micro-batch.

    `routed` layers of the rank have experts, `again` of them are recomputed in full.
    """
    names = ("linear", "elementwise", "host", "tax")
    others = ("tp", "experts", "ep", "again", "again_tp", "again_ep")
    found = layers.experts
    if found is None or not routed:
        return dict.fromkeys((*names, *others), 0.0)
    adds = {
        name: (getattr(found, name).total_s - getattr(layers, name).total_s).item()
        for name in names
    }
    ahead = (found.tp_forward.exposed_s - layers.tp_forward.exposed_s).item()
    after = (found.tp_backward.exposed_s - layers.tp_backward.exposed_s).item()
    adds |= {"tp": ahead + after, "experts": found.routed.total_s.item()}
    out = {name: routed * value for name, value in adds.items()}
    out["ep"] = routed * found.exchange.total_s.item()
    out["again"] = again * (found.recompute_full_s - layers.recompute_full_s).item()
    out["again_tp"] = again * ahead
    out["again_ep"] = again * found.exchange.forward_s.item()
    return out


def _memory_by_stage(rows: Rows, layout: Layout) -> tuple[dict[str, float], ...]:
    """Return the memory terms of every pipeline rank, each priced as a kind of its own."""
    out: list[dict[str, float]] = []
    kinds, problem = rows.shapes.kinds, rows.problem
    low = min(layout.stage_layers)
    for start in range(0, layout.pp, N_KINDS):
        ranks = [min(start + i, layout.pp - 1) for i in range(N_KINDS)]
        held = [layout.chunks_of(r) for r in ranks]
        sizes = kinds.chunk_layers[:1, :1]
        span = range(sizes.shape[-1])
        counts = np.array([[[float(c.count(low + i)) for i in span] for c in held]])
        these = replace(
            kinds,
            rank=np.array([ranks], dtype=np.int32),
            late_rank=np.array([ranks], dtype=np.int32),
            layers=np.array([[float(sum(c)) for c in held]]),
            has_embedding=np.array([[float(layout.has_embedding(r)) for r in ranks]]),
            has_head=np.array([[float(layout.has_head(r)) for r in ranks]]),
            chunk_counts=counts,
        )
        routed_again = None
        if kinds.expert_prefix is not None:
            longest = max(layout.stage_layers)
            chunks = [layout.stages_of(r) for r in ranks]
            routing = problem.shape.expert_layers
            prefix = [expert_prefix(layout.stage_layers, c, routing, longest) for c in chunks]
            these = replace(these, expert_prefix=np.array([prefix]))
            routed_again = np.array([[p[min(layout.recompute_layers, longest)]] for p in prefix])
        again = (counts * np.minimum(sizes, layout.recompute_layers)).sum(axis=-1).T
        priced = memory_terms(with_kinds(rows, these, again, routed_again))
        for i in range(min(N_KINDS, layout.pp - start)):
            out.append({name: value[i, 0].item() for name, value in priced.items()})
    return tuple(out)
