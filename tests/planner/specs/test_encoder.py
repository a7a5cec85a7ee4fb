"""The `model.encoder:` section, and what contradicts in it."""

import pytest

from planner.errors import SpecError
from planner.specs.loader import load_model, model_from_dict

JOB = {"seq_len": 114, "global_batch": 256}
KINDS = [{"kind": "encoder+dense", "count": 2}, {"kind": "causal-cross+dense", "count": 2}]


def model(**changed):
    sizes = {"layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "gated": False, "vocab": 32128}
    sizes |= {"tied": True, "kv_heads": 16, "layer_kinds": KINDS, "encoder": {"seq_len": 512}}
    return {"model": {**sizes, **changed}, "training": JOB}


def test_the_encoder_says_what_is_attended_to():
    shape = model_from_dict(model()).shape
    assert (shape.cross.tokens, shape.cross.width) == (512, 1024)
    narrow = model_from_dict(model(encoder={"seq_len": 512, "hidden": 768, "heads": 12})).shape
    assert (narrow.cross.width, narrow.encoder.head_dim) == (768, 64)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"encoder": None}, "need an `encoder` section"),
        ({"layer_kinds": KINDS[::-1]}, "stands behind one of the decoder"),
        (
            {"layer_kinds": [KINDS[0], {"kind": "dense", "count": 2}]},
            "attends to what the encoder",
        ),
        ({"layer_kinds": [{"kind": "causal-cross+dense", "count": 4}]}, "no layer is one of"),
        ({"encoder": {"seq_len": 512, "heads": 12, "kv_heads": 5}}, "cannot be shared out"),
        ({"encoder": {"seq_len": 512, "hidden": 1000, "heads": 12}}, "no multiple|not a multiple"),
        ({"cross": {"tokens": 100, "width": 1024}}, "not what the encoder returns"),
        ({"encoder": {"seq_len": 0}}, "seq_len"),
    ],
)
def test_contradictions(changed, words):
    with pytest.raises(SpecError, match=words):
        model_from_dict(model(**changed))


def test_sizes_of_whisper(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "decoder_layers": 32,'
        ' "encoder_attention_heads": 20, "decoder_attention_heads": 20, "encoder_ffn_dim": 5120,'
        ' "decoder_ffn_dim": 5120, "vocab_size": 51866, "num_mel_bins": 128,'
        ' "max_source_positions": 1500, "max_target_positions": 448}'
    )
    found = load_model(str(tmp_path / "config.json"))
    assert found.shape.kind_counts == (32, 32)
    assert (found.shape.encoder.seq_len, found.shape.encoder.conv_channels) == (1500, 128)
    assert found.job.seq_len == 448
