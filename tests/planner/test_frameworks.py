"""The scalar rules of the emitters and the array form that restricts the search are one table."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.plans import PlanTable
from planner.emit import runs_on
from planner.inputs import load_cluster, load_model, model_from_dict
from planner.options import SolveOptions
from planner.solving import make_problem
from searches.frameworks import FRAMEWORKS, framework_mask, refusals
from searches.plan_space import Masks, free_axes, legal_masks, plan_tables
from searches.rules import Context
from searches.search import search
from searches.shape_space import legal_shapes

CASES = [
    ("llama3-8b", "h100-x8", "bf16"),
    ("llama3-8b", "h100-x8", "bf16-grads"),
    ("llama3-8b", "h100-x8", "fp16-grads"),
    ("llama3-70b", "h100-x512", "bf16"),
    ("gpt3-175b", "a100-x1024", "fp16"),
]


@pytest.mark.parametrize(("model", "cluster", "precision"), CASES)
def test_array_and_scalar_form_agree_on_every_legal_plan(
    model: str, cluster: str, precision: str
) -> None:
    given = load_model(model, [("training.precision", precision)]), load_cluster(cluster)
    options = SolveOptions(framework="any")
    problem = make_problem(*given, options)
    context = Context(problem, options.search_options(), problem.pool.n_devices)
    shapes = legal_shapes(context).shapes
    axes = free_axes(context, shapes)
    masks, _, _ = legal_masks(context, shapes, axes)
    picked = np.random.default_rng(0)
    for framework in FRAMEWORKS:
        runs = framework_mask(framework, problem, shapes, axes.recompute, axes.recompute_layers)
        for wanted in (True, False):
            some = Masks(masks.batches, masks.rest & (runs == wanted))
            for table in plan_tables(context, shapes, axes, some, 10**9):
                for row in picked.choice(len(table), size=min(150, len(table)), replace=False):
                    layout = table.layout(int(row), problem.shape.layers)
                    reasons = refusals(framework, layout, problem.shape, problem.job)
                    assert (not reasons) == wanted, (framework, layout, reasons)


@pytest.mark.parametrize("framework", ["default", "megatron", "deepspeed"])
def test_every_plan_of_a_restricted_search_runs(framework: str) -> None:
    given = load_model("llama3-8b"), load_cluster("h100-x8")
    options = SolveOptions(framework=framework, top=64)
    problem = make_problem(*given, options)
    context = Context(problem, options.search_options(), problem.pool.n_devices)
    finalists = search(context).finalists
    assert finalists
    for candidate in finalists:
        able = runs_on(candidate.layout, problem.shape, problem.job)
        assert able
        assert framework in (*able, "default")


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
