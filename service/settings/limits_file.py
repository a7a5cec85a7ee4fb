"""The file of `planner serve --limits`: limits by name, in place of their defaults.

    # limits.yaml
    solve_s: 20
    queue_length: 200
    retention_s: 86400

Names and meanings are those of `limits.RequestLimits` and of some of `options.Options` (`NAMED`);
docs/service.md shows all of them.
"""

import ast
import inspect
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from planner.errors import InputProblem as Wrong
from planner.errors import SpecError
from planner.specs.yaml.document import Document, close_names, parse_yaml, read_text
from service.handlers.limits import RequestLimits
from service.settings.options import Options

NAMED = (
    "cache_bytes",
    "lease_s",
    "drain_s",
    "job_hard_s",
    "max_attempts",
    "retention_s",
    "watchers",
    "watchers_per_caller",
    "history_s",
    "webhooks_per_owner",
    "page_items",
)
"""Options that are limits."""
LINES = "write `name: number` lines, such as solve_s: 20; docs/service.md lists the names"
MOST = 10**15
ABOVE = (
    ("hard_s", "solve_s"),
    ("job_hard_s", "job_s"),
    ("space", "large_space"),
    ("body_bytes", "document_bytes"),
    ("queue_length", "per_caller"),
)
"""Pairs of which the first must be as large as the second at least."""


def known_limits() -> dict[str, tuple[float, str]]:
    """Return every limit by name: its default and its meaning."""
    entries: dict[str, tuple[float, str]] = {}
    for kind, names in ((RequestLimits, None), (Options, NAMED)):
        meanings = _meanings(kind)
        for each in fields(kind):
            if names is None or each.name in names:
                entries[each.name] = each.default, meanings[each.name]  # type: ignore[assignment]
    return entries


def _meanings(kind: type) -> dict[str, str]:
    """Return the text that stands below each field of a class."""
    body = ast.parse(inspect.getsource(kind)).body[0].body  # type: ignore[attr-defined]
    entries = {}
    for line, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            message = str(text.value) if isinstance(text, ast.Constant) else ""
            entries[line.target.id] = " ".join(message.split())
    return entries


def limits_table() -> str:
    """Return the table of docs/service.md."""
    rows = [
        f"| `{name}` | {default:,} | {meaning.removesuffix('.')} |"
        for name, (default, meaning) in known_limits().items()
    ]
    return "\n".join(["| name | default | meaning |", "|---|---|---|", *rows]) + "\n"


def read_limits(
    path: Path, settings: RequestLimits, options: Options
) -> tuple[RequestLimits, Options]:
    """Return limits and options with what a file says; `SpecError` with its line."""
    text = read_text(str(path))
    if not text.strip():
        raise SpecError(Wrong("the file is empty", LINES, str(path)))
    return with_limits(parse_yaml(text, str(path)), settings, options)


def with_limits(
    document: Document, settings: RequestLimits, options: Options
) -> tuple[RequestLimits, Options]:
    """Return limits and options with what a document says; `SpecError` for what it may not."""
    data = document.data
    if not isinstance(data, Mapping):
        raise SpecError(
            document.problem((), "limits are `name: number` lines", "such as solve_s: 20")
        )
    limits = known_limits()
    faults: list[Wrong] = []
    arguments: dict[str, Any] = {}
    for name, value in data.items():
        if name not in limits:
            close = ", ".join(close_names(name, limits)) or "docs/service.md lists them"
            wrong = document.problem((name,), "no such limit", f"perhaps: {close}", at_key=True)
            faults.append(wrong)
            continue
        is_whole = isinstance(limits[name][0], int)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or not math.isfinite(value) or not 0 < value <= MOST:
            fix = "a number above 0: no limit can be switched off"
            faults.append(document.problem((name,), f"{value!r} is no limit", fix))
        elif is_whole and value != int(value):
            faults.append(
                document.problem(
                    (name,), f"{value!r} is no whole number", "a whole number above 0"
                )
            )
        else:
            arguments[name] = int(value) if is_whole else float(value)
    now = {name: default for name, (default, _) in limits.items()} | arguments
    for more, less in ABOVE:
        if now[more] < now[less] and {more, less} & arguments.keys():
            name = more if more in arguments else less
            message = f"{more} ({now[more]:,}) is less than {less} ({now[less]:,})"
            faults.append(document.problem((name,), message, f"raise {more}, or lower {less}"))
    if faults:
        raise SpecError(faults)
    of_options = {name: value for name, value in arguments.items() if name in NAMED}
    of_settings = {name: value for name, value in arguments.items() if name not in NAMED}
    return replace(settings, **of_settings), replace(options, **of_options)


if __name__ == "__main__":
    print(limits_table(), end="")
