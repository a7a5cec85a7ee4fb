"""Classes of transformers whose layers have other mixers than attention over all keys or a window.

One record a class: which sublayers it has, which details are its own, and the fields of its
config.json. Sources: configuration and modeling files of transformers 5.23.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from costmodels.layers.kinds import kind_of
from costmodels.shapes import DeltaNetShape, ModelShape
from planner.errors import EmitError
from planner.specs.schema import ROOT_SCORES, DetailsSpec
from searches.frameworks.common import kind_sequence, mixer_and_feed

Fields = dict[str, object]
Writer = Callable[[ModelShape, DetailsSpec], Fields]
ENCODERS = ("bidirectional", "bidirectional-window")
"""Mixers of encoders, which predict masked tokens."""


@dataclass(frozen=True, slots=True)
class KindClass:
    """One class of transformers."""

    model_type: str
    mixers: frozenset[str]
    """Mixers that its layers may have, the one that tells it first."""
    own: str
    """The mixer that tells it."""
    feeds: frozenset[str]
    fields: Writer
    """Fields of its own; None takes one of `hf_config` out."""
    details: tuple[str, ...] = ()
    """Details and parts of a model file that every such model has, and that no key says."""
    positions: str = "rope"
    """As in `ModelShape`."""

    def holds(self, shape: ModelShape) -> bool:
        """Tell whether the layers of a model are such that the class has them."""
        if shape.positions != self.positions:
            return False
        pairs = {mixer_and_feed(kind) for kind in kind_sequence(shape)}
        mixers, feeds = {mixer for mixer, _ in pairs}, {feed for _, feed in pairs}
        return self.own in mixers and mixers <= self.mixers and feeds <= self.feeds


def class_of(shape: ModelShape) -> KindClass | None:
    """Return the class that has the layers of a model; None: none of this module."""
    return next((one for one in CLASSES if one.holds(shape)), None)


def sees_both_sides(shape: ModelShape) -> bool:
    """Tell whether every token of a model sees those behind it."""
    return any(mixer_and_feed(kind)[0] in ENCODERS for kind in kind_sequence(shape))


def _refuse(title: str, odd: Mapping[str, object]) -> None:
    """Raise `EmitError` for the parts, by name, that a class does not have."""
    if hit := [name for name, on in odd.items() if on]:
        raise EmitError(f"{title}'s class does not have {', '.join(hit)}")


def _plain(shape: ModelShape, details: DetailsSpec) -> dict[str, object]:
    """Return what the classes here have in common that a model may lack."""
    return {
        "biases": shape.bias or bool(details.qkv_bias) or bool(details.attention_out_bias),
        "LayerNorm": shape.norm != "rmsnorm",
        "an MLP of two matrices": not shape.gated,
        "latent attention": shape.latent,
        "a gate of attention's output": shape.attention_gate,
    }


def _of_mixer(shape: ModelShape, mixer: str) -> list[bool]:
    """Return which layers have a mixer."""
    return [mixer_and_feed(kind)[0] == mixer for kind in kind_sequence(shape)]


def _routed(shape: ModelShape) -> list[bool]:
    """Return which layers have experts."""
    return [kind_of(kind).is_routed for kind in kind_sequence(shape)]


def _words(shape: ModelShape, mixer: str, word: str, other: str = "full_attention") -> list[str]:
    """Return the layer types of a model: `word` for layers with a mixer."""
    return [word if on else other for on in _of_mixer(shape, mixer)]


def _first_dense(shape: ModelShape, title: str) -> int:
    """Return how many dense layers stand before those with experts."""
    flags = _routed(shape)
    first = flags.count(False)
    _refuse(title, {"dense layers behind expert layers": flags != sorted(flags)})
    return first


def _mamba1_sizes(shape: ModelShape, title: str) -> tuple[int, Fields]:
    """Return how many times the inner width is the outer one, and state, rank and taps."""
    sizes = shape.mamba1
    assert sizes is not None  # checked where the model is read
    expand, rest = divmod(sizes.inner, shape.hidden)
    _refuse(title, {"an inner width that is no multiple of the outer one": rest > 0})
    return expand, {"state": sizes.state, "rank": sizes.dt_rank, "conv": sizes.conv}


def _mamba(shape: ModelShape, details: DetailsSpec) -> Fields:
    _refuse("Mamba", _plain(shape, details))
    expand, sizes = _mamba1_sizes(shape, "Mamba")
    return {
        "expand": expand,
        "state_size": sizes["state"],
        "time_step_rank": sizes["rank"],
        "conv_kernel": sizes["conv"],
        **_state_space_names(details),
    }


def _mamba2(shape: ModelShape, details: DetailsSpec) -> Fields:
    _refuse("Mamba-2", _plain(shape, details))
    sizes = shape.mamba2
    assert sizes is not None  # checked where the model is read
    expand, rest = divmod(sizes.inner, shape.hidden)
    _refuse("Mamba-2", {"an inner width that is no multiple of the outer one": rest > 0})
    return {
        **_state_space_names(details),
        "num_heads": sizes.heads,
        "head_dim": sizes.head_dim,
        "n_groups": sizes.groups,
        "state_size": sizes.state,
        "conv_kernel": sizes.conv,
        "chunk_size": sizes.chunk,
        "expand": expand,
    }


def _state_space_names(details: DetailsSpec) -> Fields:
    """Return what models of state-space layers alone call otherwise, and what they lack."""
    lacking = (
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "attention_dropout",
        "rms_norm_eps",
        "rope_theta",
        "rope_scaling",
    )
    return {**dict.fromkeys(lacking), "layer_norm_epsilon": details.norm_epsilon or 1e-5}


def _period(flags: list[bool], title: str, what: str) -> tuple[int, int]:
    """Return distance and place of flagged layers: every n-th from one of them on."""
    places = [i for i, on in enumerate(flags) if on]
    if not places:
        return len(flags) + 1, len(flags)
    period = places[1] - places[0] if len(places) > 1 else len(flags)
    expected = [i % period == places[0] for i in range(len(flags))]
    _refuse(title, {f"{what} at other distances than one": flags != expected})
    return period, places[0]


def _jamba(shape: ModelShape, details: DetailsSpec) -> Fields:
    odd = {
        "normalised queries and keys": bool(details.qk_norm),
        "shared experts": shape.shared_ffn,
    }
    odd["experts of another width than the MLP"] = (
        shape.n_experts > 0 and not all(_routed(shape)) and shape.expert_ffn != shape.ffn
    )
    odd["scores of the chosen experts that sum to one"] = bool(details.router_norm_topk)
    odd["positions"] = details.no_rope_every != 1
    _refuse("Jamba", {**_plain(shape, details), **odd, **_head_width(shape)})
    expand, sizes = _mamba1_sizes(shape, "Jamba")
    attention = _period(_of_mixer(shape, "attention"), "Jamba", "attention")
    experts = _period(_routed(shape), "Jamba", "experts")
    return {
        "head_dim": None,
        "rope_theta": None,
        "intermediate_size": shape.ffn or shape.expert_ffn,
        "num_experts": shape.n_experts or 1,
        "num_experts_per_tok": shape.top_k if shape.n_experts else 1,
        "attn_layer_period": attention[0],
        "attn_layer_offset": attention[1],
        "expert_layer_period": experts[0],
        "expert_layer_offset": experts[1],
        "mamba_expand": expand,
        "mamba_d_state": sizes["state"],
        "mamba_dt_rank": sizes["rank"],
        "mamba_d_conv": sizes["conv"],
    }


def _head_width(shape: ModelShape) -> Mapping[str, object]:
    return {"heads that do not make the width": shape.q_width != shape.hidden}


def _lfm2(shape: ModelShape, details: DetailsSpec) -> Fields:
    odd = {"no norms of queries and keys": details.qk_norm != "head", **_head_width(shape)}
    _refuse("LFM2", {**_plain(shape, details), **odd})
    assert shape.short_conv is not None  # checked where the model is read
    fields: Fields = {
        "head_dim": None,
        "rms_norm_eps": None,
        "hidden_act": None,
        "attention_dropout": None,
        "norm_eps": details.norm_epsilon or 1e-5,
        "layer_types": _words(shape, "conv", "conv"),
        "conv_L_cache": shape.short_conv.conv,
    }
    if not shape.n_experts:
        return fields | {"intermediate_size": shape.ffn, "block_auto_adjust_ff_dim": False}
    first = _first_dense(shape, "LFM2")
    _refuse("LFM2", {"shared experts": shape.shared_ffn})
    return fields | {
        "intermediate_size": shape.ffn or shape.expert_ffn,
        "moe_intermediate_size": shape.expert_ffn,
        "num_dense_layers": first,
        "num_experts": shape.n_experts,
        "num_experts_per_tok": shape.top_k,
        "norm_topk_prob": details.router_norm_topk is not False,
        "routed_scaling_factor": details.router_scale or 1.0,
    }


def _minimax(shape: ModelShape, details: DetailsSpec) -> Fields:
    sizes = shape.linear
    assert sizes is not None  # checked where the model is read
    odd = {
        "normalised queries and keys": bool(details.qk_norm),
        "shared experts": shape.shared_ffn,
        "other heads in linear attention": (sizes.heads, sizes.head_dim)
        != (shape.heads, shape.head_dim),
        "linear attention without a gate": not sizes.gate,
    }
    _refuse("MiniMax", {**_plain(shape, details), **odd})
    return {
        "layer_types": _words(shape, "linear", "linear_attention"),
        "block_size": sizes.chunk,
        "intermediate_size": shape.expert_ffn,
        "num_local_experts": shape.n_experts,
        "num_experts_per_tok": shape.top_k,
    }


def _delta_net(shape: ModelShape) -> DeltaNetShape:
    assert shape.delta_net is not None  # checked where the model is read
    return shape.delta_net


def _qwen3_5(shape: ModelShape, details: DetailsSpec) -> Fields:
    sizes = _delta_net(shape)
    plain = _plain(shape, details)
    plain.pop("a gate of attention's output")
    odd = {
        "attention without a gate": not shape.attention_gate,
        "no norms of queries and keys": details.qk_norm != "head",
    }
    _refuse("Qwen3.5", {**plain, **odd})
    return {
        "layer_types": _words(shape, "gdn", "linear_attention"),
        "intermediate_size": shape.ffn,
        "linear_num_key_heads": sizes.k_heads,
        "linear_num_value_heads": sizes.v_heads,
        "linear_key_head_dim": sizes.k_dim,
        "linear_value_head_dim": sizes.v_dim,
        "linear_conv_kernel_dim": sizes.conv,
        "partial_rotary_factor": details.rotary_percent or 1.0,
    }


def _kimi_linear(shape: ModelShape, details: DetailsSpec) -> Fields:
    sizes = _delta_net(shape)
    plain = _plain(shape, details)
    plain.pop("latent attention")
    shared, rest = divmod(shape.shared_ffn, shape.expert_ffn or 1)
    odd = {
        "attention without a latent": not shape.latent,
        "positions": details.no_rope_every != 1,
        "decays and gates of one matrix each": sizes.full_gates,
        "no shared experts, or of another width": not shared or rest,
        "heads of values that are not those of keys": (sizes.k_heads, sizes.k_dim)
        != (sizes.v_heads, sizes.v_dim),
    }
    _refuse("Kimi-Linear", {**plain, **odd})
    first = _first_dense(shape, "Kimi-Linear")
    return {
        **_latent(shape),
        **expert_fields(shape, details, shared),
        "num_local_experts": shape.n_experts,
        "n_routed_experts": None,
        "layer_types": _words(shape, "kda", "linear_attention"),
        "mlp_layer_types": ["dense"] * first + ["sparse"] * (shape.layers - first),
        **_special_ids(shape, 163_839),
        "linear_num_heads": sizes.k_heads,
        "linear_head_dim": sizes.k_dim,
        "linear_conv_kernel_dim": sizes.conv,
    }


def _latent(shape: ModelShape) -> Fields:
    return {
        "q_lora_rank": shape.q_rank or None,
        "kv_lora_rank": shape.kv_rank,
        "qk_nope_head_dim": shape.qk_nope,
        "qk_rope_head_dim": shape.qk_rope,
        "v_head_dim": shape.v_head,
    }


def expert_fields(shape: ModelShape, details: DetailsSpec, shared: int) -> Fields:
    """Return the experts of classes that follow DeepSeek-V3."""
    return {
        "intermediate_size": shape.ffn or shape.expert_ffn,
        "moe_intermediate_size": shape.expert_ffn,
        "n_routed_experts": shape.n_experts,
        "num_experts_per_tok": shape.top_k,
        "n_shared_experts": shared,
        "n_group": shape.n_groups,
        "topk_group": shape.top_groups,
        "norm_topk_prob": details.router_norm_topk is not False,
        "routed_scaling_factor": details.router_scale or 1.0,
    }


def _deepseek_v32(shape: ModelShape, details: DetailsSpec) -> Fields:
    plain = _plain(shape, details)
    plain.pop("latent attention")
    shared, rest = divmod(shape.shared_ffn, shape.expert_ffn or 1)
    odd = {
        "attention without a latent": not shape.latent,
        "keys that are chosen in blocks": shape.indexer is not None and shape.indexer.block > 1,
        "no shared experts, or of another width": not shared or rest,
    }
    _refuse("DeepSeek-V3.2", {**plain, **odd})
    assert shape.indexer is not None  # checked where the model is read
    return {
        **_latent(shape),
        **expert_fields(shape, details, shared),
        "first_k_dense_replace": _first_dense(shape, "DeepSeek-V3.2"),
        "index_n_heads": shape.indexer.heads,
        "index_head_dim": shape.indexer.head_dim,
        "index_topk": shape.indexer.top_k,
    }


def _deepseek_v4(shape: ModelShape, details: DetailsSpec) -> Fields:
    sizes, streams = shape.compressed, shape.residual_streams
    assert sizes is not None  # checked where the model is read
    odd = {
        "one residual stream": streams is None,
        "no shared expert of the width of the others": shape.shared_ffn != shape.expert_ffn,
        "other scores of experts": details.router_scores not in (None, ROOT_SCORES),
        "scores that are not made to sum to one": details.router_norm_topk is False,
        "groups of experts": shape.n_groups > 1,
    }
    _refuse("DeepSeek-V4", {**_plain(shape, details), **odd})
    assert streams is not None
    words = {"shared-window": "sliding_attention", "csa": _SPARSE, "hca": _HEAVY}
    return {
        "layer_types": [words[mixer_and_feed(kind)[0]] for kind in kind_sequence(shape)],
        "compress_rates": {_SPARSE: sizes.sparse_ratio, _HEAVY: sizes.heavy_ratio},
        "sliding_window": sizes.window,
        "q_lora_rank": sizes.q_rank,
        "o_groups": sizes.groups,
        "o_lora_rank": sizes.out_rank,
        "partial_rotary_factor": sizes.rope_dim / shape.head_dim,
        "index_n_heads": sizes.index_heads or None,
        "index_head_dim": sizes.index_dim or None,
        "index_topk": sizes.top_k or None,
        "hc_mult": streams.count,
        "hc_sinkhorn_iters": streams.sinkhorn_steps,
        "moe_intermediate_size": shape.expert_ffn,
        "n_routed_experts": shape.n_experts,
        "num_experts_per_tok": shape.top_k,
        "n_shared_experts": 1,
        "scoring_func": ROOT_SCORES,
        "routed_scaling_factor": details.router_scale or 1.0,
    }


_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"


def _bamba(shape: ModelShape, details: DetailsSpec) -> Fields:
    odd = {"normalised queries and keys": bool(details.qk_norm), **_head_width(shape)}
    _refuse("Bamba", {**_plain(shape, details), **odd})
    sizes = shape.mamba2
    assert sizes is not None  # checked where the model is read
    expand, rest = divmod(sizes.inner, shape.hidden)
    _refuse("Bamba", {"an inner width that is no multiple of the outer one": rest > 0})
    return {
        "head_dim": None,
        "intermediate_size": shape.ffn,
        "attn_layer_indices": [i for i, on in enumerate(_of_mixer(shape, "attention")) if on],
        "mamba_n_heads": sizes.heads,
        "mamba_d_head": sizes.head_dim,
        "mamba_n_groups": sizes.groups,
        "mamba_d_state": sizes.state,
        "mamba_d_conv": sizes.conv,
        "mamba_chunk_size": sizes.chunk,
        "mamba_expand": expand,
    }


def _encoder_head(shape: ModelShape) -> Mapping[str, object]:
    return {
        "a head without a layer before it": not shape.head_transform,
        "KV heads for several heads": shape.kv_heads != shape.heads,
        **_head_width(shape),
    }


def _bert(shape: ModelShape, details: DetailsSpec) -> Fields:
    odd = {
        "RMSNorm": shape.norm != "layernorm",
        "an MLP of three matrices": shape.gated,
        "layers without biases": not shape.bias,
        "norms before attention and MLP": details.post_norms != "instead",
    }
    _refuse("BERT", {**odd, **_encoder_head(shape)})
    rate = 0.1 if shape.dropout else 0.0
    return {
        "architectures": ["BertForMaskedLM"],
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.ffn,
        "hidden_act": _activation(details),
        "hidden_dropout_prob": rate,
        "attention_probs_dropout_prob": rate,
        "max_position_embeddings": shape.max_positions,
        "layer_norm_eps": details.norm_epsilon or 1e-12,
        **dict.fromkeys(_LEARNED_NAMES),
    }


_LEARNED_NAMES = (
    "n_positions",
    "activation_function",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "layer_norm_epsilon",
)
"""Keys of GPT-2, whose positions are learned too."""


def _activation(details: DetailsSpec) -> str:
    """Return the activation of an encoder by its name in transformers."""
    names = {"gelu_tanh": "gelu_pytorch_tanh"}
    named = details.activation or "gelu"
    return names.get(named, named)


def _modernbert(shape: ModelShape, details: DetailsSpec) -> Fields:
    odd = {
        "normalised queries and keys": bool(details.qk_norm),
    }
    _refuse("ModernBERT", {**_plain(shape, details), **odd, **_encoder_head(shape)})
    types = _words(shape, "bidirectional-window", "sliding_attention")
    local = {"local_attention": shape.window.size - 1} if shape.window else {}
    lacking = ("num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "rope_theta")
    return {
        **dict.fromkeys(lacking),
        "architectures": ["ModernBertForMaskedLM"],
        "intermediate_size": shape.ffn,
        "hidden_activation": _activation(details),
        "norm_eps": details.norm_epsilon or 1e-5,
        "layer_types": types,
        **local,
        **_special_ids(shape, 50_283, "cls_token_id", "sep_token_id"),
    }


def _special_ids(shape: ModelShape, last: int, *more: str) -> Fields:
    """Return ids of special tokens where those of the class, up to `last`, are no tokens here."""
    names = ("pad_token_id", "eos_token_id", "bos_token_id", *more)
    return dict.fromkeys(names, 0) if shape.vocab <= last else {}


_ALONE, _PLAIN_FEED, _ANY_FEED = (
    frozenset({"none"}),
    frozenset({"dense"}),
    frozenset({"dense", "moe"}),
)
_BARE = ("no_rope_every",)
COMPRESSED = frozenset({"shared-window", "csa", "hca"})
CLASSES: tuple[KindClass, ...] = (
    KindClass("mamba", frozenset({"mamba1"}), "mamba1", _ALONE, _mamba),
    KindClass("jamba", frozenset({"mamba1", "attention"}), "mamba1", _ANY_FEED, _jamba, _BARE),
    KindClass("mamba2", frozenset({"mamba2"}), "mamba2", _ALONE, _mamba2),
    KindClass("bamba", frozenset({"mamba2", "attention"}), "mamba2", _PLAIN_FEED, _bamba),
    KindClass("lfm2", frozenset({"conv", "attention"}), "conv", _PLAIN_FEED, _lfm2),
    KindClass("lfm2_moe", frozenset({"conv", "attention"}), "conv", _ANY_FEED, _lfm2),
    KindClass(
        "minimax",
        frozenset({"linear", "attention"}),
        "linear",
        frozenset({"moe"}),
        _minimax,
        details=("other_parts",),
    ),
    KindClass(
        "kimi_linear", frozenset({"kda", "attention"}), "kda", _ANY_FEED, _kimi_linear, _BARE
    ),
    KindClass(
        "qwen3_5_text",
        frozenset({"gdn", "attention"}),
        "gdn",
        _PLAIN_FEED,
        _qwen3_5,
        details=("norm_one_plus",),
    ),
    KindClass("deepseek_v32", frozenset({"sparse"}), "sparse", _ANY_FEED, _deepseek_v32),
    *(
        KindClass("deepseek_v4", COMPRESSED, own, frozenset({"moe"}), _deepseek_v4)
        for own in sorted(COMPRESSED)
    ),
    KindClass(
        "bert",
        frozenset({"bidirectional"}),
        "bidirectional",
        _PLAIN_FEED,
        _bert,
        details=("post_norms", "head_transform"),
        positions="learned",
    ),
    KindClass(
        "modernbert",
        frozenset(ENCODERS),
        "bidirectional",
        _PLAIN_FEED,
        _modernbert,
        details=("head_transform",),
    ),
)
"""The first whose layers fit is taken."""
