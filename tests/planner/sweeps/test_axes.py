"""Axes: lists and ranges of every kind of field, and the fields that there are."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import BadValue
from planner.specs.schema import ClusterFile, ModelFile
from planner.sweeps.axes import SweepAxis, column_axis, field_axis, label_of
from planner.sweeps.fields import field_at, known_paths, section_of

MEMORY = "pools.0.accelerator.memory"
GIB = 2.0**30


def bases(axis: SweepAxis) -> list[object]:
    return [axis.base(value) for value in axis.values]


@pytest.mark.parametrize(
    ("path", "given_values", "values", "numbers"),
    [
        ("pools.0.nodes", [32, 64], [32, 64], [32, 64]),
        ("pools.0.nodes", 8, [8], [8]),
        ("pools.0.nodes", "8..64*2", [8, 16, 32, 64], [8, 16, 32, 64]),
        ("pools.0.nodes", "8 .. 100 * 3", [8, 24, 72], [8, 24, 72]),
        ("pools.0.nodes", "1..10+4", [1, 5, 9], [1, 5, 9]),
        ("pools.0.nodes", [1, "4..16*2"], [1, 4, 8, 16], [1, 4, 8, 16]),
        ("pools.0.nodes", {"from": 2, "to": 8, "times": 2}, [2, 4, 8], [2, 4, 8]),
        (
            MEMORY,
            "80 GiB..320 GiB*2",
            ["80 GiB", "160 GiB", "320 GiB"],
            [80 * GIB, 160 * GIB, 320 * GIB],
        ),
        (MEMORY, "80..160GiB + 80GiB", ["80 GiB", "160 GiB"], [80 * GIB, 160 * GIB]),
        (
            MEMORY,
            "512 GiB..2 TiB*2",
            ["0.5 TiB", "1 TiB", "2 TiB"],
            [512 * GIB, 1024 * GIB, 2048 * GIB],
        ),
        (
            "pools.0.nic_speed",
            "400 Gb/s..1.6 Tb/s*2",
            ["0.4 Tb/s", "0.8 Tb/s", "1.6 Tb/s"],
            [50e9, 100e9, 200e9],
        ),
        ("fabric.tiers.0.oversubscription", [1, "7:1"], [1, "7:1"], [1.0, 7.0]),
        ("fabric.tiers.0.oversubscription", "1..4*2", [1.0, 2.0, 4.0], [1.0, 2.0, 4.0]),
        ("training.tokens", "1T..4T*2", [1e12, 2e12, 4e12], [1e12, 2e12, 4e12]),
        ("pools.0.price_per_hour", "2..3+0.5", [2.0, 2.5, 3.0], [2.0, 2.5, 3.0]),
        ("pools.0.scale_up_latency", ["600 ns", "1 us"], ["600 ns", "1 us"], [6e-7, 1e-6]),
        ("operations.pue", "1.1..1.3+0.1", [1.1, 1.2, 1.3], [1.1, 1.2, 1.3]),
        ("fabric.rail_optimized", [True, False], [True, False], [True, False]),
        (
            "training.precision",
            ["bf16", ["bf16", "fp8-tensorwise"]],
            ["bf16", ["bf16", "fp8-tensorwise"]],
            ["bf16", '["bf16", "fp8-tensorwise"]'],
        ),
        (
            "pools.0.accelerator",
            ["h100-sxm-80gb", {"like": "h100", "name": "big"}],
            ["h100-sxm-80gb", {"like": "h100", "name": "big"}],
            ["h100-sxm-80gb", "big"],
        ),
        ("search.pin.tp", "1..4*2", [1, 2, 4], [1, 2, 4]),
        ("search.pin.recompute", ["none", "full"], ["none", "full"], ["none", "full"]),
        ("pools.0.scale_up_domain", [8, None], [8, None], [8, None]),
    ],
)
def test_values_as_written_and_in_base_units(path, given_values, values, numbers):
    axis = field_axis(path, given_values)
    assert list(axis.values) == values
    for found, number in zip(bases(axis), numbers, strict=True):
        exact = number is None or isinstance(number, str)
        assert found == (number if exact else pytest.approx(number, rel=1e-12))
    assert [type(x) for x in bases(axis)] == [type(x) for x in numbers]


@pytest.mark.parametrize(
    ("path", "given_values", "message"),
    [
        ("pools.0.nodes", [], "has no values"),
        ("pools.0.nodes", [1, 2, 1], "1: the same value twice"),
        (MEMORY, ["80 GiB", "81920 MiB"], "'80 GiB' and '81920 MiB': the same value twice"),
        ("pools.0.nodes", [2.5], "expected a whole number, got 2.5"),
        ("pools.0.nodes", [0], "must be at least 1, got 0"),
        ("pools.0.nodes", "64..8*2", "'64..8*2' runs downwards"),
        ("pools.0.nodes", "8..64*1", "never ends: times 1"),
        ("pools.0.nodes", "8..64+0", "never ends: plus 0"),
        ("pools.0.nodes", "8..64*1.1", "8.8 is not a whole number"),
        ("pools.0.nodes", "8..x", "'8..x' is not a range"),
        ("pools.0.nodes", "1..1e9+1", "has 1,000,000,000 values, more than 100,000"),
        ("pools.0.nodes", ["1..8", 9], "is continuous, and stands in a list"),
        ("pools.0.nodes", "8..8", "holds one value"),
        (MEMORY, [80], "80 has no unit"),
        (MEMORY, "80..320*2", "80 has no unit"),
        (MEMORY, ["80 Gb/s"], "unknown unit 'Gb/s' in a size"),
        (MEMORY, "80 GiB..320 GiB*2 GiB", "a factor has no unit"),
        (MEMORY, "80 GiB..320 W*2", "unknown unit 'W'"),
        (MEMORY, ["1 B"], "'1 B' is out of range"),
        (MEMORY, "1 B..8 GiB log", "out of range"),
        ("training.precision", ["bf17"], "unknown value 'bf17'"),
        ("pools.0.accelerator", [{"like": "h100", "memry": "80 GiB"}], "unknown key 'memry'"),
        ("pools.0.accelerator", [{"memory": "80 GiB"}], "like is missing"),
        ("pools.0.nodes", {"from": 1}, "the range has no `to:`"),
        ("pools.0.nodes", {"from": 1, "to": 2, "by": 3}, "unknown key 'by'"),
        ("pools.0.nodes", {"from": 1, "to": 9, "plus": 3, "times": 3}, "stand beside each other"),
        ("pools.0.node", [1], "unknown field 'pools.0.node'"),
        ("pools.0.accelerator.peaks.bf17", ["1 PFLOP/s"], "unknown value 'bf17'"),
        ("model.layers.3", [1], "model.layers has nothing inside"),
        ("pools.nodes", [1], "pools is a list"),
        ("", [1], "unknown field ''"),
    ],
)
def test_each_bad_axis_has_its_message(path, given_values, message):
    with pytest.raises(BadValue, match=message.replace("(", r"\(").replace("*", r"\*")) as error:
        field_axis(path, given_values)
    assert error.value.hint or message.startswith(("must be", "like is", "expected a whole"))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("pools.0.node", "pools.0.nodes"),
        ("gpus", "pools.0.devices"),
        ("nic_speed", "pools.0.nic_speed"),
        ("pools.0.gpus_per_node", "pools.0.accelerators_per_node"),
        ("batch_size", "training.global_batch"),
        ("pools.0.accelerator.hbm", "pools.0.accelerator.memory"),
        ("fabric.tiers.0.oversub", "fabric.tiers.0.oversubscription"),
    ],
)
def test_an_unknown_field_names_the_one_that_was_meant(wrong, right):
    with pytest.raises(BadValue) as error:
        field_at(wrong)
    assert error.value.hint == f"did you mean {right}?"


def test_every_field_of_the_schemas_can_be_varied():
    paths = known_paths()
    for path in paths:
        assert field_at(path).path == path
        assert pickle.loads(pickle.dumps(field_at(path))) is field_at(path)
    of_lists = {"pools": "pools.0", "tiers": "fabric.tiers.0"}
    for schema in (ModelFile, ClusterFile):
        assert {of_lists.get(name, name) for name in schema.model_fields} <= set(paths)
    assert {section_of(path) for path in paths} == {"model", "cluster"}


def test_the_fields_of_one_column_change_as_one():
    axis = column_axis(
        "generation",
        {
            "a": {"pools.0.accelerator": "h100", "pools.0.price_per_hour": 2.5},
            "b": {"pools.0.accelerator": "b200", "pools.0.price_per_hour": 4},
        },
    )
    assert axis.values == ("a", "b")
    assert axis.paths == ("pools.0.accelerator", "pools.0.price_per_hour")
    assert axis.sets("b") == (("pools.0.accelerator", "b200"), ("pools.0.price_per_hour", 4))


@given(
    st.integers(1, 500),
    st.integers(2, 2000),
    st.booleans(),
    st.floats(0, 1, exclude_max=True),
)
def test_sampled_whole_numbers_stay_whole_and_in_bounds(low, more, log, u):
    axis = field_axis("pools.0.nodes", f"{low}..{low + more}{' log' * log}")
    value = axis.at(u)
    assert isinstance(value, int)
    assert low <= value <= low + more


@given(st.floats(1, 500), st.floats(1.1, 50), st.booleans(), st.floats(0, 1, exclude_max=True))
def test_sampled_quantities_lie_where_the_share_says(low, factor, log, u):
    low = float(f"{low:.6g}")
    high = float(f"{low * factor:.6g}")
    axis = field_axis(MEMORY, f"{low!r} GiB..{high!r} GiB{' log' * log}")
    found = axis.base(axis.at(u)) / GIB
    meant = low * (high / low) ** u if log else low + u * (high - low)
    assert math.isclose(found, meant, rel_tol=2e-5)


def test_labels():
    assert label_of("fabric.tiers.0.oversubscription") == "oversubscription"
    assert label_of("model.moe.experts") == "MoE experts"
    assert label_of("pools.0.accelerator.peaks.bf16") == "accelerator peaks bf16"
