"""All kinds of layers, by the name that a model file gives them."""

from costmodels.layers.dense import DENSE
from costmodels.layers.layer_kind import LayerKind
from costmodels.layers.moe import MOE
from costmodels.shapes import LayerRun, ModelShape

LAYER_KINDS: dict[str, LayerKind] = {kind.name: kind for kind in (DENSE, MOE)}
"""By name. A new kind is one entry more (docs/extending.md)."""


def register_layer_kind(kind: LayerKind) -> None:
    """Add a kind of layer at run time; `ValueError` for a name that another one has."""
    if LAYER_KINDS.get(kind.name, kind) is not kind:
        raise ValueError(f"layer kind {kind.name}: there is one already")
    LAYER_KINDS[kind.name] = kind


def kinds_of(shape: ModelShape) -> tuple[LayerKind, ...]:
    """Return the records of `shape.kinds`."""
    return tuple(LAYER_KINDS[name] for name in shape.kinds)


def present_kinds(shape: ModelShape) -> tuple[tuple[LayerKind, int], ...]:
    """Return the kinds of which a model has layers, and how many."""
    pairs = zip(kinds_of(shape), shape.kind_counts, strict=True)
    return tuple((kind, count) for kind, count in pairs if count)


def added_kinds(shape: ModelShape) -> tuple[LayerKind, ...]:
    """Return the kinds of which a model has layers, but for dense and expert layers."""
    return tuple(
        kind for kind, _ in present_kinds(shape) if kind.name not in (DENSE.name, MOE.name)
    )


def layer_run(name: str, count: int) -> LayerRun:
    """Return a run of layers of a registered kind."""
    return LayerRun(name, count, LAYER_KINDS[name].is_routed)
