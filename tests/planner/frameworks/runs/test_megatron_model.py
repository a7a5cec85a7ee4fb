from typing import Any

import pytest

from costmodels.parameters import total_params
from planner.cli.spec_check import check_spec
from planner.errors import SpecError
from planner.frameworks.megatron.flags import parse_flags
from planner.frameworks.megatron.model import (
    MegatronSettings,
    described_pattern,
    layer_pattern,
    megatron_model,
    precision_of,
    read_megatron_model,
)
from planner.frameworks.runs.launch_script import read_launch
from planner.specs.importers.formats import looks_like_megatron
from planner.specs.loader import load_model, model_from_dict
from tests.planner.frameworks.runs.published import DATA, entries

MODELS = DATA / "megatron"
SMALL = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1"
)


def document(flags: str) -> dict[str, Any]:
    return read_megatron_model(f"{SMALL} {flags}", "x.sh").document


def test_megatron_s_defaults() -> None:
    assert document("") == {
        "model": {
            "layers": 4,
            "hidden": 64,
            "heads": 4,
            "kv_heads": 4,
            "head_dim": 16,
            "ffn": 256,
            "gated": False,
            "vocab": 50257,
            "vocab_multiple": 128,
            "tied": True,
            "norm": "layernorm",
            "bias": True,
            "positions": "learned",
            "flash_attention": True,
            "dropout": True,
        },
        "training": {
            "seq_len": 32,
            "global_batch": 1,
            "precision": "fp32",
            "optimizer": "adam",
        },
    }


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ("--swiglu", {"gated": True, "ffn": 128}),
        ("--swiglu --ffn-hidden-size 96", {"gated": True, "ffn": 96}),
        (
            "--group-query-attention --num-query-groups 2 --kv-channels 32",
            {"kv_heads": 2, "head_dim": 32},
        ),
        ("--num-query-groups 2", {"kv_heads": 4}),
        (
            "--position-embedding-type rope --normalization RMSNorm --disable-bias-linear",
            {"positions": "rope", "norm": "rmsnorm", "bias": False},
        ),
        ("--max-position-embeddings 64", {"positions": "learned", "max_positions": 64}),
        (
            "--untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0.0",
            {"tied": False, "dropout": False},
        ),
        ("--attention-backend unfused", {"flash_attention": False}),
        ("--transformer-impl local", {"flash_attention": False}),
        ("--transformer-impl local --use-flash-attn", {"flash_attention": True}),
        ("--tokenizer-type Llama2Tokenizer", {"vocab": 32000}),
        (
            "--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B",
            {"vocab": 128256},
        ),
        (
            "--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model nemotron_2_256k.model",
            {"vocab": 256000},
        ),
        (
            "--vocab-size 1000 --make-vocab-size-divisible-by 64",
            {"vocab": 1000, "vocab_multiple": 64},
        ),
        ("--padded-vocab-size 1024 --vocab-size 1000", {"vocab": 1000, "padded_vocab": 1024}),
        ("--mtp-num-layers 1 --position-embedding-type rope", {"mtp_layers": 1}),
    ],
)
def test_model_fields(flags: str, fields: dict[str, Any]) -> None:
    found = document(flags)["model"]
    assert {key: found[key] for key in fields} == fields


def test_experts_and_latent_attention() -> None:
    flags = (
        "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 32 --moe-layer-freq [0]+[1]*3"
        " --moe-shared-expert-intermediate-size 48 --moe-router-num-groups 4"
        " --moe-router-group-topk 2 --multi-latent-attention --q-lora-rank 24 --kv-lora-rank 16"
        " --qk-head-dim 8 --qk-pos-emb-head-dim 4 --v-head-dim 8 --disable-bias-linear"
        " --position-embedding-type rope"
    )
    model = document(flags)["model"]
    assert model["moe"] == {
        "experts": 8,
        "topk": 2,
        "moe_ffn": 32,
        "shared_ffn": 48,
        "dense_layers": 1,
        "routing_groups": 4,
        "top_groups": 2,
        "imbalance": 1.0,
    }
    assert model["mla"] == {"q_rank": 24, "kv_rank": 16, "qk_nope": 8, "qk_rope": 4, "v_head": 8}
    assert "kv_heads" not in model


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ("", "fp32"),
        ("--fp16", "fp16"),
        ("--bf16", "bf16"),
        ("--bf16 --accumulate-allreduce-grads-in-fp32", "bf16"),
        ("--bf16 --grad-reduce-in-bf16", "bf16-grads"),
        ("--bf16 --fp8-format hybrid", "fp8-delayed"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8", "fp8-mxfp8"),
        ("--bf16 --use-megatron-fsdp --megatron-fsdp-main-grads-dtype bf16", "bf16-grads"),
    ],
)
def test_precision(flags: str, precision: str) -> None:
    assert precision_of(MegatronSettings(parse_flags(flags.split()), ""))[0] == precision


