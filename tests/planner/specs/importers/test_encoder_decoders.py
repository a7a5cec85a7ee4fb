"""Configurations of encoder-decoders: what transformers' code of them computes with."""

import pytest

from costmodels.shapes import OperatorsShape
from planner.errors import SpecError
from planner.specs.loader import model_from_dict

BART = {
    "d_model": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
}
WHISPER = {**BART, "num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 448}


@pytest.mark.parametrize(
    ("data", "operators", "drops"),
    [
        (
            {"model_type": "t5"},
            OperatorsShape(
                activation="relu",
                norm="scaled",
                scores="16-bit",
                activation_dropout=True,
                attention_dropout=True,
            ),
            True,
        ),
        (
            {"model_type": "t5", "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0},
            OperatorsShape(activation="gelu_new", norm="scaled", scores="16-bit"),
            False,
        ),
        (
            {"model_type": "umt5", "feed_forward_proj": "gated-silu", "dropout_rate": 0.0},
            OperatorsShape(norm="scaled", scores="16-bit", layer_positions=True),
            False,
        ),
        ({**BART, "model_type": "bart"}, OperatorsShape(norm="kernel", scores="16-bit"), True),
        (
            {**BART, "model_type": "m2m_100"},
            OperatorsShape(
                activation="relu", norm="kernel", scores="16-bit", attention_dropout=True
            ),
            True,
        ),
        (
            {**WHISPER, "model_type": "whisper"},
            OperatorsShape(norm="kernel", scores="16-bit", copies_output=True),
            False,
        ),
    ],
)
def test_operators_of_each_family(data, operators, drops):
    shape = model_from_dict(data).shape
    assert (shape.operators, shape.dropout) == (operators, drops)


def test_a_model_file_states_operators_and_is_read_back():
    given = model_from_dict({**WHISPER, "model_type": "whisper"})
    again = model_from_dict(given.document)
    assert again.shape == given.shape
    assert again.document == given.document


def test_an_operator_that_there_is_none_of():
    document = model_from_dict({"model_type": "t5"}).document
    document["model"]["operators"] = {"norm": "layernorm"}
    with pytest.raises(SpecError, match="kernel"):
        model_from_dict(document)
