"""What the fuzzer has found, each once: sizes and texts that made a defect, or took too long."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from service.handlers.calls import call
from service.handlers.limits import RequestLimits
from service.handlers.problems import Refusal
from service.handlers.running_call import RunningCall

HUGE = "9" * 5_000
FLAGS = {
    "num-layers": "32",
    "hidden-size": "4096",
    "num-attention-heads": "32",
    "seq-length": "4096",
    "max-position-embeddings": "4096",
    "micro-batch-size": "1",
    "global-batch-size": "64",
    "vocab-size": "32000",
    "tensor-model-parallel-size": "8",
}


def script(*more: str, **flags: str) -> str:
    given = FLAGS | {name.replace("_", "-"): value for name, value in flags.items()}
    words = [f"--{name} {value}" for name, value in given.items() if value != "-"]
    return (
        " ".join(["torchrun --nproc_per_node 8 pretrain_gpt.py", *words, "--bf16", *more]) + "\n"
    )


def run(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "check", {"run": {"text": text, "name": "a.sh"}, "cluster": "h100-x8", **more}


def config(**more: Any) -> tuple[str, dict[str, Any]]:
    data = {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 8,
        "hidden_size": 512,
        "vocab_size": 100,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
        "intermediate_size": 1024,
        "max_position_embeddings": 4096,
        **more,
    }
    return "check-spec", {"document": json.dumps(data)}


NEO = {"model_type": "gpt_neo", "num_layers": 8, "num_heads": 8, "num_attention_heads": 8}
PUBLISHED = Path(__file__).parents[1] / "planner" / "frameworks" / "runs" / "data" / "megatron"
DEEPSPEED = (PUBLISHED / "megatron_deepspeed_175b.sh").read_text()
ENGINE = "deepspeed pretrain_gpt.py --deepspeed --deepspeed_config ds.json"


@pytest.mark.parametrize(
    "asked",
    [
        config(num_hidden_layers=10**15),
        config(num_hidden_layers=9_999, decoder_sparse_step=9_999),
        config(num_hidden_layers=9_999, mlp_only_layers=list(range(9_000))),
        config(**NEO, attention_types=[[["global"], 10**15]]),
        config(**NEO, attention_types=[[["global"], 10**15], [["local"], 8 - 10**15]]),
        run(DEEPSPEED.replace("HEADS=96", "HEADS=9\x1b[0m6")),
        run(script(pipeline_model_parallel_size="-1")),
        run(script(pipeline_model_parallel_size="0")),
        run(script("--decoder-last-pipeline-num-layers -5", pipeline_model_parallel_size="2")),
        run(
            script("--num-layers-per-virtual-pipeline-stage -1", pipeline_model_parallel_size="2")
        ),
        run(script("--num-layers-per-virtual-pipeline-stage 0", pipeline_model_parallel_size="2")),
        run(script("--num-virtual-stages-per-pipeline-rank -1", pipeline_model_parallel_size="2")),
        run(script("--account-for-loss-in-pipeline-split", pipeline_model_parallel_size="33")),
        run(script("--expert-tensor-parallel-size -2 --num-experts 8")),
        run(script(num_attention_heads="0")),
        run(script(num_layers="0")),
        run(script(seq_length="0")),
        run(script(num_layers="-", encoder_num_layers="0")),
        run(script(train_samples=HUGE)),
        run(script(num_layers=HUGE)),
        run(script(num_layers="\u00b2")),
        run(script(seq_length="--5")),
        run(script("--pipeline-model-parallel-layout 't*" + HUGE + "'")),
        run(script("--pipeline-model-parallel-layout '" + "(tt)*99999999|" * 50 + "'")),
        run(
            script(
                "--decoder-first-pipeline-num-layers 32", pipeline_model_parallel_size="1000000000"
            )
        ),
        run("#!/bin/bash\n((GBS=128\nA=(--num-layers $GBS)\n" + script()),
        run("A=$((" + HUGE + "))\n" + script()),
        run("A=9\n" + "A=$((A*A*A))\n" * 40 + script(num_layers="$A")),
        run("A=$((1 << -1)); B=$((1 >> -5))\n" + script()),
        run("#SBATCH --nodes=\u00b2 --ntasks-per-node=\u00b2\n" + script()),
        run("#SBATCH --nodes=" + HUGE + " --ntasks-per-node=2\n" + script()),
        run(
            script().replace("torchrun --nproc_per_node 8", ENGINE[:9]) + ENGINE[9:],
            files={"ds.json": '{"a": '},
        ),
        ("check-spec", {"document": "model: {layers: 0x" + "f" * 60 + "}\n"}),
    ],
)
def test_it_is_answered_or_refused_soon(asked):
    name, body = asked
    begun_s = time.process_time()
    status = 200
    try:
        json.dumps(call(name, body))
    except Refusal as problem:
        status = problem.status
    assert status < 500
    assert time.process_time() - begun_s < 10.0  # it was minutes


@pytest.mark.slow
def test_the_points_of_a_sweep_are_read_within_its_time():
    cluster = {"name": "x", "pools": [{"nodes": 1}] * 50}
    spec = {
        "model": "llama3-8b",
        "cluster": cluster,
        "vary": {"training.global_batch": list(range(1, 3_000))},
    }
    begun_s = time.process_time()
    complete = False
    try:
        answer = call("sweep", {"spec": spec}, RunningCall(RequestLimits(job_s=0.5, solve_s=0.5)))
        complete = answer["complete"]
    except Refusal:
        pass  # refused is as well
    assert not complete
    assert time.process_time() - begun_s < 20.0


def test_a_defect_says_its_kind_and_no_more(monkeypatch):
    from dataclasses import replace

    from service.handlers.calls import CALLS

    def broken(*given: Any) -> None:
        raise FileNotFoundError("/srv/secret/place")

    monkeypatch.setitem(CALLS, "rules", replace(CALLS["rules"], function=broken))
    with pytest.raises(Refusal) as caught:
        call("rules", {})
    said = json.dumps(caught.value.to_json())
    assert "FileNotFoundError" in said
    assert "secret" not in said
