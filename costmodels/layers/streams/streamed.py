"""Kinds of layers in a model of several residual streams: each sublayer with its connection."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from costmodels.layers.dense import DENSE
from costmodels.layers.layer_kind import KindTerms, LayerInputs, LayerKind, LayerMacs
from costmodels.layers.moe import MOE
from costmodels.layers.streams.connections import (
    connection_macs,
    connection_matrices,
    connection_params,
)
from costmodels.layers.sublayers.attention import ATTENTION
from costmodels.layers.sublayers.composition import NO_MIXER, composed
from costmodels.layers.sublayers.feeds import EXPERTS, MLP, NO_FEED
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import ModelShape

_PAIRS = {DENSE.name: composed(ATTENTION, MLP), MOE.name: composed(ATTENTION, EXPERTS)}
"""Kinds that are no composition by their record, as such."""


@lru_cache(maxsize=256)
def streamed(kind: LayerKind) -> LayerKind:
    """Return a kind of layer whose sublayers have connections to several streams.

    Its terms have them from `composition`; parameters, multiply-adds and matrices are added here.
    """
    count = (kind.mixer != NO_MIXER.name) + (kind.feed != NO_FEED.name)

    def more(old: Callable[..., Any], size: Callable[[ModelShape], int]) -> Callable[..., Any]:
        return lambda shape, *tp: old(shape, *tp) + count * size(shape)

    def macs(shape: ModelShape) -> LayerMacs:
        plain = kind.macs(shape)
        return replace(plain, projections=plain.projections + count * connection_macs(shape))

    def matrices(shape: ModelShape) -> tuple[Matrix, ...]:
        assert kind.matrices is not None
        return kind.matrices(shape) + count * connection_matrices(shape)

    return replace(
        kind,
        equation=f"{kind.equation}; each of n streams: X <- M X + b sublayer(a X) for x + ...",
        source=f"{kind.source}; Xie et al. 2025 (mHC)",
        params=more(kind.params, connection_params),
        replicated_params=more(kind.replicated_params, connection_params),
        macs=macs,
        terms=_terms_of(kind),
        matrices=matrices if kind.matrices else None,
    )


def _terms_of(kind: LayerKind) -> Callable[[LayerInputs], KindTerms]:
    """Return the terms of a kind put together of sublayers.

    Scratch gradients of dense and expert layers are counted by their own records, as those of
    other kinds beside them expect.
    """
    pair = _PAIRS.get(kind.name)
    if pair is None:
        return kind.terms

    def terms(inputs: LayerInputs) -> KindTerms:
        return replace(pair.terms(inputs), scratch_bytes=kind.terms(inputs).scratch_bytes)

    return terms
