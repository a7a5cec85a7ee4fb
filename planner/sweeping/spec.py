"""What a sweep file, or `--vary` on the command line, becomes: a `Sweep`.

Every defect of the sweep itself is a `SpecError` before anything is computed; a combination of
values that makes no valid inputs is a point of its own, and becomes a row that says why.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from planner.calibration.file import Calibration
from planner.calibration.reference import Reference
from planner.errors import BadValue, PlannerError, Problem, SpecError, UsageError
from planner.inputs import (
    example_content,
    example_names,
    example_sweeps,
    model_of_document,
    read_document,
)
from planner.options import SolveOptions
from planner.pool_fields import DEVICES
from planner.schemas import SearchSpec
from planner.search_section import section_faults
from planner.sweeping.axes import Axis, BadItem, column_axis, field_axis
from planner.sweeping.changes import Change, of_section
from planner.sweeping.constraints import (
    Expression,
    Unknown,
    Value,
    dimension_of_name,
    read_expression,
    sample_value,
)
from planner.sweeping.designs import (
    Values,
    check_size,
    grid_size,
)
from planner.sweeping.families import Family, family_of
from planner.sweeping.fields import (
    PARAMS,
    TEXT,
    WHOLE_FILES,
    as_text,
    field_at,
)
from planner.sweeping.sweep import Sweep, Table, dimensions_of, search_options
from planner.sweeping.sweep_file import SweepFile
from planner.units import parse_count, show
from planner.wording import command, option
from planner.yamlfile import Document, KeyPath, load_yaml, parse_yaml


def load_sweep(path: str | os.PathLike[str], more: Mapping[str, Any] | None = None) -> Sweep:
    """Read a sweep file, or a packaged one by name.

    `more` is what options of the command line add or put in its place.

    Files are looked for beside the sweep file, then from the working folder on. Raises `SpecError`
    with file and line.
    """
    return _Reader(*_sweep_document(path, more)).read()


def _sweep_document(
    path: str | os.PathLike[str], more: Mapping[str, Any] | None = None
) -> tuple[Document, Path]:
    """Return what a sweep file and options say, and the folder of the file."""
    name = os.fspath(path)
    if not Path(name).exists() and {name} & {*example_names("model"), *example_names("cluster")}:
        message = f"{name!r} is an example of a model or a cluster, not a sweep file"
        fix = f"planner sweep {name} CLUSTER --vary PATH=VALUES"
        if name in example_names("cluster"):
            fix = f"planner sweep MODEL {name} --vary PATH=VALUES"
        raise SpecError(Problem(message, fix))
    packaged = example_sweeps()
    bare = name == os.path.basename(name) and not name.endswith((".yaml", ".yml"))
    if bare and not Path(name).exists():
        if name not in packaged:
            message = f"no file and no example sweep called {name!r}"
            raise SpecError(Problem(message, f"example sweeps: {', '.join(packaged)}"))
        path = packaged[name]
    document = load_yaml(path)
    if not isinstance(document.data, Mapping):
        message = f"expected a sweep file, got {show(document.data)}"
        raise SpecError(document.problem((), message, "see examples/sweeps/"))
    if more:
        document = _with_options(document, more)
    return document, Path(os.fspath(path)).parent


def sweep_summary(path: str | os.PathLike[str]) -> str:
    """Check a sweep file and return what it is in a few lines; `SpecError` for a wrong one."""
    sweep = load_sweep(path)
    less = ", before constraints" if sweep.constraints else ""
    head, *axes = described(sweep)
    lines = [f"{os.fspath(path)}: a sweep file, no problems found", f"  {head}"]
    lines += [f"  {axis}" for axis in axes]
    return "\n".join([*lines, f"  points: {sweep.n_points:,}{less}"])


def described(sweep: Sweep) -> list[str]:
    """Return a line on the design of a sweep, and one on each axis."""
    lines = [f"sweep {sweep.name} ({sweep.sweep_id}): {_design(sweep)}"]
    lines += [f"  {axis.name}: {_values(axis)}" for axis in sweep.axes]
    return lines + [f"  note: {note}" for note in remarks(sweep)]


_OF_ALL_POINTS = {
    "search.pareto": "a point of a sweep has one best plan: vary search.objective",
    "search.time_limit_s": "give one limit for all points, under `search:` or with --point-limit",
    "search.top": "a row has the best plan and the runner-up",
}
"""Options of a search that are the same for all points, and what to do instead."""
_OF_A_PART = ("accelerators_per_node", "scale_up_domain", "nic", "nics_per_node")
"""Fields of a pool whose defaults follow from its accelerator."""


def remarks(sweep: Sweep) -> list[str]:
    """Return a line on everything in the files that does other than a reader may expect."""
    return [*stays(sweep), *left_aside(sweep)]


def left_aside(sweep: Sweep) -> list[str]:
    """Return a line on options in the `search:` of model files that sweeps do not follow."""
    found: dict[str, None] = {}
    for (kind, _), document in sweep.files.items():
        section = document.data.get("search") if kind == "model" else None
        for name in ("time_limit_s", "pareto"):
            if isinstance(section, Mapping) and section.get(name):
                found[
                    f"search.{name} of {document.file or 'the model'} is left aside:"
                    f" {_OF_ALL_POINTS[f'search.{name}']}"
                ] = None
    return list(found)


def stays(sweep: Sweep) -> list[str]:
    """Return a line on fields of a pool that stay while its whole accelerator changes."""
    cluster = sweep.files.get(("cluster", ""))
    paths = {path for axis in sweep.axes for path in axis.paths}
    decided = paths | {path for path, _, _ in sweep.fixed}
    found = []
    for axis in sweep.axes:
        for path in axis.paths:
            if cluster is None or not path.startswith("pools.") or path.count(".") != 2:
                continue
            pool, key = path.rpartition(".")[::2]
            values = {as_text(v) for c in axis.choices for p, v in c.sets if p == path}
            stated = cluster.data["pools"][int(pool.partition(".")[2])]
            kept = [k for k in _OF_A_PART if k in stated and f"{pool}.{k}" not in decided]
            if key in ("accelerator", "instance") and len(values) > 1 and kept:
                shown = ", ".join(f"{k} {stated[k]}" for k in kept)
                found.append(
                    f"{pool} keeps {shown} for every {key}, as its file says; `set:` them to null"
                    f" (--set {pool}.{kept[0]}=null) for each part's own"
                )
    return found


def _design(sweep: Sweep) -> str:
    if sweep.design == "latin":
        return f"Latin hypercube of {sweep.n_samples:,}, seed {sweep.seed}"
    return {"grid": "grid", "list": "list"}[sweep.design]


def _values(axis: Axis) -> str:
    if axis.span is not None:
        low, high = axis.span.low, axis.span.high
        unit = f" {axis.span.unit}" if axis.span.unit else ""
        scale = ", log" if axis.span.log else ""
        return f"{low:g} to {high:g}{unit}{scale}"
    shown = [as_text(value) for value in axis.values]
    text = ", ".join(shown if len(shown) <= 8 else [*shown[:4], "...", *shown[-2:]])
    return f"{len(shown)} value{'s' * (len(shown) != 1)}: {text}"


def sweep_from_dict(
    data: Mapping[str, Any],
    *,
    open_files: bool = True,
    calibration: Calibration | None = None,
    reference: Reference = "",
) -> Sweep:
    """Read a sweep from Python data with the structure of a sweep file.

    Without `open_files` models and clusters are examples by name or what their files hold, and a
    calibration or a reference in the data is refused: `calibration` is the one to price with, and
    `reference` has the runs that anchor it.
    """
    reader = _Reader(Document(dict(data)), Path() if open_files else None)
    reader.calibration, reader.reference = calibration, reference
    return reader.read()


def sweep_from_text(text: str, file: str = "") -> tuple[Sweep, dict[str, Any]]:
    """Read a sweep from the text of a sweep file, and return it with what the text says.

    `file` is the name that messages give. Nothing is opened, as in `sweep_from_dict`.
    """
    document = parse_yaml(text, file)
    if not isinstance(document.data, Mapping):
        message = f"expected a sweep file, got {show(document.data)}"
        raise SpecError(document.problem((), message, "see examples/sweeps/"))
    return _Reader(document, None).read(), dict(document.data)


def sweep_from_options(
    model: object, cluster: object, vary: Sequence[str], more: Mapping[str, Any] | None = None
) -> Sweep:
    """Return the sweep of `planner sweep MODEL CLUSTER --vary PATH=VALUES ...`.

    `model` and `cluster` are files, examples or dicts; `more` holds further sections of a sweep
    file. Raises `SpecError` and `UsageError`.
    """
    return _Reader(_options_document(model, cluster, vary, more), Path()).read()


def _options_document(
    model: object, cluster: object, vary: Sequence[str], more: Mapping[str, Any] | None
) -> Document:
    data: dict[str, Any] = {"model": model, "cluster": cluster}
    return _with_options(Document(data), {**(more or {}), "vary": vary})


def sweep_content(files: Sequence[str], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep as `sweep_from_dict` reads it without opening files.

    `files` are a sweep file, or a model and a cluster. Model and cluster become what their files
    hold; `UsageError` where others are named than by an example. `calibration` and `reference`
    stay paths, those that can be opened here.
    """
    if len(files) == 1:
        document, folder = _sweep_document(files[0], more)
    else:
        given = {key: value for key, value in more.items() if key != "vary"}
        model, cluster = files
        document = _options_document(model, cluster, more.get("vary", ()), given)
        folder = Path()
    sweep, data = _Reader(document, folder).read(), dict(document.data)
    if data.get("calibration"):
        data["calibration"] = _calibration_path(data["calibration"], folder)
    for kind in WHOLE_FILES:
        if isinstance(data.get(kind), str) and data[kind] not in example_names(kind):  # type: ignore[arg-type]  # the two kinds
            data[kind] = dict(sweep.files[kind, ""].data)
    family = data.get("family") or {}
    named = [name for kind, name in sweep.files if name]
    named += [x for x in family.get("models", ()) if isinstance(x, str)]
    known = {*example_names("model"), *example_names("cluster")}
    others = [name for name in named if name not in known]
    if others:
        fix = "vary the examples, or fields of one model and one cluster"
        raise UsageError(f"a service does not read the file {others[0]}", fix)
    return data


