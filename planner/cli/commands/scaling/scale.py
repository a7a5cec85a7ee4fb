"""What `planner scale` does."""

import sys
from typing import TYPE_CHECKING

from planner.cli.arguments import check_format, size
from planner.cli.command_arguments import ScaleArguments
from planner.cli.files import check_folder, write_text
from planner.cli.progress import SIZES, TerminalProgress
from planner.render.report.sweep_report import require_extra

if TYPE_CHECKING:
    from planner.sweeps.scaling.curve import Scaling

FORMATS = ("table", "json", "csv")


def run_scale(model: str, cluster: str, arguments: ScaleArguments) -> int:
    """Run `planner scale`; return the exit code."""
    from planner.sweeps.scaling.curve import scale

    least, largest = size(arguments.from_, "--from"), size(arguments.to, "--to")
    check_output(arguments.form, arguments.html)
    result = scale(
        model,
        cluster,
        arguments.request(),
        scaling=arguments.scaling,
        over=arguments.over,
        least=least,
        most=largest,
        points=arguments.points,
        progress=TerminalProgress(SIZES),
    )
    return show_scaling(result, arguments.form, arguments.html)


def check_output(form: str, html: str) -> None:
    """Raise `UsageError` for output that cannot be had, before anything is computed."""
    check_format(form, FORMATS)
    if html:
        require_extra()
        check_folder(html)


def show_scaling(curve: "Scaling", form: str, html: str) -> int:
    """Print a curve, and write its page where one is named; return the exit code."""
    from planner.render.document import text_of
    from planner.render.terminal import terminal_width

    if form == "table":
        sys.stdout.write(text_of(curve, terminal_width()))
    else:
        sys.stdout.write(curve.dumps() if form == "json" else curve.csv())
    if html:
        from planner.render.report.scaling_page import scale_page

        write_text(html, scale_page(curve))
    return curve.exit_code
