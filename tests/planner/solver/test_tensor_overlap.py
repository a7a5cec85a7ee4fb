"""The switch of tensor-parallel overlap in the product: pins, files, commands about plans."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import planner
from costmodels.plans import Layout
from planner.analyze.check.check import check
from planner.analyze.comparison import compare
from planner.analyze.explain import explain
from planner.analyze.neighborhood import single_changes
from planner.errors import SearchError
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.programs import is_program
from planner.render.document import text_of
from planner.solver.answer.result import Plan, Result
from planner.solver.answer.result_store import open_plan
from planner.solver.options import SolveOptions
from planner.specs.loader import load_cluster, load_model
from planner.specs.search.axis_values import layout_from_json, layout_to_json

SMALL: dict[str, Any] = {"model": "llama3-8b", "cluster": "h100-x8"}
LIMITS = {"vpp": 1, "mbs": 1, "recompute_layers": 1}


def evaluate(**pins: Any) -> Plan:
    return planner.evaluate(**SMALL, pins={"tp": 8, "mbs": 1, **pins}).best


@pytest.fixture(scope="module")
def opened() -> Result:
    return planner.solve(
        **SMALL, pins={"tp": 8, "devices": 8}, only={"tp_overlap": ["on", "off"]}, at_most=LIMITS
    )


def test_off_is_not_named_and_keeps_the_id() -> None:
    usual, off, on = evaluate(), evaluate(tp_overlap="off"), evaluate(tp_overlap="on")
    assert usual.plan_id == off.plan_id != on.plan_id
    assert "tp_overlap" not in layout_to_json(usual.layout)
    assert layout_to_json(on.layout)["tp_overlap"] is True
    assert layout_from_json(layout_to_json(on.layout)) == on.layout
    assert on.step_time_s < usual.step_time_s
    assert on.breakdown.peak_bytes == usual.breakdown.peak_bytes
    saved = usual.breakdown.time_s["tp"] - on.breakdown.time_s["tp"]
    taxed = on.breakdown.time_s["overlap"] - usual.breakdown.time_s["overlap"]
    # What no longer waits runs beside compute, which it slows down.
    slowdown = usual.breakdown.rows.problem.stack.overlap_slowdown
    assert taxed == pytest.approx(slowdown * saved, rel=1e-6)


def test_without_sp_there_is_nothing_to_cut() -> None:
    with pytest.raises(SearchError, match="OVL002"):
        evaluate(tp_overlap="on", sp=False)
    with pytest.raises(SearchError, match="OVL002"):
        planner.evaluate(
            **SMALL, pins={"tp": 8, "tp_overlap": "on"}, framework="any", stack="deepspeed"
        )


def test_open_takes_the_better_of_both(opened: Result) -> None:
    alone = [
        planner.solve(**SMALL, pins={"tp": 8, "devices": 8, "tp_overlap": word}, at_most=LIMITS)
        for word in ("on", "off")
    ]
    assert opened.counts.space == sum(one.counts.space for one in alone)
    assert opened.best.plan_id == min((x.best for x in alone), key=lambda p: p.step_time_s).plan_id
    assert opened.best.layout.tp_overlap
    assert "ovl" in text_of(opened)


def test_the_default_search_has_it_off() -> None:
    usual = planner.solve(**SMALL, pins={"tp": 8, "devices": 8}, at_most=LIMITS)
    assert not any(plan.layout.tp_overlap for plan in usual.plans)


@pytest.mark.slow
def test_commands_about_plans_know_it(opened: Result, tmp_path: Path) -> None:
    file = tmp_path / "open.json"
    file.write_text(opened.dumps())
    _, _, problem, plan = open_plan(f"{file}#1")
    assert plan.step_time_s == opened.best.step_time_s
    assert "tp overlap on" in text_of(explain(problem, plan, SolveOptions()))
    assert "userbuffers" in text_of(explain(problem, plan, SolveOptions(), "tp"))
    [change] = [c for c in single_changes(problem, plan.layout) if c.axis == "tp_overlap"]
    assert (change.old, change.new) == (True, False)
    assert change.near is not None
    assert change.near.step_s > plan.step_time_s
    off = planner.evaluate(**SMALL, pins={"tp": 8, "mbs": 1})
    other = tmp_path / "off.json"
    other.write_text(off.dumps())
    found = compare(open_plan(f"{other}#1"), open_plan(f"{file}#1"))
    assert "tp_overlap" in [row[0] for row in found.layout]


def emitted(framework: str, layout: Layout) -> dict[str, str]:
    model, cluster = load_model("llama3-8b"), load_cluster("h100-x8")
    pool = cluster.cluster.pools[0]
    return emit_plan(framework, EmitRequest(layout, model.shape, model.job, pool, ["plan"]))


@pytest.mark.parametrize(
    ("framework", "said"),
    [
        ("megatron", "--tp-comm-overlap"),
        ("bridge", "tp_comm_overlap=True"),
    ],
)
def test_files_say_it_where_it_is_on(framework: str, said: str) -> None:
    pins = {"tp": 4, "mbs": 1, "zero": 1}
    for word in ("on", "off"):
        layout = planner.evaluate(
            **SMALL, pins={**pins, "tp_overlap": word}, framework=framework
        ).best.layout
        files = emitted(framework, layout)
        texts = "".join(text for name, text in files.items() if not is_program(name))
        assert (said in texts) is (word == "on")


@pytest.mark.slow
def test_torchtitan_has_it_with_the_compiler_alone(tmp_path: Path) -> None:
    """Its plans are priced without, so that they have none; a run is priced with its compiler."""
    pins = {"tp": 4, "mbs": 1, "zero": 3}
    usual = planner.evaluate(**SMALL, pins=pins, framework="torchtitan").best.layout
    with pytest.raises(SearchError, match="OVL002"):
        planner.evaluate(**SMALL, pins={**pins, "tp_overlap": "on"}, framework="torchtitan")
    steps = {}
    for is_on in (False, True):
        files = emitted("torchtitan", replace(usual, tp_overlap=is_on))
        text = files["torchtitan_recipe.py"]
        assert ("enable_async_tensor_parallel" in text) is is_on
        assert ("compile=CompileConfig(" in text) is is_on
        file = tmp_path / "recipe.py"
        file.write_text(text)
        found = check(file, "h100-x8", model="llama3-8b").plan
        assert found is not None
        assert found.layout == replace(usual, tp_overlap=is_on)
        steps[is_on] = found.step_time_s
    file.write_text(text.replace("enable_async_tensor_parallel=True,", ""))
    compiler_alone = check(file, "h100-x8", model="llama3-8b").plan
    assert compiler_alone is not None
    assert steps[True] < compiler_alone.step_time_s < steps[False]


@pytest.mark.parametrize("framework", ["deepspeed", "fsdp2"])
def test_others_do_not_have_it(framework: str) -> None:
    layout = evaluate(tp_overlap="on").layout
    assert list(emitted(framework, layout)) == [f"{framework}.txt"]


def test_check_names_the_switch_for_a_run_without_it(tmp_path: Path) -> None:
    layout = evaluate(zero=0).layout
    script = tmp_path / "megatron.sh"
    script.write_text(emitted("megatron", layout)["megatron.sh"])
    report = check(script, "h100-x8")
    assert report.plan is not None
    [change] = [c for c in report.changes if c.text == "tp_overlap off -> on"]
    assert change.settings == ("--tp-comm-overlap",)
    assert change.gain_frac > 0
    again = tmp_path / "again.sh"
    text = script.read_text()
    again.write_text(text.replace("--sequence-parallel", "--sequence-parallel --tp-comm-overlap"))
    found = check(again, "h100-x8")
    assert found.plan is not None
    assert found.plan.plan_id == change.plan_id
    # It stands among plans that may have the switch too.
    assert found.standing is not None
    assert found.standing.best is not None
    assert found.standing.best.step_time_s <= found.plan.step_time_s * 1.01
    assert found.plan.step_time_s == pytest.approx(change.step_s)


def test_saved_options_open_it_again(opened: Result) -> None:
    options = json.loads(opened.dumps())["inputs"]["options"]
    assert options["only"]["tp_overlap"] == [0, 1]
