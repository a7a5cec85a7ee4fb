"""Words that a field may hold, told in JSON schemas: those alone, or beside texts of other forms.

Schemas tell them; what reads the field refuses others, in words of its own.
"""

from collections.abc import Callable, Iterable
from typing import Any

SchemaChange = Callable[[dict[str, Any]], None]


def one_of(title: str, words: Iterable[str]) -> SchemaChange:
    """Return what says in the schema of a text that it is one of some words.

    `title` names what they are: documents of several schemas tell it once, by that name.
    """
    choices = list(words)

    def tell(schema: dict[str, Any]) -> None:
        schema |= {"title": title, "enum": choices}

    return tell


def often_one_of(title: str, words: Callable[[], Iterable[str]]) -> SchemaChange:
    """Return what names some words in the schema of a text that may be others, too.

    `words` is called when a schema is made: it may ask for what is installed by then.
    """

    def tell(schema: dict[str, Any]) -> None:
        kind = schema.pop("type")
        schema["title"] = title
        schema["anyOf"] = [{"type": kind, "enum": list(words())}, {"type": kind}]

    return tell
