"""Axes that are nothing but a flag of Megatron-LM: numbers and words, both ways."""

from dataclasses import replace

import pytest

from costmodels import axes
from costmodels.axes import Axis
from planner.frameworks.megatron.axis_flags import axes_of_settings, axis_flags
from planner.frameworks.megatron.flags import parse_flags
from searches.frameworks.megatron.axis_flags import AXIS_FLAGS
from tests.searches.frameworks.examples import PLAIN

CASES = [
    (
        Axis("gc_steps", "steps between collections", "mode", 0, (), 0, has_field=False),
        "--manual-gc-interval",
        100,
        ["--manual-gc-interval", "100"],
    ),
    (
        Axis("impl", "who computes", "mode", "local", ("local", "inference"), has_field=False),
        "--transformer-impl",
        "inference",
        ["--transformer-impl", "inference"],
    ),
    (
        Axis("gc", "collected at once", "mode", False, axes.SWITCH, has_field=False),
        "--manual-gc",
        True,
        ["--manual-gc"],
    ),
]


@pytest.mark.parametrize(("axis", "flag", "value", "flags"), CASES)
def test_a_value_is_written_and_read_back(axis, flag, value, flags, monkeypatch):
    monkeypatch.setitem(axes._AXES, axis.name, axis)
    monkeypatch.setitem(AXIS_FLAGS, axis.name, flag)
    assert axis_flags(PLAIN) == []
    assert axis_flags(replace(PLAIN, switches=((axis.name, value),))) == flags
    assert axes_of_settings(parse_flags(flags).settings) == {axis.name: value}
    assert axes_of_settings({}) == {}
    assert axes_of_settings(parse_flags(["--transformer-impl", "other"]).settings) == {}
