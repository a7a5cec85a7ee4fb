"""Details of a model as settings of megatron-core, which Megatron-LM and Megatron-Bridge share.

Settings stand under the names of Megatron-LM's parser; `TransformerConfig` has the same ones but
for a few, which the writer of Bridge recipes renames. What megatron-core cannot say is named.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.megatron.layer_kinds import kind_settings
from planner.specs.schema import OTHER_MODEL, DetailsSpec

AUX_LOSS = 0.01
"""Coefficient of the loss that balances experts where the model file says none."""
LLAMA3_SCALING = {
    "rope_original_positions": 8192,
    "rope_low_frequency": 1.0,
    "rope_high_frequency": 4.0,
}
"""Constants of `RotaryEmbedding._apply_scaling` (megatron/core/models/common/embeddings)."""
LATENT_SCALING = {"original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0}
"""Defaults of `MLATransformerConfig` for which Megatron-LM's parser has no option."""
CLAMPED_SWIGLU = {
    "quick_geglu": True,
    "glu_linear_offset": 1.0,
    "activation_func_clamp_value": 7.0,
}
"""x * sigmoid(1.702 x) beside a linear half of offset 1, both clamped, as gpt-oss has it."""
_PLAIN = {
    "rotary_base": "rotary_base",
    "rotary_percent": "rotary_percent",
    "norm_epsilon": "layernorm_epsilon",
    "init_std": "init_method_std",
}
_EXPERTS = {
    "router_scores": "moe_router_score_function",
    "shared_expert_gate": "moe_shared_expert_gate",
}


@dataclass(frozen=True, slots=True)
class CoreDetails:
    """Settings of megatron-core that the details of a model mean."""

    model: Mapping[str, object]
    experts: Mapping[str, object]
    yours: tuple[str, ...]
    """What megatron-core cannot say, a line each: field, value, and why."""


def core_details(
    details: DetailsSpec, layout: Layout, shape: ModelShape, job: TrainingJob
) -> CoreDetails:
    """Return the settings that details mean for one plan."""
    fields, yours = details.stated(), []
    model: dict[str, object] = {
        dest: fields[name] for name, dest in _PLAIN.items() if name in fields
    }
    base = details.rotary_base
    if base is not None and not base.is_integer():
        del model["rotary_base"]
        yours.append(f"rotary_base {base!r}: megatron-core takes a whole number")
    elif base is not None:
        model["rotary_base"] = int(base)
    if shape.latent and model.pop("rotary_percent", 1.0) != 1.0:
        yours.append("rotary_percent: latent attention rotates qk_rope of a head")
    scaling, missing = _scaling(details, shape)
    model |= scaling
    model |= kind_settings(shape)
    yours += missing
    for settings, missing in (
        _attention(details, shape),
        _window(details, layout, shape, job),
        _activation(details, shape),
        _other_parts(details, shape, job),
    ):
        model |= settings
        yours += missing
    experts, missing = _experts(details, shape)
    return CoreDetails(model, experts, (*yours, *missing))


Written = tuple[dict[str, object], list[str]]


def _scaling(details: DetailsSpec, shape: ModelShape) -> Written:
    """Return how rotary positions are stretched."""
    kind, factor = details.rope_scaling, details.rope_scaling_factor
    if details.no_rope_every and shape.layers % details.no_rope_every:
        every = details.no_rope_every
        return {}, [f"no_rope_every {every}: it does not divide {shape.layers} layers"]
    none: dict[str, object] = {"no_rope_freq": details.no_rope_every}
    result = none if details.no_rope_every else {}
    if kind is None:
        return result, []
    if kind == "yarn" and shape.mtp_layers and not shape.latent:
        return result, ["rope_scaling yarn: Megatron-LM refuses it beside multi-token prediction"]
    if kind == "yarn":
        return result | _yarn(details, shape), []
    if kind == "llama3" and not shape.latent:
        fields = details.stated()
        odd = [
            f"{name} {fields[name]!r}: megatron-core has {constant!r}"
            for name, constant in LLAMA3_SCALING.items()
            if fields.get(name, constant) != constant
        ]
        return result | {"use_rope_scaling": True, "rope_scaling_factor": factor}, odd
    if kind == "linear" and factor and factor.is_integer() and not shape.latent:
        return result | {"rotary_seq_len_interpolation_factor": int(factor)}, []
    return result, [f"rope_scaling {kind} by {factor!r}: megatron-core does not have it"]


def _yarn(details: DetailsSpec, shape: ModelShape) -> dict[str, object]:
    """Return the settings of YaRN; latent attention has fields of its own."""
    arguments = {
        "rotary_scaling_factor": details.rope_scaling_factor,
        "mscale": details.rope_mscale,
        "mscale_all_dim": details.rope_mscale_all_dim,
    }
    if shape.latent:
        own = {
            "original_max_position_embeddings": details.rope_original_positions,
            "beta_fast": details.rope_beta_fast,
            "beta_slow": details.rope_beta_slow,
        }
        odd = {k: v for k, v in own.items() if v is not None and v != LATENT_SCALING[k]}
        settings: dict[str, object] = {"rope_type": "yarn", **arguments, **odd}
    else:
        settings = {
            "position_embedding_type": "yarn",
            **arguments,
            "yarn_original_max_position_embeddings": details.rope_original_positions,
            "yarn_beta_fast": details.rope_beta_fast,
            "yarn_beta_slow": details.rope_beta_slow,
            "yarn_correction_range_round_to_int": False
            if details.rope_truncate is False
            else None,
        }
    return {key: value for key, value in settings.items() if value is not None}


