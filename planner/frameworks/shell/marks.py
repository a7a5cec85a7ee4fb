"""Marks: names of what a script does not say, inside the texts that depend on them."""

import re

MARK_OPEN, MARK_CLOSE = "\ue000", "\ue001"
"""Enclose the name of something that the script does not say, inside a text."""
_SHIFT = 0xF0000
"""Added to the characters of such a name: none of them then means anything to bash."""
_MARK = re.compile(f"{MARK_OPEN}([^{MARK_CLOSE}]*){MARK_CLOSE}")
COMMAND_OUTPUT = "$("
"""Start of the name of a mark that stands for the output of a command."""


def mark(name: str) -> str:
    """Return the mark of something that the script does not say."""
    hidden = "".join(chr(ord(c) + _SHIFT) if ord(c) < 0x10000 else c for c in name)
    return f"{MARK_OPEN}{hidden}{MARK_CLOSE}"


def unresolved(text: str) -> tuple[str, ...]:
    """Return the names that a text still depends on, each once, in order."""
    names = [name for match in _MARK.findall(text) for name in _name(match).split(",")]
    return tuple(dict.fromkeys(names))


def unmarked(text: str) -> str:
    """Return a text with its marks as bash would write them: `${TP}`, `$(hostname)`."""

    def plain(match: re.Match[str]) -> str:
        name = _name(match.group(1))
        if name.startswith((COMMAND_OUTPUT, "<")):
            return name
        return f"$(({name.replace(',', ', ')}))" if "," in name else f"${{{name}}}"

    return _MARK.sub(plain, text)


def _name(hidden: str) -> str:
    return "".join(chr(ord(c) - _SHIFT) if ord(c) >= _SHIFT else c for c in hidden)


def without_marks(text: str) -> str:
    """Return a text as bash would see it with what is not set taken as empty."""
    return _MARK.sub("", text)


def depends_on_output(text: str) -> bool:
    """Tell whether a text depends on the output of a command."""
    return any(name.startswith(COMMAND_OUTPUT) or "`" in name for name in unresolved(text))
