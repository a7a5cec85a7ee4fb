"""Colour and bold of a terminal, where it takes them: NO_COLOR, FORCE_COLOR, pipes plain."""

import os
import sys
from dataclasses import dataclass
from typing import TextIO

from planner.render.colours import LEGEND


@dataclass(frozen=True, slots=True)
class Style:
    """How text is emphasised; off, every text stays as it is."""

    is_on: bool

    def bold(self, text: str) -> str:
        """Return the text in bold."""
        return self._wrapped(text, "1")

    def dim(self, text: str) -> str:
        """Return the text fainter."""
        return self._wrapped(text, "2")

    def colour(self, text: str, key: str) -> str:
        """Return the text in the colour of a key of the legend."""
        return self._wrapped(text, f"38;5;{LEGEND[key].ansi}")

    def _wrapped(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.is_on and text else text


def style_of(stream: TextIO | None = None) -> Style:
    """Return the style that a stream takes, that of standard output without one.

    `NO_COLOR` switches it off, `FORCE_COLOR` on; else a terminal that is not dumb takes it.
    """
    if os.environ.get("NO_COLOR"):
        return Style(is_on=False)
    if os.environ.get("FORCE_COLOR"):
        return Style(is_on=True)
    target = sys.stdout if stream is None else stream
    return Style(is_on=target.isatty() and os.environ.get("TERM") != "dumb")
