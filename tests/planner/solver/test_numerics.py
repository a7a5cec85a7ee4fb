"""Precision, widths of gradients and states: pinned, searched side by side, reopened, offered."""

import json

import pytest

import planner
from planner.errors import SearchError, SpecError, UsageError
from planner.solver.answer.result import Result
from planner.solver.answer.result_store import plan_of_result

MODEL, CLUSTER = "llama3-8b", "h100-x8"


def best(**options):
    return planner.solve(MODEL, CLUSTER, top=3, **options)


def test_a_pin_sets_the_field_of_the_job():
    pinned = best(pins={"precision": "fp8-blockwise", "grad_dtype": "bf16"})
    fields = [("training.precision", "fp8-blockwise"), ("training.grad_dtype", "bf16")]
    stated = best(overrides=fields)
    assert [p.plan_id for p in pinned.plans] == [p.plan_id for p in stated.plans]
    assert pinned.plans[0].step_time_s == stated.plans[0].step_time_s
    layout = pinned.plans[0].figures_json()["layout"]
    assert (layout["precision"], layout["grad_dtype"]) == ("fp8-blockwise", "bf16")
    of_stated = stated.plans[0].figures_json()["layout"]
    assert not {"precision", "grad_dtype"} & set(of_stated)  # the file's own


@pytest.mark.slow
def test_bf16_with_bf16_gradients_is_one_job_whatever_it_is_called():
    names = (
        {"pins": {"grad_dtype": "bf16"}},
        {"overrides": [("training.grad_dtype", "bf16")]},
        {"overrides": [("training.precision", "bf16-grads")]},
        {"overrides": [("training.precision", "bf16-grads")], "pins": {"grad_dtype": "bf16"}},
    )
    ids = {tuple(p.plan_id for p in best(**options).plans) for options in names}
    assert len(ids) == 1
    plain = best(overrides=[("training.precision", "bf16-grads")], pins={"grad_dtype": "fp32"})
    assert [p.plan_id for p in plain.plans] == [p.plan_id for p in best().plans]


def test_other_names_of_a_precision():
    one, other = (best(pins={"precision": name}) for name in ("fp8-current", "fp8-tensorwise"))
    assert one.dumps() == other.dumps()


@pytest.mark.slow
def test_combinations_are_ranked_together():
    only = {"precision": ["bf16", "fp8-blockwise"], "grad_dtype": ["fp32", "bf16"]}
    result = planner.solve(MODEL, CLUSTER, top=40, only=only)
    assert len(result.devices) == 4
    times = [p.step_time_s for p in result.plans if not p.tie]
    assert times == sorted(times)
    alone = best(pins={"precision": "fp8-blockwise", "grad_dtype": "bf16"})
    fastest = min(result.plans, key=lambda p: p.step_time_s)
    assert fastest.words == {"precision": "fp8-blockwise", "grad_dtype": "bf16"}
    assert fastest.step_time_s == min(p.step_time_s for p in alone.plans)


def test_a_plan_is_priced_again_from_its_result():
    only = {"optimizer_states": ["fp32", "bf16-moments"], "grad_dtype": ["bf16"]}
    result = planner.solve(MODEL, CLUSTER, top=5, only=only)
    data = json.loads(result.dumps())
    for plan in result.plans:
        _, _, problem, again = plan_of_result(data, plan.plan_id, "x")
        assert again.plan_id == plan.plan_id
        assert again.breakdown.peak_bytes == plan.breakdown.peak_bytes
        assert problem.job.grad_dtype == "bf16"
        assert again.to_json()["layout"] == plan.to_json()["layout"]
    assert Result.from_json(data).plans[0].words == result.plans[0].words


@pytest.mark.slow
def test_what_else_the_numbers_would_bring():
    result = best()
    offered = {x.pin: x for x in result.alternatives}
    assert {"precision=fp8-tensorwise", "grad_dtype=bf16"} <= set(offered)
    assert not any("mxfp8" in pin or "nvfp4" in pin for pin in offered)  # Hopper has neither
    first = result.plans[0]
    for x in result.alternatives:
        assert x.step_time_s <= first.step_time_s * 1.01
        assert x.fits == (x.peak_bytes <= first.usable_bytes)
        if x.fits:  # a search of its own is no slower
            found = min(p.step_time_s for p in best(pins={x.axis: x.value}).plans)
            assert found <= x.step_time_s * (1 + 1e-9)
    named = best(pins={"precision": "bf16"}).alternatives
    assert not any(x.axis == "precision" for x in named)
    assert Result.from_json(json.loads(result.dumps())).alternatives[0].pin == (
        result.alternatives[0].pin
    )


def test_nothing_of_the_numbers_is_open_by_itself():
    result = best()
    assert {p.precision for p in result.plans} == {"bf16"}
    assert all(not p.numerics for p in result.plans)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"precision": "nvfp4"}, "nvfp4"),
        ({"precision": "fp8-mxfp8"}, "mxfp8"),
    ],
)
def test_hardware_that_lacks_it_is_named(fields, named):
    with pytest.raises(SearchError, match=named):
        best(pins=fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"precision": "fp16", "grad_dtype": "bf16"},
        {"precision": "bf16", "fp8_param_gather": True},
        {"precision": "fp8-blockwise", "fp8_attention": True},
        {"precision": "fp8-tensorwise", "fp8_output": True},
        {"precision": "fp8-tensorwise", "bf16_layers": [1]},
    ],
)
def test_numbers_that_do_not_go_together(fields):
    with pytest.raises(SpecError) as caught:
        best(overrides=[(f"training.{name}", value) for name, value in fields.items()])
    assert caught.value.problems


def test_an_unknown_word_is_refused():
    with pytest.raises(UsageError, match="grad_dtype"):
        best(pins={"grad_dtype": "fp8"})
