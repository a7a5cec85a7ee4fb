"""What a sweep file, or `--vary` on the command line, becomes: a `Sweep`.

Every defect of the sweep itself is a `SpecError` before anything is computed; a combination of
values that makes no valid inputs is a point of its own, and becomes a row that says why.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from planner.errors import BadValue, PlannerError, Problem, SpecError, UsageError
from planner.capabilities import check_options
from planner.inputs import (
    ClusterInput,
    ModelInput,
    cluster_of_document,
    example_names,
    model_of_document,
    read_document,
)
from planner.options import SolveOptions
from planner.schemas import SearchSpec
from planner.search_section import section_faults
from planner.solving import asked_options, calibration_json
from planner.sweeping.axes import Axis, BadItem, column_axis, field_axis, label_of
from planner.sweeping.changes import Change, changed, of_section
from planner.sweeping.constraints import (
    Expression,
    Unknown,
    Value,
    dimension_of_name,
    read_expression,
    sample_value,
    value_of_name,
)
from planner.sweeping.designs import (
    Values,
    check_size,
    grid_points,
    grid_size,
    latin_points,
)
from planner.sweeping.families import Family, family_of
from planner.sweeping.fields import (
    DEVICES,
    PARAMS,
    TEXT,
    WHOLE_FILES,
    as_text,
    dimension_in_words,
    field_at,
    section_of,
)
from planner.sweeping.points import Point, failed_names, point_names
from planner.sweeping.sweep_file import SweepFile
from planner.units import parse_count, show
from planner.yamlfile import Document, KeyPath, load_yaml, parse_yaml

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
    axes: tuple[Axis, ...]
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
    reference: str
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
            model, cluster = self._inputs(values)
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
        except Unknown as error:
            fault = f"a constraint cannot be judged: {error}"
        derived = tuple(self._derived(values, model, cluster))
        priced = self._cached("priced", lambda: calibration_json(self.options.calibration))
        names = point_names(model, cluster, options, priced)
        return Point(index, values, names[0], names[1], derived, names[2], fault=fault)

    def inputs(self, point: Point) -> tuple[ModelInput, ClusterInput]:
        """Return the inputs of a point; `PlannerError` where its values make none."""
        found = self._inputs(point.values)
        if point.fault:
            raise SpecError(Problem(point.fault))
        return found

    def options_of(self, point: Point) -> SolveOptions:
        """Return the options of a point: those that the sweep varies, its own, the model's."""
        return self._options(point.values, self._model(point.values))

    def column_names(self) -> tuple[str, ...]:
        """Return the names of the columns that `columns` gives."""
        found: tuple[str, ...] = self._cached(
            "columns", lambda: tuple(item["column"] for item in self._inputs_json())
        )
        return found

    def columns(self, point: Point) -> tuple[tuple[str, float | int | str | bool | None], ...]:
        """Return what a row says of its inputs: name and value, in the order of `column_names`.

        Numbers are in base units. An axis that a listed point does not name is missing.
        """
        found: dict[str, float | int | str | bool | None] = dict.fromkeys(self.column_names())
        axes = {axis.name: axis for axis in self.axes}
        for name, value in point.values:
            found[f"in.{name}"] = axes[name].base(value)
            for path, own in axes[name].sets(value):
                if axes[name].field is None and path not in axes:
                    found[f"in.{path}"] = field_at(path).base(own)
        for name, value in point.derived:
            found[f"{DERIVED}.{name}"] = value  # type: ignore[assignment]
        return tuple(found.items())

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
            "family": self.family.to_json() if self.family else None,
            "cluster": self._fixed_file("cluster"),
            "options": self.options.to_json(),
            "search": self.search.model_dump(exclude_defaults=True) if self.search else {},
            "calibration": calibration_json(self.options.calibration),
        }

    def why_empty(self) -> str:
        """Return how many combinations each constraint leaves out by itself."""
        return "; ".join(
            f"{show(one.text)} leaves {replace(self, constraints=(one,))._n_kept():,} of"
            f" {self.n_points:,}"
            for one in self.constraints
        )

    def _n_kept(self) -> int:
        combinations = enumerate(self.combinations())
        return sum(self.point(i, values) is not None for i, values in combinations)

    def _fixed_file(self, kind: str) -> dict[str, Any] | None:
        found = self.files.get((kind, ""))
        return None if found is None else {"file": os.path.basename(found.file), **found.data}

    def _changes(self, values: Values) -> list[Change]:
        axes = {axis.name: axis for axis in self.axes}
        own = [
            (path, given, f"vary {path}={as_text(given)}")
            for name, value in values
            for path, given in axes[name].sets(value)
        ]
        varied = {path for path, _, _ in own}
        return [change for change in self.fixed if change[0] not in varied] + own

    def _document(self, kind: str, changes: Sequence[Change]) -> Document:
        """Return the document of a point of one kind of file."""
        whole = [as_text(value) for path, value, _ in changes if path == kind]
        base = self.files[kind, whole[-1] if whole else ""]
        base = self._sized(base, changes) if kind == "model" else base
        inside = [c for c in of_section(changes, kind) if c[0] not in (kind, PARAMS)]
        return changed(base, [c for c in inside if not c[0].startswith("search")])

    def _sized(self, base: Document, changes: Sequence[Change]) -> Document:
        """Return the model of the family with as many parameters as the changes say, if they do."""
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
            (name, as_text(value), type(value).__name__)
            for name, value in values
            if any(section_of(path) == kind for path in axes[name].paths)
        ]
        return (kind, *own)

    def _model(self, values: Values) -> ModelInput:
        def read() -> ModelInput:
            return model_of_document(self._document("model", self._changes(values)))

        found: ModelInput = self._cached(self._key(values, "model"), read)
        return found

    def _inputs(self, values: Values) -> tuple[ModelInput, ClusterInput]:
        model = self._model(values)

        def read() -> ClusterInput:
            return cluster_of_document(self._document("cluster", self._changes(values)))

        cluster: ClusterInput = self._cached(self._key(values, "cluster"), read)
        pool = self._search(values, model).pool
        return model, cluster.pool(pool) if pool else cluster

    def _search(self, values: Values, model: ModelInput) -> SearchSpec:
        """Return what is searched for: varied options, the sweep's, then the model file's."""
        own = self.search.model_dump(exclude_defaults=True) if self.search else {}
        changes = [c for c in self._changes(values) if c[0].startswith("search")]
        if changes:
            document = changed(Document({"search": own}), changes)
            own = document.data["search"] or {}
            own = {key: dict(v) if isinstance(v, Mapping) else v for key, v in own.items()}
        return _over(SearchSpec.model_validate(own), model.search)

    def _options(self, values: Values, model: ModelInput) -> SolveOptions:
        varied = [v for v in values if v[0].startswith("search")]
        key = ("options", *((n, as_text(v)) for n, v in varied), *self._key(values, "model"))

        def read() -> SolveOptions:
            search = self._search(values, model)
            return _options(search, self.stack, self.options)

        found: SolveOptions = self._cached(key, read)
        return found

    # ---- constraints and derived values --------------------------------------------------------

    def _lookup(
        self, values: Values, given: tuple[ModelInput, ClusterInput] | None
    ) -> Callable[[str], Value]:
        """Return what finds the value of a name at a point; `Unknown` where there is none.

        Without inputs only the varied fields and what follows from them is known.
        """
        axes = {axis.name: axis for axis in self.axes}
        stated = dict(values)

        def find(name: str) -> Value:
            if name in self.derived:
                return self._value(self.derived[name], find, stated)
            if name in stated and axes[name].field is None:
                return Value(as_text(stated[name]), TEXT)
            if given is not None and name not in WHOLE_FILES:
                return value_of_name(name, *given)
            if name in stated:
                return Value(axes[name].base(stated[name]), dimension_of_name(name))
            if given is not None:
                return value_of_name(name, *given)
            raise Unknown(f"{name} is not known")

        return find

    def _value(
        self,
        rule: Expression | Table,
        find: Callable[[str], Value],
        stated: Mapping[str, object],
    ) -> Value:
        """Return a derived value; a table is read by a value as written, then by what it means."""
        if isinstance(rule, Expression):
            return rule.value(find)
        key = as_text(stated.get(rule.by))
        if key not in rule.rows:
            key = str(find(rule.by).content)
        found = rule.rows.get(key, rule.default)
        if found is None:
            raise Unknown(f"the table by {rule.by} has no {show(key)}", "add it, or `default:`")
        return found

    def _holds(self, values: Values, model: ModelInput, cluster: ClusterInput) -> bool:
        find = self._lookup(values, (model, cluster))
        return all(expression.value(find).content for expression in self.constraints)

    def _may_hold(self, values: Values) -> bool:
        """Tell whether no constraint on the varied fields alone leaves a combination out."""
        find = self._lookup(values, None)
        for expression in self.constraints:
            try:
                if not expression.value(find).content:
                    return False
            except Unknown:
                continue
        return True

    def _derived(
        self, values: Values, model: ModelInput, cluster: ClusterInput
    ) -> Iterator[tuple[str, object]]:
        find = self._lookup(values, (model, cluster))
        for name, rule in self.derived.items():
            try:
                yield name, self._value(rule, find, dict(values)).content
            except Unknown:
                yield name, None

    def _inputs_json(self) -> list[dict[str, str]]:
        """Return column, unit and label of all that `columns` gives."""
        paths = {path: field_at(path).unit for axis in self.axes for path in axis.paths}
        names = {axis.name: paths.get(axis.name, "") for axis in self.axes} | paths
        found = [
            {"column": f"in.{name}", "unit": unit, "label": label_of(name)}
            for name, unit in names.items()
        ]
        for name, dimension in _dimensions(self.derived, self.axes):
            unit = dimension_in_words(dimension)
            found.append({"column": f"{DERIVED}.{name}", "unit": unit, "label": label_of(name)})
        return found


