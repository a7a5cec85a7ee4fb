"""The commands `planner catalog list` and `planner catalog show`."""

import sys
from typing import Annotated

import typer

from planner.cli import completion
from planner.cli.plugins import Subcommands

catalog_app = typer.Typer(
    cls=Subcommands,
    help="List GPUs, links and cloud machines with their sources.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@catalog_app.command("list")
def catalog_list_command() -> None:
    """List accelerators, links, servers and cloud machines."""
    from planner.render.catalog import catalog_document
    from planner.render.terminal import terminal_text, terminal_width

    sys.stdout.write(terminal_text(catalog_document(), terminal_width()))


@catalog_app.command("show")
def catalog_show_command(
    name: Annotated[
        str,
        typer.Argument(
            help="An accelerator, a link, a server or a cloud machine.",
            autocompletion=completion.complete_parts,
        ),
    ],
) -> None:
    """Show every figure of a part with its source and date, and its ridge points."""
    from planner.render.catalog import sheet_document, sheet_of
    from planner.render.terminal import terminal_text, terminal_width

    sys.stdout.write(terminal_text(sheet_document(sheet_of(name)), terminal_width()))
