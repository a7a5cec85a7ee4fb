"""Files that commands write."""

import sys
from pathlib import Path, PurePosixPath

from planner.errors import EmitError


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write files into a folder, which is made if need be; scripts become executable.

    Names may have folders of their own; one that leads out of the folder is refused.
    """
    for name in files:
        named = PurePosixPath(name)
        if named.is_absolute() or ".." in named.parts:
            raise EmitError(f"a file is called {name!r}, which is not in {folder}", "report it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if name.endswith((".sh", ".sbatch")) else 0o644)
    except OSError as error:
        fix = "name another folder with --out"
        raise EmitError(f"cannot write {folder}: {error.strerror}", fix) from None


def write_text(out: str, text: str) -> None:
    """Write a page, or print it where it is named -; one error where that is not possible."""
    if out == "-":
        sys.stdout.write(text)
        return
    try:
        Path(out).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        fix = "name another file with --out, in a folder that exists and can be written"
        raise EmitError(f"cannot write {out}: {error.strerror}", fix) from None
    html = out.endswith((".html", ".htm"))
    sys.stderr.write(f"wrote {out}" + ": open it in a browser, it needs no network" * html + "\n")


def check_folder(out: str) -> None:
    """Raise one clear error, before any work, where there is no folder for a page."""
    folder = Path(out).parent
    if out != "-" and (not folder.is_dir() or Path(out).is_dir()):
        what = f"{out} is a folder" if Path(out).is_dir() else f"there is no folder {folder}"
        raise EmitError(f"cannot write {out}: {what}", "name another file")
