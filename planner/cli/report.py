"""`planner report`: a sweep as one HTML file or images, a result as a design review."""

import json
import sys
from pathlib import Path
from typing import Any

from planner.cli.files import check_folder, write_text
from planner.errors import UsageError
from planner.render.report.sweep_report import axes_of_maps, read_points, report, require_extra

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
        written = write_images(points, Path(out), image, *axes_of_maps(points, x, y))
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
    reference: tuple[dict[str, Any], str],
    source: str,
    out: str,
    sweep_options: tuple[str, ...],
    form: str,
) -> int:
    """Write the design review of a result."""
    from planner.render.report.review import FORMATS, review_document, review_text

    if form not in FORMATS:
        raise UsageError(f"--format: unknown {form!r}", " or ".join(FORMATS))
    if any(sweep_options):
        raise UsageError("--x, --y and --image belong to reports of sweeps", "leave them out")
    target = out or f"review.{'md' if form == 'markdown' else 'html'}"
    check_folder(target)
    write_text(target, review_text(review_document(*reference, source), form))
    return 0