def _text_of(rule: Expression | Table) -> str:
    return rule.text if isinstance(rule, Expression) else f"a table by {rule.by}"


def _over(search: SearchSpec, section: SearchSpec | None) -> SearchSpec:
    """Return what a sweep searches for, filled up with the model file's own section."""
    if section is None:
        return search
    mine = search.model_dump(exclude_defaults=True)
    theirs = section.model_dump(exclude_defaults=True)
    named = {axis for key in ("pin", "only", "max") for axis in mine.get(key, {})}
    for key in ("pin", "only", "max"):
        more = {a: v for a, v in theirs.pop(key, {}).items() if a not in named}
        if more or key in mine:
            mine[key] = {**more, **mine.get(key, {})}
    if mine.get("objective"):
        theirs.pop("within", None)
    theirs.pop("pareto", None)
    return SearchSpec.model_validate({**theirs, **mine})


PLANS = 2
"""Plans of a point: the best and the runner-up."""


def _options(search: SearchSpec, stack: str, base: SolveOptions | None) -> SolveOptions:
    """Return the options of a search; `UsageError` where they make no sense."""
    stated = {
        "pins": search.pin, "only": search.only, "at_most": search.max,
        "framework": search.framework, "allow": tuple(search.allow),
        "objective": search.objective, "within": search.within or 0.0,
        "deadline": search.deadline, "step_limit_s": search.step_limit_s or 0.0, "pareto": (),
        "top": max(PLANS, search.top or PLANS),
    }  # fmt: skip
    found = asked_options(stated, stack, base.own_calibration if base else None)
    check_options(found)
    return found


