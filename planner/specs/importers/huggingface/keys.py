"""Every key of a configuration: read, known to change nothing that is priced, or refused by name.

What a key means is said by the type that reads it (`rules`); other keys stand in the table below
with the reason why they may be passed over. Of what nobody knows, only text, switches and factors
whose names tell of no structure are passed over: a number, a list or a section may be layers,
experts or sizes. Names: configuration_*.py of transformers 5.23 and of the Hub.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from planner.errors import InputProblem
from planner.specs.importers.huggingface.config import Config
from planner.specs.importers.huggingface.harmless import HARMLESS_NAMES, HARMLESS_PATTERN
from planner.specs.importers.huggingface.model_types import TYPES
from planner.specs.importers.huggingface.rules import KEYS
from planner.specs.importers.huggingface.synonyms import SYNONYMS
from planner.specs.yaml.document import KeyPath
from planner.units import shown_value

STRUCTURAL_WORDS = re.compile(
    r"expert|moe|rout|layer|block|stage|depth|attn|attention|head|_kv|kv_|key|quer|mlp|ffn|ff_"
    r"|feed|bias|norm|embed|emb_|hidden|inner|intermediate|size|dim|width|rank|lora|latent|mla|ssm"
    r"|mamba|state|conv|recur|linear|gate|gating|glu|residual|share|tie|tying|memor|engram|hyper"
    r"|loop|recurren|cross|encod|posit|rotary|alibi|relative|ratio|mult|expan|factor_size|num_|n_"
    r"|adapter|ngram|altup|laurel|hash"
)
"""Words of names that may tell of layers, widths, experts or the kind of attention."""
_MEANINGS: tuple[tuple[str, str], ...] = (
    (
        r"block_configs|per_layer|_by_layer|layer_configs",
        "layers that differ from one another, as an architecture search (NAS) leaves them",
    ),
    (r"ssm|mamba|conv|d_state|time_step|state_size", "a state space or a convolution"),
    (r"linear_attn|linear_(num|key|value)|delta|recur|rwkv", "linear or recurrent attention"),
    (r"expert|moe|rout", "experts or how they are chosen"),
    (r"index_|indexer|sparse|nsa", "sparse attention"),
    (r"lora|rank|latent|mla", "compressed queries, keys or values"),
    (r"bias", "biases"),
    (r"norm", "norms"),
    (r"attn|attention|head|quer|kv|key", "the kind or the widths of attention"),
    (r"share|tie|tying|embed|emb_", "the embeddings, or weights that are shared"),
    (r"layer|block|depth|loop", "layers"),
    (r"size|dim|width|ffn|mlp|inner|intermediate|ratio|expan|mult|glu", "a size"),
)

_LARGE = tuple(what for _, what in _MEANINGS[:6])
"""Meanings of which nobody is told to take the key out."""

_EXPERT_FIELDS = (
    "experts",
    "topk",
    "moe_ffn",
    "shared_experts",
    "shared_ffn",
    "first_dense",
    "expert_frequency",
    "expert_step",
    "dense_list",
    "expert_list",
    "groups",
    "top_groups",
    "topk_method",
    "dense_or_sparse",
    "expert_flags",
    "last_expert_layer",
)
_SIZELESS = frozenset(
    name
    for fieldname in ("window", "window_on", "window_from", "window_pattern", "max_positions")
    for table in (KEYS, *(rules.keys for rules in TYPES.values()))
    for name in table.get(fieldname, ())
)
"""Names of windows and lengths, also where a type does not read them."""
_LATENT_FIELDS = ("q_rank", "kv_rank", "qk_nope", "qk_rope", "v_head")
_OWN_FIELDS = (
    "attention_bias",
    "attention_out_bias",
    "mlp_bias",
    "parallel",
    "qk_norm",
    "new_decoder",
    "multi_query",
    "attention_types",
    "alibi",
    "post_norm",
)
"""Fields that only the types with a rule or a default for them read."""
_MIXER_FIELDS: Mapping[str, tuple[str, ...]] = {
    "mamba2": tuple(name for name in KEYS if name.startswith("ssm_")),
    "gdn": tuple(name for name in KEYS if name.startswith("lin_")),
    "kda": (*(x for x in KEYS if x.startswith("lin_")), "attention_layers_from_1"),
    "linear": ("lin_chunk", "lin_k_heads", "lin_k_dim"),
    "mamba1": ("m1_state", "m1_rank", "m1_conv", "m1_expand", "m1_inner"),
    "conv": ("short_conv",),
    "factored": ("q_factor",),
    "rglru": ("lru_width", "lru_conv", "lru_blocks"),
    "sparse": (
        *("index_heads", "index_dim", "index_topk", "index_kinds"),
        *("index_blocks", "index_block", "sparse_flags"),
    ),
    "csa": (
        *("index_heads", "index_dim", "index_topk", "sinkhorn_steps"),
        *(x for x in KEYS if x.startswith("cmp_")),
    ),
}
"""Fields that only types with a mixer read."""
_OF_MIXERS = {"zero_experts"} | frozenset(
    name for names in _MIXER_FIELDS.values() for name in names
)
_NOTHING = (None, 0, "", "none", "None")


def key_refusals(config: Config) -> list[InputProblem]:
    """Return a problem for each key that may change the model and is not read."""
    results: list[InputProblem] = []
    read = _read_names(config) | {*config.rules.ignored}
    for name, value in _flat(config):
        if why := "" if name in read else _why_not(config, name, value):
            path: KeyPath = (*config.path, *name.split("."))
            message = f"{shown_value(value)}: {why}"
            has_size = name in _ALL_NAMES or _meaning(name) in _LARGE
            fix = "" if results else _FIX if has_size else _STRAY_FIX
            results.append(config.document.problem(path, message, fix))
    return results


_FIX = "write a model file of what you train: docs/files.md; import of a similar one starts it"
_STRAY_FIX = "if it changes neither layers nor sizes, take it out of a copy; else " + _FIX


def passed_over(config: Config) -> list[str]:
    """Return the keys that nobody knows and that by name and value can change no size."""
    names = _read_names(config) | HARMLESS_NAMES
    return [
        name
        for name, value in _flat(config)
        if name not in names
        and name not in (_ALL_NAMES | _SWITCHES.keys() | _WORDS.keys())
        and name not in (*config.rules.ignored, "rotary_dim", "rope_dim", "expansion_ratio")
        and value not in (*_NOTHING, False)
        and not isinstance(value, list | Mapping)
        and not HARMLESS_PATTERN.search(name)
    ]


def _flat(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield the keys of the section; those inside a section that the type reads, with a dot."""
    inner = {
        key.split(".")[0] for names in config.rules.keys.values() for key in names if "." in key
    }
    for name, value in config.section.items():
        if name in inner and isinstance(value, Mapping):
            yield from ((f"{name}.{key}", item) for key, item in value.items())
        else:
            yield str(name), value


