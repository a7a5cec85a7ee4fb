"""Encoders where no framework is named: one that has their layers, and a line that says so."""

import pytest

import planner
from planner.render.document import text_of

T5 = {
    "model_type": "t5",
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 2,
    "num_heads": 8,
    "vocab_size": 32128,
}
MODERN = {
    "model_type": "modernbert",
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "vocab_size": 50368,
    "max_position_embeddings": 512,
}
FEW = {"pins": {"tp": 1, "pp": 1, "mbs": 8}}


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        (T5, "encoder+dense, causal-cross+dense"),
        (MODERN, "bidirectional+dense, bidirectional-window+dense"),
    ],
)
def test_deepspeed_where_megatron_has_no_such_layers(model, kinds):
    result = planner.solve(model, "h100-x8", **FEW)
    options = result.inputs["options"]
    assert (options["framework"], options["stack"]) == ("deepspeed", "deepspeed")
    assert result.plans[0].runs_on == ("deepspeed",)
    note = f"framework deepspeed: Megatron-LM has no {kinds}; fsdp2 too"
    assert result.notes[0] == note
    assert note in " ".join(text_of(result).split())


def test_what_is_named_stays():
    named = planner.solve(T5, "h100-x8", framework="fsdp2", **FEW)
    assert named.inputs["options"]["framework"] == "fsdp2"
    stacked = planner.solve(T5, "h100-x8", stack="eager", **FEW)
    assert stacked.inputs["options"]["framework"] == "default"
    assert not any(note.startswith("framework ") for note in (*named.notes, *stacked.notes))


def test_decoders_are_asked_of_the_usual_frameworks():
    result = planner.solve("llama3-8b", "h100-x8", **FEW)
    assert result.inputs["options"]["framework"] == "default"
