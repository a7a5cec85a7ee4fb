"""Quantities as texts."""

from planner.render.report.quantities import short_number


def s_or_ms(seconds: float) -> str:
    """Return a time in s, or in ms below one."""
    if seconds >= 1:
        return f"{short_number(seconds, 4)} s"
    return f"{short_number(seconds * 1e3, 4)} ms"