def _attention(details: DetailsSpec, shape: ModelShape) -> Written:
    """Return norms and biases of queries, keys and values."""
    entries: dict[str, object] = {}
    yours = []
    if details.qk_norm == "head" or (shape.latent and details.qk_norm is None):
        entries["qk_layernorm"] = True  # with latent attention: the norms of its latents
    elif details.qk_norm == "l2":
        entries["qk_l2_norm"] = True
    elif details.qk_norm == "width":
        yours.append("qk_norm width: megatron-core normalises each head")
    if shape.attention_gate:
        entries["attention_output_gate"] = True
    if details.qkv_bias and not shape.bias:
        entries["add_qkv_bias"] = True
    elif details.qkv_bias is False and shape.bias:
        yours.append("qkv_bias false: megatron-core has it with the biases of the other layers")
    if details.attention_out_bias is not None and details.attention_out_bias != shape.bias:
        on = str(details.attention_out_bias).lower()
        yours.append(f"attention_out_bias {on}: megatron-core has all linear biases or none")
    return entries, yours


def _window(details: DetailsSpec, layout: Layout, shape: ModelShape, job: TrainingJob) -> Written:
    """Return the window of local layers where no kind of layer says it, and attention sinks.

    Transformer Engine has neither in its ring of context-parallel ranks (transformer_engine/
    pytorch/attention/dot_product_attention/context_parallel.py).
    """
    entries: dict[str, object] = {}
    yours = []
    if details.window and details.window < job.seq_len and shape.window is None:
        if layout.cp > 1 and layout.cp_comm == "p2p":
            yours.append(f"window {details.window}: not with context parallelism by p2p")
        else:
            entries["window_size"] = (details.window - 1, 0)
            if details.full_attention_every:
                entries["window_attn_skip_freq"] = details.full_attention_every
    if details.attention_sinks:
        if layout.cp > 1 and layout.cp_comm != "a2a":
            yours.append("attention_sinks true: only with context parallelism by a2a")
        else:
            entries["softmax_type"] = "learnable"
    return entries, yours


def _activation(details: DetailsSpec, shape: ModelShape) -> Written:
    """Return the activation where it is none of the two usual ones."""
    kind = details.activation
    if kind is None or kind == ("silu" if shape.gated else "gelu"):
        return {}, []
    if kind == "squared_relu" and not shape.gated:
        return {"squared_relu": True}, []
    if kind == "clamped_swiglu" and shape.gated:
        return dict(CLAMPED_SWIGLU), []
    gated = "gated " if shape.gated else ""
    return {}, [f"activation {kind}: Megatron-LM has no option for a {gated}MLP with it"]


_NONE = "megatron-core has none"
_WHY = {
    "parallel_block": "megatron-core computes the MLP after attention",
    "post_norms": "megatron-core has norms before attention and MLP alone",
    "alibi": "megatron-core has no biases by distance; these are rotary positions",
    "attention_soft_cap": "megatron-core caps no scores",
    "logit_soft_cap": "megatron-core caps no logits",
    "local_rotary_base": "megatron-core has one base for all layers",
}


def _other_parts(details: DetailsSpec, shape: ModelShape, job: TrainingJob) -> Written:
    """Return the parts that hardly any model has, most of them no setting of megatron-core."""
    entries: dict[str, object] = {}
    if details.norm_one_plus:
        entries["layernorm_zero_centered_gamma"] = True
    fields = details.stated()
    if details.attention_scale is not None:
        entries["softmax_scale"] = details.attention_scale
    return entries, [
        f"{name} {setting_text(fields[name])}: {_WHY.get(name, _NONE)}"
        for name in needed_parts(details, job)
        if name not in ("norm_one_plus", "attention_scale")
    ]


def needed_parts(details: DetailsSpec, job: TrainingJob) -> list[str]:
    """Return the parts that are set and at work in sequences of a job's length."""
    fields = details.stated()
    idle = {
        "attention_chunk": (details.attention_chunk or 0) >= job.seq_len,
        "attention_temperature_from": (details.attention_temperature_from or 0) >= job.seq_len,
        "local_rotary_base": details.local_rotary_base == details.rotary_base,
    }
    return [name for name in OTHER_MODEL if fields.get(name) and not idle.get(name)]


def setting_text(value: object) -> str:
    """Return a value as a model file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _experts(details: DetailsSpec, shape: ModelShape) -> Written:
    """Return the router and the balance of experts."""
    if not shape.n_experts:
        return {}, []
    fields = details.stated()
    entries: dict[str, object] = {
        dest: fields[name] for name, dest in _EXPERTS.items() if fields.get(name)
    }
    yours = []
    sigmoid = details.router_scores == "sigmoid"
    if details.router_norm_topk is False and shape.top_k > 1:
        if sigmoid:
            yours.append("router_norm_topk false: sigmoid scores are always made to sum to one")
        else:
            entries["moe_router_pre_softmax"] = True
    if details.router_scale not in (None, 1.0):
        entries["moe_router_topk_scaling_factor"] = details.router_scale
    if details.router_bias and sigmoid:
        entries["moe_router_enable_expert_bias"] = True
    elif details.router_bias:
        yours.append("router_bias true: megatron-core has it beside sigmoid scores alone")
    if details.aux_loss is not None:
        entries["moe_aux_loss_coeff"] = details.aux_loss
    if details.aux_loss_scope == "sequence":
        entries["moe_router_load_balancing_type"] = "seq_aux_loss"
    return entries, yours


def comment_lines(yours: tuple[str, ...] | list[str], what: str) -> Iterator[str]:
    """Yield the comment that names what a file cannot say; nothing where it says all."""
    if yours:
        yield f"# YOURS: {what}"
        yield from (f"#   {line}" for line in yours)
