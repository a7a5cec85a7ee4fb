"""Model providers of Megatron-Bridge as models: classes and their dumped fields."""

import pytest

from costmodels.parameters import total_params
from planner.errors import SpecError
from planner.specs.loader import import_model, load_model

CLASSES = '''
from dataclasses import dataclass, field
import torch.nn.functional as F
from megatron.bridge.models.gpt_provider import GPTModelProvider

@dataclass
class MyProvider(GPTModelProvider):
    """Not a model: it has no sizes."""
    normalization: str = "RMSNorm"
    activation_func: object = F.silu
    gated_linear_unit: bool = True
    position_embedding_type: str = "rope"
    add_bias_linear: bool = False
    share_embeddings_and_output_weights: bool = False
    vocab_size: int = 16_032 * 8

@dataclass
class MyProvider8B(MyProvider):
    num_layers: int = 32
    hidden_size: int = 4096
    ffn_hidden_size: int = 14336
    num_attention_heads: int = 32
    num_query_groups: int = 8
    seq_length: int = 8192
'''
DEEPSEEK = """
class DeepSeekV3ModelProvider(DeepSeekModelProvider):
    num_layers: int = 61
    hidden_size: int = 7168
    ffn_hidden_size: int = 18432
    num_moe_experts: int = 256
    moe_ffn_hidden_size: int = 2048
    moe_shared_expert_intermediate_size: int = 2048
    moe_layer_freq: int = field(default_factory=lambda: [0] * 3 + [1] * 58)
    moe_router_topk: int = 8
    vocab_size: int = 129280
"""
DUMP = """
model:
  _target_: megatron.bridge.models.qwen.qwen_provider.Qwen3MoEModelProvider30B_A3B
  num_layers: 48
  hidden_size: 2048
  num_attention_heads: 32
  num_query_groups: 4
  kv_channels: 128
  ffn_hidden_size: 6144
  moe_ffn_hidden_size: 768
  num_moe_experts: 128
  moe_router_topk: 8
  normalization: RMSNorm
  gated_linear_unit: true
  activation_func:
    _target_: torch.nn.functional.silu
    _call_: false
  add_bias_linear: false
  qk_layernorm: true
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  vocab_size: 151936
  seq_length: 4096
train:
  global_batch_size: 512
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="provider.py"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def count(model):
    return total_params(model.shape, model.job.seq_len)


def test_a_class_with_its_base_in_the_file(write):
    imported, model = import_model(write(CLASSES))
    assert imported.format == "model provider of Megatron-Bridge (MyProvider8B)"
    assert count(model) == 8_030_261_248
    assert model.job.seq_len == 8192


def test_a_base_that_is_not_in_the_file(write):
    _, model = import_model(write(DEEPSEEK))
    assert count(model) == 671_026_404_352
    assert (model.shape.latent, model.shape.dense_layers, model.shape.shared_ffn) == (
        True,
        3,
        2048,
    )


def test_the_dumped_fields(write):
    _, model = import_model(write(DUMP, "run_config.yaml"))
    assert count(model) == pytest.approx(30_532_122_624, rel=1.2e-4)
    assert model.job.global_batch == 512
    assert not model.shape.tied


def test_one_of_several_classes_is_named(write):
    path = write(CLASSES + "class Wide(MyProvider8B):\n    hidden_size: int = 8192\n")
    with pytest.raises(SpecError, match="2 providers in one file"):
        import_model(path)
    _, model = import_model(path, as_type="Wide")
    assert model.shape.hidden == 8192
    assert load_model(path, [("model.as", "MyProvider8B")]).shape.hidden == 4096
    with pytest.raises(SpecError, match="no provider 'Narrow'"):
        import_model(path, as_type="Narrow")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('    sparse_attention_type: str = "dsa"\n', "sparse attention"),
        ("    linear_attention_freq: int = 4\n", "linear attention"),
    ],
)
def test_layers_that_are_not_priced_are_named(write, line, what):
    with pytest.raises(SpecError, match=what):
        import_model(write(CLASSES + line))


def test_fields_that_are_not_read_are_named(write):
    imported, _ = import_model(write(CLASSES + "    my_width: int = 3\n"))
    assert "fields not read: my_width" in imported.notes


def test_sizes_that_no_class_has(write):
    with pytest.raises(SpecError, match="MyProvider8B does not say num_attention_heads"):
        import_model(write(CLASSES.replace("num_attention_heads: int = 32", "a: int = 1")))
