"""What axes that are off by default would bring to the first plan."""

import json

import planner
from planner.render.card.answer import card_of
from planner.solver.answer.result import Result

JOB = ("llama3-70b", "h100-x512")
DEGREES = {"tp": 4, "pp": 4, "cp": 2}


def test_an_axis_that_is_off_is_priced_as_evaluate_prices_it() -> None:
    found = planner.solve(*JOB, pins=DEGREES, only={"mbs": [1]}, top=1)
    (overlap,) = [x for x in found.alternatives if x.axis == "tp_overlap"]
    first = found.best
    assert overlap.step_time_s < first.step_time_s * 0.99
    layout = first.layout
    pins = {**DEGREES, "mbs": 1, "vpp": layout.vpp, "zero": layout.zero, "split": layout.split}
    pins |= {"tp_overlap": True}
    own = planner.evaluate(*JOB, pins=pins).best
    assert own.layout.cp_comm == layout.cp_comm
    assert abs(own.step_time_s / overlap.step_time_s - 1) < 1e-9
    again = Result.from_json(json.loads(found.dumps())).alternatives
    assert [(x.pin, x.changes) for x in again] == [(x.pin, x.changes) for x in found.alternatives]
    assert f"--pin {overlap.pin}" in [axis.option for axis in card_of(found).closed]


def test_an_axis_that_is_named_is_no_alternative() -> None:
    found = planner.solve(*JOB, pins=DEGREES, only={"mbs": [1], "tp_overlap": [False]}, top=1)
    assert not [x for x in found.alternatives if x.axis == "tp_overlap"]
