"""Draws legal plans out of the real search spaces, every kind of plan equally often.

A problem (model, devices, batch, precision) is drawn first, then its legal shapes and free axes
are grouped by what is on (tensor, pipeline, interleaving, uneven stages, kind of context
parallelism, experts, sharding, recomputation), a group is picked and then a plan in it. So
combinations that few plans have come up as often as those of many. Same seed, same plans.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import numpy as np

from costmodels.plans import Layout, PlanTable, ShapeTable
from costmodels.problem import Problem
from costmodels.schedule.stages import spelled
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import STACKS
from hardware.parts import Accelerator, Efficiency, Fabric, Host, Link, Pool
from planner.frameworks.emit import why_not
from planner.frameworks.registry import default_stack
from planner.specs.schema import NO_DETAILS, DetailsSpec
from searches.frameworks.registry import framework_rules
from searches.options import SearchOptions
from searches.rules import SHAPE_RULES, TWO_CHUNKS, Context
from searches.space.free_axes import free_axes
from searches.space.plan_space import legal_masks
from searches.space.shape_space import candidates, divisors
from tools.samples.details import draw_details
from tools.samples.models import all_shapes

DEVICES = (
    1,
    2,
    3,
    4,
    6,
    8,
    16,
    24,
    32,
    48,
    64,
    72,
    96,
    128,
    256,
    320,
    512,
    576,
    768,
    1000,
    1024,
    1536,
    2048,
    3072,
    4096,
    6144,
    8192,
    12288,
    16384,
)
"""Sizes of clusters, odd ones among them."""
NODE_SIZES = (8, 8, 8, 4, 1, 2)
"""Devices of a node; the first that divides the devices is taken, in a drawn order."""
SEQ_LENS = (512, 2048, 4096, 4096, 8192, 8192, 16384, 32768, 65536, 131072)
PRECISIONS = (
    "bf16",
    "bf16",
    "bf16",
    "bf16-grads",
    "bf16-grads",
    "fp16",
    "fp32",
    "fp8-delayed",
    "fp8-tensorwise",
    "fp8-blockwise",
    "fp8-mxfp8",
    "fp8-rowwise",
)
GENERATIONS = ("ampere", "hopper", "hopper", "blackwell")
SHARE = {"megatron": 6, "torchtitan": 4, "deepspeed": 2, "fsdp2": 2, "bridge": 2, "primus": 2}
"""How often each framework is drawn."""
PLANS_PER_PROBLEM = 4
SHAPES_PER_GROUP = 3
BEYOND_SHARE = 0.3
"""Plans that get something that only a pin asks for, where the framework runs it."""
MOST_TRIES = 400
"""Problems looked at for one plan before the sampler gives up: the framework runs none of them."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One legal plan of one framework."""

    name: str
    framework: str
    layout: Layout
    shape: ModelShape
    job: TrainingJob
    pool: Pool
    details: DetailsSpec = NO_DETAILS

    @property
    def features(self) -> tuple[str, ...]:
        """What is on in the plan, for the count of how well a sample covers the space."""
        x, shape = self.layout, self.shape
        found = {
            "tp": x.tp > 1,
            "sp": x.sp,
            "pp": x.pp > 1,
            "vpp": x.vpp > 1,
            "ep": x.ep > 1,
            "tp overlap": x.tp_overlap,
            "etp": x.etp > 1,
            f"cp {x.cp_comm}": x.cp > 1,
            f"zero {x.zero}": True,
            f"recompute {x.recompute}": True,
            "hsdp": x.dp_shard != x.dp * x.cp,
            "hpz": x.hpz > 1,
            "uneven": len(set(x.stage_layers)) > 1,
            f"schedule {x.schedule}": x.pp > 1,
            f"order {x.rank_order}": x.rank_order != "tp-cp-ep-dp-pp",
            "moe": shape.n_experts > 0,
            "mla": shape.latent,
            "mtp": shape.mtp_layers > 0,
            "gqa": shape.kv_heads < shape.heads,
            "tied": shape.tied,
            "dense": not shape.n_experts,
            self.job.precision: True,
            f"{size_class(x.n_devices)} devices": True,
            "kv replicated": x.tp > shape.kv_heads,
            "details": self.details != NO_DETAILS,
            "offload": x.optimizer_offload,
            "overlap off": not x.dp_overlap,
        }
        return tuple(sorted(name for name, on in found.items() if on))


