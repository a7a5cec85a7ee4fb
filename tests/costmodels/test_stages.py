"""How layers go to stages, and the few kinds of rank."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodels.stages import N_KINDS, SPLITS, stage_kinds, stage_layers


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "split", "held"),
    [
        (8, 4, 1, "even", (2, 2, 2, 2)),
        (8, 2, 2, "even", (2, 2, 2, 2)),
        (8, 1, 1, "even", (8,)),
        (9, 4, 1, "even", ()),
        (3, 4, 1, "even", ()),
        (126, 16, 1, "ends", (7, *(8,) * 14, 7)),  # Llama 3 405B's own
        (10, 3, 1, "ends", (3, 4, 3)),
        (11, 3, 1, "ends", (3, 5, 3)),  # 13 units: 4 4 5 -> the middle takes the rest
        (12, 3, 1, "ends", (4, 5, 3)),  # 14 units: then the first
        (6, 4, 1, "ends", (1, 2, 2, 1)),
        (5, 4, 1, "ends", ()),  # an end would hold no layer
        (8, 1, 1, "ends", ()),
    ],
)
def test_splits_by_hand(layers, pp, vpp, split, held):
    assert stage_layers(layers, pp, vpp, split) == held


@given(layers=st.integers(1, 200), pp=st.integers(1, 32), vpp=st.integers(1, 8))
def test_ends_differ_by_one_unit_and_lose_no_layer(layers, pp, vpp):
    held = stage_layers(layers, pp, vpp, "ends")
    assume(held)
    assert sum(held) == layers
    assert min(held) >= 1
    units = [held[0] + 1, *held[1:-1], held[-1] + 1]
    assert max(units) - min(units) <= 1
    assert units[-1] == min(units)  # the loss is on the stage that can least bear more


@given(
    layers=st.integers(1, 200),
    pp=st.integers(1, 64),
    vpp=st.integers(1, 8),
    split=st.sampled_from(range(len(SPLITS))),
)
def test_kinds_stand_for_every_rank(layers, pp, vpp, split):
    held = stage_layers(layers, pp, vpp, SPLITS[split])
    assume(held)
    one = np.array([1], dtype=np.int32)
    kinds = stage_kinds(layers, pp * one, vpp * one, split * one)
    assert kinds.rank.shape[1] <= N_KINDS
    assert kinds.n_ranks.sum() == pp
    assert (kinds.n_ranks * kinds.layers).sum() == layers
    assert (kinds.n_ranks * kinds.has_embedding).sum() == 1
    assert (kinds.n_ranks * kinds.has_head).sum() == 1
    # The lowest rank of each kind holds what the kind says, chunk by chunk.
    for i in range(kinds.rank.shape[1]):
        rank = int(kinds.rank[0, i])
        chunks = held[rank::pp]
        counted = {int(n): chunks.count(int(n)) for n in kinds.chunk_layers[0, i]}
        assert list(counted.values()) == kinds.chunk_counts[0, i].tolist()
        assert sum(counted.values()) == vpp
        assert kinds.layers[0, i] == sum(chunks)
    signatures = {(tuple(sorted(held[rank::pp])), rank == 0, rank == pp - 1) for rank in range(pp)}
    assert (kinds.n_ranks > 0).sum() == len(signatures) <= N_KINDS


def test_unused_places_repeat_the_first_kind():
    # One rank beside three kinds of a pipeline: first, interior, last.
    pp, vpp = np.array([1, 4], dtype=np.int32), np.array([1, 1], dtype=np.int32)
    kinds = stage_kinds(8, pp, vpp, 0 * pp)
    assert kinds.n_ranks.tolist() == [[1, 0, 0], [1, 2, 1]]
    assert kinds.rank.tolist() == [[0, 0, 0], [0, 1, 3]]
    assert kinds.layers.tolist() == [[8, 8, 8], [2, 2, 2]]
    assert kinds.has_head.tolist() == [[1, 1, 1], [0, 0, 1]]
