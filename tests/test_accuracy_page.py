"""The page of measured runs: the same bytes from the same file, every link resolves."""

import csv
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "accuracy_page"
pytest.importorskip("matplotlib", reason="in the extras report and dev")

MODELS = {
    "m": {
        "layers": 8,
        "hidden": 1024,
        "heads": 8,
        "kv_heads": 8,
        "head_dim": 128,
        "ffn": 4096,
        "gated": False,
        "vocab": 32000,
        "tied": False,
    }
}
HARDWARE = {"h": {"gpu": "h100-sxm-80gb", "gpus_per_node": 8}}
RUNS = (
    {"id": "a-1", "tp": 1, "dp": 8, "step_time_s": 0.25, "peak_mem_gb": 9, "mem_unit": "GiB"},
    {"id": "a-2", "tp": 2, "dp": 4, "step_time_s": 0.5},
    {"id": "a-3", "tp": 4, "dp": 2, "step_time_s": 1.0},
    {"id": "a-4", "tp": 4, "dp": 2, "step_time_s": 3.0},
    {"id": "b-1", "tp": 1, "dp": 8, "mfu": 0.4},
)
ANCHOR = re.compile(r"\]\(([^)\s]*)#([^)\s]+)\)")
TARGET = re.compile(r"\]\(([^)\s#]+)[^)]*\)")


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the script on what lies in `folder`."""
    named = ("points.csv", "models.yaml", "hardware.yaml", "notes.yaml")
    files = [x for name in named for x in (f"--{Path(name).stem}", str(folder / name))]
    return subprocess.run(
        [sys.executable, str(SCRIPT), *files, *more],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A file of five runs, and the page made of it."""
    made = tmp_path_factory.mktemp("runs")
    fixed = {
        "model": "m",
        "hardware": "h",
        "n_gpus": 8,
        "seq_len": 2048,
        "gbs": 64,
        "mbs": 1,
        "pp": 1,
        "zero": 1,
        "stack": "megatron-core",
    }
    titles = sorted({name for row in RUNS for name in row} | set(fixed))
    with (made / "points.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, titles, restval="")
        table.writeheader()
        table.writerows(fixed | row for row in RUNS)
    (made / "models.yaml").write_text(yaml.safe_dump(MODELS))
    (made / "hardware.yaml").write_text(yaml.safe_dump(HARDWARE))
    shipped = yaml.safe_load((ROOT / "docs" / "accuracy" / "notes.yaml").read_text())
    one = {"what": "five runs", "url": "https://example.org/a", "above": 0.01, "why": "Because."}
    two = {"what": "one run", "url": "https://example.org/b", "why": "Not predicted."}
    notes = shipped | {
        "sources": {"a": one, "b": two},
        "skipped": {"only a FLOP rate": "its step time"},
    }
    (made / "notes.yaml").write_text(yaml.safe_dump(notes))
    done = run(made, "--out", str(made / "one"))
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(folder):
    (folder / "two" / "accuracy").mkdir(parents=True)
    (folder / "two" / "accuracy" / "gone.svg").write_text("of a source that is no more")
    assert run(folder, "--out", str(folder / "two")).returncode == 0
    made = {
        name: {
            str(path.relative_to(folder / name)): path.read_bytes()
            for path in (folder / name).rglob("*")
            if path.is_file()
        }
        for name in ("one", "two")
    }
    assert set(made["one"]) == {"accuracy.md", "accuracy/a.svg"}
    assert made["one"] == made["two"]


def test_the_page_says_what_was_compared(folder):
    text = (folder / "one" / "accuracy.md").read_text()
    assert "4 of 5 runs are predicted" in text
    assert "[five runs](https://example.org/a)" in text
    assert "Because." in text
    assert "Not predicted." not in text
    assert "| only a FLOP rate | 1 | b | its step time |" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| a-3 |")]
    # a-3 and a-4 are one layout: the median of their times is 2 s
    assert row.split(" | ")[3] == "2"
    assert float(row.split(" | ")[5].replace("−", "-")) == pytest.approx(
        100 * (float(row.split(" | ")[4]) / 2 - 1), abs=0.1
    )
    assert "linear" in row


def test_every_layout_is_a_point(folder):
    root = ET.fromstring((folder / "one" / "accuracy" / "a.svg").read_text())
    points = [
        element.get("style", "")
        for element in root.iter("{http://www.w3.org/2000/svg}use")
        if "#1f6fb2" in element.get("style", "")
    ]
    # three layouts and one with memory; each panel's legend shows one more
    assert len(points) == (3 + 1) + (1 + 1)
    words = {x.text for x in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"measured step time, s", "predicted memory, GiB", "a, 3 layouts"} <= words


@pytest.mark.parametrize("made", ["shipped", "written"])
def test_links_of_the_page_resolve(folder, made):
    page = ROOT / "docs" / "accuracy.md" if made == "shipped" else folder / "one" / "accuracy.md"
    text = page.read_text(encoding="utf-8")
    for target in TARGET.findall(text):
        here = page.parent / target
        # a page written elsewhere still points to the other pages of the documentation
        assert "://" in target or here.exists() or (ROOT / "docs" / target).exists(), target
    for target, anchor in ANCHOR.findall(text):
        other = ROOT / "docs" / target if target else page
        titles = re.findall(r"^#+ (.+)$", other.read_text(encoding="utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert anchor in slugs, f"{target}#{anchor}"


@pytest.mark.slow
def test_an_explanation_goes_when_the_miss_is_gone(folder, tmp_path):
    for name in ("points.csv", "models.yaml", "hardware.yaml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    notes = yaml.safe_load((folder / "notes.yaml").read_text())
    notes["sources"]["a"]["above"] = 50.0
    (tmp_path / "notes.yaml").write_text(yaml.safe_dump(notes))
    assert run(tmp_path, "--out", str(tmp_path)).returncode == 0
    text = (tmp_path / "accuracy.md").read_text()
    assert "five runs" in text
    assert "Because." not in text


def test_bad_input_is_one_line(folder, tmp_path):
    (tmp_path / "points.csv").write_text("id,model\nx,y\n")
    for name in ("models.yaml", "hardware.yaml", "notes.yaml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    done = run(tmp_path, "--out", str(tmp_path))
    assert done.returncode == 2
    assert "column hardware, n_gpus is missing" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_shipped_page_stays_small():
    files = [ROOT / "docs" / "accuracy.md", *(ROOT / "docs" / "accuracy").glob("*")]
    assert sum(path.stat().st_size for path in files) < 1.5e6
