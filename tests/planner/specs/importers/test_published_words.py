"""Keys as files of the Hub spell them: shared keys, both sides, flags for every layer."""

import json
from pathlib import Path

import pytest

from costmodels.parameters import total_params
from planner.errors import SpecError
from planner.specs.importers.huggingface.reader import read_config
from planner.specs.loader import model_from_dict

ROWS = (Path(__file__).parent / "published.jsonl").read_text().splitlines()
PUBLISHED = {row["name"]: row["config"] for row in map(json.loads, ROWS)}


def model(name, **changes):
    return read_config(json.dumps(PUBLISHED[name] | changes), "", {}).document["model"]


def test_every_second_layer_of_hunyuan_large_takes_keys_of_the_one_before():
    pattern = model("hunyuan-large")["layer_kinds"][0]
    assert pattern == {"pattern": ["moe", "moe@shared"], "repeat": 32}
    assert model("hunyuan-large")["variants"] == {"shared": {"kv_shared": True}}
    assert "layer_kinds" not in model("hunyuan-large", use_cla=False)


@pytest.mark.parametrize("share", [0, "2", True])
def test_a_share_of_layers_that_is_none(share):
    with pytest.raises(SpecError, match="cla_share_factor from 1 on"):
        model("hunyuan-large", cla_share_factor=share)


def test_embeddings_of_gemma_attend_to_both_sides():
    data = {
        "model_type": "gemma3_text",
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 24,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "max_position_embeddings": 2048,
        "sliding_window": 512,
        "use_bidirectional_attention": True,
        "vocab_size": 262144,
    }
    section = read_config(json.dumps(data), "", {}).document["model"]
    kinds = ["bidirectional-window+dense"] * 5 + ["bidirectional+dense"]
    assert section["layer_kinds"] == [{"pattern": kinds, "repeat": 4}]
    assert section["window"] == {"size": 2 * 256 + 1}
    given = model_from_dict(data)
    # 262,144 * 768 + 24 (4 * 768 + 2 * 768 * 768 + 2 * 768 * 256 + 3 * 768 * 1152) + norms
    layer = 2 * 768 * 768 + 2 * 768 * 256 + 3 * 768 * 1152 + 2 * 768
    assert total_params(given.shape, 2048) == 262144 * 768 + 24 * layer + 768


def test_flags_say_which_layers_have_windows_and_experts():
    section = model("mimo-v2-flash")
    kinds = [x for e in section["layer_kinds"] for x in e.get("pattern", [e.get("kind")])]
    assert kinds[0] == "dense"  # attention to all, no experts
    assert section["window"] == {"size": 128}
    with pytest.raises(SpecError, match="expected true or false for 48 layers"):
        model("mimo-v2-flash", hybrid_layer_pattern=[0, 2] * 24)
    with pytest.raises(SpecError, match="expected true or false for 48 layers"):
        model("k-exaone-236b", is_moe_layer=[True] * 47)


def test_the_inner_width_of_a_mamba_is_the_stated_one():
    assert model("falcon-mamba-7b")["mamba1"]["inner"] == 8192
    assert model("falcon-mamba-7b", intermediate_size=None)["mamba1"]["inner"] == 16 * 4096


def test_a_base_for_every_layer_is_that_of_the_first():
    changes = {"rope_theta": [5e6] + [1e4] * 47}
    assert model("mimo-v2-flash", **changes)["details"]["rotary_base"] == 5e6


LING = {"model_type": "bailing_hybrid", "num_hidden_layers": 12, "vocab_size": 157184}


def test_ling_3_has_delta_nets_with_full_gates():
    section = read_config(json.dumps(LING), "", {}).document["model"]
    dense = [{"kind": "kda+dense", "count": 2}, {"kind": "kda+moe", "count": 3}]
    assert section["layer_kinds"][:3] == [*dense, {"kind": "moe", "count": 1}]
    heads = {"k_heads": 32, "v_heads": 32, "k_dim": 128, "v_dim": 128, "conv": 4}
    assert section["delta_net"] == {**heads, "full_gates": True}
    with pytest.raises(SpecError, match="no_kda_lora"):
        read_config(json.dumps(LING | {"no_kda_lora": False}), "", {})


