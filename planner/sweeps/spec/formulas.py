"""What a sweep file computes: `let:` as derived values and tables, `where:` as constraints."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import BadValue
from planner.option_names import command
from planner.specs.yaml.document import KeyPath
from planner.sweeps.axes import SweepAxis
from planner.sweeps.expressions import (
    Expression,
    UnknownValue,
    Value,
    dimension_of_name,
    read_expression,
    sample_value,
)
from planner.sweeps.fields import TEXT, WHOLE_FILES, field_text
from planner.sweeps.spec.faults import Faults
from planner.sweeps.spec.schema import SweepFile
from planner.sweeps.sweep import Table, dimensions_of
from planner.units import shown_value


def read_derived(
    spec: SweepFile, axes: Sequence[SweepAxis], faults: Faults
) -> dict[str, Expression | Table]:
    """Return the derived values by name, in the order in which they use each other."""
    entries: dict[str, Expression | Table] = {}
    for name, definition in spec.let.items():
        place: KeyPath = ("let", name)
        try:
            if not name.isidentifier() or not name.isascii():
                raise BadValue(f"{name!r} is no name", "letters, digits and _")
            if name in (*(axis.name for axis in axes), *WHOLE_FILES) or _is_known(name):
                raise BadValue(f"{name!r} is a field or column already", "choose another name")
            if isinstance(definition, Mapping):
                entries[name] = _table(name, definition, axes)
            else:
                entries[name] = read_expression(definition)
            names = {axis.name for axis in axes if axis.field is None} | set(entries)
            used = entries[name]
            for other in used.names if isinstance(used, Expression) else (used.by,):
                if other == name or (other in spec.let and other not in entries):
                    raise BadValue(f"{name} uses {other}, which comes after it", "move it up")
                if other not in names:
                    dimension_of_name(other)
            dict(dimensions_of(entries, axes))
        except BadValue as error:
            raise faults.fail(place, error, at_key=True) from None
    return entries


def _table(name: str, fields: Mapping[str, Any], axes: Sequence[SweepAxis]) -> Table:
    by = fields.get("by")
    if not isinstance(by, str):
        fix = "{by: pools.0.accelerator, h100-sxm-80gb: 814}"
        raise BadValue(f"a table by what? {name} has no `by:`", fix)
    rows = {}
    for key, text in fields.items():
        if key != "by":
            rows[key] = read_expression(text).value(_no_names)
    default = rows.pop("default", None)
    if by.endswith(".accelerator"):
        written = {field_text(v) for a in axes for c in a.choices for p, v in c.sets if p == by}
        for key, value in tuple(rows.items()):
            part_name = _catalogue_name(key)
            if written and key not in written and part_name is None:
                message = (
                    f"{shown_value(key)} is no accelerator of the sweep, nor of the catalogue"
                )
                raise BadValue(message, "`" + command("catalog list") + "` shows all names")
            rows[part_name or key] = value
    if not rows:
        raise BadValue("the table is empty", "give a number for every value")
    dimensions = {value.dimension for value in (*rows.values(), *filter(None, [default]))}
    if len(dimensions) > 1:
        raise BadValue("values of several units", "give all of them in the same")
    for axis in axes:
        if axis.name == by and default is None:
            missing = [field_text(v) for v in axis.values if field_text(v) not in rows]
            if missing:
                raise BadValue(f"the table has no {missing[0]}", "add it, or `default:`")
    return Table(by, rows, default)


def read_constraints(
    spec: SweepFile,
    axes: Sequence[SweepAxis],
    derived: Mapping[str, Expression | Table],
    faults: Faults,
) -> tuple[Expression, ...]:
    """Return the constraints, each tried with a value of every unit that it names."""
    dimensions = dict(dimensions_of(derived, axes))
    dimensions |= {axis.name: TEXT for axis in axes if axis.field is None}

    def find(name: str) -> Value:
        dimension = dimensions.get(name)
        return sample_value(dimension_of_name(name) if dimension is None else dimension)

    results = []
    for i, text in enumerate(spec.where):
        try:
            expression = read_expression(text)
            try:
                sample = expression.value(find)
                if not isinstance(sample.content, bool):
                    raise BadValue(
                        f"{shown_value(text)} is neither true nor false",
                        "compare it: ... <= 20 MW",
                    )
            except UnknownValue:
                pass  # a division by zero of sample values
        except BadValue as error:
            raise faults.fail(("where", i), error) from None
        results.append(expression)
    return tuple(results)


def _is_known(name: str) -> bool:
    try:
        dimension_of_name(name)
    except BadValue:
        return False
    return True


def _catalogue_name(name: str) -> str | None:
    """Return the catalogue's name of an accelerator for any of its names; None for others."""
    from hardware.catalogue import UnknownPartError, load_catalogue

    try:
        return load_catalogue().accelerator(name).name
    except UnknownPartError:
        return None


def _no_names(name: str) -> Value:
    raise BadValue(f"{name!r} in a table", "give numbers, with a unit where they have one")
