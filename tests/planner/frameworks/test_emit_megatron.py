import itertools
import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodels.examples import (
    DEEPSEEK_V3,
    GPT3_175B,
    LLAMA3_8B,
    LLAMA3_70B,
    LLAMA3_405B,
    MIXTRAL_8X7B,
)
from costmodels.schedule.stages import stage_layers
from costmodels.shapes import ModelShape, TrainingJob
from planner.errors import EmitError
from planner.frameworks.emit import emit_plan, runs_on, why_not
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.megatron.emitter import (
    flag_groups,
    layer_frequency,
    megatron_script,
    stage_layout,
)
from planner.specs.schema import DetailsSpec
from searches.frameworks.megatron.layouts import megatron_vocab, vocab_divisor
from searches.frameworks.registry import framework_names, framework_rules
from searches.frameworks.table import refusals
from tests.planner.emitting import GOLDENS, HEADER, JOB, golden, layout, pool


def script(
    shape: ModelShape = LLAMA3_8B,
    job: TrainingJob = JOB,
    generation: str = "hopper",
    **changes: Any,
) -> str:
    plan = layout(shape, **({"gbs": job.global_batch} | changes))
    files = emit_plan("megatron", EmitRequest(plan, shape, job, pool(generation), HEADER))
    return files["megatron.sh"]


def flags(text: str) -> dict[str, str | bool]:
    """The words after pretrain_gpt.py, read back as a parser without bash would read them."""
    command = text[text.index("\ntorchrun --nnodes") :].replace("\\\n", " ")
    words = shlex.split(command)
    words = words[next(i for i, word in enumerate(words) if word.endswith(".py")) + 1 :]
    found: dict[str, str | bool] = {}
    for word, following in itertools.pairwise([*words, "--"]):
        if word.startswith("--"):
            assert word not in found, f"{word} given twice"
            found[word] = True if following.startswith("--") else following
    return found


LLAMA_405B_PAPER: dict[str, Any] = {
    "n_devices": 16384,
    "tp": 8,
    "pp": 16,
    "split": "ends",
    "zero": 1,
    "sp": True,
    "gbs": 2048,
    "stage_layers": stage_layers(126, 16, 1, "ends"),
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "llama3-405b-ends.sh",
            script(LLAMA3_405B, replace(JOB, global_batch=2048), **LLAMA_405B_PAPER),
        ),
        (
            "llama3-70b-interleaved.sh",
            script(
                LLAMA3_70B,
                n_devices=64,
                tp=8,
                pp=4,
                vpp=5,
                sp=True,
                recompute="full",
                recompute_layers=2,
            ),
        ),
        ("llama3-8b-fsdp.sh", script(zero=3, recompute="selective")),
        (
            "gpt3-175b.sh",
            script(
                GPT3_175B,
                TrainingJob(2048, 1536, "fp16", tokens=300e9),
                "ampere",
                n_devices=1024,
                tp=8,
                pp=8,
                sp=True,
                zero=0,
            ),
        ),
    ],
)
def test_golden(name: str, text: str) -> None:
    golden("megatron-" + name, text)


@pytest.mark.parametrize("file", sorted(GOLDENS.glob("*.sh")), ids=lambda file: file.name)
def test_bash_reads_every_golden(file: Path) -> None:
    subprocess.run(["bash", "-n", str(file)], check=True)


def run_with_fake_torchrun(text: str, folder: Path, *extra: str, **env: str) -> list[str]:
    """Run the script with a torchrun that prints its words."""
    fake = folder / "torchrun"
    fake.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    file = folder / "megatron.sh"
    file.write_text(text)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(file), *extra],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": path, **env},
    )
    return done.stdout.splitlines()


