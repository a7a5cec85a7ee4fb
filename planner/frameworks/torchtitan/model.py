"""The model part of a torchtitan recipe: sizes as constants, torchtitan's classes around them."""

from costmodels.shapes import ModelShape
from planner.frameworks.emitted_text import python_literal
from planner.frameworks.torchtitan.details import constants, with_details
from planner.specs.schema import NO_DETAILS, DetailsSpec
from searches.frameworks.common import kind_sequence

_CLASSES = {
    "llama3": ("Llama3", "parallelize_llama", "ComplexRoPE"),
    "qwen3": ("Qwen3", "parallelize_qwen3", "CosSinRoPE"),
    "deepseek_v3": ("DeepSeekV3", "parallelize_deepseekv3", "ComplexRoPE"),
    "gpt_oss": ("GptOss", "parallelize_gptoss", "CosSinRoPE"),
}
"""Prefix of the classes, function that parallelises, rotary embedding; by package of models."""
_LATENT = ("q_rank", "kv_rank", "qk_nope", "qk_rope", "v_head")
_EXPERTS = (
    "n_experts",
    "top_k",
    "expert_ffn",
    "shared_ffn",
    "n_groups",
    "top_groups",
    "dense_layers",
    "moe_every",
)


def model_family(shape: ModelShape, details: DetailsSpec = NO_DETAILS) -> str:
    """Return the package of torchtitan.models whose classes can hold a model.

    llama3: dense. qwen3: any mix of dense and expert layers, heads wider than hidden / heads, or
    normalised queries and keys. deepseek_v3: latent attention. gpt_oss: experts and biases.
    """
    if shape.latent:
        return "deepseek_v3"
    if shape.n_experts:
        return "gpt_oss" if shape.bias else "qwen3"
    plain = shape.heads * shape.head_dim == shape.hidden and details.qk_norm != "head"
    return "llama3" if plain else "qwen3"


def model_imports(shape: ModelShape, details: DetailsSpec) -> dict[str, list[str]]:
    """Return what the model part imports from torchtitan, names by module."""
    family = model_family(shape, details)
    name, parallelize, rope = _CLASSES[family]
    package, common = f"torchtitan.models.{family}", "torchtitan.models.common"
    builders = ["get_attention_config"]
    if family in ("llama3", "qwen3"):
        builders += ["make_gqa_config"]
    if family == "gpt_oss":
        builders += ["make_token_dispatcher_config"]
    elif shape.n_experts:
        builders += ["make_moe_config", "make_routed_experts_config", "make_router_config"]
    if family != "gpt_oss" and (shape.shared_ffn or not all(shape.expert_layers)):
        builders += ["make_ffn_config"]
    wanted = {
        "torchtitan.distributed.pipeline_parallel": ["pipeline_llm"],
        common: ["Embedding", "Linear", "RMSNorm", rope],
        f"{common}.config_utils": builders,
        package: [f"{name}Model", parallelize],
        f"{package}.model": [f"{name}TransformerBlock"],
        "torchtitan.protocols.model_spec": ["ModelSpec"],
    }
    if _adapter(shape, details) != "None":
        wanted[f"{package}.state_dict_adapter"] = [_adapter(shape, details)]
    if shape.n_experts:
        wanted["torchtitan.components.optimizer"] = ["register_moe_load_balancing_hook"]
    if shape.tied:
        wanted[f"{common}.param_init"] = ["skip_param_init"]
    if family == "deepseek_v3":
        wanted[package] += ["make_mla_attention_config"]
        wanted[f"{common}.config_utils"].remove("get_attention_config")
    if shape.mtp_layers:
        wanted[package] += ["MTPTransformerBlock"]
    if family == "gpt_oss":
        wanted[f"{common}.attention"] = ["FusedQKVLinear"]
        wanted[f"{common}.linear"] = ["ScaledBiasRowwiseLinear"]
        wanted[f"{common}.moe"] = ["RoutedExperts", "TokenChoiceTopKRouter"]
        wanted[f"{package}.model"] += ["Attention"]
        wanted[f"{package}.moe"] = ["GptOssGroupedExperts", "GptOssMoE"]
    return {module: names for module, names in wanted.items() if names}


