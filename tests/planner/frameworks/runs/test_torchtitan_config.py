from typing import Any

import pytest

from planner.errors import SpecError
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.torchtitan.flavors import flavors
from planner.frameworks.torchtitan.reader import read_toml, stage_counts
from planner.frameworks.torchtitan.recipe import looks_like_recipe, read_recipe
from planner.specs.loader import model_from_dict


def toml(n_devices: int | None = 64, model: str = "8B", **sections: dict[str, Any]) -> ExistingRun:
    import json

    lines = ["[model]", 'name = "llama3"', f'flavor = "{model}"']
    sections.setdefault("training", {"local_batch_size": 2, "seq_len": 8192, "steps": 100})
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
    return read_toml("\n".join(lines), "job.toml", RunQuery(n_devices=n_devices))


def parallel(n_devices: int | None = 64, **values: Any) -> dict[str, Any]:
    return dict(toml(n_devices, parallelism=values).layout)


def test_leftover_ranks_shard() -> None:
    found = parallel()
    assert (found["dp"], found["dp_shard"], found["zero"]) == (64, 64, 3)
    assert (found["gbs"], found["mbs"], found["n_micro"]) == (128, 2, 1)


def test_a_local_batch_of_nothing_is_read_for_the_rules_to_refuse() -> None:
    assert toml(training={"local_batch_size": 0}).layout["mbs"] == 1


def test_a_pipeline_that_accumulation_repeats_is_noted() -> None:
    training = {"local_batch_size": 4, "global_batch_size": 4 * 32 * 3}
    run = toml(training=training, parallelism={"pipeline_parallel_degree": 2})
    assert run.layout["n_micro"] == 12
    assert any("accumulated over 3 local batches" in note for note in run.notes)
    assert not toml(
        training=training | {"global_batch_size": 128}, parallelism={"pipeline_parallel_degree": 2}
    ).notes


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({"tensor_parallel_degree": 8}, {"tp": 8, "sp": True, "dp": 8, "zero": 3}),
        ({"tensor_parallel_degree": 8, "enable_sequence_parallel": False}, {"sp": False}),
        ({"data_parallel_replicate_degree": 4}, {"dp": 64, "dp_shard": 16, "zero": 3}),
        (
            {"data_parallel_replicate_degree": 64, "data_parallel_shard_degree": 1},
            {"dp": 64, "zero": 0},
        ),
        (
            {"context_parallel_degree": 4},
            {"cp": 4, "cp_comm": "all-gather", "dp": 16, "dp_shard": 64},
        ),
        (
            {"context_parallel_degree": 4, "context_parallel_rotate_method": "alltoall"},
            {"cp_comm": "p2p"},
        ),
        ({"fsdp_reshard_after_forward": "never"}, {"zero": 2}),
        ({"fsdp_reshard_after_forward": "always"}, {"zero": 3}),
        (
            {"pipeline_parallel_degree": 4},
            {
                "pp": 4,
                "zero": 1,
                "mbs": 1,
                "schedule": "1f1b",
                "n_micro": 2,
                "counts": (8, 9, 8, 7),
            },
        ),
        (
            {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "Interleaved1F1B"},
            {"vpp": 2, "schedule": "interleaved", "counts": (8, 9, 8, 7)},
        ),
        (
            {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "ZBVZeroBubble"},
            {"vpp": 2, "schedule": "zb-v"},
        ),
        (
            {
                "pipeline_parallel_degree": 2,
                "pipeline_parallel_layers_per_stage": 16,
                "pipeline_parallel_first_stage_less_layers": 0,
                "pipeline_parallel_last_stage_less_layers": 0,
            },
            {"vpp": 1, "counts": (16, 16), "split": "even"},
        ),
        (
            {
                "pipeline_parallel_degree": 2,
                "module_fqns_per_model_part": [
                    ["tok_embeddings", *(f"layers.{i}" for i in range(15))],
                    [*(f"layers.{i}" for i in range(15, 32)), "norm", "output"],
                ],
            },
            {"counts": (15, 17), "split": "15-17"},
        ),
    ],
)
def test_degrees(values: dict[str, Any], fields: dict[str, Any]) -> None:
    found = parallel(**values)
    assert {key: found.get(key) for key in fields} == fields


def test_stated_degrees_say_how_many_devices() -> None:
    run = toml(64, parallelism={"data_parallel_shard_degree": 8, "tensor_parallel_degree": 2})
    assert run.n_devices == 16
    assert run.layout["dp"] == 8
    assert toml(64).n_devices is None


def test_degrees_that_do_not_divide_leave_dp_open() -> None:
    assert "dp" not in parallel(64, tensor_parallel_degree=3)


@pytest.mark.parametrize(
    ("values", "kind", "layers"),
    [
        ({"mode": "none"}, "none", 0),
        ({"mode": "full"}, "full", 32),
        ({"mode": "selective", "selective_ac_option": "4"}, "full", 8),
        ({"mode": "selective", "selective_ac_option": "op"}, "full", 16),
        ({}, "full", 16),
        ({"mode": "memory_budget"}, "none", 0),
    ],
)
def test_recompute(values: dict[str, Any], kind: str, layers: int) -> None:
    found = toml(activation_checkpoint=values).layout
    assert (found["recompute"], found["recompute_layers"]) == (kind, layers)