def test_bash_and_a_plain_reader_see_the_same_flags(tmp_path: Path) -> None:
    text = script(
        LLAMA3_70B,
        n_devices=512,
        tp=4,
        pp=16,
        split="ends",
        sp=True,
        stage_layers=stage_layers(80, 16, 1, "ends"),
    )
    words = run_with_fake_torchrun(text, tmp_path, NODE_RANK="3", MASTER_ADDR="node0")
    assert words[:6] == ["--nnodes", "64", "--nproc-per-node", "8", "--node-rank", "3"]
    after = words[words.index("./pretrain_gpt.py") + 1 :]
    read = flags(text)
    assert [word for word in after if word.startswith("--")] == list(read)
    assert read["--pipeline-model-parallel-layout"] in after


def test_real_data_and_own_flags(tmp_path: Path) -> None:
    own = ["--save", "a folder", "--save-interval", "5"]
    words = run_with_fake_torchrun(script(), tmp_path, *own, DATA_PATH="/d/x", TOKENIZER_MODEL="t")
    assert "--mock-data" not in words
    assert words[words.index("--data-path") + 1] == "/d/x"
    assert words[words.index("--tokenizer-type") + 1] == "HuggingFaceTokenizer"
    assert words[-4:] == own


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero_stages(zero: int) -> None:
    got = flags(script(zero=zero))
    assert ("--use-distributed-optimizer" in got) == (zero > 0)
    assert ("--use-megatron-fsdp" in got) == (zero > 1)
    strategy = {2: "optim_grads", 3: "optim_grads_params"}.get(zero)
    assert got.get("--data-parallel-sharding-strategy") == strategy
    assert got.get("--ckpt-format") == ("fsdp_dtensor" if zero > 1 else None)
    assert got["--overlap-grad-reduce"]
    assert ("--overlap-param-gather" in got) == (zero > 0)


@pytest.mark.parametrize(
    ("generation", "tp", "zero", "line"),
    [
        ("hopper", 2, 1, "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
        ("ampere", 8, 0, "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
        ("blackwell", 2, 1, ""),
        ("hopper", 1, 1, ""),
        ("hopper", 2, 3, "unset CUDA_DEVICE_MAX_CONNECTIONS"),
    ],
)
def test_connections(generation: str, tp: int, zero: int, line: str) -> None:
    text = script(generation=generation, tp=tp, zero=zero)
    found = [x for x in text.splitlines() if "CUDA_DEVICE_MAX_CONNECTIONS" in x]
    assert found == ([line] if line else [])


@pytest.mark.parametrize(
    ("zero", "cp", "shard", "instances"),
    [(1, 1, 2, 4), (3, 1, 4, 2), (1, 2, 4, 2), (1, 1, 0, 1), (0, 1, 4, 1)],
)
def test_replicated_zero_groups_are_optimizer_instances(
    zero: int, cp: int, shard: int, instances: int
) -> None:
    kind = "p2p" if cp > 1 else ""
    plan = layout(zero=zero, cp=cp, dp=8 // cp, shard=shard, cp_comm=kind)
    got = flags(megatron_script(EmitRequest(plan, LLAMA3_8B, JOB, pool(), HEADER)))
    assert got.get("--num-distributed-optimizer-instances", "1") == str(instances)


def test_even_stages_need_one_flag_and_only_when_interleaved() -> None:
    plain = flags(script(LLAMA3_70B, n_devices=32, pp=4))
    assert not {
        "--pipeline-model-parallel-layout",
        "--num-layers-per-virtual-pipeline-stage",
    } & set(plain)
    inter = flags(script(LLAMA3_70B, n_devices=32, pp=4, vpp=5))
    assert inter["--num-layers-per-virtual-pipeline-stage"] == "4"


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "form"),
    [
        (126, 16, 1, "account"),
        (126, 16, 2, "account"),
        (80, 16, 1, "layout"),
        (96, 16, 1, "layout"),
        (30, 4, 2, "account"),
        (80, 8, 2, "layout"),
    ],
)
def test_uneven_stages(layers: int, pp: int, vpp: int, form: str) -> None:
    shape = replace(LLAMA3_70B, layers=layers)
    counts = stage_layers(layers, pp, vpp, "ends")
    got = flags(script(shape, n_devices=pp, pp=pp, vpp=vpp, split="ends", stage_layers=counts))
    assert ("--account-for-loss-in-pipeline-split" in got) == (form == "account")
    assert ("--account-for-embedding-in-pipeline-split" in got) == (form == "account")
    if form == "layout":
        assert unroll(str(got["--pipeline-model-parallel-layout"])) == counts
    elif vpp > 1:
        assert int(str(got["--num-layers-per-virtual-pipeline-stage"])) == (layers + 2) // (
            pp * vpp
        )


