"""config.json of a model file: by its parts; what no class of transformers holds is refused."""

from dataclasses import replace
from typing import Any

import pytest

from costmodels.examples import LLAMA3_8B, MIXTRAL_8X7B
from costmodels.shapes import ModelShape, TrainingJob
from planner.errors import EmitError
from planner.frameworks.deepspeed.emitter import deepspeed_files
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.hf_config import config_file, hf_config
from planner.specs.loader import load_model
from planner.specs.schema import DetailsSpec
from tests.planner.emitting import HEADER, layout, pool

JOB = TrainingJob(seq_len=8192, global_batch=128)
GPT2 = replace(
    LLAMA3_8B, kv_heads=32, gated=False, norm="layernorm", bias=True, positions="learned"
)


def config(shape: ModelShape, **details: Any) -> dict[str, Any]:
    found: dict[str, Any] = hf_config(shape, JOB, DetailsSpec(**details))
    return found


def test_llama() -> None:
    got = config(LLAMA3_8B, rotary_base=500000.0)
    assert got["model_type"] == "llama"
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    assert [got[name] for name in sizes] == [4096, 32, 32, 8]
    assert (got["intermediate_size"], got["vocab_size"]) == (14336, 128256)
    assert (got["rope_theta"], got["max_position_embeddings"]) == (500000.0, 8192)
    assert (got["tie_word_embeddings"], got["attention_bias"]) == (False, False)


@pytest.mark.parametrize(
    ("shape", "details", "kind"),
    [
        (LLAMA3_8B, {"qk_norm": "head"}, "qwen3"),
        (LLAMA3_8B, {"qkv_bias": True}, "qwen2"),
        (LLAMA3_8B, {"window": 4096}, "mistral"),
        (GPT2, {}, "gpt2"),
        (replace(GPT2, positions="rope"), {}, "starcoder2"),
        (MIXTRAL_8X7B, {}, "mixtral"),
        (MIXTRAL_8X7B, {"qk_norm": "head"}, "qwen3_moe"),
        (replace(MIXTRAL_8X7B, shared_ffn=14336), {"shared_expert_gate": True}, "qwen2_moe"),
        (replace(MIXTRAL_8X7B, shared_ffn=14336), {"router_scores": "sigmoid"}, "glm4_moe"),
    ],
)
def test_the_parts_choose_the_class(shape: ModelShape, details: dict[str, Any], kind: str) -> None:
    assert config(shape, **details)["model_type"] == kind


def test_latent_attention() -> None:
    model = load_model("deepseek-v3")
    got = config(replace(model.shape, mtp_layers=0))
    assert got["model_type"] == "deepseek_v3"
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    assert [got[name] for name in names] == [1536, 512, 128, 64, 128]
    names = ("n_routed_experts", "num_experts_per_tok", "n_shared_experts")
    assert [got[name] for name in names] == [256, 8, 1]
    assert (got["first_k_dense_replace"], got["n_group"], got["topk_group"]) == (3, 8, 4)


@pytest.mark.parametrize(
    ("shape", "details", "part"),
    [
        (replace(LLAMA3_8B, mtp_layers=1), {}, "multi-token prediction"),
        (replace(LLAMA3_8B, gated=False), {}, "RMSNorm in an MLP of two matrices"),
        (LLAMA3_8B, {"attention_sinks": True}, "attention sinks"),
        (LLAMA3_8B, {"rotary_percent": 0.5}, "a share of each head"),
        (LLAMA3_8B, {"rope_scaling": "longrope"}, "longrope"),
        (replace(MIXTRAL_8X7B, shared_ffn=14336), {}, "shared experts"),
        (replace(MIXTRAL_8X7B, dense_layers=2), {}, "dense layers beside experts"),
    ],
)
def test_what_no_class_holds_is_named(
    shape: ModelShape, details: dict[str, Any], part: str
) -> None:
    with pytest.raises(EmitError, match=part):
        config(shape, **details)
    files, why = config_file(shape, JOB, DetailsSpec(**details))
    assert files == {}
    assert part in why


def test_a_model_without_config_asks_for_one() -> None:
    shape = replace(LLAMA3_8B, gated=False)
    script = deepspeed_files(EmitRequest(layout(shape), shape, JOB, pool(), HEADER))[
        "deepspeed.sh"
    ]
    assert "repository id, is needed: no class of transformers" in script


def test_a_pipeline_that_the_program_lacks_asks_for_a_script() -> None:
    script = deepspeed_files(EmitRequest(layout(GPT2, pp=4), GPT2, JOB, pool(), HEADER))[
        "deepspeed.sh"
    ]
    assert "TRAIN_SCRIPT:?set it: deepspeed_train.py has no pipeline of a model" in script
