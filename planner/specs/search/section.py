"""The `search:` section of a model file, used where the command line says nothing."""

from typing import Any

from planner.errors import UsageError
from planner.specs.schema import SearchSpec, SpecFault
from planner.specs.search.axis_values import WORDS, axis_values
from planner.specs.search.objectives import (
    parse_budget,
    parse_duration,
    parse_objective,
    parse_pareto,
)
from planner.specs.yaml.document import KeyPath
from searches.frameworks.registry import DEFAULT, framework_space, framework_spaces
from searches.frameworks.releases import UnknownReleaseError

ALLOWANCES = ("tp-across-domains",)
"""Once needed for tp beyond the scale-up domain, which is searched anyhow; still accepted."""

APART, TOGETHER = POOLS = ("apart", "together")
"""Whether a plan uses one pool, or one job may use several."""


def section_faults(spec: SearchSpec) -> list[SpecFault]:
    """Return what is wrong with the values of the section, each with its place in the file."""
    checks: list[tuple[KeyPath, Any]] = []
    for key in ("pin", "only", "max"):
        for axis, value in getattr(spec, key).items():
            several = value if isinstance(value, list) and key == "only" else [value]
            checks += [
                ((key, axis), lambda a=axis, v=v: axis_values(a, v, "search")) for v in several
            ]
            if key == "max" and axis in WORDS:
                checks.append(((key, axis), _no_order))
    for name, parse in (
        ("objective", lambda: parse_objective(spec.objective or "step_time")),
        ("pareto", lambda: parse_pareto(spec.pareto)),
        ("deadline", lambda: spec.deadline and parse_duration(spec.deadline, "deadline")),
        ("budget", lambda: spec.budget and parse_budget(spec.budget, "budget")),
        ("pools", lambda: _one_of(spec.pools or APART, POOLS)),
        ("framework", lambda: _space(spec.framework or DEFAULT)),
        *(("allow", lambda x=x: _one_of(x, ALLOWANCES)) for x in spec.allow),
    ):
        checks.append(((name,), parse))
    faults = _contradictions(spec)
    for path, check in checks:
        try:
            check()
        except UsageError as error:
            message = error.message.partition(": ")[2] or error.message
            faults.append(SpecFault(("search", *path), message, error.hint))
    return faults


def _contradictions(spec: SearchSpec) -> list[SpecFault]:
    """Return the bounds that leave nothing of what is pinned or listed."""
    faults = []
    for axis, limit in spec.max.items():
        for key, named in (("pin", [spec.pin.get(axis)]), ("only", spec.only.get(axis, []))):
            numbers = [x for x in named if isinstance(x, int)]
            if numbers and isinstance(limit, int) and min(numbers) > limit:
                shown = ", ".join(map(str, numbers))
                message = f"{limit} leaves nothing of {key}: {axis} {shown}"
                faults.append(SpecFault(("search", "max", axis), message, "drop one of them"))
    return faults


def _space(text: str) -> None:
    """Refuse what no search can be restricted to: an unknown framework, or release of one."""
    try:
        framework_space(text)
    except UnknownReleaseError as error:
        raise UsageError(f"search: {error.message}", error.hint) from None
    except KeyError:
        _one_of(text, framework_spaces())


def _no_order() -> None:
    raise UsageError("search: its values have no order", "list them under `only:`")


def _one_of(value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(
            f"search: unknown {value!r}",
            f"one of {', '.join(filter(None, choices))}",
            code="unknown-name",
        )
