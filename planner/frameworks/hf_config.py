"""Writes the architecture of a model file as a config.json of Hugging Face transformers.

The programs for DeepSpeed and FSDP2 build the model from it where the user names none. Which class
can hold the model is decided by its parts alone; a model that none holds is refused by its part.
"""

import json
from collections.abc import Mapping
from dataclasses import replace

from costmodels.layers.kinds import KIND_ALIASES, added_kinds, layer_run
from costmodels.shapes import ModelShape, TrainingJob
from planner.errors import EmitError
from planner.frameworks.hf_encoder_decoders import encoder_decoder_config
from planner.frameworks.hf_kinds import COMPRESSED, class_of, expert_fields
from planner.specs.schema import NO_DETAILS, OTHER_MODEL, DetailsSpec
from searches.frameworks.common import kind_sequence, mixer_and_feed
from searches.frameworks.megatron.layer_kinds import has_mixer, is_hybrid

FILE = "model_config.json"
ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh", "squared_relu": "relu2"}
"""Names in transformers where they are other than in a model file."""
DROPOUT = 0.1
"""Megatron-LM's default, for models with dropout."""


def config_file(
    shape: ModelShape, job: TrainingJob, details: DetailsSpec = NO_DETAILS
) -> tuple[dict[str, str], str]:
    """Return `model_config.json` by its name, or nothing and why no class holds the model."""
    try:
        config = hf_config(shape, job, details)
    except EmitError as error:
        return {}, str(error)
    return {FILE: json.dumps(config, indent=2) + "\n"}, ""


def model_type(shape: ModelShape, job: TrainingJob, details: DetailsSpec = NO_DETAILS) -> str:
    """Return the `model_type` of the class that holds a model; empty where none does."""
    try:
        return str(hf_config(shape, job, details)["model_type"])
    except EmitError:
        return ""


def hf_config(
    shape: ModelShape, job: TrainingJob, details: DetailsSpec = NO_DETAILS
) -> dict[str, object]:
    """Return the fields of config.json; `EmitError` names the part that no class has."""
    if shape.encoder:
        return encoder_decoder_config(shape, job, details)
    found = class_of(shape)
    _check(shape, details, found.details if found else ())
    if shape.residual_streams and not (found and found.own in COMPRESSED):
        raise EmitError("no class of transformers but DeepSeek-V4's has several residual streams")
    common = _common(shape, job, details)
    if found:
        fields = {**common, "model_type": found.model_type, **found.fields(shape, details)}
        return {name: value for name, value in fields.items() if value is not None}
    if added_kinds(shape):
        return _of_kinds(shape, details, common)
    if shape.latent:
        return _latent(shape, details) | common
    if shape.n_experts:
        return _with_experts(shape, details) | common
    return _dense(shape, details) | common


def _check(shape: ModelShape, details: DetailsSpec, own: tuple[str, ...]) -> None:
    """Refuse what no class of transformers that is written here has; `own`: what this one has."""
    odd = {
        "multi-token prediction": shape.mtp_layers > 0,
        "a vision tower": shape.vision is not None,
        "a layer before the head": shape.head_transform and "head_transform" not in own,
        "a capacity of experts": shape.capacity_factor > 0,
        "routing forced to balance": shape.forced_balance,
        "RMSNorm in an MLP of two matrices": shape.norm == "rmsnorm"
        and not (shape.gated or is_hybrid(shape)),
        "LayerNorm in an MLP of three matrices": shape.norm == "layernorm" and shape.gated,
        "learned positions beside RMSNorm": shape.positions == "learned"
        and shape.norm == "rmsnorm",
        "clamped SwiGLU": details.activation == "clamped_swiglu" and not _is_gpt_oss(shape),
        "attention sinks": bool(details.attention_sinks) and not _is_gpt_oss(shape),
        "layers without positions": details.no_rope_every is not None
        and not (is_hybrid(shape) and details.no_rope_every == 1)
        and "no_rope_every" not in own,
        "full attention in some layers": details.full_attention_every is not None
        and shape.window is None,
        "queries and keys normalised over their whole width or by l2": details.qk_norm
        in ("width", "l2"),
        "a share of each head rotated": details.rotary_percent not in (None, 1.0)
        and not has_mixer(shape, "gdn"),
        "sizes of some layers of their own": bool(shape.variants),
        "value heads of another width": shape.v_head > 0 and not shape.latent,
        "a gate of attention's output": shape.attention_gate and not has_mixer(shape, "gdn"),
    }
    hit = [name for name, on in odd.items() if on]
    own += ("norm_one_plus",) if has_mixer(shape, "gdn") else ()
    hit += [name for name in OTHER_MODEL if details.stated().get(name) and name not in own]
    if hit:
        raise EmitError(f"no class of transformers that planner writes has {', '.join(hit)}")


