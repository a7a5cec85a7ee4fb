"""Linear layers that may have adapters: their names, their sizes, what they read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.layers.params import kv_heads_per_rank
from costmodels.shapes import ModelShape

Floats = NDArray[np.float64]

COLUMNS, ROWS = "columns", "rows"
"""What tensor parallelism cuts of a linear layer: its outputs, or its inputs."""
NORM, CORE, Q_LATENT, KV_LATENT = "norm", "core", "q_latent", "kv_latent"
MLP_NORM, INNER = "mlp_norm", "inner"
"""What a linear layer reads: tensors that several may share."""

ADAPTED_MIXERS = ("attention", "window", "chunk", "bidirectional", "bidirectional-window")
"""Mixers whose linear layers are those of the model's attention."""
EXPERTS = "experts"
ALL_LINEAR = "all-linear"
SEPARATE = ("q", "k", "v", "o", "gate", "up", "down", "q_down", "q_up", "kv_down", "kv_up")
FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
"""Linear layers that Megatron-LM holds as one, with one adapter."""
TARGETS = (*SEPARATE, *FUSED, EXPERTS)
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        **{f"{name}_proj": name for name in ("q", "k", "v", "o", "gate", "up", "down")},
        "linear_qkv": "qkv",
        "linear_proj": "o",
        "linear_fc1": "gate_up",
        "linear_fc2": "down",
        "linear_q_proj": "q",
        "linear_q_down_proj": "q_down",
        "linear_q_up_proj": "q_up",
        "linear_kv_down_proj": "kv_down",
        "linear_kv_up_proj": "kv_up",
        "q_a_proj": "q_down",
        "q_b_proj": "q_up",
        "kv_a_proj_with_mqa": "kv_down",
        "kv_b_proj": "kv_up",
    }
)
"""Names of Hugging Face and of Megatron-LM."""


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """One linear layer, inner -> outer elements, unsharded."""

    name: str
    reads: str
    inner: int
    outer: int
    cut: str = ""
    """`COLUMNS`, `ROWS`, or neither: every rank holds the whole."""
    kv_heads: int = 0
    """Heads of keys and values among the outputs, which few ranks each or all have."""

    def rank_sizes(self, shape: ModelShape, tp: ArrayLike) -> tuple[Floats, Floats]:
        """Return inner and outer elements on one of tp ranks; KV heads may repeat."""
        t = np.asarray(tp, dtype=np.float64)
        inner = self.inner / (t if self.cut == ROWS else np.ones_like(t))
        if self.cut != COLUMNS:
            return inner, np.full_like(t, float(self.outer))
        kv_width = self.kv_heads * shape.head_dim
        repeated = self.kv_heads / max(1, shape.kv_heads) * kv_heads_per_rank(shape, tp)
        return inner, (self.outer - kv_width) / t + repeated * shape.head_dim


def attention_linears(shape: ModelShape) -> tuple[LinearLayer, ...]:
    """Return the linear layers of attention; fused ones stand beside their parts."""
    h, q, heads = shape.hidden, shape.q_width, shape.kv_heads
    output = LinearLayer("o", CORE, shape.v_width, h, ROWS)
    if shape.latent:
        keys = shape.heads * (shape.qk_nope + shape.v_head)
        query: tuple[LinearLayer, ...] = (LinearLayer("q", NORM, h, q, COLUMNS),)
        if shape.q_rank:
            query = (
                LinearLayer("q_down", NORM, h, shape.q_rank),
                LinearLayer("q_up", Q_LATENT, shape.q_rank, q, COLUMNS),
            )
        return (
            *query,
            LinearLayer("kv_down", NORM, h, shape.kv_rank + shape.qk_rope),
            LinearLayer("kv_up", KV_LATENT, shape.kv_rank, keys, COLUMNS),
            output,
        )
    kv = heads * shape.head_dim
    return (
        LinearLayer("q", NORM, h, q + shape.gate_width, COLUMNS),
        LinearLayer("k", NORM, h, kv, COLUMNS, heads),
        LinearLayer("v", NORM, h, kv, COLUMNS, heads),
        LinearLayer("qkv", NORM, h, q + shape.gate_width + 2 * kv, COLUMNS, 2 * heads),
        output,
    )


def mlp_linears(shape: ModelShape) -> tuple[LinearLayer, ...]:
    """Return the linear layers of an MLP of width `ffn`; none for width 0."""
    h, f = shape.hidden, shape.ffn
    if not f:
        return ()
    up = LinearLayer("up", MLP_NORM, h, f, COLUMNS)
    down = LinearLayer("down", INNER, f, h, ROWS)
    if not shape.gated:
        return up, down
    both = LinearLayer("gate_up", MLP_NORM, h, 2 * f, COLUMNS)
    return LinearLayer("gate", MLP_NORM, h, f, COLUMNS), up, both, down


def adapted(linears: Iterable[LinearLayer], targets: tuple[str, ...]) -> tuple[LinearLayer, ...]:
    """Return those of some linear layers that have an adapter."""
    return tuple(x for x in linears if x.name in targets)


def known_targets(shape: ModelShape) -> tuple[str, ...]:
    """Return the names of targets that a model has."""
    widest = shape.without_experts() if shape.n_experts and not shape.kind_counts[0] else shape
    names = [x.name for x in (*attention_linears(shape), *mlp_linears(widest))]
    return (*names, *((EXPERTS,) if shape.n_experts else ()))


def target_names(named: Iterable[str], shape: ModelShape) -> tuple[str, ...]:
    """Return targets under our names in the order of `TARGETS`.

    `all-linear` is each linear layer apart, as PEFT has it, but for routed experts. The first
    product of an MLP without a gate is `up`, whatever it is called. Unknown names stay.

    >>> from costmodels.examples import LLAMA3_8B
    >>> target_names(["linear_fc1", "linear_qkv"], LLAMA3_8B)
    ('qkv', 'gate_up')
    >>> target_names(["all-linear"], LLAMA3_8B)
    ('q', 'k', 'v', 'o', 'gate', 'up', 'down')
    """
    names = {ALIASES.get(name, name) for name in named}
    if ALL_LINEAR in names:
        of_model = set(known_targets(shape)) - {*FUSED, EXPERTS}
        names = (names - {ALL_LINEAR}) | of_model
    if not shape.gated and "gate_up" in names:
        names = (names - {"gate_up"}) | {"up"}
    listed = [name for name in TARGETS if name in names]
    return (*listed, *sorted(names - set(TARGETS)))
