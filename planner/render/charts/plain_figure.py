"""A figure as plain data, for services without Plotly: pages still show what it would draw."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FigureLayout:
    """What pages read of a figure's settings."""

    height: int | None
    """Pixels."""


@dataclass(frozen=True, slots=True)
class PlainFigure:
    """What pages use of `plotly.graph_objects.Figure`."""

    content: dict[str, Any]
    """`data` and `layout`, as Plotly has them."""

    @property
    def layout(self) -> FigureLayout:
        """The settings."""
        return FigureLayout(self.content["layout"].get("height"))

    def to_plotly_json(self) -> dict[str, Any]:
        """Return data and settings; the caller may change them."""
        return deepcopy(self.content)
