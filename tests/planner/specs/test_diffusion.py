"""The `diffusion` section of model files: sequences, refusals, search, and what answers say."""

from typing import Any

import pytest

import planner
from costmodels.shapes import DiffusionShape
from costmodels.towers.latents import end_flops
from planner.errors import SpecError
from planner.render.answers.plan import sample_parts
from planner.render.plan_view.opened.time import opened_parts
from planner.render.plan_view.operators import operators
from planner.solver.problem import make_problem
from planner.solver.request import SolveRequest
from planner.specs.loader import load_cluster, model_from_dict

LATENTS: dict[str, Any] = {
    "height": 1024,
    "width": 1024,
    "text_tokens": 512,
    "text_width": 4096,
    "pooled_width": 768,
    "qk_norm": "head",
}
MODEL: dict[str, Any] = {
    "layers": 12,
    "hidden": 3072,
    "heads": 24,
    "ffn": 12288,
    "gated": False,
    "norm": "layernorm",
    "bias": True,
    "layer_kinds": [
        {"kind": "double-stream", "count": 4},
        {"kind": "single-stream", "count": 8},
    ],
}
CROSS = {"cross": True, "modulation": "table", "text_layers": 2}
ADALN = {"layer_kinds": [{"kind": "adaln", "count": 12}]}


def document(model: dict[str, Any] | None = None, **latents: Any) -> dict[str, Any]:
    sizes = {**MODEL, "diffusion": {**LATENTS, **latents}, **(model or {})}
    return {"model": sizes, "training": {"global_batch": 64}}


def test_the_length_of_a_sequence_is_filled_in():
    model = model_from_dict(document())
    assert model.job.seq_len == 64 * 64 + 512
    assert (model.shape.vocab, model.shape.tied) == (0, False)
    assert isinstance(model.shape.diffusion, DiffusionShape)


def test_the_canonical_document_says_the_same_model():
    first = model_from_dict(document(ADALN, **CROSS, frames=9, vae_frames=4))
    assert model_from_dict(first.document).shape == first.shape


@pytest.mark.parametrize(
    ("changes", "latents", "path"),
    [
        ({}, {"height": 1000}, "model.diffusion.height"),
        ({}, {"width": 24}, "model.diffusion.width"),
        ({}, {"frames": 8, "vae_frames": 4}, "model.diffusion.frames"),
        ({}, {"frames": 5, "vae_frames": 4, "patch_frames": 4}, "model.diffusion.frames"),
        ({}, {"text_tokens": 0}, "model.diffusion.text_tokens"),
        ({}, {"cross": True}, "model.diffusion.cross"),
        ({}, {"modulation": "table"}, "model.diffusion.modulation"),
        (ADALN, {"modulation": "shared"}, "model.diffusion.modulation"),
        (ADALN, {"cross_norm": True}, "model.diffusion.cross_norm"),
        ({"vocab": 32000}, {}, "model.vocab"),
        ({"tied": True}, {}, "model.tied"),
        ({"kv_heads": 8}, {}, "model.kv_heads"),
        ({"flash_attention": False}, {}, "model.flash_attention"),
        ({"dropout": True}, {}, "model.dropout"),
        ({"gated": True, "ffn": None}, {}, "model.ffn"),
        ({"positions": "learned"}, {}, "model.positions"),
        ({"layer_kinds": [{"kind": "dense", "count": 12}]}, {}, "model.layer_kinds"),
    ],
)
def test_contradictions_are_named(changes, latents, path):
    with pytest.raises(SpecError) as caught:
        model_from_dict(document(changes, **latents))
    assert path in [problem.path for problem in caught.value.problems]


def test_a_sequence_of_another_length_is_refused():
    given = document()
    given["training"]["seq_len"] = 4096
    with pytest.raises(SpecError) as caught:
        model_from_dict(given)
    (problem,) = caught.value.problems
    assert problem.path == "training.seq_len"
    assert "4608" in problem.message


def test_such_layers_need_the_section_and_others_a_vocabulary():
    bare = {key: value for key, value in MODEL.items() if key != "diffusion"}
    job = {"seq_len": 4608, "global_batch": 64}
    with pytest.raises(SpecError) as caught:
        model_from_dict({"model": {**bare, "vocab": 0, "tied": False}, "training": job})
    paths = [problem.path for problem in caught.value.problems]
    assert "model.vocab" in paths
    assert any("layer_kinds" in path for path in paths)


def test_a_search_finds_plans_that_cut_sequences_by_heads():
    result = planner.solve(
        document(),
        "h100-x8",
        framework="any",
        pins={"cp": 4, "mbs": 1},
        top=3,
    )
    assert {plan.layout.cp_comm for plan in result.plans} == {"a2a"}
    assert all(plan.layout.n_devices == 8 for plan in result.plans)


def test_stages_hold_what_their_layers_weigh():
    result = planner.solve(
        document(),
        "h100-x8",
        framework="any",
        pins={"pp": 2, "mbs": 1, "vpp": 1, "tp": 4, "schedule": "1f1b"},
    )
    plan = result.plans[0]
    ahead, behind = (stage["states"] for stage in plan.breakdown.stages)
    first, second = plan.layout.stage_layers
    # Of 3072^2 each: 24 and 12 of products and modulation of two streams, 12 and 3 of one; ends of
    # (4096 + 64 + 256 + 768) / 3072 and two more before them, 2 behind them.
    held = [36] * 4 + [15] * 8
    wanted = (sum(held[:first]) + 3.7) / (sum(held[first:]) + 2)
    assert first + second == 12
    assert ahead / behind == pytest.approx(wanted, rel=0.05)


def test_an_answer_says_what_is_computed_beforehand_and_counts_samples():
    result = planner.evaluate(
        document(), "h100-x8", pins={"zero": 3, "mbs": 1, "recompute": "full"}
    )
    assert sum("VAE" in note for note in result.notes) == 1
    plan = result.plans[0]
    (words,) = (line for part in sample_parts(plan) for line in [part.text])
    rate = float(words.split(": ")[1].split()[0])
    assert rate == pytest.approx(64 / plan.step_time_s, rel=1e-3)
    assert words.startswith("images of 1024 x 1024")


def test_ends_are_opened_as_operators_and_terms_sum_to_the_step():
    given = document()
    result = planner.evaluate(given, "h100-x8", pins={"zero": 3, "mbs": 2, "recompute": "full"})
    plan, model = result.plans[0], model_from_dict(given)
    found = plan.breakdown
    assert sum(found.time_s.values()) == pytest.approx(found.step_s, rel=1e-12)
    problem = make_problem(model, load_cluster("h100-x8"), SolveRequest.of().options())
    ends = [
        x
        for x in operators(opened_parts(problem, found))
        if x.name in ("tokens of latents and text", "latents of tokens")
    ]
    assert len(ends) == 4
    assert sum(x.flops for x in ends) == pytest.approx(2 * end_flops(model.shape), rel=1e-12)
    seconds = sum(x.time_s * x.n_calls for x in ends)
    terms = found.time_s["embedding"] + found.time_s["head"]
    assert seconds == pytest.approx(terms, rel=0.02)
