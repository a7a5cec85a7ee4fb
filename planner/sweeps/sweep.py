"""A sweep: a design over fields of a model, a job and a cluster, and its points."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planner.errors import InputProblem, PlannerError, SpecError, UsageError
from planner.solver.answer.result_parts import calibration_json
from planner.solver.options import SolveOptions
from planner.solver.request import SolveRequest
from planner.solver.unsupported import check_options
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_of_document, model_of_document
from planner.specs.schema import SearchSpec
from planner.specs.search.section import TOGETHER
from planner.specs.yaml.document import Document
from planner.sweeps.axes import SweepAxis, label_of
from planner.sweeps.changes import Change, changed, of_section
from planner.sweeps.designs import Values, grid_points, latin_points
from planner.sweeps.expressions import (
    Expression,
    UnknownValue,
    Value,
    dimension_of_name,
    sample_value,
    value_of_name,
)
from planner.sweeps.families import Family
from planner.sweeps.fields import (
    PARAMS,
    TEXT,
    WHOLE_FILES,
    dimension_in_words,
    field_at,
    field_text,
    section_of,
)
from planner.sweeps.points import Point, failed_names, point_names
from planner.units import parse_count, shown_value

DERIVED = "let"
"""Prefix of the columns of derived values; those of varied fields have `in`."""
_CACHED = 64
"""Inputs kept by what makes them: points of a grid share most of theirs."""


@dataclass(frozen=True)
class Table:
    """A derived value by the value of a field: the die area of each accelerator."""

    by: str
    rows: Mapping[str, Value]
    default: Value | None


@dataclass(frozen=True, eq=False)
class Sweep:
    """A design over fields of a model, a job and a cluster. Can be pickled."""

    sweep_id: str
    """12 hex digits of everything that the rows depend on."""
    name: str
    axes: tuple[SweepAxis, ...]
    options: SolveOptions
    """Of points that vary no option, the model file's `search:` left out; see `options_of`."""
    n_points: int
    """Before constraints."""
    seed: int
    design: str
    time_limit_s: float
    """Of the search of a point, from `search.time_limit_s`; 0 for none."""
    n_samples: int
    listed: tuple[Values, ...]
    """The points of a list."""
    files: Mapping[tuple[str, str], Document]
    """Documents by kind and name: the fixed one has the name ""."""
    family: Family | None
    """Makes the models of `model.params`."""
    fixed: tuple[Change, ...]
    """Fields that are the same for all points."""
    derived: Mapping[str, Expression | Table]
    constraints: tuple[Expression, ...]
    search: SearchSpec | None
    stack: str
    notes: tuple[str, ...]
    """For the reader of a report; no row depends on them."""
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was cached: workers read inputs themselves."""
        return {**self.__dict__, "_cache": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def combinations(self) -> Iterator[Values]:
        """Yield the values of all points in order, constraints not applied."""
        if self.design == "list":
            return iter(self.listed)
        if self.design == "latin":
            return latin_points(self.axes, self.n_samples, self.seed)
        return grid_points(self.axes)

    def points(self) -> Iterator[Point]:
        """Yield the points that keep the constraints, in order, the same every time.

        A combination that makes no valid inputs is a point too, unless a constraint on the varied
        fields alone leaves it out. A sampled combination that came before is left out.
        """
        seen: set[str] = set()
        for index, values in enumerate(self.combinations()):
            point = self.point(index, values)
            if point is None:
                continue
            if self.design == "latin":
                if point.point_id in seen:
                    continue
                seen.add(point.point_id)
            yield point

    def point(self, index: int, values: Values) -> Point | None:
        """Return the point of a combination; None where a constraint leaves it out."""
        try:
            model, cluster = self.inputs_at(values)
            options = self._options(values, model)
        except PlannerError as error:
            if not self._may_hold(values):
                return None
            names = failed_names(values, self.sweep_id)
            return Point(index, values, names[0], names[1], (), names[2], fault=str(error))
        fault = ""
        try:
            if not self._holds(values, model, cluster):
                return None
        except UnknownValue as error:
            fault = f"a constraint cannot be judged: {error}"
        derived = tuple(self._derived(values, model, cluster))
        priced = self._cached("priced", lambda: calibration_json(self.options.calibration))
        names = point_names(model, cluster, options, priced)
        return Point(index, values, names[0], names[1], derived, names[2], fault=fault)

    def inputs(self, point: Point) -> tuple[ModelInput, ClusterInput]:
        """Return the inputs of a point; `PlannerError` where its values make none."""
        result = self.inputs_at(point.values)
        if point.fault:
            raise SpecError(InputProblem(point.fault))
        return result

    def options_of(self, point: Point) -> SolveOptions:
        """Return the options of a point: those that the sweep varies, its own, the model's."""
        return self._options(point.values, self._model(point.values))

    def column_names(self) -> tuple[str, ...]:
        """Return the names of the columns that `columns` gives."""
        cached: tuple[str, ...] = self._cached(
            "columns", lambda: tuple(item["column"] for item in self._inputs_json())
        )
        return cached

    def columns(self, point: Point) -> tuple[tuple[str, float | int | str | bool | None], ...]:
        """Return what a row says of its inputs: name and value, in the order of `column_names`.

        Numbers are in base units. An axis that a listed point does not name is missing.
        """
        entries: dict[str, float | int | str | bool | None] = dict.fromkeys(self.column_names())
        axes = {axis.name: axis for axis in self.axes}
        for name, value in point.values:
            entries[f"in.{name}"] = axes[name].base(value)
            for path, own in axes[name].sets(value):
                if axes[name].field is None and path not in axes:
                    entries[f"in.{path}"] = field_at(path).base(own)
        for name, value in point.derived:
            entries[f"{DERIVED}.{name}"] = value  # type: ignore[assignment]
        return tuple(entries.items())

    def header(self) -> dict[str, Any]:
        """Return what the sweep is, for the head of its file: JSON without clock values."""
        return {
            "sweep_id": self.sweep_id,
            "name": self.name,
            "design": self.design,
            "n_points": self.n_points,
            "seed": self.seed if self.design == "latin" else None,
            "axes": [axis.to_json() for axis in self.axes],
            "inputs": self._inputs_json(),
            "derived": {name: _text_of(rule) for name, rule in self.derived.items()},
            "where": [expression.text for expression in self.constraints],
            "set": {path: value for path, value, _ in self.fixed},
            "model": None if self.family else self._fixed_file("model"),
            "notes": list(self.notes),
            "family": self.family.to_json() if self.family else None,
            "cluster": self._fixed_file("cluster"),
            "options": self.options.to_json(),
            "search": self.search.model_dump(exclude_defaults=True) if self.search else {},
            "calibration": calibration_json(self.options.calibration),
        }

    def why_empty(self) -> str:
        """Return how many combinations each constraint leaves out by itself."""
        return "; ".join(
            f"{shown_value(one.text)} leaves {replace(self, constraints=(one,))._n_kept():,} of"
            f" {self.n_points:,}"
            for one in self.constraints
        )

    def _n_kept(self) -> int:
        combinations = enumerate(self.combinations())
        return sum(self.point(i, values) is not None for i, values in combinations)

    def _fixed_file(self, kind: str) -> dict[str, Any] | None:
        result = self.files.get((kind, ""))
        return None if result is None else {"file": os.path.basename(result.file), **result.data}

    def changes(self, values: Values) -> list[Change]:
        """Return the fields that a combination sets, with those that are the same for all."""
        axes = {axis.name: axis for axis in self.axes}
        own = [
            (path, field_value, f"vary {path}={field_text(field_value)}")
            for name, value in values
            for path, field_value in axes[name].sets(value)
        ]
        varied = {path for path, _, _ in own}
        return [change for change in self.fixed if change[0] not in varied] + own

    def document(self, kind: str, changes: Sequence[Change]) -> Document:
        """Return the model or the cluster with changes; `SpecError` for a missing item."""
        files = [field_text(value) for path, value, _ in changes if path == kind]
        base = self.files[kind, files[-1] if files else ""]
        base = self._sized(base, changes) if kind == "model" else base
        inside = [c for c in of_section(changes, kind) if c[0] not in (kind, PARAMS)]
        return changed(base, [c for c in inside if not c[0].startswith("search")])

    def _sized(self, base: Document, changes: Sequence[Change]) -> Document:
        """Return the model of the family with as many parameters as the changes say."""
        sizes = [value for path, value, _ in changes if path == PARAMS]
        if self.family is None or not sizes:
            return base
        return Document(self.family.document(parse_count(sizes[-1])), base.file)

    def _cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` returns, or raises, once for each key."""
        if key not in self._cache:
            while len(self._cache) >= _CACHED:
                del self._cache[next(iter(self._cache))]
            try:
                self._cache[key] = make()
            except PlannerError as error:
                self._cache[key] = error
        if isinstance(self._cache[key], PlannerError):
            raise self._cache[key]
        return self._cache[key]

    def _key(self, values: Values, kind: str) -> tuple[Any, ...]:
        axes = {axis.name: axis for axis in self.axes}
        own = [
            (name, field_text(value), type(value).__name__)
            for name, value in values
            if any(section_of(path) == kind for path in axes[name].paths)
        ]
        return (kind, *own)

    def _model(self, values: Values) -> ModelInput:
        def read() -> ModelInput:
            return model_of_document(self.document("model", self.changes(values)))

        cached: ModelInput = self._cached(self._key(values, "model"), read)
        return cached

    def inputs_at(self, values: Values) -> tuple[ModelInput, ClusterInput]:
        """Return the inputs of a combination; `PlannerError` where it makes none."""
        model = self._model(values)

        def read() -> ClusterInput:
            return cluster_of_document(self.document("cluster", self.changes(values)))

        cluster: ClusterInput = self._cached(self._key(values, "cluster"), read)
        pool = self.search_at(values, model).pool
        return model, cluster.pool(pool) if pool else cluster

    def search_at(self, values: Values, model: ModelInput) -> SearchSpec:
        """Return what is searched for: varied options, the sweep's, then the model file's."""
        own = self.search.model_dump(exclude_defaults=True) if self.search else {}
        changes = [c for c in self.changes(values) if c[0].startswith("search")]
        if changes:
            document = changed(Document({"search": own}), changes)
            own = document.data["search"] or {}
            own = {key: dict(v) if isinstance(v, Mapping) else v for key, v in own.items()}
        return _over(SearchSpec.model_validate(own), model.search)

    def _options(self, values: Values, model: ModelInput) -> SolveOptions:
        varied = [v for v in values if v[0].startswith("search")]
        key = ("options", *((n, field_text(v)) for n, v in varied), *self._key(values, "model"))

        def read() -> SolveOptions:
            search = self.search_at(values, model)
            return search_options(search, self.stack, self.options)

        cached: SolveOptions = self._cached(key, read)
        return cached

    # ---- constraints and derived values --------------------------------------------------------

    def lookup(
        self, values: Values, inputs: tuple[ModelInput, ClusterInput] | None
    ) -> Callable[[str], Value]:
        """Return what finds the value of a name at a point; `Unknown` where there is none.

        Without inputs only the varied fields and what follows from them is known.
        """
        axes = {axis.name: axis for axis in self.axes}
        set_values = dict(values)

        def find(name: str) -> Value:
            if name in self.derived:
                return self._value(self.derived[name], find, set_values)
            if name in set_values and axes[name].field is None:
                return Value(field_text(set_values[name]), TEXT)
            if inputs is not None and name not in WHOLE_FILES:
                return value_of_name(name, *inputs)
            if name in set_values:
                return Value(axes[name].base(set_values[name]), dimension_of_name(name))
            if inputs is not None:
                return value_of_name(name, *inputs)
            raise UnknownValue(f"{name} is not known")

        return find

    def _value(
        self,
        rule: Expression | Table,
        find: Callable[[str], Value],
        set_values: Mapping[str, object],
    ) -> Value:
        """Return a derived value; a table is read by a value as written, then by what it means."""
        if isinstance(rule, Expression):
            return rule.value(find)
        key = field_text(set_values.get(rule.by))
        if key not in rule.rows:
            key = str(find(rule.by).content)
        result = rule.rows.get(key, rule.default)
        if result is None:
            raise UnknownValue(
                f"the table by {rule.by} has no {shown_value(key)}", "add it, or `default:`"
            )
        return result

    def _holds(self, values: Values, model: ModelInput, cluster: ClusterInput) -> bool:
        find = self.lookup(values, (model, cluster))
        return all(expression.value(find).content for expression in self.constraints)

    def _may_hold(self, values: Values) -> bool:
        """Tell whether no constraint on the varied fields alone leaves a combination out."""
        find = self.lookup(values, None)
        for expression in self.constraints:
            try:
                if not expression.value(find).content:
                    return False
            except UnknownValue:
                continue
        return True

    def _derived(
        self, values: Values, model: ModelInput, cluster: ClusterInput
    ) -> Iterator[tuple[str, object]]:
        find = self.lookup(values, (model, cluster))
        for name, rule in self.derived.items():
            try:
                yield name, self._value(rule, find, dict(values)).content
            except UnknownValue:
                yield name, None

    def _inputs_json(self) -> list[dict[str, str]]:
        """Return column, unit and label of all that `columns` gives."""
        paths = {path: field_at(path).unit for axis in self.axes for path in axis.paths}
        names = {axis.name: paths.get(axis.name, "") for axis in self.axes} | paths
        results = [
            {"column": f"in.{name}", "unit": unit, "label": label_of(name)}
            for name, unit in names.items()
        ]
        for name, dimension in dimensions_of(self.derived, self.axes):
            unit = dimension_in_words(dimension)
            results.append({"column": f"{DERIVED}.{name}", "unit": unit, "label": label_of(name)})
        return results


def _text_of(rule: Expression | Table) -> str:
    return rule.text if isinstance(rule, Expression) else f"a table by {rule.by}"


def _over(search: SearchSpec, section: SearchSpec | None) -> SearchSpec:
    """Return what a sweep searches for, filled up with the model file's own section."""
    if section is None:
        return search
    own = search.model_dump(exclude_defaults=True)
    theirs = section.model_dump(exclude_defaults=True)
    named = {axis for key in ("pin", "only", "max") for axis in own.get(key, {})}
    for key in ("pin", "only", "max"):
        more = {a: v for a, v in theirs.pop(key, {}).items() if a not in named}
        if more or key in own:
            own[key] = {**more, **own.get(key, {})}
    if own.get("objective"):
        theirs.pop("within", None)
    theirs.pop("pareto", None)
    return SearchSpec.model_validate({**theirs, **own})


PLANS = 2
"""Plans of a point: the best and the runner-up."""


def search_options(search: SearchSpec, stack: str, base: SolveOptions | None) -> SolveOptions:
    """Return the options of a search; `UsageError` where they make no sense."""
    if search.pareto:
        fix = "give one objective, and vary what should make the front"
        raise UsageError("a point of a sweep has one best plan", fix)
    request = SolveRequest.of_section(search).model_copy(
        update={
            "stack": stack,
            "top": max(PLANS, search.top or PLANS),
            "calibration": base.own_calibration if base else None,
        }
    )
    result = request.options()
    check_options(result)
    if result.pools == TOGETHER:
        from planner.solver.together.problems import check_together  # 100 ms: several pools

        check_together(result)
    return result


def dimensions_of(
    derived: Mapping[str, Expression | Table], axes: Sequence[SweepAxis]
) -> Iterator[tuple[str, Any]]:
    """Yield the dimension of each derived value; `BadValue` for units that do not match."""
    dimensions: dict[str, Any] = {axis.name: TEXT for axis in axes if axis.field is None}

    def find(name: str) -> Value:
        return sample_value(dimensions[name] if name in dimensions else dimension_of_name(name))

    for name, rule in derived.items():
        if isinstance(rule, Table):
            find(rule.by)
            dimension = next(iter(rule.rows.values())).dimension
        else:
            try:
                dimension = rule.value(find).dimension
            except UnknownValue:
                dimension = ()
        dimensions[name] = dimension
        yield name, dimension
