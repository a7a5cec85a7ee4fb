"""Vision towers in model files: read, refused where they contradict, searched, opened."""

from typing import Any

import pytest

import planner
from planner.analyze.terms import NUMBERS
from planner.errors import PlannerError, SpecError
from planner.frameworks.emit import why_not
from planner.render.plan_view.opened.time import FORMULAS, opened_parts
from planner.solver.problem import make_problem
from planner.solver.request import SolveRequest
from planner.specs.loader import load_cluster, model_from_dict
from searches.frameworks.registry import framework_names

VISION: dict[str, Any] = {
    "layers": 32,
    "hidden": 1280,
    "heads": 16,
    "ffn": 3420,
    "gated": True,
    "norm": "rmsnorm",
    "patch": 14,
    "frames": 2,
    "patches": 16384,
    "merge": 4,
    "projector": [5120],
    "block": 64,
    "full_every": 8,
}
MODEL: dict[str, Any] = {
    "layers": 28,
    "hidden": 3584,
    "heads": 28,
    "kv_heads": 4,
    "ffn": 18944,
    "gated": True,
    "vocab": 152064,
    "tied": False,
    "vision": VISION,
}
"""Qwen2.5-VL-7B."""
JOB = {"seq_len": 8192, "global_batch": 256}
PINS = {"tp": 1, "pp": 4, "vpp": 1, "mbs": 1, "zero": 1, "schedule": "1f1b", "recompute": "none"}


def document(**changes: Any) -> dict[str, Any]:
    return {"model": {**MODEL, "vision": {**VISION, **changes}}, "training": JOB}


def plan_of(doc: dict[str, Any], **pins: Any) -> Any:
    chosen = {k: v for k, v in {**PINS, **pins}.items() if v is not None}
    return planner.evaluate(doc, "h100-x8", pins=chosen, framework="any").plans[0]


TEXT = {"model": {k: v for k, v in MODEL.items() if k != "vision"}, "training": JOB}


def test_a_tower_is_the_same_document_when_read_again():
    model = model_from_dict(document())
    assert model.document["model"]["vision"]["projector"] == [5120]
    assert model_from_dict({"model": model.document["model"], "training": JOB}).shape == (
        model.shape
    )
    assert "vision" not in model_from_dict(TEXT).document["model"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"heads": 12}, "heads"),
        ({"merge": 3}, "merge"),
        ({"images": 3}, "images"),
        ({"block": 20000}, "block"),
        ({"block": 0}, "full_every"),
        ({"recompute": True, "trained": "projector"}, "recompute"),
        ({"trained": "tower"}, "trained"),
        ({"colour": 3}, "colour"),
    ],
)
def test_sizes_that_contradict_are_named(changes, key):
    with pytest.raises(SpecError) as caught:
        model_from_dict(document(**changes))
    assert {x.path for x in caught.value.problems} == {f"model.vision.{key}"}


def test_the_first_stage_makes_room_for_the_tower():
    text, both = plan_of(TEXT), plan_of(document())
    assert sum(both.layout.stage_layers) == sum(text.layout.stage_layers) == 28
    assert both.layout.stage_layers[0] < text.layout.stage_layers[0]
    found = both.breakdown
    assert sum(found.time_s.values()) == pytest.approx(found.step_s, rel=1e-12)
    assert found.closed_form_step_s == pytest.approx(found.step_s, rel=0.01)
    assert "tower" in found.time_s
    assert "tower" not in text.breakdown.time_s


def test_a_frozen_tower_is_quicker_and_smaller_on_the_first_stage():
    split = {"split": "even"}
    plans = {x: plan_of(document(trained=x), **split) for x in ("all", "projector", "none")}
    first = [sum(x.breakdown.stages[0].values()) for x in plans.values()]
    assert first[0] > first[1] > first[2]
    steps = [x.breakdown.step_s for x in plans.values()]
    assert steps[0] >= steps[1] >= steps[2]
    states = [x.breakdown.stages[0]["states"] for x in plans.values()]
    # tp 1, dp 2: 6 + 12 / 2 bytes a trained weight, 2 a frozen one.
    tower, projector = 676_550_144, 5120 * 5120 + 5120 * 3584 + 5120 + 3584
    assert states[1] - states[2] == pytest.approx((12 - 2) * projector, rel=1e-9)
    assert states[0] - states[1] == pytest.approx((12 - 2) * (tower - projector), rel=1e-3)
    assert [x["states"] for x in plans["all"].breakdown.stages[1:]] == [
        x["states"] for x in plans["none"].breakdown.stages[1:]
    ]


def test_it_is_opened_and_refused_by_name_where_files_cannot_say_it():
    doc = document()
    plan, model = plan_of(doc, pp=1, schedule=None), model_from_dict(doc)
    problem = make_problem(model, load_cluster("h100-x8"), SolveRequest.of().options())
    rows = dict(NUMBERS["tower"](problem, plan))
    assert rows["patches, tokens of a sequence"] == "16384, 4096 of 8192"
    assert rows["layers x patches that see one another"] == "4 x 16384, 28 x 64"
    assert rows["widths of the projector"] == "5120 -> 5120 -> 3584"
    opened = str(FORMULAS["tower"](opened_parts(problem, plan.breakdown)))
    m, both = plan.layout.n_micro, plan.breakdown.rows.layers.tower.total
    assert opened.startswith(f"{m} × ")
    assert m * both.total_s.item() == pytest.approx(plan.breakdown.time_s["tower"], rel=1e-12)
    of_transformers = {"deepspeed", "fsdp2"}
    for name in set(framework_names()) - of_transformers:
        reason = why_not(name, plan.layout, model.shape, model.job)
        assert "vision tower" in (reason or "")
    assert set(plan.runs_on) <= of_transformers


def test_tensor_parallelism_divides_its_heads_and_inner_width():
    with pytest.raises(PlannerError, match="TP006"):
        plan_of(document(heads=10), tp=4, pp=1, schedule=None)
    with pytest.raises(PlannerError, match="TP006"):
        plan_of(document(ffn=3422), tp=4, pp=1, schedule=None)
