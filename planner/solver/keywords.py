"""Keywords of the library's functions: fields of a `SolveRequest`, and how a search runs.

Editors and type checkers know them by these; `request_of_keywords` makes the request.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from planner.errors import UsageError
from planner.solver.calibration.reference import Reference
from planner.solver.request import Calibrations, SolveRequest
from planner.solver.sources import Overrides
from searches.pricing.shared_work import SharedWork


class PriceKeywords(TypedDict, total=False):
    """What decides what a layout costs, and the axes that are fixed."""

    pins: Mapping[str, object] | None
    framework: str
    stack: str
    allow: tuple[str, ...]
    overrides: Overrides
    calibration: Calibrations
    reference: Reference


class EvaluateKeywords(PriceKeywords, total=False):
    """Keywords of `planner.evaluate`."""

    pool: str


class RestrictKeywords(PriceKeywords, total=False):
    """The same, and the values that the other axes may take."""

    only: Mapping[str, object] | None
    at_most: Mapping[str, int] | None


class SolveKeywords(RestrictKeywords, total=False):
    """Keywords of `planner.solve`: the fields of a `SolveRequest`, then how the search runs."""

    top: int | None
    all_variants: bool
    pool: str
    pools: str
    objective: str
    within: float
    memory_margin: float | None
    deadline: str | float
    budget: str | float
    step_limit_s: float
    pareto: str | Sequence[str]
    time_limit_s: float
    executor: str
    ray_address: str
    stop: Callable[[], bool] | None
    progress: Callable[[int, int], None] | None
    shared: SharedWork | None


def check_keywords(keywords: type, options: Mapping[str, object]) -> None:
    """Raise `UsageError` for an option that a function with these keywords does not have."""
    names = sorted(keywords.__annotations__)
    for name in options:
        if name not in names:
            raise UsageError(
                f"unknown keyword {name!r}", f"one of {', '.join(names)}", name, "unknown-name"
            )


def request_of_keywords(
    keywords: type, request: SolveRequest | None, options: Mapping[str, Any]
) -> SolveRequest:
    """Return the request of a call: the one that it gives, else the one that its keywords make.

    Raises `UsageError` for a keyword that is none, and for one that the request holds already.
    """
    check_keywords(keywords, options)
    fields = {name: x for name, x in options.items() if name in SolveRequest.model_fields}
    if request is None:
        return SolveRequest.of(**fields)
    for name in fields:
        raise UsageError(
            f"{name} is a field of the request, which is given too",
            "keep one of them",
            name,
            "contradiction",
        )
    return request
