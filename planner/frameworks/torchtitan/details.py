"""Details of a model in a torchtitan recipe: constants, and the arguments that take them.

A recipe without details states torchtitan's own values as literals; with them the constants take
their place.
"""

import re

from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.megatron.core_details import needed_parts, setting_text
from planner.specs.schema import DetailsSpec

_LLAMA3 = {
    "rope_scaling_factor": "scaling_factor",
    "rope_low_frequency": "low_freq_factor",
    "rope_high_frequency": "high_freq_factor",
    "rope_original_positions": "original_max_position_embeddings",
}
_YARN = {
    "rope_scaling_factor": "rope_factor",
    "rope_beta_fast": "beta_fast",
    "rope_beta_slow": "beta_slow",
    "rope_original_positions": "original_seq_len",
    "rope_truncate": "truncate",
}
"""Fields of torchtitan's RoPE.Config (torchtitan/models/common/rope.py) by ours."""
_SCALINGS = {
    ("llama3", "llama3"): ("llama", _LLAMA3),
    ("gpt_oss", "yarn"): ("yarn", _YARN),
    ("deepseek_v3", "yarn"): ("yarn", _YARN),
}
"""By package of models and our word: torchtitan's word, and its fields. Other classes have none,
or leave out the scale of the scores that goes with it."""
_ROUTER = ("router_scores", "router_norm_topk", "router_scale")


def constants(details: DetailsSpec, shape: ModelShape, family: str) -> dict[str, object]:
    """Return the details that a recipe states, under the names of the model file in capitals."""
    fields = details.stated()
    names = ["rotary_base", "norm_epsilon", "init_std"]
    if (family, details.rope_scaling) in _SCALINGS:
        names += _scaling(details, family)[1]
        names += ["rope_mscale"] * _one_mscale(details, family)
    if shape.n_experts:
        names += _ROUTER
    return {name.upper(): fields[name] for name in names if name in fields}


def _scaling(details: DetailsSpec, family: str) -> tuple[str, dict[str, str]]:
    """Return torchtitan's word for the scaling, and its fields that are stated, by ours."""
    word, fields = _SCALINGS[family, details.rope_scaling or ""]
    return word, {name: field for name, field in fields.items() if name in details.stated()}


def _one_mscale(details: DetailsSpec, family: str) -> bool:
    """Tell whether both scales of YaRN are one, which torchtitan's latent attention takes."""
    same = details.rope_mscale == details.rope_mscale_all_dim
    return family == "deepseek_v3" and same and details.rope_mscale is not None


def with_details(code: str, details: DetailsSpec, shape: ModelShape, family: str) -> str:
    """Return the code of a model with its literals replaced by the constants that are stated."""
    names = constants(details, shape, family)
    if "INIT_STD" in names:
        code = code.replace("std=0.02", "std=INIT_STD")
    if "NORM_EPSILON" in names:
        code = code.replace("=width, param_init", "=width, eps=NORM_EPSILON, param_init")
        code = re.sub(
            r"(    return RMSNorm.Config\()(.*)\)\n", r"\1\n        \2\n    )\n", code, count=1
        )
        code = _latent_epsilon(code)
    if "ROTARY_BASE" in names:
        code = re.sub(r"theta=[\d.]+", "theta=ROTARY_BASE", code)
    if (family, details.rope_scaling) in _SCALINGS:
        word, fields = _scaling(details, family)
        more = [
            f'scaling="{word}"',
            *(f"{field}={name.upper()}" for name, field in fields.items()),
        ]
        inner = "".join(f"            {text},\n" for text in more)
        code = re.sub(
            r"rope=(\w+)\.Config\((.*)\),\n",
            lambda m: _spread(m[1], m[2]) + inner + "        ),\n",
            code,
        )
    if "ROPE_MSCALE" in names:
        code = code.replace(" " * 8 + "attn_b", " " * 8 + "mscale=ROPE_MSCALE,\n        attn_b")
    if "ROUTER_SCORES" in names:
        code = re.sub(r'score_func="\w+"', "score_func=ROUTER_SCORES", code)
    if "ROUTER_NORM_TOPK" in names:
        code = code.replace("route_norm=True", "route_norm=ROUTER_NORM_TOPK")
    if "ROUTER_SCALE" in names:
        code = re.sub(r"( +)(route_norm=\w+,\n)", r"\1\2\1route_scale=ROUTER_SCALE,\n", code)
    return code


def _spread(name: str, arguments: str) -> str:
    """Return the start of a call with one argument a line."""
    lines = "".join(f"            {text},\n" for text in arguments.split(", "))
    return f"rope={name}.Config(\n{lines}"


def _latent_epsilon(code: str) -> str:
    """Give the norms of the latents the same epsilon; their builder takes none."""
    head, call, tail = code.partition("    return make_mla_attention_config(")
    if not call:
        return code
    inner, end, rest = tail.partition("\n    )\n")
    after = "    for latent in (built.q_norm, built.kv_norm):\n        latent.eps = NORM_EPSILON\n"
    return (
        f"{head}    built = make_mla_attention_config({inner}{end}{after}    return built\n{rest}"
    )


def not_said(
    details: DetailsSpec, shape: ModelShape, job: TrainingJob, family: str
) -> tuple[str, ...]:
    """Return the details that torchtitan's classes do not have, a line each."""
    fields, own = details.stated(), family == "gpt_oss"
    scaled = details.rope_scaling is None or (family, details.rope_scaling) in _SCALINGS
    mscale = details.rope_mscale == details.rope_mscale_all_dim
    norms = {"head": family in ("qwen3", "deepseek_v3")}
    window = bool(details.window) and (details.window or 0) < job.seq_len
    window = window and shape.window is None  # else the kinds of layers say it
    activation = "clamped_swiglu" if own else "silu"
    checks = {
        "rotary_percent": details.rotary_percent in (None, 1.0) or shape.latent,
        "rope_scaling": scaled,
        "rope_mscale": details.rope_mscale is None or (mscale and family == "deepseek_v3"),
        "no_rope_every": details.no_rope_every is None,
        "qk_norm": details.qk_norm is None or norms.get(details.qk_norm, False),
        "qkv_bias": details.qkv_bias in (None, shape.bias),
        "attention_out_bias": details.attention_out_bias in (None, shape.bias),
        "activation": details.activation in (None, activation),
        "window": not window or (own and details.full_attention_every == 2),
        "attention_sinks": not details.attention_sinks or own,
        "router_bias": details.router_bias is not False,
        "aux_loss": not details.aux_loss,
        "shared_expert_gate": not details.shared_expert_gate,
    }
    checks |= dict.fromkeys(needed_parts(details, job), False)
    why = {"aux_loss": "torchtitan balances experts by a bias alone"}
    return tuple(
        f"{name} {setting_text(fields[name])}: "
        f"{why.get(name, f'the classes of {family} have none')}"
        for name, lines in checks.items()
        if not lines
    )
