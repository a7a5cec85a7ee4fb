from dataclasses import replace
from typing import Any

import pytest

from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL_8X7B
from costmodels.shapes import ModelShape, TrainingJob
from hardware.parts import Pool
from planner.frameworks.emit import emit_plan, runs_on, why_not
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.mindspeed.options import odd_options, option_table
from planner.frameworks.releases import lacking_words, option_tables
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import run_of_text
from planner.specs.schema import DetailsSpec
from tests.planner.emitting import HEADER, JOB, golden, layout, pool
from tests.repeats import slow
from tools.checkers.mindspeed_runs import plan_faults, words_of
from tools.samples.draw import draw_plans

EXPERTS = {"n_devices": 64, "dp": 64, "ep": 8}
DEEP = {"n_devices": 64, "pp": 4, "dp": 16, "ep": 16, "stage_layers": (15, 16, 16, 14)}


def npus() -> Pool:
    plain = pool()
    part = replace(plain.accelerator, vendor="Huawei", generation="ascend")
    return replace(plain, accelerator=part)


def request(
    shape: ModelShape = LLAMA3_8B,
    job: TrainingJob = JOB,
    details: DetailsSpec = DetailsSpec(),
    **changes: Any,
) -> EmitRequest:
    return EmitRequest(layout(shape, **changes), shape, job, npus(), HEADER, details)


def script(*args: Any, **changes: Any) -> str:
    files = emit_plan("mindspeed", request(*args, **changes))
    assert list(files) == ["mindspeed.sh"], files
    return files["mindspeed.sh"]


def options(*args: Any, **changes: Any) -> dict[str, str]:
    """Return the options of a script with their values."""
    found: dict[str, str] = {}
    name = ""
    for word in words_of(script(*args, **changes)):
        name, value = (word, "") if word.startswith("--") else (name, word)
        found[name] = f"{found.get(name, '')} {value}".strip()
    return found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3-8b-mindspeed", script(tp=2, sp=True, recompute="full", recompute_layers=32)),
        (
            "llama3-8b-mindspeed-uneven",
            script(pp=2, dp=2, cp=2, cp_comm="a2a", stage_layers=(15, 17), split="15-17"),
        ),
        ("mixtral-8x7b-mindspeed", script(MIXTRAL_8X7B, **EXPERTS)),
        ("deepseek-v3-mindspeed", script(DEEPSEEK_V3, **DEEP)),
    ],
)
def test_golden(name: str, text: str) -> None:
    golden(f"{name}.sh", text)


def test_what_mindspeed_says_in_other_words() -> None:
    found = options(pp=2, dp=2, cp=2, cp_comm="all-gather", stage_layers=(15, 17), split="15-17")
    assert found["--num-layer-list"] == "15,17"
    assert found["--context-parallel-algo"] == "kvallgather_cp_algo"
    assert found["--transformer-impl"] == "local"
    assert not found.keys() & {"--cp-comm-type", "--attention-backend"}
    assert {"--use-flash-attn", "--use-fused-rmsnorm", "--use-fused-swiglu"} <= found.keys()


def test_dense_layers_before_those_with_experts() -> None:
    found = options(DEEPSEEK_V3, **DEEP)
    assert (found["--first-k-dense-replace"], found["--moe-layer-freq"]) == ("3", "1")
    assert found["--spec"] == "mindspeed_llm.tasks.models.spec.deepseek_spec layer_spec"
    assert "--first-k-dense-replace" not in options(MIXTRAL_8X7B, **EXPERTS)


def test_stretched_positions() -> None:
    details = DetailsSpec(
        rope_scaling="yarn", rope_scaling_factor=40.0, rope_original_positions=4096
    )
    found = options(DEEPSEEK_V3, details=details, **DEEP)
    assert found["--rope-scaling-type"] == "yarn"
    assert found["--rope-scaling-factor"] == "40"
    assert found["--rope-scaling-original-max-position-embeddings"] == "4096"
    llama = DetailsSpec(rope_scaling="llama3", rope_scaling_factor=32.0)
    assert options(details=llama)["--rope-scaling-type"] == "llama3"
    assert "NOT THE SAME MODEL" in script(details=llama)  # its factor is 8


