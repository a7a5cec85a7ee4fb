"""Lines of text answers: wrapped under their titles, notes, what was assumed."""

from collections.abc import Sequence

ASSUMED = "assumed "
"""Beginning of the notes on what an imported file left open."""
IMPORTED = ("model: ", "cluster: ")
"""Beginnings of the other notes on imported files."""
REFERENCE = "reference: "
"""Beginning of the notes on measured runs that anchor the calibration."""


def assumed_lines(notes: Sequence[str], change: str = "--set PATH=VALUE changes one") -> list[str]:
    """Return what was assumed when the inputs were read, on lines of at most 100 columns.

    `change` says how to take something else.
    """
    fields = [note.removeprefix(ASSUMED) for note in notes if note.startswith(ASSUMED)]
    if not fields:
        return []
    return wrapped("assumed", "; ".join([*fields, change]))


def wrapped(title: str, text: str, width: int = 100, indent: int = 2) -> list[str]:
    """Return `text` after `title`, broken at blanks to lines of at most `width` characters.

    Further lines begin with `indent` blanks.
    """
    import textwrap

    return textwrap.wrap(
        f"{title} {text}".rstrip() if title else text,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def note_lines(notes: Sequence[str]) -> list[str]:
    """Return the notes on pools that were left out and on parts of the inputs not modelled."""
    shown = [note for note in notes if note.startswith(("pool ", *IMPORTED))]
    for beginning in IMPORTED:
        shown = [note.removeprefix(beginning) for note in shown]
    return [line for note in shown for line in wrapped("note:", note)]
