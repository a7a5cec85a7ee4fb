"""What a sweep file varies: `vary:`, `together:` and `points:` as axes."""

from collections.abc import Callable, Mapping, Sequence

from planner.errors import BadValue, SpecError
from planner.option_names import command, option
from planner.specs.cluster.pool_fields import DEVICES
from planner.specs.yaml.document import KeyPath
from planner.sweeps.axes import BadItem, SweepAxis, column_axis, field_axis
from planner.sweeps.designs import Values
from planner.sweeps.fields import WHOLE_FILES, field_at, field_text
from planner.sweeps.spec.faults import Faults
from planner.sweeps.spec.schema import SweepFile
from planner.units import shown_value

OF_ALL_POINTS = {
    "search.pareto": "a point of a sweep has one best plan: vary search.objective",
    "search.time_limit_s": "give one limit for all points, under `search:` or with "
    + option("point-limit"),
    "search.top": "a row has the best plan and the runner-up",
}
"""Options of a search that are the same for all points, and what to do instead."""


def read_axes(spec: SweepFile, faults: Faults) -> tuple[tuple[SweepAxis, ...], tuple[Values, ...]]:
    """Return what is varied, and the points where they are listed; `SpecError` for a bad one."""
    axes: list[SweepAxis] = []
    for path, values in spec.vary.items():
        place: KeyPath = ("vary", path)
        try:
            axis = field_axis(path, values)
        except BadItem as error:
            inner = place if error.place is None else (*place, error.place)
            raise faults.fail(inner, error) from None
        except BadValue as error:
            raise faults.fail(place, error, at_key=True) from None
        axes.append(axis)
    axes += [_column(name, groups, faults) for name, groups in spec.together.items()]
    listed = _listed(spec, axes, faults) if spec.points is not None else ()
    if listed:
        axes = _axes_of_list(listed, axes)
    _check_axes(axes, faults)
    return tuple(axes), listed


def _column(name: str, groups: object, faults: Faults) -> SweepAxis:
    place: KeyPath = ("together", name)
    if "." in name or name in WHOLE_FILES:
        message = f"{name!r} is a field, and names a column of several"
        raise faults.say(place, message, "choose a name without points, such as generation")
    if not isinstance(groups, Mapping) or not groups:
        message = f"expected values by name, each with its fields, got {shown_value(groups)}"
        raise faults.say(place, message, "such as {h100: {pools.0.nodes: 8}, ...}")
    for label, fields in groups.items():
        if not isinstance(fields, Mapping) or not fields:
            message = f"expected fields and their values, got {shown_value(fields)}"
            raise faults.say((*place, label), message, "such as {pools.0.nodes: 8}")
        for path, value in fields.items():
            try:
                field_at(path).check(value)
            except BadValue as error:
                raise faults.fail((*place, label, path), error, at_key=True) from None
    axis = column_axis(name, groups)
    for label, fields in groups.items():
        if missing := [path for path in axis.paths if path not in fields]:
            message = f"does not say {', '.join(missing)}, which others of {name} do"
            fix = "every value of a column sets the same fields; null is the default"
            raise faults.say((*place, label), message, fix)
    return axis


def _listed(spec: SweepFile, columns: Sequence[SweepAxis], faults: Faults) -> tuple[Values, ...]:
    named = {axis.name: axis for axis in columns}
    if spec.vary:
        raise faults.say(("points",), "stands beside `vary`", "keep one of them")
    if not spec.points:
        raise faults.say(("points",), "has no points", "list at least one")
    results: list[Values] = []
    for i, point in enumerate(spec.points):
        for name, value in point.items():
            try:
                if name in named:
                    named[name].sets(value)
                else:
                    field_at(name).check(value)
            except StopIteration:
                names = ", ".join(map(str, named[name].values))
                message = f"{name} has no value {shown_value(value)}"
                raise faults.say(("points", i, name), message, f"known: {names}") from None
            except BadValue as error:
                raise faults.fail(("points", i, name), error, at_key=True) from None
        results.append(tuple(point.items()))
    keys = [str(sorted((n, field_text(v)) for n, v in values)) for values in results]
    for i, key in enumerate(keys):
        if key in keys[:i]:
            message = f"the same point as item {keys.index(key)}"
            raise faults.say(("points", i), message, "list every point once")
    return tuple(results)


def _axes_of_list(listed: Sequence[Values], columns: Sequence[SweepAxis]) -> list[SweepAxis]:
    """Return an axis for each field that a point of the list names, with the values there."""
    values: dict[str, list[object]] = {}
    for point in listed:
        for name, value in point:
            if value not in values.setdefault(name, []):
                values[name].append(value)
    named = {axis.name: axis for axis in columns}
    results: list[SweepAxis] = []
    for name, items in values.items():
        if name in named:
            results.append(named[name])
            continue
        field = field_at(name)
        unlike: dict[object, object] = {}
        for item in items:
            unlike.setdefault(field.base(item), item)
        axis = field_axis(name, list(unlike.values()))
        results.append(axis)
    return results


def _check_axes(axes: Sequence[SweepAxis], faults: Faults) -> None:
    """Refuse a sweep that varies nothing, a field twice, or what no point depends on."""
    if not axes:
        fix = "add `vary:` (" + option("vary", "PATH=VALUES") + "), `together:` or `points:`"
        raise SpecError(faults.document.problem((), "the sweep varies nothing", fix))
    owner: dict[str, str] = {}
    for axis in axes:
        place: KeyPath = ("together" if axis.field is None else "vary", axis.name)
        for path in axis.paths:
            if path in owner:
                message = f"{path} is varied by {owner[path]} and by {axis.name}"
                raise faults.say(place, message, "vary every field once")
            owner[path] = axis.name
            if path in OF_ALL_POINTS:
                raise faults.say(place, f"{path} cannot be varied", OF_ALL_POINTS[path])
        for choice in axis.choices:
            for path, value in choice.sets:
                check_part(place, path, value, faults)
    for path in owner:
        rival = f"{path.rpartition('.')[0]}.{'nodes' if path.endswith(DEVICES) else DEVICES}"
        if path.startswith("pools.") and path.endswith(f".{DEVICES}") and rival in owner:
            message = f"{path} and {rival} say the same"
            raise faults.say(("vary", path), message, "vary one of them")


def check_part(place: KeyPath, path: str, value: object, faults: Faults) -> None:
    """Refuse the name of a part that the catalogue does not have."""
    from hardware.catalogue import UnknownPartError, load_catalogue

    key = path.rpartition(".")[2]
    name = value.get("like") if isinstance(value, Mapping) else value
    catalogue = load_catalogue()
    finders: Mapping[str, Callable[[str], object]] = {
        "accelerator": catalogue.accelerator,
        "like": catalogue.accelerator,
        "instance": catalogue.platform,
        "nic": catalogue.link,
    }
    if not path.startswith("pools.") or key not in finders or not isinstance(name, str):
        return
    try:
        finders[key](name)
    except UnknownPartError as error:
        close = " or ".join(error.suggestions)
        guess = f"did you mean {close}? " if close else ""
        noun = {"like": "accelerator", "nic": "link"}.get(key, key)
        fix = f"{guess}`" + command("catalog list") + "` shows all names"
        raise faults.say(place, f"unknown {noun} {shown_value(name)}", fix) from None
