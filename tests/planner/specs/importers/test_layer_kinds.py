"""Layers of several kinds in configurations: which they are, and the sizes of their mixers."""

import json
from dataclasses import replace

import pytest

from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import layer_run
from costmodels.parameters import total_params
from planner.errors import EmitError, SpecError
from planner.frameworks.hf_config import hf_config
from planner.specs.importers.huggingface.layer_kinds import compressed
from planner.specs.importers.huggingface.reader import read_config
from planner.specs.loader import model_from_dict


def read(**keys):
    return read_config(json.dumps(keys), "config.json", {}).document["model"]


def shape_of(**keys):
    return model_from_dict(keys).shape


class TestNemotron:
    def test_letters_of_the_pattern(self):
        model = read(model_type="nemotron_h", hybrid_override_pattern="MEM*-", num_hidden_layers=5)
        assert [entry["kind"] for entry in model["layer_kinds"]] == [
            "mamba2+none",
            "none+moe",
            "mamba2+none",
            "attention+none",
            "none+dense",
        ]
        assert model["layers"] == 5
        assert model["mamba2"] == {
            "heads": 128,
            "head_dim": 64,
            "groups": 8,
            "state": 128,
            "conv": 4,
            "chunk": 128,
        }
        assert model["moe"]["shared_ffn"] == 7688
        assert not model["gated"]

    def test_words_say_the_same(self):
        words = ["mamba", "moe", "linear_attention", "full_attention", "mlp"]
        by_words = shape_of(model_type="nemotron_h", layers_block_type=words)
        pattern = shape_of(model_type="nemotron_h", hybrid_override_pattern="MEM*-")
        assert by_words == pattern

    @pytest.mark.parametrize("pattern", ["MX*-", 7])
    def test_another_letter_is_an_error(self, pattern):
        with pytest.raises(SpecError, match="hybrid_override_pattern: expected a pattern"):
            read(model_type="nemotron_h", hybrid_override_pattern=pattern)


class TestStateSpaces:
    def test_attention_in_the_layers_that_are_listed(self):
        model = read(model_type="bamba", num_hidden_layers=6, attn_layer_indices=[1, 2])
        assert model["layer_kinds"] == [
            {"kind": "mamba2+dense", "count": 1},
            {"kind": "dense", "count": 2},
            {"kind": "mamba2+dense", "count": 3},
        ]

    @pytest.mark.parametrize("head", [{}, {"mamba_d_head": "auto"}, {"mamba_d_head": 64}])
    def test_the_width_of_a_head(self, head):
        assert read(model_type="bamba", **head)["mamba2"]["head_dim"] == 2 * 4096 // 128

    def test_beside_attention_it_is_a_layer_of_its_own(self):
        model = read(model_type="falcon_h1", num_hidden_layers=3)
        assert model["layer_kinds"] == [{"pattern": ["mamba2+none", "dense"], "repeat": 3}]
        assert model["layers"] == 6
        assert model["mamba2"]["head_dim"] == 1024 // 128

    def test_without_attention_at_all(self):
        model = read(model_type="mamba2", num_hidden_layers=3)
        assert model["layer_kinds"] == [{"kind": "mamba2+none", "count": 3}]
        assert "ffn" not in model


class TestFirstMamba:
    def test_periods_of_jamba(self):
        model = read(model_type="jamba", num_hidden_layers=8)
        kinds = [e["kind"] for e in model["layer_kinds"]]
        assert kinds[:4] == ["mamba1+dense", "mamba1+moe", "mamba1+dense", "mamba1+moe"]
        assert kinds[4:] == ["dense", "mamba1+moe", "mamba1+dense", "mamba1+moe"]
        assert model["mamba1"] == {"inner": 8192, "state": 16, "dt_rank": 256, "conv": 4}

    @pytest.mark.parametrize("rank", [{}, {"time_step_rank": "auto"}, {"time_step_rank": 48}])
    def test_without_attention(self, rank):
        model = read(model_type="mamba", **rank)
        assert model["layer_kinds"] == [{"kind": "mamba1+none", "count": 32}]
        assert model["mamba1"] == {"inner": 1536, "state": 16, "dt_rank": 48, "conv": 4}

    def test_convolutions_where_no_attention_is_listed(self):
        model = read(model_type="lfm2", num_hidden_layers=4, full_attn_idxs=[2])
        kinds = [e["kind"] for e in model["layer_kinds"] for _ in range(e["count"])]
        assert kinds == ["conv+dense", "conv+dense", "dense", "conv+dense"]
        assert (model["short_conv"], model["ffn"]) == ({"conv": 3}, 8192)

    def test_recurrences_between_windows(self):
        model = read(model_type="recurrent_gemma", num_hidden_layers=5)
        kinds = [e["kind"] for e in model["layer_kinds"] for _ in range(e["count"])]
        assert kinds == ["rglru+dense"] * 2 + ["window+dense"] + ["rglru+dense"] * 2
        assert model["rglru"] == {"width": 2560, "heads": 10, "conv": 4}
        assert (model["window"], model["ffn"]) == ({"size": 2048}, 3840)

    def test_codestral_mamba_is_a_mamba_2(self):
        assert read(model_type="codestral_mamba")["mamba2"] == read(model_type="mamba2")["mamba2"]


