"""Commands of packages above this one, found through the entry point group `planner.commands`.

    [project.entry-points."planner.commands"]
    serve = "service.command:app"        # a typer application of one command, or of several

They are looked for only where a command is not one of planner's own, and for `--help`. Where the
root option `--server` names a service, `planner.cli.remote` answers the commands that it can.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

GROUP = "planner.commands"
FIND = "Find a plan"
READ = "Understand a plan"
RUN = "Run a plan"
MEASURE = "Measure and calibrate"
LOOK_UP = "Files, facts and rules"
SERVE = "Page and service"
SECTIONS = (FIND, READ, RUN, MEASURE, LOOK_UP, SERVE)
"""Groups of commands in the order of the help; commands of other packages stand in the last."""


@cache
def _found() -> dict[str, EntryPoint]:
    """Return entry points by the name of their command."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=str)}


class Subcommands(TyperGroup):
    """Commands of which those that a service answers are asked of it, with `--server`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is asked for; with `--server`, as a service answers it."""
        name, command, rest = super().resolve_command(ctx, args)
        root = ctx.find_root()
        if not root.params.get("server") or command is None or isinstance(command, TyperGroup):
            return name, command, rest
        from planner.cli.remote import over_server

        of_root = ctx is root
        called = str(name) if of_root else f"{ctx.info_name} {name}"
        parameter_source = root.get_parameter_source("server")
        required = getattr(parameter_source, "name", "") == "COMMANDLINE"
        return name, over_server(command, called, root.params, required), rest


class Commands(Subcommands):
    """Planner's commands, and after them those of other packages; its own come first."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by section, each with its whole summary."""
        names = self.list_commands(ctx)
        commands = {name: command for name in names if (command := self.get_command(ctx, name))}
        width = max(map(len, commands))
        for section in SECTIONS:
            rows = [
                (name.ljust(width), first_line(command.help or ""))
                for name, command in commands.items()
                if not command.hidden and help_section(command) == section
            ]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        own = super().list_commands(ctx)
        return [*own, *(name for name in _found() if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None where there is none of this name."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in _found():
            return own
        command = typer.main.get_command(_found()[cmd_name].load())
        command.name = cmd_name
        return command


def help_section(command: Any) -> str:
    """Return the section of the help in which a command stands."""
    section = getattr(command, "rich_help_panel", None)
    return section if section in SECTIONS else SERVE


def first_line(text: str) -> str:
    """Return the summary of a command: the first line of its help."""
    return text.strip().partition("\n")[0]
