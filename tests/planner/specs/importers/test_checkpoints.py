"""Models from headers of GGUF files and from params.json; counts against weight files."""

import json
import struct

import pytest

from costmodels.parameters import total_params
from planner.errors import SpecError
from planner.specs.importers.checkpoints.gguf_header import read_header
from planner.specs.loader import import_model, load_model

U32, F32, TEXT, LIST = 4, 6, 8, 9


def text(word):
    raw = word.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(x):
    if isinstance(x, str):
        return struct.pack("<I", TEXT) + text(x)
    if isinstance(x, float):
        return struct.pack("<If", F32, x)
    if isinstance(x, list):
        items = b"".join(text(word) for word in x)
        return struct.pack("<IIQ", LIST, TEXT, len(x)) + items
    return struct.pack("<II", U32, x)


def gguf(path, metadata, tensors, version=3):
    """Write the header of a GGUF file, as ggml's docs/gguf.md has it."""
    raw = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    raw += b"".join(text(key) + value(x) for key, x in metadata.items())
    for name, sizes in tensors.items():
        raw += text(name) + struct.pack("<I", len(sizes))
        raw += struct.pack(f"<{len(sizes)}Q", *sizes) + struct.pack("<IQ", 0, 0)
    path.write_bytes(raw)
    return path


QWEN3 = {
    "general.architecture": "qwen3",
    "qwen3.block_count": 2,
    "qwen3.embedding_length": 64,
    "qwen3.feed_forward_length": 192,
    "qwen3.attention.head_count": 4,
    "qwen3.attention.head_count_kv": 2,
    "qwen3.attention.key_length": 32,
    "qwen3.context_length": 4096,
    "qwen3.rope.freq_base": 1e6,
    "tokenizer.ggml.tokens": [f"t{i}" for i in range(1000)],
}
LAYER = {
    "attn_q": (64, 128),
    "attn_k": (64, 64),
    "attn_v": (64, 64),
    "attn_output": (128, 64),
    "ffn_gate": (64, 192),
    "ffn_up": (64, 192),
    "ffn_down": (192, 64),
    "attn_norm": (64,),
    "ffn_norm": (64,),
}
TENSORS = {
    "token_embd.weight": (64, 1000),
    "output_norm.weight": (64,),
    **{f"blk.{i}.{name}.weight": sizes for i in range(2) for name, sizes in LAYER.items()},
}
"""2 (64 (128 + 2 64) + 128 64 + 3 64 192 + 2 64) + 64 1000 + 64."""
N_PARAMS = 2 * (64 * 256 + 128 * 64 + 3 * 64 * 192 + 128) + 64_000 + 64


class TestGguf:
    def test_sizes_and_their_keys(self, tmp_path):
        imported, model = import_model(gguf(tmp_path / "m.gguf", QWEN3, TENSORS))
        shape = model.shape
        assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads) == (2, 64, 4, 2)
        assert (shape.head_dim, shape.ffn, shape.vocab, shape.tied) == (32, 192, 1000, True)
        texts = {".".join(map(str, o.path)): o.text for o in imported.origins}
        assert texts["model.layers"] == "qwen3.block_count"
        assert texts["model.vocab"] == "length of tokenizer.ggml.tokens"
        assert imported.document["model"]["details"]["rotary_base"] == 1e6
        assert total_params(shape, 4096) == N_PARAMS
        assert not any("tensors of the file" in note for note in imported.notes)

    def test_a_head_of_its_own(self, tmp_path):
        tensors = {**TENSORS, "output.weight": (64, 1000)}
        imported, model = import_model(gguf(tmp_path / "m.gguf", QWEN3, tensors))
        assert not model.shape.tied
        assert not any("tensors of the file" in note for note in imported.notes)

    def test_another_number_of_parameters_is_told(self, tmp_path):
        tensors = {**TENSORS, "blk.0.more.weight": (1000,)}
        imported, _ = import_model(gguf(tmp_path / "m.gguf", QWEN3, tensors))
        more = 1000 / N_PARAMS
        assert any(f"{more:.1%} more" in note for note in imported.notes)

    def test_experts_of_a_llama_are_a_mixtral(self, tmp_path):
        metadata = {key.replace("qwen3.", "llama."): x for key, x in QWEN3.items()}
        metadata |= {"general.architecture": "llama", "llama.expert_count": 8}
        metadata |= {"llama.expert_used_count": 2}
        _, model = import_model(gguf(tmp_path / "m.gguf", metadata, {}))
        assert (model.shape.n_experts, model.shape.top_k, model.shape.expert_ffn) == (8, 2, 192)

    def test_a_command_takes_it_as_a_model(self, tmp_path):
        assert load_model(gguf(tmp_path / "m.gguf", QWEN3, TENSORS)).shape.name == "m"

    @pytest.mark.parametrize("kept", [6, 30, 200, 2000])
    def test_a_header_that_is_cut_off(self, tmp_path, kept):
        path = gguf(tmp_path / "m.gguf", QWEN3, TENSORS)
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(SpecError, match="cut off"):
            load_model(path)

    def test_what_is_not_read(self, tmp_path):
        with pytest.raises(SpecError, match="GGUF of version 1"):
            load_model(gguf(tmp_path / "m.gguf", QWEN3, {}, version=1))
        unknown = {**QWEN3, "general.architecture": "rwkv6"}
        with pytest.raises(SpecError, match="architecture rwkv6"):
            load_model(gguf(tmp_path / "m.gguf", unknown, {}))
        raw = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 99)
        (tmp_path / "m.gguf").write_bytes(raw)
        with pytest.raises(SpecError, match="unknown type 99"):
            read_header(str(tmp_path / "m.gguf"))


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
COUNT = 2 * (4 * 64 * 64 + 3 * 64 * 192 + 128) + 64_000 + 64