class TestDeltaNets:
    def test_every_fourth_layer_has_attention(self):
        model = read(model_type="qwen3_next", num_hidden_layers=8)
        assert model["layer_kinds"] == [{"pattern": ["gdn+moe"] * 3 + ["moe"], "repeat": 2}]
        assert model["delta_net"] == {
            "k_heads": 16,
            "v_heads": 32,
            "k_dim": 128,
            "v_dim": 128,
            "conv": 4,
        }
        assert model["attention_gate"] is True

    def test_another_interval_and_dense_layers(self):
        keys = {"num_hidden_layers": 6, "full_attention_interval": 3, "mlp_only_layers": [0]}
        shape = shape_of(model_type="qwen3_next", **keys)
        names = [shape.kinds[i] for i in shape.layer_sequence]
        assert names == ["gdn+dense", "gdn+moe", "moe", "gdn+moe", "gdn+moe", "moe"]

    def test_the_gate_of_attention(self):
        """One more matrix of h by heads * head_dim, in layers with attention alone."""
        keys = {"model_type": "qwen3_5_text", "num_hidden_layers": 8}
        document = {"model": read(**keys), "training": {"seq_len": 4096, "global_batch": 8}}
        gated = model_from_dict(document).shape
        del document["model"]["attention_gate"]
        plain = model_from_dict(document).shape
        matrix = 4096 * 16 * 256
        assert total_params(gated, 4096) - total_params(plain, 4096) == 2 * matrix
        flops = [model_flops_per_token(shape, 4096) for shape in (gated, plain)]
        assert flops[0] - flops[1] == 6 * 2 * matrix