def _names(config: Config, fieldname: str) -> tuple[str, ...]:
    return config.rules.keys.get(fieldname, KEYS[fieldname])


def _read_names(config: Config) -> set[str]:
    """Return the keys that the reader looks up in files of this type."""
    rules = config.rules
    result: set[str] = set()
    for fieldname in KEYS:
        own = fieldname in rules.defaults or fieldname in rules.keys
        is_stated = fieldname in (*rules.biases, rules.parallel, rules.qk_norm)
        if (fieldname in _EXPERT_FIELDS and not rules.experts) or (
            fieldname in _LATENT_FIELDS and not rules.latent
        ):
            continue
        if fieldname in _OWN_FIELDS and not own and not is_stated:
            continue
        if fieldname == "zero_experts" and rules.twice:
            result.update(_names(config, fieldname))
        if fieldname in _OF_MIXERS and fieldname not in _MIXER_FIELDS.get(rules.mixer, ()):
            continue
        if fieldname in ("layer_pattern", "attention_layers", "linear_every") and not rules.mixer:
            continue
        if fieldname in ("kv_heads", "head_dim") and rules.latent:
            continue
        result.update(_names(config, fieldname))
    return result


_ALL_NAMES = frozenset(
    name
    for table in (KEYS, *(rules.keys for rules in TYPES.values()), SYNONYMS)
    for names in table.values()
    for name in names
)
"""Keys that some type reads."""


