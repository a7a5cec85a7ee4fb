"""Options that stand for a field of the job, and sections that they make."""

import pytest

from planner.cli.command_arguments import EvaluateArguments, JobArguments, SolveArguments
from planner.specs.yaml.document import parse_yaml, set_path
from tests.planner.command import run_here

SHORT = {
    "task": ("lora", "training.task"),
    "rank": ("8", "training.lora.rank"),
    "seq": ("4096", "training.seq_len"),
    "batch": ("64", "training.global_batch"),
    "tokens": ("15T", "training.tokens"),
    "precision": ("fp8", "training.precision"),
}


@pytest.mark.parametrize("arguments", [SolveArguments, EvaluateArguments])
def test_each_is_a_field_that_set_changes(arguments):
    named = arguments(job=JobArguments(**{name: value for name, (value, _) in SHORT.items()}))
    assert named.request().overrides == tuple((path, value) for value, path in SHORT.values())
    assert arguments().request().overrides == ()


def test_they_come_behind_the_fields_that_are_set():
    named = SolveArguments(set_=["training.lora.targets=q,v"], job=JobArguments(task="lora"))
    assert [path for path, _ in named.request().overrides] == [
        "training.lora.targets",
        "training.task",
    ]


def test_sections_of_the_job_are_made_where_a_file_has_none():
    document = parse_yaml("training: {seq_len: 8}")
    changed = set_path(document, "training.data.lengths.mean", "800")
    assert changed.data == {"training": {"seq_len": 8, "data": {"lengths": {"mean": 800}}}}
    assert document.data == {"training": {"seq_len": 8}}


def test_a_job_in_short():
    words = ("--task", "qlora", "--rank", "8", "--seq", "2048", "--batch", "8", "--no-cache")
    found = run_here("solve", "llama3-8b", "1x4090", *words)
    assert found.returncode == 0
    assert "sequences of 2,048 tokens, batch 8," in found.stdout
    assert "as hf-fsdp2 runs it" in " ".join(found.stdout.split())


@pytest.mark.slow
def test_a_framework_without_adapters_is_refused_with_the_reason():
    words = ("--task", "qlora", "--seq", "2048", "--batch", "8", "--no-cache")
    refused = run_here("solve", "llama3-8b", "1x4090", *words, "--framework", "torchtitan")
    assert "has no LoRA" in " ".join(refused.stdout.split())


def test_the_utilization_says_what_it_counts():
    words = ("--task", "lora", "--batch", "16", "--no-cache", "-v")
    found = run_here("solve", "llama3-8b", "h100-x8", *words)
    assert "MFU: 4 FLOPs a frozen weight" in found.stdout
