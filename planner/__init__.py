"""The product as a library.

`solve` ranks layouts, `evaluate` prices one, `recommend` asks back, `scale` draws the curve over
sizes, `allocate` shares nodes among jobs, `sweep` searches many points, `report` shows them,
`review` writes a result up, `check` judges existing runs.

>>> import planner
>>> result = planner.solve("llama3-8b", "h100-x8", top=1)
>>> result.plans[0].layout.n_devices
8

Importing this package is cheap; numpy, pydantic and ortools are loaded by the first call.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Plan",
    "Recommendation",
    "Report",
    "Result",
    "__version__",
    "allocate",
    "batch_solve",
    "check",
    "evaluate",
    "recommend",
    "report",
    "review",
    "scale",
    "solve",
    "sweep",
]

if TYPE_CHECKING:
    from planner.analyze.check.check import check
    from planner.analyze.check.report import Report
    from planner.analyze.recommend.answer import Recommendation
    from planner.analyze.recommend.questions import recommend
    from planner.render.report.review import review
    from planner.render.report.sweep_report import report
    from planner.solver.answer.result import Plan, Result
    from planner.solver.solve import evaluate, solve
    from planner.sweeps.library import sweep
    from planner.sweeps.scaling.allocation import allocate
    from planner.sweeps.scaling.batch import batch_solve
    from planner.sweeps.scaling.curve import scale

_HOMES = {
    "check": "planner.analyze.check.check",
    "solve": "planner.solver.solve",
    "evaluate": "planner.solver.solve",
    "recommend": "planner.analyze.recommend.questions",
    "report": "planner.render.report.sweep_report",
    "review": "planner.render.report.review",
    "allocate": "planner.sweeps.scaling.allocation",
    "batch_solve": "planner.sweeps.scaling.batch",
    "scale": "planner.sweeps.scaling.curve",
    "sweep": "planner.sweeps.library",
    "Recommendation": "planner.analyze.recommend.answer",
    "Report": "planner.analyze.check.report",
    "Result": "planner.solver.answer.result",
    "Plan": "planner.solver.answer.result",
}


def _stranger() -> str:
    """Return what is wrong where another folder stands in the way of one of our packages."""
    ours = Path(__file__).resolve().parent.parent
    for name in ("hardware", "costmodels", "searches", "service"):
        try:
            spec = find_spec(name)
        except ValueError:  # a module that was made by hand: no folder stands in the way
            continue
        where = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if where != ours / name:
            return (
                f"planner needs its package {name!r} of {ours / name}, and Python finds "
                f"{where or 'none'} first: run from another folder, or rename that one"
            )
    return ""


if _wrong := _stranger():
    if sys.argv[:1] == ["-m"]:  # python -m planner: a message is all that its user needs
        sys.exit(f"error: {_wrong}")
    raise ImportError(_wrong)


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