def test_batch_and_job() -> None:
    run = toml(
        training={"local_batch_size": 2, "global_batch_size": 512, "seq_len": 4096, "steps": 10}
    )
    assert (run.layout["gbs"], run.layout["n_micro"]) == (512, 4)
    assert run.job == {
        "seq_len": 4096,
        "precision": "bf16",
        "global_batch": 512,
        "tokens": 10.0 * 512 * 4096,
    }


def test_compile_is_the_stack_s_and_async_tensor_parallel_the_layout_s() -> None:
    off = toml(parallelism={"tensor_parallel_degree": 8})
    assert off.stack == {}
    assert [s.change for s in off.switches] == [
        "set compile.enable = true (components model and loss)"
    ]
    on = toml(compile={"enable": True}, parallelism={"tensor_parallel_degree": 8})
    assert on.stack == {"compiled": True}
    assert on.switches == ()
    assert on.layout["tp_overlap"] is False
    cut = {"tensor_parallel_degree": 8, "enable_async_tensor_parallel": True}
    pieces = toml(compile={"enable": True}, parallelism=cut)
    assert pieces.layout["tp_overlap"] is True
    assert pieces.stack == on.stack
    both = toml(compile={"enable": True, "components": ["loss"]})
    assert both.stack == {}


def test_stages_as_torchtitan_cuts_them() -> None:
    assert stage_counts(8, 61) == (7, 8, 8, 8, 8, 8, 8, 6)
    assert stage_counts(16, 32, 0, 0) == (2,) * 16
    assert stage_counts(64, 32) == ()


def test_registered_models_load() -> None:
    for family, models in flavors().items():
        for flavor, section in models.items():
            job = {"seq_len": 128, "global_batch": 8}
            assert model_from_dict({"model": section, "training": job}), (family, flavor)


RECIPE = """
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

STEPS = 100


def llama3_8b() -> Trainer.Config:
    model_spec = model_registry("8B")
    return Trainer.Config(
        model_spec=model_spec,
        training=TrainingConfig(local_batch_size=1, seq_len=8192, steps=STEPS * 10),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        activation_checkpoint=SelectiveAC.Config(),
    )


def llama3_8b_long() -> Trainer.Config:
    config = llama3_8b()
    config.training.seq_len = 32768
    config.parallelism.context_parallel_degree = 4
    config.compile = CompileConfig(enable=True, components=["model"])
    config.activation_checkpoint = FullAC.Config()
    return config
"""


def test_recipes_are_read_by_their_syntax_tree() -> None:
    run = read_recipe(RECIPE, "r.py", RunQuery(n_devices=16), "llama3_8b")
    assert (run.layout["tp"], run.layout["dp"], run.layout["recompute_layers"]) == (2, 8, 16)
    assert run.job["seq_len"] == 8192
    assert run.settings["training.steps"] == 1000
    assert run.model is not None
    assert run.model.document["model"]["hidden"] == 4096


def test_recipes_that_change_another() -> None:
    run = read_recipe(RECIPE, "r.py", RunQuery(n_devices=16), "llama3_8b_long")
    assert (run.layout["cp"], run.layout["dp"], run.job["seq_len"]) == (4, 2, 32768)
    assert run.layout["recompute_layers"] == 32
    assert run.stack["compiled"] is True


def test_a_setting_goes_by_its_name_in_the_release() -> None:
    sets = [("compile.enable", "true"), ("compile.components", "[model, loss]")]
    run = read_recipe(RECIPE, "r.py", RunQuery(sets=sets, n_devices=16), "llama3_8b")
    assert run.layout["tp_overlap"] is False
    sets = [*sets, ("compile.enable_async_tensor_parallel", "true")]
    run = read_recipe(RECIPE, "r.py", RunQuery(sets=sets, n_devices=16), "llama3_8b")
    assert run.layout["tp_overlap"] is True


def test_several_recipes_are_asked_for_by_name() -> None:
    with pytest.raises(SpecError, match="2 recipes in one file") as caught:
        read_recipe(RECIPE, "r.py", RunQuery())
    assert "r.py#NAME with llama3_8b, llama3_8b_long" in str(caught.value)
    with pytest.raises(SpecError, match="no recipe 'x'"):
        read_recipe(RECIPE, "r.py", RunQuery(), "x")


def test_recipes_are_not_executed() -> None:
    text = RECIPE.replace("STEPS = 100", "STEPS = open('/nonexistent').read()")
    run = read_recipe(text, "r.py", RunQuery(n_devices=16), "llama3_8b")
    assert run.settings["training.steps"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", "not valid Python"),
        ("x = 1\n", "no function that returns Trainer.Config"),
    ],
)
def test_bad_recipes(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_recipe(text, "r.py", RunQuery())


def test_bad_job_files() -> None:
    with pytest.raises(SpecError, match=r"job.toml:2:8: not valid TOML"):
        read_toml("[model]\nname = llama3\n", "job.toml", RunQuery())
    with pytest.raises(SpecError, match=r"flavor '9B' of llama3 is not in the table"):
        toml(model="9B")
    with pytest.raises(SpecError, match="expected a whole number, got 'two'"):
        toml(parallelism={"tensor_parallel_degree": "two"})


def test_which_texts_are_recipes() -> None:
    assert looks_like_recipe(RECIPE)
    assert not looks_like_recipe("import torch\n")
