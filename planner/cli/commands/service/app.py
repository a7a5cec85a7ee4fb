"""The commands `planner jobs list`, `show`, `watch` and `cancel`: asked of a service alone."""

from typing import Annotated, NoReturn

import typer

from planner.cli.plugins import Subcommands
from planner.errors import UsageError

jobs_app = typer.Typer(
    cls=Subcommands,
    help="List, watch and cancel one's jobs at a service.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

JobArg = Annotated[str, typer.Argument(metavar="JOB", help="Its id.")]
Labels = Annotated[
    str, typer.Option(metavar="SELECTOR", help="Such as team=vision,stage!=old; a in (b,c); !a.")
]
Call = Annotated[str, typer.Option(metavar="CALL", help="Only jobs of it: sweep, scale, solve.")]
Form = Annotated[str, typer.Option("--format", help="table or json.")]


def _asks(command: str) -> NoReturn:
    raise UsageError(
        f"planner jobs {command} asks a service, and none is named",
        f"planner --server http://127.0.0.1:8642 jobs {command}, or PLANNER_SERVER",
    )


@jobs_app.command("list")
def jobs_list_command(
    state: Annotated[str, typer.Option(help="PENDING, RUNNING, SUCCEEDED, ...")] = "",
    labels: Labels = "",
    call: Call = "",
    created_after: Annotated[str, typer.Option(metavar="TIME", help="2025-11-29T08:00:00Z.")] = "",
    created_before: Annotated[str, typer.Option(metavar="TIME", help="The same.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Most jobs, the newest first.")] = 50,
    form: Form = "table",
) -> None:
    """List one's jobs at a service, the newest first."""
    _asks("list")


@jobs_app.command("show")
def jobs_show_command(job: JobArg, form: Form = "table") -> None:
    """Show one job: its state, its times, why it failed."""
    _asks("show")


@jobs_app.command("watch")
def jobs_watch_command(
    labels: Labels = "",
    call: Call = "",
    state: Annotated[str, typer.Option(help="Print only changes into this state.")] = "",
    until_ended: Annotated[
        bool, typer.Option("--until-ended", help="End when none is open any more.")
    ] = False,
    form: Form = "table",
) -> None:
    """Print what changes in one's jobs, a line each, until Ctrl-C.

    The jobs that are open come first. A break of the connection loses nothing.
    """
    _asks("watch")


@jobs_app.command("cancel")
def jobs_cancel_command(job: JobArg, form: Form = "table") -> None:
    """Cancel a job; one that has ended stays as it is."""
    _asks("cancel")