def unroll(text: str) -> tuple[int, ...]:
    """Layers per stage of a layout string, by Megatron's own two substitutions."""
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
    stages = text.split("|")
    assert stages[0][0] == "E"
    assert stages[-1][-1] == "L"
    return tuple(stage.count("t") for stage in stages)


@pytest.mark.parametrize("counts", [(3, 3), (1, 2), (4, 5, 5, 6, 5, 5, 4), (1, 1, 2, 1, 1)])
def test_stage_layout_says_the_counts(counts: tuple[int, ...]) -> None:
    assert unroll(stage_layout(counts)) == counts


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [LLAMA3_8B, GPT3_175B, replace(LLAMA3_8B, padded_vocab=128512)])
def test_padding_of_the_vocabulary_is_the_plans(shape: ModelShape, tp: int) -> None:
    multiple = vocab_divisor(shape, tp) * tp
    assert -(-shape.vocab // multiple) * multiple == megatron_vocab(shape, tp)


def test_model_flags() -> None:
    llama, gpt = flags(script()), flags(script(GPT3_175B, TrainingJob(2048, 128, "fp16"), zero=0))
    assert llama["--num-query-groups"] == "8"
    assert llama["--attention-backend"] == "flash"
    assert {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights"} <= set(
        llama
    )
    assert not {
        "--swiglu",
        "--disable-bias-linear",
        "--group-query-attention",
        "--untie-embeddings-and-output-weights",
    } & set(gpt)
    assert gpt["--position-embedding-type"] == "learned_absolute"
    assert gpt["--hidden-dropout"] == gpt["--attention-dropout"] == "0.1"
    assert (
        flags(script(replace(LLAMA3_8B, flash_attention=False)))["--attention-backend"]
        == "unfused"
    )


@pytest.mark.parametrize(
    ("heads", "wanted"),
    [(128, False), (96, True)],  # 7168 = 56 x 128 = 74 x 96 + 64
)
def test_latent_heads_that_do_not_divide_the_hidden_size_have_a_width(
    heads: int, wanted: bool
) -> None:
    shape = replace(DEEPSEEK_V3, heads=heads, kv_heads=heads)
    words = dict(flag_groups(layout(shape, ep=8), shape, JOB))["model"]
    assert ("--kv-channels" in words) is wanted


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [({}, True), ({"bias": False}, False)],  # without biases Megatron-LM switches it off itself
)
def test_squared_relu_has_no_fused_bias(changes: dict[str, Any], wanted: bool) -> None:
    shape = replace(GPT3_175B, **changes)
    groups = dict(flag_groups(layout(shape), shape, JOB, DetailsSpec(activation="squared_relu")))
    assert "--squared-relu" in groups["model"]
    assert ("--no-bias-gelu-fusion" in groups["model"]) is wanted
    assert "--no-bias-gelu-fusion" not in dict(flag_groups(layout(shape), shape, JOB))["model"]


@pytest.mark.parametrize(
    ("precision", "present", "absent"),
    [
        ("bf16", "--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16"),
        ("bf16-grads", "--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32"),
        ("fp16", "--fp16", "--bf16"),
    ],
)
def test_precision(precision: str, present: str, absent: str) -> None:
    got = flags(script(job=replace(JOB, precision=precision)))
    assert present in got
    assert absent not in got


