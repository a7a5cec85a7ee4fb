"""Every key of a configuration is read, harmless or refused by name; what `--as` may read.

`published.jsonl`: the architecture of published models in the words of their config.json, with
the parameters as transformers 5.23 counts them (`counted`); where only code beside the weights
builds them as their authors print them (`billions`) or as sums of the shapes there (`by_hand`);
or none of these: layers to be refused.
"""

import json
from pathlib import Path

import pytest

from costmodels.parameters import total_params
from planner.errors import SpecError
from planner.specs.importers.huggingface.config import open_config
from planner.specs.importers.huggingface.files import parse_config
from planner.specs.importers.huggingface.harmless import HARMLESS
from planner.specs.importers.huggingface.keys import key_refusals, missing
from planner.specs.importers.huggingface.model_types import ALIASES, TYPES
from planner.specs.importers.huggingface.reader import ADVISED, read_as, read_config
from planner.specs.importers.huggingface.rules import KEYS
from planner.specs.loader import model_from_dict

PUBLISHED = {
    row["name"]: row
    for row in map(
        json.loads, (Path(__file__).parent / "published.jsonl").read_text().splitlines()
    )
}
READ = [name for name, row in PUBLISHED.items() if {"counted", "billions", "by_hand"} & set(row)]
REFUSED = [name for name in PUBLISHED if name not in READ]


def config(name, **changes):
    data = PUBLISHED[name]["config"] | changes
    return {key: value for key, value in data.items() if value is not ...}


def refusal(data, as_type=""):
    text = json.dumps(data, indent=2)
    with pytest.raises(SpecError) as caught:
        read_as(text, "config.json", as_type) if as_type else read_config(text, "config.json", {})
    return str(caught.value)


def count(data):
    given = model_from_dict(data)
    return total_params(given.shape, given.job.seq_len)


@pytest.mark.parametrize("name", READ)
def test_parameters_of_published_files(name):
    row = PUBLISHED[name]
    exact = row.get("counted", row.get("by_hand"))
    if exact:
        assert count(row["config"]) == pytest.approx(exact, rel=1.3e-4)
    else:
        assert count(row["config"]) == pytest.approx(row["billions"] * 1e9, rel=1.5e-3)


@pytest.mark.parametrize("name", REFUSED)
def test_other_layers_are_refused_and_no_command_is_advised(name):
    message = refusal(PUBLISHED[name]["config"])
    assert message.startswith("config.json:")
    assert "planner import model config.json --as" not in message


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("as_type", ["llama", "mixtral", "deepseek_v3", "qwen3_moe", "gpt2"])
def test_no_type_reads_them_by_hand_either(name, as_type):
    refusal(PUBLISHED[name]["config"], as_type)


WHAT = [
    ("mamba-2.8b-orig", "original Mamba (state-spaces)"),
    ("mamba2-orig", "original Mamba (state-spaces)"),
    ("nemotron-h", "hybrid_override_pattern: 4 layers, and num_hidden_layers is 52"),
    ("openelm", "widths of 2 layers, and the model has 16"),
    ("santacoder", "attention_head_type: 'multiquery'"),
    ("opt-350m", "has norms in front of attention and MLP"),
]


@pytest.mark.parametrize(("name", "text"), WHAT)
def test_what_stands_in_the_way_is_named(name, text):
    assert text in refusal(PUBLISHED[name]["config"])


class TestGrok1:
    def test_llama_would_drop_the_experts(self):
        message = refusal(config("grok-1"), "llama")
        assert message.startswith("config.json:16:18: num_experts: 8: not a key of llama")
        assert "num_experts_per_tok" in message
        assert "take it out" not in message

    def test_latent_attention_is_not_invented(self):
        assert "kv_lora_rank" in refusal(config("grok-1", num_key_value_heads=48), "deepseek_v3")

    def test_it_has_the_size_of_a_mixtral(self):
        document = read_as(json.dumps(config("grok-1", hidden_act="silu")), "", "mixtral").document
        # 64 layers of 8 experts of 3 * 6144 * 32768 and attention; one tied matrix.
        attention = 2 * 6144 * 6144 + 2 * 6144 * 1024
        layer = 8 * 3 * 6144 * 32768 + attention + 8 * 6144 + 2 * 6144
        assert count(document) == 64 * layer + 131072 * 6144 + 6144
        assert count(config("grok-1")) == count(document)


def mine(name="llama2-7b", **changes):
    return config(name, model_type="mine", architectures=["MineForCausalLM"], **changes)


def read(data):
    return read_config(json.dumps(data), "config.json", {})


