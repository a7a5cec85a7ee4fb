"""Options that every command which ranks plans has, on their way from words to arguments."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.solver.options import parse_max, parse_only, parse_pins
from planner.solver.request import PricingArguments, SearchArguments
from planner.solver.sources import Overrides
from planner.specs.search.axis_values import WORDS, axis_text


@dataclass(frozen=True, slots=True)
class Stated:
    """What the user stated for these options, as typer hands it over."""

    pin: Sequence[str]
    overrides: Overrides
    framework: str
    stack: str
    calibration: str
    reference: str
    allow: Sequence[str] = ()
    only: Sequence[str] = ()
    at_most: Sequence[str] = ()

    def pricing(self) -> PricingArguments:
        """Return arguments of the Python API that price plans; `UsageError` for a bad option."""
        return {
            "pins": pins_in_words(self.pin),
            "framework": self.framework,
            "stack": self.stack,
            "allow": tuple(self.allow),
            "overrides": self.overrides,
            "calibration": self.calibration,
            "reference": self.reference,
        }

    def searching(self) -> SearchArguments:
        """Return the same with those that bound a search."""
        return {
            **self.pricing(),
            "only": lists_in_words(self.only),
            "at_most": parse_max(self.at_most),
        }


def pins_in_words(pin: Sequence[str]) -> dict[str, object]:
    """Return pins in the words of the Python API."""
    return {a: axis_text(a, v) if a in WORDS else v for a, v in parse_pins(pin).items()}


def lists_in_words(only: Sequence[str]) -> dict[str, object]:
    """Return lists of allowed values in the words of the Python API."""
    return {
        a: [axis_text(a, v) if a in WORDS else v for v in sorted(values)]
        for a, values in parse_only(only).items()
    }
