"""The scalar form of the rules (emitters, checks) and the array form (search) agree."""

import dataclasses

import numpy as np
import pytest

from costmodels.axes import CP_COMMS, RECOMPUTE_MODULES, SCHEDULES
from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL_8X7B
from costmodels.plans import WHOLE, PlanTable, ShapeTable
from costmodels.problem import Problem
from costmodels.schedule.stages import SPLITS, stage_layers
from costmodels.shapes import TrainingJob
from costmodels.stacks import STACKS
from searches.frameworks.case import Case, NotStatedError, PlanKinds
from searches.frameworks.registry import (
    framework_names,
    framework_rules,
    searched_frameworks,
)
from searches.frameworks.table import (
    framework_batches,
    framework_mask,
    refusals,
    rules_by_code,
    runnable,
    runnable_batches,
)
from searches.options import SearchOptions
from searches.rules import Context
from searches.space.free_axes import existing_shardings, free_axes, sharding_options
from searches.space.plan_space import legal_masks
from searches.space.shape_space import legal_shapes, table_of
from tests.searches.instances import INSTANCES, TOY_HOST, context, one_in, toy_pool

ODD = dataclasses.replace(
    LLAMA3_8B, layers=30, heads=40, kv_heads=10, ffn=13824, tied=True, padded_vocab=128263
)
EAGER = dataclasses.replace(LLAMA3_8B, layers=12, flash_attention=False, bias=True)
GROUPED = dataclasses.replace(MIXTRAL_8X7B, n_groups=4, top_groups=2, bias=True, expert_ffn=14338)
MODELS = (LLAMA3_8B, MIXTRAL_8X7B, DEEPSEEK_V3, ODD, EAGER, GROUPED)
JOBS = (
    ("bf16", 8192),
    ("bf16-grads", 8190),
    ("fp16-grads", 4096),
    ("fp8-rowwise", 8192),
    ("fp8-tensorwise", 6144),
    ("fp16", 8200),
    ("fp32", 8192),
)
N_SHAPES, N_PLANS = 40, 120
DEVICES = 48


def of_vendor(problem: Problem, framework: str) -> Problem:
    """Return a problem on accelerators that a framework runs on."""
    part = problem.pool.accelerator
    part = dataclasses.replace(part, vendor=framework_rules(framework).vendors[0])
    return dataclasses.replace(problem, pool=dataclasses.replace(problem.pool, accelerator=part))


def random_shapes(rng: np.random.Generator, layers: int) -> ShapeTable:
    """Return shapes that no rule has looked at; only their stages exist."""
    rows = []
    while len(rows) < N_SHAPES:
        tp, pp, cp = (int(x) for x in rng.choice([1, 1, 2, 3, 4, 6, 8], 3))
        vpp, split = int(rng.integers(1, 4)), int(rng.integers(2))
        if DEVICES % (tp * pp * cp) or not stage_layers(layers, pp, vpp, SPLITS[split]):
            continue
        dp = DEVICES // (tp * pp * cp)
        kind = int(rng.integers(1, len(CP_COMMS))) if cp > 1 else 0
        ep, etp = (int(x) for x in rng.choice([1, 1, 1, 2, 4, 8], 2))
        order = int(rng.choice([0, 0, 1]))
        rows.append((tp, pp, dp, vpp, split, cp, kind, ep, etp, order))
    block = np.array(rows)
    names = ("tp", "pp", "dp", "vpp", "split", "cp", "cp_comm", "ep", "etp", "rank_order")
    return ShapeTable.of_columns(DEVICES, dict(zip(names, block.T, strict=True)))


def random_schedules(rng: np.random.Generator, shapes: ShapeTable) -> np.ndarray:
    """Return a schedule for each shape: any that pp and vpp allow."""
    one = ("1f1b", "gpipe", "zb-h1", "dualpipe")
    two = ("interleaved", "zb-v", "dualpipe-v")
    more = ("interleaved",)
    names = [
        "none" if pp == 1 else str(rng.choice(one if vpp == 1 else two if vpp == 2 else more))
        for pp, vpp in zip(shapes.pp, shapes.vpp, strict=True)
    ]
    return np.array([SCHEDULES.index(name) for name in names], dtype=np.int32)


