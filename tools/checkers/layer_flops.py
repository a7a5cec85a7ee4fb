"""Parameters and FLOPs of each kind of layer: ours, beside transformers' and Megatron-Core's.

Models of two layers are built of a config.json on torch's meta device, where nothing is computed.
FlopCounterMode counts one forward. Its products of scores are over all pairs of tokens; of these
the share that the model's own mask lets through is taken. State-space layers and delta nets
compute other things in torch than in kernels: of them the projections are counted so, and the rest
with the functions of Megatron-Core's num_floating_point_operations.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    masking_utils,
)
from transformers.masking_utils import (
    create_bidirectional_sliding_window_mask,
    create_chunked_causal_mask,
    create_sliding_window_causal_mask,
)

from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import kinds_of
from costmodels.parameters import total_params
from planner.specs.loader import model_from_dict

Config = dict[str, Any]
SEQ_LEN = 1024
CAUSAL = 0.5 * (1.0 + 1.0 / SEQ_LEN)
"""Share of all pairs of tokens that a causal mask lets through."""
PARAMS_FRAC, FLOPS_FRAC = 1e-4, 0.01
"""Differences that are let pass. Norms of queries, gates of shared experts and the bias of an
encoder's logits are not counted as parameters, routers not as FLOPs."""
COMMON: Config = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 256,
    "max_position_embeddings": SEQ_LEN,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT: Config = {
    "num_key_value_heads": 8,
    "q_lora_rank": 192,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "head_dim": 32,
    "first_k_dense_replace": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 256,
}
MAMBA: Config = {
    "layers_block_type": ["mamba", "mamba"],
    "mamba_num_heads": 16,
    "mamba_head_dim": 64,
    "n_groups": 4,
    "ssm_state_size": 64,
    "chunk_size": 128,
    "conv_kernel": 4,
    "expand": 2,
}
"""As wide as Megatron-Core's counter takes it: twice the hidden width."""
CHUNKS: Config = {
    "attention_chunk_size": 128,
    "no_rope_layers": [1, 1],
    "intermediate_size_mlp": 1024,
    "moe_layers": [],
    "layer_types": ["chunked_attention"] * 2,
    "use_qk_norm": False,
}
LIGHTNING: Config = {"layer_types": ["linear_attention"] * 2, "num_local_experts": 4}
KIMI: Config = {
    "linear_attn_config": {
        "kda_layers": [1, 2],
        "full_attn_layers": [],
        "num_heads": 8,
        "head_dim": 64,
        "short_conv_kernel_size": 4,
    }
}
BLOCKS: Config = {
    "layer_types": ["minimax_m3_sparse"] * 2,
    "mlp_layer_types": ["dense"] * 2,
    "dense_intermediate_size": 1024,
    "index_n_heads": 2,
    "index_head_dim": 64,
    "index_block_size": 64,
    "index_topk_blocks": 4,
}
LING: Config = {
    "layer_types": ["linear_attention"] * 2,
    "mlp_layer_types": ["dense"] * 2,
    "head_dim": 64,
    "short_conv_kernel_size": 4,
    "num_mtp_layers": 0,
}
INDEXER: Config = {"index_n_heads": 4, "index_head_dim": 64, "index_topk": 256}
DELTA: Config = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
EXPERTS: Config = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256}

COMPRESSED: Config = {
    "model_type": "deepseek_v4",
    "num_key_value_heads": 1,
    "head_dim": 96,
    "intermediate_size": 256,
    "moe_intermediate_size": 256,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "q_lora_rank": 192,
    "o_groups": 2,
    "o_lora_rank": 80,
    "sliding_window": 128,
    "index_n_heads": 4,
    "index_head_dim": 64,
    "index_topk": 64,
    "mlp_layer_types": ["hash_moe", "moe"],
    "num_nextn_predict_layers": 0,
}

ENCODER: Config = {"model_type": "modernbert", "num_key_value_heads": 8, "local_attention": 128}

Counters = Mapping[str, Callable[..., float]]
"""Megatron-Core's functions by name."""