def _why_not(config: Config, name: str, value: Any) -> str:
    """Return why a key that is not read is refused; nothing for one that is harmless."""
    if name in _SWITCHES:
        meant = _SWITCHES[name](config)
        if value is None or meant is None or bool(value) == meant:
            return ""
        on = "has" if meant else "has no"
        return f"a {config.name} {on} {_SWITCH_MEANINGS.get(name, _meaning(name))}"
    if name in _WORDS:
        meanings = _WORDS[name](config)
        if value is None or str(value).lower().replace("-", "_") in meanings:
            return ""
        return f"a {config.name} has {meanings[0]}"
    if name in ("rotary_dim", "rope_dim") and config.rules.positions == "rope":
        return ""
    if (
        name.rpartition(".")[2] in HARMLESS_NAMES
        or name in _SIZELESS
        or (name not in _ALL_NAMES and HARMLESS_PATTERN.search(name))
    ):
        return ""
    if _is_nothing(value) or _says_the_same(config, name, value):
        return ""
    if name in _ONES and value == 1 and not isinstance(value, bool):
        return ""
    if not _is_suspicious(name, value):
        return ""
    return f"not a key of {config.name}; by its name it says {_meaning(name)}"


def _is_nothing(value: Any) -> bool:
    if isinstance(value, list | Mapping):
        return not value or (isinstance(value, list) and all(x in (None, 0) for x in value))
    return value is False or value in _NOTHING


def _is_suspicious(name: str, value: Any) -> bool:
    """Tell whether a key that no type reads may change the model's layers or sizes."""
    if isinstance(value, list | Mapping):
        return True
    if isinstance(value, int) and not isinstance(value, bool):
        return True
    if isinstance(value, float) and value.is_integer() and value > 1:
        return bool(STRUCTURAL_WORDS.search(name))
    return bool(STRUCTURAL_WORDS.search(name))


def _says_the_same(config: Config, name: str, value: Any) -> bool:
    """Tell whether a key repeats what the reader takes from another one."""
    if isinstance(value, list) and value and all(x == value[0] for x in value):
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    rules = config.rules
    if name in _LATENT_ALIKE and rules.latent:
        return bool(value == _LATENT_ALIKE[name](config))
    for fieldname, names in SYNONYMS.items():
        if name not in names or (fieldname in _EXPERT_FIELDS and not rules.experts):
            continue
        effective = _effective(config, fieldname)
        if effective is not None and effective == value:
            return True
        if fieldname == "shared_experts" and not effective and value == 1:
            width = config.count("shared_ffn", 0).value
            if width and width == config.count("moe_ffn").value:
                return True
    if name in _SHARED_WIDTHS and rules.experts:
        shared, width = config.count("shared_experts", 0).value, config.count("moe_ffn").value
        return bool(shared and width and value in (width, shared * width))
    if name in ("expansion_ratio", "ff_factor", "mlp_ratio") and not rules.gated:
        if not isinstance(value, int | float):
            return False
        return bool(_effective(config, "ffn") == value * (config.count("hidden").value or 0))
    return False


_SHARED_WIDTHS = ("shared_intermediate_size", "moe_shared_expert_intermediate_size")


def _effective(config: Config, fieldname: str) -> Any:
    value = config.look(fieldname).value
    hidden, heads = config.look("hidden").value, config.look("heads").value
    if fieldname == "kv_heads" and config.switch("multi_query").value:
        return 1
    if value is None and fieldname == "kv_heads":
        return heads
    if value is None and fieldname == "head_dim" and isinstance(hidden, int):
        return hidden / config.count("heads").value if heads else None
    if value is None and fieldname == "ffn" and not config.rules.gated and hidden:
        return 4 * config.count("hidden").value
    return value


def _latent(*fields: str) -> Any:
    return lambda config: sum(config.count(name, 0).value or 0 for name in fields)


_LATENT_ALIKE: Mapping[str, Any] = {
    "head_dim": _latent("qk_rope"),
    "qk_head_dim": _latent("qk_nope", "qk_rope"),
    "num_key_value_heads": _latent("heads"),
}

_ONES = (
    "num_experts",
    "num_shared_expert",
    "moe_topk",
    "num_nextn_predict_depth",
    "num_hidden_groups",
    "inner_group_num",
    "num_groups",
    "block_group_size",
    "num_stages",
    "cla_share_factor",
    "expert_layer_period",
    "moe_layer_interval",
    "moe_layer_period",
    "n_group",
    "num_expert_group",
    "topk_group",
    "moe_layer_freq",
    "moe_every_n_layers",
    "shared_layers_times",
    "num_loops",
    "num_recurrent_steps",
    "moe_layer_frequency",
    "decoder_sparse_step",
    "interleave_moe_layer_step",
    "num_key_value_groups_of_layers",
)
"""Keys of which one means that nothing is divided or repeated."""


