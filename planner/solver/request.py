"""From what is asked, in Python's words, to inputs and options: `UsageError` for what is wrong."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypedDict

from costmodels.stacks import STACKS
from planner.errors import UsageError
from planner.option_names import option
from planner.solver.calibration.file import Calibration, load_calibration
from planner.solver.calibration.reference import Reference, with_reference
from planner.solver.options import SolveOptions, parse_goals, parse_max, parse_only, parse_pins
from planner.solver.sources import Overrides
from planner.specs.search.section import ALLOWANCES
from searches.executors.executor import NAMES as EXECUTORS
from searches.frameworks.registry import framework_spaces

Calibrations = Calibration | str | os.PathLike[str] | None
"""A calibration, the path of its file, or nothing for the one that ships."""


class PricingArguments(TypedDict):
    """Arguments of the library that say how plans are priced, the same in all its questions."""

    pins: Mapping[str, object]
    framework: str
    stack: str
    allow: tuple[str, ...]
    overrides: Overrides
    calibration: Calibrations
    reference: Reference


class SearchArguments(PricingArguments):
    """And those that bound a search."""

    only: Mapping[str, object] | None
    at_most: Mapping[str, int] | None


def asked_options(
    told: Mapping[str, Any], stack: str, calibration: Calibrations = None
) -> SolveOptions:
    """Return the options that arguments of `solve`, by name, make; `UsageError` for a bad one."""
    options = solve_options(
        told["top"],
        told["pins"],
        told["only"],
        told["at_most"],
        told["framework"] or "default",
        stack,
        told["allow"],
        calibration,
    )
    goals = ("objective", "within", "deadline", "step_limit_s", "pareto")
    return replace(options, **parse_goals(*(told[key] for key in goals)))


def anchored_options(
    options: SolveOptions, reference: Reference
) -> tuple[SolveOptions, tuple[str, ...]]:
    """Return options that measured runs anchor, if there are any, and notes on them."""
    return with_reference(options, reference) if reference else (options, ())


def either(first: Callable[[], bool] | None, second: Callable[[], bool]) -> Callable[[], bool]:
    """Return a question that is true where one of two is."""
    return second if first is None else lambda: first() or second()


def check_executor(name: str, ray_address: str) -> None:
    """Raise `UsageError` for an executor that does not exist or has no use for an address."""
    if name not in EXECUTORS:
        known = f"{', '.join(EXECUTORS[:-1])} or {EXECUTORS[-1]}"
        raise UsageError(f"--executor: unknown {name!r}", known, code="unknown-name")
    if ray_address and name not in ("automatic", "ray"):
        raise UsageError(
            f"--ray-address does not go with --executor {name}",
            "--executor ray, or drop one",
            code="belongs-to",
        )


def _texts(values: Mapping[str, object] | None) -> list[str]:
    """Return axis=value items from the Python form of pins and lists."""
    items = []
    for axis, value in (values or {}).items():
        several = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
        if not several:
            message = option("only") + f": {axis} may have no value at all"
            raise UsageError(
                message, "name its values, or leave the axis out", code="out-of-range"
            )
        items += [f"{axis}={str(v).lower() if isinstance(v, bool) else v}" for v in several]
    return items


def solve_options(
    top: int,
    pins: Mapping[str, object] | None,
    only: Mapping[str, object] | None,
    at_most: Mapping[str, int] | None,
    framework: str,
    stack: str,
    allow: tuple[str, ...],
    calibration: Calibrations = None,
) -> SolveOptions:
    """Check and convert the Python form of the options."""
    if top < 1:
        message = option("top") + f" must be at least 1, not {top}"
        raise UsageError(message, "for example " + option("top", "5"), code="out-of-range")
    if framework not in framework_spaces():
        fix = f"one of {', '.join(framework_spaces())}"
        raise UsageError(f"unknown framework {framework!r}", fix, "framework", code="unknown-name")
    if stack and stack not in STACKS:
        fix = f"one of {', '.join(sorted(STACKS))}"
        raise UsageError(f"unknown stack {stack!r}", fix, "stack", code="unknown-name")
    for name in allow:
        if name not in ALLOWANCES:
            message = option("allow") + f": unknown {name!r}"
            raise UsageError(message, f"one of {', '.join(ALLOWANCES)}", code="unknown-name")
    options = SolveOptions(
        top=top,
        pins=parse_pins(_texts(pins)),
        only=parse_only(_texts(only)),
        at_most=parse_max(_texts(at_most)),
        framework=framework,
        stack=stack,
        allow=frozenset(allow),
        own_calibration=own_calibration(calibration),
    )
    options.check_bounds()
    return options


def own_calibration(given: Calibrations) -> Calibration | None:
    """Return the calibration that was asked for; None for the one that ships."""
    if isinstance(given, Calibration):
        return given
    return load_calibration(given) if given else None