@dataclass(frozen=True)
class Case:
    """One kind of layer, in a model that has little else."""

    kind: str
    """The kind that all layers of the model are."""
    data: Config
    """Its config.json."""
    scan: Callable[[Any, Counters], float] | None = None
    """FLOPs of a token in what a layer's mixer does between its projections; None: attention."""
    pairs: Callable[[Any], dict[str, float]] = lambda config: {"": CAUSAL}
    """Share of all pairs of tokens that products of two activations are needed for, by the end
    of a module's name."""
    mixes: bool = False
    """Layers have products of activations beside attention and experts: those of streams."""


@dataclass(frozen=True)
class Figure:
    """One number of ours beside theirs."""

    kind: str
    what: str
    ours: float
    theirs: float
    limit_frac: float

    @property
    def off_frac(self) -> float:
        """Ours over theirs, less 1."""
        return self.ours / self.theirs - 1.0

    @property
    def is_right(self) -> bool:
        """It is within its limit."""
        return abs(self.off_frac) <= self.limit_frac


def _seen_frac(make: Callable[..., torch.Tensor], config: Any) -> float:
    """Return the share of all pairs of tokens that a mask of transformers lets through."""
    inputs = torch.zeros(1, SEQ_LEN, 1)
    of_decoders = {"past_key_values": None, "position_ids": torch.arange(SEQ_LEN)[None]}
    more = of_decoders if "past_key_values" in signature(make).parameters else {}
    mask = make(config=config, inputs_embeds=inputs, attention_mask=None, **more)
    return float((mask == 0).float().mean() if mask.dtype != torch.bool else mask.float().mean())


def _window(config: Any) -> dict[str, float]:
    return {"": _seen_frac(create_sliding_window_causal_mask, config)}


def _all_pairs(config: Any) -> dict[str, float]:
    return {"": 1.0}


def _two_sided(config: Any) -> dict[str, float]:
    return {"": _seen_frac(create_bidirectional_sliding_window_mask, config)}


def _chunk(config: Any) -> dict[str, float]:
    return {"": _seen_frac(create_chunked_causal_mask, config)}


def _chosen(config: Any) -> dict[str, float]:
    """Return the pairs of an indexer, and of attention over the keys that it chooses."""
    keys = torch.arange(1, SEQ_LEN + 1).clamp(max=config.index_topk).float().mean()
    return {"": float(keys) / SEQ_LEN, ".indexer": CAUSAL}


def _chosen_blocks(config: Any) -> dict[str, float]:
    """Return the pairs of an indexer over blocks, and of attention over those that it chooses."""
    ends, block = torch.arange(1, SEQ_LEN + 1), config.index_block_size
    before = (ends - 1) // block  # whole blocks, of which one less than is chosen is seen
    seen = before.clamp(max=config.index_topk_blocks - 1) * block + (ends - 1) % block + 1
    return {"": float(seen.float().mean()) / SEQ_LEN, ".indexer": CAUSAL}


def _entries(kind: str) -> Callable[[Any], dict[str, float]]:
    """Return the pairs of a window and compressed entries, and of the indexer's scores."""

    def shares(config: Any) -> dict[str, float]:
        ends = torch.arange(1, SEQ_LEN + 1)
        keys, columns, more = ends.clamp(max=config.sliding_window).float(), SEQ_LEN, {}
        if kind != "sliding_attention":
            ratio = config.compress_rates[kind]
            behind, entries = ends // ratio, SEQ_LEN // ratio
            most = config.index_topk if kind == "compressed_sparse_attention" else entries
            keys, columns = keys + behind.clamp(max=most), columns + entries
            more = {".indexer": float(behind.float().mean()) / entries}
        return {"": float(keys.mean()) / columns, ".o_a_proj": 1.0, **more}

    return shares


def _mamba_scan(config: Any, counters: Counters) -> float:
    """Return the term of the counter that grows with the state, groups left out."""
    with_state, without = (
        counters["mamba_layer_flops"](1, config.hidden_size, state, num_groups=0)
        for state in (config.ssm_state_size, 0)
    )
    return with_state - without


