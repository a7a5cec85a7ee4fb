"""`planner validate`: reads measured runs, compares, prints."""

import json
import sys
from collections.abc import Sequence

from planner.cli.progress import TerminalProgress
from planner.errors import UsageError
from planner.measure.validate.points import read_measured_points, unread_columns
from planner.measure.validate.report import (
    DATA,
    FORMATS,
    VIEWS,
    read_entries,
    unread_keys,
    validation_report,
)
from planner.measure.validate.rows import Used, measured_sweeps, price_points, use
from planner.measure.validate.search import search_sweeps, searched_json, searched_text
from planner.measure.validate.text import report_text
from planner.render.terminal import terminal_width
from planner.solver.calibration.file import load_calibration
from planner.units import shown_value

PRICING = "pricing runs"
"""What is counted while measured runs are priced."""


def run_validate(
    points: str = "",
    models: str = "",
    hardware: str = "",
    form: str = "table",
    by: str = "source",
    calibration: str = "",
) -> int:
    """Run `planner validate`: read, compare, print; return the exit code.

    Files that are not named are those that ship.
    """
    if form not in FORMATS:
        raise UsageError(f"--format: unknown {form!r}", f"one of {', '.join(FORMATS)}")
    if by not in VIEWS:
        raise UsageError(f"--by: unknown {by!r}", f"one of {', '.join(VIEWS)}")
    inputs = (
        read_measured_points(points or DATA / "points.csv"),
        read_entries(models or DATA / "models.yaml"),
        read_entries(hardware or DATA / "hardware.yaml"),
        load_calibration(calibration),
    )
    unread = (*unread_columns(inputs[0]), *unread_keys(inputs[1]), *unread_keys(inputs[2]))
    for title, close in unread:
        guess = f": did you mean {close}?" if close else ""
        sys.stderr.write(f"note: {shown_value(title)} is not read{guess}\n")
    if by == "search":
        used = use(price_points(*inputs, TerminalProgress(PRICING)))
        sys.stdout.write(_search_text(used, form))
        return 0
    result = validation_report(*inputs, TerminalProgress(PRICING))
    text = (
        json.dumps(result.to_json(by), indent=2, allow_nan=False) + "\n"
        if form == "json"
        else report_text(result, by, terminal_width())
    )
    sys.stdout.write(text)
    return 0


def run_validate_recipes(recipes: str, models: str, form: str, calibration: str) -> int:
    """Run `planner validate --recipes`: price and search every recipe; return the exit code.

    Files that are not named are those that ship.
    """
    from planner.frameworks.bridge.recipe_table import RECIPE_DATA, read_recipes
    from planner.measure.recipes.report import recipes_report
    from planner.measure.recipes.text import recipes_markdown, recipes_text

    forms = {"table": recipes_text, "md": recipes_markdown}
    if form not in (*forms, "json"):
        raise UsageError(f"--format: unknown {form!r}", "table, json or md")
    table = read_recipes(
        recipes or RECIPE_DATA / "recipes.csv", models or RECIPE_DATA / "models.yaml"
    )
    shown = TerminalProgress("searching recipes")
    report = recipes_report(table, load_calibration(calibration), shown)
    if form == "json":
        sys.stdout.write(json.dumps(report.to_json(), indent=2, allow_nan=False) + "\n")
    else:
        sys.stdout.write(forms[form](report))
    return 0


def _search_text(used: Sequence[Used], form: str) -> str:
    """Return what the search says about every sweep, as text or as JSON."""
    sweeps = search_sweeps(measured_sweeps(used, "any"), TerminalProgress("searching sweeps"))
    if form == "json":
        return json.dumps(searched_json(sweeps), indent=2, allow_nan=False) + "\n"
    return searched_text(sweeps)
