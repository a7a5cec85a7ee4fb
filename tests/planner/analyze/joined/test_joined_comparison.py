"""Two plans side by side, at least one over several pools."""

import json
from dataclasses import replace

import pytest

from planner.analyze.joined.comparison import compare_joined
from planner.cli.commands.inspection import run_diff
from planner.render.document import text_of
from planner.solver.answer.result_store import plan_of_result
from planner.solver.together.plans import TERMS
from service.handlers.calls import CALLS, call
from tests.planner.analyze.joined.conftest import opened_plans


def one_pool(data):
    return plan_of_result(data, "1", "answer")


def test_terms_sum_to_both_steps(wider):
    joined = opened_plans(wider)
    for opened in joined:
        found = compare_joined(opened, one_pool(wider))
        for side in (found.a, found.b):
            assert sum(side.time.values()) == pytest.approx(side.step_time_s, rel=1e-6)
        plan = one_pool(wider)[3]
        assert found.b.peak_bytes == pytest.approx(plan.breakdown.peak_bytes)
        assert found.b.step_time_s == plan.step_time_s
        stages = [x for k in opened.plan.kinds for x in k.stages]
        assert found.a.peak_bytes in [pytest.approx(x.peak_bytes) for x in stages]


def test_the_faster_plan_wins_and_what_differs_is_named(wider):
    first, second = opened_plans(wider)[:2]
    found = compare_joined(first, second)
    assert found.winner == "A"
    assert compare_joined(second, first).winner == "B"
    same = compare_joined(first, first)
    assert (same.winner, same.layout, same.turns) == ("", [], ())
    assert {axis for axis, _, _ in found.layout} >= {"layers"}
    text = text_of(found)
    assert "A trains" in text
    assert "link " in text
    assert "the layouts are the same" in text_of(same)


def test_less_bandwidth_turns_a_plan_over_a_link_against_one_without(data):
    joined = opened_plans(data)[0]
    found = compare_joined(joined, one_pool(data))
    assert found.winner == "A"
    (turn,) = found.turns
    assert turn.startswith("1/")
    assert turn.endswith("times the bandwidth of link new - old")


def test_other_jobs_are_said(data, wider):
    other = json.loads(json.dumps(data))
    plan = opened_plans(wider)[0]
    assert compare_joined(opened_plans(other)[0], plan).inputs == ()
    other["inputs"]["model"]["training"]["tokens"] = 1e9
    changed = plan_of_result({**data, "plans": data["plans"]}, "1", "answer")
    document = {**changed[0].document, "training": {**changed[0].document["training"], "x": 1}}
    strange = (replace(changed[0], document=document), *changed[1:])
    assert compare_joined(plan, strange).inputs == ("training: x None -> 1",)
    assert "not the same problem" in text_of(compare_joined(plan, strange))


def test_command_and_service_say_the_same(data, tmp_path, capsys):
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(data))
    run_diff(f"{path}#t1", f"{path}#1", "json")
    printed = json.loads(capsys.readouterr().out)
    sides = {"a": {"result": data, "plan": "t1"}, "b": {"result": data, "plan": 1}}
    answer = call("diff", {**sides, "with_text": True})
    CALLS["diff"].answer.model_validate(answer)
    run_diff(f"{path}#t1", f"{path}#1", "table")
    assert answer.pop("text") == capsys.readouterr().out
    assert answer == printed
    assert set(answer["time"]) <= set(TERMS)
    other = call("diff", {"a": sides["b"], "b": sides["a"]})
    assert other["winner"] == "B"
    both = call("diff", {"a": sides["a"], "b": {"result": data, "plan": "t2"}})
    assert both["winner"] == "A"
