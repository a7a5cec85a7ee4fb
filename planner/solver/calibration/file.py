"""A calibration, and the YAML file that holds one.

    schema_version: 1
    name: our cluster
    note: where the values come from, in words
    values:
      generation.hopper.gemm_frac: 0.74
    provenance:
      generation.hopper.gemm_frac: fitted
    intervals:
      fitted.compute: [0.93, 1.12]
    resolution:
      same-tp-pp: 0.03
    anchored_by:
    - llama3-70b tp8 pp4 on h100-x64, 12.3 s

What `values` does not name keeps its prior (`planner.solver.calibration.parameters`).
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from planner.errors import InputProblem, SpecError, UsageError
from planner.solver.calibration.parameters import ANCHORS, known_parameters
from planner.specs.identity import content_id
from planner.specs.yaml.document import Document, close_names, load_yaml
from planner.units import shown_value

SHIPPED = Path(str(files("planner"))) / "data" / "calibration.yaml"
"""The calibration that prices plans when no other is named."""
PRIORS = "priors"
"""What `--from` calls a calibration without any value."""
SCHEMA_VERSION = 1
PROVENANCES = ("prior", "fitted", "measured", "stated")
"""Where a value may come from: a prior that no run has moved, a fit to step times, a benchmark of
the part itself, or whoever wrote the file."""
_KEYS = (
    "schema_version",
    "name",
    "note",
    "values",
    "provenance",
    "intervals",
    "resolution",
    "anchored_by",
)
ANCHORS_LEFT_OUT = "the anchors of a reference run hold for the values of before, and are left out"
"""What a fit says that begins at an anchored calibration."""
MAX_NAME = 80
"""Longest name, characters."""


@dataclass(frozen=True)
class Calibration:
    """Values of some parameters; the others keep their priors."""

    name: str
    values: Mapping[str, float] = field(default_factory=dict)
    """By name of the parameter."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    """Where a value comes from: one of `PROVENANCES`, by name; `stated` where it says nothing."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """10th and 90th percentile of a measured step over its prediction, by regime
    (`planner.solver.calibration.intervals`)."""
    anchored_by: tuple[str, ...] = ()
    """The measured steps that set the anchors, in words; empty without any."""
    note: str = ""
    source: str = field(default="", compare=False)
    """The file as the user named it; empty for the shipped one."""
    resolution: Mapping[str, float] = field(default_factory=dict)
    """Relative gap up to which two plans of a job cannot be told apart, by how alike they are
    (`planner.solver.calibration.resolution`)."""

    @cached_property
    def content_hash(self) -> str:
        """12 hex digits that stand for all that a prediction depends on."""
        return content_id(
            "calibration", dict(self.values), self._intervals_json(), dict(self.resolution)
        )

    @property
    def anchored(self) -> bool:
        """Whether a measured step of the user's own sets the scale."""
        return bool(self.anchored_by) or any(self.value(name) != 1.0 for name in ANCHORS)

    def value(self, name: str) -> float:
        """Return the value of a parameter: its own, or the prior."""
        return self.values.get(name, known_parameters()[name].prior)

    def with_values(
        self, values: Mapping[str, float], provenance: str, name: str = ""
    ) -> "Calibration":
        """Return the calibration with some values set; `SpecError` for one out of its range."""
        for key, value in values.items():
            wrong = _wrong(key, value)
            if wrong:
                raise SpecError(
                    InputProblem(wrong[0], wrong[1], self.source, path=f"values.{key}")
                )
        return replace(
            self,
            name=name or self.name,
            values={**self.values, **values},
            provenance={**self.provenance, **dict.fromkeys(values, provenance)},
        )

    def with_anchors(
        self, compute: float, scale_up: float, scale_out: float, by: tuple[str, ...]
    ) -> "Calibration":
        """Return the calibration with factors on time that the measured steps `by` gave."""
        factors = dict(zip(ANCHORS, (compute, scale_up, scale_out), strict=True))
        return replace(self.with_values(factors, "measured"), anchored_by=by)

    def without_anchors(self) -> "Calibration":
        """Return the calibration without the anchors of a reference run; itself without any.

        Anchors hold for the values that they were found with, so a fit of these drops them.
        """
        if not self.anchored:
            return self
        values = {name: x for name, x in self.values.items() if name not in ANCHORS}
        origins = {name: x for name, x in self.provenance.items() if name in values}
        return replace(self, values=values, provenance=origins, anchored_by=())

    def _intervals_json(self) -> dict[str, list[float]]:
        return {regime: list(bounds) for regime, bounds in self.intervals.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the document of the file, names in order."""
        parameter_names = list(known_parameters())
        order = {name: i for i, name in enumerate(parameter_names)}
        names = sorted(self.values, key=lambda name: order.get(name, len(parameter_names)))
        entries: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "name": self.name}
        if self.note:
            entries["note"] = self.note
        entries["values"] = {name: self.values[name] for name in names}
        provenance = {n: self.provenance[n] for n in names if n in self.provenance}
        if provenance:
            entries["provenance"] = provenance
        if self.intervals:
            entries["intervals"] = dict(sorted(self._intervals_json().items()))
        if self.resolution:
            entries["resolution"] = dict(sorted(self.resolution.items()))
        if self.anchored_by:
            entries["anchored_by"] = list(self.anchored_by)
        return entries

    def to_text(self) -> str:
        """Return the YAML of the file: the same bytes for the same calibration."""
        lines = []
        for key, value in self.to_json().items():
            if isinstance(value, dict):
                lines.append(f"{key}:" if value else f"{key}: {{}}")
                lines += [f"  {_text(name)}: {_text(x)}" for name, x in value.items()]
            elif isinstance(value, list):
                lines += [f"{key}:", *(f"- {_text(x)}" for x in value)]
            else:
                lines.append(f"{key}: {_text(value)}")
        return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    """Return a scalar, or a list of numbers, as YAML on one line."""
    if isinstance(value, list):
        return "[" + ", ".join(_text(x) for x in value) + "]"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    plain = text and all(c.isalnum() or c in "._-" for c in text) and text[0].isalpha()
    if plain and text.lower() not in ("true", "false", "null", "nan", "inf"):
        return text
    return "'" + text.replace("'", "''") + "'"


def rounded(value: float, digits: int = 4) -> float:
    """Return a value to some significant digits, as files hold it.

    >>> rounded(0.123456), rounded(3.3e-05)
    (0.1235, 3.3e-05)
    """
    return float(f"{value:.{digits}g}")


def load_calibration(path: str | os.PathLike[str] | None = None) -> Calibration:
    """Return the calibration of a file, the shipped one without a path.

    Every defect is a `SpecError` with its line: unknown names, values out of their range.
    """
    if path is None or path == "":
        return _shipped()
    return calibration_of(load_yaml(path), os.fspath(path))


@cache
def _shipped() -> Calibration:
    return calibration_of(load_yaml(SHIPPED), "")


def load_start(path: str) -> Calibration:
    """Return the calibration that `--from` names: a file, `priors`, or without it the shipped."""
    return Calibration(PRIORS) if path == PRIORS else load_calibration(path)


def check_name(name: str) -> None:
    """Raise `UsageError` for a `--name` that no calibration file may have."""
    if len(name) > MAX_NAME:
        raise UsageError(f"--name of {len(name)} characters", f"a text of up to {MAX_NAME}")


def calibration_from_json(data: Mapping[str, Any]) -> Calibration:
    """Return the calibration that `Calibration.to_json` wrote."""
    return calibration_of(Document(dict(data)), "")


def calibration_of(document: Document, source: str) -> Calibration:
    """Return what a document says; `SpecError` with all that is wrong."""
    data, wrong = document.data, []
    if not isinstance(data, dict):
        fix = "write `name:` and `values:`; docs/calibration.md shows a file"
        raise SpecError(document.problem((), "is no calibration", fix))
    for key in data:
        if key not in _KEYS:
            close = close_names(str(key), _KEYS, 1)
            fix = f"did you mean {close[0]}?" if close else f"one of {', '.join(_KEYS)}"
            wrong.append(document.problem((key,), f"unknown key {key!r}", fix, at_key=True))
    version = data.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        message = f"schema_version {shown_value(version)}, and this version reads {SCHEMA_VERSION}"
        wrong.append(document.problem(("schema_version",), message))
    name = data.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        message = f"name is {shown_value(name)}" if "name" in data else "has no name"
        fix = f"a text of up to {MAX_NAME} characters"
        wrong.append(document.problem(("name",), message, fix))
    note = data.get("note", "")
    if not isinstance(note, str):
        wrong.append(document.problem(("note",), f"note is {shown_value(note)}", "write a text"))
    values = _mapping(document, "values", wrong)
    for key, value in values.items():
        fault = _wrong(key, value)
        if fault:
            wrong.append(document.problem(("values", key), *fault))
    provenance = _mapping(document, "provenance", wrong)
    for key, value in provenance.items():
        if value not in PROVENANCES:
            fix = f"one of {', '.join(PROVENANCES)}"
            wrong.append(
                document.problem(("provenance", key), f"{shown_value(value)} is no origin", fix)
            )
        elif key not in values:
            fix = "give it a value, or remove the line"
            message = f"{key!r} has no value above"
            wrong.append(document.problem(("provenance", key), message, fix, at_key=True))
    intervals = _mapping(document, "intervals", wrong)
    for key, value in intervals.items():
        if not _is_interval(value):
            fix = "two factors on the prediction, such as [0.93, 1.12]"
            wrong.append(
                document.problem(("intervals", key), f"{shown_value(value)} is none", fix)
            )
    resolution = _mapping(document, "resolution", wrong)
    for key, value in resolution.items():
        if not _is_number(value) or not 0.0 <= value < 1.0:
            fix = "a share of the step time, such as 0.03"
            wrong.append(
                document.problem(("resolution", key), f"{shown_value(value)} is none", fix)
            )
    anchored = data.get("anchored_by") or []
    if not isinstance(anchored, list) or not all(isinstance(x, str) for x in anchored):
        fix = "a list of measured steps, in words"
        wrong.append(document.problem(("anchored_by",), f"is {shown_value(anchored)}", fix))
    if wrong:
        raise SpecError(wrong)
    return Calibration(
        name=str(name),
        values={key: float(value) for key, value in values.items()},
        provenance=dict(provenance),
        intervals={key: (float(x), float(y)) for key, (x, y) in intervals.items()},
        resolution={key: float(value) for key, value in resolution.items()},
        anchored_by=tuple(anchored),
        note=note,
        source=source,
    )


def _mapping(document: Document, key: str, wrong: list[InputProblem]) -> dict[str, Any]:
    result = document.data.get(key)
    if result is None:
        return {}
    if not isinstance(result, dict):
        message = f"{key} is {shown_value(result)}, not a mapping"
        wrong.append(document.problem((key,), message, "write `name: value` lines under it"))
        return {}
    return result


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_interval(value: Any) -> bool:
    both = isinstance(value, list) and len(value) == 2 and all(_is_number(x) for x in value)
    return both and 0.0 < value[0] <= value[1]


def _wrong(name: str, value: Any) -> tuple[str, str] | None:
    """Return what is wrong with a value and what to change; None where nothing is."""
    parameters = known_parameters()
    if name not in parameters:
        close = close_names(name, parameters)
        fix = (
            f"did you mean {' or '.join(close)}?"
            if close
            else "planner calibrate --list shows all"
        )
        return f"no parameter {name!r}", fix
    result = parameters[name]
    if not _is_number(value):
        return f"{shown_value(value)} is no number", f"from {result.low:g} to {result.high:g}"
    if not result.low <= value <= result.high:
        unit = f" {result.unit}" * bool(result.unit)
        return f"{value:g}{unit} is out of range", f"from {result.low:g} to {result.high:g}{unit}"
    return None