def test_tokens_and_batch() -> None:
    assert document("--global-batch-size 16 --train-iters 10")["training"]["tokens"] == 5120
    assert document("--global-batch-size 16 --train-samples 100")["training"]["tokens"] == 3200
    found = megatron_model(
        MegatronSettings(parse_flags(f"{SMALL} --tensor-model-parallel-size 2".split()), ""),
        n_devices=8,
    )
    assert found.document["training"]["global_batch"] == 4  # one micro-batch on each of 4 ranks


@pytest.mark.parametrize(
    ("freq", "layers", "pattern"),
    [
        (1, 3, (1, 1, 1)),
        (2, 4, (1, 0, 1, 0)),
        ("([0]*2+[1]*3)", 5, (0, 0, 1, 1, 1)),
        ("[0,1]*2", 4, (0, 1, 0, 1)),
        ("'[1]*2'", 2, (1, 1)),
        ([0, 1, 1], 3, (0, 1, 1)),
        ("2", 3, (1, 0, 1)),
        ("[1]*999999999", 2, ()),
        ("__import__('os')", 2, ()),
        ("[1", 2, ()),
        (0, 2, ()),
    ],
)
def test_layer_patterns(freq: Any, layers: int, pattern: tuple[int, ...]) -> None:
    assert layer_pattern(freq, layers) == pattern


def test_patterns_in_words() -> None:
    assert described_pattern((1, 1, 1)) == (0, 1, True)
    assert described_pattern((0, 0, 0, 1)) == (3, 1, True)
    assert described_pattern((0, 0, 1, 0, 1)) == (1, 2, True)
    assert described_pattern((1, 0, 1, 0)) == (0, 2, False)
    notes = read_megatron_model(f"{SMALL} --num-experts 4 --moe-layer-freq 2", "x").notes
    assert "priced with 0 dense layers first" in notes[0]


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama3_8b_fp8.sh", 8.03),
        ("llama3_70b_slurm.sh", 70.55),
        ("mixtral_8x7b.sh", 46.70),
        ("deepseek_v3_mpirun.sh", 671.0),
        ("gpt3_175b_arrays.sh", 174.6),
        ("qwen_sizes_case.sh", 7.62),
    ],
)
def test_published_totals(name: str, billions: float) -> None:
    """Parameters of the models as their authors state them, in billions."""
    path = MODELS / name
    model = model_from_dict(read_megatron_model(path.read_text(), name).document)
    assert total_params(model.shape, model.job.seq_len) / 1e9 == pytest.approx(billions, rel=0.01)


def test_the_yaml_has_the_flags_and_loads() -> None:
    imported = read_megatron_model(f"{SMALL} --swiglu --bf16", "x.sh")
    text = imported.to_yaml()
    assert "layers: 4" in text
    assert "# --num-layers 4" in text
    assert "assumed: no --vocab-size: GPT-2's vocabulary" in text
    assert imported.assumptions[0].startswith("model.vocab = 50257")


def test_model_arguments_take_megatron_s_files(tmp_path: Any) -> None:
    path = MODELS / "llama3_8b_fp8.sh"
    assert load_model(path).shape.layers == 32
    assert "Megatron-LM arguments" in check_spec(path)
    _, body = entries("model_args.txt")[0]
    file = tmp_path / "model_config.yaml"
    file.write_text(body)
    assert load_model(file).shape.layers == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--num-layers 2 --hidden-size 8 --num-attention-heads 2", "no --seq-length"),
        (f"{SMALL} --hybrid-layer-pattern M*D", "a symbol of a layer that is not modelled"),
        (f"torchrun pretrain_mamba.py {SMALL}", "no --hybrid-layer-pattern"),
        (f"torchrun pretrain_bert.py {SMALL}", "BERT is an encoder"),
        (f"torchrun pretrain_t5.py {SMALL}", "T5"),
        (
            "--num-layers $L --hidden-size $H --num-attention-heads 4 --seq-length 8",
            "depends on L, H, which nothing sets",
        ),
    ],
)
def test_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_megatron_model(text, "x.sh")


def test_the_question_names_the_variables() -> None:
    with pytest.raises(SpecError) as caught:
        read_megatron_model(f"{SMALL} --ffn-hidden-size $FFN", "x.sh")
    assert str(caught.value) == (
        "x.sh: --ffn-hidden-size ${FFN} depends on FFN, which nothing sets\n  fix: --env FFN=..."
    )


def test_which_texts_are_megatron_s() -> None:
    assert looks_like_megatron(SMALL)
    assert not looks_like_megatron("model:\n  layers: 2\n")
    assert read_launch(SMALL, "x").argv[0] == "--num-layers"
