"""What is wrong at every point of a sweep, found before the first search."""

from itertools import islice
from typing import Any

from planner.errors import PlannerError, SpecError, UsageError
from planner.specs.cluster.pool_fields import DEVICES
from planner.specs.search.section import section_faults
from planner.specs.yaml.document import KeyPath
from planner.sweeps.changes import of_section
from planner.sweeps.expressions import UnknownValue
from planner.sweeps.fields import WHOLE_FILES
from planner.sweeps.spec.faults import Faults
from planner.sweeps.sweep import Sweep, search_options


class _NoModel:
    search = None


_NO_MODEL: Any = _NoModel()


def check_points(sweep: Sweep, faults: Faults) -> None:
    """Refuse what is wrong at every point: items of lists that do not exist, options."""
    first = next(sweep.combinations())
    changes = [
        (f"{path.removesuffix(DEVICES)}nodes", 1, origin)
        if path.endswith(f".{DEVICES}")
        else (path, value, origin)
        for path, value, origin in sweep.changes(first)
    ]
    for kind in WHOLE_FILES:
        if any(path == kind for path, _, _ in changes):
            continue
        for change in of_section(changes, kind):
            outer = [c for c in changes if change[0].startswith(f"{c[0]}.")]
            try:
                sweep.document(kind, [*outer, change])
            except SpecError as error:
                problem = error.problems[0]
                place = _place_of(sweep, change[0])
                raise faults.say(place, problem.message, problem.hint) from None
    for axis in sweep.axes:
        if not axis.name.startswith("search"):
            continue
        for choice in axis.choices:
            try:
                values = ((axis.name, choice.value),)
                spec = sweep.search_at(values, _NO_MODEL)
                if wrong := section_faults(spec):
                    raise UsageError(wrong[0].message, wrong[0].fix)
                search_options(spec, sweep.stack, sweep.options)
            except UsageError as error:
                raise faults.say(("vary", axis.name), error.message, error.hint) from None
    _check_known(sweep, faults)


def _place_of(sweep: Sweep, path: str) -> KeyPath:
    for axis in sweep.axes:
        if path in axis.paths:
            return ("together" if axis.field is None else "vary", axis.name)
    return ("set", path)


def _check_known(sweep: Sweep, faults: Faults) -> None:
    """Refuse a constraint on a figure that no point can have: a price that nobody states."""
    if not sweep.constraints:
        return
    varied = [path for axis in sweep.axes for path in axis.paths]
    for values in islice(sweep.combinations(), 20):
        try:
            value = sweep.inputs_at(values)
        except PlannerError:
            continue
        find = sweep.lookup(values, value)
        for i, expression in enumerate(sweep.constraints):
            for name in expression.names:
                if name in sweep.derived or any(_moves(path, name) for path in varied):
                    continue
                try:
                    find(name)
                except UnknownValue as error:
                    raise faults.fail(("where", i), error) from None
        return


def _moves(path: str, name: str) -> bool:
    """Tell whether a varied field may decide whether a figure is known."""
    if path in WHOLE_FILES:
        return True
    whole_part = path.endswith((".accelerator", ".instance", ".like"))
    return name == path or name.startswith(f"{path}.") or path.startswith(name) or whole_part
