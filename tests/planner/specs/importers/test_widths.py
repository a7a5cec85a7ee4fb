"""Configurations whose layers differ in width: read, and counted by hand."""

import pytest

from costmodels.parameters import active_params, total_params
from planner.errors import SpecError
from planner.specs.importers.huggingface.families.widths import nas_width, rounded_width
from planner.specs.loader import model_from_dict

NAS = {
    "model_type": "nemotron-nas",
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "intermediate_size": None,
    "num_key_value_heads": None,
}


def block(group: int | None, multiple: float | None) -> dict:
    """A block of a NAS; None: it has no attention, or no MLP."""
    attention = {"n_heads_in_group": group, "no_op": group is None, "replace_with_linear": False}
    mlp = {"ffn_mult": multiple, "no_op": multiple is None, "replace_with_linear": False}
    return {"attention": attention, "ffn": mlp}


def count(data: dict) -> float:
    model = model_from_dict(data)
    return total_params(model.shape, model.job.seq_len)


def test_blocks_of_an_architecture_search():
    blocks = [block(4, 2.625), block(2, 1.0), block(None, 2.625), block(4, None)]
    model = model_from_dict(NAS | {"block_configs": blocks})
    h, wide, narrow = 1024, 1792, 768  # 2 / 3 of 2.625 h, and of h, in steps of 256
    attention = [2 * h * h + 2 * h * 128 * kv for kv in (2, 4)]
    layers = attention[0] + 3 * h * wide + 2 * h
    layers += attention[1] + 3 * h * narrow + 2 * h
    layers += 3 * h * wide + h
    layers += attention[0] + h
    assert total_params(model.shape, 4096) == layers + 2 * 1000 * h + h
    assert [run.kind for run in model.shape.layer_runs] == [
        *("dense", "dense@kv4-f768", "none+dense", "attention+none"),
    ]


def test_a_block_without_anything_is_left_out():
    model = model_from_dict(NAS | {"block_configs": [block(4, 2.625)] * 3 + [block(None, None)]})
    assert model.shape.layers == 3
    assert any("1 layer(s) with neither" in note for note in model.notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention": {"replace_with_linear": True}}, "a matrix in place of attention"),
        ({"ffn": {"replace_with_linear": True}}, "a matrix in place of an MLP"),
        ({"attention": {"n_heads_in_group": 4, "sparsify": ["x"]}}, "sparsify"),
    ],
)
def test_blocks_that_are_not_priced_are_refused_by_name(change, message):
    odd = block(4, 2.625) | change
    with pytest.raises(SpecError, match=message):
        model_from_dict(NAS | {"block_configs": [block(4, 2.625)] * 3 + [odd]})


@pytest.mark.parametrize("n_blocks", [1, 7])
def test_as_many_blocks_as_layers(n_blocks):
    with pytest.raises(SpecError, match=f"widths of {n_blocks} layers, and the model has 4"):
        model_from_dict(NAS | {"block_configs": [block(4, 2.625)] * n_blocks})


