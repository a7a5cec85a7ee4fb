import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, MIXTRAL_8X7B
from costmodels.schedule.stages import stage_layers
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.torchtitan.emitter import torchtitan_files
from planner.frameworks.torchtitan.fields import even_stages
from planner.frameworks.torchtitan.model import model_family
from searches.frameworks.torchtitan.registered import FLAVORS, registered_model
from tests.planner.emitting import HEADER, JOB, constants_of, golden, keywords_of, layout, pool

QWEN3_30B = replace(
    MIXTRAL_8X7B,
    name="qwen3-30b-a3b",
    layers=48,
    hidden=2048,
    kv_heads=4,
    ffn=6144,
    vocab=151936,
    n_experts=128,
    top_k=8,
    expert_ffn=768,
)
GPT_OSS = replace(
    MIXTRAL_8X7B,
    name="gpt-oss-20b",
    layers=24,
    hidden=2880,
    heads=64,
    head_dim=64,
    vocab=201088,
    n_experts=32,
    top_k=4,
    expert_ffn=2880,
    bias=True,
)


def emitted(
    shape: ModelShape = LLAMA3_8B, job: TrainingJob = JOB, **changes: Any
) -> dict[str, str]:
    changes.setdefault("zero", 2)
    gbs = int(changes.get("gbs", job.global_batch))
    return torchtitan_files(
        EmitRequest(
            layout(shape, **changes), shape, replace(job, global_batch=gbs), pool(), HEADER
        )
    )


def recipe(shape: ModelShape = LLAMA3_8B, **changes: Any) -> str:
    return emitted(shape, **changes)["torchtitan_recipe.py"]


def parallelism(shape: ModelShape = LLAMA3_8B, **changes: Any) -> dict[str, Any]:
    return keywords_of(recipe(shape, **changes), "ParallelismConfig")


def job_file(shape: ModelShape = LLAMA3_8B, **changes: Any) -> dict[str, Any]:
    return tomllib.loads(emitted(shape, **changes)["torchtitan.toml"])


@pytest.mark.parametrize(
    ("name", "files"),
    [
        (
            "llama3-8b-hsdp",
            emitted(
                n_devices=64,
                tp=2,
                sp=True,
                cp=2,
                dp=16,
                cp_comm="all-gather",
                zero=3,
                shard=8,
                recompute="full",
                recompute_layers=32,
            ),
        ),
        (
            "llama3-70b-interleaved",
            emitted(
                LLAMA3_70B,
                n_devices=512,
                tp=8,
                pp=4,
                vpp=5,
                sp=True,
                zero=1,
                gbs=1024,
                recompute="full",
                recompute_layers=2,
            ),
        ),
        ("deepseek-v3-experts", emitted(DEEPSEEK_V3, n_devices=1024, ep=64, zero=3, gbs=8192)),
        (
            "gpt-oss-dualpipe",
            emitted(GPT_OSS, n_devices=32, pp=4, vpp=2, ep=8, zero=1, schedule="dualpipe-v"),
        ),
    ],
)
def test_golden(name: str, files: dict[str, str]) -> None:
    assert {"torchtitan_recipe.py", "torchtitan.sh"} <= set(files)
    for file, text in files.items():
        if file != "torchtitan_smoke.py":
            golden(f"{name}-{file}", text)


@pytest.mark.parametrize(
    ("shape", "family"),
    [
        (LLAMA3_8B, "llama3"),
        (replace(LLAMA3_8B, head_dim=256), "qwen3"),
        (MIXTRAL_8X7B, "qwen3"),
        (DEEPSEEK_V3, "deepseek_v3"),
        (GPT_OSS, "gpt_oss"),
    ],
)
def test_the_family_follows_from_the_sizes(shape: ModelShape, family: str) -> None:
    assert model_family(shape) == family
    text = recipe(shape, n_devices=64)
    compile(text, "torchtitan_recipe.py", "exec")
    assert f'name="{family}"' in text
    sizes = constants_of(text)
    assert (sizes["LAYERS"], sizes["HIDDEN"], sizes["VOCAB"]) == (
        shape.layers,
        shape.hidden,
        shape.vocab,
    )


