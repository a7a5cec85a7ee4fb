"""The commands `planner catalog list` and `planner catalog show`."""

import sys
from typing import Annotated

import typer

from planner.cli.plugins import Subcommands

catalog_app = typer.Typer(
    cls=Subcommands,
    help="Accelerators, links and platforms, each figure with its source and date.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@catalog_app.command("list")
def catalog_list_command() -> None:
    """List accelerators, links, servers and cloud machines."""
    from planner.render.catalog_text import catalog_list

    sys.stdout.write(catalog_list())


@catalog_app.command("show")
def catalog_show(
    name: Annotated[
        str, typer.Argument(help="An accelerator, a link, a server or a cloud machine.")
    ],
) -> None:
    """Show every figure of a part with its source and date, and its ridge points."""
    from planner.render.catalog_text import sheet

    sys.stdout.write(sheet(name))
