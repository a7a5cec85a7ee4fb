"""`planner report`: a sweep as one HTML file or images, a result as a design review."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from planner.errors import EmitError, UsageError
from planner.render.report.points import PointAxis, SweepPoints

DEFAULT_OUT = "report.html"
IMAGE_FORMATS = ("png", "svg")


def run_report(sweep_file: str, out: str, x: str, y: str, image: str, form: str = "html") -> int:
    """Run `planner report`: write the file or the images, say what was written; return 0.

    `sweep_file` may also be a result of `planner solve`, or a plan of one, as in `explain`.
    """
    reference = _result_named(sweep_file)
    if reference is not None:
        return _run_review(reference, sweep_file, out, (x, y, image), form)
    if form != "html":
        raise UsageError(
            f"--format {form} is for results of planner solve; the report of a sweep is HTML",
            "leave --format out",
        )
    if image and image not in IMAGE_FORMATS:
        raise UsageError(f"--image: unknown format {image!r}", " or ".join(IMAGE_FORMATS))
    if image and not out:
        raise UsageError(
            "--image needs --out DIR, the folder for the images",
            f"planner report {sweep_file} --image {image} --out figures",
        )
    if image:
        from planner.render.report.images import write_images

        require_extra()
        points = read_points(sweep_file)
        written = write_images(points, Path(out), image, *_axes_of_maps(points, x, y))
        sys.stderr.write(f"wrote {len(written)} images to {out}\n")
        return 0
    require_extra()
    check_folder(out or DEFAULT_OUT)
    write_text(out or DEFAULT_OUT, report(sweep_file, x, y))
    return 0


def _result_named(source: str) -> tuple[dict[str, Any], str] | None:
    """Return a result and the plan of it that an argument names; None where it is no result."""
    if source == "last" or ("#" in source and not Path(source).exists()):
        from planner.solver.answer.result_store import read_plan_reference

        return read_plan_reference(source)
    path = Path(source)
    try:
        with path.open("rb") as file:
            start = file.read(4096).lstrip()
        if not start.startswith(b"{") or b'"schema_version"' not in start:
            return None
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or not {"plans", "inputs", "result_id"} <= set(data):
        return None
    from planner.solver.answer.result_store import checked_result

    return checked_result(data, source), "1"


def _run_review(
    found: tuple[dict[str, Any], str], source: str, out: str, of_sweeps: tuple[str, ...], form: str
) -> int:
    """Write the design review of a result."""
    from planner.render.report.review import FORMATS, review_document, review_text

    if form not in FORMATS:
        raise UsageError(f"--format: unknown {form!r}", " or ".join(FORMATS))
    if any(of_sweeps):
        raise UsageError("--x, --y and --image belong to reports of sweeps", "leave them out")
    target = out or f"review.{'md' if form == 'markdown' else 'html'}"
    check_folder(target)
    write_text(target, review_text(review_document(*found, source), form))
    return 0


def report(sweep_file: str | os.PathLike[str], x: str = "", y: str = "") -> str:
    """Return the report of a sweep as HTML; `x` and `y` are the axes of its maps.

    `sweep_file` is what a sweep has written, finished or not. Raises `SweepFileError` for a file
    that is no sweep and `UsageError` for an axis that it does not vary.
    """
    require_extra()
    from planner.render.report.page import sweep_page

    points = read_points(os.fspath(sweep_file))
    return sweep_page(points, Path(sweep_file).name, *_axes_of_maps(points, x, y))


def _axes_of_maps(
    points: SweepPoints, x: str, y: str
) -> tuple[PointAxis | None, PointAxis | None]:
    x_axis, y_axis = chosen_axis(points, x, "--x"), chosen_axis(points, y, "--y")
    if x_axis is not None and x_axis is y_axis:
        raise UsageError(f"--x and --y are both {x_axis.path}", "name two different axes")
    return x_axis, y_axis


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


def require_extra() -> None:
    """Raise one clear error unless the libraries of the extra [report] are installed."""
    missing = [name for name in ("plotly", "jinja2") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"reports need {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'}"
            " not installed",
            "pip install 'parallelism-planner[report]'",
        )


def read_points(sweep_file: str) -> SweepPoints:
    """Return the rows of a finished or partial sweep."""
    from planner.sweeps.reader import read_sweep

    sweep = read_sweep(Path(sweep_file))
    if not sweep.finished:
        sys.stderr.write(
            f"{sweep_file}: the sweep is not finished: {len(sweep):,} points so far are reported\n"
        )
    return SweepPoints(sweep.values, sweep.header)


def chosen_axis(points: SweepPoints, path: str, option: str) -> PointAxis | None:
    """Return the axis that an option names; `UsageError` with the axes there are."""
    if not path:
        return None
    axis = points.axis(path)
    if axis is None or len(axis.values) < 2:
        known = ", ".join(a.path for a in points.axes if len(a.values) > 1)
        if not known:
            raise UsageError(f"{option}: the sweep varies nothing", f"leave {option} out")
        raise UsageError(
            f"{option}: {path!r} is not an axis of the sweep with several values",
            f"one of {known}",
        )
    return axis
