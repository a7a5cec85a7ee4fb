"""Sums of replayed collectives, by hand."""

import pytest

from tools.replay.counting import added, as_rows, repeated, sent_bytes


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("all-gather", 7.0),  # 8 bytes over 8 ranks: 7/8 of it
        ("reduce-scatter", 7.0),
        ("all-to-all", 7.0),
        ("all-reduce", 14.0),
        ("point-to-point", 8.0),
        ("broadcast", 8.0),
    ],
)
def test_ring_volumes(name, sent):
    assert sent_bytes(name, 8.0, 8) == sent


def test_micro_batches_repeat_the_last_that_ran():
    """Two ran, of 3 calls after 5 of the first; six more like the second: 8 + 6 * 3."""
    first, second = {"a": (5, 50.0, 40.0)}, {"a": (8, 80.0, 64.0), "b": (1, 4.0, 2.0)}
    assert repeated(first, second, 6) == {"a": (26, 260.0, 208.0), "b": (7, 28.0, 14.0)}
    assert repeated({}, first, 0) == first


def test_an_optimizer_step_comes_on_top_of_micro_batches():
    counts = {"a": (26, 260.0, 208.0)}
    assert added(counts, {"a": (8, 80.0, 64.0)}, {"a": (9, 90.0, 72.0)}) == {
        "a": (27, 270.0, 216.0)
    }


def test_rows_of_one_kind_are_summed_and_small_ones_stand_apart():
    counts = {
        ("dp", "all-gather", "bfloat16", 8, 4096): (2, 8192.0, 7168.0),
        ("dp", "all-gather", "bfloat16", 8, 8192): (1, 8192.0, 7168.0),
        ("dp", "all-reduce", "float32", 8, 4): (3, 12.0, 21.0),
        ("ep", "all-to-all", "int64", 4, 65536): (1, 65536.0, 49152.0),
        ("pp", "receive", "bfloat16", 2, 4096): (1, 4096.0, 4096.0),
    }
    collectives, control = as_rows(counts)
    assert collectives == [
        {
            "axis": "dp",
            "collective": "all-gather",
            "dtype": "bfloat16",
            "group_size": 8,
            "n_calls": 3,
            "bytes": 16384,
            "sent_bytes": 14336,
        }
    ]
    assert [(row["axis"], row["n_calls"]) for row in control] == [("dp", 3), ("ep", 1)]
