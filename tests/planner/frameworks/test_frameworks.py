"""What the search restricted to a framework offers, that framework runs: one table of rules."""

from dataclasses import replace

import numpy as np
import pytest

import planner
from costmodels.plans import PlanTable
from costmodels.stacks import STACKS
from planner.frameworks.emit import emit_plan, runs_on
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.registry import default_stack
from planner.render.document import text_of
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.specs.loader import load_cluster, load_model, model_from_dict
from searches.frameworks.case import PlanKinds
from searches.frameworks.registry import framework_names, framework_rules, framework_spaces
from searches.frameworks.table import framework_batches, framework_mask, refusals
from searches.rules import Context
from searches.search import search
from searches.space.free_axes import free_axes
from searches.space.plan_masks import Coupled
from searches.space.plan_space import legal_masks
from searches.space.shape_space import legal_shapes
from tests.searches.instances import one_in, one_row_in
from tests.searches.tables import plan_tables

CASES = [
    ("llama3-8b", "h100-x8", "bf16"),
    ("llama3-8b", "h100-x8", "bf16-grads"),
    ("llama3-8b", "h100-x8", "fp16-grads"),
    ("llama3-70b", "h100-x512", "bf16"),
    ("gpt3-175b", "a100-x1024", "fp16"),
    ("mixtral-8x7b", "h100-x512", "bf16"),
]


@pytest.mark.parametrize(("model", "cluster", "precision"), one_row_in(6, CASES))
def test_array_and_scalar_form_agree_on_legal_plans(
    model: str, cluster: str, precision: str
) -> None:
    given = load_model(model, [("training.precision", precision)]), load_cluster(cluster)
    options = SolveOptions(framework="any")
    problem = make_problem(*given, options)
    context = Context(problem, options.search_options(), problem.pool.n_devices)
    shapes = legal_shapes(context).shapes
    picked = np.random.default_rng(0)
    shapes = shapes.take(picked.choice(len(shapes), size=min(200, len(shapes)), replace=False))
    axes = free_axes(context, shapes)
    masks, _, _ = legal_masks(context, shapes, axes)
    for framework in framework_names():
        options = (axes.recompute, axes.recompute_layers, axes.recompute_modules)
        runs = framework_mask(framework, problem, shapes, PlanKinds(axes.shardings, *options))
        fits = framework_batches(framework, problem, shapes, axes.mbs)
        for wanted in (True, False):
            fit = masks.batches & fits if wanted else masks.batches
            coupled = Coupled.of_shapes(masks.rest & (runs == wanted))
            some = replace(masks, batches=fit, coupled=coupled)
            for table in plan_tables(context, shapes, axes, some, 10**9):
                for row in picked.choice(len(table), size=min(60, len(table)), replace=False):
                    layout = table.layout(int(row), problem.shape.layers)
                    vendor = problem.pool.accelerator.vendor
                    reasons = refusals(framework, layout, problem.shape, problem.job, vendor)
                    assert (not reasons) == wanted, (framework, layout, reasons)


OF_GPUS = [x for x in framework_names() if "NVIDIA" in framework_rules(x).vendors]


@pytest.mark.parametrize("framework", one_in(5, ["default", *OF_GPUS]))
@pytest.mark.parametrize("model", one_in(2, ["mixtral-8x7b", "llama3-8b"]))
def test_every_plan_of_a_restricted_search_runs(framework: str, model: str) -> None:
    cluster = load_cluster("h100-x8" if model == "llama3-8b" else "h100-x512")
    options = SolveOptions(framework=framework, top=64)
    problem = make_problem(load_model(model), cluster, options)
    context = Context(problem, options.search_options(), problem.pool.n_devices)
    finalists = search(context).finalists
    # DeepSpeed has no experts of ours; FSDP2 would pad 8 experts over more than 8 shards (ACC303).
    assert finalists or (framework in ("deepspeed", "fsdp2") and model == "mixtral-8x7b")
    for candidate in finalists:
        able = runs_on(candidate.layout, problem.shape, problem.job)
        assert able
        assert framework in (*able, "default")


@pytest.mark.slow
def test_zero_groups_are_made_whole_only_where_the_framework_runs_that() -> None:
    """Whole groups would be as fast, but FSDP would pad 20 experts over 16 ranks (TTN307)."""
    pins = {"pp": 4, "ep": 8, "tp": 4}
    found = planner.solve("deepseek-v2", "h100-x512", framework="torchtitan", pins=pins, top=5)
    assert all("torchtitan" in plan.runs_on for plan in found.plans)
    assert found.plans[0].layout.shard > 0


def test_every_framework_can_be_asked_for_and_has_a_stack() -> None:
    assert framework_spaces() == ("default", *framework_names(), "any")
    assert all(default_stack(space) in STACKS for space in framework_spaces())


@pytest.mark.parametrize("framework", one_in(2, OF_GPUS))
def test_every_framework_writes_its_plan(framework: str) -> None:
    plan = planner.solve("llama3-8b", "h100-x8", framework=framework, top=1).plans[0]
    model, cluster = load_model("llama3-8b"), load_cluster("h100-x8")
    request = EmitRequest(plan.layout, model.shape, model.job, cluster.cluster.pools[0])
    assert f"{framework}.txt" not in emit_plan(framework, request)


def test_a_plan_that_no_framework_holds_in_memory_says_so() -> None:
    large = planner.evaluate("llama3-8b", "h100-x8", pins={"zero": 1}).plans[0]
    assert large.runs_on == ()
    assert "  runs on: nothing within this memory (megatron, " in text_of(large)
    strange = planner.evaluate("llama3-70b", "h100-x512", pins={"pp": 4, "schedule": "zb-h1"})
    assert strange.plans[0].too_large_for == ()
    assert "  runs on: no framework that can be written" in text_of(strange.plans[0])


def test_one_plan_more_or_less_does_not_change_its_neighbours() -> None:
    model = load_model("llama3-8b")
    small = model_from_dict(model.document, [("training.global_batch", 16)])
    options = SolveOptions()
    problem = make_problem(small, load_cluster("h100-x8"), options)
    context = Context(problem, options.search_options(), 8)
    best = search(context).finalists[0]
    alone = replace(options.search_options(), only={"tp": frozenset([best.layout.tp])})
    again = search(replace(context, options=alone)).finalists[0]
    assert again == best
    assert len(PlanTable.from_layouts([best.layout])) == 1