# ---- reading -------------------------------------------------------------------------------------


def load_sweep(path: str | os.PathLike[str], more: Mapping[str, Any] | None = None) -> Sweep:
    """Read a sweep file; `more` is what options of the command line add or put in its place.

    Files are looked for beside the sweep file, then from the working folder on. Raises `SpecError`
    with file and line.
    """
    document = load_yaml(path)
    if not isinstance(document.data, Mapping):
        message = f"expected a sweep file, got {show(document.data)}"
        raise SpecError(document.problem((), message, "see examples/sweeps/"))
    if more:
        document = _with_options(document, more)
    return _Reader(document, Path(os.fspath(path)).parent).read()


def sweep_from_dict(data: Mapping[str, Any]) -> Sweep:
    """Read a sweep from Python data with the structure of a sweep file."""
    return _Reader(Document(dict(data)), Path()).read()


def sweep_from_options(
    model: object, cluster: object, vary: Sequence[str], more: Mapping[str, Any] | None = None
) -> Sweep:
    """Return the sweep of `planner sweep MODEL CLUSTER --vary PATH=VALUES ...`.

    `model` and `cluster` are files, examples or dicts; `more` holds further sections of a sweep
    file. Raises `SpecError` and `UsageError`.
    """
    data: dict[str, Any] = {"model": model, "cluster": cluster}
    return _Reader(_with_options(Document(data), {**(more or {}), "vary": vary}), Path()).read()


def _with_options(document: Document, more: Mapping[str, Any]) -> Document:
    """Return a sweep with what options say in the place of what the file says."""
    data, overrides = dict(document.data), dict(document.overrides)
    for key, given in more.items():
        if key == "vary":
            axes = dict(data.get("vary") or {})
            for text in given:
                path, values = parse_vary(text)
                if ("vary", path) in overrides:
                    fix = "list all values behind one --vary"
                    raise UsageError(f"--vary: {path} is given twice", fix)
                axes[path] = values
                overrides["vary", path] = f"--vary {text}"
            if axes:
                data["vary"] = axes
        elif key == "set":
            data["set"] = dict(data.get("set") or {})
            for path, text in given:
                data["set"][path] = _scalar(str(text), f"--set {path}={text}")
                overrides["set", path] = f"--set {path}={text}"
        elif key == "search":
            mine = dict(data.get("search") or {})
            for name, value in given.items():
                inner = isinstance(value, Mapping) and isinstance(mine.get(name), Mapping)
                mine[name] = {**mine[name], **value} if inner else value
                overrides["search", name] = f"--{name.replace('_', '-').removesuffix('-s')}"
            data["search"] = mine
        elif key == "where":
            stated = data.get("where") or []
            stated = stated if isinstance(stated, list) else [stated]
            data["where"] = [*stated, *given]
            for i, text in enumerate(given):
                overrides["where", len(stated) + i] = f"--where {show(text)}"
        else:
            data[key] = given
            overrides[(key,)] = f"--{key} {given}"
    return replace(document, data=data, overrides=overrides)


