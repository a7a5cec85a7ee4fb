"""Encoders in model files: what they are, what is refused, what a search finds."""

from typing import Any

import pytest

import planner
from costmodels.parameters import total_params
from planner.errors import SpecError
from planner.frameworks.emit import why_not
from planner.specs.loader import model_from_dict
from searches.frameworks.registry import framework_names

BASE: dict[str, Any] = {
    "hidden": 768,
    "heads": 12,
    "ffn": 1152,
    "gated": True,
    "vocab": 50368,
    "tied": True,
    "head_transform": True,
    "window": {"size": 129},
    "layer_kinds": [
        {
            "pattern": [
                "bidirectional+dense",
                "bidirectional-window+dense",
                "bidirectional-window+dense",
            ],
            "repeat": 7,
        },
        {"kind": "bidirectional+dense", "count": 1},
    ],
}
"""ModernBERT-base (arXiv 2412.13663): local_attention 128 is 64 tokens on each side."""
JOB = {"seq_len": 8192, "global_batch": 64}


def test_parameters_of_modernbert_are_those_of_its_class():
    model = model_from_dict({"model": BASE, "training": JOB})
    # transformers 5.23, ModernBertForMaskedLM(ModernBertConfig()) has 149,655,232: a bias of the
    # head (50,368) more; its first layer has no norm, its embedding has one.
    assert total_params(model.shape, 8192) + 50368 == 149_655_232


def test_an_encoder_is_the_same_document_when_read_again():
    model = model_from_dict({"model": BASE, "training": JOB})
    again = model_from_dict({"model": model.document["model"], "training": JOB})
    assert again.shape == model.shape
    assert model.document["model"]["head_transform"] is True
    plain = model_from_dict({"model": {**BASE, "head_transform": False}, "training": JOB})
    assert "head_transform" not in plain.document["model"]


def test_a_window_is_a_query_and_as_many_on_both_sides():
    with pytest.raises(SpecError) as caught:
        model_from_dict({"model": {**BASE, "window": {"size": 128}}, "training": JOB})
    (problem,) = caught.value.problems
    assert problem.path == "model.window.size"
    assert "129" in problem.hint


def evaluated(model: dict[str, Any]) -> Any:
    pins = {"tp": 1, "pp": 1, "zero": 1, "mbs": 1, "recompute": "none"}
    return planner.evaluate(
        {"model": model, "training": JOB}, "h100-x8", pins=pins, framework="any"
    ).plans[0]


def test_an_encoder_is_priced_and_refused_by_name_where_files_cannot_say_it():
    plan = evaluated(BASE)
    everywhere = [{"kind": "bidirectional+dense", "count": 22}]
    whole = evaluated(
        {k: v for k, v in BASE.items() if k != "window"} | {"layer_kinds": everywhere}
    )
    narrow = plan.breakdown.time_s["attention"]
    assert 0.0 < narrow < 0.6 * whole.breakdown.time_s["attention"]
    assert plan.breakdown.time_s["linear"] == pytest.approx(whole.breakdown.time_s["linear"])
    assert plan.runs_on == ("deepspeed",)
    shape, job = (getattr(model_from_dict({"model": BASE, "training": JOB}), x) for x in _PARTS)
    for name in set(framework_names()) - {"deepspeed", "fsdp2"}:
        assert "bidirectional+dense" in (why_not(name, plan.layout, shape, job) or "")


_PARTS = ("shape", "job")