def size_class(n_devices: int) -> str:
    """Return the range of a number of devices.

    >>> size_class(1), size_class(24), size_class(16384)
    ('1-8', '9-64', '1025-16384')
    """
    low = 1
    for high in (8, 64, 1024, 16384):
        if n_devices <= high:
            return f"{low}-{high}"
        low = high + 1
    return f"over {low - 1}"


def pool_of(generation: str, n_devices: int, per_node: int, vendor: str = "NVIDIA") -> Pool:
    """Return a pool of which only the generation and the nodes matter; memory is no limit."""
    ones = (1.0, 1.0, 1.0)
    link = Link("none", "scale-up", 1.0, 1.0, ones, ones, ones, ones, ones, ones, 0.0)
    rates = Efficiency(1.0, 0.0, 1.0, 1.0, 0.0, {}, 0.0)
    part = Accelerator(
        "sample",
        vendor,
        generation,
        1e15,
        1.0,
        {"bf16": 1.0, "fp16": 1.0, "fp32": 1.0, "tf32": 1.0, "fp8": 1.0},
        100,
        "none",
        1.0,
        1.0,
        8,
        1.0,
        rates,
    )
    n_nodes, host = n_devices // per_node, Host(1.0, 1e15, 1.0)
    return Pool("sample", part, n_nodes, per_node, per_node, link, per_node, link, 0.0, host=host)


def draw_problem(random: Random, framework: str, shape: ModelShape, n_devices: int) -> Context:
    """Return a model on a number of devices, with a batch that leaves something to split."""
    sizes = [size for size in random.sample(NODE_SIZES, len(NODE_SIZES)) if n_devices % size == 0]
    vendor = framework_rules(framework).vendors[0]
    pool = pool_of(random.choice(GENERATIONS), n_devices, sizes[0], vendor)
    per_device = random.choice((0.25, 0.5, 1, 2, 3, 4, 6, 8, 10, 16))
    batch = max(1, math.ceil(n_devices * per_device))
    if random.random() < 0.2:
        batch = random.choice((60, 96, 240, 512, 1000, 1536, 1920, 2048, 3840))
    if random.random() < 0.1:
        batch += 1
    seq_len = random.choice(SEQ_LENS)
    job = TrainingJob(seq_len, batch, random.choice(PRECISIONS), tokens=0.0)
    problem = Problem(shape, job, pool, Fabric(), STACKS["megatron-core"])
    either = {"optimizer_offload": frozenset({0, 1})}
    options = SearchOptions(either, framework=framework, memory_bound=False)
    return Context(problem, options, n_devices)


def some_shapes(random: Random, context: Context) -> ShapeTable:
    """Return legal shapes of a problem: a few of every group of those that have the same axes on.

    By the predicates of the rules rather than by CP-SAT, which finds the same shapes (tested with
    the search) in five times the time.
    """
    shapes = candidates(context)
    shapes = shapes.take(np.flatnonzero(shapes.rank_order == 0))  # `beyond_the_search` has others
    for _, predicate in SHAPE_RULES:
        shapes = shapes.take(np.flatnonzero(predicate(context, shapes)))
    on = (
        shapes.tp > 1,
        shapes.pp > 1,
        shapes.vpp > 1,
        shapes.split,
        shapes.cp_comm,
        shapes.ep > 1,
        shapes.etp > 1,
        shapes.dp > 1,
    )
    columns = np.stack([np.asarray(column, dtype=np.int32) for column in on], axis=1)
    _, group = np.unique(columns, axis=0, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max(initial=-1) + 2))
    rows: list[int] = []
    for low, high in pairwise(starts.tolist()):
        rows += random.sample(order[low:high].tolist(), min(SHAPES_PER_GROUP, high - low))
    return shapes.take(np.array(rows, dtype=np.intp))


def draw_layouts(
    random: Random, context: Context, shapes: ShapeTable, n_layouts: int
) -> Iterator[Layout]:
    """Yield legal layouts of the shapes, no shape twice; fewer where few are legal."""
    axes = free_axes(context, shapes)
    masks, _, _ = legal_masks(context, shapes, axes)
    legal = masks.batches.any(axis=1) & masks.rest.any(axis=(1, 2, 3))
    rows = np.flatnonzero(legal).tolist()
    for row in random.sample(rows, min(n_layouts, len(rows))):
        free: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        rest, zero = masks.rest[row], axes.shardings.zero
        for sp, sharding, option in np.argwhere(rest).tolist():
            group = (sp, int(zero[sharding]), int(axes.recompute[option]))
            free.setdefault(group, []).append((sharding, option))
        group = random.choice(sorted(free))
        sp, _, kind = group
        sharding, option = random.choice(free[group])
        layers, modules = axes.recompute_layers[option], axes.recompute_modules[option]
        away = axes.activation_offload_layers[option]
        mbs = axes.mbs[random.choice(np.flatnonzero(masks.batches[row]).tolist())]
        one = shapes.take(np.array([row]))
        values = (0, mbs, sharding, sp, kind, layers, modules, away)
        columns = (np.array([value], dtype=np.int32) for value in values)
        batch = context.problem.job.global_batch
        table = PlanTable(one, axes.shardings, batch, *columns)
        yield table.layout(0, context.problem.shape.layers)