def _bias(index: int) -> Any:
    return lambda config: bool(config.switch(config.rules.biases[index]).value)


def _any_bias(config: Config) -> bool:
    return any(config.switch(rule).value for rule in config.rules.biases)


def _no_bias(config: Config) -> bool | None:
    # Of the original Qwen it means those of the layers that are no queries, keys and values.
    return None if config.name == "qwen" else not _any_bias(config)


def _fixed(value: bool | None) -> Any:
    return lambda config: value


def _parallel(config: Config) -> bool:
    return bool(config.switch(config.rules.parallel).value)


def _gated(config: Config) -> bool:
    return config.rules.gated


def _tied(config: Config) -> bool:
    return bool(config.switch("tied").value)


def _qk_norm(config: Config) -> bool | None:
    return bool(config.switch(config.rules.qk_norm).value)


_SWITCHES: Mapping[str, Any] = {
    **dict.fromkeys(("bias", "use_bias", "linear_bias", "enable_bias"), _any_bias),
    "add_bias_linear": _bias(2),
    "mlp_bias": _bias(2),
    "ffn_bias": _bias(2),
    "no_bias": _no_bias,
    **dict.fromkeys(
        (
            "qkv_bias",
            "use_qkv_bias",
            "add_qkv_bias",
            "attention_bias",
            "attn_bias",
            "attention_qkv_bias",
            "use_attention_bias",
            "attn_qkv_bias",
        ),
        _bias(0),
    ),
    **dict.fromkeys(("attention_out_bias", "attn_out_bias", "o_bias"), _bias(1)),
    **dict.fromkeys(("use_mla", "mla"), lambda config: config.rules.latent),
    "lm_head": _fixed(True),
    "use_gated_activation": _gated,
    "use_parallel_block": _parallel,
    "use_embedding_sharing": _tied,
    "use_rotary_pos_emb": _fixed(True),
    **dict.fromkeys(
        (
            "gated_mlp",
            "glu",
            "use_glu",
            "use_swiglu",
            "swiglu",
            "mlp_gated",
            "gated",
            "gated_linear_unit",
        ),
        _gated,
    ),
    **dict.fromkeys(
        (
            "use_parallel_residual",
            "parallel_attn",
            "parallel_residual",
            "shared_attention_norm",
            "parallel_block",
        ),
        _parallel,
    ),
    **dict.fromkeys(
        (
            "share_embedding",
            "share_embeddings",
            "tie_embedding",
            "tie_embeddings",
            "weight_tying",
            "share_input_output_embed",
            "tied_embeddings",
        ),
        _tied,
    ),
    "untie_embeddings_and_output_weights": lambda config: not _tied(config),
    **dict.fromkeys(
        (
            "use_qk_norm",
            "qk_norm",
            "qk_layernorm",
            "use_qk_layernorm",
            "attn_config.qk_ln",
            "qk_ln",
        ),
        _qk_norm,
    ),
    **dict.fromkeys(
        ("use_rmsnorm", "rmsnorm", "use_rms_norm"), lambda config: config.rules.norm == "rmsnorm"
    ),
    **dict.fromkeys(
        (
            "do_layer_norm_before",
            "pre_norm",
            "normalize_before",
            "use_rotary",
            "use_rope",
            "rotary",
        ),
        _fixed(True),
    ),
    "use_rotary": lambda config: config.rules.positions == "rope" and not _alibi(config),
    "rope": lambda config: config.rules.positions == "rope" and not _alibi(config),
    "use_rope": lambda config: config.rules.positions == "rope" and not _alibi(config),
    "attn_config.rope": _fixed(False),
    "rotary": lambda config: config.rules.positions == "rope" and not _alibi(config),
    "post_layer_norm": lambda config: config.rules.positions == "rope" or None,
    "attention_layernorm": _fixed(False),
    "apply_residual_connection_post_layernorm": _fixed(False),
    "layer_norm_elementwise_affine": _fixed(True),
    "_remove_final_layer_norm": _fixed(False),
    "is_encoder_decoder": _fixed(False),
    "add_cross_attention": _fixed(False),
    "use_cla": lambda config: None if config.name == "hunyuan_v1_moe" else False,
    "original_rope_only": _fixed(None),
    "alibi": _fixed(False),
    "attn_config.prefix_lm": _fixed(False),
    "prefix_lm": _fixed(False),
    "learned_embeddings": lambda config: config.rules.positions == "learned",
    "learned_pos_emb": lambda config: (
        None if _alibi(config) else config.rules.positions == "learned"
    ),
    "use_attn_bias": _bias(0),
    "lm_head_bias": _fixed(None),
    "head_bias": _fixed(None),
    "use_logits_bias": _fixed(None),
    "use_expert_bias": _fixed(None),
    "moe_router_enable_expert_bias": _fixed(None),
    "use_routing_bias": _fixed(None),
    "use_router_bias": _fixed(None),
    "attention_sink": _fixed(None),
    "use_sliding_window": _fixed(None),
    "use_bidirectional_attention": _fixed(False),
    "full_attn_mask": lambda config: bool(config.switch("both_sides").value),
    "use_shared_expert_gate": _fixed(None),
    "multi_query_attention": lambda config: config.name == "chatglm",
    "rope_scaling_by_layer": _fixed(None),
    "norm_after": _fixed(None),
    "use_post_norm": _fixed(False),
    "use_gemma_norm": _fixed(None),
    "use_sandwich_norm": _fixed(False),
    "position_encoding_2d": _fixed(False),
    "post_norm": _fixed(None),
    "postnorm": _fixed(None),
    "use_mixed_mlp_moe": lambda config: config.rules.experts,
    "use_moe": lambda config: config.rules.experts,
    **dict.fromkeys(
        ("use_shared_expert", "moe_router_enable_shared_expert"),
        lambda config: bool(
            config.count("shared_experts", 0).value or config.count("shared_ffn", 0).value
        ),
    ),
    "moe_use_hard_gate": _fixed(None),
    "no_kda_lora": lambda config: config.rules.full_gates,
    "use_kda_lora": lambda config: not config.rules.full_gates,
    "attn_use_output_gate": lambda config: config.rules.gate,
    "use_output_gate": lambda config: config.rules.mixer == "linear",
    "use_output_norm": lambda config: config.rules.mixer == "linear",
    "use_gated_attention": _fixed(False),
    "attn_output_gate": _fixed(False),
    "multi_query": lambda config: False,
}
"""What a switch has to be for the model of this type to be the one of the file; None: either."""
_SWITCH_MEANINGS: Mapping[str, str] = {
    "use_mla": "latent attention",
    "mla": "latent attention",
    "multi_query": "shared keys",
    "no_bias": "this",
    "use_cla": "keys and values that layers share",
    "glu": "a gate in the MLP",
    "do_layer_norm_before": "norms in front of attention and MLP",
    "use_bidirectional_attention": "attention to tokens on both sides",
    "position_encoding_2d": "positions in two dimensions (the first ChatGLM)",
}


