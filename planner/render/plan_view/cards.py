"""Opened numbers: a card behind every number, and sentences and tables that refer to cards."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.render.plan_view.quantities import quantity_text

Inputs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Amount:
    """A number with its unit."""

    value: float
    """In base units: seconds, bytes, FLOP, fractions, counts."""
    kind: str
    """One of `quantities`."""
    text: str = ""
    """How it is shown, where its kind and digits do not say it."""
    digits: int = 4


@dataclass(frozen=True, slots=True)
class Derivation:
    """How a number comes about."""

    formula: str
    """In symbols."""
    substituted: str
    """The same with this plan's numbers (`quantities.evaluated` reads it back)."""
    source: str
    """Where formula and numbers come from."""
    inputs: Inputs = ()
    """Further numbers that went into it."""
    method: str = ""
    """Derivation on the page that holds it (`methods`); empty where the formula is all there is.
    """


@dataclass(frozen=True, slots=True)
class Card:
    """What stands behind one number."""

    key: str
    """Letters, digits and `-`: an anchor on the page."""
    name: str
    amount: Amount
    derivation: Derivation

    @property
    def value(self) -> float:
        """The number in base units."""
        return float(self.amount.value)

    @property
    def text(self) -> str:
        """The number as it is shown, with its unit."""
        amount = self.amount
        return amount.text or quantity_text(amount.value, amount.kind, amount.digits)

    def to_json(self) -> dict[str, Any]:
        """Return the card as plain data."""
        derivation = self.derivation
        return {
            "key": self.key,
            "name": self.name,
            "value": self.value,
            "text": self.text,
            "formula": derivation.formula,
            "substituted": derivation.substituted,
            "source": derivation.source,
            "inputs": [list(pair) for pair in derivation.inputs],
            "method": derivation.method,
        }


@dataclass(frozen=True, slots=True)
class CardNumber:
    """A number on the page that opens a card."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text with digits that names something and counts nothing: a stage, a rank, a model."""

    text: str


Part = str | CardNumber | Label
Words = tuple[Part, ...]
"""A sentence: texts without digits, numbers, names."""
Cell = Part | None


def plain_words(sentence: Words) -> str:
    """Return a sentence as text."""
    return "".join(part if isinstance(part, str) else part.text for part in sentence)


@dataclass(frozen=True, slots=True)
class NumberTable:
    """A table whose numbers open cards."""

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: tuple[int, ...] = ()
    """Rows that stand out: the stage that binds."""

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold numbers."""
        columns = range(len(self.heads))
        return tuple(any(isinstance(row[i], CardNumber) for row in self.rows) for i in columns)


@dataclass(slots=True)
class Deck:
    """All cards of a page by key."""

    cards: dict[str, Card] = field(default_factory=dict)

    def add(self, key: str, name: str, amount: Amount, derivation: Derivation) -> CardNumber:
        """Add a card; the number that opens it. A key that is there already keeps its card."""
        if key not in self.cards:
            self.cards[key] = Card(key, name, amount, derivation)
        return CardNumber(key, amount.text or self.cards[key].text)

    def see(self, key: str, text: str = "") -> CardNumber:
        """Return the number of a card that is there."""
        return CardNumber(key, text or self.cards[key].text)
