"""Values of options that more than one command has; imports nothing heavy."""

from collections.abc import Sequence

from planner.errors import UsageError


def overrides_of(items: Sequence[str]) -> tuple[tuple[str, object], ...]:
    """Return the fields of `--set PATH=VALUE`; `UsageError` for another form."""
    results: list[tuple[str, object]] = []
    for item in items:
        path, equals, value = item.partition("=")
        if not equals or not path:
            raise UsageError(
                f"--set: {item!r} is not of the form PATH=VALUE",
                "--set pools.0.nodes=16",
                code="bad-form",
            )
        results.append((path.strip(), value.strip()))
    return tuple(results)


def positive(value: float | None, option: str, example: str) -> float:
    """Return a limit, 0 for none; `UsageError` where 0 or less is given."""
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(
            f"{option} must be a number above 0, not {value:g}",
            f"{option} {example}, or leave it out for no limit",
            code="out-of-range",
        )
    return value or 0.0


def size(value: int | None, option: str) -> int:
    """Return a size, 0 for none; `UsageError` where less than 1 is given."""
    if value is not None and value < 1:
        raise UsageError(
            f"{option} must be at least 1, not {value}",
            f"for example {option} 64",
            code="out-of-range",
        )
    return value or 0


def check_format(form: str, choices: Sequence[str] = ("table", "json")) -> None:
    """Raise `UsageError` for a form that an answer is not printed in."""
    if form not in choices:
        several = " or ".join(choices) if len(choices) < 3 else f"one of {', '.join(choices)}"
        raise UsageError(f"--format: unknown {form!r}", several, code="unknown-name")
