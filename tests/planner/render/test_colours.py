"""One legend of colours: the same thing has the same colour in every figure, and no other."""

import re
from pathlib import Path

import pytest

from planner.render.colours import LEGEND, MEMORY_KEYS, TIME_KEYS, css_variables
from planner.render.palette import (
    SERIES,
    SHADED_EDGE,
    STEP_SHADES,
    TRAFFIC_KEYS,
    dark_twins,
    legend_fill,
    legend_style,
    operator_fill,
    shaded,
    time_fill,
)
from planner.render.plan_view.step_drawing import COLOURS, NAMES
from planner.render.report.theme import GREY, INK, themes

ROOT = Path(__file__).parents[3]
HEX = re.compile(r"#[0-9a-fA-F]{6}\b|#[0-9a-fA-F]{3}\b(?=[\"';, )])")
FIGURES = ("planner/render", "planner/learn", "service/pages")
LEGENDS = ("planner/render/colours.py", "planner/render/report/theme.py")
"""Where colours are defined: the legend, and inks and grounds of figures."""
TOKEN = re.compile(r"--[a-z-]+:\s*(#[0-9a-fA-F]{3,8})")
SWATCHES = re.compile(r"--c-([a-z-]+): (#[0-9a-f]{6})")


def sources(*endings):
    return [
        path
        for folder in FIGURES
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in endings and "__pycache__" not in path.parts
    ]


def test_modules_name_no_colours_of_their_own():
    named = {
        str(path.relative_to(ROOT)): HEX.findall(TOKEN.sub("", path.read_text()))
        for path in sources(".py")
        if str(path.relative_to(ROOT)) not in LEGENDS
    }
    examples = {"planner/render/palette.py": ["#ff8000", "#7f4000"]}  # of a docstring
    assert {name: found for name, found in named.items() if found} == examples


@pytest.mark.parametrize("path", sources(".css", ".js", ".j2"), ids=lambda path: path.name)
def test_styles_use_the_legend_and_their_own_inks_alone(path):
    text = path.read_text()
    found = HEX.findall(re.sub(r'href="[^"]*"|&#\d+;', "", text))
    inks = TOKEN.findall(text)
    named = [colour for colour in found if colour not in inks]
    allowed = {"page.css": {"#000", "#444", "#fff", "#bbb", "#ddd", "#b7791f"}}
    legend = {colour.light for colour in LEGEND.values()}
    others = set(named) - allowed.get(path.name, set()) - legend - {"#666"}
    assert not others


def test_the_timeline_has_the_colours_of_the_axes_and_shades_of_compute():
    assert COLOURS.keys() == NAMES.keys()
    for axis in ("tp", "cp", "ep", "dp", "pp"):
        assert COLOURS[axis] == LEGEND[axis].light
    assert COLOURS["forward"] == LEGEND["compute"].light
    assert COLOURS["backward"] == COLOURS["input gradient"] != COLOURS["weight gradient"]
    for kind, share in STEP_SHADES.items():
        assert COLOURS[kind] == shaded(LEGEND["compute"].light, share)


def test_transfers_and_terms_of_one_axis_have_one_colour():
    for axis in ("tp", "cp", "ep", "pp", "dp"):
        assert legend_fill(TRAFFIC_KEYS[axis]) == time_fill(axis) == LEGEND[axis].light
    assert operator_fill("linear") == LEGEND["compute"].light
    assert operator_fill("optimizer") == LEGEND["per step"].light
    assert len({LEGEND[axis].light for axis in ("tp", "cp", "ep", "pp", "dp", "compute")}) == 6


def test_every_fill_and_edge_has_a_dark_twin():
    twins = dark_twins()
    for colour in LEGEND.values():
        assert twins[colour.light] == colour.dark
    edges = {shaded(colour, SHADED_EDGE) for colour in COLOURS.values()}
    kinds = {operator_fill(term) for term in TIME_KEYS}
    assert {*SERIES, *COLOURS.values(), *kinds, *edges} <= twins.keys()
    assert twins == themes()["twins"]
    assert not {GREY, INK} & twins.keys()


def test_shades_by_hand():
    assert shaded("#1e88d0", 0.5) == "#0f4468"
    assert shaded("#1e88d0", 1.0) == "#1e88d0"


def test_the_styles_of_a_page_hold_the_legend_light_and_dark():
    light = dict(SWATCHES.findall(css_variables()))
    dark = dict(SWATCHES.findall(css_variables(dark=True)))
    assert light == {key.replace(" ", "-"): x.light for key, x in LEGEND.items()}
    assert dark == {key.replace(" ", "-"): x.dark for key, x in LEGEND.items()}
    style = legend_style()
    assert style.count(css_variables()) == 1
    assert style.count(css_variables(dark=True)) == 2


def test_every_term_has_a_key():
    from costmodels.documentation.terms import TERMS

    times = {name for name, term in TERMS.items() if term.kind == "time"}
    assert times == TIME_KEYS.keys()
    assert {name for name, term in TERMS.items() if term.kind == "memory"} == MEMORY_KEYS.keys()