def _alibi(config: Config) -> bool:
    return bool(config.switch("alibi").value)


def _positions(config: Config) -> tuple[str, ...]:
    if _alibi(config):
        return ("alibi",)
    rotary = (
        "rotary positions",
        "rope",
        "rotary",
        "rotary_pos_embed",
        "rope_gptj",
        "rope_llama",
        "default",
    )
    learned = ("learned positions", "learned", "learned_absolute", "absolute")
    if config.rules.mixer:
        return (*rotary, "nope", "none")
    # "absolute" is what transformers once wrote into every file.
    return learned if config.rules.positions == "learned" else (*rotary, "absolute")


def _norm_words(config: Config) -> tuple[str, ...]:
    if config.rules.norm == "rmsnorm":
        return ("RMS norms", "rmsnorm", "rms_norm", "rms", "default", "llamarmsnorm")
    return (
        "layer norms",
        "layernorm",
        "layer_norm",
        "low_precision_layernorm",
        "default",
        "low_precision_layer_norm",
    )


_WORDS: Mapping[str, Any] = {
    "gating": lambda config: (
        ("a gate of every head", "per_head", "true")
        if config.name == "laguna"
        else ("no gates", "false", "none")
    ),
    **dict.fromkeys(
        (
            "position_embedding_type",
            "pos_emb",
            "position_embedding",
            "pos_embedding_type",
            "positional_embedding",
            "position_encoding",
            "position_encoding_type",
            "relative_encoding",
        ),
        _positions,
    ),
    **dict.fromkeys(
        (
            "norm_type",
            "layer_norm_type",
            "normalization",
            "normalization_type",
            "normalization_function",
            "norm",
        ),
        _norm_words,
    ),
    "attn_config.attn_type": lambda config: (
        "one head of keys a head of queries",
        "multihead_attention",
    ),
    "attention_method": lambda config: (
        ("latent attention", "mla") if config.rules.latent else ("full attention", "mha", "gqa")
    ),
    "attn_type": lambda config: (
        "full attention",
        "full",
        "full_attention",
        "default",
        "mha",
        "gqa",
        "softmax",
    ),
    "attention_type": lambda config: (
        "full attention",
        "full",
        "full_attention",
        "default",
        "softmax",
        "gqa",
    ),
    "mlp_type": lambda config: (
        ("an MLP with a gate", "gated", "swiglu", "glu")
        if config.rules.gated
        else ("a plain MLP", "default", "mlp", "plain")
    ),
    "qk_norm_type": lambda config: ("norms of queries and keys", "per_layer", "per_head"),
    "shared_moe_mode": lambda config: ("no such experts", "sigmoid", "softmax"),
    "ffn_config.ffn_type": lambda config: ("experts", "moe", "mptmlp"),
    "ffn_type": lambda config: ("the usual MLP", "default", "swiglu", "mlp", "mptmlp"),
    "moe_gate_type": lambda config: ("the usual gate", "topk"),
}
"""What a word has to be, the first for messages."""


