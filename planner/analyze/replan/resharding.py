"""What weights and optimizer state every device holds under a layout, and what has to move.

A layer is a line of N parameters (its share on tp 1). A rank of tp t holds the interval
[i/t, (i+1)/t) of each of its layers, and of that, where ZeRO cuts it over D ranks, the j-th of D
equal pieces; experts the same with ep and etp in the place of tp. What a device lacks under a new
layout is what it needs there less the overlap with what it held:

    M_r = sum over units u of N_u [ W (|w'_r| - |w'_r & w_r|) + K (|k'_r| - |k'_r & k_r|) ]

w and k the intervals of weights and of optimizer state (the master copy counts as such), W and K
their bytes per parameter, over the layers, the routed experts of each, embedding and head;
gradients are not moved. Derivation: counting; the same intervals as `costmodels.memory` counts.
Left out: what tp replicates (norms, KV heads where tp is larger), padding, that frameworks cut
flat buffers of a stage and not each layer alone, copies of the weights besides (hpz).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.comm.collectives import torus_sent_bytes_per_s
from costmodels.comm.placement import place_group
from costmodels.layers.params import expert_layer_params, expert_params, layer_params
from costmodels.parameters import embedding_params, head_params
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.shapes import ModelShape
from planner.frameworks.launchers.placement import dense_grid, expert_grid

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Slices:
    """An interval of every layer for each rank: `(n_ranks,)`, fractions of a layer."""

    start: Floats
    width: Floats

    def take(self, ranks: Ints) -> "Slices":
        """Return those of some ranks."""
        return Slices(self.start[ranks], self.width[ranks])

    def overlap(self, other: "Slices") -> Floats:
        """Return the width of what both hold, rank by rank."""
        ends = np.minimum(self.start + self.width, other.start + other.width)
        both: Floats = ends - np.maximum(self.start, other.start)
        return np.maximum(both, 0.0)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What each rank of a layout holds."""

    stage: Ints
    """Pipeline rank, `(n_ranks,)`."""
    units: Floats
    """Parameters of each unit on each pipeline rank, `(pp, n_units)`: layers beside routed
    experts, embedding, head."""
    experts: Floats
    """Routed experts of each layer on each pipeline rank, parameters, `(pp, n_layers)`."""
    weights: Slices
    states: Slices
    expert_weights: Slices
    expert_states: Slices

    @property
    def n_ranks(self) -> int:
        """Number of ranks."""
        return len(self.stage)

    def bytes_held(self, weight_bytes: float, state_bytes: float) -> Floats:
        """Return the bytes of weights and optimizer state on every rank, `(n_ranks,)`."""
        every = np.arange(self.n_ranks)
        return common_bytes(self, self, every, every, weight_bytes, state_bytes)


