"""The page: it loads nothing, runs nothing foreign, and is the same each time."""

import csv
import io
import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from planner.render.report import page as page_module
from planner.render.report.answers import AnswerTable as PageTable
from planner.render.report.page import MAX_TABLE_ROWS, csv_text, sweep_page
from planner.render.report.points import SweepPoints
from planner.units import GIB
from tests.planner.command import run_here
from tests.planner.render.report.synthetic import HBM, MEMORY, NODES, columns, grid, header, row

AXES: dict[str, list[Any]] = {NODES: [2, 8], MEMORY: [80 * GIB, 320 * GIB], HBM: [1e12, 4e12]}
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'%{x}\u2028"


class Page(HTMLParser):
    """What a browser would find: elements with their attributes, JSON and text by id."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.json: dict[str, str] = {}
        self._id = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.elements.append((tag, found))
        self._id = found.get("id", "") if tag == "script" else ""

    def handle_data(self, data: str) -> None:
        if self._id:
            self.json[self._id] = self.json.get(self._id, "") + data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [found for name, found in self.elements if name == tag]


def page_of(rows: list[dict[str, Any]], axes: dict[str, list[Any]]) -> str:
    return sweep_page(SweepPoints(columns(rows), header(axes)), "sweep.parquet")


@pytest.fixture(scope="module")
def text() -> str:
    return page_of(grid(AXES), AXES)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_same_input_same_bytes(text: str) -> None:
    assert page_of(grid(AXES), AXES) == text


def test_nothing_is_loaded_from_elsewhere(page: Page) -> None:
    for _, found in page.elements:
        for name in ("src", "href", "action", "poster", "srcset", "data"):
            assert not found.get(name, "").startswith(("http", "//", "file")), found
    assert not page.all("link") or all(f["href"] == "data:," for f in page.all("link"))
    policy = next(f["content"] for f in page.all("meta") if "http-equiv" in f)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy


def test_every_figure_is_described_and_has_its_data(page: Page) -> None:
    plots = [found for found in page.all("div") if found.get("class") == "plot"]
    assert len(plots) >= 9
    for plot in plots:
        assert plot["role"] == "img"
        assert len(plot["aria-label"]) > 20
        figure = json.loads(page.json[plot["data-figure"]])
        assert figure["data"]
        assert "template" not in figure["layout"]
    names = [f["download"] for f in page.all("a") if "download" in f]
    assert {f"{plot['data-figure'].removesuffix('-data')}.csv" for plot in plots} < set(names)
    assert len(names) == len(set(names))


def test_ids_are_unique_and_links_resolve(page: Page) -> None:
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    for link in page.all("a"):
        if link["href"].startswith("#"):
            assert link["href"][1:] in ids


def test_the_file_of_all_points_holds_the_rows(page: Page) -> None:
    href = next(f["href"] for f in page.all("a") if f.get("download") == "points.csv")
    kind, _, data = href.partition(",")
    assert kind == "data:text/csv;charset=utf-8"
    found = list(csv.DictReader(io.StringIO(unquote(data))))
    rows = grid(AXES)
    assert len(found) == len(rows)
    for cells, expected in zip(found, rows, strict=True):
        assert cells["status"] == expected["status"]
        step = expected.get("best.step_time_s")
        assert cells["best.step_time_s"] == ("" if step is None else repr(step))


def test_hostile_names_stay_text() -> None:
    axes: dict[str, list[Any]] = {NODES: [8, 16], "pools.0.accelerator": [EVIL, "b200"]}
    rows = grid(axes, model=EVIL, cluster=EVIL, accelerator=EVIL, assumed=EVIL, calibration=EVIL)
    for found in rows:
        found |= {"best.layout": EVIL, "best.plan_id": EVIL, "best.binding": EVIL}
    rows.append(row(9, {NODES: 1, "pools.0.accelerator": EVIL}, status="failed", reason=EVIL))
    head = header(axes) | {"name": EVIL, EVIL: {EVIL: EVIL}}
    head["axes"][1]["label"] = EVIL
    text = sweep_page(SweepPoints(columns(rows), head), EVIL)
    hostile = Page(text)
    assert len(hostile.all("img")) == 0
    n_figures = len([f for f in hostile.all("div") if f.get("class") == "plot"])
    assert len(hostile.all("script")) == n_figures + 3
    assert all(not name.startswith("on") for _, found in hostile.elements for name in found)
    assert "<script>alert" not in text.replace("\\u003c", "")
    for key, data in hostile.json.items():
        for words in _texts(json.loads(data)):
            assert "<script" not in words, key
            assert "%{x}" not in words.replace("%{x}: %{y}<extra></extra>", ""), key


def _texts(data: Any) -> list[str]:
    if isinstance(data, dict):
        return [text for value in data.values() for text in _texts(value)]
    if isinstance(data, list):
        return [text for value in data for text in _texts(value)]
    return [data] if isinstance(data, str) else []


def test_cells_are_no_formulas() -> None:
    assert csv_text(PageTable(("=a", "n"), (("=cmd()", -1.5), ("-", None)))) == (
        "'=a,n\n'=cmd(),-1.5\n-,\n"
    )


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_any_points(count: int) -> None:
    rows = grid({HBM: [2e12]})[:count]
    found = Page(page_of(rows, {HBM: [2e12]}))
    assert len(found.all("h1")) == 1


def test_all_failed() -> None:
    axes: dict[str, list[Any]] = {NODES: [1, 2]}
    text = page_of(grid(axes), axes)
    assert "None of the 2 points has a plan" in text
    assert "the closest needs 256.0 GiB" in text


def test_long_tables_are_cut_and_said_so() -> None:
    axes: dict[str, list[Any]] = {HBM: [1e12 * k for k in range(1, MAX_TABLE_ROWS + 51)]}
    text = page_of(grid(axes), axes)
    assert f"The first {MAX_TABLE_ROWS} of {MAX_TABLE_ROWS + 50} rows" in text


def sweep_file(folder: Path, axes: dict[str, list[Any]] = AXES) -> Path:
    """Write a sweep as CSV with its header beside it, as `planner sweep --format csv` does."""
    rows = columns(grid(axes))
    path = folder / "sweep.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows)
        writer.writerows(zip(*rows.values(), strict=True))
    return path


def test_command(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = run_here("report", str(sweep_file(tmp_path)), "--out", str(out), "--x", "hbm_bandwidth")
    assert (done.returncode, done.stdout) == (0, "")
    assert f"wrote {out}" in done.stderr
    assert "Step time over accelerator hbm bandwidth and nodes" in out.read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--x", "pools.0.nics"], 2, "'pools.0.nics' is not an axis"),
        (["--x", "nodes", "--y", "pools.0.nodes"], 2, "--x and --y are both pools.0.nodes"),
        (["--image", "pdf", "--out", "x"], 2, "--image: unknown format 'pdf'"),
        (["--image", "png"], 2, "--image needs --out DIR"),
        (["--out", "missing/folder/r.html"], 1, "cannot write missing/folder/r.html"),
    ],
)
def test_bad_options(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    done = run_here("report", str(sweep_file(tmp_path)), *words)
    assert done.returncode == code
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("content", [None, b"", b"a,b\n1,2\n", b"PAR1nonsense"])
def test_bad_files(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "sweep.parquet"
    if content is not None:
        path.write_bytes(content)
    done = run_here("report", str(path), "--out", str(tmp_path / "r.html"))
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("error: ")
    assert "defect of planner" not in done.stderr


def test_missing_extra_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.render.report.sweep_report.find_spec", lambda name: None)
    done = run_here("report", str(sweep_file(tmp_path)))
    assert done.returncode == 2
    assert "pip install 'parallelism-planner[report]'" in done.stderr


def test_missing_browser_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    done = run_here("report", str(sweep_file(tmp_path)), "--image", "png", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "there is no such file" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_browser_draws_it_without_complaint(tmp_path: Path, text: str) -> None:
    """Figures that are far down are drawn when they come near, so each is scrolled to."""
    api = pytest.importorskip("playwright.sync_api")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on the PATH")
    (tmp_path / "report.html").write_text(text)
    complaints: list[str] = []
    with api.sync_playwright() as playwright:
        window = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = window.new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((tmp_path / "report.html").as_uri())
        plots = page.locator("[data-figure].plot")
        assert plots.count() == text.count('class="plot"') > 0
        for at in range(plots.count()):
            plots.nth(at).scroll_into_view_if_needed()
            plots.nth(at).locator(".main-svg").first.wait_for(state="attached")
        window.close()
    assert not complaints


@pytest.mark.slow
def test_images(tmp_path: Path) -> None:
    pytest.importorskip("kaleido")
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("no Chromium on the PATH")
    out = tmp_path / "images"
    done = run_here("report", str(sweep_file(tmp_path)), "--image", "svg", "--out", str(out))
    assert done.returncode == 0, done.stderr
    found = sorted(out.glob("*.svg"))
    assert len(found) >= 9
    assert all(file.read_text().startswith("<svg") for file in found)


def test_a_download_of_main_columns_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    points = SweepPoints(columns(grid(AXES)), header(AXES))
    assert "main columns" not in sweep_page(points, "x.parquet")
    monkeypatch.setattr(page_module, "MAX_DOWNLOAD_BYTES", 100)
    text, n_left_out = page_module.points_csv(points)
    heads = text.split("\n", 1)[0].split(",")
    n_held = sum(any(v is not None for v in column) for column in points.columns.values())
    assert len(heads) + n_left_out == n_held
    said = f"The download holds the main columns; {n_left_out} more are in the file of the sweep."
    assert said in sweep_page(points, "x.parquet")
