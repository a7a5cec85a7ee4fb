"""Configurations of the Hub to model files: names, nulls, defaults, refusals, notes, errors."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given as for_all
from hypothesis import strategies as st

from costmodels.layers.flops import model_flops_per_token
from costmodels.parameters import total_params
from planner.errors import SpecError
from planner.specs.importers.formats import find_format
from planner.specs.importers.huggingface.families.refused import REFUSED
from planner.specs.importers.huggingface.files import looks_like
from planner.specs.importers.huggingface.model_types import ALIASES, TYPES
from planner.specs.importers.huggingface.reader import assumed_batch, read_config
from planner.specs.loader import import_model, load_model, model_from_dict
from planner.specs.schema import OTHER_MODEL
from tests.searches.instances import one_in

DATA = Path(__file__).parent / "data"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))


def config(name, **changes):
    """Return a published configuration with some keys changed; `...` removes one."""
    data = json.loads((DATA / f"{name}.json").read_text())
    data |= changes
    return {key: value for key, value in data.items() if value is not ...}


def shape_of(data):
    return model_from_dict(data).shape


def imported(data, **stated):
    return read_config(json.dumps(data, indent=2), "config.json", stated)


def refusal(data):
    text = data if isinstance(data, str) else json.dumps(data, indent=2)
    with pytest.raises(SpecError) as caught:
        read_config(text, "config.json", {})
    return str(caught.value)


class TestEveryFile:
    @pytest.mark.parametrize("name", one_in(3, NAMES))
    def test_the_written_file_is_the_same_model(self, name, tmp_path):
        found, given = import_model(DATA / f"{name}.json")
        path = tmp_path / "model.yaml"
        path.write_text(found.to_yaml())
        again = load_model(path)
        assert (again.shape, again.job) == (given.shape, given.job)
        assert again.document == given.document
        assert max(map(len, found.to_yaml().splitlines())) < 120

    @pytest.mark.parametrize("name", NAMES)
    def test_every_field_has_an_origin(self, name):
        found, _ = import_model(DATA / f"{name}.json")
        paths = [origin.path for origin in found.origins]
        assert len(paths) == len(set(paths))
        assert set(paths) == set(leaves(found.document))
        assert all(origin.text for origin in found.origins)
        assumed = {path for path in paths if path[0] == "training"}
        assert assumed <= {origin.path for origin in found.origins if origin.assumed}

    @pytest.mark.parametrize("name", one_in(3, NAMES))
    def test_a_dict_is_the_same_as_the_file(self, name):
        of_file, of_dict = load_model(DATA / f"{name}.json"), model_from_dict(config(name))
        assert of_dict.job == of_file.job
        assert of_dict.notes == of_file.notes
        stated = ("model", "name")
        document = of_dict.document["model"] | {"name": of_file.shape.name}
        assert document == of_file.document["model"], stated


def leaves(value, path=()):
    if not isinstance(value, dict):
        return [path]
    return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]


EXAMPLES = {
    "llama1-7b": "llama1-7b",
    "llama2-70b": "llama2-70b",
    "llama3-8b": "llama3-8b",
    "llama3-70b": "llama3-70b",
    "llama3-405b": "llama3.1-405b",
    "mixtral-8x7b": "mixtral-8x7b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "deepseek-v2": "deepseek-v2",
    "deepseek-v3": "deepseek-v3",
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_packaged_example_of_a_model_is_its_configuration(example):
    ours = load_model(example).shape
    read_in = load_model(DATA / f"{EXAMPLES[example]}.json", [("model.name", example)]).shape
    assert read_in == ours


class TestSizes:
    def test_a_file_whose_every_field_is_known(self):
        found = imported(config("qwen3-30b-a3b"))
        origins = {".".join(o.path): (o.text, o.assumed) for o in found.origins}
        assert origins["model.layers"] == ("num_hidden_layers", False)
        assert origins["model.head_dim"] == ("head_dim", False)
        assert origins["model.moe.moe_ffn"] == ("moe_intermediate_size", False)
        assert origins["training.seq_len"] == ("at most 8192; max_position_embeddings 40960", True)
        assert "ffn" not in found.document["model"]  # intermediate_size: no layer is dense
        assert found.format == "Hugging Face config.json (qwen3_moe)"

    def test_kv_heads_left_out_are_the_default_of_the_type(self):
        assert shape_of(config("llama3-8b", num_key_value_heads=...)).kv_heads == 32
        assert shape_of(config("llama3-8b", num_key_value_heads=None)).kv_heads == 32
        assert shape_of(config("mistral-7b", num_key_value_heads=...)).kv_heads == 8
        assert shape_of(config("mistral-7b", num_key_value_heads=None)).kv_heads == 32

    def test_head_dim(self):
        assert shape_of(config("mixtral-8x22b")).head_dim == 128  # null
        assert shape_of(config("mixtral-8x22b", head_dim=...)).head_dim == 128
        assert shape_of(config("qwen3-0.6b")).head_dim == 128  # hidden / heads is 64
        assert shape_of(config("mistral-nemo-12b")).q_width == 32 * 128 != 5120
        assert shape_of(config("gemma-7b", head_dim=...)).head_dim == 256  # default of the type
        assert "96 heads" in refusal(config("glm-4.5", head_dim=...))

    @pytest.mark.parametrize(
        ("name", "tied"),
        [
            ("llama3-8b", False),
            ("qwen3-8b", False),
            ("gpt-neox-20b", False),
            ("gpt2-xl", True),
            ("falcon-40b", True),
            ("gemma-7b", True),
            ("opt-66b", True),
            ("bloom", True),
        ],
    )
    def test_tied_embeddings_left_out(self, name, tied):
        assert shape_of(config(name, tie_word_embeddings=...)).tied is tied

    def test_tied_embeddings_of_the_outer_section_count(self):
        outer = config("gemma3-27b", tie_word_embeddings=False)
        assert not shape_of(outer).tied
        outer["text_config"]["tie_word_embeddings"] = True
        assert shape_of(outer).tied

    def test_mlp_left_out_is_four_times_hidden(self):
        assert shape_of(config("gpt2-xl")).ffn == 6400  # null
        assert shape_of(config("gpt2-xl", n_inner=...)).ffn == 6400
        assert shape_of(config("gpt2-xl", n_inner=5000)).ffn == 5000
        assert shape_of(config("falcon-40b")).ffn == 4 * 8192
        assert shape_of(config("falcon-40b", ffn_hidden_size=30000)).ffn == 30000

    def test_names_of_the_first_falcon_files(self):
        old, new = shape_of(config("falcon-7b-old")), shape_of(config("falcon-7b"))
        assert old == new
        assert (new.kv_heads, new.heads, new.head_dim) == (1, 71, 64)  # multi-query
        old_40b = config(
            "falcon-7b-old",
            model_type="RefinedWeb",
            hidden_size=8192,
            n_head=128,
            n_layer=60,
            n_head_kv=8,
        )
        assert shape_of(old_40b) == shape_of(config("falcon-40b"))

    def test_falcon_without_multi_query(self):
        assert shape_of(config("falcon-7b", multi_query=False)).kv_heads == 71
        assert shape_of(config("falcon-40b")).kv_heads == 8  # multi_query is ignored there

    def test_nested_text_section(self):
        found = imported(config("llama4-scout"))
        origins = {o.path: o.text for o in found.origins}
        assert origins["model", "layers"] == "text_config.num_hidden_layers"
        assert found.document["model"]["moe"] == {
            "experts": 16,
            "topk": 1,
            "moe_ffn": 8192,
            "shared_experts": 1,
            "shared_ffn": 8192,
        }
        assert found.notes[0].startswith("vision_config left out")

    def test_defaults_of_sizes_are_assumptions(self):
        found = imported(config("gemma3-4b"))
        assert found.document["model"]["heads"] == 8
        text = "default of gemma3_text: no num_attention_heads in the file"
        assert f"model.heads = 8: {text}" in found.assumptions

    def test_learned_positions_and_dropout(self):
        shape = shape_of(config("gpt2-xl"))
        assert (shape.positions, shape.max_positions, shape.dropout) == ("learned", 1024, True)
        none = config("gpt2-xl", resid_pdrop=0.0, attn_pdrop=0.0)
        assert not shape_of(none).dropout
        absent = config("gpt2-xl", resid_pdrop=..., attn_pdrop=...)
        assert shape_of(absent).dropout  # 0.1 by default
        assert not shape_of(config("llama3-8b")).dropout

    def test_biases(self):
        assert shape_of(config("gpt-oss-20b")).bias
        assert not shape_of(config("qwen2-7b")).bias  # of queries, keys and values only
        assert shape_of(config("llama3-8b", attention_bias=True, mlp_bias=True)).bias
        assert shape_of(config("falcon-7b", bias=True)).bias


class TestExperts:
    def test_the_number_under_either_name(self):
        old = config("qwen3-30b-a3b")
        new = config("qwen3-30b-a3b", num_experts=..., num_local_experts=128)
        assert shape_of(old) == shape_of(new)

    def test_two_numbers(self):
        message = refusal(config("qwen3-30b-a3b", num_local_experts=64))
        assert "num_experts: is 128, and num_local_experts is 64: they mean the same" in message

    def test_experts_per_token_under_its_old_name(self):
        assert shape_of(config("gpt-oss-20b", num_experts_per_tok=...)).top_k == 4

    def test_every_second_layer(self):
        sparse = config("qwen3-30b-a3b", decoder_sparse_step=2)
        shape = shape_of(sparse)
        assert shape.expert_layers == tuple(i % 2 == 1 for i in range(48))
        assert shape.ffn == 6144
        # transformers 5.23.0 builds 2,604,952,320 parameters with these and its other defaults.
        small = {"model_type": "qwen3_moe", "decoder_sparse_step": 2, "num_hidden_layers": 6}
        assert total_params(shape_of(small), 8192) == pytest.approx(2_604_952_320, rel=1e-6)

    def test_layers_listed_as_dense(self):
        shape = shape_of(config("qwen2-57b-a14b", mlp_only_layers=[0, 1]))
        assert (shape.dense_layers, shape.moe_every, shape.ffn) == (2, 1, 18944)
        assert shape.n_expert_layers == 26
        # As above: 3,007,354,880.
        small = {"model_type": "qwen2_moe", "mlp_only_layers": [0, 1], "num_hidden_layers": 6}
        assert total_params(shape_of(small), 8192) == pytest.approx(3_007_354_880, rel=2e-5)

    def test_alternating_layers_of_llama_4(self):
        shape = shape_of(config("llama4-maverick"))
        assert (shape.moe_every, shape.n_expert_layers, shape.ffn) == (2, 24, 16384)
        long = model_from_dict(config("llama4-maverick"), [("training.seq_len", 32768)]).shape
        assert (long.chunk.size, long.moe_every) == (8192, 1)
        assert long.expert_layers == shape.expert_layers
        listed = config("llama4-maverick")
        listed["text_config"]["moe_layers"] = list(range(1, 48, 2))
        assert shape_of(listed) == shape

    @pytest.mark.parametrize(
        ("name", "changes", "dense"),
        [
            ("qwen3-30b-a3b", {"mlp_only_layers": [3, 17]}, {3, 17}),
            (
                "deepseek-v2-lite",
                {"moe_layer_freq": 2, "first_k_dense_replace": 0},
                set(range(1, 27, 2)),
            ),
        ],
    )
    def test_other_orders_are_kinds_of_layers(self, name, changes, dense):
        shape = shape_of(config(name, **changes))
        assert {i for i, on in enumerate(shape.expert_layers) if not on} == dense
        plain = shape_of(config(name))
        per_layer = (plain.n_experts * plain.expert_ffn + plain.shared_ffn - shape.ffn) * 3
        per_layer = per_layer * plain.hidden + plain.hidden * plain.n_experts
        n_dense = sum(not on for on in plain.expert_layers)
        fewer = (len(dense) - n_dense) * per_layer
        assert total_params(shape, 8192) == total_params(plain, 8192) - fewer

    def test_first_dense_layers(self):
        shape = shape_of(config("deepseek-v3"))
        assert (shape.dense_layers, shape.ffn, shape.shared_ffn) == (3, 18432, 2048)
        assert (shape.n_groups, shape.top_groups, shape.mtp_layers) == (8, 4, 1)
        assert shape_of(config("deepseek-v3", num_nextn_predict_layers=...)).mtp_layers == 0

    def test_groups_count_only_where_routing_uses_them(self):
        assert shape_of(config("deepseek-v2")).n_groups == 8
        assert shape_of(config("deepseek-v2", topk_method="greedy")).n_groups == 1

    def test_no_compressed_queries(self):
        lite = shape_of(config("deepseek-v2-lite"))
        assert (lite.q_rank, lite.kv_rank, lite.head_dim) == (0, 512, 192)
        # Left out is not null: the default of the type is 1536.
        assert shape_of(config("deepseek-v2-lite", q_lora_rank=...)).q_rank == 1536

    def test_no_experts_at_all(self):
        dense = shape_of(config("qwen3-30b-a3b", num_experts=0))
        assert (dense.n_experts, dense.ffn) == (0, 6144)
        listed = imported(config("qwen3-30b-a3b", mlp_only_layers=list(range(48))))
        assert "moe" not in listed.document["model"]
        assert "no layer has experts: read as a dense model" in listed.notes

    def test_a_copy_of_deepseek_v3(self):
        found = imported(config("kimi-k2"))
        assert found.format.endswith("(deepseek_v3)")
        assert (
            "model_type kimi_k2 is read as deepseek_v3, without the code that auto_map names"
        ) in found.notes
        other = config("kimi-k2", model_type="some_moe")  # its architectures still say it
        assert imported(other).document["model"] == found.document["model"]


class TestTraining:
    @pytest.mark.parametrize(
        ("name", "changes", "seq_len", "batch"),
        [
            ("llama3-8b", {}, 8192, 512),
            ("llama2-70b", {}, 4096, 1024),
            ("gpt2-xl", {}, 1024, 4096),
            ("llama3.1-405b", {}, 8192, 512),  # 131072 positions, stretched from 8192
            ("deepseek-v3", {}, 4096, 1024),  # 163840, stretched from 4096
            ("mistral-7b", {}, 8192, 512),
            ("bloom", {}, 2048, 2048),
            ("llama3-8b", {"max_position_embeddings": 3000}, 3000, 1024),  # 1398 is nearer to 1024
        ],
    )
    def test_assumed_batch(self, name, changes, seq_len, batch):
        job = model_from_dict(config(name, **changes)).job
        assert (job.seq_len, job.global_batch) == (seq_len, batch)
        assert (job.precision, job.optimizer) == ("bf16", "adam")

    @pytest.mark.parametrize("seq_len", [1, 100, 4096, 6000, 2**20, 2**22, 2**23])
    def test_the_batch_is_a_power_of_two_next_to_4_m_tokens(self, seq_len):
        batch = assumed_batch(seq_len)
        assert batch & (batch - 1) == 0
        assert batch == 1 or 2**21.5 <= batch * seq_len <= 2**22.5

    @pytest.mark.parametrize("task", ["sft", "lora", "qlora", "dpo"])
    def test_other_tasks_than_pretraining_are_smaller(self, task):
        job = model_from_dict(config("llama3-8b"), [("training.task", task)]).job
        assert (job.seq_len, job.global_batch) == (2048, 64)
        long = [("training.task", task), ("training.seq_len", 8192)]
        job = model_from_dict(config("llama3-8b"), long).job
        assert (job.seq_len, job.global_batch) == (8192, 16)

    def test_it_follows_a_sequence_that_is_stated(self):
        given = model_from_dict(config("llama3-8b"), [("training.seq_len", "32768")])
        assert (given.job.seq_len, given.job.global_batch) == (32768, 128)
        assert given.notes[0] == "assumed training.global_batch = 128 (4.2 M tokens a step)"
        assert not any("seq_len" in note for note in given.notes)

    def test_what_is_set_is_not_assumed(self):
        stated = [
            ("training.seq_len", 4096),
            ("training.global_batch", 64),
            ("training.precision", "bf16"),
            ("training.optimizer", "adam"),
        ]
        given = model_from_dict(config("llama3-8b"), stated)
        assert given.job.global_batch == 64
        assert not any(note.startswith("assumed") for note in given.notes)

    @pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
    def test_the_weights_of_the_file(self, key):
        found = imported(config("llama3-8b", **{"torch_dtype": ..., key: "float16"}))
        assert f"training.precision = bf16: usual; {key} float16" in found.assumptions


NOTES = [
    ("gpt-neox-20b", {}, "attention and MLP stand side by side"),
    ("falcon-40b", {}, "attention and MLP stand side by side"),
    ("falcon-7b", {"alibi": True}, "ALiBi is priced as rotary positions"),
    ("bloom", {}, "ALiBi is priced as rotary positions"),
    ("gemma2-27b", {}, "attention scores are capped"),
    ("gemma2-27b", {}, "norms after attention and MLP"),
    ("qwen3-8b", {}, "norms of queries and keys"),
    ("qwen2-7b", {}, "biases of queries, keys and values"),
    ("gpt-oss-20b", {}, "attention sinks"),
    ("qwen2-57b-a14b", {}, "gate of the shared expert"),
    ("gpt-oss-20b", {}, "weights of the file are quantized (mxfp4)"),
    ("llama3-8b", {"quantization_config": {"bits": 4}}, "weights of the file are quantized: read"),
    ("deepseek-v3", {}, "1 module(s) of multi-token prediction are trained too"),
]


@pytest.mark.parametrize(("name", "changes", "text"), NOTES)
def test_what_is_not_priced_is_said(name, changes, text):
    assert any(text in note for note in imported(config(name, **changes)).notes)


PARTS = [
    ("gemma-2b", {}, {"norm_one_plus": True, "embedding_scale": 2048**0.5}),
    (
        "gemma2-27b",
        {},
        {
            "post_norms": "also",
            "attention_soft_cap": 50.0,
            "logit_soft_cap": 30.0,
            "attention_scale": 144**-0.5,
        },
    ),
    ("gemma3-27b", {}, {"local_rotary_base": 10_000.0, "attention_scale": 168**-0.5}),
    (
        "gpt-neo-2.7b",
        {},
        {"other_parts": "which layers see a part of the sequence", "attention_scale": 1.0},
    ),
    ("olmo2-7b", {}, {"post_norms": "instead", "qk_norm": "width"}),
    ("falcon-40b", {}, {"parallel_block": True}),
    ("falcon-7b", {"alibi": True}, {"parallel_block": True, "alibi": True}),
    ("phi-2", {}, {"parallel_block": True, "head_bias": True}),
    ("command-r-35b", {}, {"parallel_block": True, "logit_scale": 0.0625}),
    ("bloom", {}, {"alibi": True, "embedding_norm": True}),
    (
        "granite-3.0-8b",
        {},
        {
            "embedding_scale": 12.0,
            "residual_scale": 0.22,
            "logit_scale": 1 / 16,
            "attention_scale": 0.0078125,
        },
    ),
    (
        "llama4-scout",
        {},
        {"attention_chunk": 8192, "attention_temperature_from": 8192, "no_rope_every": 4},
    ),
    ("phi3.5-moe", {}, {"other_parts": "jitter of the router and its own choice of two experts"}),
]


@pytest.mark.parametrize(("name", "changes", "parts"), PARTS)
def test_parts_that_few_frameworks_can_say(name, changes, parts):
    details = imported(config(name, **changes)).document["model"]["details"]
    for part, value in parts.items():
        expected = pytest.approx(value) if isinstance(value, float) else value
        assert details[part] == expected


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-30b-a3b", "deepseek-v3", "mistral-7b"])
def test_usual_models_have_none_of_them(name):
    assert not set(OTHER_MODEL) & set(imported(config(name)).document["model"]["details"])


class TestLocalLayers:
    @pytest.mark.parametrize(
        ("name", "changes", "n_local", "size"),
        [
            ("gpt-oss-120b", {}, 18, 128),
            ("gpt-oss-120b", {"layer_types": ...}, 18, 128),
            ("gemma2-27b", {}, 23, 4096),
            ("gemma3-27b", {}, 52, 1024),  # 5 of 6, and the last two
            ("mistral-7b", {}, 32, 4096),
            ("gpt-neo-2.7b", {}, 16, 256),
            (
                "qwen2-7b",
                {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 20},
                8,
                512,
            ),
        ],
    )
    def test_how_many(self, name, changes, n_local, size):
        shape = shape_of(config(name, **changes))
        counts = dict(zip(shape.kinds, shape.kind_counts, strict=True))
        assert sum(n for kind, n in counts.items() if kind.startswith("window+")) == n_local
        assert shape.window.size == size

    def test_in_which_order(self):
        model = imported(config("gemma3-27b")).document["model"]
        assert model["layer_kinds"] == [
            {"pattern": ["window+dense"] * 5 + ["dense"], "repeat": 10},
            {"kind": "window+dense", "count": 2},
        ]
        assert model["window"] == {"size": 1024}
        assert model["details"]["full_attention_every"] == 6

    @pytest.mark.parametrize(
        ("name", "changes"),
        [
            ("mistral-7b", {"sliding_window": None}),
            ("mistral-7b", {"sliding_window": 32768}),  # as long as the positions
            ("qwen2-7b", {"sliding_window": 512}),  # not in use
            ("phi-4", {}),
        ],
    )
    def test_none(self, name, changes):
        assert "layer_kinds" not in imported(config(name, **changes)).document["model"]

    def test_chunks_of_three_in_four_layers(self):
        assert shape_of(config("llama4-scout")).chunk is None  # chunks as long as the sequence
        shape = model_from_dict(config("llama4-scout"), [("training.seq_len", 32768)]).shape
        counts = dict(zip(shape.kinds, shape.kind_counts, strict=True))
        assert counts == {"dense": 0, "chunk+moe": 36, "moe": 12}
        assert shape.chunk.size == 8192

    def test_a_window_takes_attention_off_the_flops(self):
        """Mistral 7B at 8192: 12 h s of attention a layer and token, of which 3/4 are in windows.

        The mean keys of a query are w - w (w - 1) / (2 s) = 3072.25 of s / 2 = 4096.
        """
        window = shape_of(config("mistral-7b"))
        full = shape_of(config("mistral-7b", sliding_window=None))
        spared = 6 * 32 * 4096 * 2 * (4096 - 3072.25)
        flops = [model_flops_per_token(shape, 8192) for shape in (full, window)]
        assert flops[0] - flops[1] == pytest.approx(spared, rel=1e-9)


REFUSALS = [
    ({"num_hidden_layers": "32"}, [":18:24: ", "num_hidden_layers: expected a whole number"]),
    ({"num_hidden_layers": 0}, ["num_hidden_layers: expected a whole number from 1 on, got 0"]),
    ({"num_hidden_layers": 1.5}, ["got 1.5"]),
    ({"num_hidden_layers": True}, ["got true"]),
    ({"hidden_size": None}, ["hidden_size: is null", "llama needs it"]),
    ({"intermediate_size": None}, ["intermediate_size: is null"]),
    ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings: expected true or false, got 'yes'"]),
    ({"model_type": 3}, ["model_type: expected a name, got 3"]),
    (
        {"model_type": "lama", "architectures": ..., "my_layers": 3},
        [
            "config.json:",
            "unknown model_type lama",
            "did you mean llama",
            "my_layers would be left out",
            "known: llama, mistral",
        ],
    ),
    (
        {"model_type": ..., "architectures": ..., "my_layers": 3},
        ["model_type is missing", "my_layers would be left out"],
    ),
    ({"model_type": "xlstm"}, ["layers with recurrences", "`--as` is of no use"]),
    ({"model_type": "lfm3"}, ["convolutions"]),
    ({"model_type": "albert"}, ["layers that share one set of weights"]),
    (
        {"layer_types": ["full_attention", "linear_attention"]},
        ["layer_types.1: layers with 'linear_attention', which the cost model does not have"],
    ),
    ({"hidden_size": 4100}, ["4100 is not a multiple of the 32 heads"]),
]


@pytest.mark.parametrize(("changes", "parts"), REFUSALS)
def test_one_clear_error(changes, parts):
    message = refusal(config("llama3-8b", **changes))
    assert message.startswith("config.json")
    for part in parts:
        assert part in message


def test_other_refusals():
    message = refusal(config("opt-66b", word_embed_proj_dim=512))
    assert "embeddings of width 512 are projected to layers of width 9216" in message
    assert "num_experts_per_tok: is null" in refusal(
        config("mixtral-8x7b", num_experts_per_tok=None)
    )
    assert "mlp_only_layers: expected a list" in refusal(
        config("qwen3-30b-a3b", mlp_only_layers=3)
    )
    assert 'expected [[["global"' in refusal(config("gpt-neo-2.7b", attention_types=[3]))


def test_faults_between_fields_stand_at_their_line(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config("llama3-8b", num_key_value_heads=7), indent=2))
    with pytest.raises(SpecError) as caught:
        load_model(path)
    assert (
        str(caught.value)
        .replace(f"{tmp_path}/", "")
        .startswith(
            "config.json:19:26: model.kv_heads: 32 heads cannot be shared out over 7 kv_heads"
        )
    )


class TestText:
    def test_tabs_and_trailing_comma(self):
        data = config("llama3-8b")
        tabs = json.dumps(data, indent="\t")
        assert read_config(tabs, "", {}).document == read_config(json.dumps(data), "", {}).document
        comma = json.dumps(data)[:-1] + ",}"
        assert read_config(comma, "", {}).document == read_config(tabs, "", {}).document

    def test_block_yaml(self):
        data = config("llama3-8b")
        assert looks_like(yaml.safe_dump(data))
        assert (
            read_config(yaml.safe_dump(data), "", {}).document
            == read_config(json.dumps(data), "", {}).document
        )

    def test_broken_json_has_its_line(self):
        lines = json.dumps(config("llama3-8b"), indent=2).splitlines()
        lines[4] = lines[4].rstrip(",")
        text = "\n".join(lines)
        assert looks_like(text)
        message = refusal(text)
        assert message.startswith("config.json:6:3: not valid JSON: expecting ',' delimiter")
        cut = "\n".join(lines[:14])
        assert looks_like(cut)
        assert "config.json:6:3: not valid JSON" in refusal(cut)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "{}",
            "3",
            "hello",
            '{"a": 1}',
            "model:\n  model_type: llama\n",
            '{"model": {"num_hidden_layers": 3, "hidden_size": 4}, "training": {}}',
            "pools:\n  - accelerator: h100\n",
            "#!/bin/bash\ntorchrun --num-layers 3\n",
        ],
    )
    def test_other_texts(self, text):
        assert not looks_like(text)
        assert find_format(text) is None

    @pytest.mark.parametrize(
        ("data", "what"),
        [
            ({"metadata": {}, "weight_map": {"a": "b"}}, "the index of a model's weight files"),
            ({"tokenizer_class": "LlamaTokenizer", "model_max_length": 4}, "of a tokenizer"),
            (
                {"eos_token_id": 2, "transformers_version": "4.40.0", "temperature": 0.6},
                "of text generation",
            ),
            ({"peft_type": "LORA", "r": 8}, "of an adapter"),
            ({"bos_token": "<s>", "eos_token": "</s>"}, "special tokens"),
        ],
    )
    def test_another_file_of_the_folder_by_its_content(self, data, what):
        assert looks_like(json.dumps(data))
        message = refusal(data)
        assert what in message
        assert "give the config.json beside it" in message


class TestNames:
    @pytest.mark.parametrize(
        ("file", "stated", "name"),
        [
            ("llama3-8b.json", "x/y", "llama3-8b"),
            ("config.json", "meta-llama/Meta-Llama-3-8B", "Meta-Llama-3-8B"),
            ("config.json", "/hub/models--a--b-7B/snapshots/0123abcd", "b-7B"),
            ("Qwen3-8B/config.json", ..., "Qwen3-8B"),
            ("/hub/models--a--b-7B/snapshots/0123abcd/config.json", ..., "b-7B"),
            ("config.json", "", "llama"),
            ("my model (1).json", ..., "my-model-1"),
        ],
    )
    def test_name_of_the_model(self, file, stated, name):
        data = config("llama3-8b", _name_or_path=stated)
        assert read_config(json.dumps(data), file, {}).document["model"]["name"] == name


def test_tables_are_consistent():
    assert not set(ALIASES) & set(TYPES)
    assert not set(REFUSED) & {*TYPES, *ALIASES}
    assert {name for name, _ in ALIASES.values()} <= set(TYPES)
    for name, rules in TYPES.items():
        assert rules.experts == ("experts" in rules.defaults), name
        assert rules.latent == ("kv_rank" in rules.defaults), name


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner, max_size=2)
    ),
    max_leaves=4,
)
KEYS = sorted(
    {
        key
        for name in (
            "llama3-8b",
            "deepseek-v2",
            "qwen3-30b-a3b",
            "falcon-7b",
            "gpt-neo-2.7b",
            "llama4-scout",
        )
        for key in config(name)
    }
    | {
        "rope_parameters",
        "quantization_config",
        "layer_types",
        "_name_or_path",
        "dtype",
        "text_config",
        "moe_layers",
    }
)


@for_all(
    st.sampled_from(["llama3-8b", "deepseek-v2", "qwen3-30b-a3b", "falcon-7b", "gpt-neo-2.7b"]),
    st.sampled_from(KEYS),
    ANY,
)
def test_any_value_is_read_or_refused(name, key, value):
    try:
        model_from_dict(config(name) | {key: value})
    except SpecError as error:
        assert str(error)  # noqa: PT017  the other outcome is no error
