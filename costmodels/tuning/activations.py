"""What layers with frozen weights no longer keep for their backward, and what adapters keep."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.shapes import ModelShape
from costmodels.tuning.records import TuningJob
from costmodels.tuning.targets import (
    INNER,
    KV_LATENT,
    MLP_NORM,
    NORM,
    Q_LATENT,
    LinearLayer,
    adapted,
    attention_linears,
    mlp_linears,
)

Floats = NDArray[np.float64]


class Freed(NamedTuple):
    """Bytes a token that a layer keeps less; negative where adapters keep more."""

    norm: float
    """Of attention, over tp with sequence parallelism alone."""
    mlp_norm: float
    """Of the MLP, the same."""
    attention: Floats
    """Of attention, on each rank."""
    mlp: Floats
    """Of the MLP, on each rank."""


def freed_bytes(
    shape: ModelShape, tuning: TuningJob, tp: ArrayLike, element_bytes: float, norm_copy: float
) -> Freed:
    """Return what a layer with adapters keeps less than one that trains all, bytes a token.

    A frozen linear layer needs its weight alone for the data gradient: the output of a norm (w h),
    of the activation (w f / t), of the norms of latents (w r / t) are kept where an adapter reads
    them; of attention the output stays, its own backward reads it. `norm_copy` bytes an element
    are what a norm keeps for its weight. Adapters keep A x, w r each, and with dropout masks and
    inputs of their own, (w + 1) i in place of a shared w i. w is `element_bytes`.

    Source: torch derivatives.yaml (linear: weight.requires_grad), peft tuners/lora/layer.py,
    Transformer Engine pytorch/module/layernorm_linear.py.
    """
    t, w = np.asarray(tp, dtype=np.float64), element_bytes
    of_mlp = mlp_linears(shape)
    ahead = adapted(attention_linears(shape), tuning.targets)
    after = adapted(of_mlp, tuning.targets)
    read = {x.reads for x in (*ahead, *after)}
    shared = not tuning.dropout

    def unread(name: str, width: float) -> float:
        return 0.0 if shared and name in read else w * width

    norm = unread(NORM, shape.hidden) + norm_copy * shape.hidden
    mlp_norm = unread(MLP_NORM, shape.hidden) + norm_copy * shape.hidden
    latents = 0.0
    if shape.latent:
        latents = unread(Q_LATENT, shape.q_rank) + unread(KV_LATENT, shape.kv_rank)
    inner = unread(INNER, shape.ffn) if of_mlp else 0.0
    own = (_own_bytes(x, shape, tuning, (t, w)) for x in (ahead, after))
    of_attention, of_after = own
    return Freed(norm, mlp_norm, latents / t - of_attention, inner / t - of_after)


def _own_bytes(
    linears: tuple[LinearLayer, ...],
    shape: ModelShape,
    tuning: TuningJob,
    of: tuple[Floats, float],
) -> Floats:
    """Return what adapters keep of their own, bytes a token of a rank; `of` are tp and width."""
    tp, width = of
    total = np.zeros_like(tp)
    for linear in linears:
        total = total + width * tuning.rank
        if tuning.dropout:
            total = total + (width + 1.0) * linear.rank_sizes(shape, tp)[0]
    return total