def _rule(config: Any, counters: Counters) -> float:
    """Return convolution and delta rule: a layer that reads a stream without width."""
    return counters["gdn_layer_flops"](
        1,
        0,
        config.linear_key_head_dim,
        config.linear_value_head_dim,
        config.linear_num_key_heads,
        config.linear_num_value_heads,
        config.linear_conv_kernel_dim,
    )


def _kimi_rule(config: Any, counters: Counters) -> float:
    """Return the same of Kimi delta attention, whose state is as large."""
    x = config.linear_attn_config
    width, heads, taps = x["head_dim"], x["num_heads"], x["short_conv_kernel_size"]
    return counters["gdn_layer_flops"](1, 0, width, width, heads, heads, taps)


def _ling_rule(config: Any, counters: Counters) -> float:
    """Return the same of Ling 3.0: heads as wide as those of its file (`linear_head_dim`)."""
    width, heads, taps = (
        config.linear_head_dim,
        config.linear_num_heads,
        config.linear_conv_kernel_dim,
    )
    return counters["gdn_layer_flops"](1, 0, width, width, heads, heads, taps)


def _state(config: Any, counters: Counters) -> float:
    """Return the products of linear attention with its state: those that no chunk adds to.

    Products inside chunks grow with a chunk; twice those of half a chunk, less those of a whole
    one, leaves the rest.
    """
    half, whole = (
        _products(counted(built({**config.to_dict(), "block_size": size})), ".0.self_attn")
        for size in (config.block_size // 2, config.block_size)
    )
    return 2.0 * half - whole


WIDTHS: Config = {
    "layer_types": ["sliding_attention"] * 2,
    "mlp_layer_types": ["dense"] * 2,
    "sliding_window": 128,
    "v_head_dim": 32,
}
ROWS: Config = {
    "layer_types": ["full_attention"] * 2,
    "hidden_size_per_layer_input": 64,
    "vocab_size_per_layer_input": 256,
}
DENSE_NEXT: Config = {**DELTA, **EXPERTS, "layer_types": ["linear_attention"] * 2}
CASES = (
    Case("window+dense", {"model_type": "mistral", "sliding_window": 128}, pairs=_window),
    Case("differential+dense", {"model_type": "diffllama"}),
    Case("chunk+dense", {"model_type": "llama4_text", **CHUNKS}, pairs=_chunk),
    Case("sparse+dense", {**LATENT, **INDEXER, "model_type": "deepseek_v32"}, pairs=_chosen),
    Case(
        "sparse+dense", {**BLOCKS, "model_type": "minimax_m3_vl_text"}, pairs=_chosen_blocks
    ),
    Case("dense", {**LATENT, "model_type": "deepseek_v3"}),
    Case("moe", {**EXPERTS, "model_type": "qwen3_moe"}),
    Case("mamba2+none", {**MAMBA, "model_type": "nemotron_h"}, _mamba_scan),
    Case(
        "gdn+dense",
        {**DENSE_NEXT, "mlp_only_layers": [0, 1], "model_type": "qwen3_next"},
        _rule,
    ),
    Case("gdn+moe", {**DENSE_NEXT, "model_type": "qwen3_next"}, _rule),
    Case("kda+dense", {**LATENT, **KIMI, "model_type": "kimi_linear"}, _kimi_rule),
    Case("kda+dense", {**LATENT, **LING, "model_type": "bailing_hybrid"}, _ling_rule),
    Case("bidirectional+dense", {**ENCODER, "global_attn_every_n_layers": 1}, pairs=_all_pairs),
    Case(
        "bidirectional-window+dense",
        {**ENCODER, "layer_types": ["sliding_attention"] * 2},
        pairs=_two_sided,
    ),
    Case("window+dense@kv4", {**WIDTHS, "model_type": "mimo_v2_flash"}, pairs=_window),
    Case(
        "attention+injected@d128",
        {**ROWS, "global_head_dim": 128, "model_type": "gemma4_text"},
    ),
    Case(
        "attention+injected",
        {**ROWS, "num_kv_shared_layers": 0, "model_type": "gemma3n_text"},
    ),
    Case("linear+moe", {**LIGHTNING, "model_type": "minimax"}, _state),
    *(
        Case(f"{mixer}+moe", {**COMPRESSED, "layer_types": [word] * 2}, pairs=_entries(word), mixes=True)
        for mixer, word in (
            ("shared-window", "sliding_attention"),
            ("csa", "compressed_sparse_attention"),
            ("hca", "heavily_compressed_attention"),
        )
    ),
)


def counters_of(megatron: Path) -> Counters:
    """Return Megatron-Core's functions of FLOPs, taken out of the one that they stand in."""
    text = (megatron / "megatron" / "training" / "training.py").read_text()
    found: dict[str, Any] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_layer_flops"):
            exec(compile(ast.Module([node], []), "training.py", "exec"), found)
    return found


def built(data: Config) -> Any:
    """Return the model of a configuration on the meta device, experts as batched products."""
    config = CONFIG_MAPPING[data["model_type"]].from_dict({**data, "use_cache": False})
    is_encoder = data["model_type"] == ENCODER["model_type"]
    with torch.device("meta"):
        model = (AutoModelForMaskedLM if is_encoder else AutoModelForCausalLM).from_config(config, attn_implementation="eager")
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")
    return model


def counted(model: Any) -> dict[str, dict[str, float]]:
    """Return the FLOPs of a token by the names of modules and operators, one forward."""
    masking_utils.find_packed_sequence_indices = lambda positions: None  # reads contents
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, SEQ_LEN, dtype=torch.long, device="meta"))
    return {
        module: {str(op): n / SEQ_LEN for op, n in ops.items()}
        for module, ops in counter.get_flop_counts().items()
    }


