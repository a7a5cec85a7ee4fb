"""What `planner scale` does."""

import sys
from typing import TYPE_CHECKING

from planner.cli.search_options import Stated
from planner.errors import UsageError
from planner.render.report.files import check_folder, require_extra, write_text

if TYPE_CHECKING:
    from planner.sweeps.scaling.curve import Scaling

FORMATS = ("table", "json", "csv")


def run_scale(
    model: str,
    cluster: str,
    stated: Stated,
    *,
    scaling: str,
    over: str,
    least: int,
    most: int,
    points: int,
    pool: str,
    form: str,
    html: str,
    time_limit_s: float,
) -> int:
    """Run `planner scale`; return the exit code."""
    from planner.sweeps.scaling.curve import scale

    check_output(form, html)
    result = scale(
        model,
        cluster,
        **stated.searching(),
        scaling=scaling,
        over=over,
        least=least,
        most=most,
        points=points,
        pool=pool,
        time_limit_s=time_limit_s,
        progress=show_sizes,
    )
    return show_scaling(result, form, html)


def check_output(form: str, html: str) -> None:
    """Raise `UsageError` for output that cannot be had, before anything is computed."""
    if form not in FORMATS:
        raise UsageError(f"--format: unknown {form!r}", f"one of {', '.join(FORMATS)}")
    if html:
        require_extra()
        check_folder(html)


def show_scaling(found: "Scaling", form: str, html: str) -> int:
    """Print a curve, and write its page where one is named; return the exit code."""
    from planner.sweeps.scaling.text import scaling_text

    if form == "table":
        sys.stdout.write(scaling_text(found))
    else:
        sys.stdout.write(found.dumps() if form == "json" else found.csv())
    if html:
        from planner.render.report.scaling_page import scale_page

        write_text(html, scale_page(found))
    return found.exit_code


def show_sizes(done: int, total: int) -> None:
    """Show how many sizes are done on a terminal; nothing when stderr is a file."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        sys.stderr.write(f"\r{done} of {total} sizes{end}")
        sys.stderr.flush()
