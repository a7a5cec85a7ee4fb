"""Tasks that compare answers: what a file says of the reference, and how it is kept."""

from typing import Any

import pytest

from costmodels.shapes import TrainingJob
from planner.specs.loader import model_from_dict
from planner.specs.model import training_document
from planner.specs.sections.tuning import searched_section

SIZES: dict[str, Any] = {
    "gated": True,
    "tied": False,
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "ffn": 128,
    "vocab": 512,
}


def job(**fields: Any) -> TrainingJob:
    training = {"seq_len": 128, "global_batch": 8, **fields}
    return model_from_dict({"model": {"name": "tiny", **SIZES}, "training": training}).job


@pytest.mark.parametrize(
    ("fields", "is_beside", "is_before"),
    [
        ({"task": "dpo"}, True, False),
        ({"task": "dpo", "reference": "precomputed"}, False, True),
        ({"task": "dpo", "reference": "none"}, False, False),
        ({"task": "lora", "reference": "memory"}, True, False),
        ({"task": "qlora", "reference": "precomputed"}, False, True),
    ],
)
def test_reference_is_kept_in_the_document(
    fields: dict[str, str], is_beside: bool, is_before: bool
) -> None:
    read = job(**fields)
    assert (read.has_reference, read.has_precomputed_reference) == (is_beside, is_before)
    assert read.compares_answers
    document = training_document(read)
    assert document["reference"] == fields.get("reference", "memory")
    again = {name: document[name] for name in ("task", "reference")}
    assert job(**again, lora=document.get("lora", {})) == read


def test_jobs_without_pairs_say_nothing_of_a_reference() -> None:
    for task in ("pretrain", "sft", "lora"):
        assert not job(task=task).compares_answers
        assert "reference" not in training_document(job(task=task))


def test_pairs_are_searched_where_a_loss_compares() -> None:
    section = searched_section(None, job(task="lora", reference="precomputed"))
    assert section is not None
    assert section.framework == "fsdp2"
    plain = searched_section(None, job(task="lora"))
    assert plain is not None
    assert plain.framework == "bridge"
