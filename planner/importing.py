"""What `planner import` does: read another format, write one of our files, say what it assumed."""

import sys
from pathlib import Path

from planner.errors import EmitError
from planner.inputs import import_model
from planner.intake.imported import Imported
from planner.tables import assumed_lines, note_lines


def run_import_model(file: str, out: str, name: str, as_type: str) -> None:
    """Run `planner import model`."""
    imported, given = import_model(file, name=name, as_type=as_type)
    write_imported(imported, given.notes, out)


def write_imported(imported: Imported, notes: tuple[str, ...], out: str) -> None:
    """Write the file to `out`, or to standard output; the notes go to standard error."""
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
    lines += assumed_lines(notes)
    lines += note_lines(notes)
    sys.stderr.write("\n".join(lines) + "\n")