@pytest.mark.parametrize("framework", framework_names())
@pytest.mark.parametrize("seed", one_in(7, range(7)))
def test_scalar_and_array_form_agree_on_random_plans(framework: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    agreed = {True: 0, False: 0}
    for model in MODELS:
        precision, seq_len = JOBS[seed]
        job = TrainingJob(seq_len, 96, precision)
        pool = dataclasses.replace(toy_pool(DEVICES, 8), host=TOY_HOST)
        problem = Problem(model, job, pool, context().problem.fabric, STACKS["fused"])
        problem = of_vendor(problem, framework)
        shapes = random_shapes(rng, model.layers)
        shapes = dataclasses.replace(shapes, schedule=random_schedules(rng, shapes))
        recompute = np.array([0, 1, *[2] * 4], dtype=np.int32)
        layers = np.array([0, 0, 1, 2, 5, 30], dtype=np.int32)
        one = int(rng.integers(1, 1 << len(RECOMPUTE_MODULES)))
        modules = np.array([0, one, *[0] * 4], dtype=np.int32)
        mbs = np.array([1, 2, 3, 5, 8], dtype=np.int32)
        asked = Context(problem, SearchOptions(), DEVICES)
        shardings = sharding_options(asked, shapes)
        exists = existing_shardings(shapes, shardings)
        kinds = PlanKinds(shardings, recompute, layers, modules)
        runs = framework_mask(framework, problem, shapes, kinds)
        fits = framework_batches(framework, problem, shapes, mbs)
        picked = [
            rng.integers(n, size=N_PLANS) for n in (N_SHAPES, 2, len(shardings), 6, len(mbs))
        ]
        for row, sp, sharding, option, size in zip(*(x.tolist() for x in picked), strict=True):
            if not exists[row, sharding]:
                continue

            def column(value: int) -> np.ndarray:
                return np.array([value], dtype=np.int32)

            table = PlanTable(
                shapes,
                shardings,
                job.global_batch,
                column(row),
                column(mbs[size]),
                column(sharding),
                column(sp),
                column(recompute[option]),
                column(layers[option]),
                column(modules[option]),
                column(0),
            )
            layout = table.layout(0, model.layers)
            reasons = refusals(framework, layout, model, job)
            able = bool(runs[row, sp, sharding, option] and fits[row, size])
            assert able == (not reasons), (layout, reasons)
            agreed[able] += 1
    assert agreed[False] > 0


@pytest.mark.parametrize("framework", framework_names())
def test_every_framework_runs_some_random_plan(framework: str) -> None:
    problem = of_vendor(context().problem, framework)
    shapes = legal_shapes(context()).shapes
    kinds = np.array([0, 2], dtype=np.int32), np.array([0, 6], dtype=np.int32)
    assert framework_mask(framework, problem, shapes, PlanKinds(WHOLE, *kinds)).any()


@pytest.mark.parametrize("framework", framework_names())
def test_every_layout_rule_can_be_decided_where_the_search_asks_it(framework: str) -> None:
    c = context()
    shapes = table_of(c, [(1, 1, 8, 1, 0, 1, 0, 1, 1, 0, 0), (2, 2, 2, 1, 0, 1, 0, 1, 1, 2, 1)])
    kinds = np.array([0], dtype=np.int32)
    held = Case.of_shapes(c.problem, shapes, PlanKinds(WHOLE, kinds, kinds))
    batches = Case.of_batches(c.problem, shapes, np.array([1, 2], dtype=np.int32))
    of_layouts = [
        rule
        for rule in rules_by_code().values()
        if (rule.framework, rule.level) == (framework, "layout")
    ]
    assert of_layouts
    for rule in of_layouts:
        found = np.asarray(rule.broken(batches if rule.batches else held))
        assert found.dtype == bool, rule.code
        np.broadcast_shapes(found.shape, (2, 2) if rule.batches else (2, 2, 4, 1))
        if rule.batches:
            with pytest.raises(NotStatedError):
                rule.broken(held)


@pytest.mark.slow
def test_the_default_space_is_what_one_of_its_frameworks_runs() -> None:
    """A union is no product of the free axes; it is here, since no rule of these reads batches
    that the rules of the space (BAT001 to BAT003) have not refused already.
    """
    for c in INSTANCES.values():
        shapes = legal_shapes(c).shapes
        axes = free_axes(c, shapes)
        if not (len(shapes) and len(axes.mbs)):
            continue
        options = (axes.recompute, axes.recompute_layers, axes.recompute_modules)
        kinds = PlanKinds(axes.shardings, *options)
        names = searched_frameworks("default")
        masks = [framework_mask(n, c.problem, shapes, kinds) for n in names]
        either = runnable("default", c.problem, shapes, kinds)
        np.testing.assert_array_equal(either, masks[0] | masks[1])
        anything = dataclasses.replace(c, options=SearchOptions(framework="any"))
        legal, _, _ = legal_masks(anything, shapes, axes)
        fits = runnable_batches("default", c.problem, shapes, axes.mbs)
        assert fits[legal.batches].all()
        for name in searched_frameworks("default"):
            one = framework_batches(name, c.problem, shapes, axes.mbs)
            assert one[legal.batches].all()
