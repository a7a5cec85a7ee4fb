"""Fields of the form that asks for plans, and what they say of axes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.handlers.problems import Fault

NUMBER_AXES = {
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
    "dp": "data",
    "vpp": "chunks a rank",
    "mbs": "micro-batch",
    "zero": "ZeRO stage",
    "devices": "devices used",
}
WORD_AXES = ("recompute", "schedule", "precision")
WHOLE = (
    "framework",
    "stack",
    "objective",
    "within",
    "memory_margin",
    "deadline",
    "budget",
    "step_limit_s",
    "pool",
    "pools",
    "pareto",
)
"""Fields that are one option of a request each, by its name."""
OPTION_FIELDS = (*(f"axis_{axis}" for axis in (*NUMBER_AXES, *WORD_AXES)), "more", *WHOLE, "set")
"""All fields but those of the documents and of the length of the answer."""


@dataclass(frozen=True, slots=True)
class AxisWord:
    """What one word of the form says of an axis: `tp=8`, `mbs=1,2`, `pp<=16`."""

    field: str
    """Of the form."""
    axis: str
    sign: str
    """`=` or `<=`."""
    value: str

    @property
    def option(self) -> str:
        """The option that says it: `pin`, `only` or `max`."""
        if self.sign == "<=":
            return "max"
        return "only" if "," in self.value else "pin"

    @property
    def pair(self) -> str:
        """It as the command line takes it: `pp=16`."""
        return f"{self.axis}={self.value}"


def axis_words(fields: Mapping[str, Any]) -> tuple[list[AxisWord], list[Fault]]:
    """Return what the fields of axes say, in their order, and what in them cannot be read."""
    axes: list[AxisWord] = []
    faults: list[Fault] = []
    for axis in (*NUMBER_AXES, *WORD_AXES):
        text = fields[f"axis_{axis}"].replace("≤", "<=").replace(" ", "")
        if text:
            sign = "<=" if text.startswith("<=") else "="
            axes.append(AxisWord(f"axis_{axis}", axis, sign, text.removeprefix("<=")))
    for word in fields["more"].replace("≤", "<=").split():
        axis, sign, value = re.fullmatch(r"([^=<]*)(<=|=)?(.*)", word, re.DOTALL).groups()  # type: ignore[union-attr]  # matches anything
        if axis and sign and value:
            axes.append(AxisWord("more", axis, sign, value))
        else:
            detail = f"{word[:80]!r} is not AXIS=VALUE, AXIS=A,B or AXIS<=VALUE"
            faults.append(Fault(detail, "such as tp=8", "more"))
    return axes, faults


def options_given(fields: Mapping[str, Any], axes: list[AxisWord]) -> dict[str, tuple[str, ...]]:
    """Return the fields as parameters of an address (`question.options_of`)."""
    arguments: dict[str, tuple[str, ...]] = {"set": tuple(fields["set"].splitlines())}
    arguments |= {name: (fields[name],) for name in WHOLE if fields[name]}
    for option in ("pin", "only", "max"):
        arguments[option] = tuple(each.pair for each in axes if each.option == option)
    return arguments