def test_the_launcher_sets_what_its_checks_and_hccl_need() -> None:
    text = script(tp=2)
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in text
    assert "export HCCL_CONNECT_TIMEOUT=" in text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"zero": 3}, "ZeRO-3"),
        ({"shard": 4}, "ZeRO groups of 4"),
        ({"recompute": "selective", "recompute_modules": ("mlp",)}, "recompute selective"),
        ({"optimizer_offload": True}, "--swap-optimizer"),
        (
            {
                "pp": 4,
                "vpp": 2,
                "stage_layers": (3, 4, 4, 5, 4, 4, 4, 4),
                "split": "3-4-4-5-4-4-4-4",
            },
            "--num-layer-list excludes virtual stages",
        ),
    ],
)
def test_plans_that_are_not_written(changes: dict[str, Any], reason: str) -> None:
    files = emit_plan("mindspeed", request(**changes))
    assert list(files) == ["mindspeed.txt"]
    assert reason in files["mindspeed.txt"]


def test_a_plan_of_an_older_release_is_refused_for_what_it_lacks() -> None:
    gathers = {"cp": 2, "dp": 4, "cp_comm": "all-gather"}
    assert "26.1.0" in script(**gathers)
    assert "kvallgather_cp_algo" in str(why_not("mindspeed@2.3.0", layout(**gathers), LLAMA3_8B))
    assert why_not("mindspeed@26.0.0", layout(**gathers), LLAMA3_8B) is None
    lacking = lacking_words("mindspeed@2.3.0", ["--context-parallel-algo", "kvallgather_cp_algo"])
    assert [one.instead for one in lacking] == ["framework mindspeed@26.0.0"]


@pytest.mark.parametrize("release", ["2.2.0", "2.3.0", "26.0.0", "26.1.0"])
def test_every_release_takes_what_is_written(release: str) -> None:
    for shape, changes in ((LLAMA3_8B, {"tp": 2, "sp": True}), (DEEPSEEK_V3, DEEP)):
        files = emit_plan(f"mindspeed@{release}", request(shape, **changes))
        assert f"MindSpeed-LLM {release}" in files["mindspeed.sh"]


def test_it_runs_on_ascend_alone() -> None:
    assert runs_on(layout(), LLAMA3_8B, JOB, "", "Huawei") == ("mindspeed",)
    assert "mindspeed" not in runs_on(layout(), LLAMA3_8B, JOB, "", "NVIDIA")


def test_the_table_is_that_of_the_newest_release() -> None:
    head, by_name, _ = option_table()
    tables, written = option_tables("mindspeed")
    assert head["release"] == "26.1.0"
    assert tables["26.1.0"].keys() == by_name.keys()
    assert "--num-layer-list" in written
    assert odd_options(["--num-layers", "x"]) == ["--num-layers: 'x' is not a whole number"]
    assert odd_options(["--cp-comm-type", "p2p"]) == []  # Megatron-LM's own, which it passes over
    assert odd_options(["--attention-backends", "flash"]) == [
        "--attention-backends: no option of MindSpeed-LLM"
    ]


@pytest.mark.parametrize("n", [8, slow(40)])
def test_drawn_plans_are_written_in_its_options_and_read_back(n: int) -> None:
    plans = list(draw_plans("mindspeed", n, 3))
    assert len(plans) == n
    assert {drawn.name: plan_faults(drawn) for drawn in plans} == {d.name: [] for d in plans}


def test_a_fault_in_a_script_is_found() -> None:
    """The comparison can fail: another degree, and a word that the parser does not have."""
    text = script(tp=2, sp=True)
    other = text.replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 4")
    assert run_of_text(other, "mindspeed.sh", RunQuery()).layout["tp"] == 4
    assert odd_options(words_of(text.replace("--bf16", "--bf17"))) != []
