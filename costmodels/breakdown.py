"""One plan opened up: exact step time by term, memory by stage and term, traffic by collective."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from costmodels.documentation.terms import ALL_TIME_TERMS, NETWORK_TERMS
from costmodels.layers.compute import ForwardBackward
from costmodels.layers.layer_grid import LayerGrid
from costmodels.layers.layer_kind import ExpertLayerTerms, SplitDegrees
from costmodels.layers.layer_terms import layer_terms, sets_of
from costmodels.offload.modules import offloads_modules
from costmodels.plans import ZERO_BUBBLE, Layout, PlanTable
from costmodels.problem import Problem
from costmodels.schedule import pipeline
from costmodels.schedule.in_flight import UnequalChunks, unequal_chunks
from costmodels.schedule.rank_costs import with_kinds
from costmodels.schedule.stages import (
    LOOPED,
    StageKinds,
    interleaved_chunks,
    layer_prefix,
    other_kinds,
    passing_chunks,
)
from costmodels.shape_terms import ShapeTerms, shape_terms
from costmodels.step import (
    Rows,
    activation_waits,
    boundary_hops_columns,
    boundary_hops_s,
    join_at,
    memory_terms,
    outside_pipeline,
    overlap_fill_s,
    stage_times,
    stalled,
    step_times,
    straggler_factor,
    table_overlaps_experts,
)
from costmodels.traffic import PlanTransfer, Traffic, Wires, selective_again

Floats = NDArray[np.float64]

PLANS_AT_ONCE = 128
"""Plans of one joined table, and pipelines run together: their columns stay in the cache."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Everything about one plan. Seconds and bytes.

    `transfers` and `rows` of many plans opened up together are made when they are asked for: a
    table of plans shows neither.
    """

    layout: Layout
    step_s: float
    """With the exact pipeline recurrence."""
    closed_form_step_s: float
    """What the ranking of all plans used."""
    time_s: Mapping[str, float]
    """By term (`ALL_TIME_TERMS`), of `critical_stage`; sums to `step_s`."""
    stages: tuple[Mapping[str, float], ...]
    """Memory by term of every pipeline rank, bytes."""
    peak_bytes: float
    peak_stage: int
    transfers: tuple[PlanTransfer, ...]
    critical_stage: int
    """The pipeline rank of `time_s` and `transfers`: the slowest, where none was asked for."""
    n_micro: int
    rows: Rows
    """The joined one-row table: what explanations take their numbers from."""

    _later: "_Later | None" = field(default=None, repr=False, compare=False)
    """What makes the fields that are not set yet."""

    if not TYPE_CHECKING:  # typed, it would hide every misspelt name

        def __getattr__(self, name: str) -> Any:
            """Return a field that is made when it is first asked for."""
            if name not in ("transfers", "rows"):
                raise AttributeError(f"a breakdown has no {name!r}")
            object.__setattr__(self, name, getattr(self._later, name)())
            return getattr(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        names = (x.name for x in fields(self) if x.name != "_later")
        return Breakdown, tuple(getattr(self, name) for name in names)

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
    return _joined(problem, table, shape_terms(problem, table.shapes, table.shardings), grid)


def _joined(problem: Problem, table: PlanTable, terms: ShapeTerms, grid: LayerGrid | None) -> Rows:
    """Return a table joined with the layer terms of every row alone."""
    if grid is not None and grid.holds(table):
        alone = grid.one(table)
    else:
        alone = layer_terms(problem, SplitDegrees.of_shapes(table.shapes), table.mbs, table.modes)
    sets = sets_of(problem, alone, table.recompute_modules)
    return join_at(problem, terms, table, alone, sets, np.arange(len(table.shapes)))


def virtual_stage_times(
    rows: Rows, layout: Layout, row: int = 0, stall_s: ForwardBackward | None = None
) -> tuple[list[float], list[float]]:
    """Return forward and backward seconds per micro-batch of each virtual stage in model order.

    `layout` is row `row` of the joined table; `stall_s` is `stalled` of all its rows, if known.
    """
    forward, backward = virtual_stage_columns(rows, layout, [row], stall_s)
    return forward[0].tolist(), backward[0].tolist()


def virtual_stage_columns(
    rows: Rows, layout: Layout, some: Sequence[int], stall_s: ForwardBackward | None = None
) -> tuple[Floats, Floats]:
    """Return the same of several rows that all hold `layout`, `(n_rows, n_stages)` each."""
    return _virtual_stages(rows, [layout] * len(some), some, stall_s or stalled(rows))


def _virtual_stages(
    rows: Rows, layouts: Sequence[Layout], some: Sequence[int], stall_s: ForwardBackward
) -> tuple[Floats, Floats]:
    """Return `virtual_stage_times` of rows with equally many stages, `(n_rows, n_stages)` each."""
    row_idx = np.asarray(some, dtype=np.intp)
    terms, layer_idx = rows.layers, rows.index[row_idx][:, None]
    one_forward = terms.layer.forward_s[layer_idx] + stall_s.forward_s[row_idx][:, None]
    one_backward = terms.layer.backward_s[layer_idx] + stall_s.backward_s[row_idx][:, None]
    modules, of_set = rows.sets, rows.set_index.reshape(-1)[row_idx][:, None]
    n_layers = np.array([x.stage_layers for x in layouts], dtype=np.float64)
    recomputed = np.minimum(n_layers, np.array([[x.recompute_layers] for x in layouts]))
    recompute_s = recomputed * terms.recompute_full_s[layer_idx] + n_layers * modules.again_s.take(
        of_set
    )
    forward, backward = n_layers * one_forward, n_layers * one_backward + recompute_s
    flags = other_kinds(rows.problem.shape.layer_sequence)
    for more, more_again, of_kind in zip(terms.others, modules.other_again_s, flags, strict=True):
        prefixes = [_stage_prefixes(x.stage_layers, tuple(of_kind)) for x in layouts]
        count = np.array([[stage[-1] for stage in stages] for stages in prefixes])
        count_again = np.array(
            [
                [stage[min(x.recompute_layers, len(stage) - 1)] for stage in stages]
                for x, stages in zip(layouts, prefixes, strict=True)
            ]
        )
        forward = forward + count * (more.layer.forward_s - terms.layer.forward_s)[layer_idx]
        backward = backward + count * (more.layer.backward_s - terms.layer.backward_s)[layer_idx]
        backward = (
            backward + count_again * (more.recompute_full_s - terms.recompute_full_s)[layer_idx]
        )
        backward = backward + count * more_again.take(of_set)
    alone = layer_idx[:, 0]
    forward[:, 0] += terms.before_layers.forward_s[alone]
    backward[:, 0] += terms.before_layers.backward_s[alone]
    forward[:, -1] += terms.head.forward_s[alone]
    backward[:, -1] += terms.head.backward_s[alone] + _mtp_again_s(rows, of_set[:, 0])
    if any(x.activation_offload for x in layouts):
        copies = activation_waits(rows)
        forward[:, 0] += copies.forward_s[0, row_idx]
        backward[:, 0] += copies.backward_s[0, row_idx]
    return forward, backward


@lru_cache(maxsize=4096)
def _stage_prefixes(
    counts: tuple[int, ...], flags: tuple[bool, ...]
) -> tuple[tuple[float, ...], ...]:
    """Return the flagged layers among the first 0, 1, ... layers of each virtual stage."""
    longest = max(counts)
    return tuple(layer_prefix(counts, (j,), flags, longest) for j in range(len(counts)))


def _mtp_again_s(rows: Rows, set_idx: NDArray[np.intp]) -> Floats:
    """Return what the modules of multi-token prediction, each like the last layer, run again.

    Of some positions in `rows.sets`.
    """
    shape, recomputed = rows.problem.shape, rows.sets.again_s.take(set_idx)
    if last_kind := shape.layer_sequence[-1]:
        recomputed = recomputed + rows.sets.other_again_s[last_kind - 1].take(set_idx)
    return np.asarray(shape.mtp_layers * recomputed)


def virtual_weight_grad_times(rows: Rows, layout: Layout, row: int = 0) -> list[float]:
    """Return the part of each virtual stage's backward that can wait, seconds per micro-batch.

    Empty for schedules that do not split the backward.
    """
    if layout.schedule not in ZERO_BUBBLE:
        return []
    terms, layer_idx = rows.layers, rows.index[row]
    weight_grad_s = (
        np.array(layout.stage_layers, dtype=np.float64) * terms.weight_grad_s[layer_idx]
    )
    flags = other_kinds(rows.problem.shape.layer_sequence)
    for other, of_kind in zip(terms.others, flags, strict=True):
        count = [stage[-1] for stage in _stage_prefixes(layout.stage_layers, tuple(of_kind))]
        more_s = (other.weight_grad_s - terms.weight_grad_s)[layer_idx]
        weight_grad_s = weight_grad_s + np.array(count) * more_s
    weight_grad_s[-1] += terms.head_weight_grad_s[layer_idx]
    return [float(x) for x in weight_grad_s]


def same_layout_times(rows: Rows, layout: Layout) -> list[float]:
    """Return `exact_step_times` of a table of which every row is `layout`, seconds.

    For problems with figures in columns (`costmodels.problem.in_columns`).
    """
    n = len(rows.index)
    stages = [x.tolist() for x in virtual_stage_columns(rows, layout, range(n))]
    hops = boundary_hops_columns(rows, layout)
    runs = []
    for i in range(n):
        weight_grad_s = tuple(virtual_weight_grad_times(rows, layout, i))
        times = (tuple(stages[0][i]), tuple(stages[1][i]), tuple(hops[i]), weight_grad_s)
        runs.append(
            pipeline.PipelineRun(layout.schedule, layout.pp, layout.vpp, layout.n_micro, *times)
        )
    return _with_the_rest(rows, runs)


def pipeline_run(
    rows: Rows, layout: Layout, row: int = 0, stall_s: ForwardBackward | None = None
) -> pipeline.PipelineRun:
    """Return the step through the pipeline of `layout`, which is row `row` of the joined table.

    `stall_s` is `stalled` of all rows, if known.
    """
    return _pipeline_runs(rows, [layout], [row], stall_s or stalled(rows))[0]


def _pipeline_runs(
    rows: Rows, layouts: Sequence[Layout], some: Sequence[int], stall_s: ForwardBackward
) -> list[pipeline.PipelineRun]:
    """Return the steps through the pipelines of some rows."""
    alike: dict[int, list[int]] = {}
    for i, layout in enumerate(layouts):
        alike.setdefault(len(layout.stage_layers), []).append(i)
    entries: dict[int, pipeline.PipelineRun] = {}
    for members in alike.values():
        these, positions = [layouts[i] for i in members], [some[i] for i in members]
        both = (x.tolist() for x in _virtual_stages(rows, these, positions, stall_s))
        for i, x, row, forward, backward in zip(members, these, positions, *both, strict=True):
            hops, weight_grad_s = (
                boundary_hops_s(rows, x, row),
                virtual_weight_grad_times(rows, x, row),
            )
            times = (tuple(forward), tuple(backward), tuple(hops), tuple(weight_grad_s))
            entries[i] = pipeline.PipelineRun(x.schedule, x.pp, x.vpp, x.n_micro, *times)
    return [entries[i] for i in range(len(layouts))]


def exact_step_times(rows: Rows, layouts: Sequence[Layout]) -> list[float]:
    """Return the step of every row with the pipeline simulated, seconds; `layouts` are the rows.

    The closed form's pipeline part is exchanged for the recurrence; all other terms are the same.
    """
    runs = _pipeline_runs(rows, layouts, range(len(layouts)), stalled(rows))
    return _with_the_rest(rows, runs)


def _with_the_rest(rows: Rows, runs: Sequence[pipeline.PipelineRun]) -> list[float]:
    rest = outside_pipeline(rows, stage_times(rows))
    straggle = straggler_factor(rows.problem, rows.table.shapes.n_devices)
    flush = pipeline.flush_times_s(runs)
    return [straggle * one + float(rest[i]) for i, one in enumerate(flush)]


def break_down(
    problem: Problem, layout: Layout, of_rank: int | None = None, grid: LayerGrid | None = None
) -> Breakdown:
    """Return times, memory and traffic of one plan, the pipeline simulated exactly.

    Times and traffic are those of pipeline rank `of_rank`, without it of the slowest. `grid` holds
    the terms of its layers, if they are known.
    """
    result = _open([layout], join_one(problem, layout, grid), Wires(problem), grid, of_rank)[0]
    _ = result.transfers  # so that it holds no more than its own row
    return result


def break_downs(
    problem: Problem, layouts: Sequence[Layout], grid: LayerGrid | None = None
) -> list[Breakdown]:
    """Return `break_down` of some layouts on equally many devices, the same numbers sooner.

    Their transfers are made when they are asked for.
    """
    # Plans with equally many stages and one sharding make the smallest tables.
    order = sorted(range(len(layouts)), key=lambda i: _alike(layouts[i]))
    wires = Wires(problem)
    entries: dict[int, Breakdown] = {}
    for start in range(0, len(order), PLANS_AT_ONCE):
        some = order[start : start + PLANS_AT_ONCE]
        these = [layouts[i] for i in some]
        entries |= zip(
            some, _open(these, join_layouts(problem, these, grid), wires, grid), strict=True
        )
    return [entries[i] for i in range(len(layouts))]


def _alike(layout: Layout) -> tuple[int, ...]:
    """Return a sort key by which plans that cost least in one table come together."""
    sharding = layout.zero, layout.dp_shard, layout.optimizer_offload, layout.dp_overlap
    return layout.pp, layout.vpp, layout.n_micro, *map(int, sharding), layout.hpz


@dataclass(frozen=True, slots=True)
class _Later:
    """What makes the fields of a breakdown that few ask for."""

    traffic: Traffic
    layout: Layout
    row: int
    critical: int
    hops_waited_s: float
    grid: LayerGrid | None
    alone: bool

    def transfers(self) -> tuple[PlanTransfer, ...]:
        """Return `Breakdown.transfers`."""
        plan = self.layout, self.critical, self.hops_waited_s, self.alone
        return self.traffic.of(self.row, *plan).transfers()

    def rows(self) -> Rows:
        """Return `Breakdown.rows`."""
        rows = self.traffic.rows
        if len(rows.table.shapes) == 1:
            return rows
        return join_one(rows.problem, self.layout, self.grid)


def _open(
    layouts: Sequence[Layout],
    rows: Rows,
    wires: Wires,
    grid: LayerGrid | None,
    of_rank: int | None = None,
) -> list[Breakdown]:
    """Return the plans of a joined table opened up; their pipelines run together."""
    runs = _pipeline_runs(rows, layouts, range(len(layouts)), stalled(rows))
    at_once = [replace(run, hop_s=(0.0,) * run.pp) for run in runs]
    flush = pipeline.flush_times_s([*runs, *at_once])
    times = stage_times(rows)
    traffic = Traffic(rows, times, wires)
    ranks = [_of_slowest(x, run, of_rank) for x, run in zip(layouts, runs, strict=True)]
    terms = _time_terms(traffic, layouts, [rank for rank, _ in ranks])
    closed, stages = step_times(rows, times).tolist(), _memory_by_stage(rows, layouts)
    sync = rows.shapes.embedding_sync_s.tolist()
    out = []
    for i, layout in enumerate(layouts):
        critical, per_rank_s = ranks[i]
        with_hops, without = flush[i], flush[len(runs) + i]
        straggle = straggler_factor(rows.problem, layout.n_devices) - 1.0
        busy, waited = layout.n_passes * per_rank_s, with_hops - without
        time_s = {term: column[i] for term, column in terms.items()}
        time_s["pp"] = waited + sync[i]
        time_s["bubble"] = max(0.0, without - busy)
        time_s["straggler"] = straggle * with_hops
        ordered = {term: time_s[term] for term in ALL_TIME_TERMS if term in time_s}
        peaks = [sum(stage.values()) for stage in stages[i]]
        worst = max(range(layout.pp), key=lambda r: (peaks[r], -r))
        values = {
            "layout": layout,
            "step_s": sum(ordered.values()),
            "closed_form_step_s": closed[i],
            "time_s": ordered,
            "stages": stages[i],
            "peak_bytes": peaks[worst],
            "peak_stage": worst,
            "critical_stage": critical,
            "n_micro": layout.n_micro,
            "_later": _Later(traffic, layout, i, critical, waited, grid, of_rank is not None),
        }
        result = object.__new__(Breakdown)
        for name, value in values.items():
            object.__setattr__(result, name, value)
        out.append(result)
    return out


def _of_slowest(
    layout: Layout, run: pipeline.PipelineRun, of_rank: int | None
) -> tuple[int, float]:
    """Return the slowest pipeline rank, or `of_rank`, and its seconds per micro-batch."""
    rank_stages = [layout.stages_of(r) for r in range(layout.pp)]
    per_rank = [
        sum(run.forward_s[j] for j in js) + sum(run.backward_s[j] for j in js)
        for js in rank_stages
    ]
    critical = max(range(layout.pp), key=lambda r: (per_rank[r], -r))
    critical = critical if of_rank is None else of_rank
    return critical, per_rank[critical]


def _time_terms(
    traffic: Traffic, layouts: Sequence[Layout], critical: Sequence[int]
) -> dict[str, list[float]]:
    """Return all terms but those of the pipeline, for rank `critical` of each plan, s per step."""
    rows, problem = traffic.rows, traffic.rows.problem
    layers, layer_idx = rows.layers, rows.index
    both = list(zip(layouts, critical, strict=True))
    m = np.array([x.n_passes for x in layouts])
    chunks = [x.chunks_of(r) for x, r in both]
    n_layers = np.array([sum(c) for c in chunks])
    full = np.array(
        [sum(min(n, x.recompute_layers) for n in c) for x, c in zip(layouts, chunks, strict=True)]
    )
    last = np.array([x.has_head(r) for x, r in both])
    first = np.array([x.has_embedding(r) for x, r in both])
    core = np.where(["core_attn" in x.recompute_modules for x in layouts], n_layers, 0)
    core = core + np.where(core > 0, problem.shape.mtp_layers * last, 0)
    modules = [selective_again(rows, x, r, row=i) for i, (x, r) in enumerate(both)]
    forward_s, tp_s, exchange_s = (
        np.array([getattr(x, name) for x in modules])
        for name in ("forward_s", "tp_exposed_s", "exchange_s")
    )
    again_tp = full * layers.tp_forward.exposed_s[layer_idx]
    again_cp = (full + core) * layers.cp_forward.exposed_s[layer_idx]
    cp_exposed = layers.cp_forward.exposed_s[layer_idx] + layers.cp_backward.exposed_s[layer_idx]
    recomputed = full * layers.recompute_full_s[layer_idx] + forward_s
    more = _other_kind_terms(rows, both)
    again_tp, recomputed = again_tp + more["again_tp"] + tp_s, recomputed + more["again"]
    again_cp = again_cp + more["again_cp"]
    again_ep = more["again_ep"] + exchange_s
    exposed, hidden = traffic.data_parallel
    kind, each = np.array(traffic.slowest_kind), np.arange(len(layouts))
    slowdown = problem.stack.overlap_slowdown
    tp_exposed = layers.tp_forward.exposed_s[layer_idx] + layers.tp_backward.exposed_s[layer_idx]
    head, embedding = layers.head.total_s[layer_idx], layers.embedding.total_s[layer_idx]
    head_tp, embedding_tp = (
        layers.head_tp.total_s[layer_idx],
        layers.embedding_tp.total_s[layer_idx],
    )
    head_cp, head_ep = layers.head_cp.total_s[layer_idx], layers.head_ep.total_s[layer_idx]
    ends_tp = head_tp * last + embedding_tp * first
    offloaded = np.broadcast_to(traffic.offloaded.max(axis=0), len(layouts))
    if any(x.activation_offload for x in layouts):
        offloaded = offloaded + m * traffic.activation_waits.total_s[0]
    if offloads_modules(rows.table.modes):
        waits_s = n_layers * layers.copies.total_s[layer_idx] + more["copies"]
        offloaded = offloaded + m * waits_s
    fill_s = overlap_fill_s(rows) if table_overlaps_experts(rows) else 0.0
    entries = {
        "linear": m * n_layers * layers.linear.total_s[layer_idx] + m * more["linear"],
        "attention": m * n_layers * layers.attention.total_s[layer_idx] + m * more["attention"],
        "elementwise": m * n_layers * layers.elementwise.total_s[layer_idx]
        + m * more["elementwise"],
        "experts": m * more["experts"],
        "head": m * (head - head_tp - head_cp - head_ep) * last,
        "embedding": m * (embedding - embedding_tp) * first,
        "recompute": m * (recomputed - again_tp - again_cp - again_ep),
        "host": m * n_layers * (layers.host.total_s[layer_idx] + stalled(rows).total_s)
        + m * more["host"],
        "tp": m * (n_layers * tp_exposed + again_tp + ends_tp + more["tp"]),
        "cp": m * (n_layers * cp_exposed + again_cp + head_cp * last + more["cp"]),
        "ep": m * (more["ep"] + again_ep + head_ep * last) + fill_s,
        "overlap": m * n_layers * layers.tax.total_s[layer_idx]
        + m * more["tax"]
        + slowdown * hidden[kind, each],
        "dp": exposed[kind, each],
        "optimizer": rows.shapes.optimizer_s[rows.table.sharding, rows.table.shape],
        "offload": offloaded,
    }
    if layers.tower:
        entries["tower"] = m * layers.tower.total.total_s[layer_idx] * first
    columns: dict[str, list[float]] = {term: value.tolist() for term, value in entries.items()}
    return columns | {"fixed": [problem.stack.fixed_step_s] * len(layouts)}


def _other_kind_terms(rows: Rows, plans: Sequence[tuple[Layout, int]]) -> dict[str, Floats]:
    """Return what layers of other kinds add to each term over the first kind's, s per micro-batch.

    `plans` are layouts and pipeline ranks, one for each row.
    """
    first, row_idx = rows.layers, rows.index
    core_again = np.array(["core_attn" in x.recompute_modules for x, _ in plans], dtype=np.float64)
    names = ("linear", "attention", "elementwise", "host", "tax", "copies")
    others = ("tp", "cp", "experts", "ep", "again", "again_tp", "again_cp", "again_ep")
    total = {name: np.zeros(len(plans)) for name in (*names, *others)}
    flags = other_kinds(rows.problem.shape.layer_sequence)
    for kind, of_kind in zip(first.others, flags, strict=True):
        prefixes = [
            layer_prefix(x.stage_layers, x.stages_of(r), of_kind, max(x.stage_layers))
            for x, r in plans
        ]
        count = np.array([prefix[-1] for prefix in prefixes])
        n_recomputed = np.array(
            [
                prefix[min(x.recompute_layers, len(prefix) - 1)]
                for (x, _), prefix in zip(plans, prefixes, strict=True)
            ]
        )
        adds = {
            name: count * (getattr(kind, name).total_s - getattr(first, name).total_s)[row_idx]
            for name in names
        }
        for axis in ("tp", "cp"):
            ahead, after = (
                (getattr(kind, name).exposed_s - getattr(first, name).exposed_s)[row_idx]
                for name in (f"{axis}_forward", f"{axis}_backward")
            )
            adds[axis] = count * (ahead + after)
            core = count * core_again if axis == "cp" else 0.0
            adds[f"again_{axis}"] = (n_recomputed + core) * ahead
        adds["again"] = n_recomputed * (kind.recompute_full_s - first.recompute_full_s)[row_idx]
        if isinstance(kind, ExpertLayerTerms):
            adds["experts"] = count * kind.routed.total_s[row_idx]
            adds["ep"] = count * kind.exchange.total_s[row_idx]
            adds["again_ep"] = n_recomputed * kind.exchange.forward_s[row_idx]
        for name, value in adds.items():
            # A rank without such layers pays nothing for them, not even what is negative.
            total[name] = total[name] + np.where(count > 0.0, value, 0.0)
    return total


def _memory_by_stage(rows: Rows, layouts: Sequence[Layout]) -> list[tuple[dict[str, float], ...]]:
    """Return the memory terms of every pipeline rank of each plan, ranks priced as kinds."""
    kinds, problem = rows.shapes.kinds, rows.problem
    largest = max(x.pp for x in layouts)
    ranks = [[min(r, x.pp - 1) for r in range(largest)] for x in layouts]
    rank_chunks = [
        [x.chunks_of(r) for r in members] for x, members in zip(layouts, ranks, strict=True)
    ]

    def column(value: Callable[[Layout, int], float]) -> Floats:
        rows = zip(layouts, ranks, strict=True)
        return np.array([[float(value(x, r)) for r in members] for x, members in rows])

    layers = np.array([[float(sum(c)) for c in chunks] for chunks in rank_chunks])
    recomputed = np.array(
        [
            [float(sum(min(n, x.recompute_layers) for n in c)) for c in chunks]
            for x, chunks in zip(layouts, rank_chunks, strict=True)
        ]
    )
    sequence = problem.shape.layer_sequence
    prefix, others_again = None, None
    if kinds.prefix is not None:
        longest = max(max(x.stage_layers) for x in layouts)
        prefix = np.array(
            [
                [
                    [layer_prefix(x.stage_layers, x.stages_of(r), flags, longest) for r in members]
                    for x, members in zip(layouts, ranks, strict=True)
                ]
                for flags in other_kinds(sequence)
            ]
        )
        depth = np.array([[[min(x.recompute_layers, longest)]] for x in layouts])
        others_again = np.take_along_axis(prefix, depth[None], axis=3)[..., 0].transpose(0, 2, 1)
    these = StageKinds(
        rank=np.array(ranks, dtype=np.int32),
        late_rank=np.array(ranks, dtype=np.int32),
        n_ranks=np.ones(layers.shape),
        layers=layers,
        has_embedding=column(Layout.has_embedding),
        has_head=column(Layout.has_head),
        chunk_layers=layers[..., None],
        chunk_counts=np.ones((*layers.shape, 1)),
        prefix=prefix,
        unequal=None if kinds.unequal is None else _unequal_chunks(layouts, ranks, sequence),
        passing=None if kinds.passing is None else column(_passing_chunks),
    )
    priced = memory_terms(with_kinds(rows, these, recomputed.T, others_again))
    names = list(priced)
    result = np.stack(list(priced.values()), axis=-1).transpose(1, 0, 2).tolist()
    return [
        tuple(dict(zip(names, terms, strict=True)) for terms in members[: x.pp])
        for x, members in zip(layouts, result, strict=True)
    ]


def _passing_chunks(layout: Layout, rank: int) -> int:
    return passing_chunks(layout.stage_layers, layout.stages_of(rank))


def _unequal_chunks(
    layouts: Sequence[Layout], ranks: Sequence[Sequence[int]], sequence: Sequence[int]
) -> UnequalChunks | None:
    """Return what the unequal interleaved chunks of some ranks of each layout hold."""
    rows = []
    for x, members in zip(layouts, ranks, strict=True):
        looped = x.vpp > 1 and x.placement == LOOPED
        stages = [x.stages_of(r) if looped else () for r in members]
        chunks = [interleaved_chunks(x.stage_layers, js, sequence) for js in stages]
        rows.append([(r, x.pp, one) for r, one in zip(members, chunks, strict=True)])
    return unequal_chunks(rows, max(sequence))
