"""What the rules of a `model_type` consist of, and the names of keys that most types share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

KEYS: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers",),
    "hidden": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size",),
    "vocab": ("vocab_size",),
    "tied": ("tie_word_embeddings",),
    "max_positions": ("max_position_embeddings",),
    "attention_bias": ("attention_bias",),
    "attention_out_bias": ("attention_out_bias",),
    "mlp_bias": ("mlp_bias",),
    "parallel": ("use_parallel_residual",),
    "qk_norm": ("use_qk_norm", "qk_layernorm"),
    "soft_cap": ("attn_logit_softcapping",),
    "window": ("sliding_window",),
    "window_on": ("use_sliding_window",),
    "window_from": ("max_window_layers",),
    "window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "layer_types": ("layer_types",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "topk": ("num_experts_per_tok",),
    "moe_ffn": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts",),
    "shared_ffn": ("shared_expert_intermediate_size",),
    "first_dense": ("first_k_dense_replace",),
    "expert_frequency": ("moe_layer_freq",),
    "expert_step": ("decoder_sparse_step", "interleave_moe_layer_step"),
    "dense_list": ("mlp_only_layers",),
    "expert_list": ("moe_layers",),
    "both_sides": (),
    "window_flags": (),
    "expert_flags": (),
    "groups": ("n_group",),
    "top_groups": ("topk_group",),
    "topk_method": ("topk_method",),
    "q_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "qk_nope": ("qk_nope_head_dim",),
    "qk_rope": ("qk_rope_head_dim",),
    "v_head": ("v_head_dim",),
    "value_dim": (),
    "own_heads": (),
    "own_kv_heads": (),
    "blocks": (),
    "n_kv_shared": (),
    "row_width": (),
    "streams": (),
    "laurel": (),
    "row_vocab": (),
    "post_norm": ("use_post_norm",),
    "mtp_layers": ("num_nextn_predict_layers", "num_mtp_layers"),
    "multi_query": ("multi_query",),
    "new_decoder": ("new_decoder_architecture",),
    "alibi": ("alibi",),
    "embedding_width": ("word_embed_proj_dim",),
    "attention_types": ("attention_types",),
    "dense_or_sparse": ("mlp_layer_types",),
    "last_expert_layer": (),
    "layer_pattern": ("hybrid_override_pattern", "layers_block_type", "hybrid_layer_pattern"),
    "attention_layers": ("attn_layer_indices",),
    "linear_every": ("full_attention_interval", "full_attn_interval"),
    "ssm_heads": ("mamba_n_heads", "mamba_num_heads"),
    "ssm_head_dim": ("mamba_d_head", "mamba_head_dim"),
    "ssm_groups": ("mamba_n_groups", "n_groups"),
    "ssm_state": ("mamba_d_state", "ssm_state_size"),
    "ssm_conv": ("mamba_d_conv", "conv_kernel"),
    "ssm_chunk": ("mamba_chunk_size", "chunk_size"),
    "ssm_expand": ("mamba_expand", "expand"),
    "ssm_inner": ("mamba_d_ssm",),
    "lin_k_heads": ("linear_num_key_heads",),
    "lin_v_heads": ("linear_num_value_heads",),
    "lin_k_dim": ("linear_key_head_dim",),
    "lin_v_dim": ("linear_value_head_dim",),
    "lin_conv": ("linear_conv_kernel_dim",),
    "lin_chunk": ("block_size",),
    "attention_layers_from_1": (),
    "index_heads": ("index_n_heads",),
    "index_dim": ("index_head_dim",),
    "index_topk": ("index_topk",),
    "index_kinds": (),
    "index_blocks": (),
    "index_block": (),
    "sparse_flags": (),
    "zero_experts": ("zero_expert_num",),
    "m1_state": (),
    "m1_rank": (),
    "m1_conv": (),
    "m1_expand": (),
    "m1_inner": (),
    "short_conv": (),
    "q_factor": (),
    "lru_width": (),
    "lru_conv": (),
    "lru_blocks": (),
    "attention_period": (),
    "attention_offset": (),
    "expert_period": (),
    "expert_offset": (),
    "cmp_q_rank": (),
    "cmp_groups": (),
    "cmp_out_rank": (),
    "cmp_ratios": (),
    "cmp_sparse_ratio": (),
    "cmp_heavy_ratio": (),
    "cmp_rope_dim": (),
    "cmp_streams": (),
    "sinkhorn_steps": (),
}
"""Names in the file of what the reader looks up, unless a type has its own."""

SIZES = ("vocab", "hidden", "ffn", "layers", "heads", "experts", "topk", "moe_ffn")
"""Fields that tell two models of a type apart: their defaults are those of one model."""

DROPOUT_KEYS = (
    "resid_pdrop",
    "attn_pdrop",
    "hidden_dropout",
    "attention_dropout",
    "dropout",
    "resid_dropout",
    "residual_dropout",
)
"""Keys of dropout inside the layers; the same in all types."""

Switch = bool | str
"""True, false, or the field of `KEYS` that says it."""


class OwnLayer(NamedTuple):
    """What one layer of a model has of its own."""

    sizes: Mapping[str, int]
    """By key of `costmodels.shapes.VARIED_FIELDS`; also those that are the model's too."""
    mixer: str = ""
    """In place of the one that the other keys say; `none`: the layer has no attention."""
    feed: str = ""


