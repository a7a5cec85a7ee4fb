"""Man pages, made of the same records as `--help`: one for planner, one for each command."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from planner.cli.files import write_files
from planner.cli.plugins import first_line
from planner.errors import UsageError

SECTION = 1
"""Section of the manual: commands of users."""


def run_man(root: Any, command: str, out: str) -> int:
    """Run `planner man`: print one page, or write all of them to a folder; return 0.

    `UsageError` where there is no such command.
    """
    pages = dict(manual_pages(root))
    if out:
        write_files(Path(out), pages)
        typer.echo(f"wrote {len(pages)} pages to {out}", err=True)
        return 0
    name = page_name(f"planner {command}".strip())
    if name not in pages:
        raise UsageError(f"planner has no command {command!r}", "planner --help lists them")
    typer.echo(pages[name], nl=False)
    return 0


def manual_pages(root: Any) -> Iterator[tuple[str, str]]:
    """Yield the name of the file and the text of each page: of planner, then of its commands."""
    yield page_name("planner"), page_text(root.command, root)
    yield from _pages_below(root)


def _pages_below(parent: Any) -> Iterator[tuple[str, str]]:
    group: Any = parent.command
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        context = typer.Context(command, info_name=name, parent=parent)
        yield page_name(context.command_path), page_text(command, context)
        if hasattr(command, "list_commands"):
            yield from _pages_below(context)


def page_name(path: str) -> str:
    """Return the file of a command's page.

    >>> page_name("planner catalog list")
    'planner-catalog-list.1'
    """
    return f"{path.replace(' ', '-')}.{SECTION}"


def page_text(command: Any, context: Any) -> str:
    """Return the page of a command in roff's macros of man."""
    path = context.command_path
    title = path.replace(" ", "-")
    text = command.help or ""
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    lines = [
        f'.TH "{roff(title.upper())}" {SECTION}',
        ".SH NAME",
        f"{roff(title)} \\- {roff(first_line(text))}",
        ".SH SYNOPSIS",
        roff(usage),
        ".SH DESCRIPTION",
        *(roff(line) or ".PP" for line in text.strip().splitlines()),
    ]
    records = [x for p in command.get_params(context) if (x := p.get_help_record(context))]
    if records:
        lines.append(".SH OPTIONS")
        for names, meaning in records:
            lines += [".TP", f"\\fB{roff(names)}\\fR", roff(meaning)]
    return "\n".join(lines) + "\n"


def roff(text: str) -> str:
    r"""Return a text as roff prints it: escapes and dashes whole, no line a macro.

    >>> roff("--top N"), roff(".x")
    ('\\-\\-top N', '\\&.x')
    """
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