def test_openelm_270m_has_the_parameters_of_its_paper():
    multipliers = [round(0.5 + 3.5 * i / 15, 2) for i in range(16)]
    queries = [12] * 5 + [16] * 7 + [20] * 4
    data = {
        "model_type": "openelm",
        "num_transformer_layers": 16,
        "model_dim": 1280,
        "head_dim": 64,
        "num_query_heads": queries,
        "num_kv_heads": [n // 4 for n in queries],
        "ffn_multipliers": multipliers,
        "ffn_dim_divisor": 256,
        "vocab_size": 32000,
        "max_context_length": 2048,
        "share_input_output_layers": True,
    }
    widths = [rounded_width(x * 1280, 256) for x in multipliers]
    assert widths[:3] + widths[-1:] == [768, 1024, 1280, 5120]
    heads = sum(64 * 1280 * (2 * n + 2 * n // 4) for n in queries)
    by_hand = heads + 3 * 1280 * sum(widths) + 16 * 2 * 1280 + 32000 * 1280 + 1280
    assert count(data) == by_hand
    # arXiv 2404.14619, table 1: 0.27 B; norms of queries and keys, 2 * 64 a layer, are left out.
    assert by_hand == pytest.approx(0.27e9, rel=0.006)


def test_mimo_has_twice_the_kv_heads_in_windows_and_narrow_values():
    model = model_from_dict({"model_type": "mimo_v2_flash"})
    shape, h = model.shape, 4096
    assert (shape.v_dim, shape.of_kind("window+moe@kv8").kv_heads) == (128, 8)
    assert shape.kinds == ("dense", "window+moe@kv8", "moe")
    full, local = (h * (64 * 192 + kv * 320) + 64 * 128 * h for kv in (4, 8))
    experts, router = 256 * 3 * h * 2048, h * 256
    layers = full + 3 * h * 16384 + 39 * (local + experts + router) + 8 * (full + experts + router)
    total = layers + 48 * 2 * h + 2 * 152576 * h + h
    assert total_params(shape, 4096) == total
    assert active_params(shape, 4096) == total - 47 * 248 * 3 * h * 2048


def test_step_has_other_heads_in_windows():
    data = {
        "model_type": "step3p5",
        "num_hidden_layers": 6,
        "layer_types": ["full_attention", *["sliding_attention"] * 2] * 2,
        "attention_other_setting": {"num_attention_heads": 96},
        "sliding_window": 512,
    }
    shape = model_from_dict(data).shape
    assert shape.kinds == ("dense", "window+dense@h96", "moe", "window+moe@h96")
    assert [shape.of_kind(kind).heads for kind in shape.kinds] == [64, 96, 64, 96]


def test_widths_by_hand():
    assert [nas_width(x, 8192) for x in (0.5, 1.3125, 5.25)] == [2816, 7168, 28672]
    assert rounded_width(0.1 * 1280, 256) == 256


GEMMA_4 = {
    # What the file says beside `model_type`, and what transformers 5.23 builds.
    "e2b": (
        {
            "hidden_size": 1536,
            "num_hidden_layers": 35,
            "num_kv_shared_layers": 20,
            "use_double_wide_mlp": True,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "intermediate_size": 6144,
            "layer_types": ["sliding_attention", *["sliding_attention"] * 3, "full_attention"] * 7,
        },
        4_628_569_344,
    ),
    "31b": (
        {
            "hidden_size": 5376,
            "num_hidden_layers": 60,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "intermediate_size": 21504,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 4,
        },
        30_697_345_280,
    ),
    "26b-a4b": (
        {
            "hidden_size": 2816,
            "num_hidden_layers": 30,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "intermediate_size": 2112,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 2,
            "enable_moe_block": True,
            "num_experts": 128,
            "top_k_experts": 8,
            "moe_intermediate_size": 704,
        },
        25_233_141_760,
    ),
}


@pytest.mark.parametrize("name", GEMMA_4)
def test_gemma_4_as_transformers_builds_it(name):
    stated, built = GEMMA_4[name]
    assert count({"model_type": "gemma4_text", **stated}) == pytest.approx(built, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "are_priced"), [("gemma4_text", True), ("gemma4_unified", False)]
)
def test_norms_are_priced_with_embeddings_of_layers_alone(name, are_priced):
    stated = GEMMA_4["e2b"][0] if are_priced else {}
    notes = model_from_dict({"model_type": name, **stated}).notes
    assert are_priced != any("norms of queries and keys" in note for note in notes)


def test_the_last_layers_of_gemma_4_e2b_take_keys_of_earlier_ones():
    shape = model_from_dict({"model_type": "gemma4_text", **GEMMA_4["e2b"][0]}).shape
    assert shape.kinds == (
        *("window+injected", "attention+injected@d512"),
        *("window+injected@f12288-shared", "attention+injected@d512-f12288-shared"),
    )
    last = shape.of_kind(shape.kinds[3])
    assert (last.head_dim, last.ffn, last.kv_shared) == (512, 12288, 1)
    assert shape.kind_counts == (12, 3, 16, 4)


def test_embeddings_on_both_sides_are_refused():
    with pytest.raises(SpecError, match="attention to tokens on both sides"):
        model_from_dict({"model_type": "gemma4_text", "use_bidirectional_attention": "all"})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({0: {"num_experts": 8}}, "num_experts, which is not priced"),
        ({"x": {"head_dim": 8}}, "widths of layers"),
        (7, "widths of layers"),
    ],
)
def test_sizes_by_layer_that_are_not_priced(config, message):
    with pytest.raises(SpecError, match=message):
        model_from_dict({"model_type": "gemma4_text", "per_layer_config": config})


@pytest.mark.parametrize(
    ("stated", "built"),
    [
        ({}, 6_835_235_568),
        (
            {
                "num_hidden_layers": 30,
                "intermediate_size": [8192] * 10 + [16384] * 20,
                "num_kv_shared_layers": 10,
            },
            5_441_815_648,
        ),
    ],
)
def test_gemma_3n_as_transformers_builds_it(stated, built):
    assert count({"model_type": "gemma3n_text", **stated}) == pytest.approx(built, rel=1e-4)


def test_gemma_3n_mixes_four_streams():
    model = model_from_dict({"model_type": "gemma3n_text"})
    table = {"width": 256, "vocab": 262144, "streams": 4, "laurel_rank": 64}
    assert model.document["model"]["per_layer"] == table
    assert model.shape.kinds[2:] == ("window+injected@shared", "attention+injected@shared")
