"""What `planner scale` does."""

import sys
from typing import TYPE_CHECKING, Any

from planner.commands import lists_in_words, pins_in_words
from planner.errors import UsageError
from planner.options import parse_max, parse_pins
from planner.reporting.command import check_folder, require_extra, write_text

if TYPE_CHECKING:
    from planner.scaling.curve import Scaling

FORMATS = ("table", "json", "csv")


def run_scale(
    model: str,
    cluster: str,
    *,
    pin: list[str],
    only: list[str],
    at_most: list[str],
    form: str,
    html: str = "",
    **asked: Any,
) -> int:
    """Run `planner scale`; return the exit code. `asked` are other arguments of `scale`."""
    from planner.scaling.curve import scale

    check_output(form, html)
    found = scale(
        model,
        cluster,
        pins=pins_in_words(parse_pins(pin)),
        only=lists_in_words(only),
        at_most=parse_max(at_most),
        progress=show_sizes,
        **asked,
    )
    return show_scaling(found, form, html)


def check_output(form: str, html: str) -> None:
    """Raise `UsageError` for output that cannot be had, before anything is computed."""
    if form not in FORMATS:
        raise UsageError(f"--format: unknown {form!r}", f"one of {', '.join(FORMATS)}")
    if html:
        require_extra()
        check_folder(html)


def show_scaling(found: "Scaling", form: str, html: str) -> int:
    """Print a curve, and write its page where one is named; return the exit code."""
    from planner.scaling.text import scaling_text

    if form == "table":
        sys.stdout.write(scaling_text(found))
    else:
        sys.stdout.write(found.dumps() if form == "json" else found.csv())
    if html:
        from planner.reporting.scaling_page import scale_page

        write_text(html, scale_page(found))
    return found.exit_code


def show_sizes(done: int, total: int) -> None:
    """Show how many sizes are done on a terminal; nothing when stderr is a file."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        sys.stderr.write(f"\r{done} of {total} sizes{end}")
        sys.stderr.flush()
