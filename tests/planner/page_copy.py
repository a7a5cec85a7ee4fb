"""Follows a section of docs/extending.md in a copy of the packages."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("hardware", "costmodels", "searches", "planner", "service")


class Block(NamedTuple):
    """A block of code of the page, whose first line names a file."""

    file: str
    name: str
    """The list or mapping of the file that it is in; empty: the block stands at the end."""
    text: str


def section_text(title: str) -> str:
    """Return a section of the page."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0]


def section_blocks(title: str) -> list[Block]:
    """Return the blocks of a section that are parts of files."""
    form = r"^```(?:python|yaml)\n# ([\w/.]+)(?:, in (\w+))?\n(.*?)^```$"
    return [Block(*parts) for parts in re.findall(form, section_text(title), re.M | re.S)]


def follow(folder: Path, blocks: list[Block]) -> None:
    """Copy the packages to a folder and write the blocks there."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name)  # with the bytecode: compiling takes seconds
    for name in ("examples", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "generate.py", folder / "docs")
    for block in blocks:
        _write(folder / block.file, block)


def _write(file: Path, block: Block) -> None:
    if not block.name:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as stream:
            stream.write(block.text)
        return
    content = file.read_text(encoding="utf-8")
    start = re.search(rf"^{block.name}\b.*$", content, re.M)
    assert start is not None
    if start[0].endswith("{}"):
        line = start[0].removesuffix("}")
        file.write_text(content.replace(start[0], f"{line}\n{block.text}}}", 1), encoding="utf-8")
        return
    end = re.compile(r"^[)}]$", re.M).search(content, start.end())
    assert end is not None
    file.write_text(content[: end.start()] + block.text + content[end.start() :], encoding="utf-8")


def run_in(folder: Path, *command: str) -> str:
    """Return what Python prints in such a copy; a failure is one of the test."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": str(folder), "HOME": str(folder), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
