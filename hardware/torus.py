"""Tori of accelerators: shapes of slices, and which of their axes close to rings."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from math import prod

CUBE = 4
"""Chips along an edge of the cube that optical switches join, of parts with three axes."""
_SMALL = {
    2: ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)),
    3: ((1, 1, 1), (1, 2, 2), (2, 2, 2), (2, 2, 4), (2, 4, 4)),
}
"""Shapes of two axes, and those of three below a cube (Google Cloud documentation)."""


@dataclass(frozen=True, slots=True)
class Torus:
    """How the chips of a part are joined."""

    n_axes: int
    """2 or 3: every chip has two links along each."""
    ring_axis: int
    """Chips along an axis from which on it closes to a ring: 16 of 2D parts (a whole pod's edge),
    4 of 3D parts, where all axes must be multiples of 4."""
    largest: int
    """Most chips of one slice."""
    devices_per_chip: int = 1
    """Devices that JAX shows of a chip, and that share its links: 2 of TPU7x, its dies."""
    die_links: float = 0.0
    """What joins the dies of a chip, in links of the torus; 0 where a chip is one device."""


@lru_cache(maxsize=4096)
def slice_shape(torus: Torus, n_devices: int) -> tuple[int, ...]:
    """Return the usual shape of a slice of so many devices, in chips, shortest axis first.

    () where no slice has so many.

    Of shapes of equal size the one whose longest axis is shortest: 128 chips of 3D parts are
    4x4x8. Source: Google Cloud documentation of v5e, v5p and v6e, their tables of topologies.
    """
    n_chips, rest = divmod(n_devices, torus.devices_per_chip)
    if rest or n_chips > torus.largest:
        return ()
    for shape in _SMALL[torus.n_axes]:
        if prod(shape) == n_chips:
            return shape
    cubes, rest = divmod(n_chips, CUBE**3)
    if torus.n_axes != 3 or rest:
        return ()
    edges = [x for x in range(1, cubes + 1) if cubes % x == 0]
    shapes = [x for x in combinations_with_replacement(edges, 3) if prod(x) == cubes]
    best = min(shapes, key=lambda x: (x[2], x[1]))
    return tuple(CUBE * x for x in best)


def is_slice(torus: Torus, shape: tuple[int, ...]) -> bool:
    """Tell whether there are slices of a shape, shortest axis first.

    Source: Google Cloud documentation: of 2D parts those of its tables, of 3D parts those below a
    cube, and all whose edges are multiples of 4 ("TPU types and topologies": A <= B <= C, each at
    most 4 or each a multiple of 4).
    """
    if prod(shape) > torus.largest or shape in _SMALL[torus.n_axes]:
        return shape in _SMALL[torus.n_axes]
    return torus.n_axes == len(shape) == 3 and all(e and e % CUBE == 0 for e in shape)


def slice_examples(torus: Torus) -> tuple[tuple[int, ...], ...]:
    """Return shapes of slices, to name a few: those of 2D parts are all there are."""
    few = _SMALL[torus.n_axes][1:]
    return few if torus.n_axes == 2 else (*few, (4, 4, 4), (4, 4, 8), (4, 8, 8), (4, 4, 12))


def closed_axes(torus: Torus, shape: tuple[int, ...]) -> tuple[bool, ...]:
    """Tell of each axis of a slice whether it closes to a ring.

    Source: Google Cloud documentation ("all 4x4x4 and larger slices have full 3D torus"); of 2D
    parts an axis of 16 closes (jax/experimental/mesh_utils.py; scaling-book tpus.md).
    """
    if torus.n_axes == 3 and any(edge % CUBE for edge in shape):
        return (False,) * len(shape)
    return tuple(edge >= torus.ring_axis for edge in shape)
