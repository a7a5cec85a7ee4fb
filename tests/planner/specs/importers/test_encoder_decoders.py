"""Configurations of encoder-decoders: what transformers' code of them computes with."""

import pytest

from costmodels.parameters import total_params
from costmodels.shapes import OperatorsShape
from planner.errors import EmitError, SpecError
from planner.frameworks.hf_config import hf_config
from planner.specs.importers.huggingface.families.encoders.encoder_decoders import TYPES
from planner.specs.loader import model_from_dict
from searches.frameworks.carried import able_frameworks

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
    with pytest.raises(SpecError) as caught:
        model_from_dict(document)
    assert caught.value.problems[0].hint == "allowed: kernel, scaled"


DEFAULTS = {
    "t5": 60_506_624,
    "mt5": 172_119_424,
    "umt5": 172_122_112,
    "bart": 406_291_456,
    "mvp": 406_293_504,
    "mbart": 406_295_552,
    "plbart": 139_220_736,
    "pegasus": 406_287_360,
    "marian": 414_307_328,
    "m2m_100": 483_905_536,
    "blenderbot": 2_696_268_800,
    "blenderbot-small": 85_113_344,
    "whisper": 37_760_640,
}
"""Parameters of each class with its own defaults, as transformers 5.23 builds it."""


@pytest.mark.parametrize("name", TYPES)
def test_parameters_of_every_class(name):
    given = model_from_dict({"model_type": name})
    counted = total_params(given.shape, given.job.seq_len)
    assert counted == pytest.approx(DEFAULTS[name], rel=2e-4)


GEMMA_9B = {
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_hidden_layers": 42,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
}
SMALL = {
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
}


@pytest.mark.parametrize(
    ("sides", "tied", "counted"),
    [
        ({}, True, 5_596_853_760),
        ({"encoder": GEMMA_9B}, False, 12_882_199_296),
        ({"encoder": GEMMA_9B, "decoder": SMALL}, True, 10_343_612_544),
        ({"encoder": GEMMA_9B, "decoder": GEMMA_9B}, True, 20_333_401_088),
    ],
)
def test_parameters_of_t5gemma(sides, tied, counted):
    """As transformers builds T5GemmaForConditionalGeneration on the meta device."""
    given = model_from_dict({"model_type": "t5gemma", "tie_word_embeddings": tied, **sides})
    assert total_params(given.shape, given.job.seq_len) == pytest.approx(counted, rel=1e-4)
    assert given.shape.cross.width == given.shape.encoder.hidden
    assert given.shape.encoder.seq_len == 4096


def test_a_size_of_t5gemma_that_is_no_number():
    with pytest.raises(SpecError, match="hidden_size: expected a whole number"):
        model_from_dict({"model_type": "t5gemma", "encoder": {"hidden_size": "wide"}})


DECODER = {
    "model_type": "modernbert-decoder",
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
}
LARGER = {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28}
WIDE = {"hidden_size": 1792, "intermediate_size": 3840, "num_attention_heads": 28}


@pytest.mark.parametrize(
    ("changed", "counted"),
    [
        ({}, 149_655_232),
        ({**LARGER, "num_attention_heads": 16}, 395_881_664),
        ({**WIDE, "tie_word_embeddings": False}, 920_618_688),
    ],
)
def test_parameters_of_modernbert_as_a_decoder(changed, counted):
    """As transformers builds ModernBertDecoderForCausalLM on the meta device."""
    given = model_from_dict({**DECODER, **changed})
    assert total_params(given.shape, 8192) == pytest.approx(counted, rel=5e-4)
    assert set(given.shape.kinds) == {"dense", "window+dense"}
    assert given.shape.window.size == 64


def test_a_layer_before_the_head_of_a_decoder_is_no_part_of_most_files():
    given = model_from_dict(DECODER)
    assert set(able_frameworks(given.shape)) == {"deepspeed", "fsdp2"}
    with pytest.raises(EmitError, match="a layer before the head"):
        hf_config(given.shape, given.job, given.details)
