"""What a sweep file, or `--vary` on the command line, becomes: a `Sweep`.

Every defect of the sweep itself is a `SpecError` before anything is computed; a combination of
values that makes no valid inputs is a point of its own, and becomes a row that says why.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.errors import BadValue, Problem, SpecError, UsageError
from planner.option_names import option
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.reference import Reference
from planner.solver.options import SolveOptions
from planner.specs.examples import example_names, example_sweeps
from planner.specs.schema import SearchSpec
from planner.specs.search.section import section_faults
from planner.specs.yaml.document import Document, KeyPath, load_yaml, parse_yaml
from planner.sweeps.axes import SweepAxis
from planner.sweeps.changes import Change
from planner.sweeps.designs import Values, check_size, grid_size
from planner.sweeps.fields import WHOLE_FILES, field_at
from planner.sweeps.spec.axes import check_part, read_axes
from planner.sweeps.spec.faults import Faults
from planner.sweeps.spec.files import read_family, read_files
from planner.sweeps.spec.formulas import read_constraints, read_derived
from planner.sweeps.spec.options import with_options
from planner.sweeps.spec.schema import SweepFile
from planner.sweeps.spec.trial import try_sweep
from planner.sweeps.sweep import Sweep, search_options
from planner.units import shown_value


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
    document = _expect_sections(load_yaml(path))
    if more:
        document = with_options(document, more)
    return document, Path(os.fspath(path)).parent


def _expect_sections(document: Document) -> Document:
    """Return a document that may be a sweep file; `SpecError` for text and lists."""
    if not isinstance(document.data, Mapping):
        message = f"expected a sweep file, got {shown_value(document.data)}"
        raise SpecError(document.problem((), message, "see examples/sweeps/"))
    return document


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
    document = _expect_sections(parse_yaml(text, file))
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
    return with_options(Document(data), {**(more or {}), "vary": vary})


def sweep_content(files: Sequence[str], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep as `sweep_from_dict` reads it without opening files.

    `files` are a sweep file, or a model and a cluster. Model and cluster become what their files
    hold; `UsageError` where others are named than by an example. `calibration` and `reference`
    stay paths, those that can be opened here.
    """
    if len(files) == 1:
        document, folder = _sweep_document(files[0], more)
    else:
        arguments = {key: value for key, value in more.items() if key != "vary"}
        model, cluster = files
        document = _options_document(model, cluster, more.get("vary", ()), arguments)
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
    examples = {*example_names("model"), *example_names("cluster")}
    others = [name for name in named if name not in examples]
    if others:
        fix = "vary the examples, or fields of one model and one cluster"
        raise UsageError(f"a service does not read the file {others[0]}", fix)
    return data


def _calibration_path(name: str, folder: Path) -> str:
    """Return the calibration that a sweep names: beside its file, or as it is named."""
    beside = folder / name
    return os.fspath(beside) if not os.path.isabs(name) and beside.exists() else name