@pytest.mark.parametrize(
    ("kind", "k", "wanted"),
    [
        ("none", 0, {}),
        (
            "full",
            3,
            {
                "--recompute-granularity": "full",
                "--recompute-method": "block",
                "--recompute-num-layers": "3",
            },
        ),
        (
            "selective",
            0,
            {"--recompute-granularity": "selective", "--recompute-modules": "core_attn"},
        ),
    ],
)
def test_recompute(kind: str, k: int, wanted: dict[str, str]) -> None:
    got = flags(script(recompute=kind, recompute_layers=k))
    assert {name: value for name, value in got.items() if name.startswith("--recompute")} == wanted


def test_steps_follow_the_tokens() -> None:
    assert flags(script())["--train-iters"] == "10"
    job = replace(JOB, tokens=1e9)  # 1e9 / (8192 * 128) = 953.7
    assert flags(script(job=job))["--train-iters"] == "954"


def test_user_buffers_where_the_plan_counts_on_them() -> None:
    assert "--tp-comm-overlap" in flags(script(tp=2, sp=True, tp_overlap=True))
    assert "--tp-comm-overlap" not in flags(script(tp=2, sp=True))


@pytest.mark.parametrize(
    ("changes", "job", "part", "closest"),
    [
        ({"zero": 2, "pp": 2}, JOB, "ZeRO-2 with a pipeline", "zero 1"),
        (
            {"pp": 4, "vpp": 2, "mbs": 32, "gbs": 192},
            replace(JOB, global_batch=192),
            "interleaved schedule",
            "vpp 1",
        ),
        ({"pp": 2, "schedule": "gpipe"}, JOB, "schedule", "1f1b"),
        ({"ep": 2}, JOB, "expert parallelism", "ep 1"),
        ({"rank_order": "pp-dp-tp"}, JOB, "rank order", "tp-cp-ep-dp-pp"),
        ({}, replace(JOB, precision="fp16-grads"), "fp16-grads", "fp16"),
        ({}, replace(JOB, precision="fp32"), "fp32", "bf16"),
        ({"n_devices": 12, "gbs": 12}, replace(JOB, global_batch=12), "devices", "multiple"),
        ({"tp": 8, "sp": True}, TrainingJob(8191, 128), "sequence parallelism", "sp off"),
    ],
)
def test_refusals_name_the_part_and_the_closest(
    changes: dict[str, Any], job: TrainingJob, part: str, closest: str
) -> None:
    files = emit_plan("megatron", EmitRequest(layout(**changes), LLAMA3_8B, job, pool(), HEADER))
    assert list(files) == ["megatron.txt"]
    reasons = [line for line in files["megatron.txt"].splitlines() if line.startswith("- ")]
    assert len(reasons) == 1
    assert part in reasons[0]
    assert closest in reasons[0].split("closest:")[1]


@pytest.mark.parametrize(
    ("kind", "word"), [("p2p", "p2p"), ("all-gather", "all_gather"), ("a2a", "a2a")]
)
def test_context_parallelism_has_its_flags(kind: str, word: str) -> None:
    plan = layout(cp=2, dp=1, tp=4, cp_comm=kind)
    flags = dict(flag_groups(plan, LLAMA3_8B, JOB))
    words = flags["layout"]
    assert words[words.index("--context-parallel-size") + 1] == "2"
    assert words[words.index("--cp-comm-type") + 1] == word
    # Gradients are summed over the cp ranks as well.
    assert "--overlap-grad-reduce" in flags["overlap"]
    assert "--context-parallel-size" not in dict(flag_groups(layout(), LLAMA3_8B, JOB))["layout"]


