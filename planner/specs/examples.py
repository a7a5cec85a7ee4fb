"""The examples that ship: models, clusters and sweeps by their names."""

import os
from functools import cache
from importlib.resources import files
from pathlib import Path

from planner.specs.inputs import Content
from planner.specs.yaml.document import read_text
from planner.specs.yaml.faults import Kind


def example_names(kind: Kind) -> list[str]:
    """Return the names of the packaged examples of a kind."""
    folder = examples_folder()
    return sorted(p.stem for p in folder.glob(f"{kind}s/*.yaml")) if folder else []


@cache
def example_content(kind: Kind, name: str) -> Content:
    """Return a packaged example by its name, one of `example_names`; it is read once."""
    folder = examples_folder()
    assert folder is not None
    text = read_text(os.fspath(folder / f"{kind}s" / f"{name}.yaml"))
    return Content(text, f"{name}.yaml", shown=name)


def example_sweeps() -> dict[str, Path]:
    """Return the packaged sweep files by name."""
    folder = examples_folder()
    return {p.stem: p for p in sorted(folder.glob("sweeps/*.yaml"))} if folder else {}


def examples_folder() -> Path | None:
    """Return where the examples lie: inside the package (wheel) or at the top (checkout)."""
    here = Path(str(files("planner")))
    if (here / "examples").is_dir():
        return here / "examples"
    checkout = here.parent
    return checkout / "examples" if (checkout / "pyproject.toml").is_file() else None