def _calibration_path(name: str, folder: Path) -> str:
    """Return the calibration that a sweep names: beside its file, or as it is named."""
    beside = folder / name
    return os.fspath(beside) if not os.path.isabs(name) and beside.exists() else name


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
        elif key == "let":
            data["let"] = {**(data.get("let") or {}), **given}
            for name, text in given.items():
                overrides["let", name] = f"--let {name}={text}"
        elif key == "where":
            stated = data.get("where") or []
            stated = stated if isinstance(stated, list) else [stated]
            data["where"] = [*stated, *given]
            for i, text in enumerate(given):
                overrides["where", len(stated) + i] = f"--where {show(text)}"
        else:
            data[key] = given
            overrides[(key,)] = f"--{key} {given}" if isinstance(given, str | int) else f"--{key}"
    return replace(document, data=data, overrides=overrides)


def parse_vary(text: str) -> tuple[str, object]:
    """Return the field and the values of `PATH=a,b` or `PATH=LOW..HIGH*k`."""
    path, equals, values = text.partition("=")
    if not equals or not path.strip():
        raise UsageError(
            f"--vary: {text!r} is not of the form PATH=VALUES",
            "--vary pools.0.nodes=32,64,128 or --vary 'pools.0.nodes=32..512*2'",
        )
    given = f"--vary {text}"
    items = [item.strip() for item in _parts(values)]
    if not any(items):
        return path.strip(), []
    if "" in items:
        raise UsageError(f"--vary {path.strip()}: an empty value in {values!r}", "drop the comma")
    return path.strip(), [_scalar(item, given) for item in items]


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


