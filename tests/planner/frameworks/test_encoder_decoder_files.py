"""Files of encoder-decoders: config.json, launchers, and the program on rows of two sequences."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.errors import EmitError
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.hf_config import hf_config
from tests.planner.emitting import HEADER, layout, pool
from tests.planner.frameworks.test_hf_kinds import model
from tests.planner.frameworks.test_training_programs import losses, started
from tools.smoke.kinds import MODELS

WIDE_T5 = {"encoder": {"seq_len": 512, "ffn": 256}}


def written(name: str, **more: Any) -> dict[str, object]:
    one = model(name, **more)
    return hf_config(one.shape, one.job, one.details)


@pytest.mark.parametrize(
    ("name", "more", "part"),
    [
        ("t5", WIDE_T5, "an encoder of other sizes"),
        ("t5", {"tied": False}, "a head of its own"),
        ("t5", {"bias": True}, "T5's class does not have biases"),
        ("t5", {"encoder": {"seq_len": 512, "vocab": 99}}, "an embedding of the encoder"),
        ("bart", {"gated": True}, "an MLP of three matrices"),
        ("bart", {"encoder": {"seq_len": 128, "positions": 99}}, "tables of two lengths"),
        ("whisper", {"details": {"post_norms": "instead"}}, "norms behind attention"),
        ("m2m-100", {"details": {"post_norms": "instead"}}, "norms behind attention"),
    ],
)
def test_what_a_class_does_not_have_is_named(name: str, more: dict, part: str) -> None:
    with pytest.raises(EmitError, match=part):
        written(name, **more)


@pytest.mark.parametrize(
    ("gated", "activation", "expected"),
    [
        (False, "relu", "relu"),
        (False, "", "gelu"),
        (False, "gelu_new", "gelu_new"),
        (True, "gelu_new", "gated-gelu"),
        (True, "relu", "gated-relu"),
        (True, "", "gated-silu"),
    ],
)
def test_activations_of_t5(gated: bool, activation: str, expected: str) -> None:
    found = written("t5", gated=gated, operators={"activation": activation})
    assert found["feed_forward_proj"] == expected


def test_tables_with_rows_that_no_position_has_are_bart() -> None:
    rows = {"seq_len": 128, "positions": 130}
    sizes = {"max_positions": 130, "encoder": rows}
    after = {"details": {"post_norms": "instead"}}
    found = [written("pegasus", **sizes, **more) for more in ({}, after)]
    assert [x["model_type"] for x in found] == ["mbart", "bart"]
    assert {x["max_position_embeddings"] for x in found} == {128}
    tight = {"max_positions": 128, "encoder": {"seq_len": 128, "positions": 128}}
    assert written("pegasus", **tight, **after)["model_type"] == "marian"


@pytest.mark.parametrize(
    ("name", "source", "attention"),
    [("t5", 512, "eager"), ("whisper", 96, "sdpa"), ("bart", 128, "sdpa")],
)
@pytest.mark.parametrize("framework", ["deepspeed", "fsdp2"])
def test_launchers_say_what_is_read(
    framework: str, name: str, source: int, attention: str
) -> None:
    one = model(name)
    zero = {"deepspeed": 2, "fsdp2": 3}[framework]
    plan = layout(one.shape, n_devices=2, gbs=8, zero=zero)
    request = EmitRequest(plan, one.shape, one.job, pool(), HEADER, details=one.details)
    files = emit_plan(framework, request)
    script = files[{"deepspeed": "deepspeed.sh", "fsdp2": "accelerate.sh"}[framework]]
    assert f"--source-length {source}" in script
    assert f"ATTENTION:-{attention}" in script
    assert "TRAIN_SCRIPT:?" not in script
    assert json.loads(files["model_config.json"])["model_type"] == name


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["deepspeed", "fsdp2"])
@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_rows_of_two_sequences_are_trained_on(framework: str, name: str, tmp_path: Path) -> None:
    one = model(name)
    zero = {"deepspeed": 2, "fsdp2": 3}[framework]
    plan = layout(one.shape, n_devices=2, gbs=8, zero=zero)
    request = EmitRequest(plan, one.shape, one.job, pool(), HEADER, details=one.details)
    for file, text in emit_plan(framework, request).items():
        (tmp_path / file).write_text(text)
    random = np.random.default_rng(0)
    rows = []
    for i in range(16):
        row: dict[str, object] = {"labels": random.integers(3, 4096, 20 + i).tolist()}
        if name == "whisper":
            row["input_features"] = random.normal(size=(80, 192)).round(2).tolist()
        else:
            row["input_ids"] = random.integers(3, 4096, 30 + i).tolist()
        rows.append(json.dumps(row))
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    words = ("--data", str(tmp_path / "rows.jsonl"), "--source-length", "64")
    found = losses(started(framework, tmp_path, *words, "--train-steps", "2"))
    assert sorted(found) == [1, 2]
    assert all(abs(loss - np.log(4096)) < 0.5 for loss in found.values())


def test_every_encoder_decoder_runs_in_a_smoke_case() -> None:
    two_sided = [name for name, sizes in MODELS.items() if "encoder" in sizes]
    assert two_sided == ["t5", "umt5", "bart", "pegasus", "m2m-100", "whisper"]
