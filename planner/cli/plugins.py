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