@pytest.mark.parametrize(
    ("kind", "runs"),
    [
        ("p2p", ("megatron", "fsdp2", "bridge")),
        ("all-gather", ("megatron", "torchtitan", "fsdp2", "bridge", "automodel")),
        ("a2a", ("megatron", "deepspeed", "bridge")),
    ],
)
def test_who_exchanges_keys_and_values_how(kind: str, runs: tuple[str, ...]) -> None:
    plan = layout(cp=2, dp=4, cp_comm=kind, zero=2)
    assert runs_on(plan, LLAMA3_8B, JOB, "", "NVIDIA") == runs
    reason = str(why_not("deepspeed", plan, LLAMA3_8B, JOB))
    assert ("all-to-alls alone (Ulysses)" in reason) == (kind != "a2a")


def test_bad_heads_are_named_for_every_framework() -> None:
    plan = layout(n_devices=6, tp=6, gbs=128)
    assert runs_on(plan, LLAMA3_8B) == ()
    assert "32 heads" in str(why_not("megatron", plan, LLAMA3_8B))


def of_gpus() -> tuple[str, ...]:
    """Return the frameworks that run on NVIDIA's accelerators."""
    return tuple(x for x in framework_names() if "NVIDIA" in framework_rules(x).vendors)


def test_runs_on() -> None:
    assert runs_on(layout(), LLAMA3_8B, JOB, "", "NVIDIA") == ("megatron", "deepspeed", "bridge")
    assert runs_on(layout(tp=2, sp=True), LLAMA3_8B, JOB, "", "NVIDIA") == ("megatron", "bridge")
    assert runs_on(layout(zero=2), LLAMA3_8B, JOB, "", "NVIDIA") == of_gpus()
    assert runs_on(layout(zero=2, shard=4), LLAMA3_8B, JOB, "", "NVIDIA") == (
        "megatron",
        "torchtitan",
        "fsdp2",
        "bridge",
        "automodel",
    )
    folded = layout(pp=4, vpp=2, schedule="zb-v")
    assert runs_on(folded, LLAMA3_8B, JOB, "", "NVIDIA") == ("torchtitan", "automodel")


def test_calls_that_make_no_sense() -> None:
    with pytest.raises(EmitError, match="unknown framework"):
        emit_plan("torch", EmitRequest(layout(), LLAMA3_8B, JOB, pool()))
    with pytest.raises(EmitError, match="contradicts itself"):
        emit_plan("megatron", EmitRequest(layout(dp=4), LLAMA3_8B, JOB, pool()))
    with pytest.raises(EmitError, match="contradicts itself"):
        emit_plan("megatron", EmitRequest(layout(stage_layers=(31,)), LLAMA3_8B, JOB, pool()))
    with pytest.raises(EmitError, match="contradicts itself"):
        emit_plan("megatron", EmitRequest(layout(gbs=64), LLAMA3_8B, JOB, pool()))


def group(name: str, shape: ModelShape, **changes: Any) -> list[str]:
    plan = layout(shape, **changes)
    return dict(flag_groups(plan, shape, JOB)).get(name, [])


def test_experts_of_mixtral():
    words = group("experts", MIXTRAL_8X7B, n_devices=64, pp=4, ep=8)
    assert words == [
        "--num-experts",
        "8",
        "--moe-router-topk",
        "2",
        "--moe-ffn-hidden-size",
        "14336",
        "--expert-model-parallel-size",
        "8",
        "--expert-tensor-parallel-size",
        "1",
        "--moe-token-dispatcher-type",
        "alltoall",
        "--moe-router-load-balancing-type",
        "aux_loss",
        "--moe-aux-loss-coeff",
        "1e-2",
        "--moe-grouped-gemm",
    ]
    assert group("experts", LLAMA3_8B) == []
    found = flags(script(MIXTRAL_8X7B, n_devices=8, pp=4))
    assert found["--num-experts"] == "8"
    assert found["--expert-model-parallel-size"] == "1"


