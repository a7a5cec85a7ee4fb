"""Documents as plain parts: the one form in which people read answers.

`planner.render` makes the parts of an answer and writes them as text of a terminal, HTML or
Markdown (`planner.render.terminal`, `html`, `markdown`).
"""

from dataclasses import dataclass, field
from importlib import import_module


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; the title of a document has level 1."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Text in sentences."""

    text: str
    strong: bool = False
    """Whether it is what the document says first of all."""
    label: str = ""
    """What stands before the text, blanks before it included: how deep it stands."""
    indent: int = 2
    """Blanks before further lines in a terminal."""


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]
    label: str = ""
    """What stands before each item in a terminal."""
    indent: int = 2


@dataclass(frozen=True, slots=True)
class GridSpacing:
    """How a terminal sets a table."""

    widths: tuple[int, ...] = ()
    """Characters of each column, more where a cell is longer; none: those of the longest cells."""
    gaps: int | tuple[int, ...] = 2
    """Blanks before each column but the first."""
    indent: int = 0
    hang: int | None = None
    """Blanks before further lines of a last cell that is wrapped; None where none is."""
    captioned: bool = False
    """Whether the caption stands above the table: in HTML it always does."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; cells are texts, or numbers that are already texts.

    The last cell of a row that has fewer than others goes on over the rest of the columns.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    numeric: tuple[int, ...] = ()
    """Columns that hold numbers."""
    bars: tuple[float, ...] = field(default=())
    """Shares of 1 drawn beside the rows, where there are any (HTML alone)."""
    units: tuple[str, ...] = ()
    """Below the heads."""
    spacing: GridSpacing = GridSpacing()


@dataclass(frozen=True, slots=True)
class Code:
    """Lines as they are: typed, or drawn."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blank:
    """A blank line of a terminal; other forms set parts apart themselves."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Something that draws itself in each form, such as the card of a plan; already escaped."""

    html: str
    markdown: str
    lines: tuple[str, ...]
    """In a terminal."""


Part = Heading | Paragraph | Bullets | Grid | Code | Blank | Drawn

RENDERER = "planner.render.card.notebook"
"""The module that shows answers in notebooks; imported on first use."""


class LibraryAnswer:
    """An answer of the library, which notebooks show as HTML or Markdown."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        renderer = import_module(RENDERER)
        return str(renderer.answer_html(self))

    def _repr_markdown_(self) -> str:
        renderer = import_module(RENDERER)
        return str(renderer.answer_markdown(self))
