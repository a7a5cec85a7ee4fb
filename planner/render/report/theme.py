"""Colours and fonts of the figures, light and dark.

Figures name no colours where the template can: a page swaps the template when its reader asks for
dark. Categories use colours that people with colour blindness tell apart (after Okabe and Ito,
the blue lighter, to be seen on dark).
"""

from typing import Any

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
CATEGORIES = (
    "#1e88d0",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#8a79c9",
    "#a3a500",
    "#b07a52",
    "#7f8c8d",
)
"""Fills of categories, for both modes."""
_LINES_DARK = (
    "#56b4e9",
    "#f0b429",
    "#2ec4a0",
    "#e59ac4",
    "#8fd0ff",
    "#ff8a4c",
    "#b3a6ea",
    "#cfd13f",
    "#d9a37c",
    "#aab7b8",
)
STATUS_COLOURS = {
    "ok": "#009e73",
    "stopped": "#e69f00",
    "late": "#56b4e9",
    "infeasible": "#7f8c8d",
    "failed": "#d55e00",
}
SEQUENTIAL = (
    (0.0, "#fde725"),
    (0.25, "#5ec962"),
    (0.5, "#21918c"),
    (0.75, "#3b528b"),
    (1.0, "#440154"),
)
"""Viridis turned round: the lightest is the least, and less is better."""
BETTER, WORSE = "#009e73", "#d55e00"


def template(dark: bool = False) -> dict[str, Any]:
    """Return a Plotly template as plain data."""
    ink, soft, grid = (
        ("#e8e6e3", "#b8b4ae", "#3a3f45") if dark else ("#1f2328", "#57606a", "#e3e6ea")
    )
    axis = {
        "gridcolor": grid,
        "linecolor": soft,
        "zerolinecolor": grid,
        "tickcolor": soft,
        "automargin": True,
        "showline": True,
        "ticks": "outside",
        "title": {"standoff": 10},
    }
    return {
        "layout": {
            "font": {"family": FONT, "size": 13, "color": ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(_LINES_DARK if dark else CATEGORIES),
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {
                "bgcolor": "#24292f" if dark else "#ffffff",
                "bordercolor": soft,
                "font": {"color": ink},
                "align": "left",
            },
            "legend": {"font": {"color": ink}, "bgcolor": "rgba(0,0,0,0)"},
            "coloraxis": {"colorbar": {"outlinewidth": 0, "tickcolor": soft}},
            "modebar": {
                "bgcolor": "rgba(0,0,0,0)",
                "color": soft,
                "activecolor": ink,
            },
        },
    }


def image_template() -> dict[str, Any]:
    """Return the template of images: light, on white."""
    result = template(dark=False)
    result["layout"] |= {"paper_bgcolor": "#ffffff", "plot_bgcolor": "#ffffff"}
    return result
