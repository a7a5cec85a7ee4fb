"""Expressions: what they mean, their units, and that nothing else runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import BadValue
from planner.solver.sources import read_inputs
from planner.sweeps.expressions import UnknownValue, Value, read_expression, value_of_name
from planner.sweeps.fields import BYTES, PLAIN, SECONDS, TEXT, WATTS

NAMES = {
    "power": Value(700.0, WATTS),
    "memory": Value(80e9, BYTES),
    "speed": Value(2e9, (("B", 1.0), ("s", -1.0))),
    "n_devices": Value(512, PLAIN),
    "name": Value("h100", TEXT),
}


def find(name: str) -> Value:
    return NAMES[name]


@pytest.mark.parametrize(
    ("text", "content", "dimension"),
    [
        ("power * n_devices", 358400.0, WATTS),
        ("power * n_devices / 1 kW", 358.4, PLAIN),
        ("memory / speed", 40.0, SECONDS),
        ("memory / speed + 2 min", 160.0, SECONDS),
        ("2 + 3 * 4 - 6 / 2 ** 2", 12.5, PLAIN),
        ("-(1 - 3) % 3", 2, PLAIN),
        ("7 // 2", 3, PLAIN),
        ("1_000 * 1e3", 1e6, PLAIN),
        ("sqrt(memory * memory)", 80e9, BYTES),
        ("max(power, 1 kW)", 1000.0, WATTS),
        ("min(3, 1, 2) + abs(-4)", 5, PLAIN),
        ("ceil(n_devices / 72) + floor(2.5) + round(1.6)", 12, PLAIN),
        ("log2(n_devices)", 9.0, PLAIN),
        ("1 if n_devices > 8 else 2", 1, PLAIN),
        ("memory if n_devices <= 8 else 2 * memory", 160e9, BYTES),
    ],
)
def test_values_by_hand(text, content, dimension):
    found = read_expression(text).value(find)
    assert found.content == pytest.approx(content)
    assert found.dimension == dimension


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("power * n_devices <= 20 MW", True),
        ("power * n_devices <= 300 kW", False),
        ("0.5 kW < power <= 700 W", True),
        ("memory == 80 GB and speed >= 16 Gb/s", True),
        ("not (power > 1 kW) or memory < 1 GB", True),
        ("name == 'h100'", True),
        ('name in ("h100", "b200") and name not in ["x"]', True),
        ("n_devices % 72 == 0", False),
        ("n_devices != 512", False),
    ],
)
def test_truths_by_hand(text, holds):
    assert read_expression(text).value(find).content is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("power <= 20", "a power <= a plain number"),
        ("power <= 20 GiB", "a power <= a size"),
        ("power + memory <= 20 W", r"a power \+ a size"),
        ("memory / speed <= 1 GB", "a time <= a size"),
        ("power * power <= 1 W", r"a quantity in W\^2 <= a power"),
        ("name <= 'x'", "a word has no order"),
        ("name == 3", "a word == a plain number"),
        ("name + 1 > 2", "cannot compute with a word"),
        ("(power > 1 W) + 1 == 2", "cannot compute with a yes or no"),
        ("power and memory", "a power is neither true nor false"),
        ("log2(memory) > 3", r"log2\(\) of a size"),
        ("2 ** power > 3", "an exponent is a plain number"),
        ("2 ** 2 ** 2 ** 2 ** 2 > 3", "is too large"),
        ("n_devices in 3", "`in` needs a list"),
        ("n_devices in (3 W, 4)", "a plain number in a power"),
        ("sqrt(1, 2) > 3", r"sqrt\(\) takes one value"),
        ("max > 3", "max is a function"),
    ],
)
def test_units_that_do_not_match_are_named(text, message):
    with pytest.raises(BadValue, match=message):
        read_expression(text).value(find)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3 +",
        "a b",
        "n_devices = 3",
        "__import__('os').system('x')",
        "power.__class__.x()",
        "(lambda: 1)()",
        "[x for x in (1, 2)]",
        "n_devices if",
        "{1: 2}",
        "f'{power}'",
        "x := 3",
        "open('x')",
        "max(1, key=2)",
        "1 + 2j > 0",
        "n_devices; 3",
        "'a' * 10 ** 9 == 3 and print",
        "(" * 300 + "1" + ")" * 300,
        "n_devices[0]",
        "*power",
        "1 " * 600,
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(BadValue):
        read_expression(text).value(lambda name: NAMES.get(name, Value(1, PLAIN)))


def test_what_a_point_does_not_have_is_no_defect_of_the_expression():
    for text in ("1 / (n_devices - 512)", "log2(n_devices - 512)", "10.0 ** 99 * 1e300 ** 2 > 1"):
        with pytest.raises(UnknownValue):
            read_expression(text).value(find)


@given(
    st.recursive(
        st.integers(1, 50).map(str),
        lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
            lambda x: f"({x[0]} {x[1]} {x[2]})"
        ),
        max_leaves=8,
    )
)
def test_arithmetic_is_pythons(text):
    try:
        expected = eval(text)  # of digits and signs that this test made
    except ZeroDivisionError:
        expected = None
    try:
        assert read_expression(text).value(find).content == expected
    except UnknownValue:
        assert expected is None


def test_names_are_fields_and_figures_of_the_catalogue():
    given_inputs = read_inputs("llama3-70b", "h100-x512", (("pools.0.price_per_hour", 2.5),))
    expected = {
        "n_devices": 512,
        "pools.0.devices": 512,
        "pools.0.nodes": 64,
        "pools.0.accelerator": "h100-sxm-80gb",
        "pools.0.accelerator.power": 700.0,
        "pools.0.accelerator.memory": 81559 * 2.0**20,
        "pools.0.accelerator.peaks.bf16": 989e12,
        "pools.0.nic_speed": 50e9,
        "pools.0.price_per_hour": 2.5,
        "pools.0.partial_nodes": False,
        "fabric.tiers.0.nodes": 32,
        "fabric.rail_optimized": True,
        "fabric.sharp": False,
        "operations.pue": 1.2,
        "model.layers": 80,
        "training.seq_len": 8192,
        "training.precision": "bf16",
        "tokens_per_step": 8192 * 1024,
        # 700 W x 1.3 in the node x 1.2 in the building
        "facility_power": pytest.approx(512 * 700 * 1.3 * 1.2),
        "n_params": pytest.approx(70.55e9, rel=1e-3),
    }
    found = {name: value_of_name(name, *given_inputs).content for name in expected}
    assert found == expected
    with pytest.raises(UnknownValue, match="not stated"):
        value_of_name("pools.0.price_per_hour", *read_inputs("llama3-8b", "h100-x8"))
    with pytest.raises(BadValue, match="option of the search"):
        value_of_name("search.framework", *given_inputs)