def _scalar(text: str, given: str) -> object:
    return parse_yaml(text, given).data if text.strip() else None


class _Reader:
    """Turns one document into a sweep; every method raises `SpecError` with the place."""

    def __init__(self, document: Document, folder: Path | None) -> None:
        self.document = document
        self.folder = folder
        self.calibration: Calibration | None = None
        """To price with, in place of a file that the document names."""
        self.reference: Reference = ""
        """Runs that anchor it, in place of such a file."""

    def read(self) -> Sweep:
        from planner._faults import validate

        self._expect()
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
        name = spec.name or _plain_name(self.document.file) or _joined_name(files)
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
            notes=tuple(spec.notes),
        )
        self._try(sweep)
        return replace(sweep, sweep_id=_sweep_id(sweep))

    def _fail(self, path: KeyPath, error: BadValue, *, at_key: bool = False) -> SpecError:
        problem = self.document.problem(path, error.message, error.fix, at_key=at_key)
        # An option says by itself which field it is about.
        return SpecError(replace(problem, path="") if problem.file.startswith("--") else problem)

    def _say(self, path: KeyPath, message: str, fix: str = "") -> SpecError:
        return self._fail(path, BadValue(message, fix), at_key=True)

    def _expect(self) -> None:
        """Refuse a model or cluster file in the place of a sweep file."""
        for key, kind in (("training", "model"), ("pools", "cluster"), ("fabric", "cluster")):
            if key in self.document.data:
                message = f"this is a {kind} file, and a sweep file is needed here"
                varied = option("vary", "PATH=VALUES")
                fix = f"name a model and a cluster, and what to vary: {varied}"
                raise self._say((), message, fix)

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
        if "." in name or name in WHOLE_FILES:
            message = f"{name!r} is a field, and names a column of several"
            raise self._say(place, message, "choose a name without points, such as generation")
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
        """Refuse a sweep that varies nothing, a field twice, or what no point depends on."""
        if not axes:
            fix = f"add `vary:` ({option('vary', 'PATH=VALUES')}), `together:` or `points:`"
            raise SpecError(self.document.problem((), "the sweep varies nothing", fix))
        owner: dict[str, str] = {}
        for axis in axes:
            place: KeyPath = ("together" if axis.field is None else "vary", axis.name)
            for path in axis.paths:
                if path in owner:
                    message = f"{path} is varied by {owner[path]} and by {axis.name}"
                    raise self._say(place, message, "vary every field once")
                owner[path] = axis.name
                if path in _OF_ALL_POINTS:
                    instead = _OF_ALL_POINTS[path].replace("--point-limit", option("point-limit"))
                    raise self._say(place, f"{path} cannot be varied", instead)
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
            fix = f"{guess}`{command('catalog list')}` shows all names"
            raise self._say(place, f"unknown {noun} {show(name)}", fix) from None

    def _files(self, spec: SweepFile, axes: Sequence[Axis]) -> dict[tuple[str, str], Document]:
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
                key = (
                    "set" if PARAMS in spec.set else "vary" if axis and axis.field else "together"
                )
                where = (key, axis.name if axis and key == "together" else PARAMS)
                raise self._say(where, first.message, first.fix) from None
        files = {("family", str(i)): document for i, document in enumerate(documents)}
        return family, {("model", ""): documents[0], **files}

    def _some_point_lacks(self, spec: SweepFile, kind: str) -> bool:
        return any(kind not in point for point in spec.points or ())

    def _document(self, kind: Any, source: Any, place: KeyPath) -> Document:
        if isinstance(source, str) and self.folder is None:
            if source not in example_names(kind):
                message = f"no example of a {kind} is called {show(source)}, and no file is opened"
                raise self._say(place, message, "write what it holds in its place")
            source = example_content(kind, source)
        elif isinstance(source, str) and self.folder and not os.path.isabs(source):
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
            fix = f"add `samples: 200` ({option('samples', '200')})"
            raise self._say(("samples",), "a Latin hypercube without a number of points", fix)
        if design != "latin" and spec.samples is not None:
            fix = f"add `design: latin` ({option('design', 'latin')}), or drop it"
            raise self._say(("samples",), f"belongs to a Latin hypercube, not to a {design}", fix)
        for axis in axes:
            if axis.span is not None and design != "latin":
                message = f"{axis.name} is continuous, and a {design} needs single values"
                fix = (
                    "add a step (LOW..HIGH*2, LOW..HIGH+64), or"
                    f" {option('design', 'latin')}, {option('samples', '200')}"
                )
                raise self._say(("vary", axis.name), message, fix)
        return design

    def _size(
        self, spec: SweepFile, design: str, axes: Sequence[Axis], listed: Sequence[Values]
    ) -> int:
        n_points = {"latin": spec.samples or 0, "list": len(listed)}.get(design, grid_size(axes))
        try:
            check_size(n_points)
        except BadValue as error:
            place = ("vary",) if self.document.file else ()
            raise self._fail(place, error, at_key=True) from None
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
                dict(dimensions_of(found, axes))
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
            written = {as_text(v) for a in axes for c in a.choices for p, v in c.sets if p == by}
            for key, value in tuple(rows.items()):
                known = _catalogue_name(key)
                if written and key not in written and known is None:
                    message = f"{show(key)} is no accelerator of the sweep, nor of the catalogue"
                    raise BadValue(message, f"`{command('catalog list')}` shows all names")
                rows[known or key] = value
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
        dimensions = dict(dimensions_of(derived, axes))
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
        for fault in section_faults(search):
            raise self._fail(fault.path, BadValue(fault.message, fault.fix))
        calibration = spec.calibration
        if self.folder is None and (calibration or spec.reference):
            name = "calibration" if calibration else "reference"
            raise self._say((name,), "names a file, and no file is opened", "leave it out")
        if calibration and self.folder is not None:
            calibration = _calibration_path(calibration, self.folder)
        try:
            found = search_options(
                search,
                spec.stack,
                SolveOptions(own_calibration=self.calibration or own_calibration(calibration)),
            )
            return anchored_options(found, self.reference or spec.reference)[0]
        except UsageError as error:
            raise self._say(("search",), error.message, error.fix) from None

    def _try(self, sweep: Sweep) -> None:
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
                    place = self._place_of(sweep, change[0])
                    raise self._say(place, problem.message, problem.fix) from None
        for axis in sweep.axes:
            if not axis.name.startswith("search"):
                continue
            for choice in axis.choices:
                try:
                    values = ((axis.name, choice.value),)
                    spec = sweep.search_at(values, _NO_MODEL)
                    if faults := section_faults(spec):
                        raise UsageError(faults[0].message, faults[0].fix)
                    search_options(spec, sweep.stack, sweep.options)
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
        for values in islice(sweep.combinations(), 20):
            try:
                given = sweep.inputs_at(values)
            except PlannerError:
                continue
            find = sweep.lookup(values, given)
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


