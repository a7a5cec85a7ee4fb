"""Colours and fonts of the figures, light and dark.

Figures name no colours where the template can: a page swaps the template when its reader asks for
dark. Categories take the colours of the legend (`planner.render.palette`), in its order.
"""

from typing import Any

from planner.render.palette import SERIES, SERIES_DARK, dark_twins, legend_fill

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
CATEGORIES = SERIES
"""Fills of categories, for both modes."""
STATUS_COLOURS = {
    "ok": legend_fill("good"),
    "stopped": legend_fill("waiting"),
    "late": legend_fill("recompute"),
    "infeasible": legend_fill("per step"),
    "failed": legend_fill("bad"),
}
GREY = "#8b949e"
"""Marks that are not what a figure is about."""
SEQUENTIAL = (
    (0.0, "#fde725"),
    (0.25, "#5ec962"),
    (0.5, "#21918c"),
    (0.75, "#3b528b"),
    (1.0, "#440154"),
)
"""Viridis turned round: the lightest is the least, and less is better."""
BETTER, WORSE = legend_fill("good"), legend_fill("bad")


INK = "#1f2328"
"""Edges of dots."""


def template(dark: bool = False) -> dict[str, Any]:
    """Return a Plotly template as plain data."""
    ink, soft, grid = ("#e8e6e3", "#b8b4ae", "#3a3f45") if dark else (INK, "#57606a", "#e3e6ea")
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
            "colorway": list(SERIES_DARK if dark else SERIES),
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


def themes() -> dict[str, Any]:
    """Return the templates, light and dark, and the dark twin of every fill (`twins`)."""
    return {"light": template(), "dark": template(dark=True), "twins": dark_twins()}


def image_template() -> dict[str, Any]:
    """Return the template of images: light, on white."""
    result = template(dark=False)
    result["layout"] |= {"paper_bgcolor": "#ffffff", "plot_bgcolor": "#ffffff"}
    return result
