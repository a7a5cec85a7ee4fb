"""Single changes: every value of an axis, legal and priced, or with the rule that it breaks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import planner
from costmodels.breakdown import break_down
from planner.analyze.neighborhood import AXES, neighbours, single_changes
from planner.analyze.single_changes import SingleChanges
from planner.cli.commands.inspection import run_neighbours
from planner.errors import UsageError
from planner.render.document import text_of
from searches.options import SearchOptions
from searches.rules import RULES, Context, first_broken_rule
from tests.costmodels.timelines import CASES, case
from tests.repeats import halved
from tests.searches.instances import one_in

CLUSTER = {"name": "x64", "pools": [{"accelerator": "h100-sxm-80gb", "nodes": 8}], "fabric": {}}


@pytest.mark.parametrize("name", halved(one_in(24, CASES)))
def test_legal_changes_are_priced_and_the_others_have_a_rule(name: str) -> None:
    problem, layout = case(name)
    found = single_changes(problem, layout)
    assert len({(c.axis, c.new) for c in found}) == len(found)
    for change in found:
        assert change.old != change.new
        assert bool(change.rule) != bool(change.near)
        assert not change.rule or change.rule in RULES
    priced = [c.near.layout for c in found if c.near and c.axis != "precision"]
    assert len(set(priced)) == len(priced)
    alone = neighbours(problem, layout, pairs=False)
    layouts = {c.near.layout for c in found if c.near}
    assert {near.layout for near in alone} <= layouts
    context = Context(problem, SearchOptions(framework="any"), 64)
    for change in found[:: max(1, len(found) // 6)]:
        if change.near:
            assert first_broken_rule(context, change.near.layout) == ""
            opened = break_down(problem, change.near.layout)
            assert change.near.step_s == pytest.approx(opened.step_s, rel=1e-9)
            assert change.near.peak_bytes == pytest.approx(opened.peak_bytes, rel=1e-9)


def test_every_axis_and_schedule_is_tried() -> None:
    problem, layout = case("experts")
    found = single_changes(problem, layout)
    axes = {change.axis for change in found}
    assert axes == {*AXES, "schedule"} - {"cp_comm", "hpz"}
    rules = {c.new: c.rule for c in found if c.axis == "schedule"}
    assert rules["zb-h1"] == "SCH002"
    dense = {c.new: c.rule for c in single_changes(*case("1f1b")) if c.axis == "schedule"}
    assert set(dense.values()) == {""}
    # Two chunks a rank are the interleaved schedule: listed under vpp.
    assert set(dense) == {"gpipe", "zb-h1", "zb-v", "dualpipe", "dualpipe-v"}
    some = {c.new for c in single_changes(*case("1f1b")) if c.axis == "recompute"}
    assert some == {"full", *(f"full:{k}" for k in range(1, 8))} | {
        x for x in some if x == "selective"
    }


def test_a_framework_forbids_what_it_does_not_run() -> None:
    problem, layout = case("1f1b")
    open_, bound = (
        {(c.axis, c.new): c.rule for c in single_changes(problem, layout, framework)}
        for framework in ("any", "megatron")
    )
    assert open_.keys() == bound.keys()
    assert open_["schedule", "zb-h1"] == ""
    assert bound["schedule", "zb-h1"] not in ("", *RULES)
    assert all(bound[key] for key, rule in open_.items() if rule)


def test_the_text_names_values_rules_and_the_best() -> None:
    found = planner.evaluate("llama3-8b", CLUSTER, pins={"tp": 4, "pp": 4, "mbs": 1, "zero": 1})
    plan = found.plans[0]
    problem = plan.breakdown.rows.problem
    changes = single_changes(problem, plan.layout)
    text = text_of(SingleChanges(plan, changes, "any"))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "PP001 more virtual stages than layers" in text or "PP002" in text
    fitting = [c for c in changes if c.near and c.near.peak_bytes <= plan.usable_bytes]
    closed = {"tp_overlap", "optimizer_offload", "activation_offload_layers", "hpz"}
    best = min((c for c in fitting if c.axis not in closed), key=lambda c: c.near.step_s)
    (marked,) = [line for line in text.splitlines() if line.startswith("*")]
    assert marked.split()[1] == best.axis
    data = SingleChanges(plan, changes, "any").to_json()
    assert len(data["changes"]) == len(changes)
    for row in data["changes"]:
        if row["legal"]:
            assert row["delta_s"] == pytest.approx(row["step_time_s"] - plan.step_time_s)
        else:
            assert row["why_not"]
    # One value of an axis under one rule, all of them in a line.
    assert text_of(SingleChanges(plan, changes, "any")) == text
    # An axis that the search keeps closed is no proposal, and is named.
    alone = [c for c in changes if c.axis == "tp_overlap"]
    lines = text_of(SingleChanges(plan, alone, "any")).splitlines()
    assert not any(line.startswith("*") for line in lines)
    assert "none is faster and fits. Off by default, but faster: tp_overlap" in " ".join(lines)
    tight = replace(plan, usable_bytes=1.0)
    assert "none makes it fit" in text_of(SingleChanges(tight, changes, "any"))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planner.evaluate("llama3-8b", CLUSTER, pins={"tp": 4, "pp": 4, "mbs": 1, "zero": 1})
    path = tmp_path / "a.json"
    path.write_text(found.dumps(), encoding="utf-8")
    run_neighbours(f"{path}#1", "megatron", "table")
    text = capsys.readouterr().out
    assert "as megatron runs them" in text
    run_neighbours(f"{path}#1", "any", "json")
    assert json.loads(capsys.readouterr().out)["framework"] == "any"
    with pytest.raises(UsageError, match="unknown framework 'jax'"):
        run_neighbours(f"{path}#1", "jax", "table")