def _common(shape: ModelShape, job: TrainingJob, details: DetailsSpec) -> dict[str, object]:
    named = details.activation or ("silu" if shape.gated else "gelu_tanh")
    dropout = DROPOUT if shape.dropout else 0.0
    length = max(shape.max_positions, job.seq_len)
    base: dict[str, object] = {
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        "initializer_range": details.init_std or 0.02,
    }
    if shape.positions == "learned":
        return base | {
            "n_positions": length,
            "activation_function": ACTIVATIONS.get(named, named),
            "resid_pdrop": dropout,
            "embd_pdrop": dropout,
            "attn_pdrop": dropout,
            "layer_norm_epsilon": details.norm_epsilon or 1e-5,
        }
    norm = "rms_norm_eps" if shape.norm == "rmsnorm" else "norm_epsilon"
    base |= {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads if shape.latent else shape.kv_heads,
        "max_position_embeddings": length,
        "hidden_act": ACTIVATIONS.get(named, named),
        "attention_dropout": dropout,
        norm: details.norm_epsilon or 1e-5,
    }
    base |= {} if shape.latent else {"head_dim": shape.head_dim}
    return base | _rope(details)


def _rope(details: DetailsSpec) -> dict[str, object]:
    """Return base and scaling of the rotary positions, in the keys that all releases read."""
    entries: dict[str, object] = {"rope_theta": details.rotary_base or 10000.0}
    names: Mapping[str, object] = {
        "factor": details.rope_scaling_factor,
        "original_max_position_embeddings": details.rope_original_positions,
        "low_freq_factor": details.rope_low_frequency,
        "high_freq_factor": details.rope_high_frequency,
        "beta_fast": details.rope_beta_fast,
        "beta_slow": details.rope_beta_slow,
        "mscale": details.rope_mscale,
        "mscale_all_dim": details.rope_mscale_all_dim,
        "truncate": details.rope_truncate,
    }
    if details.rope_scaling == "longrope":
        raise EmitError("longrope has factors for each frequency, which a model file lacks")
    if details.rope_scaling:
        fields = {name: value for name, value in names.items() if value is not None}
        entries["rope_scaling"] = {"rope_type": details.rope_scaling, **fields}
    return entries


def _biases(shape: ModelShape, details: DetailsSpec) -> tuple[bool, bool]:
    """Return whether queries, keys and values have biases, and the attention output."""
    qkv = shape.bias if details.qkv_bias is None else details.qkv_bias
    out = shape.bias if details.attention_out_bias is None else details.attention_out_bias
    return qkv, out


def _dense(shape: ModelShape, details: DetailsSpec) -> dict[str, object]:
    qkv, out = _biases(shape, details)
    if shape.positions == "learned":
        if shape.kv_heads != shape.heads or shape.q_width != shape.hidden or not shape.bias:
            raise EmitError("GPT-2's class has biases and as many KV heads as heads")
        return {
            "model_type": "gpt2",
            "n_embd": shape.hidden,
            "n_layer": shape.layers,
            "n_head": shape.heads,
            "n_inner": shape.ffn,
        }
    if shape.norm == "layernorm":
        if (qkv, out) != (shape.bias, shape.bias):
            raise EmitError("Starcoder2's class has biases everywhere or nowhere")
        return {
            "model_type": "starcoder2",
            "intermediate_size": shape.ffn,
            "use_bias": shape.bias,
            "sliding_window": details.window,
            "residual_dropout": 0.0,
            "embedding_dropout": 0.0,
        }
    sizes: dict[str, object] = {"intermediate_size": shape.ffn}
    if details.qk_norm == "head":
        if shape.bias or qkv != out or details.window:
            raise EmitError("Qwen3's class has the same biases in all of attention, none beside")
        return {"model_type": "qwen3", "attention_bias": qkv} | sizes
    if qkv and not out and not shape.bias and not details.window:
        return {"model_type": "qwen2"} | sizes
    if qkv != out:
        raise EmitError("no class has these biases in attention and MLP")
    if details.window:
        if qkv or shape.bias:
            raise EmitError("Mistral's class, which has a window in all layers, has no biases")
        return {"model_type": "mistral", "sliding_window": details.window} | sizes
    return {"model_type": "llama", "attention_bias": qkv, "mlp_bias": shape.bias} | sizes