class TestSafetensors:
    @pytest.fixture
    def config(self, tmp_path):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA))
        return tmp_path / "config.json"

    def index(self, config, **metadata):
        data = {"metadata": metadata, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
        (config.parent / "model.safetensors.index.json").write_text(json.dumps(data))

    def notes(self, config):
        imported, model = import_model(config)
        assert total_params(model.shape, 2048) == COUNT
        return [note for note in imported.notes if "parameters, " in note]

    @pytest.mark.parametrize("key", ["total_parameters", "total_size"])
    def test_the_index(self, config, key):
        unit = 2 if key == "total_size" else 1
        self.index(config, **{key: unit * COUNT})
        assert self.notes(config) == []
        self.index(config, **{key: unit * (COUNT + 1000)})
        (note,) = self.notes(config)
        assert note.startswith("model.safetensors.index.json")
        assert f"{1000 / COUNT:.1%} more" in note

    def test_a_tied_head_that_is_stored(self, config):
        self.index(config, total_parameters=COUNT + 64_000)
        assert "the head is stored beside the embedding" in self.notes(config)[0]

    def test_headers_win_over_the_index(self, config):
        self.index(config, total_parameters=7)
        header = {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "BF16", "shape": [COUNT - 100], "data_offsets": [0, 1]},
            "b": {"dtype": "F32", "shape": [10, 10], "data_offsets": [1, 2]},
        }
        raw = json.dumps(header).encode()
        path = config.parent / "model-00001-of-00001.safetensors"
        path.write_bytes(struct.pack("<Q", len(raw)) + raw)
        assert self.notes(config) == []
        header["a"]["dtype"] = "I32"  # packed bits: not counted, so that the index is
        raw = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(raw)) + raw)
        assert self.notes(config)[0].startswith("model.safetensors.index.json")

    def test_quantized_copies_and_broken_indices_are_passed_over(self, config):
        (config.parent / "model.safetensors.index.json").write_bytes(b"\x80{")
        assert self.notes(config) == []
        self.index(config, total_size=1000)
        config.write_text(json.dumps({**LLAMA, "quantization_config": {"quant_method": "awq"}}))
        assert self.notes(config) == []


class TestParamsJson:
    def read(self, tmp_path, **keys):
        path = tmp_path / "some-model" / "params.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(keys))
        return import_model(path.parent)

    def test_llama_3_8b(self, tmp_path):
        keys = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256}
        keys |= {"ffn_dim_multiplier": 1.3, "multiple_of": 1024, "norm_eps": 1e-05}
        imported, model = self.read(tmp_path, **keys, rope_theta=500000.0)
        assert imported.format == "params.json of Llama"
        assert model.shape.ffn == 14336
        assert total_params(model.shape, 8192) == 8_030_261_248
        assert model.shape.name == "some-model"

    def test_llama_2_7b_leaves_its_vocabulary_open(self, tmp_path):
        keys = {"dim": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": -1, "multiple_of": 256}
        imported, model = self.read(tmp_path, **keys, norm_eps=1e-05)
        assert total_params(model.shape, 4096) == 6_738_415_616
        assert any(text.startswith("model.vocab = 32000") for text in imported.assumptions)

    def test_mixtral(self, tmp_path):
        keys = {"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32}
        keys |= {"n_kv_heads": 8, "vocab_size": 32000, "norm_eps": 1e-05}
        moe = {"num_experts": 8, "num_experts_per_tok": 2}
        _, model = self.read(tmp_path, **keys, moe=moe)
        assert total_params(model.shape, 4096) == 46_702_792_704
        _, dense = self.read(tmp_path, **keys)
        assert total_params(dense.shape, 4096) == 7_241_732_096

    def test_latent_attention_and_experts(self, tmp_path):
        keys = {"dim": 7168, "n_layers": 61, "head_dim": 128, "hidden_dim": 18432, "n_heads": 128}
        keys |= {"n_kv_heads": 128, "vocab_size": 129280, "norm_eps": 1e-06, "q_lora_rank": 1536}
        keys |= {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
        moe = {"num_experts": 256, "num_experts_per_tok": 8, "expert_hidden_dim": 2048}
        moe |= {"num_shared_experts": 1, "first_k_dense_replace": 3, "route_every_n": 1}
        _, model = self.read(tmp_path, **keys, v_head_dim=128, moe=moe)
        assert total_params(model.shape, 4096) == 671_026_404_352

    def test_a_key_that_may_be_of_layers_is_refused(self, tmp_path):
        keys = {"dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 1000}
        with pytest.raises(SpecError, match="moe_args"):
            self.read(tmp_path, **keys, moe_args={"num_experts": 16})