def test_deepseek_v3():
    shape = DEEPSEEK_V3
    held = stage_layers(61, 16, 1, "ends")
    words = group("experts", shape, n_devices=1024, pp=16, ep=64, stage_layers=held)
    text = " ".join(words)
    for part in (
        "--moe-shared-expert-intermediate-size 2048",
        "--moe-layer-freq '([0]*3+[1]*58)'",
        "--moe-router-num-groups 8",
        "--moe-router-group-topk 4",
    ):
        assert part in text
    model = " ".join(group("model", shape, stage_layers=(61,)))
    for part in (
        "--multi-latent-attention",
        "--q-lora-rank 1536",
        "--kv-lora-rank 512",
        "--qk-head-dim 128",
        "--qk-pos-emb-head-dim 64",
        "--v-head-dim 128",
        "--mtp-num-layers 1",
    ):
        assert part in model
    assert "--kv-channels" not in model
    assert "--group-query-attention" not in model
    assert "--q-lora-rank" not in group("model", replace(shape, q_rank=0), stage_layers=(61,))
    place = " ".join(group("layout", shape, n_devices=1024, pp=16, stage_layers=held))
    assert place.count("mL'") == 1


def test_capacity_and_a_single_expert_a_token():
    shape = replace(MIXTRAL_8X7B, capacity_factor=1.25, top_k=1)
    words = group("experts", shape)
    assert words[words.index("--moe-expert-capacity-factor") + 1] == "1.25"
    assert {"--moe-pad-expert-input-to-capacity", "--moe-router-pre-softmax"} <= set(words)


def test_balance_is_forced_where_the_model_says_so():
    flag = "--moe-router-force-load-balancing"
    assert flag in group("experts", replace(MIXTRAL_8X7B, forced_balance=True))
    assert flag not in group("experts", MIXTRAL_8X7B)


def test_patterns_of_expert_layers():
    assert layer_frequency((False, True) * 24) == "([0,1]*24)"
    assert layer_frequency((False, True, True, False)) == "([0]*1+[1]*2+[0]*1)"


@pytest.mark.parametrize(
    ("shape", "changes", "reason"),
    [
        (MIXTRAL_8X7B, {"tp": 2}, "sequence parallelism only"),
        (MIXTRAL_8X7B, {"ep": 3}, "do not divide by ep 3"),
        (MIXTRAL_8X7B, {"etp": 3}, "do not divide by etp 3"),
        (MIXTRAL_8X7B, {"ep": 8, "etp": 2}, "do not divide 8 devices"),
        (replace(MIXTRAL_8X7B, bias=True), {"etp": 2}, "refused by Megatron-LM"),
    ],
)
def test_experts_that_megatron_refuses(shape, changes, reason):
    found = refusals("megatron", layout(shape, **changes), shape)
    assert any(reason in text for text in found)
    assert not refusals("megatron", layout(LLAMA3_8B, tp=2), LLAMA3_8B)


def test_experts_by_framework():
    assert runs_on(layout(MIXTRAL_8X7B, ep=8), MIXTRAL_8X7B, JOB, "", "NVIDIA") == (
        "megatron",
        "deepspeed",
        "bridge",
    )
    assert runs_on(layout(MIXTRAL_8X7B, ep=8, zero=3), MIXTRAL_8X7B, JOB, "", "NVIDIA") == (
        "megatron",
        "deepspeed",
        "torchtitan",
        "bridge",
        "automodel",
    )
    assert runs_on(layout(MIXTRAL_8X7B, zero=3), MIXTRAL_8X7B, JOB, "", "NVIDIA") == of_gpus()
    reason = why_not("deepspeed", layout(MIXTRAL_8X7B, pp=4, ep=2), MIXTRAL_8X7B, JOB)
    assert "AutoEP looks for them in a Hugging Face model" in reason


def test_replicated_zero_groups_of_experts():
    runs = layout(MIXTRAL_8X7B, ep=2, shard=4)
    assert not refusals("megatron", runs, MIXTRAL_8X7B)
    cut = layout(MIXTRAL_8X7B, ep=8, shard=4)
    assert "ranks that hold an expert" in refusals("megatron", cut, MIXTRAL_8X7B)[0]
