from dataclasses import replace
from typing import Any

import pytest

from costmodels.examples import LLAMA3_8B, MIXTRAL_8X7B
from planner.analyze.check.verdict import Verdict, describe, judge
from planner.errors import SpecError
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.mindspeed.settings import changed_options
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import run_of_text
from tests.planner.emitting import HEADER, JOB, layout
from tests.planner.frameworks.mindspeed.test_emit_mindspeed import npus
from tools.checkers.mindspeed_runs import BASE, EXPERTS, REFUSED

PTD = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
NPUS_PER_NODE=16
NNODES=4
WORLD_SIZE=$(($NPUS_PER_NODE*$NNODES))
TOKENIZER_PATH="your tokenizer path"
TP=2
PP=4
DISTRIBUTED_ARGS="
    --nproc_per_node $NPUS_PER_NODE \\
    --nnodes $NNODES
"
GPT_ARGS="
    --use-mcore-models \\
    --spec mindspeed_llm.tasks.models.spec.deepseek_spec layer_spec \\
    --tokenizer-name-or-path ${TOKENIZER_PATH} \\
    --num-layers 16 \\
    --noop-layers 14,15 \\
    --hidden-size 2048 --ffn-hidden-size 10944 --num-attention-heads 16 \\
    --padded-vocab-size 102400 --make-vocab-size-divisible-by 1 \\
    --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope \\
    --normalization RMSNorm --swiglu --disable-bias-linear --use-flash-attn \\
    --untie-embeddings-and-output-weights --bf16 --transformer-impl local
"
MOE_ARGS="
    --num-experts 64 --moe-router-topk 6 --moe-intermediate-size 1408 --moe-grouped-gemm \\
    --first-k-dense-replace 1 --moe-layer-freq 1 --n-shared-experts 2 \\
    --moe-router-load-balancing-type softmax_topk --expert-model-parallel-size 8 \\
    --moe-token-dispatcher-type alltoall_seq --moe-permutation-async-comm
"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \\
    $GPT_ARGS $MOE_ARGS \\
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \\
    --sequence-parallel --micro-batch-size 1 --global-batch-size 64 \\
    --use-distributed-optimizer --swap-optimizer --reuse-fp32-param --lr 1e-5 \\
    --distributed-backend nccl | tee logs/train.log