def model_sizes(shape: ModelShape, vocab_rows: int, seq_len: int, details: DetailsSpec) -> str:
    """Return the sizes and the details as constants, under the names of the model file."""
    sizes: dict[str, int] = {
        "LAYERS": shape.layers,
        "HIDDEN": shape.hidden,
        "HEADS": shape.heads,
        "KV_HEADS": shape.kv_heads,
        "HEAD_DIM": shape.head_dim,
        "FFN": shape.ffn,
        "VOCAB": vocab_rows,
        "SEQ_LEN": seq_len,
    }
    if shape.latent:
        del sizes["KV_HEADS"], sizes["HEAD_DIM"]
        sizes |= {name.upper(): getattr(shape, name) for name in _LATENT}
    if shape.n_experts:
        sizes |= {name.upper(): getattr(shape, name) for name in _EXPERTS}
    if shape.mtp_layers:
        sizes["MTP_LAYERS"] = shape.mtp_layers
    lines = ["# The model."]
    for name, value in sizes.items():
        if name == "VOCAB" and value != shape.vocab:
            lines += [f"# {shape.vocab} rows, padded to divide by the tensor-parallel ranks."]
        lines += [f"{name} = {value}"]
    family = model_family(shape, details)
    if family == "qwen3":
        imports = "qwen3" in shape.name.lower().replace("-", "")
        imports = imports if details.qk_norm is None else details.qk_norm == "head"
        lines += ["# Qwen3 normalises queries and keys; the plan does not count it."]
        lines += [f"QK_NORM = {imports}"]
    if family == "gpt_oss":
        lines += _window_lines(shape, details)
    lines += [f"{k} = {python_literal(v)}" for k, v in constants(details, shape, family).items()]
    return "\n".join(lines) + "\n"


def _window_lines(shape: ModelShape, details: DetailsSpec) -> list[str]:
    """Return the window of gpt-oss, and which layers have none where the plan has such kinds."""
    if shape.window is None:
        return [
            "# Every second layer of gpt-oss looks back this far; the plan counts all tokens.",
            f"WINDOW = {details.window or 128}",
        ]
    unwindowed = [
        i for i, kind in enumerate(kind_sequence(shape)) if not kind.startswith("window")
    ]
    return [
        "# Tokens that a layer attends to, its own among them, and the layers that attend to all.",
        f"WINDOW = {shape.window.size}",
        f"FULL_ATTENTION = {python_literal(unwindowed)}",
    ]


def model_code(shape: ModelShape, details: DetailsSpec) -> str:
    """Return the functions that build the model from the sizes and the details."""
    code = _model_code(shape, details)
    return with_details(code, details, shape, model_family(shape, details))


def _model_code(shape: ModelShape, details: DetailsSpec) -> str:
    """Return the functions with torchtitan's own values where details would stand."""
    family = model_family(shape, details)
    name, _, rope = _CLASSES[family]
    parts = [_INITS + _TIED_INIT * shape.tied, _NORM]
    if family == "gpt_oss":
        attention = _GPT_OSS_ATTENTION
        if shape.window is not None:
            attention = attention.replace(*_LISTED_WINDOWS)
        return "\n\n".join([*parts, attention, _GPT_OSS_MOE, _spec(shape, details)])
    qk_norm = "        qk_norm=norm(HEAD_DIM) if QK_NORM else None,\n" * (family == "qwen3")
    parts += [_MLA if shape.latent else _GQA.format(rope=rope, qk_norm=qk_norm)]
    if shape.shared_ffn or not all(shape.expert_layers):
        parts += [_MLP]
    if shape.n_experts:
        score = "sigmoid" if shape.n_groups > 1 else "softmax"
        shared = "mlp(SHARED_FFN)" if shape.shared_ffn else "None"
        parts += [_MOE.format(score=score, shared=shared)]
    parts += [_block(shape, name)]
    parts += [_MTP] * bool(shape.mtp_layers)
    return "\n\n".join([*parts, _spec(shape, details)])


def _block(shape: ModelShape, name: str) -> str:
    """Return the function of one layer."""
    if not any(shape.expert_layers):
        inner = "        feed_forward=mlp(FFN),\n"
    elif all(shape.expert_layers):
        inner = "        moe=moe(),\n"
    else:
        inner = (
            "        feed_forward=None if has_experts(layer) else mlp(FFN),\n"
            "        moe=moe() if has_experts(layer) else None,\n"
        )
    mixed = any(shape.expert_layers) and not all(shape.expert_layers)
    return (_HAS_EXPERTS + "\n\n") * mixed + _BLOCK.format(name=name, inner=inner)


