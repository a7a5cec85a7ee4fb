"""Configurations of encoders, against the classes of transformers."""

from typing import Any

import pytest

from costmodels.parameters import total_params
from costmodels.shapes import OperatorsShape
from planner.errors import SpecError
from planner.specs.loader import model_from_dict

MODERN: dict[str, Any] = {
    "model_type": "modernbert",
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "vocab_size": 50368,
    "max_position_embeddings": 8192,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "hidden_dropout_prob": 0.1,
}
LARGE = {
    **MODERN,
    "hidden_size": 1024,
    "intermediate_size": 2624,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
}
ROBERTA = {
    **BERT,
    "model_type": "roberta",
    "vocab_size": 50265,
    "max_position_embeddings": 512,
}

MEGATRON = {
    **BERT,
    "model_type": "megatron-bert",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "vocab_size": 29056,
}
ESM = {
    **BERT,
    "model_type": "esm",
    "hidden_size": 640,
    "intermediate_size": 2560,
    "num_hidden_layers": 30,
    "num_attention_heads": 20,
    "vocab_size": 33,
    "max_position_embeddings": 1026,
    "position_embedding_type": "rotary",
    "emb_layer_norm_before": False,
}
DISTILBERT: dict[str, Any] = {
    "model_type": "distilbert",
    "dim": 768,
    "hidden_dim": 3072,
    "n_layers": 6,
    "n_heads": 12,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "dropout": 0.1,
    "sinusoidal_pos_embds": False,
}
EURO: dict[str, Any] = {
    "model_type": "eurobert",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("config", "counted"),
    [
        # Models for masked tokens of transformers 5.23 on the meta device.
        (MODERN, 149_655_232),
        (LARGE, 395_881_664),
        (BERT, 109_514_298),
        (ROBERTA, 124_696_665),
        ({**BERT, "model_type": "electra", "embedding_size": 768}, 109_514_298),
        ({**BERT, "model_type": "ernie", "task_type_vocab_size": 3}, 109_514_298),
        ({**ROBERTA, "model_type": "roberta-prelayernorm"}, 124_698_201),
        ({**BERT, "model_type": "mpnet", "vocab_size": 30527}, 109_516_991),
        (MEGATRON, 333_671_808),
        (ESM, 148_140_154),
        (DISTILBERT, 66_985_530),
        (EURO, 310_266_624),
    ],
)
def test_parameters_are_those_of_the_class(config, counted):
    assert total_params(model_from_dict(config).shape, 512) == pytest.approx(counted, rel=1e-3)


def test_norms_and_positions_are_those_of_the_type():
    assert model_from_dict(BERT).details.stated() == {"post_norms": "instead"}
    assert not model_from_dict(MEGATRON).details.stated()
    assert model_from_dict(ESM).shape.positions == "rope"
    learned = model_from_dict({**ESM, "position_embedding_type": "absolute"}).shape
    assert learned.positions == "learned"
    assert model_from_dict(DISTILBERT).shape.layers == 6
    assert model_from_dict(EURO).shape.kinds == ("bidirectional+dense",)


def test_layers_of_modernbert_alternate():
    shape = model_from_dict(MODERN).shape
    assert shape.window is not None
    assert shape.window.size == 129
    assert shape.kinds == ("bidirectional+dense", "bidirectional-window+dense")
    assert shape.layer_sequence == tuple(int(i % 3 > 0) for i in range(22))
    words = ["full_attention" if i % 2 else "sliding_attention" for i in range(22)]
    listed = model_from_dict({**MODERN, "layer_types": words}).shape
    assert listed.kind_counts == (11, 11)
    whole = model_from_dict({**MODERN, "global_attn_every_n_layers": 1}).shape
    assert whole.window is None


def test_sequences_are_as_long_as_positions_are_learned():
    assert model_from_dict(MODERN).job.seq_len == 8192
    assert model_from_dict(BERT).job.seq_len == 512
    longer = model_from_dict({**ROBERTA, "max_position_embeddings": 514})
    assert longer.job.seq_len == 512
    assert model_from_dict(BERT, [("training.seq_len", "128")]).job.seq_len == 128


@pytest.mark.parametrize(
    "changes",
    [
        {"is_decoder": True},
        {"position_embedding_type": "relative_key"},
        {"model_type": "electra", "embedding_size": 128},
        {"model_type": "esm", "emb_layer_norm_before": True},
        {"num_hidden_layers": "12"},
        {"vocab_size": None},
        {"model_type": "modernbert", "layer_types": ["full_attention"]},
        {"model_type": "modernbert", "norm_bias": True},
    ],
)
def test_what_is_not_priced_is_named(changes):
    with pytest.raises(SpecError) as caught:
        model_from_dict({**BERT, **changes})
    key = list(changes)[-1]
    assert key in str(caught.value.problems[0])


@pytest.mark.parametrize(
    ("data", "operators"),
    [
        (BERT, OperatorsShape(norm="kernel", scores="16-bit", attention_dropout=True)),
        (MODERN, OperatorsShape(norm="kernel", scores="16-bit", joint_qkv=True)),
        (
            {**BERT, "hidden_act": "relu", "attention_probs_dropout_prob": 0.0},
            OperatorsShape(activation="relu", norm="kernel", scores="16-bit"),
        ),
        ({**MODERN, "model_type": "eurobert"}, None),
    ],
)
def test_what_transformers_computes_encoders_with(data, operators):
    assert model_from_dict(data).shape.operators == operators
