"""A frozen reference beside what is trained: preferences (DPO) need its forward too."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.comm.data_parallel import DataParallelTimes
from costmodels.comm.exposure import Exposure
from costmodels.layers.compute import ForwardBackward
from costmodels.layers.layer_kind import KindTerms

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

_TWICE = ("linear", "attention", "elementwise", "tax", "host", "routed", "exchange")
_ENDS = ("embedding", "head", "embedding_tp", "head_cp", "head_ep", "head_tp")
GATHERS = 1.5
"""Gathers of a pass over weights in ZeRO 3 where a reference is gathered too: three a micro-batch
in place of two."""


def with_reference(terms: KindTerms) -> KindTerms:
    """Return a layer whose forward runs twice: once of a frozen reference, which keeps nothing.

    A layer of the reference is one of the model: adapters, which it has off, count as well. What
    is recomputed, and what modules have on the host, is the model's alone.
    Source: Rafailov et al. 2023 (DPO), equation 7; trl trainer/dpo_trainer.py
    (compute_ref_log_probs, under no_grad).
    """
    changed: dict[str, Any] = {
        name: _forward_twice(getattr(terms, name)) for name in _TWICE if hasattr(terms, name)
    }
    for name in ("tp_forward", "cp_forward"):
        one = getattr(terms, name)
        changed[name] = Exposure(2.0 * one.total_s, 2.0 * one.exposed_s)
    again_s = terms.layer.forward_s - terms.copies.forward_s
    layer = replace(terms.layer, forward_s=terms.layer.forward_s + again_s)
    return replace(terms, layer=layer, **changed)


def ends_with_reference(ends: Mapping[str, Any]) -> dict[str, Any]:
    """Return embedding and head, by field of `LayerTerms`, with their forward twice."""
    return {**ends, **{name: _forward_twice(ends[name]) for name in _ENDS}}


def _forward_twice(times: ForwardBackward) -> ForwardBackward:
    return replace(times, forward_s=2.0 * times.forward_s)


def reference_bytes(params: Floats, width: float, zero: Ints, shard: Ints) -> Floats:
    """Return what the weights of a reference take, by sharding, shape and kind, bytes.

    W N, over the ranks of a ZeRO group with ZeRO 3; `shard` are those by sharding and shape.
    """
    share = np.where(zero[:, None] >= 3, 1.0 / shard, 1.0)
    return np.asarray(width * share[..., None] * params)


def gathers_with_reference(times: DataParallelTimes, zero: Ints) -> DataParallelTimes:
    """Return the traffic of a pass where ZeRO 3 gathers the weights of a reference too.

    `GATHERS` times the gather, spread over the passes of a micro-batch.
    """
    factor = np.where(zero[:, None, None] >= 3, GATHERS, 1.0)
    changed = {"gather_s": times.gather_s * factor}
    if times.again_s is not None:
        changed["again_s"] = times.again_s * factor
    return replace(times, **changed)