def test_ling_2_5_has_latent_attention_and_linear_attention():
    kinds = [x for e in model("ling-2.6-flash")["layer_kinds"] for x in e.get("pattern", [])]
    assert (kinds.count("linear+moe"), kinds.count("moe")) == (7, 1)
    assert model("ling-2.6-flash")["linear"] == {"heads": 32, "head_dim": 128, "chunk": 64}
    assert model("ling-2.6-flash")["mla"]["kv_rank"] == 512


def test_layers_behind_the_last_whole_group_have_attention():
    entries = model("ring-mini-linear", num_hidden_layers=22)["layer_kinds"]
    kinds = [x for e in entries for x in e.get("pattern", [e.get("kind")] * e.get("count", 0))]
    assert kinds[-3:] == ["moe"] * 3


def test_minicpm_sala_has_gated_attention_between_linear_layers():
    section = model("minicpm-sala")
    assert section["attention_gate"] is True
    assert section["linear"] == {"heads": 32, "head_dim": 128, "chunk": 64}
    with pytest.raises(SpecError, match="lightning_nkv"):
        model("minicpm-sala", lightning_nkv=8)
    with pytest.raises(SpecError, match="attn_use_output_gate"):
        model("minicpm-sala", attn_use_output_gate=False)


def test_minimax_m3_chooses_blocks_of_keys():
    sparse = {"sparse_num_index_heads": 2, "sparse_topk_blocks": 8, "sparse_block_size": 64}
    flags = [0] * 3 + [1] * 57
    data = {
        "model_type": "minimax_m3_vl_text",
        "moe_layer_freq": flags,
        "sparse_attention_config": {**sparse, "sparse_attention_freq": flags},
    }
    section = read_config(json.dumps(data), "", {}).document["model"]
    assert section["indexer"] == {"heads": 2, "head_dim": 128, "top_k": 512, "block": 64}
    assert section["layer_kinds"] == [
        {"kind": "dense", "count": 3},
        {"kind": "sparse+moe", "count": 57},
    ]
    h, width = 6144, 64 * 128
    layer = 2 * h * width + 2 * h * 512 + 2 * h
    dense, moe = layer + 3 * h * 12288, layer + 129 * 3 * h * 3072 + 128 * h
    moe += h * 2 * 128 + h * 128 + 2 * 128
    given = model_from_dict(data)
    expected = 3 * dense + 57 * moe + 2 * 200064 * h + h
    assert total_params(given.shape, given.job.seq_len) == expected


def test_step_3_has_factored_queries():
    section = model("step3")
    assert section["factored"] == {"q_rank": 2048}
    assert section["kv_heads"] == 1
    runs = [{"kind": f"factored+{feed}", "count": n} for feed, n in (("dense", 4), ("moe", 56))]
    assert section["layer_kinds"] == [*runs, {"kind": "factored+dense", "count": 1}]


def test_diffusion_models_of_text_attend_to_both_sides():
    dream = PUBLISHED["qwen2.5-72b"] | {"model_type": "Dream", "full_attn_mask": True}
    section = read_config(json.dumps(dream), "", {}).document["model"]
    assert section["layer_kinds"] == [{"kind": "bidirectional+dense", "count": 80}]
    assert model("llada")["layer_kinds"] == [{"kind": "bidirectional+dense", "count": 32}]
    ling = PUBLISHED["ling-mini-2.0"] | {"model_type": "llada2_moe"}
    kinds = read_config(json.dumps(ling), "", {}).document["model"]["layer_kinds"]
    assert kinds[-1]["kind"] == "bidirectional+moe"
    with pytest.raises(SpecError, match="full_attn_mask"):
        model("qwen2.5-72b", full_attn_mask=True)


@pytest.mark.parametrize(
    "name", ["gemma-7b-old", "qwen-7b-v1", "starcoder2-3b", "falcon-mamba-7b"]
)
def test_a_file_without_a_type_is_what_its_class_says(name):
    data = {key: x for key, x in PUBLISHED[name].items() if key != "model_type"}
    ours, theirs = (model_from_dict(x) for x in (data, PUBLISHED[name]))
    assert total_params(ours.shape, 8192) == total_params(theirs.shape, 8192)


def test_a_class_without_a_price_is_refused_by_what_its_layers_have():
    data = PUBLISHED["llama2-7b"] | {"architectures": ["JetMoeForCausalLM"]}
    del data["model_type"]
    with pytest.raises(SpecError, match="JetMoeForCausalLM: attention whose heads are experts"):
        read_config(json.dumps(data), "", {})
