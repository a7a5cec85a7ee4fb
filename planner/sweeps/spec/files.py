"""The model and cluster files that a sweep names, and the family in place of a model."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.specs.examples import example_content, example_names
from planner.specs.loader import model_of_document, read_document
from planner.specs.yaml.document import Document, KeyPath
from planner.sweeps.axes import SweepAxis
from planner.sweeps.families import Family, family_of
from planner.sweeps.fields import PARAMS, WHOLE_FILES, field_text
from planner.sweeps.spec.faults import Faults
from planner.sweeps.spec.schema import SweepFile
from planner.units import parse_count, shown_value


def read_files(
    spec: SweepFile, axes: Sequence[SweepAxis], faults: Faults, folder: Path | None
) -> dict[tuple[str, str], Document]:
    """Return every model and cluster file that the sweep names."""
    entries: dict[tuple[str, str], Document] = {}
    varied = {path: axis for axis in axes for path in axis.paths if path in WHOLE_FILES}
    for kind in WHOLE_FILES:
        default = getattr(spec, kind)
        if kind == "model" and spec.family is not None:
            continue
        if default is None and kind not in varied:
            fix = f"name a {kind} file or an example, such as {example_names(kind)[0]}"  # type: ignore[arg-type]
            raise faults.say((kind,), f"no `{kind}:`", fix)
        if default is not None:
            entries[kind, ""] = _document(kind, default, (kind,), faults, folder)
        if kind in varied:
            axis = varied[kind]
            for i, choice in enumerate(axis.choices):
                value = dict(choice.sets)[kind]
                place: KeyPath = ("vary", kind, i)
                if axis.field is None:
                    place = ("together", axis.name, str(choice.value), kind)
                entries[kind, field_text(value)] = _document(kind, value, place, faults, folder)
            if default is None and _some_point_lacks(spec, kind):
                raise faults.say((kind,), f"no `{kind}:`, and not every point names one")
    return entries


def read_family(
    spec: SweepFile, axes: Sequence[SweepAxis], faults: Faults, folder: Path | None
) -> tuple[Family | None, dict[tuple[str, str], Document]]:
    """Return the family of the sweep with its documents, and try all sizes that are listed."""
    place: KeyPath = ("family",)
    axis = next((axis for axis in axes if PARAMS in axis.paths), None)
    varied = {path for axis in axes for path in axis.paths} | set(spec.set)
    if spec.family is None:
        if PARAMS in varied:
            fix = "add `family: {models: [llama3-8b, llama3-70b, llama3-405b]}`"
            raise faults.say(("vary", PARAMS), f"{PARAMS} without `family:`", fix)
        return None, {}
    if PARAMS not in varied:
        fix = f"vary {PARAMS}, such as [30B, 120B, 1T]"
        raise faults.say(place, "a family without sizes", fix)
    if spec.model is not None or "model" in varied:
        raise faults.say(place, "stands beside `model`", "keep one of them")
    documents = [
        _document("model", source, ("family", "models", i), faults, folder)
        for i, source in enumerate(spec.family.models)
    ]
    try:
        family = family_of([model_of_document(document) for document in documents])
    except SpecError as error:
        first = error.problems[0]
        raise faults.say(("family", "models"), first.message, first.hint) from None
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
            raise faults.say(where, first.message, first.hint) from None
    files = {("family", str(i)): document for i, document in enumerate(documents)}
    return family, {("model", ""): documents[0], **files}


def _some_point_lacks(spec: SweepFile, kind: str) -> bool:
    return any(kind not in point for point in spec.points or ())


def _document(
    kind: Any, source: Any, place: KeyPath, faults: Faults, folder: Path | None
) -> Document:
    if isinstance(source, str) and folder is None:
        if source not in example_names(kind):
            message = (
                f"no example of a {kind} is called {shown_value(source)}, and no file is opened"
            )
            raise faults.say(place, message, "write what it holds in its place")
        source = example_content(kind, source)
    elif isinstance(source, str) and folder and not os.path.isabs(source):
        beside = folder / source
        if source not in example_names(kind) and beside.exists():
            source = os.fspath(beside)
    try:
        # Rows name files in their reasons: the same on every machine.
        document = read_document(source, kind)
        return replace(document, file=os.path.basename(document.file))
    except SpecError as error:
        first = error.problems[0]
        if first.line or isinstance(source, Mapping):
            raise
        file = first.file or shown_value(source)
        message = first.message if file in first.message else f"{file}: {first.message}"
        raise faults.say(place, message, first.hint) from None
