"""Memory of a step that a compiler lays out beforehand as one program: the most of its moments.

XLA knows when each tensor of a step is needed, and gives the places of those that have gone to
others. What its programs of MaxText hold:

  resident   weights and moments in fp32, updated in place: (4 + 8) N, shards where ZeRO cuts them
  always     copies of the layers' weights in 16 bits, cast before the loop over layers and sharded
             as the weights; with ZeRO 1 also a second copy of all weights in fp32, whole
  head       those, all stored activations, logits in 16 bits, the head's matrix gathered whole,
             and either the gradient of the logits beside them, or in their place, and that of the
             matrix whole
  backward   those, all stored activations, fp32 gradients of the layers (the loop writes into
             arrays of all layers), the gradient of the head, whole or as pieces of a sum, one
             layer that is computed again, its temporaries, and what of it is gathered whole

Gradients live from the backward to the update alone: no step keeps them. Where a step has several
micro-batches their sum stands beside, and all weights are cast before the first. The end (update,
gradient of the embedding) takes less than the backward.

Source: buffer assignment of libtpu 0.0.46 for steps of MaxText 0.2.5 (tools/maxtext_memory,
docs/maxtext.md). Left out: what the scheduler moves where memory is plenty (it may keep the
gradient of the logits in place of the head's), gaps between tensors beyond the share of
activations that all stacks lose, programs that unroll their layers, embeddings that are looked up
by a product (`use_iota_embed`), weights in 16 bits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.layers.params import expert_linear_params, padded_vocab
from costmodels.memory import MASTER_BYTES
from costmodels.plans import ShapeTable
from costmodels.precision import Recipe
from costmodels.shapes import ModelShape

Floats = NDArray[np.float64]

RING_RANKS = 32
"""Shards up to which the head's gradient is summed in a ring, piece by piece, inside its product
(a windowed einsum). Seen on 8, 16 and 32 chips; on 64 and 256 it is whole and scattered."""
HEAD_PIECES = 3
"""Shards of the head's 16-bit gradient that wait for its last sum while layers run backward: two
halves of a ring that goes both ways, and what was received."""
GATHERED_MATRICES = 2
"""Matrices of a dense layer that are whole at once: one is multiplied, one gathered; others are
gathered piece by piece inside their product. Experts have a program of their own (`shard_map`),
before which all of theirs are gathered."""


@dataclass(frozen=True, slots=True)
class PhaseBytes:
    """What the moments of a step hold beside states, activations, logits and one layer's backward.

    Bytes by sharding, shape and kind of rank.
    """

    head: Floats
    """Where the head's gradient is whole; -inf where a ring sums it."""
    ring: Floats
    """Where a ring sums the head's gradient, without `memory.ring_bytes`; else -inf."""
    backward: Floats
    head_sums: Floats
    """What several micro-batches add: the sum of their gradients, and the cast copies of the ends,
    which are then made before the loop over them."""
    backward_sums: Floats
    """The same in the backward, where gradients of a micro-batch have the width of the sum."""


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters on a device by what the moments hold of them.

    Each by sharding, shape and kind of rank, or broadcast against them.
    """

    layers: Floats
    """All but embedding and head; shards with ZeRO 3."""
    ends: Floats
    """Embedding, and head where it has a matrix of its own; shards with ZeRO 3."""
    updated: Floats
    """All weights, whole, with ZeRO 1: a second fp32 copy of them, that the update gathers."""
    gradients: Floats
    """Of the layers; shards with ZeRO 1 and 3."""
    head: Floats
    """The matrix of the head, whole."""
    head_shard: Floats
    """A shard of its gradient."""
    gathered_head: Floats
    """The matrix where it is gathered (ZeRO 3), else 0."""
    gathered: Floats
    """Weights of a layer that are gathered whole at once; 0 where all are whole."""
    is_ring: NDArray[np.bool_]
    """Whether the head's gradient is summed in a ring."""


def cast_bytes(recipe: Recipe) -> float:
    """Return what the copy of a weight takes that products read, bytes; 0 without one."""
    return recipe.param_bytes if recipe.has_master_copy else 0.0


def phase_bytes(recipe: Recipe, held: Held) -> PhaseBytes:
    """Return what the moments of a step hold, by what is held.

    always    c = w N_layers, and 4 N with ZeRO 1
    ring      head = c + w N_head                  backward = b + w N_head min(1, 3/D)
    whole     head = c + 2 w N_head                backward = b + w N_head
              b = c + g N_layers + w N_gathered
    summed    a N + w N_ends more, and in the backward a N_layers in place of g N_layers

    w of the cast copies and of gradients on the wire, g of gradients, a of summed ones: w with
    ZeRO 1, where the gradients of cast weights are whole, else g. N as ZeRO shards them, but for
    the head and what is gathered; without ZeRO 3 the head is not gathered: w N_head less.
    """
    cast, grad, wire = cast_bytes(recipe), recipe.grad_bytes, recipe.param_wire_bytes
    copies = cast * held.layers + MASTER_BYTES * held.updated
    gathered = copies + wire * held.gathered_head
    pieces = np.minimum(HEAD_PIECES * held.head_shard, held.head)
    of_head = np.where(held.is_ring, pieces, held.head)
    backward = copies + grad * held.gradients + wire * (of_head + held.gathered)
    summed = np.where(held.updated > 0.0, cast or grad, grad)
    sums = summed * held.layers + (summed + cast) * held.ends + np.zeros_like(backward)
    of_one = np.where(held.updated > 0.0, summed * held.layers - grad * held.gradients, 0.0)
    return PhaseBytes(
        head=np.where(held.is_ring, -np.inf, gathered + wire * held.head),
        ring=np.where(held.is_ring, gathered, -np.inf),
        backward=backward,
        head_sums=sums,
        backward_sums=sums + of_one,
    )


def head_matrix(shape: ModelShape, tp: NDArray[np.int32]) -> Floats:
    """Return the matrix of the head on one tensor-parallel rank, parameters; 0 in encoders alone.

    A tied one is the embedding.
    """
    return np.asarray(padded_vocab(shape, tp) * shape.hidden / np.asarray(tp))


def gathered_params(shape: ModelShape, shapes: ShapeTable) -> Floats:
    """Return the weights of a layer that are gathered whole at once on a tensor-parallel rank.

    2 h max(f, h_q) / t, or all routed experts that a device has of a layer, the larger.
    """
    t: Floats = np.asarray(shapes.tp, dtype=np.float64)
    value = GATHERED_MATRICES * shape.hidden * np.maximum(shape.ffn, shape.q_width) / t
    if not shape.n_experts:
        return np.asarray(value)
    return np.asarray(np.maximum(value, expert_linear_params(shape, shapes.ep, shapes.etp)))
