"""The tables of mixed plans from the cost model: what layers cost on each pool of a cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from costmodels.comm.collectives import collective_s
from costmodels.comm.fsdp import grad_wire_bytes
from costmodels.comm.placement import place_group
from costmodels.layers.compute import optimizer_s
from costmodels.layers.layer_terms import layer_table
from costmodels.layers.recompute import SetTerms
from costmodels.mixed.tables import (
    LinkFacts,
    MixedPool,
    MixedProblem,
    Overlap,
    Prefix,
    Ring,
    StageTable,
)
from costmodels.modes import ModeTable
from costmodels.plans import Layout, PlanTable
from costmodels.problem import Problem
from costmodels.schedule.rank_costs import PricedRanks, count_differences, priced_ranks
from costmodels.schedule.stages import other_kinds
from costmodels.shapes import ModelShape
from costmodels.step import straggler_factor
from hardware.parts import Cluster
from hardware.pool_links import link_between

Floats = NDArray[np.float64]

STAGES = 3
"""Of the pipelines that tables are made of: a first stage, an interior and a last one."""
MICRO_BATCHES = 8
"""Of the same: more than the stages, so that rank r holds `STAGES` - r micro-batches in flight."""
SEVERAL = 16
"""Pipelines of the same: so many that their groups leave a node, with the buffers of that."""
RECOMPUTES = ("none", "selective", "full")
SAMPLES_BYTES = (64e6, 1e9)
"""Sizes between which the time of a collective is taken to be linear."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """One way to run layers, whatever the pool."""

    tp: int
    cp: int
    ep: int
    mbs: int

    @property
    def n_devices(self) -> int:
        """Devices of one stage of one pipeline."""
        return self.tp * self.cp

    @property
    def pipelines_multiple(self) -> int:
        """Pipelines over which one expert-parallel group spreads."""
        return max(1, self.ep // self.n_devices)


def _powers(most: int) -> list[int]:
    return [1 << i for i in range(max(1, most).bit_length())]


def possible_degrees(
    problem: Problem, most_mbs: int = 16, least_tokens: int = 4096
) -> Iterator[Degrees]:
    """Yield the degrees that a pool may run layers in.

    Powers of two: tp cp inside a scale-up domain, tp that divides heads and (or is a multiple of)
    key-value heads, cp that leaves a device `least_tokens` tokens of a sequence, ep that divides
    the experts, mbs that divides the global batch.
    """
    shape, job, pool = problem.shape, problem.job, problem.pool
    domain = min(pool.scale_up_domain, pool.n_devices)
    for tp in _powers(domain):
        if shape.heads % tp or (shape.kv_heads % tp and tp % shape.kv_heads):
            continue
        for cp in _powers(domain // tp):
            if cp > 1 and (job.seq_len % (2 * cp) or job.seq_len // cp < least_tokens):
                continue
            for ep in _powers(shape.n_experts or 1):
                if (shape.n_experts or 1) % ep or (ep % (tp * cp) and (tp * cp) % ep):
                    continue
                for mbs in _powers(most_mbs):
                    if job.global_batch % mbs == 0:
                        yield Degrees(tp, cp, ep, mbs)


def _layout(degrees: Degrees, recompute: str, layers: int, pipelines: int) -> Layout:
    """Return the layout of a pipeline of `STAGES` stages that tables are made of."""
    counts = [layers // STAGES] * STAGES
    counts[1] += layers - sum(counts)
    return Layout(
        n_devices=degrees.n_devices * STAGES * pipelines,
        tp=degrees.tp,
        pp=STAGES,
        dp=pipelines,
        vpp=1,
        split="-".join(map(str, counts)),
        schedule="1f1b",
        mbs=degrees.mbs,
        gbs=degrees.mbs * pipelines * MICRO_BATCHES,
        zero=1,
        sp=degrees.tp > 1,
        recompute=recompute,
        recompute_layers=max(counts) if recompute == "full" else 0,
        stage_layers=tuple(counts),
        cp=degrees.cp,
        ep=degrees.ep,
        etp=1,
        cp_comm="p2p" if degrees.cp > 1 else "",
    )


def stage_tables(problem: Problem, pool: int, degrees: Sequence[Degrees]) -> list[StageTable]:
    """Return what layers cost on the pool of a problem, by each of some degrees.

    One table for each of `RECOMPUTES`; `pool` is its place among those of the job. Times and
    memory are those of `costmodels.step`, as linear functions of what a stage holds
    (`schedule.rank_costs`); states as functions of the pipelines from two numbers of them.
    """
    if not degrees:
        return []
    several = [(x, recompute) for x in degrees for recompute in RECOMPUTES]
    layers = problem.shape.layers
    once, twice = (
        priced_ranks(
            problem,
            [_layout(x, again, layers, n * x.pipelines_multiple) for x, again in several],
        )
        for n in (1, SEVERAL)
    )
    messages = _message_bytes(problem, [x for x, _ in several])
    return [
        _StageCosts(problem, pool, x, recompute, (once, twice), i, messages[i]).table()
        for i, (x, recompute) in enumerate(several)
    ]


def _message_bytes(problem: Problem, degrees: Sequence[Degrees]) -> Floats:
    """Return what a device sends to the next stage for one micro-batch, bytes."""
    layers = problem.shape.layers
    layouts = [_layout(x, "none", layers, x.pipelines_multiple) for x in degrees]
    table = PlanTable.from_layouts(layouts)
    modes = ModeTable.of_rows(table.modes)
    terms = layer_table(problem, table.shapes, table.mbs, table.recompute_modules, modes)
    index = terms.index(table.shape, table.mbs, table.modes)
    assert isinstance(terms.sets, SetTerms)
    return np.asarray(terms.terms.message_bytes[index])


@dataclass(frozen=True, slots=True)
class _StageCosts:
    """The figures of one pipeline from which one table is made."""

    problem: Problem
    pool: int
    degrees: Degrees
    recompute: str
    ranks: tuple[PricedRanks, PricedRanks]
    """With one and `SEVERAL` pipelines (or as many times those that an expert group spans)."""
    row: int
    message_bytes: float

    @property
    def shape(self) -> ModelShape:
        """The model."""
        return self.problem.shape

    def _linear(self, figures: Floats, divisors: Sequence[float] = (1.0,) * STAGES) -> Prefix:
        """Return the prefix sums of a figure of ranks, `(STAGES, n_rows)`.

        Of rank r divided by `divisors[r]`. Figures of ranks without layers are those of the ends;
        what an interior rank has without any is left out.
        """
        scaled = figures / np.array(divisors)[:, None]
        n_others = (scaled.shape[1] - 5) // 2
        each = [x[1] for x in count_differences(scaled)]
        layer, others = each[0], each[1 : 1 + n_others]
        again, others_again = each[1 + n_others], each[2 + n_others :]
        by_kind = [layer, *(layer + x for x in others)]
        if self.recompute == "full":
            more = [again, *(again + x for x in others_again)]
            by_kind = [x + y for x, y in zip(by_kind, more, strict=True)]
        flags = other_kinds(self.shape.layer_sequence)
        kinds = [
            next((k + 1 for k, of_kind in enumerate(flags) if of_kind[i]), 0)
            for i in range(self.shape.layers)
        ]
        layers = np.concatenate([[0.0], np.cumsum([by_kind[k] for k in kinds])])
        fixed = self._fixed(scaled)
        return Prefix(layers, float(fixed[0] - fixed[1]), float(fixed[2] - fixed[1]))

    def _fixed(self, figures: Floats) -> Floats:
        """Return what ranks without layers have of a figure, `(STAGES,)`."""
        differences = count_differences(figures)
        n_others = (figures.shape[1] - 5) // 2
        if self.recompute == "full":
            return np.asarray(figures[:, 2] - 2 * differences[0] - differences[1 + n_others])
        return np.asarray(figures[:, 0] - differences[0])

    def table(self) -> StageTable:
        """Return the table."""
        once, twice = self.ranks
        degrees, problem, row = self.degrees, self.problem, self.row
        multiple = degrees.pipelines_multiple
        memory = {k: x[row] for k, x in once.memory_bytes.items()}
        several = {k: x[row] for k, x in twice.memory_bytes.items()}
        in_flight = [float(STAGES - r) for r in range(STAGES)]
        kept = memory["activations"] + memory["fragmentation"]
        shared = (memory["states"] - several["states"]) * multiple * SEVERAL / (SEVERAL - 1.0)
        whole = memory["states"] - shared / multiple
        other = several["logits"] + several["working"] + several["overhead"]
        fixed = self._fixed(other)
        params = self._linear(once.params[row])
        recipe = problem.job.recipe
        grad_bytes, left_out = recipe.grad_bytes, 24.0 - recipe.adam_bytes
        one, none = np.array(1.0), np.array(np.inf)
        per_param = (one, one, one, grad_bytes, problem.pool.accelerator, left_out)
        all_s = float(optimizer_s(*per_param))
        clear_s = float(optimizer_s(one, none, one, *per_param[3:]))
        layers = self.shape.layers
        nothing = np.zeros(layers + 1)
        tied = params.embedding if self.shape.tied else 0.0
        return StageTable(
            pool=self.pool,
            tp=degrees.tp,
            cp=degrees.cp,
            ep=degrees.ep,
            mbs=degrees.mbs,
            recompute=self.recompute,
            forward_s=self._linear(once.forward_s[row]),
            backward_s=self._linear(once.backward_s[row]),
            whole_bytes=self._linear(whole),
            shared_bytes=self._linear(shared),
            activation_bytes=self._linear(kept, in_flight),
            working_bytes=Prefix(nothing, float(fixed[0] - fixed[1]), float(fixed[2] - fixed[1])),
            fixed_bytes=float(fixed[1]),
            grad_bytes=params.scaled(grad_wire_bytes(recipe, problem.stack)),
            weight_bytes=params.scaled(recipe.param_wire_bytes),
            update_s=params.scaled(all_s - clear_s),
            clear_s=params.scaled(clear_s),
            message_bytes=float(self.message_bytes),
            pipelines_multiple=multiple,
            tied_bytes=tied * grad_wire_bytes(recipe, problem.stack),
        )


def rings_of(problem: Problem, stage_devices: Sequence[int]) -> dict[tuple[int, int], Ring]:
    """Return the data-parallel collectives of a pool by devices of a stage and pipelines.

    Linear between `SAMPLES_BYTES`, from the collectives of the cost model; ranks of a ring are a
    stage apart.
    """
    pool, rings = problem.pool, {}
    small, large = SAMPLES_BYTES
    for n in sorted(set(stage_devices)):
        pipelines = np.arange(2, pool.n_devices // n + 1)
        if not len(pipelines):
            continue
        group = place_group(pipelines.astype(np.float64), float(n), pool, problem.fabric)
        figures = []
        for operation in ("reduce-scatter", "all-gather", "all-reduce"):
            ends = [collective_s(operation, np.array(x), group, pool) for x in (small, large)]
            slope = (ends[1] - ends[0]) / (large - small)
            figures.append((np.maximum(0.0, ends[0] - slope * small), slope))
        for i, d in enumerate(pipelines.tolist()):
            rings[n, d] = Ring(*((float(x[i]), float(y[i])) for x, y in figures))
    return rings


def mixed_problem(
    problems: Sequence[Problem],
    cluster: Cluster,
    prices_per_device_s: Sequence[float] = (),
    degrees: Sequence[Sequence[Degrees]] | None = None,
) -> MixedProblem:
    """Return one job on several pools; `problems` hold it on each of them.

    `degrees` are those of each pool, all possible ones without them; `prices_per_device_s` US
    dollars. The models, jobs and stacks of the problems have to be one.
    """
    pools, tables = [], []
    prices = [*prices_per_device_s, *[0.0] * len(problems)]
    for i, problem in enumerate(problems):
        own = list(degrees[i]) if degrees is not None else list(possible_degrees(problem))
        tables += stage_tables(problem, i, own)
        pool = problem.pool
        alone = pool.n_devices <= pool.scale_up_domain
        hop = (
            (pool.scale_up.p2p_latency_s, 1.0 / pool.accelerator.pair_bytes_per_s)
            if alone
            else (pool.nic.p2p_latency_s, 1.0 / pool.nic_bytes_per_s)
        )
        pools.append(
            MixedPool(
                name=pool.name,
                n_devices=pool.n_devices,
                devices_per_node=pool.devices_per_node,
                usable_bytes=pool.usable_bytes,
                nic_bytes_per_s=pool.nic_bytes_per_s,
                rings=rings_of(problem, [x.n_devices for x in own]),
                inside_hop=hop,
                price_per_device_s=prices[i],
            )
        )
    links = {}
    for i, j in combinations(range(len(problems)), 2):
        link = link_between(cluster, problems[i].pool, problems[j].pool)
        links[i, j] = LinkFacts(link.bytes_per_s, link.latency_s, link.price_per_byte)
    first = problems[0]
    n_nodes = sum(x.pool.n_nodes for x in problems)
    return MixedProblem(
        pools=tuple(pools),
        links=links,
        tables=tuple(tables),
        n_layers=first.shape.layers,
        global_batch=first.job.global_batch,
        fixed_s=max(x.stack.fixed_step_s for x in problems),
        overlap=_overlap(first),
        straggler_factor=straggler_factor(first, n_nodes * first.pool.devices_per_node),
    )


def _overlap(problem: Problem) -> Overlap | None:
    """Return how the stack hides data-parallel traffic with ZeRO 1; None where it does not."""
    stack = problem.stack
    if stack.zero1_overlap != "both":
        return None
    width = grad_wire_bytes(problem.job.recipe, stack)
    return Overlap(
        piece_bytes=stack.bucket_params * width,
        piece_bytes_per_rank=stack.bucket_params_per_rank * width,
        slowdown=stack.overlap_slowdown,
    )
