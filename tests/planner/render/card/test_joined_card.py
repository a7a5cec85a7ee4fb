"""The card and the rows of plans over several pools."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest

import planner
from planner.cli.commands.plans import run_show
from planner.render.answers.plan_table import plans_csv
from planner.render.card.html import card_html
from planner.render.card.joined import TERM_KEYS, joined_card, joined_card_of, pools_drawing
from planner.render.card.markdown import card_markdown
from planner.render.card.notebook import answer_html, answer_markdown
from planner.render.card.text import card_lines
from planner.solver.together.plans import TERMS
from planner.solver.together.words import pipelines_text
from tests.planner.solver.together.tiny import MODEL, OLD, PINS, cluster, pool


@pytest.fixture(scope="module")
def result():
    """An answer over three pools, with several kinds of pipelines."""
    few = pool("few", "h200-sxm-141gb", per_node=1)
    pools = cluster(pool("new", per_node=1), OLD, few)
    return planner.solve(MODEL, pools, pins=PINS, top=6, executor="serial", pools="together")


@pytest.fixture(scope="module")
def apart():
    """The same without plans over several pools."""
    return planner.solve(MODEL, cluster(OLD), pins=PINS, top=3, executor="serial")


def test_the_card_says_what_to_do_in_one_sentence(result):
    plan = result.together.plans[0]
    card = joined_card_of(result.to_json(), plan)
    assert card.sentence.startswith("Use 2 devices of old")
    assert joined_card_of(result.to_json(), result.together.plans[1]).sentence.startswith(
        "Plan t2"
    )
    assert card.figure("step_time_s").value == plan.step_time_s
    assert card.figure("tokens_per_s").value == plan.tokens_per_s
    assert "h200-sxm-141gb" in card.cluster
    assert card.commands[-1].line == "planner explain last#t1"
    assert not any("planner show" in command.line for command in card.commands)


def test_bars_sum_to_the_step_and_to_the_memory(result):
    assert tuple(TERM_KEYS) != ()
    assert {*TERM_KEYS} == {*TERMS}
    for plan in result.together.plans:
        card = joined_card(plan)
        assert sum(x.amount for x in card.step.segments) == pytest.approx(plan.step_time_s)
        assert {t for x in card.step.segments for t in x.terms} <= {*TERMS}
        usable = {round(s.usable_bytes) for k in plan.kinds for s in k.stages}
        assert sum(x.amount for x in card.memory.segments) in usable


def test_the_picture_has_a_box_for_every_stage_in_the_colour_of_its_pool(result):
    for plan in result.together.plans:
        drawing = pools_drawing(plan, {})
        assert [len(row.stages) for row in drawing.rows] == [len(k.stages) for k in plan.kinds]
        text = card_html(joined_card(plan), is_styled=False)
        assert text.count("<g>") == text.count("</g>") == sum(len(k.stages) for k in plan.kinds)
        drawn = re.findall(r'<g><rect class="(c-[a-z]+)"', text)
        assert len(set(drawn)) == len(plan.devices)
        for row, kind in zip(drawing.rows, plan.kinds, strict=True):
            names = [list(plan.devices)[x.pool] for x in row.stages]
            assert names == [x.pool for x in kind.stages]


def test_names_are_escaped(result):
    plan = result.together.plans[0]
    kinds = tuple(
        replace(k, stages=tuple(replace(s, pool="<b>") for s in k.stages)) for k in plan.kinds
    )
    strange = replace(plan, devices={"<b>": 4}, kinds=kinds)
    assert "<b>:" not in card_html(joined_card(strange), is_styled=False)


def test_every_surface_draws_it(result, tmp_path, capsys):
    plan = result.together.plans[0]
    assert 'data-drawing="pools"' in answer_html(result)
    assert answer_html(result).count('data-drawing="pools"') == 1
    assert 'data-drawing="pools"' in answer_html(plan)
    lines = card_lines(joined_card(plan), 60)
    assert all(len(line) <= 60 for line in lines)
    assert any(line.startswith("1 x 50%") for line in lines)
    assert "```text" in card_markdown(joined_card(plan))
    assert answer_markdown(plan).startswith("## Plan t1")
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(result.to_json()))
    run_show(f"{path}#t1", "table")
    assert capsys.readouterr().out.startswith("Use 2 devices of old")


def test_rows_of_such_plans_come_first_in_csv(result, apart):
    rows = list(csv.DictReader(io.StringIO(plans_csv(result))))
    joined = [row for row in rows if row["rank"].startswith("t")]
    assert rows[: len(joined)] == joined
    assert len(rows) == len(joined) + len(result.plans)
    for row, plan in zip(joined, result.together.plans, strict=True):
        assert float(row["step_time_s"]) == plan.step_time_s
        assert int(row["n_devices"]) == plan.n_devices
        assert row["pipelines"] == pipelines_text(plan)
        depths = {len(kind.stages) for kind in plan.kinds}
        assert (row["pp"] == "") == (len(depths) > 1)
    assert all(row["pipelines"] == "" for row in rows[len(joined) :])
    assert "pipelines" not in plans_csv(apart).splitlines()[0]


def test_pipelines_in_a_cell_name_pools_layers_and_batch(result):
    plan = result.together.plans[0]
    stage = plan.kinds[0].stages[0]
    first = replace(stage, pool="a", layers=3, tp=4, recompute="full")
    second = replace(first, pool="b", layers=1, tp=1, recompute="none")
    kind = replace(
        plan.kinds[0], n_pipelines=8, n_sequences=24, mbs=2, stages=(first, first, second)
    )
    assert pipelines_text(replace(plan, kinds=(kind,))) == "8 x (a 2x3 tp4 full | b 1) 24 of 2"