def _products(
    flops: Mapping[str, Mapping[str, float]], ending: str | tuple[str, ...]
) -> float:
    """Return the FLOPs of products of activations in modules whose names end so."""
    found = (ops.get("aten.bmm", 0.0) for name, ops in flops.items() if name.endswith(ending))
    return sum(found)


def theirs_flops(case: Case, model: Any, counters: Counters) -> float:
    """Return the FLOPs of a token and forward, as their counters have it."""
    flops, config = counted(model), model.config
    ops = flops["Global"]
    linear = ops["aten.mm"] + ops.get("aten.addmm", 0.0) + _products(flops, ".mlp.experts")
    if case.scan is not None:
        return linear + config.num_hidden_layers * case.scan(config, counters)
    pairs = dict(case.pairs(config))
    whole = pairs.pop("")
    core = whole * _products(flops, (".self_attn", ".attn"))
    for name, share in pairs.items():
        core += (share - whole) * _products(flops, name)
    if case.mixes:
        core += ops["aten.bmm"] - _products(flops, (".self_attn", ".mlp.experts"))
    return linear + core


def figures(megatron: Path) -> Iterator[Figure]:
    """Yield parameters and forward FLOPs of a token for every kind.

    Raise `LookupError` where the importer reads another kind than the case is of.
    """
    counters = counters_of(megatron)
    for case in CASES:
        data = {**COMMON, **case.data}
        shape, model = model_from_dict(data).shape, built(data)
        counts = zip(kinds_of(shape), shape.kind_counts, strict=True)
        if [kind.name for kind, n in counts if n] != [case.kind]:
            raise LookupError(
                f"{case.data['model_type']} is read as {shape.kinds}, not {case.kind}"
            )
        name = f"{case.kind} ({case.data['model_type']})"
        real = float(sum(weight.numel() for weight in model.parameters()))
        yield Figure(name, "parameters", total_params(shape, SEQ_LEN), real, PARAMS_FRAC)
        ours = model_flops_per_token(shape, SEQ_LEN) / 3.0
        yield Figure(name, "FLOPs", ours, theirs_flops(case, model, counters), FLOPS_FRAC)