def _with_experts(shape: ModelShape, details: DetailsSpec) -> dict[str, object]:
    qkv, out = _biases(shape, details)
    if shape.bias or out or details.window:
        raise EmitError("no class with experts has these biases or a window")
    if details.router_scores == "sigmoid":
        return _sigmoid(shape, details, qkv)
    layers, sparse = list(shape.expert_layers), _sparse(shape, details)
    if shape.shared_ffn:
        if not details.shared_expert_gate or details.qk_norm:
            raise EmitError("softmax routing with shared experts that have no gate, or QK norms")
        return {
            "model_type": "qwen2_moe",
            "shared_expert_intermediate_size": shape.shared_ffn,
            "qkv_bias": qkv,
        } | sparse
    if details.qk_norm == "head":
        return {"model_type": "qwen3_moe", "attention_bias": False} | sparse
    if all(layers) and not qkv and details.router_norm_topk is not False:
        return {
            "model_type": "mixtral",
            "intermediate_size": shape.expert_ffn,
            "num_local_experts": shape.n_experts,
            "num_experts_per_tok": shape.top_k,
            "sliding_window": None,
            "router_jitter_noise": 0.0,
            **_balance(details),
        }
    raise EmitError("dense layers beside experts, or their scores as they are, without QK norms")


def _sparse(shape: ModelShape, details: DetailsSpec) -> dict[str, object]:
    """Return the experts of Qwen's classes."""
    layers = shape.expert_layers
    return {
        "moe_intermediate_size": shape.expert_ffn,
        "intermediate_size": shape.ffn or shape.expert_ffn,
        "num_experts": shape.n_experts,
        "num_experts_per_tok": shape.top_k,
        "norm_topk_prob": details.router_norm_topk is not False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i, has in enumerate(layers) if not has],
        **_balance(details),
    }


def _of_kinds(
    shape: ModelShape, details: DetailsSpec, common: Mapping[str, object]
) -> dict[str, object]:
    """Return the fields of a class whose layers are of several kinds, or have windows."""
    kinds = [mixer_and_feed(kind) for kind in kind_sequence(shape)]
    mixers, feeds = {mixer for mixer, _ in kinds}, {feed for _, feed in kinds}
    if mixers <= {"attention", "window"} and "none" not in feeds and not shape.latent:
        clamped = {"hidden_act": "silu"} if _is_gpt_oss(shape) else {}
        return _windowed(shape, details) | dict(common) | clamped
    is_qwen3_next = (
        mixers <= {"attention", "gdn"} and feeds <= {"dense", "moe"} and shape.n_experts
    )
    if is_qwen3_next and not shape.latent:
        return _qwen3_next(shape, details) | dict(common)
    if mixers <= {"attention", "mamba2", "none"} and all("none" in pair for pair in kinds):
        return _nemotron_h(shape, details, common)
    if mixers == {"differential"} and feeds == {"dense"}:
        return _diffllama(shape, details) | dict(common)
    raise EmitError(f"no class that planner writes has layers of {', '.join(_names(shape))}")


def _diffllama(shape: ModelShape, details: DetailsSpec) -> dict[str, object]:
    """Return the fields of the class with differential attention in all layers."""
    qkv, out = _biases(shape, details)
    if qkv != out or shape.bias or details.window or details.qk_norm:
        raise EmitError("DiffLlama's class has no biases of the MLP, windows or norms of heads")
    return {"model_type": "diffllama", "attention_bias": qkv, "intermediate_size": shape.ffn}


def _names(shape: ModelShape) -> list[str]:
    return [kind.name for kind in added_kinds(shape)]


def _is_gpt_oss(shape: ModelShape) -> bool:
    """Tell whether the layers are those of gpt-oss: experts, biases, a window in some."""
    kinds = set(kind_sequence(shape))
    return shape.bias and not shape.latent and "window+moe" in kinds <= {"window+moe", "moe"}