class TestOtherAttention:
    def test_linear_attention_in_every_second_layer(self):
        model = read(model_type="minimax", num_hidden_layers=4)
        assert model["layer_kinds"] == [{"pattern": ["moe", "linear+moe"], "repeat": 2}]
        assert model["linear"] == {"heads": 32, "head_dim": 128, "chunk": 256}

    def test_layers_of_kimi_count_from_one(self):
        section = {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7], "num_heads": 32}
        section |= {"head_dim": 128, "short_conv_kernel_size": 4}
        shape = shape_of(model_type="kimi_linear", num_hidden_layers=8, linear_attn_config=section)
        names = [shape.kinds[i] for i in shape.layer_sequence]
        assert names == ["kda+dense", *["kda+moe"] * 2, "moe", *["kda+moe"] * 3, "moe"]
        assert (shape.delta_net.k_heads, shape.delta_net.v_dim, shape.latent) == (32, 128, True)

    def test_an_indexer_in_every_layer(self):
        model = read(model_type="deepseek_v32", num_hidden_layers=5)
        assert model["layer_kinds"] == [
            {"kind": "sparse+dense", "count": 3},
            {"kind": "sparse+moe", "count": 2},
        ]
        assert model["indexer"] == {"heads": 64, "head_dim": 128, "top_k": 2048}

    def test_compressed_keys_and_streams(self):
        """The first release lists a ratio of every layer and of the module behind them."""
        model = read(
            model_type="deepseek_v4",
            num_hidden_layers=6,
            compress_ratios=[0, 0, 4, 128, 4, 128, 0],
            head_dim=256,
            hc_mult=2,
            compress_rate_csa=8,
        )
        assert model["layer_kinds"] == [
            {"kind": "shared-window+moe", "count": 2},
            {"pattern": ["csa+moe", "hca+moe"], "repeat": 2},
        ]
        assert model["residual_streams"] == {"count": 2, "sinkhorn_steps": 20}
        sizes = model["compressed"]
        assert (sizes["sparse_ratio"], sizes["heavy_ratio"], sizes["rope_dim"]) == (8, 128, 32)
        assert (model["moe"]["shared_ffn"], model["kv_heads"]) == (2048, 1)
        assert model["details"]["router_scores"] == "sqrtsoftplus"

    def test_layers_that_compress_where_no_key_says_so(self):
        model = read(model_type="deepseek_v4", num_hidden_layers=5, partial_rotary_factor=0.25)
        assert model["layer_kinds"] == [
            {"kind": "hca+moe", "count": 3},
            {"kind": "csa+moe", "count": 1},
            {"kind": "hca+moe", "count": 1},
        ]
        assert model["compressed"]["rope_dim"] == 128

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"layer_types": ["csa"] * 43}, "layer_types.0: layers with"),
            ({"compress_ratios": [0, 16] * 30}, "compress_ratios.1: layers with 16"),
            ({"layer_types": ["sliding_attention"]}, "1 layers are listed"),
            ({"moe_intermediate_size": 512, "intermediate_size": 256}, "mean the same"),
            ({"o_groups": 7}, "64 heads cannot be shared out over 7 groups"),
        ],
    )
    def test_what_its_class_does_not_have(self, keys, message):
        with pytest.raises(SpecError, match=message):
            model_from_dict({"model_type": "deepseek_v4", **keys})

    def test_indices_that_are_shared_are_not_priced(self):
        with pytest.raises(SpecError, match="indexer_types: layers that take the keys"):
            read(model_type="glm_moe_dsa", indexer_types=["full", "shared"] * 39)

    def test_two_attentions_and_experts_in_one_layer(self):
        """12 of 768 experts are chosen, of which 512 compute: 8 in the mean."""
        model = read(model_type="longcat_flash", num_layers=2)
        assert model["layer_kinds"] == [{"pattern": ["dense", "dense", "none+moe"], "repeat": 2}]
        assert (model["layers"], model["moe"]["topk"], model["ffn"]) == (6, 8, 12288)


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"model_type": "lfm3"}, "convolutions"),
        (
            {"model_type": "bamba", "layer_types": ["conv"] * 32},
            "layer_types.0: layers with 'conv'",
        ),
        ({"model_type": "bamba", "layer_types": ["mamba"]}, "1 layers are listed"),
        ({"model_type": "xlstm"}, "layers with recurrences"),
        ({"model_type": "zamba2"}, "a state space (Mamba)"),
    ],
)
def test_what_is_not_priced_is_named(keys, what):
    with pytest.raises(SpecError) as caught:
        read(**keys)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("kinds", "entries"),
    [
        (["a"] * 3, [{"kind": "a", "count": 3}]),
        (["a", "b"], [{"kind": "a", "count": 1}, {"kind": "b", "count": 1}]),
        (["a", "b"] * 3, [{"pattern": ["a", "b"], "repeat": 3}]),
        (
            ["d", "a", "b", "a", "b", "a"],
            [
                {"kind": "d", "count": 1},
                {"pattern": ["a", "b"], "repeat": 2},
                {"kind": "a", "count": 1},
            ],
        ),
    ],
)
def test_runs_and_patterns(kinds, entries):
    assert compressed(kinds) == entries
    said = [x for e in entries for x in e.get("pattern", [e.get("kind")]) * e.get("repeat", 1)]
    assert len(said) <= len(kinds)


def test_heads_of_diffllama_are_paired():
    shape = model_from_dict({"model_type": "diffllama"}).shape
    assert shape.kinds == ("differential+dense",)
    # Two ends and a norm; matrices, norms and four vectors of a head of 16 layers.
    layer = 4 * 2048**2 + 3 * 2048 * 8192 + 2 * 2048 + 4 * 64
    assert total_params(shape, 2048) == 2 * 32000 * 2048 + 2048 + 16 * layer
    with pytest.raises(SpecError, match="kv_heads"):
        model_from_dict({"model_type": "diffllama", "num_key_value_heads": 1})


def test_diffllama_is_written_as_it_is_read():
    model = model_from_dict({"model_type": "diffllama", "num_key_value_heads": 8})
    written = hf_config(model.shape, model.job)
    assert (written["model_type"], written["num_key_value_heads"]) == ("diffllama", 8)
    assert model_from_dict(written).shape == model.shape
    alone = replace(model.shape, layer_runs=(layer_run("differential+none", 16),))
    with pytest.raises(EmitError, match="differential"):
        hf_config(alone, model.job)