"""


def run_of(text: str, **query: Any) -> ExistingRun:
    return run_of_text(text, "pretrain.sh", RunQuery(**query))


def run_with(words: str, **query: Any) -> ExistingRun:
    text = " ".join(f"{BASE} {words}".split())
    return run_of(f"torchrun --nproc_per_node 16 pretrain_gpt.py {text}\n", **query)


def verdict(run: ExistingRun) -> Verdict:
    model, error = describe(run, None)
    assert error is None
    return judge(run, model, npus().accelerator, "26.1.0")


def codes(run: ExistingRun) -> set[str]:
    return {one.rule.code for one in verdict(run).refused}


def test_a_script_as_they_are_published() -> None:
    run = run_of(PTD)
    assert (run.framework, run.format) == ("mindspeed", "MindSpeed-LLM launch script")
    assert run.n_devices == 64
    assert {x: run.layout[x] for x in ("tp", "pp", "dp", "ep", "etp", "vpp", "zero")} == {
        "tp": 2,
        "pp": 4,
        "dp": 8,
        "ep": 8,
        "etp": 2,
        "vpp": 1,
        "zero": 1,
    }
    assert run.layout["counts"] == (4, 4, 4, 2)  # layers that do nothing are none
    assert run.model is not None
    model = run.model.document["model"]
    assert model["layers"] == 14
    assert (model["moe"]["dense_layers"], model["moe"]["experts"]) == (1, 64)
    assert (model["moe"]["moe_ffn"], model["moe"]["shared_ffn"]) == (1408, 2816)
    assert run.overestimated == "--swap-optimizer --reuse-fp32-param"
    assert any("your tokenizer path" in note or "tokenizer" in note for note in run.notes)
    assert not verdict(run).refused


def test_ways_of_context_parallelism() -> None:
    words = "--context-parallel-size 2 --context-parallel-algo"
    found = {
        name: run_with(f"{words} {name}").layout["cp_comm"]
        for name in ("megatron_cp_algo", "ulysses_cp_algo", "kvallgather_cp_algo")
    }
    assert list(found.values()) == ["p2p", "a2a", "all-gather"]
    hybrid = run_with(
        "--context-parallel-size 8 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 4"
    )
    assert hybrid.layout["cp_comm"] == "p2p"
    assert any("hybrid_cp_algo: priced as a ring" in note for note in hybrid.notes)


def test_layers_by_stage() -> None:
    words = "--pipeline-model-parallel-size 2 --num-layer-list 15,17"
    assert run_with(words).layout["counts"] == (15, 17)
    staged = run_with("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2")
    assert (staged.layout["vpp"], staged.layout["schedule"]) == (4, "interleaved")


def test_dual_pipe_is_priced_otherwise_and_says_so() -> None:
    run = run_with("--pipeline-model-parallel-size 4 --schedules-method dualpipev")
    assert run.layout["schedule"] == "1f1b"
    assert any("dualpipev: priced as 1F1B" in note for note in run.notes)


def test_attention_without_its_kernel() -> None:
    run = run_of(PTD.replace("--use-flash-attn", ""))
    assert run.model is not None
    assert run.model.document["model"]["flash_attention"] is False


@pytest.mark.parametrize(
    "words",
    [
        "--full-attention-interval 4",
        "--enable-dsa-indexer",
        "--num-zero-experts 8",
    ],
)
def test_models_that_are_not_priced_are_refused_by_name(words: str) -> None:
    with pytest.raises(SpecError, match=words.split()[0]):
        run_with(words)


def test_options_of_other_releases_are_doubts_and_others_are_refused() -> None:
    old = run_with("--swap-attention --use-nd-matmul")
    assert [doubt.what for doubt in old.doubts] == ["--use-nd-matmul"]
    assert codes(run_with("--tensor-paralel-size 2")) == {"MSL620"}


def test_no_plain_run_is_refused() -> None:
    assert codes(run_with("")) == codes(run_with(EXPERTS)) == set()


@pytest.mark.parametrize(("code", "words"), REFUSED)
def test_what_its_own_checks_refuse(code: str, words: str) -> None:
    assert code in codes(run_with(words))


def test_options_are_set_by_hand() -> None:
    sets = (("context_parallel_size", "2"), ("context_parallel_algo", "ulysses_cp_algo"))
    run = run_with("", sets=sets)
    assert (run.layout["cp"], run.layout["cp_comm"]) == (2, "a2a")


def test_a_change_of_plan_in_its_words() -> None:
    run = run_with("--pipeline-model-parallel-size 2 --tensor-model-parallel-size 2")
    old = layout(n_devices=16, pp=2, tp=2, dp=4)
    new = replace(old, pp=4, dp=1, cp=2, cp_comm="a2a", stage_layers=(7, 8, 8, 9), split="7-8-8-9")
    after = {
        "--pipeline-model-parallel-size": "4",
        "--num-layer-list": "7,8,8,9",
        "--context-parallel-size": "2",
        "--context-parallel-algo": "ulysses_cp_algo",
        "--micro-batch-size": "1",
    }
    assert changed_options(run, old, new, after) == {
        "--pipeline-model-parallel-size": "4",
        "--num-layer-list": "7,8,8,9",
        "--context-parallel-size": "2",
        "--context-parallel-algo": "ulysses_cp_algo",
    }
    back = changed_options(run_with("--num-layer-list 7,8,8,9"), new, old, {})
    assert back["--num-layer-list"] is None


@pytest.mark.parametrize("shape", [LLAMA3_8B, MIXTRAL_8X7B])
def test_an_emitted_script_is_read_as_the_same_model(shape: Any) -> None:
    plan = layout(shape, tp=2, sp=True)
    text = emit_plan("mindspeed", EmitRequest(plan, shape, JOB, npus(), HEADER))["mindspeed.sh"]
    model, error = describe(run_of(text), None)
    assert error is None
    assert model is not None
    assert (model.shape.layers, model.shape.kv_heads, model.shape.n_experts) == (
        shape.layers,
        shape.kv_heads,
        shape.n_experts,
    )
    assert (model.job.seq_len, model.job.global_batch) == (JOB.seq_len, JOB.global_batch)
