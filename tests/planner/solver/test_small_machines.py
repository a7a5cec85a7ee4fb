"""Fine-tuning on few cards: what is said of the job, and what helps where nothing fits."""

from typing import Any

import pytest

from planner.errors import SearchError
from planner.render.answers.inputs import job_text
from planner.render.answers.plan_table import columns_of, has_no_length
from planner.solver.answer.result import Result
from planner.solver.request import SolveRequest
from planner.solver.solve import solve


def solved(model: str = "llama3-8b", cluster: str = "1x4090", **fields: Any) -> Result:
    names = {"task": "task", "seq": "seq_len", "batch": "global_batch"}
    overrides = [(f"training.{names.get(key, key)}", value) for key, value in fields.items()]
    return solve(model, cluster, SolveRequest.of(overrides=tuple(overrides)))


def test_tokens_of_pretraining_are_no_length_of_fine_tuning() -> None:
    tuned = solved(task="qlora", seq=2048, batch=16)
    assert has_no_length(tuned)
    assert [plan.training_s for plan in tuned.plans] == [None] * len(tuned.plans)
    by_name = {column.name: column for column in columns_of(tuned)}
    assert "days" not in by_name
    column = by_name["minutes_per_mtok"]
    assert (column.title, column.unit) == ("min", "/Mtok")
    best = tuned.plans[0]
    minutes = best.step_time_s / (2048 * 16) * 1e6 / 60.0
    assert float(column.text(best)) == pytest.approx(minutes, rel=0.005)


def test_stated_tokens_give_days() -> None:
    tuned = solved(task="qlora", seq=2048, batch=16, tokens="20M")
    best = tuned.plans[0]
    assert best.training_s == pytest.approx(best.step_time_s * 20e6 / (2048 * 16))
    assert {"days", "minutes_per_mtok"} & {x.name for x in columns_of(tuned)} == {"days"}
    plain = solved(cluster="h100-x512", task="pretrain")
    assert plain.plans[0].training_s is not None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"task": "qlora"}, ", bf16, QLoRA rank 16, NF4 base"),
        ({"task": "lora", "lora.rank": 8, "reference": "memory"}, "LoRA rank 8, reference memory"),
        ({"task": "qlora", "lora.base": "int8"}, "QLoRA rank 16, int8 base"),
        ({"task": "sft"}, ", bf16, all weights tuned"),
        ({"task": "dpo"}, ", bf16, DPO, reference memory"),
        ({"task": "pretrain"}, "global batch 16, bf16"),
    ],
)
def test_the_job_says_what_is_trained(fields: dict[str, Any], words: str) -> None:
    assert job_text(solved(cluster="8xh100", seq=1024, batch=16, **fields)).endswith(words)


def commands(result: Result) -> list[str]:
    assert not result.plans
    return [one.command for one in result.relaxations]


def test_smaller_jobs_and_larger_cards_are_offered() -> None:
    said = commands(solved(task="qlora", batch=16))
    head = "planner solve llama3-8b 1x4090 --framework fsdp2 --task qlora --batch 16"
    assert f"{head} --seq 4096" in said
    card = "planner solve llama3-8b 1xrtx-5090-32gb --framework fsdp2 --task qlora --batch 16"
    assert card in said


def test_quantized_weights_are_offered_beside_adapters() -> None:
    said = commands(solved("llama3-70b", "1xh100", task="lora", seq=2048, batch=4))
    assert said[0] == (
        "planner solve llama3-70b 1xh100 --framework fsdp2 --task qlora --seq 2048 --batch 4"
    )
    assert "planner solve llama3-70b 1xb200-sxm-180gb" in " ".join(said)


def test_adapters_are_offered_in_place_of_all_weights() -> None:
    said = commands(solved(task="sft", seq=1024, batch=16, cluster="2x4090"))
    tasks = [text.split("--task ")[1].split()[0] for text in said if "--framework fsdp2" in text]
    assert tasks == ["lora", "qlora"]
    pairs = commands(solved(task="dpo", seq=1024, batch=16))
    assert any("--task qlora" in text and "reference=memory" in text for text in pairs)


def test_pretraining_keeps_its_long_options() -> None:
    said = commands(solved(seq=4096, batch=64))
    assert not any("--seq" in text or "1xrtx" in text for text in said)
    assert said


def test_own_files_keep_their_tokens() -> None:
    from planner.specs.loader import load_model, model_from_dict

    document = load_model("llama3-8b").document
    own = {**document, "training": {**document["training"], "task": "lora", "tokens": 1e8}}
    assert model_from_dict(own, [("training.lora.rank", 8)]).job.tokens == 1e8
    assert model_from_dict(own, [("training.task", "qlora")]).job.tokens == 1e8
    assert model_from_dict(document, [("training.task", "qlora")]).job.tokens == 0.0
    assert model_from_dict(document, [("training.task", "pretrain")]).job.tokens == 15e12


def test_mi210_is_priced_on_pcie_and_mi250x_is_refused() -> None:
    job = {"task": "lora", "seq": 2048, "batch": 16}
    best = solved(cluster="4xmi210", **job).plans[0]
    problem = best.breakdown.rows.problem if best.breakdown.rows else None
    assert problem is not None
    assert problem.pool.accelerator.scale_up_link == "pcie4"
    gradients = [each for each in best.breakdown.transfers if each.axis == "dp"]
    # Adapters of 42 M parameters: gradients in fp32 down, weights in bf16 up, each three quarters
    # of them over a ring of four at 20 GB/s at most.
    least_s = 41_943_040 * (4.0 + 2.0) * 0.75 / 20e9
    assert sum(each.time_s for each in gradients) > least_s
    with pytest.raises(SearchError, match="two dies"):
        solved(cluster="4xmi250x", **job)


SMALL_1B: dict[str, Any] = {
    "model": {
        **{"name": "small-1b", "layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8},
        **{"head_dim": 64, "ffn": 8192, "gated": True, "vocab": 128256, "tied": True},
    },
    "training": {"seq_len": 2048, "global_batch": 16, "task": "sft"},
}


def test_states_on_the_host_of_a_card_are_offered_and_priced_at_its_rates() -> None:
    request = SolveRequest.of(framework="deepspeed")
    said = commands(solve(SMALL_1B, "1x4090", request))
    assert any("--only optimizer_offload=off,on" in text for text in said)
    pinned = SolveRequest.of(framework="deepspeed", pins={"optimizer_offload": "on"})
    best = solve(SMALL_1B, "1x4090", pinned).plans[0]
    params = (
        128256 * 2048 + 16 * (2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048) + 2048
    )
    # Adam and the clip move 28 + 8 bytes a parameter through 0.45 of 51.2 GB/s, then 4 go up PCIe
    # at 25 GB/s; gradients went down beside the backward.
    waits_s = params * (36.0 / (0.45 * 51.2e9) + 4.0 / 25e9)
    assert best.breakdown.time_s["offload"] == pytest.approx(waits_s, rel=0.01)
