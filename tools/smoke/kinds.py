"""Tiny models whose layers have other mixers, one for each class of transformers."""

_SIZES = {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "gated": True}
_ENDS = {"vocab": 512, "tied": False}
_ALONE = {"hidden": 64, "heads": 1, "kv_heads": 1, "head_dim": 64, **_ENDS}
_EXPERTS = {"experts": 4, "topk": 2, "moe_ffn": 64}
_LATENT = {"kv_rank": 16, "qk_nope": 16, "qk_rope": 8, "v_head": 16}
_WIDE = {"hidden": 128, "kv_heads": 4, "ffn": 256, "vocab": 128}
"""Of encoders, beside whose layers the bias of the head is small: it is not counted."""
_NORMED = {"qk_norm": "head"}


def _model(kinds: list[str], repeat: int = 1, **more: object) -> dict:
    runs = [{"pattern": kinds, "repeat": repeat}]
    left_out = ["layers", *(["kv_heads"] if "mla" in more else [])]
    left_out += [] if any(kind.endswith("dense") for kind in kinds) else ["ffn"]
    sizes = {key: value for key, value in _SIZES.items() if key not in left_out}
    return {**sizes, **_ENDS, "layer_kinds": runs, **more}


_QUIET = {"init_std": 0.1}
"""T5 starts with logits far apart: its first loss is not that of a guess."""


def _two_sided(**changed: object) -> dict:
    """Return an encoder-decoder of three and two layers."""
    kinds = [{"kind": "encoder+dense", "count": 3}, {"kind": "causal-cross+dense", "count": 2}]
    sizes = {"hidden": 128, "heads": 4, "kv_heads": 4, "ffn": 512, "gated": False, "vocab": 4096}
    return {**sizes, "layers": 5, "tied": True, "layer_kinds": kinds, **changed}


_KERNELS = {"norm": "kernel", "scores": "16-bit"}
_LEARNED = {
    "norm": "layernorm",
    "bias": True,
    "positions": "learned",
    "operators": _KERNELS,
}
MODELS: dict[str, dict] = {
    "mamba": {
        **_ALONE,
        "gated": True,
        "layer_kinds": [{"kind": "mamba1+none", "count": 4}],
        "mamba1": {"inner": 128, "state": 8, "dt_rank": 4, "conv": 4},
    },
    "mamba2": {
        **_ALONE,
        "gated": True,
        "layer_kinds": [{"kind": "mamba2+none", "count": 4}],
        "mamba2": {"heads": 4, "head_dim": 32, "groups": 1, "state": 16, "chunk": 32},
    },
    "jamba": _model(
        ["mamba1+dense", "mamba1+moe", "dense", "mamba1+moe"],
        moe={**_EXPERTS, "moe_ffn": 128},
        mamba1={"inner": 128, "state": 8, "dt_rank": 4, "conv": 4},
        details={"no_rope_every": 1},
    ),
    "bamba": _model(
        ["mamba2+dense", "dense"],
        2,
        mamba2={"heads": 4, "head_dim": 32, "groups": 1, "state": 16, "chunk": 32},
    ),
    "lfm2": _model(["conv+dense", "dense"], 2, short_conv={"conv": 3}, details=_NORMED),
    "lfm2-moe": _model(
        ["conv+dense", "moe", "conv+moe", "conv+moe"],
        short_conv={"conv": 3},
        moe=_EXPERTS,
        details=_NORMED,
    ),
    "minimax": _model(
        ["moe", "linear+moe"],
        2,
        moe=_EXPERTS,
        linear={"heads": 4, "head_dim": 16, "chunk": 32},
    ),
    "kimi-linear": _model(
        ["kda+dense", "kda+moe", "kda+moe", "moe"],
        moe={**_EXPERTS, "shared_experts": 1},
        mla=_LATENT,
        delta_net={"k_heads": 4, "v_heads": 4, "k_dim": 16, "v_dim": 16},
        details={"no_rope_every": 1},
    ),
    "qwen3-next": _model(
        ["gdn+moe", "gdn+moe", "gdn+moe", "moe"],
        attention_gate=True,
        moe={**_EXPERTS, "shared_experts": 1},
        delta_net={"k_heads": 2, "v_heads": 4, "k_dim": 16, "v_dim": 16},
        details={**_NORMED, "norm_one_plus": True, "shared_expert_gate": True},
    ),
    "nemotron-h": _model(
        ["mamba2+none", "none+moe", "attention+none", "none+moe"],
        gated=False,
        moe={**_EXPERTS, "shared_experts": 1},
        mamba2={"heads": 4, "head_dim": 32, "groups": 1, "state": 16, "chunk": 32},
        details={
            "no_rope_every": 1,
            "activation": "squared_relu",
            "router_scores": "sigmoid",
        },
    ),
    "qwen3.5": _model(
        ["gdn+dense", "gdn+dense", "gdn+dense", "dense"],
        attention_gate=True,
        delta_net={"k_heads": 2, "v_heads": 4, "k_dim": 16, "v_dim": 16},
        details=_NORMED,
    ),
    "deepseek-v3.2": _model(
        ["sparse+dense", "sparse+moe", "sparse+moe"],
        moe={**_EXPERTS, "shared_experts": 1},
        mla={**_LATENT, "q_rank": 32},
        indexer={"heads": 4, "head_dim": 16, "top_k": 32},
    ),
    "bert": _model(
        ["bidirectional+dense"],
        4,
        **_WIDE,
        gated=False,
        tied=True,
        norm="layernorm",
        bias=True,
        positions="learned",
        max_positions=128,
        head_transform=True,
        details={"post_norms": "instead"},
        operators=_KERNELS,
    ),
    "modernbert": _model(
        ["bidirectional+dense", "bidirectional-window+dense", "bidirectional-window+dense"],
        **_WIDE,
        tied=True,
        head_transform=True,
        window={"size": 33},
        operators={**_KERNELS, "joint_qkv": True},
    ),
    "t5": _two_sided(
        norm="rmsnorm",
        flash_attention=False,
        encoder={"seq_len": 512},
        operators={"activation": "relu", "norm": "scaled", "scores": "16-bit"},
        details=_QUIET,
    ),
    "umt5": _two_sided(
        norm="rmsnorm",
        gated=True,
        flash_attention=False,
        encoder={"seq_len": 1024},
        operators={"norm": "scaled", "scores": "16-bit", "layer_positions": True},
        details=_QUIET,
    ),
    "bart": _two_sided(
        **_LEARNED,
        max_positions=130,
        encoder={"seq_len": 128, "ffn": 256, "positions": 130},
        details={"post_norms": "instead"},
    ),
    "pegasus": _two_sided(
        **_LEARNED, max_positions=128, encoder={"seq_len": 128, "positions": 128}
    ),
    "m2m-100": _two_sided(
        norm="layernorm", bias=True, encoder={"seq_len": 128}, operators=_KERNELS
    ),
    "whisper": _two_sided(
        **_LEARNED | {"operators": {**_KERNELS, "copies_output": True}},
        max_positions=128,
        encoder={"seq_len": 96, "positions": 96, "conv_channels": 80},
    ),
}
"""By the model type, or nearly."""