def _windowed(shape: ModelShape, details: DetailsSpec) -> dict[str, object]:
    """Return the fields of a class with windows in some layers, or in all."""
    assert shape.window is not None  # checked where the model is read
    local = [mixer_and_feed(kind)[0] == "window" for kind in kind_sequence(shape)]
    types = ["sliding_attention" if flag else "full_attention" for flag in local]
    window: dict[str, object] = {"sliding_window": shape.window.size}
    qkv, out = _biases(shape, details)
    if _is_gpt_oss(shape):
        if details.activation != "clamped_swiglu" or not details.attention_sinks:
            raise EmitError("gpt-oss's class always has sinks and a clamped SwiGLU")
        return {
            "model_type": "gpt_oss",
            "layer_types": types,
            "intermediate_size": shape.expert_ffn,
            "num_local_experts": shape.n_experts,
            "num_experts_per_tok": shape.top_k,
            "attention_bias": True,
            **_balance(details),
        } | window
    plain = without_kinds(shape)
    rest = details.model_copy(update={"window": None, "full_attention_every": None})
    config = _with_experts(plain, rest) if shape.n_experts else _dense(plain, rest)
    kind = config["model_type"]
    if kind in ("qwen2", "qwen3"):
        return config | {"layer_types": types, "use_sliding_window": True} | window
    if not all(local):
        raise EmitError(f"{kind}'s class has a window in all layers or in none")
    if kind == "qwen3_moe":
        return config | {"use_sliding_window": True} | window
    if kind == "llama" and not (qkv or out or shape.bias):
        del config["attention_bias"], config["mlp_bias"]
        return config | {"model_type": "mistral"} | window
    if kind in ("mixtral", "starcoder2"):
        return config | window
    raise EmitError(f"{kind}'s class has no window")


def without_kinds(shape: ModelShape) -> ModelShape:
    """Return a model with attention over all keys in place of windows."""
    kinds = [kind.replace("window+", "attention+") for kind in kind_sequence(shape)]
    runs = tuple(layer_run(KIND_ALIASES.get(kind, kind), 1) for kind in kinds)
    return replace(shape, layer_runs=runs, window=None)


def _qwen3_next(shape: ModelShape, details: DetailsSpec) -> dict[str, object]:
    """Return the fields of Qwen3-Next: gated delta nets, gated attention, gated shared experts."""
    sizes, qkv = shape.delta_net, _biases(shape, details)[0]
    assert sizes is not None  # checked where the model is read
    odd = {
        "attention without a gate": not shape.attention_gate,
        "no shared expert with a gate": not (shape.shared_ffn and details.shared_expert_gate),
        "no norms of queries and keys": details.qk_norm != "head",
        "biases": shape.bias or details.attention_out_bias,
        "sigmoid scores": details.router_scores == "sigmoid",
        "norms that do not multiply by one plus their weights": not details.norm_one_plus,
    }
    if hit := [name for name, on in odd.items() if on]:
        raise EmitError(f"Qwen3-Next's class does not have {', '.join(hit)}")
    linear = [mixer_and_feed(kind)[0] == "gdn" for kind in kind_sequence(shape)]
    return {
        "model_type": "qwen3_next",
        "layer_types": ["linear_attention" if x else "full_attention" for x in linear],
        "linear_num_key_heads": sizes.k_heads,
        "linear_num_value_heads": sizes.v_heads,
        "linear_key_head_dim": sizes.k_dim,
        "linear_value_head_dim": sizes.v_dim,
        "linear_conv_kernel_dim": sizes.conv,
        "shared_expert_intermediate_size": shape.shared_ffn,
        "attention_bias": qkv,
        "partial_rotary_factor": details.rotary_percent or 1.0,
        **_sparse(shape, details),
    }


_BLOCKS = {"mamba2": "linear_attention", "attention": "full_attention"}
_FEED_BLOCKS = {"dense": "mlp", "moe": "moe"}