def _meaning(name: str) -> str:
    """Return what a key is about, by its name."""
    for pattern, what in _MEANINGS:
        if re.search(pattern, name):
            return what
    return "something of the model that is not read"


def missing(config: Config) -> list[str]:
    """Return the keys without which a file does not say that its layers are those of a type.

    For files of another `model_type`: its defaults are not known, so that nothing may be taken
    from the defaults of the type it is read as.
    """
    rules = config.rules
    wanted = ["layers", "hidden", "heads", "vocab", "tied"]
    if _names(config, "kv_heads") and not rules.latent:
        wanted.append("kv_heads")
    if rules.gated or _names(config, "ffn"):
        wanted.append("ffn")
    if rules.experts:
        wanted += ["experts", "topk", "moe_ffn"]
    wanted += [f for f in _EXPERT_FIELDS if rules.experts and _is_defining(config, f)]
    wanted += [f for f in _LATENT_FIELDS if rules.latent]
    if rules.positions == "learned":
        wanted.append("max_positions")
    results = []
    for fieldname in dict.fromkeys(wanted):
        names = _names(config, fieldname)
        if names and config.look(fieldname).path is None:
            results.append(names[0])
    return [*results, *_missing_words(config)]


def _is_defining(config: Config, fieldname: str) -> bool:
    """Tell whether a type has experts in only some layers, or shared ones, unless told."""
    return fieldname in ("shared_experts", "shared_ffn", "first_dense") and bool(
        config.rules.defaults.get(fieldname) is not None and _names(config, fieldname)
    )


_NORM_KEYS = {
    "rmsnorm": ("rms_norm_eps", "norm_eps", "layernorm_epsilon", "rms_norm_epsilon"),
    "layernorm": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
}
_ACT_KEYS = ("hidden_act", "hidden_activation", "activation_function", "activation")
_GATED_ACTS = ("silu", "swish", "swiglu")


def _missing_words(config: Config) -> Iterator[str]:
    """Yield what a file has to say of norms and activation."""
    keys = _NORM_KEYS[config.rules.norm]
    if not any(key in config.section for key in keys):
        yield keys[0]
    act = next((config.section[key] for key in _ACT_KEYS if config.section.get(key)), None)
    fits = (
        act in _GATED_ACTS
        if config.rules.gated
        else isinstance(act, str) and act not in _GATED_ACTS
    )
    usual = config.rules.gated and config.name.startswith("gemma")
    if not fits and not (usual and isinstance(act, str)):
        word = "silu" if config.rules.gated else "gelu"
        yield f'hidden_act "{word}"' if act is None else f'hidden_act "{word}" (it is "{act}")'
