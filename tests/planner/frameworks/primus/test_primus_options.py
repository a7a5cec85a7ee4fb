"""The table of keys, and what is odd in settings."""

import pytest
import yaml

from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.emitted_text import NAMES, TEXTS, WORDS, yaml_scalar
from planner.frameworks.primus.options import known_keys, odd_values, option_table, presets
from planner.frameworks.primus.settings import plan_settings
from tests.planner.frameworks.random_plans import random_plans
from tests.repeats import slow


def test_the_table_is_of_named_commits_and_has_both_kinds_of_keys() -> None:
    where, options = option_table()
    assert (len(where["commit"]), len(where["core_commit"])) == (40, 40)
    assert options["tensor_model_parallel_size"].flags == ("--tensor-model-parallel-size",)
    assert (options["use_turbo_deepep"].flags, options["use_turbo_deepep"].kind) == ((), "bool")
    assert options["optimizer"].choices == ("adam", "sgd", "muon", "dist_muon")
    assert presets()["sequence_parallel"] is True
    assert options["sequence_parallel"].default is False
    assert "data_parallel_replicate_degree" in known_keys()


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"tensor_model_parallel_size": 2, "lr": None, "lr_decay_style": "cosine"}, ""),
        ({"tensor_parallel_size": 2}, "no key of Primus"),
        ({"tensor_model_parallel_size": "two"}, "no int"),
        ({"tensor_model_parallel_size": True}, "where int is due"),
        ({"optimizer": "lion"}, "not one of adam"),
        ({"use_turbo_attention": "yes"}, "no bool"),
        ({"recompute_modules": ["mlp", "moe"]}, ""),
    ],
)
def test_what_is_odd_is_told(settings: dict[str, object], fault: str) -> None:
    found = odd_values(settings)
    if fault in ("", "no bool"):
        assert bool(found) == bool(fault)
    else:
        assert len(found) == 1
        assert fault in found[0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1e-05, "0.00001"),
        (0.1, "0.1"),
        ("no", '"no"'),
        (["mlp", "moe"], '["mlp", "moe"]'),
        (3, "3"),
    ],
)
def test_values_are_read_as_they_are_written(value: object, text: str) -> None:
    assert yaml_scalar(value) == text
    assert yaml.safe_load(text) == value
    assert type(yaml.safe_load(text)) is type(value)


@pytest.mark.parametrize(
    ("value", "bare", "text"),
    [
        ("cosine", WORDS, "cosine"),
        ("bf16", WORDS, '"bf16"'),
        ("torch.optim.AdamW", NAMES, "torch.optim.AdamW"),
        ("12", NAMES, '"12"'),
        ("1.5", TEXTS, '"1.5"'),
        ("on", TEXTS, '"on"'),
        ("y", WORDS, '"y"'),
        ("a: b", TEXTS, '"a: b"'),
        ("# none", TEXTS, '"# none"'),
        ("", TEXTS, '""'),
        ("base.yml", TEXTS, "base.yml"),
    ],
)
def test_texts_are_bare_where_a_reader_takes_them_for_texts(
    value: str, bare: str, text: str
) -> None:
    assert yaml_scalar(value, bare) == text
    assert yaml.safe_load(text) == value


def counts() -> tuple[object, ...]:
    return (
        pytest.param(6, id="few"),
        slow(30, id="more"),
        pytest.param(1000, id="thousand", marks=pytest.mark.fit),
    )


@pytest.mark.parametrize("n", counts())
def test_random_plans_hold_no_key_or_value_that_primus_has_not(n: int) -> None:
    theirs = presets()
    for plan in random_plans("primus", n):
        request = EmitRequest(
            plan.layout, plan.model.shape, plan.model.job, plan.cluster.cluster.pools[0]
        )
        files = emit_plan("primus", request)
        module = yaml.safe_load(files["primus.yaml"])["modules"]["pre_trainer"]
        written = module["overrides"]
        assert odd_values(written) == [], plan.text
        said = plan_settings(plan.layout, plan.model.shape, plan.model.job)
        assert written == {k: v for group in said.values() for k, v in group.items()}
        merged = {**theirs, **written}
        x = plan.layout
        assert merged["tensor_model_parallel_size"] == x.tp
        assert merged["pipeline_model_parallel_size"] == x.pp
        assert merged["context_parallel_size"] == x.cp
        assert merged["expert_model_parallel_size"] == x.ep
        assert merged["sequence_parallel"] == (x.sp and x.tp > 1), plan.text
        assert (merged["micro_batch_size"], merged["global_batch_size"]) == (x.mbs, x.gbs)
        deepep = x.value("dispatcher") == "deepep" and x.ep * x.etp > 1
        assert merged["use_turbo_deepep"] == (deepep and plan.model.shape.n_experts > 0)