def _adapter(shape: ModelShape, details: DetailsSpec) -> str:
    """Return the class that reads Hugging Face checkpoints, `None` for what qwen3 never was."""
    family = model_family(shape, details)
    mixed = any(shape.expert_layers) and not all(shape.expert_layers)
    if family == "qwen3" and (shape.shared_ffn or mixed):
        return "None"
    return f"{_CLASSES[family][0]}StateDictAdapter"


def _spec(shape: ModelShape, details: DetailsSpec) -> str:
    family = model_family(shape, details)
    name, parallelize, _ = _CLASSES[family]
    more = "            enable_weight_tying=True,\n" * shape.tied
    if shape.mtp_layers:
        more += "            mtp_layers=[mtp_block() for _ in range(MTP_LAYERS)],\n"
    return _SPEC.format(
        family=family,
        name=name,
        more=more,
        hook="register_moe_load_balancing_hook" if shape.n_experts else "None",
        adapter=_adapter(shape, details),
        embedding="TIED" if shape.tied else "WEIGHT",
        parallelize=parallelize,
    )


_INITS = """WEIGHT = {"weight": partial(nn.init.trunc_normal_, std=0.02), "bias": nn.init.zeros_}
"""
_TIED_INIT = """TIED = {"weight": skip_param_init}
"""

_NORM = '''def norm(width: int) -> RMSNorm.Config:
    """Return a normalisation."""
    return RMSNorm.Config(normalized_shape=width, param_init={"weight": nn.init.ones_})
'''

_MLP = '''def mlp(width: int):
    """Return a gated MLP of this inner width."""
    return make_ffn_config(
        dim=HIDDEN, hidden_dim=width, w1_param_init=WEIGHT, w2w3_param_init=WEIGHT
    )
'''

_GQA = '''def attention(layer: int):
    """Return the attention of one layer."""
    return make_gqa_config(
        dim=HIDDEN,
        n_heads=HEADS,
        n_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        fuse_qkv=True,
{qk_norm}        wqkv_param_init=WEIGHT,
        wo_param_init=WEIGHT,
        inner_attention=get_attention_config("flex"),
        rope={rope}.Config(dim=HEAD_DIM, max_seq_len=SEQ_LEN, theta=500000.0),
    )
'''

_MLA = '''def attention(layer: int):
    """Return the attention of one layer."""
    return make_mla_attention_config(
        layer_id=layer,
        dim=HIDDEN,
        n_heads=HEADS,
        q_lora_rank=Q_RANK,
        kv_lora_rank=KV_RANK,
        qk_nope_head_dim=QK_NOPE,
        qk_rope_head_dim=QK_ROPE,
        v_head_dim=V_HEAD,
        attn_backend="flex",
        linear_init=WEIGHT,
        norm_init={"weight": nn.init.ones_},
        depth_init=lambda _: WEIGHT,
        rope=ComplexRoPE.Config(dim=QK_ROPE, max_seq_len=SEQ_LEN, theta=10000.0),
    )
'''

_HAS_EXPERTS = '''def has_experts(layer: int) -> bool:
    """Tell whether a layer has experts."""
    return layer >= DENSE_LAYERS and (layer - DENSE_LAYERS + 1) % MOE_EVERY == 0
'''

_MOE = '''def moe():
    """Return the experts of one layer."""
    experts = dict.fromkeys(("w1_EFD", "w2_EDF", "w3_EFD"), WEIGHT["weight"])
    return make_moe_config(
        num_experts=N_EXPERTS,
        router=make_router_config(
            dim=HIDDEN,
            num_experts=N_EXPERTS,
            gate_param_init=WEIGHT,
            top_k=TOP_K,
            score_func="{score}",
            route_norm=True,
            num_expert_groups=N_GROUPS if N_GROUPS > 1 else None,
            num_limited_groups=TOP_GROUPS if N_GROUPS > 1 else None,
        ),
        routed_experts=make_routed_experts_config(
            dim=HIDDEN,
            hidden_dim=EXPERT_FFN,
            num_experts=N_EXPERTS,
            top_k=TOP_K,
            param_init=experts,
            comm_backend="standard",
        ),
        shared_experts={shared},
    )
'''