def test_a_recipe_imports_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    """Linted: no name without an import, no import without a use; formatted as it stands."""
    shapes = (
        LLAMA3_8B,
        MIXTRAL_8X7B,
        DEEPSEEK_V3,
        GPT_OSS,
        QWEN3_30B,
        replace(LLAMA3_8B, tied=True),
        replace(MIXTRAL_8X7B, dense_layers=2, shared_ffn=64),
        replace(DEEPSEEK_V3, mtp_layers=0, n_experts=0),
    )
    for number, shape in enumerate(shapes):
        for recompute, k in (("none", 0), ("selective", 0), ("full", 3), ("full", shape.layers)):
            text = recipe(shape, n_devices=64, recompute=recompute, recompute_layers=k)
            (tmp_path / f"recipe_{number}_{recompute}_{k}.py").write_text(text)
    for words in (["check", "--select", "E,F,I,W", "--ignore", "E501"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, "--isolated", "--line-length", "99"]
        done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("changes", "wants"),
    [
        ({"zero": 3}, (1, 8, "always")),
        ({"zero": 2}, (1, 8, "never")),
        ({"zero": 0}, (8, 1, "never")),
        ({"zero": 3, "shard": 4}, (2, 4, "always")),
        ({"zero": 3, "cp": 2, "dp": 4, "cp_comm": "all-gather"}, (1, 4, "always")),
        ({"zero": 2, "cp": 2, "dp": 4, "cp_comm": "all-gather", "shard": 4}, (2, 2, "never")),
        ({"zero": 1, "pp": 4}, (1, 2, "never")),
    ],
)
def test_zero_groups_become_replicas_and_shards(
    changes: dict[str, Any], wants: tuple[int, int, str]
) -> None:
    got = parallelism(**changes)
    names = (
        "data_parallel_replicate_degree",
        "data_parallel_shard_degree",
        "fsdp_reshard_after_forward",
    )
    assert tuple(got[name] for name in names) == wants
    degrees = [got[f"{x}_parallel_degree"] for x in ("tensor", "context", "pipeline")]
    assert wants[0] * wants[1] * degrees[0] * degrees[1] * degrees[2] == 8


def test_micro_batches_are_accumulated_or_piped() -> None:
    plain = keywords_of(recipe(mbs=2), "TrainingConfig")
    assert (plain["local_batch_size"], plain["global_batch_size"]) == (2, 128)
    assert plain["seq_len"] == 8192
    piped = recipe(pp=4, mbs=2, zero=1)
    words = keywords_of(piped, "TrainingConfig")
    assert (words["local_batch_size"], words["global_batch_size"]) == (64, 128)
    assert keywords_of(piped, "ParallelismConfig")["pipeline_parallel_microbatch_size"] == 2


@pytest.mark.parametrize(
    ("schedule", "vpp", "name"),
    [
        ("1f1b", 1, "1F1B"),
        ("gpipe", 1, "GPipe"),
        ("interleaved", 2, "Interleaved1F1B"),
        ("zb-v", 2, "ZBVZeroBubble"),
        ("dualpipe-v", 2, "DualPipeV"),
    ],
)
def test_schedules(schedule: str, vpp: int, name: str) -> None:
    got = parallelism(pp=4, vpp=vpp, schedule=schedule, zero=1)
    assert got["pipeline_parallel_schedule"] == name
    assert got["pipeline_parallel_layers_per_stage"] == 32 // (4 * vpp)


@pytest.mark.parametrize(
    ("shape", "pp", "split", "plain"),
    [
        (LLAMA3_8B, 4, "even", True),
        (LLAMA3_405B, 16, "ends", True),
        (LLAMA3_8B, 4, "ends", False),
        (LLAMA3_8B, 4, "9-8-8-7", True),
        (LLAMA3_8B, 4, "6-10-10-6", False),
    ],
)
def test_stages_hold_the_layers_of_the_plan(
    shape: ModelShape, pp: int, split: str, plain: bool
) -> None:
    counts = stage_layers(shape.layers, pp, 1, split)
    got = parallelism(shape, n_devices=pp, pp=pp, zero=1, split=split, stage_layers=counts)
    assert ("module_fqns_per_model_part" not in got) == plain
    if plain:
        names = ("layers_per_stage", "first_stage_less_layers", "last_stage_less_layers")
        words = [got[f"pipeline_parallel_{name}"] for name in names]
        assert even_stages(shape.layers, *words) == counts
    else:
        parts = got["module_fqns_per_model_part"]
        assert tuple(sum(x.startswith("layers.") for x in part) for part in parts) == counts
        named = [name for part in parts for name in part]
        assert named == [
            "tok_embeddings",
            *(f"layers.{i}" for i in range(shape.layers)),
            "norm",
            "lm_head",
        ]


@pytest.mark.parametrize(
    ("recompute", "k", "policy"),
    [
        ("none", 0, "None"),
        ("full", 0, "None"),
        ("full", 32, "FullAC.Config()"),
        ("full", 5, "FirstLayersAC.Config(layers=5)"),
        ("selective", 0, "AttentionCoreAC.Config()"),
    ],
)
def test_recomputation(recompute: str, k: int, policy: str) -> None:
    text = recipe(recompute=recompute, recompute_layers=k)
    assert f"activation_checkpoint={policy}," in text
    assert ("class FirstLayersAC" in text) == policy.startswith("First")


def test_a_vocabulary_that_tp_does_not_divide_is_padded() -> None:
    odd = replace(LLAMA3_8B, vocab=50257)
    assert constants_of(recipe(odd))["VOCAB"] == 50257
    text = recipe(odd, tp=2, sp=True)
    assert constants_of(text)["VOCAB"] == 50258
    assert "50257 rows" in text


