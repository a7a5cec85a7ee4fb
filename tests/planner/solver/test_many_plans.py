"""Plans of a long list, made together, are to the byte those that are made one by one."""

import json
import pickle

import pytest

from costmodels.breakdown import break_down, break_downs
from costmodels.traffic import PlanTraffic
from planner import solve
from planner.frameworks.emit import runs_on, runs_on_each
from planner.render.answers.plan_table import plans_csv
from planner.render.document import text_of
from planner.solver.answer.plans import plan_of_layout
from planner.solver.answer.result import Plan, Result
from planner.solver.problem import make_problem
from planner.solver.request import SolveRequest
from planner.solver.sources import read_inputs

SWITCHES = ("optimizer_offload", "activation_offload", "dp_overlap")
QUESTIONS = {
    "dense": ("llama3-70b", "h100-x512", {"top": 80}),
    "on the host": (
        "llama2-13b",
        "h100-x8",
        {"top": 80, "framework": "any", "only": {name: ["on", "off"] for name in SWITCHES}},
    ),
    "any framework": ("llama2-7b", "h100-x8", {"top": 300, "framework": "any"}),
    "experts": ("mixtral-8x7b", "p5e-x128", {"top": 300}),
    "latent attention": ("deepseek-v2", "h100-x512", {"top": 60}),
    "replicated groups": (
        "llama2-13b",
        "mi300x-x64",
        {"top": 200, "framework": "any", "only": {"zero": [2, 3]}},
    ),
    "thousands": ("llama3-70b", "h100-x512", {"top": 5000}),
}
SLOW = tuple(QUESTIONS)[1:]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in QUESTIONS
    ],
)
def listed(request) -> tuple[tuple[str, str], Result]:
    """The inputs of a question, and its long list."""
    model, cluster, options = QUESTIONS[request.param]
    return (model, cluster), solve(model, cluster, executor="serial", all_variants=True, **options)


def some(plans: tuple[Plan, ...]) -> list[Plan]:
    """Return plans from all of a list, and those of a kind that few are of."""
    rare: dict[object, Plan] = {}
    for plan in plans:
        x = plan.layout
        rare.setdefault((x.schedule, x.zero, x.recompute, x.optimizer_offload, x.cp_comm), plan)
    chosen = (*plans[:: max(1, len(plans) // 8)], *rare.values())
    return list({plan.rank: plan for plan in chosen}.values())


@pytest.mark.slow
def test_every_plan_is_that_of_its_layout_alone(listed) -> None:
    names, result = listed
    given = read_inputs(*names)
    options = SolveRequest.of(top=1, framework=result.inputs["options"]["framework"]).options()
    for plan in some(result.plans):
        _, alone = plan_of_layout(*given, options, plan.layout, plan.rank)
        of_list = {"tie": plan.tie, "group": plan.group}
        expected = json.dumps(alone.to_json() | of_list, indent=1, sort_keys=True)
        assert json.dumps(plan.to_json(), indent=1, sort_keys=True) == expected
        assert plan.too_large_for == alone.too_large_for
        sent, sent_alone = plan.breakdown.transfers, alone.breakdown.transfers
        assert sent == sent_alone
        assert plan.breakdown.critical_stage == alone.breakdown.critical_stage
        assert plan.breakdown.rows.layers.layer.forward_s.shape == (1,)


def test_the_lists_mix_what_may_depend_on_company() -> None:
    # Else the comparison above compares less than it says.
    model, cluster, options = QUESTIONS["on the host"]
    layouts = [
        plan.layout
        for plan in solve(model, cluster, executor="serial", all_variants=True, **options).plans
    ]
    for name in SWITCHES[:2]:
        assert {getattr(x, name) for x in layouts} == {False, True}
    assert {"none", "1f1b", "interleaved", "zb-h1", "zb-v"} <= {x.schedule for x in layouts}
    assert len({x.zero for x in layouts}) >= 3


def test_frameworks_are_asked_of_all_layouts_as_of_one(listed) -> None:
    names, result = listed
    model, _ = read_inputs(*names)
    layouts = [plan.layout for plan in result.plans]
    together = runs_on_each(layouts, model.shape, model.job)
    assert together == [runs_on(x, model.shape, model.job) for x in layouts]


def test_the_json_is_that_of_the_standard_library(listed) -> None:
    _, result = listed
    assert result.dumps() == json.dumps(result.to_json(), indent=1, allow_nan=False) + "\n"


def test_tables_make_no_transfers(monkeypatch) -> None:
    def refuse(self: PlanTraffic) -> None:
        raise AssertionError("nobody asked for them")

    monkeypatch.setattr(PlanTraffic, "transfers", refuse)
    result = solve("llama3-8b", "h100-x8", top=200, all_variants=True)
    assert len(text_of(result).splitlines()) > 200
    assert len(plans_csv(result).splitlines()) == 201
    with pytest.raises(AssertionError, match="asked for"):
        result.dumps()


def test_a_plan_opened_with_others_survives_a_pipe() -> None:
    given = read_inputs("llama3-8b", "h100-x8")
    options = SolveRequest.of(top=40).options()
    problem = make_problem(*given, options)
    layouts = [
        plan.layout for plan in solve("llama3-8b", "h100-x8", top=40, all_variants=True).plans
    ]
    opened = break_downs(problem, layouts)[17]
    sent = pickle.loads(pickle.dumps(opened))
    alone = break_down(problem, layouts[17])
    assert sent.time_s == opened.time_s == alone.time_s
    assert sent.transfers == opened.transfers == alone.transfers
    assert sent.stages == alone.stages
    with pytest.raises(AttributeError, match="no 'transferrs'"):
        _ = opened.transferrs
