"""The legend of the product: one colour for each thing that answers show, on every surface.

Terminal, page, notebook, charts and timelines take their colours from here. Hues follow Okabe and
Ito, so that people with colour blindness tell them apart; the dark ones are lighter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Colour:
    """One entry of the legend."""

    key: str
    label: str
    light: str
    """Hex on a light ground."""
    dark: str
    """Hex on a dark ground."""
    ansi: int
    """Number among the 256 colours of a terminal."""


_COLOURS = (
    Colour("compute", "compute", "#1e88d0", "#4da3e0", 32),
    Colour("recompute", "recomputation", "#56b4e9", "#8fd0ff", 117),
    Colour("tp", "TP", "#009e73", "#2ec4a0", 35),
    Colour("cp", "CP", "#a3a500", "#cfd13f", 142),
    Colour("ep", "EP", "#cc79a7", "#e59ac4", 175),
    Colour("dp", "DP", "#8a79c9", "#b3a6ea", 98),
    Colour("pp", "PP", "#d55e00", "#ff8a4c", 166),
    Colour("slowed", "slowed by traffic", "#3f5f8a", "#8aa6cf", 60),
    Colour("waiting", "waiting", "#e69f00", "#f0b429", 214),
    Colour("offload", "offload", "#b07a52", "#d9a37c", 137),
    Colour("per step", "optimizer, fixed", "#7f8c8d", "#aab7b8", 245),
    Colour("states", "weights, optimizer", "#3b528b", "#7f95d1", 61),
    Colour("activations", "activations", "#21918c", "#4fc3bd", 30),
    Colour("logits", "logits", "#b5651d", "#e0964f", 130),
    Colour("working", "working memory", "#9a5fb0", "#c79ad6", 133),
    Colour("runtime", "runtime, fragments", "#6b7280", "#9ca3af", 243),
    Colour("free", "free", "#d0d7de", "#3a3f45", 250),
    Colour("nvlink", "inside the scale-up domain", "#4d9a2b", "#8ccf6b", 70),
    Colour("network", "over the network", "#b3446c", "#e07ea0", 125),
    Colour("limit", "limit", "#d55e00", "#ff8a4c", 166),
    Colour("good", "better", "#009e73", "#2ec4a0", 35),
    Colour("bad", "worse", "#d55e00", "#ff8a4c", 166),
)
LEGEND: Mapping[str, Colour] = MappingProxyType({colour.key: colour for colour in _COLOURS})
"""By key, in the order in which legends list them."""

TIME_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "linear": "compute",
        "attention": "compute",
        "elementwise": "compute",
        "experts": "compute",
        "head": "compute",
        "embedding": "compute",
        "tower": "compute",
        "recompute": "recompute",
        "host": "waiting",
        "tp": "tp",
        "cp": "cp",
        "ep": "ep",
        "overlap": "slowed",
        "pp": "pp",
        "bubble": "waiting",
        "dp": "dp",
        "optimizer": "per step",
        "offload": "offload",
        "straggler": "waiting",
        "fixed": "per step",
    }
)
"""Key of the legend by term of the step time."""
MEMORY_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "states": "states",
        "activations": "activations",
        "logits": "logits",
        "working": "working",
        "fragmentation": "runtime",
        "overhead": "runtime",
    }
)
"""Key of the legend by term of the memory."""


def css_variables(dark: bool = False) -> str:
    """Return the legend as custom properties of CSS: `--c-tp: #009e73;`.

    >>> css_variables().split(";")[0]
    '--c-compute: #1e88d0'
    """
    pairs = (
        f"--c-{colour.key.replace(' ', '-')}: {colour.dark if dark else colour.light}"
        for colour in _COLOURS
    )
    return "; ".join(pairs) + ";"


def time_key(term: str) -> str:
    """Return the key of the legend of a term of the step time; one that is new counts per step."""
    return TIME_KEYS.get(term, "per step")


def memory_key(term: str) -> str:
    """Return the key of the legend of a term of the memory; one that is new is working memory."""
    return MEMORY_KEYS.get(term, "working")