def test_what_is_done_more_often_than_the_plan_counts_is_said() -> None:
    assert "gathers weights for each of them" in recipe(zero=2)
    assert "reduces gradients for each of them" in recipe(zero=0)
    assert "the plan counts it once" not in recipe(zero=3) + recipe(zero=2, mbs=16)


def test_job_file_names_a_registered_model() -> None:
    got = job_file(tp=2, sp=True, zero=3)
    assert (got["model"]["name"], got["model"]["flavor"]) == ("llama3", "8B")
    assert got["training"]["local_batch_size"] == 1
    assert got["parallelism"]["tensor_parallel_degree"] == 2
    assert "enable_sequence_parallel" not in got["parallelism"]
    assert got["activation_checkpoint"] == {"mode": "none"}
    ends = job_file(pp=4, zero=1, stage_layers=(6, 10, 10, 6))
    assert ends["parallelism"]["module_fqns_per_model_part"][-1][-2:] == ["norm", "output"]
    half = job_file(pp=4, zero=1, recompute="full", recompute_layers=4)
    assert half["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "2"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"shape": replace(LLAMA3_8B, layers=30, name="own")}, "registered model"),
        ({"tp": 2, "sp": False}, "sequence parallelism cannot be switched off"),
        ({"tp": 8, "sp": True, "zero": 0}, "precision"),
        ({"cp": 2, "dp": 4, "cp_comm": "all-gather", "zero": 0}, "ZeRO"),
        ({"recompute": "selective"}, "attention core"),
        ({"recompute": "full", "recompute_layers": 5}, "no every n-th layer"),
    ],
)
def test_why_there_is_no_job_file(changes: dict[str, Any], reason: str) -> None:
    shape = changes.pop("shape", LLAMA3_8B)
    files = emitted(shape, **changes)
    assert "torchtitan.toml" not in files
    assert reason in files["torchtitan-toml.txt"]
    assert files["torchtitan-toml.txt"].startswith("No job file for torchtitan 0.2.2")


def test_flavors_are_told_apart_and_found() -> None:
    for key, sizes in FLAVORS.items():
        fields = {"ffn": 1024} | {k: v for k, v in sizes.items() if k != "ffn" or v}
        assert registered_model(replace(LLAMA3_8B, name="any", **fields)) == key  # type: ignore[arg-type]
    assert registered_model(replace(DEEPSEEK_V3, mtp_layers=0)) == ("deepseek_v3", "671B")
    assert registered_model(DEEPSEEK_V3) is None
    assert registered_model(replace(LLAMA3_8B, gated=False)) is None


def test_models_small_enough_for_a_cpu_have_a_job_file_too() -> None:
    """The two that the run matrix starts with torchtitan 0.2.2."""
    shape = replace(
        LLAMA3_8B, layers=6, hidden=256, heads=16, kv_heads=16, head_dim=16, ffn=768, vocab=2048
    )
    named = job_file(shape, tp=2, sp=True)["model"]
    assert (named["name"], named["flavor"]) == ("llama3", "debugmodel")


def test_smoke_starts_all_ranks_on_this_machine(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@" "[${CUDA_VISIBLE_DEVICES}]"\n')
    fake.chmod(0o755)
    files = emitted(n_devices=16)
    (tmp_path / "torchtitan.sh").write_text(files["torchtitan.sh"])
    done = subprocess.run(
        ["bash", str(tmp_path / "torchtitan.sh"), "--smoke", "--training.seq_len", "64"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    )
    program = str(tmp_path / "torchtitan_smoke.py")
    assert done.stdout.splitlines() == [program, "16", "--smoke", "--training.seq_len", "64", "[]"]
    compile(files["torchtitan_smoke.py"], program, "exec")
    assert '"planner-smoke"' in files["torchtitan_smoke.py"]


def test_launcher_runs_the_recipe(tmp_path: Path) -> None:
    fake = tmp_path / "torchrun"
    fake.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"; echo "${PYTHONPATH}"\n')
    fake.chmod(0o755)
    (tmp_path / "torchtitan.sh").write_text(emitted(n_devices=16)["torchtitan.sh"])
    done = subprocess.run(
        ["bash", str(tmp_path / "torchtitan.sh"), "--training.steps", "3"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "NODE_RANK": "1", "MASTER_ADDR": "head"},
        check=True,
        capture_output=True,
        text=True,
    )
    words = done.stdout.splitlines()
    assert words[words.index("--nnodes") + 1] == "2"
    assert words[words.index("--node-rank") + 1] == "1"
    assert words[words.index("-m") :] == [
        "-m",
        "torchtitan.train",
        "--module",
        "torchtitan_recipe",
        "--config",
        "train",
        "--training.steps",
        "3",
        str(tmp_path),
    ]