class Stated(NamedTuple):
    """What a file says of layers that differ from one another."""

    section: Mapping[str, Any]
    """All of its keys."""
    look: Callable[[str], Any]
    """The value of a field of `KEYS`, its default where the file leaves it out."""
    local: Sequence[bool]
    """Of each layer, whether it attends to a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelType:
    """How the configurations of one `model_type` are read."""

    defaults: Mapping[str, object]
    """Values by field where the file leaves its keys out; a field without one is then unknown."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of fields that differ from `KEYS`; none: the type has no such key."""
    gated: bool = True
    """Three MLP matrices."""
    norm: str = "rmsnorm"
    positions: str = "rope"
    biases: tuple[Switch, Switch, Switch] = (False, False, False)
    """Of queries, keys and values; of the attention output; of the MLP."""
    dropout: float = 0.0
    """Where the file has none of `DROPOUT_KEYS`."""
    experts: bool = False
    """Some layers have routed experts."""
    latent: bool = False
    """Latent attention."""
    parallel: Switch = False
    """Attention and MLP side by side on the same input."""
    qk_norm: Switch = False
    extra: tuple[str, ...] = ()
    """Parts with few parameters and little work that no model file can say."""
    dense_without: bool = False
    """With no experts its layers have an MLP; else nothing builds such a model."""
    ignored: tuple[str, ...] = ()
    """Keys of sizes that a model of this type, as far as it is read here, does not use."""
    is_full: Callable[[int, int], bool] | None = None
    """Whether layer i of n attends to all tokens where no key says it; None: by the window."""
    mixer: str = ""
    """What layers have that have no attention, as model files call it; none: all have it."""
    beside: bool = False
    """That mixer stands beside attention in every layer."""
    feed: str = ""
    """What stands behind every mixer; none: an MLP or experts, as the keys say."""
    twice: bool = False
    """A layer has attention and an MLP twice, and experts beside the second."""
    gate: bool = False
    """The output of attention has a gate as wide as it."""
    computed: Mapping[str, Callable[[Callable[[str], Any]], Any]] = field(default_factory=dict)
    """Values of fields that the file leaves out, from those of others, which it looks up."""
    null_is_missing: tuple[str, ...] = ()
    """Fields of which a null says nothing."""
    ffn_of: Callable[[Mapping[str, Any]], tuple[int, str]] | None = None
    """Computes the width of an MLP from the keys of the section, and says how."""
    format: str = ""
    """What a file of the type is, in words, where it is no config.json."""
    own_layers: Callable[[Stated], list[OwnLayer]] | None = None
    """What each layer has of its own, where layers differ in width; a `ValueError` says what is
    wrong."""
    full_gates: bool = False
    """Decays and gates of its delta nets are one matrix each."""
    ffn_parts: int = 1
    """By how many the width of the file is divided: 2 where it counts both halves of a gate."""


class Sizes(NamedTuple):
    """Sizes of one model of a type, its defaults; None where the type has no such default."""

    vocab: int
    hidden: int
    ffn: int | None
    layers: int
    heads: int
    kv_heads: int | None
    max_positions: int | None


def sizes(model: Sizes, *, tied: bool = False, **others: object) -> dict[str, object]:
    """Return the defaults of a type by field."""
    return {**model._asdict(), "head_dim": None, "tied": tied, **others}


QKV_O: tuple[Switch, Switch, Switch] = ("attention_bias", "attention_bias", False)
"""Biases of the whole attention where the file says so."""
EXPERT_WIDTH_ONLY: Mapping[str, tuple[str, ...]] = {"ffn": (), "moe_ffn": ("intermediate_size",)}
"""Every layer has experts, and `intermediate_size` is the width of one."""
POST_NORMS = "norms after attention and MLP"
