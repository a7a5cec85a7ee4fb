"""Fills of figures out of the legend of the product (`planner.render.colours`), light and dark.

Figures are made in the light colours; where a reader asks for dark, pages swap each for its twin.
"""

from planner.render.colours import LEGEND, css_variables, memory_key, time_key

STEP_SHADES = {
    "forward": 1.0,
    "backward": 0.72,
    "input gradient": 0.72,
    "weight gradient": 0.5,
}
"""Share of the light of `compute` by kind of block in the step's timeline."""
OPERATOR_SHADES = {
    "linear": 1.0,
    "attention": 0.85,
    "experts": 0.7,
    "head": 0.58,
    "elementwise": 0.46,
    "embedding": 0.34,
}
"""The same by kind of operator."""
TRAFFIC_KEYS = {"tp": "tp", "cp": "cp", "ep": "ep", "pp": "pp", "dp": "dp", "host": "offload"}
"""Key of the legend by axis of a transfer."""
SERIES_KEYS = (
    "compute",
    "waiting",
    "tp",
    "ep",
    "recompute",
    "pp",
    "dp",
    "cp",
    "offload",
    "per step",
)
"""Order in which series that the legend does not know take its colours."""
SHADED_EDGE = 0.7
"""Share of the light of a fill that its edge has."""


def legend_style() -> str:
    """Return the legend as styles for all of a page: light, dark, as the reader chose."""
    light, dark = css_variables(), css_variables(dark=True)
    return (
        f":root {{ {light} }}\n"
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
        f':root[data-theme="dark"] {{ {dark} }}\n'
    )


def legend_fill(key: str) -> str:
    """Return the fill of an entry of the legend, hex; `KeyError` for what it does not know."""
    return LEGEND[key].light


def shaded(colour: str, share: float) -> str:
    """Return a colour with a share of its light.

    >>> shaded("#ff8000", 0.5)
    '#7f4000'
    """
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{int(share * part):02x}" for part in parts)


def time_fill(term: str) -> str:
    """Return the fill of a term of the step time."""
    return legend_fill(time_key(term))


def memory_fill(term: str) -> str:
    """Return the fill of a term of the memory."""
    return legend_fill(memory_key(term))


def operator_fill(term: str) -> str:
    """Return the fill of a kind of operator: a shade of its term's colour."""
    return shaded(time_fill(term), OPERATOR_SHADES.get(term, 1.0))


SERIES = tuple(LEGEND[key].light for key in SERIES_KEYS)
"""Fills of series that the legend does not know, such as values of an axis."""
SERIES_DARK = tuple(LEGEND[key].dark for key in SERIES_KEYS)
"""The same on dark."""


def dark_twins() -> dict[str, str]:
    """Return the dark twin of every fill that figures take, shades and edges included."""
    shares = sorted({1.0, *STEP_SHADES.values(), *OPERATOR_SHADES.values()})
    fills = [
        (shaded(colour.light, share), shaded(colour.dark, share))
        for colour in LEGEND.values()
        for share in shares
    ]
    edges = [(shaded(x, SHADED_EDGE), shaded(y, SHADED_EDGE)) for x, y in fills]
    return dict(edges) | dict(fills)