def holdings(layout: Layout, shape: ModelShape, seq_len: int) -> Holdings:
    """Return what each rank of a layout holds; `EmitError` where its ranks form no grid."""
    dense, copies = dense_grid(layout), layout.dp * layout.cp
    place = {axis: dense.coordinate(axis) for axis in ("tp", "pp", "dp", "cp")}
    weights = Slices(place["tp"] / layout.tp, np.full(dense.n_ranks, 1.0 / layout.tp))
    shard = (place["dp"] * layout.cp + place["cp"]) % layout.dp_shard
    cut = _cut(weights, shard, layout.dp_shard)
    expert_weights, expert_cut = weights, cut
    if shape.n_experts:
        grid, inner = expert_grid(layout), layout.ep * layout.etp
        inner_rank = grid.coordinate("ep") * layout.etp + grid.coordinate("etp")
        expert_weights = Slices(inner_rank / inner, np.full(grid.n_ranks, 1.0 / inner))
        n_same = layout.tp * layout.cp * layout.dp // inner
        n_shards = max(1, n_same // (copies // layout.dp_shard))
        expert_cut = _cut(expert_weights, grid.coordinate("edp") % n_shards, n_shards)
    units, experts = _units(layout, shape, seq_len)
    is_whole = layout.zero == 0
    return Holdings(
        stage=place["pp"],
        units=units,
        experts=experts,
        weights=cut if layout.zero >= 3 else weights,
        states=weights if is_whole else cut,
        expert_weights=expert_cut if layout.zero >= 3 else expert_weights,
        expert_states=expert_weights if is_whole else expert_cut,
    )


def _cut(slices: Slices, shard: Ints, n_shards: int) -> Slices:
    """Return the pieces that ZeRO leaves to each rank."""
    width = slices.width / n_shards
    return Slices(slices.start + shard * width, width)


def _units(layout: Layout, shape: ModelShape, seq_len: int) -> tuple[Floats, Floats]:
    """Return the parameters of layers, embedding and head, and of experts, by pipeline rank."""
    one, pp = np.ones(1, dtype=np.int32), layout.pp
    routed = np.array(shape.expert_layers)
    of_layer = np.full(shape.layers, layer_params(shape, one)[0])
    if shape.n_experts:
        of_layer[routed] = expert_layer_params(shape, one)[0]
    starts = np.concatenate([[0], np.cumsum(layout.stage_layers)])
    has_layer = np.zeros((pp, shape.layers), dtype=bool)
    ends = np.zeros((pp, 2))
    depth = np.full(1, pp, dtype=np.int32)
    for rank in range(pp):
        for stage in layout.stages_of(rank):
            has_layer[rank, starts[stage] : starts[stage + 1]] = True
        ends[rank, 0] = layout.has_embedding(rank) * embedding_params(shape, seq_len, one)[0]
        ends[rank, 1] = layout.has_head(rank) * head_params(shape, one, depth)[0]
    experts = np.zeros((pp, shape.layers))
    if shape.n_experts:
        experts = has_layer * routed * expert_params(shape, one, one)[0]
    return np.concatenate([has_layer * of_layer, ends], axis=1), experts


def common_bytes(
    old: Holdings,
    new: Holdings,
    old_ranks: Ints,
    new_ranks: Ints,
    weight_bytes: float,
    state_bytes: float,
) -> Floats:
    """Return the bytes that pairs of ranks have in common, one of each layout, `(n_pairs,)`."""
    stages = old.stage[old_ranks], new.stage[new_ranks]
    total = np.zeros(len(old_ranks))
    for params, weights, states in (
        ("units", "weights", "states"),
        ("experts", "expert_weights", "expert_states"),
    ):
        own, theirs = getattr(old, params), getattr(new, params)
        # (pp, pp'): parameters of the units that both pipeline ranks hold.
        both = np.minimum(own[:, None, :], theirs[None, :, :]).sum(axis=2)[stages]
        for name, n_bytes in ((weights, weight_bytes), (states, state_bytes)):
            old_slices: Slices = getattr(old, name).take(old_ranks)
            total += n_bytes * both * old_slices.overlap(getattr(new, name).take(new_ranks))
    return total


def lacking_bytes(
    old: Holdings, new: Holdings, was: Ints, weight_bytes: float, state_bytes: float
) -> Floats:
    """Return what every rank of the new layout lacks, bytes, `(n_ranks,)`.

    `was` is the rank that its device had in the old layout, -1 for a device without one.
    """
    needed = new.bytes_held(weight_bytes, state_bytes)
    there = np.flatnonzero(was >= 0)
    common = common_bytes(old, new, was[there], there, weight_bytes, state_bytes)
    needed[there] -= common
    return np.maximum(needed, 0.0)


def survives(old: Holdings, alive: NDArray[np.bool_]) -> bool:
    """Tell whether the ranks that are left hold all weights and all optimizer state together."""
    for params, names in (
        ("units", ("weights", "states")),
        ("experts", ("expert_weights", "expert_states")),
    ):
        # Pipeline ranks that hold the same units stand in for one another (DualPipe).
        has_unit = getattr(old, params) > 0
        if not has_unit.any():
            continue
        _, kind = np.unique(has_unit, axis=0, return_inverse=True)
        of_rank = kind.reshape(-1)[old.stage]
        for name in names:
            pieces: Slices = getattr(old, name)
            cells = np.stack([of_rank, np.round(pieces.start / pieces.width)], axis=1)
            if len(np.unique(cells[alive], axis=0)) < len(np.unique(cells, axis=0)):
                return False
    return True


def port_bytes_per_s(problem: Problem, n_nodes: int) -> float:
    """Return the bandwidth of one device to any other in use, one-way, bytes per second.

    Within one scale-up domain what a ring reaches there, on a torus what each rank of an
    all-to-all over the devices in use sends at, along their slowest axis; else the device's share
    of the ports of its node, over the oversubscription of every tier that is smaller than the
    nodes in use. Left out: that some of the traffic stays within a node, or below a tier.
    """
    pool = problem.pool
    if n_nodes * pool.devices_per_node <= pool.scale_up_domain:
        if pool.slice_shape:
            group = place_group(n_nodes * pool.devices_per_node, 1, pool, problem.fabric)
            return float(torus_sent_bytes_per_s("all-to-all", group, pool))
        return pool.accelerator.ring_bytes_per_s
    over = 1.0
    for tier in problem.tiers:
        if tier.n_nodes < n_nodes:
            over *= tier.oversubscription
    return pool.nic_bytes_per_s / over