def _nemotron_h(
    shape: ModelShape, details: DetailsSpec, common: Mapping[str, object]
) -> dict[str, object]:
    """Return the fields of Nemotron-H: sublayers alone, an MLP of two matrices, no positions."""
    sizes = shape.mamba2
    experts = shape.n_experts > 0
    odd = {
        "latent attention": shape.latent,
        "a gated MLP": shape.gated,
        "another activation than relu2": details.activation != "squared_relu",
        "positions": details.no_rope_every != 1,
        "LayerNorm": shape.norm != "rmsnorm",
        "no state-space layer": sizes is None,
        "softmax scores of experts": experts and details.router_scores != "sigmoid",
        "experts without a shared one": experts and not shape.shared_ffn,
    }
    if hit := [name for name, on in odd.items() if on]:
        raise EmitError(f"Nemotron-H's class does not have {', '.join(hit)}")
    assert sizes is not None
    kinds = [mixer_and_feed(kind) for kind in kind_sequence(shape)]
    blocks = [_BLOCKS.get(mixer) or _FEED_BLOCKS[feed] for mixer, feed in kinds]
    renamed = {"hidden_act": "mlp_hidden_act", "rms_norm_eps": "layer_norm_epsilon"}
    left_out = ("num_hidden_layers", "rope_theta", "rope_scaling")
    config: dict[str, object] = {
        "model_type": "nemotron_h",
        "layers_block_type": blocks,
        "intermediate_size": shape.ffn,
        "attention_bias": shape.bias,
        "mlp_bias": shape.bias,
        "use_bias": shape.bias,
        "mamba_num_heads": sizes.heads,
        "mamba_head_dim": sizes.head_dim,
        "n_groups": sizes.groups,
        "ssm_state_size": sizes.state,
        "conv_kernel": sizes.conv,
        "chunk_size": sizes.chunk,
        **{renamed.get(key, key): value for key, value in common.items() if key not in left_out},
    }
    if experts:
        config |= {
            "n_routed_experts": shape.n_experts,
            "num_experts_per_tok": shape.top_k,
            "n_shared_experts": 1,
            "moe_intermediate_size": shape.expert_ffn,
            "moe_shared_expert_intermediate_size": shape.shared_ffn,
            "n_group": shape.n_groups,
            "topk_group": shape.top_groups,
            "norm_topk_prob": details.router_norm_topk is not False,
            "routed_scaling_factor": details.router_scale or 1.0,
        }
    return config


def _balance(details: DetailsSpec) -> dict[str, object]:
    """Return the loss that balances experts; HF adds it where router logits are returned."""
    loss = details.aux_loss
    return {"output_router_logits": bool(loss), "router_aux_loss_coef": loss or 0.0}


def _groups(shape: ModelShape, details: DetailsSpec) -> dict[str, object]:
    """Return the experts of DeepSeek's and GLM's classes."""
    n_shared, rest = divmod(shape.shared_ffn, shape.expert_ffn)
    after = replace(shape, dense_layers=0, layers=shape.layers - shape.dense_layers)
    if rest or not all(after.expert_layers):
        raise EmitError("shared experts of another width, or experts in every n-th layer")
    return {
        **expert_fields(shape, details, n_shared),
        "first_k_dense_replace": shape.dense_layers,
    }


def _sigmoid(shape: ModelShape, details: DetailsSpec, qkv: bool) -> dict[str, object]:
    if not shape.shared_ffn or details.shared_expert_gate:
        raise EmitError("GLM-4's class has shared experts without a gate beside sigmoid routing")
    return {
        "model_type": "glm4_moe",
        "attention_bias": qkv,
        "use_qk_norm": details.qk_norm == "head",
        "partial_rotary_factor": 1.0,
    } | _groups(shape, details)


def _latent(shape: ModelShape, details: DetailsSpec) -> dict[str, object]:
    if shape.bias or details.qkv_bias or details.attention_out_bias or details.window:
        raise EmitError("DeepSeek's classes have no biases and no window")
    latent: dict[str, object] = {
        "q_lora_rank": shape.q_rank or None,
        "kv_lora_rank": shape.kv_rank,
        "qk_nope_head_dim": shape.qk_nope,
        "qk_rope_head_dim": shape.qk_rope,
        "v_head_dim": shape.v_head,
        "attention_bias": False,
    }
    if not shape.n_experts:
        dense = {"first_k_dense_replace": shape.layers, "intermediate_size": shape.ffn}
        return {"model_type": "deepseek_v3"} | latent | dense
    if details.router_scores == "softmax":
        if not shape.shared_ffn:
            raise EmitError("DeepSeek-V2's class always has shared experts")
        limited = "group_limited_greedy" if shape.n_groups > 1 else "greedy"
        v2 = {"model_type": "deepseek_v2", "topk_method": limited}
        return v2 | latent | _groups(shape, details)
    if not shape.shared_ffn:
        raise EmitError("DeepSeek-V3's class always has shared experts")
    return {"model_type": "deepseek_v3"} | latent | _groups(shape, details)