class TestByFields:
    def test_a_copy_of_a_known_type(self):
        data = mine()
        assert count(data) == PUBLISHED["llama2-7b"]["counted"]
        assert any("--as llama" in note for note in read(data).notes)

    @pytest.mark.parametrize(
        ("missing_key", "assumed"),
        [
            ("tie_word_embeddings", "model.tied = false"),
            ("num_key_value_heads", "model.kv_heads = 32"),
            ("rms_norm_eps", "model.norm = rmsnorm"),
            ("rope_theta", "model.positions = rope"),
        ],
    )
    def test_what_no_key_says_is_assumed(self, missing_key, assumed):
        whole, part = read(mine(rope_scaling=...)), mine(rope_scaling=..., **{missing_key: ...})
        assert not any(text.startswith(assumed) for text in whole.assumptions)
        assert any(text.startswith(assumed) for text in read(part).assumptions)
        assert count(part) == PUBLISHED["llama2-7b"]["counted"]

    @pytest.mark.parametrize("changes", [{"moe_layers_of_mine": 4}, {"recurrent_blocks": [1, 2]}])
    def test_no_key_that_may_be_of_layers_is_left_out(self, changes):
        message = refusal(mine(**changes))
        assert f"{next(iter(changes))} would be left out" in message
        assert "--as llama" not in message
        refusal(mine(**changes), "llama")

    @pytest.mark.parametrize("name", ["qwen3-coder-480b", "mixtral-8x7b-awq", "moonlight-16b"])
    def test_experts_and_latent_attention(self, name):
        assert count(mine(name)) == pytest.approx(PUBLISHED[name]["counted"], rel=1.3e-4)

    def test_layer_norms_and_two_matrices(self):
        data = mine("pythia-6.9b", use_bias=True)
        assert count(data) == pytest.approx(PUBLISHED["pythia-6.9b"]["counted"], rel=1.3e-4)

    def test_a_size_that_is_not_there(self):
        assert "the file does not say hidden_size" in refusal(mine(hidden_size=...))

    def test_the_class_of_another_type_borrows_no_sizes(self):
        data = config("llama2-7b", model_type="mine", tie_word_embeddings=...)
        assert any(text.startswith("model.tied = false") for text in read(data).assumptions)
        data["tie_word_embeddings"] = False
        assert count(data) == PUBLISHED["llama2-7b"]["counted"]
        assert "hidden_size" in refusal(data | {"hidden_size": None})

    def test_the_type_can_be_stated_wherever_a_model_is_read(self):
        data = mine(attention_bias=...)
        given = model_from_dict(data, [("model.as", "qwen2")])
        assert given.format == "Hugging Face config.json (qwen2)"
        assert total_params(given.shape, 4096) == count(data)
        own = {"model": {"layers": 2}, "training": {}}
        with pytest.raises(SpecError, match="is no config"):
            model_from_dict(own, [("model.as", "qwen2")])

    def test_advised_types_are_known(self):
        assert set(ADVISED) <= set(TYPES)


NEUTRAL = [
    {"num_experts": 0},
    {"sliding_window": None},
    {"attention_multiplier": 1.0},
    {"q_lora_rank": None},
    {"n_layer": 32},
    {"head_dim": 128},
    {"num_local_experts": None},
    {"mlp_only_layers": []},
    {"use_qkv_bias": False},
    {"use_bias": False},
    {"use_mla": False},
    {"gated_mlp": True},
    {"norm_type": "rmsnorm"},
    {"position_embedding_type": "rope"},
    {"my_flag": True},
    {"my_word": "abc"},
    {"some_token_id": 7},
    {"initial_context_length": 4096},
    {"alibi": False},
    {"vision_config": {"hidden_size": 12}},
    {"quantization_config": {"bits": 4}},
    {"shared_intermediate_size": 0},
    {"block_configs": None},
    {"mtp_loss_scaling_factor": 0.1},
]
STRUCTURAL = [
    {"num_experts": 8},
    {"num_experts_per_tok": 2},
    {"q_lora_rank": 512},
    {"n_layer": 31},
    {"kv_lora_rank": 512},
    {"shared_intermediate_size": 512},
    {"use_bias": True},
    {"no_bias": False},
    {"use_mla": True},
    {"gated_mlp": False},
    {"norm_type": "layernorm"},
    {"position_embedding_type": "alibi"},
    {"alibi": True},
    {"attention_head_type": "multiquery"},
    {"my_number": 3},
    {"my_list": [1, 2]},
    {"my_section": {"a": 1}},
    {"share_embeddings": True},
    {"use_residual": True},
    {"layer_sharing": True},
    {"mlp_ratio": 2.5},
    {"is_encoder_decoder": True},
    {"use_parallel_residual": True},
    {"expert_layer_period": 2},
    {"kv_channels": 64},
    {"mamba_d_state": 16},
    {"index_topk": 2048},
    {"num_key_value_heads_per_layer": [4] * 32},
    {"word_embed_proj_dim": 512},
    {"linear_num_key_heads": 16},
]


@pytest.mark.parametrize("changes", NEUTRAL, ids=str)
def test_what_changes_nothing_is_passed_over(changes):
    assert count(config("llama2-7b", **changes)) == PUBLISHED["llama2-7b"]["counted"]


@pytest.mark.parametrize("changes", STRUCTURAL, ids=str)
def test_what_may_change_the_model_is_refused_by_name(changes):
    (name,) = changes
    message = refusal(config("llama2-7b", **changes))
    assert f" {name}: " in message or f" {name}." in message
    assert message.startswith("config.json:")
    assert "fix: " in message


def test_strays_are_named_in_a_note():
    found = read_config(json.dumps(config("llama2-7b", my_flag=True, my_word="x")), "", {})
    assert "not known, and by name and value no size: my_flag, my_word" in found.notes


class TestFullAttentionInAllLayers:
    def test_of_minimax(self):
        layers = ["full_attention"] * 80
        data = config("minimax-full", attn_type_list=..., layer_types=layers, model_type="minimax")
        assert count(data) == count(config("minimax-full"))

    def test_not_said(self):
        """Every second layer is linear then: 4 + 1 matrices of h w in place of attention."""
        linear = count(config("minimax-full", attn_type_list=...))
        assert linear != count(config("minimax-full"))


def test_the_table_has_each_key_once():
    names = [name for text in HARMLESS.values() for name in text.split()]
    assert len(names) == len(set(names))
    sizes = {
        name for field in ("layers", "hidden", "heads", "ffn", "experts") for name in KEYS[field]
    }
    assert not sizes & set(names)


@pytest.mark.parametrize("name", [*TYPES, *ALIASES])
def test_the_least_of_a_type_has_no_refused_key(name):
    document = parse_config(json.dumps({"model_type": name, "hidden_size": 64}), "")
    found = open_config(document)
    assert [p.path for p in key_refusals(found)] in ([], ["hidden_size"])
    assert isinstance(missing(found), list)
