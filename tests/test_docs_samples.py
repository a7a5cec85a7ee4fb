"""Outputs that pages of the documentation print are those of the commands that they name.

What a block without a language (or of `text`) prints comes from the command in its first line
(`$ planner ...`), or from the comment above it:

    <!-- sample: name.txt = path in the repository; planner ...; planner ... -->

Files are laid beside the commands; the output is that of the last. Lines stand in the block as
they are printed and in this order, but some may be left out; `...` at the end of a line cuts it
short. Of tables, `columns left out` in the comment allows that too.
"""

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import planner
from planner.solver.answer.reasons import stage_words
from tests.planner.command import run_here

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"(?:^<!-- sample(?P<cut>, columns left out)?: (?P<source>[^\n]*) -->\n)?"
    r"^```(?P<language>\w*)\n(?P<lines>.*?)^```$",
    re.M | re.S,
)
OUTPUT = re.compile(r"^\$ planner (?P<words>[^\n]*)\n(?!\$ )", re.S)
COMMANDS = re.compile(
    r"(?:(?:\$|planner|curl|pip|python3?|torchrun|cd) [^\n]*(?:\n  [^\n]*)*\n?)+"
)
"""Commands, and lines that go on with one."""
SLOW = {"explain.md", "looking.md", "recommend.md", "replan.md", "scale.md"}
UNHELD = {
    "compare.md": "a trace that was made up",
    "mixed.md": "a search of half a minute",
}
"""Pages with a sample whose input the repository has not, or that takes too long."""


@dataclass(frozen=True)
class Sample:
    """One block of a page and the commands that print it."""

    page: str
    source: str
    lines: tuple[str, ...]
    columns_left_out: bool


def blocks_of(page: Path) -> list[re.Match[str]]:
    """The blocks of a page that may be samples."""
    found = BLOCK.finditer(page.read_text("utf-8"))
    return [block for block in found if block["language"] in ("", "text")]


def samples_of(page: Path) -> Iterator[Sample]:
    """The samples of a page."""
    for block in blocks_of(page):
        lines, parts = block["lines"], [block["source"]] if block["source"] else []
        if first := OUTPUT.match(lines):
            lines = lines[first.end() :]
            parts.append(f"planner {first['words']}")
        if parts:
            shown = tuple(lines.splitlines())
            yield Sample(page.name, "; ".join(parts), shown, bool(block["cut"]))


PAGES = sorted(DOCS.glob("*.md"))
SAMPLES = [sample for page in PAGES for sample in samples_of(page)]


def printed(source: str, here: Path) -> list[str]:
    """What the last of the commands prints in a folder with the files that are named."""
    out: list[str] = []
    for part in source.split("; "):
        name, _, path = part.partition(" = ")
        if path:
            shutil.copy(ROOT / path, here / name)
            continue
        done = run_here(*shlex.split(part)[1:])
        out = (done.stdout + done.stderr).splitlines()
    return out


def is_line(line: str, wanted: str, *, columns_left_out: bool) -> bool:
    """Tell whether a printed line is the one that a block shows."""
    if columns_left_out:
        words = iter(line.split())
        return all(word in words for word in wanted.removesuffix("...").split())
    if wanted.endswith("..."):
        return line.startswith(wanted.removesuffix("...").rstrip(" "))
    return line.rstrip() == wanted.rstrip()


def first_stale(sample: Sample, out: list[str]) -> str | None:
    """The first line of a block that its commands do not print there any more."""
    left = iter(out)
    for wanted in sample.lines:
        if wanted.strip() in ("", "..."):
            continue
        if not any(is_line(x, wanted, columns_left_out=sample.columns_left_out) for x in left):
            return wanted
    return None


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(x, id=f"{x.page}: {x.source}", marks=[pytest.mark.slow] * (x.page in SLOW))
        for x in SAMPLES
    ],
)
def test_samples_are_current(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    out = printed(sample.source, tmp_path)
    stale = first_stale(sample, out)
    assert stale is None, f"{stale!r} is not in:\n" + "\n".join(out)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sample_is_without_its_command(page: Path) -> None:
    """Every block that prints something says by what, or is named above."""
    alone = [x["lines"] for x in blocks_of(page) if not x["language"] and not x["source"]]
    prints = [x for x in alone if not OUTPUT.match(x) and not COMMANDS.fullmatch(x)]
    assert bool(prints) == (page.name in UNHELD), prints


ROW = re.compile(
    r"^\| (?P<model>\S+) on (?P<cluster>[\w-]+), (?P<degrees>[^|]*) \| (?P<named>[\d.]+) \|"
    r" (?P<uneven>[\d.]+) \| (?P<layers>[\dx-]+) \|$",
    re.M,
)
ROWS = [x.groupdict() for x in ROW.finditer((DOCS / "splits.md").read_text("utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['degrees']}")
def test_the_table_of_uneven_splits_is_current(row: dict[str, str]) -> None:
    words, _, more = row["degrees"].partition(", ")
    pins = {name: int(n) for name, n in re.findall(r"([a-z]+)(\d+)", words)}
    again = {"recompute": "full", "recompute_layers": 1} if more else {}
    assert more in ("", "one layer recomputed")

    def fastest(**only: object) -> planner.solver.answer.result.Plan:
        found = planner.solve(
            row["model"], row["cluster"], pins=pins | again, top=8, all_variants=True, **only
        )
        return min(found.plans, key=lambda plan: plan.step_time_s)

    named, uneven = fastest(only={"split": ["even", "ends"]}), fastest()
    assert f"{named.step_time_s:.2f}" == row["named"]
    assert f"{uneven.step_time_s:.2f}" == row["uneven"]
    assert stage_words(uneven.layout.stage_layers) == row["layers"]


def test_the_table_of_uneven_splits_has_rows() -> None:
    assert len(ROWS) == 5
