"""The figures of a report as PNG or SVG, drawn by a Chromium through kaleido."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from planner.errors import EmitError, UsageError
from planner.render.report.effects import effects
from planner.render.report.points import PointAxis, SweepPoints
from planner.render.report.sweep_charts import sections
from planner.render.report.theme import image_template

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
WIDTH = 1000
"""Pixels; a PNG has twice as many."""


def find_browser() -> str:
    """Return the path of the Chromium or Chrome that draws: BROWSER_PATH or one on the PATH."""
    named = os.environ.get("BROWSER_PATH", "")
    result = [named] if named else [shutil.which(name) or "" for name in BROWSERS]
    path = next((path for path in result if path and Path(path).is_file()), "")
    if not path:
        raise UsageError(
            f"BROWSER_PATH is {named}, and there is no such file"
            if named
            else "images are drawn by Chromium or Chrome, and none is on the PATH",
            "install chromium, or set BROWSER_PATH to it; the HTML report needs none",
        )
    return path


def write_images(
    points: SweepPoints,
    folder: Path,
    form: str,
    x: PointAxis | None = None,
    y: PointAxis | None = None,
) -> list[Path]:
    """Write every figure of the report of a sweep to `folder`; return the files."""
    try:
        import kaleido
    except ModuleNotFoundError:
        raise UsageError(
            "images need kaleido, which is not installed",
            "pip install 'parallelism-planner[report]'; the HTML report needs none",
        ) from None
    browser = find_browser()
    charts = [c for section in sections(points, effects(points), x, y) for c in section.charts]
    files = [folder / f"{chart.key}.{form}" for chart in charts]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            file.touch()
    except OSError as error:
        fix = "name another folder with --out"
        raise EmitError(f"cannot write to {folder}: {error.strerror}", fix) from None
    jobs = []
    for chart, file in zip(charts, files, strict=True):
        figure = chart.figure.to_plotly_json()
        margin = figure["layout"]["margin"] | {"t": 64}
        figure["layout"] |= {
            "template": image_template(),
            "title": {"text": _wrapped(chart.title)},
            "margin": margin,
            "width": WIDTH,
        }
        opts = {"format": form, "width": WIDTH, "scale": 2 if form == "png" else 1}
        jobs.append({"fig": figure, "path": file, "opts": opts})
    _draw(kaleido, jobs, browser)
    return files


def _draw(kaleido: Any, jobs: list[dict[str, Any]], browser: str) -> None:
    """Draw all figures in one browser, which loads Plotly from its package and nothing else."""
    logging.getLogger("kaleido").setLevel(logging.CRITICAL)
    logging.getLogger("choreographer").setLevel(logging.CRITICAL)
    try:
        kaleido.write_fig_from_object_sync(
            jobs, cancel_on_error=True, kopts={"path": browser, "mathjax": False, "n": 1}
        )
    except Exception as error:
        raise EmitError(
            f"{browser} could not draw the figures: {type(error).__name__}: {error}",
            "set BROWSER_PATH to another Chromium or Chrome; the HTML report needs none",
        ) from None


def _wrapped(title: str) -> str:
    import textwrap

    from planner.render.charts.chart import plain_figure

    return "<br>".join(plain_figure(line, 100) for line in textwrap.wrap(title, 90))
