"""What `planner import` does: read another format, write one of our files, say what it assumed."""

import sys
from collections.abc import Sequence
from pathlib import Path

from planner.cli.arguments import overrides_of
from planner.cli.command_arguments import ImportArguments
from planner.errors import EmitError, UsageError
from planner.render.answers.inputs import assumed_parts, note_parts
from planner.render.terminal import lines_of
from planner.specs.importers.clusters.accelerators import ALL
from planner.specs.importers.clusters.options import ImportOptions
from planner.specs.importers.clusters.reader import import_cluster
from planner.specs.importers.dump_text import STANDARD_INPUT, read_dump
from planner.specs.importers.imported import Imported
from planner.specs.loader import cluster_of_import, import_model
from planner.specs.summary import model_size

SHORT_PATHS = {
    "sequence": "training.seq_len",
    "batch": "training.global_batch",
    "precision": "training.precision",
    "optimizer": "training.optimizer",
}
"""Paths of `--set` by the words for them: what no config.json says."""


def run_import_model(
    file: str, out: str, name: str, as_type: str, fields: Sequence[str] = ()
) -> None:
    """Run `planner import model`; `fields` are those of `--set PATH=VALUE`."""
    pairs = [(SHORT_PATHS.get(path, path), value) for path, value in overrides_of(fields)]
    imported, model = import_model(file, name=name, as_type=as_type, overrides=pairs)
    write_imported(imported, model.notes, out, model_size(model))


def run_import_cluster(files: Sequence[str], arguments: ImportArguments) -> None:
    """Run `planner import cluster`."""
    partition, nodes, most_nodes = arguments.partition, arguments.nodes, arguments.most_nodes
    bounds = (
        ("--nics", arguments.nics, 1024),
        ("--devices", arguments.devices, 1024),
        ("--most", most_nodes, 1_000_000),
    )
    for option, number, limit in bounds:
        if not 0 <= number <= limit:
            raise UsageError(f"{option} must be 1 to {limit}, not {number}", f"{option} 8")
    for option, value in (("--partition gpu", partition), ("--nodes n[1-4]", nodes)):
        if value is not None and not value.strip():
            message = f"{option.split()[0]} is empty"
            raise UsageError(message, f"{option}, or leave it out for all nodes")
    if most_nodes and arguments.partial:
        raise UsageError("--most counts whole nodes, and --partial uses parts", "drop one of them")
    options = ImportOptions(
        accelerators=_answers(arguments.accelerator),
        nic=arguments.nic,
        nics=arguments.nics,
        devices=arguments.devices,
        partition=partition or "",
        nodes=nodes or "",
        selector=_pairs(arguments.selector, "--selector", "KEY=VALUE"),
        tolerated=tuple(arguments.tolerate),
        everything=arguments.all_,
        partial=arguments.partial,
        most_nodes=most_nodes,
        name=arguments.name,
    )
    if len(set(files)) < len(files):
        raise UsageError("a file is named twice", "name every file once")
    result = import_cluster([(_shown(file), read_dump(file)) for file in files], options)
    write_imported(result, cluster_of_import(result).notes, arguments.out)


def _shown(file: str) -> str:
    return STANDARD_INPUT if file == "-" else file


def _answers(items: Sequence[str]) -> dict[str, str]:
    """Return catalogue names by the type that the dump gives; a name alone is for all."""
    entries: dict[str, str] = {}
    for item in items:
        kind, equals, name = item.rpartition("=")
        key = kind.strip() if equals else ALL
        if not name.strip() or not key:
            raise UsageError(f"--accelerator: {item!r} is not TYPE=NAME", "a100=a100-sxm-80gb")
        if key in entries:
            raise UsageError(f"--accelerator: {key} is named twice", "name every type once")
        entries[key] = name.strip()
    return entries


def _pairs(items: Sequence[str], option: str, form: str) -> dict[str, str]:
    entries = {}
    for item in (part for text in items for part in text.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option}: {item!r} is not {form}", "zone=us-east-1a")
        entries[key.strip()] = value.strip()
    return entries


def write_imported(imported: Imported, notes: tuple[str, ...], out: str, size: str = "") -> None:
    """Write the file to `out`, or to standard output; size and notes go to standard error."""
    text = imported.to_yaml()
    if out:
        try:
            Path(out).write_text(text, encoding="utf-8")
        except OSError as error:
            fix = "name another file with --out"
            raise EmitError(f"cannot write {out}: {error.strerror}", fix) from None
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
    lines = [f"{imported.source}: {imported.format}" + (f" -> {out}" if out else "")]
    lines += [f"  {size}"] * bool(size)
    lines += lines_of(assumed_parts(notes, f"edit {out or 'the file'} to change one"))
    lines += lines_of(note_parts(notes))
    sys.stderr.write("\n".join(lines) + "\n")
