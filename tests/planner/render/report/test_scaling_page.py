"""The page of a scaling curve against the rows of the curve."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from planner.render.report.scaling_page import points_of, scale_page, scaling_sections
from planner.sweeps.scaling.curve import Scaling, scale
from tests.planner.command import run_here


@pytest.fixture(scope="module")
def curve() -> Scaling:
    return scale("llama3-8b", "h100-x512", most=64, points=3)


def test_figures_hold_the_rows(curve: Scaling) -> None:
    points = points_of(curve)
    charts = {
        chart.key: chart for part in scaling_sections(curve, points) for chart in part.charts
    }
    rows = [row for row in curve.rows if row["best.step_time_s"]]
    strong = charts["scaling-strong"].table.rows
    assert [cells[1] for cells in strong] == [row["n_devices"] for row in rows]
    assert [cells[2] for cells in strong] == [row["best.tokens_per_s"] for row in rows]
    assert [cells[3] for cells in strong] == pytest.approx(
        [100 * float(row["scale.efficiency"] or 0) for row in rows], abs=1e-3
    )
    assert [cells[1:3] for cells in charts["waiting"].table.rows] == [
        (row["scale.compute_s"], row["scale.exposed_comm_s"]) for row in rows
    ]
    assert {"axis-1", "layouts", "elasticities", "roofline"} < set(charts)


def test_words_are_those_of_the_table(curve: Scaling) -> None:
    page = scale_page(curve)
    text = unescape(page)
    assert "llama3-8b on h100-x512: strong scaling over devices" in text
    assert re.search(r"<li>Knee: .*devices", text)
    assert scale_page(curve) == page


def test_a_curve_without_sizes_or_plans_is_a_page(curve: Scaling) -> None:
    assert "The sweep has no points" not in scale_page(replace(curve, rows=()))
    lost = tuple(
        {
            name: None if name.startswith(("best.", "scale.e", "scale.s")) else value
            for name, value in row.items()
        }
        | {"status": "infeasible", "reason": "nothing fits", "scale.size": row["scale.size"]}
        for row in curve.rows
    )
    text = scale_page(replace(curve, rows=lost))
    assert "None of the" in text


def test_option(tmp_path: Path) -> None:
    out = tmp_path / "curve.html"
    words = ("scale", "llama3-8b", "h100-x8", "--points", "2", "--html")
    done = run_here(*words, str(out))
    assert done.returncode == 0, done.stderr
    assert "scaling over devices" in out.read_text()
    done = run_here(*words, str(tmp_path / "no" / "curve.html"))
    assert done.returncode == 1
    assert "there is no folder" in " ".join(done.stderr.split())
