"""Lines of text: their width, how they are wrapped, the beginnings of notes."""

import re

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


SPELLED_VOWELS = "AEFHILMNORSX"
"""Letters whose names begin with the sound of a vowel."""


def with_article(noun: str) -> str:
    """Return a noun after `a` or `an`, by its sound; capitals and `ms` are spelled.

    >>> with_article("ms-swift script"), with_article("FSDP2 file"), with_article("TRL file")
    ('an ms-swift script', 'an FSDP2 file', 'a TRL file')
    """
    first = re.split(r"[\W\d]", noun, maxsplit=1)[0]
    is_spelled = first.isupper() or first == "ms"
    vowels = SPELLED_VOWELS if is_spelled else "AEIOU"
    return f"{'an' if first[:1].upper() in vowels else 'a'} {noun}"


def command_lines(line: str, width: int, indent: int = 0) -> list[str]:
    r"""Return a command in lines of at most `width` columns, each but the last ended by `\`.

    Words in quotes stay whole, so that the lines can be pasted into a shell.

    >>> command_lines("planner emit last#1 --out run", 24)
    ['planner emit last#1 \\', '  --out run']
    """
    words = re.findall(r"(?:'[^']*'|\"[^\"]*\"|\S)+", line)
    lines = [" " * indent + words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append(" " * (indent + 2) + word)
        else:
            lines[-1] += f" {word}"
    return lines
