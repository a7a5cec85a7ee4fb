"""`--framework NAME@RELEASE`: searched, written, checked and read as that release has it."""

import json
from pathlib import Path

import pytest

import planner
from planner.analyze.plan_files import FileTargets, chosen_targets
from planner.errors import EmitError, UsageError
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.registry import framework, named_framework
from planner.solver.answer.result import Plan
from planner.solver.answer.result_store import read_options
from planner.solver.request import SolveRequest
from planner.specs.inputs import Content
from planner.specs.loader import load_cluster, load_model
from planner.specs.schema import DetailsSpec
from searches.frameworks.registry import BUILT_IN
from searches.frameworks.table import refusals
from tests.planner.command import run_here
from tests.searches.instances import one_in

SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=8
torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 \\
  --num-attention-heads 16 --ffn-hidden-size 8192 --swiglu --seq-length 2048 \\
  --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --bf16 \\
  --vocab-size 32000 --tokenizer-type NullTokenizer --train-iters 100 --eval-interval 100 {more}
"""
FSDP = (
    "--use-megatron-fsdp --use-distributed-optimizer --no-gradient-accumulation-fusion"
    " --ckpt-format fsdp_dtensor"
)


def checked(more: str, **keywords: str) -> dict:
    text = Content(SCRIPT.format(more=more), "run.sh")
    return planner.check(text, "h100-x8", **keywords).to_json()


def refused(answer: dict) -> dict[str, dict]:
    return {one["code"]: one for one in answer["refusals"]}


# Named ---------------------------------------------------------------------------------------


def test_the_record_is_that_of_the_release() -> None:
    assert framework("megatron@0.17").rules.release == "0.17.0"
    assert framework("megatron@0.17").emitter == framework("megatron").emitter
    assert named_framework("bridge@26.06", "for") == "bridge@0.5.1"


@pytest.mark.parametrize("text", ["megatron@1", "nemo", "nemo@1", "any@0.17"])
def test_a_wrong_name_is_one_error_on_every_surface(text: str) -> None:
    requests = (
        lambda: SolveRequest(framework=text).options(),
        lambda: chosen_targets(text),
        lambda: planner.check(Content(SCRIPT, "run.sh"), "h100-x8", framework=text),
    )
    for request in requests:
        with pytest.raises(UsageError, match=r"no release 1 of Megatron-LM|unknown framework"):
            request()


def test_options_hold_the_release_that_was_found() -> None:
    options = SolveRequest(framework="megatron@0.17").options()
    assert options.framework == options.search_options().framework == "megatron@0.17.0"
    assert options.stack_name == SolveRequest(framework="megatron").options().stack_name
    again = read_options(json.loads(json.dumps(options.to_json())))
    assert again.framework == "megatron@0.17.0"


def test_files_of_two_releases_do_not_share_a_folder() -> None:
    assert chosen_targets("megatron@0.17,bridge@26.08") == ["megatron@0.17.0", "bridge@0.6.2"]
    with pytest.raises(UsageError, match="two releases of megatron"):
        chosen_targets("megatron@0.17,megatron")


# Searched ------------------------------------------------------------------------------------


def test_a_plan_names_the_release_that_was_asked_for() -> None:
    pins = {"tp": 1, "pp": 1, "zero": 1, "recompute": "full"}
    plan = planner.evaluate("llama3-8b", "h100-x8", pins=pins, framework="megatron@0.17").plans[0]
    usual = planner.evaluate("llama3-8b", "h100-x8", pins=pins).plans[0]
    assert plan.plan_id == usual.plan_id
    assert plan.runs_on[0] == "megatron@0.17.0"
    assert plan.runs_on[1:] == usual.runs_on[1:]
    assert Plan.from_json(plan.to_json()).runs_on == plan.runs_on


def test_a_plan_says_the_first_release_where_an_older_one_does_not_run_it() -> None:
    pins = {"tp": 1, "pp": 1, "zero": 3, "recompute": "full", "recompute_layers": 5}
    plan = planner.evaluate("llama3-8b", "h100-x8", pins=pins, framework="any").plans[0]
    assert plan.first_releases == {"torchtitan": "0.3.0"}  # 0.2 recomputes every n-th layer
    assert plan.to_json()["first_releases"] == {"torchtitan": "0.3.0"}
    assert Plan.from_json(plan.to_json()).first_releases == plan.first_releases
    pins["recompute_layers"] = 32
    plain = planner.evaluate("llama3-8b", "h100-x8", pins=pins, framework="any").plans[0]
    assert "first_releases" not in plain.to_json()


def test_a_search_offers_what_the_release_can_be_told() -> None:
    result = planner.solve("llama3-8b", "h100-x8", framework="torchtitan@0.2.2", top=5)
    given = load_model("llama3-8b")
    assert result.plans
    for plan in result.plans:
        assert plan.layout.recompute != "selective"
        assert refusals("torchtitan@0.2.2", plan.layout, given.shape, given.job) == ()
        assert plan.runs_on[-3:].count("torchtitan@0.2.2") == 1


# Written -------------------------------------------------------------------------------------


def request(**details: object) -> EmitRequest:
    pins = {"tp": 1, "pp": 1, "zero": 3, "recompute": "full"}
    plan = planner.evaluate("llama3-8b", "h100-x8", pins=pins, framework="any").plans[0]
    given, pool = load_model("llama3-8b"), load_cluster("h100-x8").cluster.pools[0]
    return EmitRequest(plan.layout, given.shape, given.job, pool, ["plan"], DetailsSpec(**details))


@pytest.mark.parametrize(
    "name", one_in(3, [x for x in BUILT_IN if "NVIDIA" in BUILT_IN[x].vendors])
)
def test_files_say_the_release_that_they_are_for(name: str) -> None:
    for release in BUILT_IN[name].releases:
        files = emit_plan(f"{name}@{release.version}", request())
        assert f"{name}.txt" not in files
        said = [text for text in files.values() if f" {release.version}." in text[:300]]
        assert said
    assert (
        emit_plan(name, request()).items()
        <= emit_plan(f"{name}@{release.version}", request()).items()
    )


def test_torchtitan_of_job_files_gets_one_and_its_launcher() -> None:
    files = emit_plan("torchtitan@0.2.2", request())
    assert sorted(files) == ["torchtitan.sh", "torchtitan.toml", "torchtitan_smoke.py"]
    assert '--job.config_file "${HERE}/torchtitan.toml"' in files["torchtitan.sh"]
    assert "torchtitan_recipe" not in files["torchtitan.sh"]


def test_a_flag_that_the_release_lacks_is_not_written() -> None:
    yarn = {"rope_scaling": "yarn", "rope_scaling_factor": 4.0, "rope_original_positions": 4096}
    newest = emit_plan("megatron", request(**yarn))["megatron.sh"]
    assert "--yarn-original-max-position-embeddings" in newest
    files = emit_plan("megatron@0.17", request(**yarn))
    assert list(files) == ["megatron.txt"]
    assert files["megatron.txt"].startswith("Megatron-LM 0.17.0 cannot run this plan.")
    assert (
        "--position-embedding-type yarn; closest: framework megatron@0.18.2"
        in files["megatron.txt"]
    )


@pytest.mark.parametrize(
    ("searched", "asked", "written"),
    [
        ("megatron@0.17.0", "megatron", "0.17.0"),
        ("megatron@0.17.0", "megatron@0.18.2", "0.18.2"),
        ("torchtitan@0.2.2", "megatron", "0.19.2"),
        ("any", "megatron", "0.19.2"),
        ("default", "megatron", "0.19.2"),
        ("", "megatron", "0.19.2"),
    ],
)
def test_files_are_for_the_release_that_was_searched(
    searched: str, asked: str, written: str
) -> None:
    named = f"megatron@{written}"
    targets = FileTargets([asked], framework=searched)
    assert framework(targets.releases[asked]).rules.release == framework(named).rules.release


def test_the_commands_write_for_the_release_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ("llama3-8b", "h100-x8", "--pin", "tp=1,pp=1,zero=1", "--top", "1")
    out = ("--emit", "megatron", "--out", str(tmp_path / "files"))
    assert run_here("solve", *words, "--framework", "megatron@0.17", *out).returncode == 0
    (script,) = tmp_path.glob("files/1-*/megatron.sh")
    assert "(megatron-core) 0.17.0." in script.read_text()
    again = run_here("emit", "last#1", "--for", "megatron").stdout
    assert "(megatron-core) 0.17.0." in again
    newer = run_here("emit", "last#1", "--for", "megatron@0.19").stdout
    assert "(megatron-core) 0.19.2." in newer


def test_an_unknown_release_is_one_error() -> None:
    with pytest.raises(EmitError, match=r"no release 9 of DeepSpeed") as caught:
        emit_plan("deepspeed@9", request())
    assert caught.value.hint == "one of 0.19.8, 0.18.9"


# Checked -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_flag_of_another_release_is_named_with_it() -> None:
    more = "--cuda-graph-impl transformer_engine --cuda-graph-modules attn"
    old = checked(more, framework="megatron@0.17")
    assert old["release"] == "0.17.0"
    one = refused(old)["MLM118"]
    assert one["reason"] == "this release does not have --cuda-graph-modules"
    wanted = "for --cuda-graph-modules: --cuda-graph-scope, or framework megatron@0.18.2"
    assert one["closest"] == wanted
    assert "MLM118" not in refused(checked(more, framework="megatron@0.18"))
    assert "MLM118" not in refused(checked(more, framework="megatron"))


@pytest.mark.slow
def test_a_flag_that_was_dropped_is_known_to_the_release_that_had_it() -> None:
    assert (
        not {"MLM118", "MLM120"}
        & refused(checked("--use-legacy-models", framework="megatron@0.17")).keys()
    )
    new = refused(checked("--use-legacy-models", framework="megatron@0.19"))
    assert new["MLM118"]["closest"] == "for --use-legacy-models: framework megatron@0.17.0"
    assert "MLM120" not in new
    assert "MLM120" in refused(checked("--no-such-flag", framework="megatron@0.19"))


def test_defaults_are_those_of_the_release() -> None:
    # 0.17: no_shard; from 0.18 on optim_grads_params.
    zero = {
        release: checked(FSDP, framework=f"megatron@{release}")["layout"]["zero"]
        for release in ("0.17", "0.18", "0.19")
    }
    assert zero == {"0.17": 0, "0.18": 3, "0.19": 3}


def test_framework_and_version_do_not_name_two_releases() -> None:
    same = checked("", framework="megatron@0.17", version="0.17.0")
    assert same["release"] == "0.17.0"
    with pytest.raises(UsageError, match="name two releases"):
        checked("", framework="megatron@0.17", version="0.19.2")
