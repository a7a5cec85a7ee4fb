"""`task`, `lora` and `data` of a job: what is read, what is refused, what is written back."""

import pytest

from costmodels.tuning.records import TuningJob
from planner.errors import SearchError, SpecError
from planner.solver.solve import evaluate
from planner.specs.loader import model_from_dict
from planner.specs.model import training_document

MODEL = {
    "layers": 4,
    "hidden": 1024,
    "heads": 16,
    "kv_heads": 4,
    "ffn": 2816,
    "gated": True,
    "vocab": 32000,
    "tied": False,
}
JOB = {"seq_len": 4096, "global_batch": 16}


def read(model: dict[str, object] | None = None, **training: object):
    return model_from_dict({"model": MODEL | (model or {}), "training": JOB | training})


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({}, None),
        ({"task": "sft"}, None),
        (
            {"task": "lora"},
            TuningJob(16, ("q", "k", "v", "o", "gate", "up", "down"), 32.0),
        ),
        (
            {"task": "qlora", "lora": {"rank": 8, "targets": "q_proj, v_proj", "dropout": 0.05}},
            TuningJob(8, ("q", "v"), 16.0, 0.05, "nf4"),
        ),
        (
            {"task": "lora", "lora": {"targets": ["linear_qkv"], "alpha": 4, "base": "int8"}},
            TuningJob(16, ("qkv",), 4.0, 0.0, "int8"),
        ),
    ],
)
def test_adapters_are_read_and_written_back(training, expected):
    job = read(**training).job
    assert job.tuning == expected
    assert job.task == training.get("task", "pretrain")
    again = read(
        **{k: v for k, v in training_document(job).items() if k not in JOB | {"tokens": 0}}
    )
    assert again.job == job


def test_pretraining_documents_say_nothing_of_it():
    assert not {"task", "tuning", "lora", "data"} & training_document(read().job).keys()


@pytest.mark.parametrize(
    ("model", "training", "place", "words"),
    [
        ({}, {"lora": {"rank": 8}}, "training.lora", "no adapters"),
        ({}, {"task": "lora", "lora": {"targets": ["qq"]}}, "training.lora.targets", "qq"),
        ({}, {"task": "lora", "lora": {"targets": ["experts"]}}, "lora.targets", "experts"),
        ({}, {"task": "lora", "lora": {"targets": "q,linear_qkv"}}, "lora.targets", "holds q"),
        ({}, {"task": "qlora", "lora": {"base": "bf16"}}, "training.lora.base", "not quantized"),
        ({}, {"task": "dreambooth"}, "training.task", "unknown value"),
        ({}, {"data": {"lengths": {"mean": 800}}}, "training.data.lengths", "neither"),
        (
            {},
            {"data": {"lengths": {"mean": 800, "p95": 9000}}},
            "training.data.lengths.p95",
            "no log-normal",
        ),
        (
            {"flash_attention": False},
            {"data": {"lengths": {"mean": 800, "p95": 900}}},
            "training.data.packing",
            "flash",
        ),
        (
            {},
            {"data": {"lengths": {"histogram": [[512, 0]]}}},
            "training.data.lengths.histogram",
            "out of range",
        ),
    ],
)
def test_what_does_not_go_together_is_one_fault(model, training, place, words):
    with pytest.raises(SpecError) as error:
        read(model, **training)
    (problem,) = error.value.problems
    assert problem.path.endswith(place)
    assert words in problem.message
    assert problem.hint


def test_lengths_make_the_keys_and_the_fill():
    data = {"lengths": {"histogram": [[1024, 1], [3072, 1]]}}
    found = read(data=data).job.data
    assert (found.mean_tokens, found.fill_frac) == (2048.0, 1.0)
    assert found.run_keys == (1024**2 + 3072**2) / 2 / (2 * 2048)
    plain = read(data=data | {"packing": "none"})
    assert (plain.job.data.run_keys, plain.job.data.fill_frac) == (0.0, 0.5)
    assert any("50.0%" in note for note in plain.notes)
    assert plain.document["training"]["data"]["packing"] == "none"


def test_a_search_is_for_a_framework_that_trains_the_adapters():
    assert read().search is None
    assert read(task="lora").search.framework == "bridge"
    assert read(task="qlora").search.framework == "fsdp2"


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"task": "lora", "optimizer": "muon"}, "muon"),
        ({"task": "qlora", "precision": "fp8-tensorwise"}, "nf4"),
    ],
)
def test_what_is_not_priced_is_refused_by_name(training, words):
    document = {"model": MODEL, "training": JOB | training}
    with pytest.raises(SearchError, match=words):
        evaluate(document, "8xh100", pins={"devices": 8}, framework="any")
