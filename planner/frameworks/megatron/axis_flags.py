"""Axes that are nothing but a flag of Megatron-LM: plans as flags, and flags as plans."""

from collections.abc import Mapping
from typing import Any

from costmodels.axes import AXES, Value
from costmodels.plans import Layout
from planner.frameworks.megatron.flags import flag_table
from searches.frameworks.megatron.axis_flags import AXIS_FLAGS


def axis_dests() -> dict[str, str]:
    """Return the setting that says each of these axes, by axis."""
    by_name = flag_table()[1]
    return {axis: by_name[flag].dest for axis, flag in AXIS_FLAGS.items()}


def axis_flags(layout: Layout) -> list[str]:
    """Return the flags of the axes that are in use, with their values."""
    argv: list[str] = []
    for name, flag in AXIS_FLAGS.items():
        value, axis = layout.value(name), AXES[name]
        if value != axis.off:
            argv += [flag] if axis.is_switch else [flag, axis.text(value)]
    return argv


def axes_of_settings(settings: Mapping[str, Any]) -> dict[str, Value]:
    """Return the values of the axes that settings of a run say.

    A value that the axis does not have is left out: it is told by the parser's own rules.
    """
    result = {}
    for name, dest in axis_dests().items():
        axis, value = AXES[name], settings.get(dest)
        if value is None or (axis.words and not axis.is_switch and value not in axis.words):
            continue
        result[name] = axis.value(axis.code(value))
    return result