def _catalogue_name(name: str) -> str | None:
    """Return the catalogue's name of an accelerator for any of its names; None for others."""
    from hardware.catalogue import UnknownPartError, load_catalogue

    try:
        return load_catalogue().accelerator(name).name
    except UnknownPartError:
        return None


def _no_names(name: str) -> Value:
    raise BadValue(f"{name!r} in a table", "give numbers, with a unit where they have one")


class _NoModel:
    search = None


_NO_MODEL: Any = _NoModel()


def _plain_name(file: str) -> str:
    return Path(file).stem if file else ""


def _joined_name(files: Mapping[tuple[str, str], Document]) -> str:
    """Return a name for a sweep of the command line: of its model and its cluster."""
    names = [_plain_name(files[kind, ""].file) for kind in WHOLE_FILES if (kind, "") in files]
    return "-".join(name for name in names if name) or "sweep"


def _sweep_id(sweep: Sweep) -> str:
    from planner.identity import content_id

    texts = [[list(key), doc.data] for key, doc in sorted(sweep.files.items())]
    listed = [[[name, value] for name, value in values] for values in sweep.listed]
    header = {key: value for key, value in sweep.header().items() if key != "notes"}
    return content_id("sweep", header, sweep.n_samples, texts, listed, sweep.stack)