def parse_vary(text: str) -> tuple[str, object]:
    """Return the field and the values of `PATH=a,b` or `PATH=LOW..HIGH*k`."""
    path, equals, values = text.partition("=")
    if not equals or not path.strip():
        raise UsageError(
            f"--vary: {text!r} is not of the form PATH=VALUES",
            "--vary pools.0.nodes=32,64,128 or --vary 'pools.0.nodes=32..512*2'",
        )
    option = f"--vary {text}"
    items = [item.strip() for item in _parts(values)]
    if not any(items):
        return path.strip(), []
    if "" in items:
        raise UsageError(f"--vary {path.strip()}: an empty value in {values!r}", "drop the comma")
    return path.strip(), [_scalar(item, option) for item in items]


def _parts(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += char
    return parts


def _scalar(text: str, option: str) -> object:
    return parse_yaml(text, option).data if text.strip() else None


def _dimensions(
    derived: Mapping[str, Expression | Table], axes: Sequence[Axis]
) -> Iterator[tuple[str, Any]]:
    """Yield the dimension of each derived value; `BadValue` for units that do not match."""
    known: dict[str, Any] = {axis.name: TEXT for axis in axes if axis.field is None}

    def find(name: str) -> Value:
        return sample_value(known[name] if name in known else dimension_of_name(name))

    for name, rule in derived.items():
        if isinstance(rule, Table):
            find(rule.by)
            dimension = next(iter(rule.rows.values())).dimension
        else:
            try:
                dimension = rule.value(find).dimension
            except Unknown:
                dimension = ()
        known[name] = dimension
        yield name, dimension


class _Reader:
    """Turns one document into a sweep; every method raises `SpecError` with the place."""

    def __init__(self, document: Document, folder: Path) -> None:
        self.document = document
        self.folder = folder

    def read(self) -> Sweep:
        from planner._faults import validate

        spec = validate(SweepFile, self.document)
        axes, listed = self._axes(spec)
        family, models = self._family(spec, axes)
        files = {**self._files(spec, axes), **models}
        fixed = self._fixed(spec, axes)
        design = self._design(spec, axes)
        derived = self._derived(spec, axes)
        constraints = self._constraints(spec, axes, derived)
        options = self._base_options(spec)
        n_points = self._size(spec, design, axes, listed)
        name = spec.name or _plain_name(self.document.file) or "sweep"
        sweep = Sweep(
            sweep_id="",
            name=name,
            axes=axes,
            options=options,
            n_points=n_points,
            seed=spec.seed,
            design=design,
            time_limit_s=(spec.search.time_limit_s if spec.search else None) or 0.0,
            n_samples=spec.samples or 0,
            listed=listed,
            files=files,
            family=family,
            fixed=fixed,
            derived=derived,
            constraints=constraints,
            search=spec.search,
            stack=spec.stack,
            reference=spec.reference,
        )
        self._try(sweep)
        return replace(sweep, sweep_id=_sweep_id(sweep))

    def _fail(self, path: KeyPath, error: BadValue, *, at_key: bool = False) -> SpecError:
        problem = self.document.problem(path, error.message, error.fix, at_key=at_key)
        return SpecError(problem)

    def _say(self, path: KeyPath, message: str, fix: str = "") -> SpecError:
        return SpecError(self.document.problem(path, message, fix, at_key=True))

    def _axes(self, spec: SweepFile) -> tuple[tuple[Axis, ...], tuple[Values, ...]]:
        axes: list[Axis] = []
        for path, given in spec.vary.items():
            place: KeyPath = ("vary", path)
            try:
                axis = field_axis(path, given)
            except BadItem as error:
                inner = place if error.place is None else (*place, error.place)
                raise self._fail(inner, error) from None
            except BadValue as error:
                raise self._fail(place, error, at_key=True) from None
            axes.append(axis)
        axes += [self._column(name, groups) for name, groups in spec.together.items()]
        listed = self._listed(spec, axes) if spec.points is not None else ()
        if listed:
            axes = self._axes_of_list(listed, axes)
        self._check_axes(axes)
        return tuple(axes), listed

    def _column(self, name: str, groups: object) -> Axis:
        place: KeyPath = ("together", name)
        if not isinstance(groups, Mapping) or not groups:
            message = f"expected values by name, each with its fields, got {show(groups)}"
            raise self._say(place, message, "such as {h100: {pools.0.nodes: 8}, ...}")
        for label, fields in groups.items():
            if not isinstance(fields, Mapping) or not fields:
                message = f"expected fields and their values, got {show(fields)}"
                raise self._say((*place, label), message, "such as {pools.0.nodes: 8}")
            for path, value in fields.items():
                try:
                    field_at(path).check(value)
                except BadValue as error:
                    raise self._fail((*place, label, path), error, at_key=True) from None
        axis = column_axis(name, groups)
        for label, fields in groups.items():
            if missing := [path for path in axis.paths if path not in fields]:
                message = f"does not say {', '.join(missing)}, which others of {name} do"
                fix = "every value of a column sets the same fields; null is the default"
                raise self._say((*place, label), message, fix)
        return axis

    def _listed(self, spec: SweepFile, columns: Sequence[Axis]) -> tuple[Values, ...]:
        named = {axis.name: axis for axis in columns}
        if spec.vary:
            raise self._say(("points",), "stands beside `vary`", "keep one of them")
        if not spec.points:
            raise self._say(("points",), "has no points", "list at least one")
        found: list[Values] = []
        for i, point in enumerate(spec.points):
            for name, value in point.items():
                try:
                    if name in named:
                        named[name].sets(value)
                    else:
                        field_at(name).check(value)
                except StopIteration:
                    known = ", ".join(map(str, named[name].values))
                    message = f"{name} has no value {show(value)}"
                    raise self._say(("points", i, name), message, f"known: {known}") from None
                except BadValue as error:
                    raise self._fail(("points", i, name), error, at_key=True) from None
            found.append(tuple(point.items()))
        keys = [str(sorted((n, as_text(v)) for n, v in values)) for values in found]
        for i, key in enumerate(keys):
            if key in keys[:i]:
                message = f"the same point as item {keys.index(key)}"
                raise self._say(("points", i), message, "list every point once")
        return tuple(found)

    def _axes_of_list(self, listed: Sequence[Values], columns: Sequence[Axis]) -> list[Axis]:
        """Return an axis for each field that a point of the list names, with the values there."""
        values: dict[str, list[object]] = {}
        for point in listed:
            for name, value in point:
                if value not in values.setdefault(name, []):
                    values[name].append(value)
        named = {axis.name: axis for axis in columns}
        found: list[Axis] = []
        for name, items in values.items():
            if name in named:
                found.append(named[name])
                continue
            known = field_at(name)
            unlike: dict[object, object] = {}
            for item in items:
                unlike.setdefault(known.base(item), item)
            axis = field_axis(name, list(unlike.values()))
            found.append(axis)
        return found

    def _check_axes(self, axes: Sequence[Axis]) -> None:
        if not axes:
            fix = "add `vary:` (--vary PATH=VALUES), `together:` or `points:`"
            raise SpecError(self.document.problem((), "the sweep varies nothing", fix))
        owner: dict[str, str] = {}
        for axis in axes:
            place: KeyPath = ("together" if axis.field is None else "vary", axis.name)
            for path in axis.paths:
                if path in owner:
                    message = f"{path} is varied by {owner[path]} and by {axis.name}"
                    raise self._say(place, message, "vary every field once")
                owner[path] = axis.name
            for choice in axis.choices:
                for path, value in choice.sets:
                    self._check_part(place, path, value)
        for path in owner:
            rival = f"{path.rpartition('.')[0]}.{'nodes' if path.endswith(DEVICES) else DEVICES}"
            if path.startswith("pools.") and path.endswith(f".{DEVICES}") and rival in owner:
                message = f"{path} and {rival} say the same"
                raise self._say(("vary", path), message, "vary one of them")

    def _check_part(self, place: KeyPath, path: str, value: object) -> None:
        """Refuse the name of a part that the catalogue does not have."""
        from hardware.catalogue import UnknownPartError, load_catalogue

        key = path.rpartition(".")[2]
        name = value.get("like") if isinstance(value, Mapping) else value
        catalogue = load_catalogue()
        finders: Mapping[str, Callable[[str], object]] = {
            "accelerator": catalogue.accelerator, "like": catalogue.accelerator,
            "instance": catalogue.platform, "nic": catalogue.link,
        }  # fmt: skip
        if not path.startswith("pools.") or key not in finders or not isinstance(name, str):
            return
        try:
            finders[key](name)
        except UnknownPartError as error:
            close = " or ".join(error.suggestions)
            guess = f"did you mean {close}? " if close else ""
            noun = {"like": "accelerator", "nic": "link"}.get(key, key)
            fix = f"{guess}`planner catalog list` shows all names"
            raise self._say(place, f"unknown {noun} {show(name)}", fix) from None

    def _files(
        self, spec: SweepFile, axes: Sequence[Axis]
    ) -> dict[tuple[str, str], Document]:
        """Return every model and cluster file that the sweep names."""
        found: dict[tuple[str, str], Document] = {}
        varied = {path: axis for axis in axes for path in axis.paths if path in WHOLE_FILES}
        for kind in WHOLE_FILES:
            stated = getattr(spec, kind)
            if kind == "model" and spec.family is not None:
                continue
            if stated is None and kind not in varied:
                fix = f"name a {kind} file or an example, such as {example_names(kind)[0]}"  # type: ignore[arg-type]
                raise self._say((kind,), f"no `{kind}:`", fix)
            if stated is not None:
                found[kind, ""] = self._document(kind, stated, (kind,))
            if kind in varied:
                axis = varied[kind]
                for i, choice in enumerate(axis.choices):
                    value = dict(choice.sets)[kind]
                    place: KeyPath = ("vary", kind, i)
                    if axis.field is None:
                        place = ("together", axis.name, str(choice.value), kind)
                    found[kind, as_text(value)] = self._document(kind, value, place)
                if stated is None and self._some_point_lacks(spec, kind):
                    raise self._say((kind,), f"no `{kind}:`, and not every point names one")
        return found

    def _family(
        self, spec: SweepFile, axes: Sequence[Axis]
    ) -> tuple[Family | None, dict[tuple[str, str], Document]]:
        """Return the family of the sweep with its documents, and try all sizes that are listed."""
        place: KeyPath = ("family",)
        axis = next((axis for axis in axes if PARAMS in axis.paths), None)
        varied = {path for axis in axes for path in axis.paths} | set(spec.set)
        if spec.family is None:
            if PARAMS in varied:
                fix = "add `family: {models: [llama3-8b, llama3-70b, llama3-405b]}`"
                raise self._say(("vary", PARAMS), f"{PARAMS} without `family:`", fix)
            return None, {}
        if PARAMS not in varied:
            fix = f"vary {PARAMS}, such as [30B, 120B, 1T]"
            raise self._say(place, "a family without sizes", fix)
        if spec.model is not None or "model" in varied:
            raise self._say(place, "stands beside `model`", "keep one of them")
        documents = [
            self._document("model", source, ("family", "models", i))
            for i, source in enumerate(spec.family.models)
        ]
        try:
            family = family_of([model_of_document(document) for document in documents])
        except SpecError as error:
            first = error.problems[0]
            raise self._say(("family", "models"), first.message, first.fix) from None
        sizes = [v for c in (axis.choices if axis else ()) for p, v in c.sets if p == PARAMS]
        if axis is not None and axis.span is not None:
            sizes = [axis.span.low, axis.span.high]
        for size in [*sizes, *([spec.set[PARAMS]] if PARAMS in spec.set else [])]:
            try:
                family.document(parse_count(size))
            except SpecError as error:
                first = error.problems[0]
                key = "set" if PARAMS in spec.set else "vary" if axis and axis.field else "together"
                where = (key, axis.name if axis and key == "together" else PARAMS)
                raise self._say(where, first.message, first.fix) from None
        files = {("family", str(i)): document for i, document in enumerate(documents)}
        return family, {("model", ""): documents[0], **files}

    def _some_point_lacks(self, spec: SweepFile, kind: str) -> bool:
        return any(kind not in point for point in spec.points or ())

    def _document(self, kind: Any, source: Any, place: KeyPath) -> Document:
        if isinstance(source, str) and not os.path.isabs(source):
            beside = self.folder / source
            if source not in example_names(kind) and beside.exists():
                source = os.fspath(beside)
        try:
            # Rows name files in their reasons: the same on every machine.
            found = read_document(source, kind)
            return replace(found, file=os.path.basename(found.file))
        except SpecError as error:
            first = error.problems[0]
            if first.line or isinstance(source, Mapping):
                raise
            file = first.file or show(source)
            message = first.message if file in first.message else f"{file}: {first.message}"
            raise self._say(place, message, first.fix) from None

    def _fixed(self, spec: SweepFile, axes: Sequence[Axis]) -> tuple[Change, ...]:
        varied = {path for axis in axes for path in axis.paths} if spec.points is None else set()
        for path, value in spec.set.items():
            place: KeyPath = ("set", path)
            if path in varied:
                raise self._say(place, "is set and varied", "keep one of them")
            try:
                known = field_at(path)
                if path in WHOLE_FILES or path.startswith("search"):
                    section = path.split(".")[0]
                    raise BadValue(f"{path} is not set here", f"state it under `{section}:`")
                known.check(value)
            except BadValue as error:
                raise self._fail(place, error, at_key=True) from None
            self._check_part(place, path, value)
        origin = self.document.file or "set"
        return tuple(
            (path, value, self.document.overrides.get(("set", path), f"{origin}: set {path}"))
            for path, value in spec.set.items()
        )

    def _design(self, spec: SweepFile, axes: Sequence[Axis]) -> str:
        default = "list" if spec.points is not None else "grid"
        if spec.design is None and spec.points is None and spec.samples is not None:
            default = "latin"
        design = spec.design or default
        if (design == "list") != (spec.points is not None):
            message = f"a design {design!r} {'without' if design == 'list' else 'with'} `points:`"
            fix = "list the points, or vary fields in a grid" if design == "list" else "drop one"
            raise self._say(("design",), message, fix)
        if design == "latin" and spec.samples is None:
            fix = "add `samples: 200` (--samples 200)"
            raise self._say(("samples",), "a Latin hypercube without a number of points", fix)
        if design != "latin" and spec.samples is not None:
            fix = "add `design: latin` (--design latin), or drop it"
            raise self._say(("samples",), f"belongs to a Latin hypercube, not to a {design}", fix)
        for axis in axes:
            if axis.span is not None and design != "latin":
                message = f"{axis.name} is continuous, and a {design} needs single values"
                fix = "add a step (LOW..HIGH*2, LOW..HIGH+64), or --design latin --samples N"
                raise self._say(("vary", axis.name), message, fix)
        return design

    def _size(
        self, spec: SweepFile, design: str, axes: Sequence[Axis], listed: Sequence[Values]
    ) -> int:
        n_points = {"latin": spec.samples or 0, "list": len(listed)}.get(design, grid_size(axes))
        try:
            check_size(n_points)
        except BadValue as error:
            raise self._fail(("vary",), error, at_key=True) from None
        return n_points

    def _derived(self, spec: SweepFile, axes: Sequence[Axis]) -> dict[str, Expression | Table]:
        found: dict[str, Expression | Table] = {}
        for name, given in spec.let.items():
            place: KeyPath = ("let", name)
            try:
                if not name.isidentifier() or not name.isascii():
                    raise BadValue(f"{name!r} is no name", "letters, digits and _")
                if name in (*(axis.name for axis in axes), *WHOLE_FILES) or _is_known(name):
                    raise BadValue(f"{name!r} is a field or column already", "choose another name")
                if isinstance(given, Mapping):
                    found[name] = self._table(name, given, axes)
                else:
                    found[name] = read_expression(given)
                known = {axis.name for axis in axes if axis.field is None} | set(found)
                used = found[name]
                for other in used.names if isinstance(used, Expression) else (used.by,):
                    if other == name or (other in spec.let and other not in found):
                        raise BadValue(f"{name} uses {other}, which comes after it", "move it up")
                    if other not in known:
                        dimension_of_name(other)
                dict(_dimensions(found, axes))
            except BadValue as error:
                raise self._fail(place, error, at_key=True) from None
        return found

    def _table(self, name: str, given: Mapping[str, Any], axes: Sequence[Axis]) -> Table:
        by = given.get("by")
        if not isinstance(by, str):
            fix = "{by: pools.0.accelerator, h100-sxm-80gb: 814}"
            raise BadValue(f"a table by what? {name} has no `by:`", fix)
        rows = {}
        for key, text in given.items():
            if key != "by":
                rows[key] = read_expression(text).value(_no_names)
        default = rows.pop("default", None)
        if by.endswith(".accelerator"):
            rows |= {_catalogue_name(key): value for key, value in rows.items()}
        if not rows:
            raise BadValue("the table is empty", "give a number for every value")
        dimensions = {value.dimension for value in (*rows.values(), *filter(None, [default]))}
        if len(dimensions) > 1:
            raise BadValue("values of several units", "give all of them in the same")
        for axis in axes:
            if axis.name == by and default is None:
                missing = [as_text(v) for v in axis.values if as_text(v) not in rows]
                if missing:
                    raise BadValue(f"the table has no {missing[0]}", "add it, or `default:`")
        return Table(by, rows, default)

    def _constraints(
        self, spec: SweepFile, axes: Sequence[Axis], derived: Mapping[str, Expression | Table]
    ) -> tuple[Expression, ...]:
        dimensions = dict(_dimensions(derived, axes))
        dimensions |= {axis.name: TEXT for axis in axes if axis.field is None}

        def find(name: str) -> Value:
            known = dimensions.get(name)
            return sample_value(dimension_of_name(name) if known is None else known)

        found = []
        for i, text in enumerate(spec.where):
            try:
                expression = read_expression(text)
                try:
                    sample = expression.value(find)
                    if not isinstance(sample.content, bool):
                        raise BadValue(
                            f"{show(text)} is neither true nor false",
                            "compare it: ... <= 20 MW",
                        )
                except Unknown:
                    pass  # a division by zero of sample values
            except BadValue as error:
                raise self._fail(("where", i), error) from None
            found.append(expression)
        return tuple(found)

    def _base_options(self, spec: SweepFile) -> SolveOptions:
        from planner.solving import anchored_options, own_calibration

        search = spec.search or SearchSpec()
        if search.pareto:
            fix = "give one `objective:`, and vary what should make the front"
            raise self._say(("search", "pareto"), "a point of a sweep has one best plan", fix)
        if faults := section_faults(search):
            raise SpecError([self.document.problem(f.path, f.message, f.fix) for f in faults])
        calibration = spec.calibration
        if calibration and not os.path.isabs(calibration):
            beside = self.folder / calibration
            calibration = os.fspath(beside) if beside.exists() else calibration
        try:
            found = _options(search, spec.stack, SolveOptions(own_calibration=own_calibration(calibration)))
            return anchored_options(found, spec.reference)[0]
        except UsageError as error:
            raise self._say(("search",), error.message, error.fix) from None

    def _try(self, sweep: Sweep) -> None:
        """Refuse what is wrong at every point: items of lists that do not exist, options."""
        first = next(sweep.combinations())
        changes = [
            (f"{path.removesuffix(DEVICES)}nodes", 1, origin)
            if path.endswith(f".{DEVICES}")
            else (path, value, origin)
            for path, value, origin in sweep._changes(first)
        ]
        for kind in WHOLE_FILES:
            if any(path == kind for path, _, _ in changes):
                continue
            for change in of_section(changes, kind):
                outer = [c for c in changes if change[0].startswith(f"{c[0]}.")]
                try:
                    sweep._document(kind, [*outer, change])
                except SpecError as error:
                    problem = error.problems[0]
                    place = self._place_of(sweep, change[0])
                    raise self._say(place, problem.message, problem.fix) from None
        for axis in sweep.axes:
            if not axis.name.startswith("search"):
                continue
            for choice in axis.choices:
                try:
                    values = ((axis.name, choice.value),)
                    spec = sweep._search(values, _NO_MODEL)
                    if faults := section_faults(spec):
                        raise UsageError(faults[0].message, faults[0].fix)
                    _options(spec, sweep.stack, sweep.options)
                except UsageError as error:
                    raise self._say(("vary", axis.name), error.message, error.fix) from None
        self._check_known(sweep)

    def _place_of(self, sweep: Sweep, path: str) -> KeyPath:
        for axis in sweep.axes:
            if path in axis.paths:
                return ("together" if axis.field is None else "vary", axis.name)
        return ("set", path)

    def _check_known(self, sweep: Sweep) -> None:
        """Refuse a constraint on a figure that no point can have: a price that nobody states."""
        if not sweep.constraints:
            return
        varied = [path for axis in sweep.axes for path in axis.paths]
        for index, values in islice(enumerate(sweep.combinations()), 20):
            try:
                given = sweep._inputs(values)
            except PlannerError:
                continue
            find = sweep._lookup(values, given)
            for i, expression in enumerate(sweep.constraints):
                for name in expression.names:
                    if name in sweep.derived or any(_moves(path, name) for path in varied):
                        continue
                    try:
                        find(name)
                    except Unknown as error:
                        raise self._fail(("where", i), error) from None
            return


def _moves(path: str, name: str) -> bool:
    """Tell whether a varied field may decide whether a figure is known."""
    if path in WHOLE_FILES:
        return True
    whole_part = path.endswith((".accelerator", ".instance", ".like"))
    return name == path or name.startswith(f"{path}.") or path.startswith(name) or whole_part


def _is_known(name: str) -> bool:
    try:
        dimension_of_name(name)
    except BadValue:
        return False
    return True


def _catalogue_name(name: str) -> str:
    """Return the catalogue's name of an accelerator for any of its names; else the name itself."""
    from hardware.catalogue import UnknownPartError, load_catalogue

    try:
        return load_catalogue().accelerator(name).name
    except UnknownPartError:
        return name


def _no_names(name: str) -> Value:
    raise BadValue(f"{name!r} in a table", "give numbers, with a unit where they have one")


class _NoModel:
    search = None


_NO_MODEL: Any = _NoModel()


def _plain_name(file: str) -> str:
    return Path(file).stem if file else ""


def _sweep_id(sweep: Sweep) -> str:
    from planner.identity import content_id

    texts = [[list(key), doc.data] for key, doc in sorted(sweep.files.items())]
    listed = [[[name, value] for name, value in values] for values in sweep.listed]
    return content_id("sweep", sweep.header(), sweep.n_samples, texts, listed, sweep.stack)