class _Reader:
    """Turns one document into a sweep; every method raises `SpecError` with the place."""

    def __init__(self, document: Document, folder: Path | None) -> None:
        self.document = document
        self.folder = folder
        self.faults = Faults(document)
        self.calibration: Calibration | None = None
        """To price with, in place of a file that the document names."""
        self.reference: Reference = ""
        """Runs that anchor it, in place of such a file."""

    def read(self) -> Sweep:
        from planner.specs.yaml.faults import validated

        self._expect()
        spec = validated(SweepFile, self.document)
        axes, listed = read_axes(spec, self.faults)
        family, models = read_family(spec, axes, self.faults, self.folder)
        files = {**read_files(spec, axes, self.faults, self.folder), **models}
        fixed = self._fixed(spec, axes)
        design = self._design(spec, axes)
        derived = read_derived(spec, axes, self.faults)
        constraints = read_constraints(spec, axes, derived, self.faults)
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
        try_sweep(sweep, self.faults)
        return replace(sweep, sweep_id=_sweep_id(sweep))

    def _expect(self) -> None:
        """Refuse a model or cluster file in the place of a sweep file."""
        for key, kind in (("training", "model"), ("pools", "cluster"), ("fabric", "cluster")):
            if key in self.document.data:
                message = f"this is a {kind} file, and a sweep file is needed here"
                fix = "name a model and a cluster, and what to vary: "
                fix += option("vary", "PATH=VALUES")
                raise self.faults.say((), message, fix)

    def _fixed(self, spec: SweepFile, axes: Sequence[SweepAxis]) -> tuple[Change, ...]:
        varied = {path for axis in axes for path in axis.paths} if spec.points is None else set()
        for path, value in spec.set.items():
            place: KeyPath = ("set", path)
            if path in varied:
                raise self.faults.say(place, "is set and varied", "keep one of them")
            try:
                field = field_at(path)
                if path in WHOLE_FILES or path.startswith("search"):
                    section = path.split(".")[0]
                    raise BadValue(f"{path} is not set here", f"state it under `{section}:`")
                field.check(value)
            except BadValue as error:
                raise self.faults.fail(place, error, at_key=True) from None
            check_part(place, path, value, self.faults)
        origin = self.document.file or "set"
        return tuple(
            (path, value, self.document.overrides.get(("set", path), f"{origin}: set {path}"))
            for path, value in spec.set.items()
        )

    def _design(self, spec: SweepFile, axes: Sequence[SweepAxis]) -> str:
        default = "list" if spec.points is not None else "grid"
        if spec.design is None and spec.points is None and spec.samples is not None:
            default = "latin"
        design = spec.design or default
        if (design == "list") != (spec.points is not None):
            message = f"a design {design!r} {'without' if design == 'list' else 'with'} `points:`"
            fix = "list the points, or vary fields in a grid" if design == "list" else "drop one"
            raise self.faults.say(("design",), message, fix)
        if design == "latin" and spec.samples is None:
            fix = "add `samples: 200` (" + option("samples", "200") + ")"
            raise self.faults.say(
                ("samples",), "a Latin hypercube without a number of points", fix
            )
        if design != "latin" and spec.samples is not None:
            fix = "add `design: latin` (" + option("design", "latin") + "), or drop it"
            raise self.faults.say(
                ("samples",), f"belongs to a Latin hypercube, not to a {design}", fix
            )
        for axis in axes:
            if axis.span is not None and design != "latin":
                message = f"{axis.name} is continuous, and a {design} needs single values"
                fix = (
                    "add a step (LOW..HIGH*2, LOW..HIGH+64), or "
                    + option("design", "latin")
                    + ", "
                    + option("samples", "200")
                )
                raise self.faults.say(("vary", axis.name), message, fix)
        return design

    def _size(
        self, spec: SweepFile, design: str, axes: Sequence[SweepAxis], listed: Sequence[Values]
    ) -> int:
        n_points = {"latin": spec.samples or 0, "list": len(listed)}.get(design, grid_size(axes))
        try:
            check_size(n_points)
        except BadValue as error:
            place = ("vary",) if self.document.file else ()
            raise self.faults.fail(place, error, at_key=True) from None
        return n_points

    def _base_options(self, spec: SweepFile) -> SolveOptions:
        from planner.solver.request import anchored_options, own_calibration

        search = spec.search or SearchSpec()
        if search.pareto:
            fix = "give one `objective:`, and vary what should make the front"
            raise self.faults.say(
                ("search", "pareto"), "a point of a sweep has one best plan", fix
            )
        for fault in section_faults(search):
            raise self.faults.fail(fault.path, BadValue(fault.message, fault.fix))
        calibration = spec.calibration
        if self.folder is None and (calibration or spec.reference):
            name = "calibration" if calibration else "reference"
            raise self.faults.say((name,), "names a file, and no file is opened", "leave it out")
        if calibration and self.folder is not None:
            calibration = _calibration_path(calibration, self.folder)
        try:
            options = search_options(
                search,
                spec.stack,
                SolveOptions(own_calibration=self.calibration or own_calibration(calibration)),
            )
            return anchored_options(options, self.reference or spec.reference)[0]
        except UsageError as error:
            raise self.faults.say(("search",), error.message, error.hint) from None


def _plain_name(file: str) -> str:
    return Path(file).stem if file else ""


def _joined_name(files: Mapping[tuple[str, str], Document]) -> str:
    """Return a name for a sweep of the command line: of its model and its cluster."""
    names = [_plain_name(files[kind, ""].file) for kind in WHOLE_FILES if (kind, "") in files]
    return "-".join(name for name in names if name) or "sweep"


def _sweep_id(sweep: Sweep) -> str:
    from planner.specs.identity import content_id

    texts = [[list(key), doc.data] for key, doc in sorted(sweep.files.items())]
    listed = [[[name, value] for name, value in values] for values in sweep.listed]
    header = {key: value for key, value in sweep.header().items() if key != "notes"}
    return content_id("sweep", header, sweep.n_samples, texts, listed, sweep.stack)
