"""How layers go to stages, and the few kinds of rank."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodels.examples import LLAMA3_8B
from costmodels.schedule.stages import (
    N_KINDS,
    SPLITS,
    StageSplits,
    balanced_layers,
    end_weights,
    n_sizes,
    spelled,
    stage_kinds,
    stage_layers,
)


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
        (5, 4, 1, "ends", (1, 2, 2, 0)),  # the last holds the loss alone
        (2, 4, 1, "ends", (0, 1, 1, 0)),
        (1, 4, 1, "ends", ()),  # fewer units than stages
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
    assert min(held[1:-1], default=1) >= 1
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
    kinds = stage_kinds(layers, StageSplits(pp * one, vpp * one, split * one))
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
    kinds = stage_kinds(8, StageSplits(pp, vpp, 0 * pp))
    assert kinds.n_ranks.tolist() == [[1, 0, 0], [1, 2, 1]]
    assert kinds.rank.tolist() == [[0, 0, 0], [0, 1, 3]]
    assert kinds.layers.tolist() == [[8, 8, 8], [2, 2, 2]]
    assert kinds.has_head.tolist() == [[1, 1, 1], [0, 0, 1]]


def test_a_split_that_is_spelled_out():
    counts = (9, 11, 11, 9)
    assert spelled(counts) == "9-11-11-9"
    assert stage_layers(40, 4, 1, "9-11-11-9") == counts
    assert stage_layers(41, 4, 1, "9-11-11-9") == ()
    assert stage_layers(40, 2, 1, "9-11-11-9") == ()
    # As two ranks of two chunks: rank 0 has 9 + 11, rank 1 has 11 + 9.
    one = np.array([1], dtype=np.int32)
    kinds = stage_kinds(40, StageSplits(2 * one, 2 * one, 2 * one, (*SPLITS, "9-11-11-9")))
    assert kinds.layers.tolist() == [[20.0, 20.0]]
    assert kinds.chunk_layers[0, 0].tolist() == [9.0, 10.0, 11.0]
    assert kinds.chunk_counts[0].tolist() == [[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]


def test_a_very_uneven_split_has_room_for_all_its_sizes():
    one = np.array([1], dtype=np.int32)
    kinds = stage_kinds(16, StageSplits(4 * one, one, 2 * one, (*SPLITS, "5-5-5-1")))
    assert n_sizes((5, 5, 5, 1)) == kinds.chunk_layers.shape[-1] == 5
    assert (kinds.layers * kinds.n_ranks).sum() == 16


def brute_force_bottleneck(layers: int, extra: list[float]) -> float:
    """The least heaviest stage over all splits, by enumeration."""
    if len(extra) == 1:
        return layers + extra[0]
    return min(
        max(n + extra[0], brute_force_bottleneck(layers - n, extra[1:])) for n in range(layers + 1)
    )


@given(layers=st.integers(1, 12), n=st.integers(2, 4), first=st.floats(0, 4), last=st.floats(0, 4))
def test_balancing_by_parameters_has_the_least_heaviest_stage(layers, n, first, last):
    counts = balanced_layers(layers, n, first, last, "params")
    assert sum(counts) == layers
    extra = [first, *[0.0] * (n - 2), last]
    heaviest = max(c + w for c, w in zip(counts, extra, strict=True))
    assert heaviest == pytest.approx(brute_force_bottleneck(layers, extra))


@pytest.mark.parametrize(
    ("layers", "n", "last", "counts"),
    [
        # Shares of 19.9 / 4 = 4.98: stages end with the layer that passes 4.98, 9.95, 14.9.
        (16, 4, 3.9, (5, 5, 5, 1)),
        (16, 2, 3.9, (10, 6)),
        (32, 4, 2.16, (9, 9, 8, 6)),
        # Shares of 20 / 4 = 5 and 20 / 8 = 2.5: layers 5, 10 and 15 reach theirs exactly.
        (16, 4, 4.0, (5, 5, 5, 1)),
        (16, 2, 4.0, (10, 6)),
        (16, 8, 4.0, (3, 2, 3, 2, 3, 2, 1, 0)),
    ],
)
def test_balancing_by_cost_fills_stages_to_their_share(layers, n, last, counts):
    assert balanced_layers(layers, n, 0.0, last, "flops") == counts


def test_what_the_ends_weigh():
    # Llama-3-8B: 128256 * 4096 over 4096 (2 * 4096 + 2 * 1024 + 3 * 14336): 2.409 layers.
    first, last = end_weights(LLAMA3_8B, "params")
    assert first == last == pytest.approx(128_256 / (10_240 + 43_008))
    assert end_weights(LLAMA3_8B, "flops") == (0.0, last)
    assert end_weights(replace(LLAMA3_8B, tied=True), "params") == (first, 0.0)
