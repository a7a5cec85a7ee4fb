"""An axis is added by its record alone, and found wherever lists of axes are made."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from costmodels.axes import SWITCH, Axis, register_axis

register_axis(
    Axis(
        "probe", "a switch of the test", "mode", False, SWITCH,
        is_always_written=False, has_field=False, is_searched=False,
    )
)

import planner
from planner.analyze.neighborhood import AXES
from planner.solver.answer.result import Plan
from searches.frameworks.table import refusals
from service.handlers.answers import LayoutBody

def plans(**options):
    return planner.solve("llama3-8b", "h100-x8", top=2, framework="any", **options).plans

off, on = plans(), plans(pins={"probe": "on"})
assert [p.step_time_s for p in off] == [p.step_time_s for p in on]
assert [p.plan_id for p in off] != [p.plan_id for p in on]
assert "probe" not in off[0].to_json()["layout"]
assert on[0].to_json()["layout"]["probe"] is True
assert Plan.from_json(on[0].to_json()).layout == on[0].layout
assert on[0].layout.value("probe") is True
even = {"split": "even"}
both = plans(only={"probe": ["off", "on"]}, pins=even)
assert both[0].plan_id == plans(pins=even)[0].plan_id
assert "probe" in AXES
assert LayoutBody.model_fields["probe"].description == "a switch of the test"

# No framework carries it, so none runs it.
priced = planner.evaluate("llama3-8b", "h100-x8", pins={"probe": "on", "zero": 2}).plans[0]
assert priced.runs_on == ()
assert not planner.solve("llama3-8b", "h100-x8", pins={"probe": "on"}).plans
assert any("probe" in text for text in refusals("megatron", priced.layout, SHAPE))
assert not any("probe" in text for text in refusals("megatron", off[0].layout, SHAPE))
"""


@pytest.mark.slow
def test_a_registered_axis_is_searched_written_and_refused_by_name() -> None:
    shape = "from costmodels.examples import LLAMA3_8B as SHAPE\n"
    command = [sys.executable, "-W", "error", "-c", shape + PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
