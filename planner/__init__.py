"""The product as a library.

`solve` ranks layouts, `evaluate` prices one, `recommend` asks back, `scale` draws the curve over
sizes, `sweep` searches many points, `report` shows them, `review` writes a result up,
`check` judges existing runs.

>>> import planner
>>> result = planner.solve("llama3-8b", "h100-x8", top=1)
>>> result.plans[0].layout.n_devices
8

Importing this package is cheap; numpy, pydantic and ortools are loaded by the first call.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Plan", "Recommendation", "Report", "Result", "__version__", "check", "evaluate", "recommend",
    "report", "review", "scale", "solve", "sweep",
]  # fmt: skip

if TYPE_CHECKING:
    from planner.checking import Report, check
    from planner.recommendation import Recommendation
    from planner.recommending import recommend
    from planner.reporting.command import report
    from planner.reporting.review import review
    from planner.result import Plan, Result
    from planner.scaling.curve import scale
    from planner.solving import evaluate, solve
    from planner.sweeping.library import sweep

_HOMES = {
    "check": "planner.checking",
    "solve": "planner.solving",
    "evaluate": "planner.solving",
    "recommend": "planner.recommending",
    "report": "planner.reporting.command",
    "review": "planner.reporting.review",
    "scale": "planner.scaling.curve",
    "sweep": "planner.sweeping.library",
    "Recommendation": "planner.recommendation",
    "Report": "planner.checking",
    "Result": "planner.result",
    "Plan": "planner.result",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
