"""Values of options that more than one command has; imports nothing heavy."""

import re
from collections.abc import Sequence

from planner.errors import UsageError
from planner.option_names import JOB_FIELDS


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


def with_typed_options(text: str, words: Sequence[str]) -> str:
    """Return a message with the short options of the job that were typed, not their `--set`.

    >>> with_typed_options("--set training.task=lor: training.task: unknown", ["--task", "lor"])
    '--task lor: unknown'
    """
    for name, path in JOB_FIELDS.items():
        if any(word.partition("=")[0] == f"--{name}" for word in words):
            head = re.compile(rf"--set {re.escape(path)}=(.*?): (?:{re.escape(path)}: )?")
            text = head.sub(rf"--{name} \1: ", text)
    return text


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


def short_time(time_s: float) -> str:
    """Return a time that nobody reads to the last digit.

    >>> short_time(0.4), short_time(75), short_time(7300), short_time(200000)
    ('1 s', '1 min 15 s', '2 h 1 min', '2 days 7 h')
    """
    total = max(1, round(time_s))
    for size, unit, small, small_unit in (
        (86400, "days", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if total >= size:
            count, rest = divmod(total, size)
            unit = "day" if unit == "days" and count == 1 else unit
            part = rest // small
            return f"{count} {unit} {part} {small_unit}" if part else f"{count} {unit}"
    return f"{total} s"