_MTP = '''def mtp_block() -> MTPTransformerBlock.Config:
    """Return one layer of multi-token prediction: the last layer behind a projection."""
    last = block(LAYERS - 1)
    return MTPTransformerBlock.Config(
        attention_norm=last.attention_norm,
        ffn_norm=last.ffn_norm,
        attention=last.attention,
        feed_forward=last.feed_forward,
        moe=last.moe,
        enorm=norm(HIDDEN),
        hnorm=norm(HIDDEN),
        eh_proj=Linear.Config(in_features=2 * HIDDEN, out_features=HIDDEN, param_init=WEIGHT),
        mtp_norm=norm(HIDDEN),
    )
'''

_GPT_OSS_ATTENTION = '''def attention(layer: int) -> Attention.Config:
    """Return the attention of one layer."""
    return Attention.Config(
        dim=HIDDEN,
        n_heads=HEADS,
        n_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        qkv_linear=FusedQKVLinear.Config(
            head_dim=HEAD_DIM,
            n_heads=HEADS,
            n_kv_heads=KV_HEADS,
            wqkv=Linear.Config(
                in_features=HIDDEN,
                out_features=(HEADS + 2 * KV_HEADS) * HEAD_DIM,
                bias=True,
                param_init=WEIGHT,
            ),
        ),
        wo=ScaledBiasRowwiseLinear.Config(
            in_features=HEADS * HEAD_DIM, out_features=HIDDEN, bias=True, param_init=WEIGHT
        ),
        sliding_window_size=WINDOW if layer % 2 == 0 else None,
        inner_attention=get_attention_config("flex"),
        param_init={"sinks": WEIGHT["weight"]},
        rope=CosSinRoPE.Config(dim=HEAD_DIM, max_seq_len=SEQ_LEN, theta=150000.0),
    )
'''

_LISTED_WINDOWS = (
    "WINDOW if layer % 2 == 0 else None",
    "None if layer in FULL_ATTENTION else WINDOW",
)
"""What a recipe says of windows without kinds of layers, and with them."""

_GPT_OSS_MOE = '''def moe() -> GptOssMoE.Config:
    """Return the experts of one layer."""
    names = ("mlp1_weight_EGD", "mlp1_bias_EG", "mlp2_weight_EDF", "mlp2_bias_ED")
    return GptOssMoE.Config(
        num_experts=N_EXPERTS,
        load_balance_coeff=1e-3,
        routed_experts=RoutedExperts.Config(
            inner_experts=GptOssGroupedExperts.Config(
                dim=HIDDEN,
                hidden_dim=EXPERT_FFN,
                num_experts=N_EXPERTS,
                param_init=dict.fromkeys(names, WEIGHT["weight"]),
            ),
            token_dispatcher=make_token_dispatcher_config(
                num_experts=N_EXPERTS, top_k=TOP_K, comm_backend="standard", hidden_dim=HIDDEN
            ),
        ),
        router=TokenChoiceTopKRouter.Config(
            num_experts=N_EXPERTS,
            score_func="softmax",
            route_norm=True,
            gate=Linear.Config(
                in_features=HIDDEN, out_features=N_EXPERTS, bias=True, param_init=WEIGHT
            ),
            top_k=TOP_K,
        ),
    )


def block(layer: int) -> GptOssTransformerBlock.Config:
    """Return one layer."""
    return GptOssTransformerBlock.Config(
        attention_norm=norm(HIDDEN),
        ffn_norm=norm(HIDDEN),
        attention=attention(layer),
        moe=moe(),
    )
'''

_SPEC = '''def model_spec() -> ModelSpec:
    """Return the model and the code that parallelises it."""
    return ModelSpec(
        name="{family}",
        flavor="plan",
        model={name}Model.Config(
            dim=HIDDEN,
            vocab_size=VOCAB,
            tok_embeddings=Embedding.Config(
                num_embeddings=VOCAB, embedding_dim=HIDDEN, param_init={embedding}
            ),
            norm=norm(HIDDEN),
            lm_head=Linear.Config(in_features=HIDDEN, out_features=VOCAB, param_init=WEIGHT),
            layers=[block(layer) for layer in range(LAYERS)],
{more}        ),
        parallelize_fn={parallelize},
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn={hook},
        state_dict_adapter={adapter},
    )
'''


_BLOCK = '''def block(layer: int) -> {name}TransformerBlock.Config:
    """Return one layer."""
    return {name}TransformerBlock.Config(
        attention_norm=norm(HIDDEN),
        ffn_norm=norm(HIDDEN),
        attention=attention(layer),
{inner}    )
'''
