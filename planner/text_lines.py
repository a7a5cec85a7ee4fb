"""Lines of text: their width, how they are wrapped, the beginnings of notes."""

ASSUMED = "assumed "
"""Beginning of the notes on what an imported file left open."""
IMPORTED = ("model: ", "cluster: ")
"""Beginnings of the other notes on imported files."""
WIDTH = 100
"""Columns of a line."""
REFERENCE = "reference: "
"""Beginning of the notes on measured runs that anchor the calibration."""
SPLIT_CHOSEN = "split not named: "
"""Beginning of the note on the split that an evaluated layout was given."""


def wrapped(title: str, text: str, width: int = WIDTH, indent: int = 2) -> list[str]:
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