def beyond_the_search(random: Random, drawn: Drawn) -> Drawn:
    """Return the plan with something on that only a pin asks for, where the framework runs it."""
    layout, shape = drawn.layout, drawn.shape
    changes: list[dict[str, object]] = []
    group = layout.dp * layout.cp
    smaller = [d for d in divisors(group) if 1 < d < group]
    if smaller and layout.zero:
        changes.append({"shard": random.choice(smaller)})
    if group > 1:
        changes.append({"dp_overlap": False})
    if smaller and layout.zero == 3:
        changes.append({"hpz": random.choice(smaller)})
    changes.append({"rank_order": "tp-cp-ep-pp-dp"})
    if layout.pp == 1 and layout.recompute == "full":
        changes.append({"activation_offload_layers": layout.recompute_layers})
    elif layout.pp == 1 and shape.layers > 2:
        changes.append({"activation_offload_layers": random.randint(1, shape.layers - 2)})
    if layout.sp and STACKS[default_stack(drawn.framework)].tp_overlap_on:
        changes.append({"tp_overlap": True})
    if layout.pp > 1:
        if layout.vpp == 1:
            changes.append({"schedule": "gpipe"})
        if layout.vpp == 2:
            changes.append({"schedule": random.choice(TWO_CHUNKS[1:])})
        counts = list(layout.stage_layers)
        low, high = random.sample(range(len(counts)), 2)
        if counts[low] > 1:
            counts[low], counts[high] = counts[low] - 1, counts[high] + 1
            split = {"stage_layers": tuple(counts), "split": spelled(counts)}
            if layout.recompute_layers <= max(counts):
                changes.append(split)
    random.shuffle(changes)
    for change in changes:
        other = replace(layout, **change)
        if other != layout and why_not(drawn.framework, other, shape, drawn.job) is None:
            return replace(drawn, layout=other)
    return drawn


def draw_plans(framework: str, n_plans: int, seed: int = 0) -> Iterator[Drawn]:
    """Yield `n_plans` legal plans of one framework; nothing if it runs none of what is drawn."""
    random, other_random = Random(f"{seed} {framework}"), Random(f"{seed} {framework} details")
    models, devices = list(all_shapes()), list(DEVICES)
    turn = n_found = tries = 0
    while n_found < n_plans and tries < MOST_TRIES:
        if turn % (len(models) * len(devices)) == 0:
            random.shuffle(models)
            random.shuffle(devices)
        # 35 models against 29 sizes: every pair comes up before one comes up again.
        shape = models[turn % len(models)]
        context = draw_problem(random, framework, shape, devices[turn % len(devices)])
        turn += 1
        tries += 1
        shapes = some_shapes(random, context)
        if not len(shapes):
            continue
        problem = context.problem
        for layout in draw_layouts(random, context, shapes, PLANS_PER_PROBLEM):
            if n_found == n_plans:
                return
            name = f"{framework}-{n_found:05d}-{shape.name}-n{layout.n_devices}"
            details = draw_details(other_random, shape)
            drawn = Drawn(name, framework, layout, shape, problem.job, problem.pool, details)
            if random.random() < BEYOND_SHARE:
                drawn = beyond_the_search(random, drawn)
            n_found, tries = n_found + 1, 0
            yield drawn


def shares(n_plans: int, frameworks: tuple[str, ...] = tuple(SHARE)) -> dict[str, int]:
    """Return how many of `n_plans` plans each framework gets, by `SHARE`; they sum to `n_plans`.

    >>> shares(10, ("megatron", "deepspeed"))
    {'megatron': 8, 'deepspeed': 2}
    """
    total = sum(SHARE[name] for name in frameworks)
    given = {name: n_plans * SHARE[name] // total for name in frameworks}
    given[frameworks[0]] += n_plans - sum(given.values())
    return given
