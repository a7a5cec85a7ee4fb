"""The card: its numbers are the answer's, it adds up, and every surface prints it whole."""

import json
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import planner
from costmodels.documentation.terms import ALL_TIME_TERMS, MEMORY_TERMS
from planner.render.card.answer import card_of, card_of_saved
from planner.render.card.card import AnswerCard, Bar, Segment
from planner.render.card.drawing import drawing_of, unit_of
from planner.render.card.html import card_html
from planner.render.card.markdown import card_markdown
from planner.render.card.sentences import assumptions_of, layout_words
from planner.render.card.text import card_lines, card_text, shares_of
from planner.render.colours import LEGEND, MEMORY_KEYS, TIME_KEYS
from planner.render.style import Style
from planner.solver.answer.result import Result
from tests.planner.test_documents import Tags

EVIL = "<img src=x onerror=alert(1)>|*x*"


@cache
def result() -> Result:
    return planner.solve(
        "llama3-70b", "h100-x512", pins={"tp": 4, "pp": 4, "cp": 2}, only={"mbs": [1]}, top=3
    )


def of_json(found: Result) -> Result:
    return Result.from_json(json.loads(found.dumps()))


def texts(card: AnswerCard) -> list[str]:
    """What every surface has to print."""
    segments = [segment.text for bar in card.bars for segment in bar.segments]
    return [card.sentence, *(figure.text for figure in card.figures), *segments]


def test_the_card_needs_nothing_but_the_json() -> None:
    assert card_of(of_json(result())) == card_of(result())


def test_its_figures_are_those_of_the_json() -> None:
    data = json.loads(result().dumps())["plans"][0]
    flat = {**data, **data["memory"], **(data["run"] or {})}
    card = card_of(result())
    assert {x.key: x.value for x in card.figures} == {x.key: flat[x.key] for x in card.figures}
    assert {x.key for x in card.figures} >= {"step_time_s", "mfu", "tokens_per_s", "peak_bytes"}
    step = card.figure("step_time_s")
    assert step.interval == (data["step_time_p10_s"], data["step_time_p90_s"])
    assert f"{data['step_time_s']:.2f} s" == step.text


def test_bars_add_up_to_the_step_and_to_the_usable_memory() -> None:
    data = json.loads(result().dumps())["plans"][0]
    card = card_of(result())
    assert card.step is not None
    assert card.memory is not None
    for bar, total in ((card.step, data["step_time_s"]), (card.memory, None)):
        assert sum(x.amount for x in bar.segments) == pytest.approx(bar.total, rel=1e-9)
        assert sum(x.share for x in bar.segments) == pytest.approx(1.0, rel=1e-9)
        assert total is None or bar.total == total
    assert card.memory.total == data["memory"]["usable_bytes"]
    terms = [term for segment in card.step.segments for term in segment.terms]
    assert sorted(terms) == sorted(term for term, x in data["time"].items() if x > 0)


def test_counts_add_up() -> None:
    counts = card_of(result()).counts
    assert counts.legal == counts.fitting + counts.too_large + counts.too_slow
    assert f"{counts.legal:,}" in card_of(result()).proof
    assert "with cp, mbs, pp, tp restricted" in card_of(result()).proof


def test_boxes_lie_where_the_ranks_are() -> None:
    """TP 4 x CP 2 fills a node of 8; stages lie DP = 16 nodes apart: stage 3 begins at 48."""
    drawing = card_of(result()).drawing
    assert drawing is not None
    assert (drawing.replicas, drawing.stages, drawing.box_gpus, drawing.units) == (16, 4, 8, 64)
    assert [box.place for box in drawing.boxes[0]] == ["node 0", "node 16", "node 32", "node 48"]
    assert [row[0].replica for row in drawing.boxes] == [0, 1, 15]
    assert drawing.boxes[-1][-1].first_gpu == 8 * 15 + 3 * 8 * 16
    wires = {group.axis: group.wire for group in drawing.groups}
    assert wires == {"tp": "NVLink", "cp": "NVLink", "pp": "network", "dp": "network"}


def test_pipelines_inside_lie_side_by_side() -> None:
    """Replicas lie TP x CP x PP = 32 ranks apart: replica 1 begins at node 4."""
    plan = result().best
    plan = replace(plan, layout=replace(plan.layout, rank_order="tp-cp-ep-pp-dp"))
    drawing = drawing_of(plan, result().inputs["cluster"]["pools"][0])
    assert [box.place for box in drawing.boxes[1]] == ["node 4", "node 5", "node 6", "node 7"]


def test_nvlink_over_nodes_makes_racks() -> None:
    pool = {"accelerator": "gb200-186gb", "accelerators_per_node": 4, "scale_up_domain": 72}
    assert unit_of(pool) == ("rack", 72)
    assert unit_of({**pool, "segment": 64}) == ("rack", 64)
    assert unit_of({"accelerators_per_node": 8, "scale_up_domain": 8}) == ("node", 8)
    tpus = {"accelerator": "tpu-v5p", "accelerators_per_node": 4, "scale_up_domain": 64}
    assert unit_of(tpus) == ("slice", 64)


def test_layout_in_words_and_digits() -> None:
    layout = result().best.layout
    base = replace(layout, vpp=4, schedule="interleaved", zero=1, split="even", cp_comm="p2p")
    words = layout_words(replace(base, recompute="none"))
    assert words == (
        "TP 4 x PP 4 x CP 2 x DP 16, ZeRO 1, micro-batch 1, interleaved 4, no recomputation"
    )
    most = max(base.stage_layers)
    full = layout_words(replace(base, recompute="full", recompute_layers=most - 1))
    assert full.endswith(f", recomputation of {most - 1} of {most} layers a stage")


def test_assumptions_name_the_option_that_changes_them() -> None:
    notes = ("assumed training.seq_len = 8192 (usual)", "assumed model.bias = off", "pool a: b")
    price = "--set pools.0.price_per_hour="
    found = replace(result(), notes=notes)
    assert [x.option for x in assumptions_of(found)] == ["--seq", "--set model.bias=", price]
    worded = replace(found, notes=(), inputs={**found.inputs, "cluster_source": "512xh100"})
    options = [x.option for x in assumptions_of(worded)]
    assert options == ["--set pools.0.accelerators_per_node=", "--set pools.0.nic=", price]
    named = replace(worded, inputs={**found.inputs, "cluster_source": "512xh100@roce400"})
    assert "--set pools.0.nic=" not in [x.option for x in assumptions_of(named)]


def test_columns_of_a_bar_sum_to_its_width() -> None:
    """Of 10 columns shares 0.55, 0.35 and 0.1 take 5.5, 3.5 and 1: remainders give 6, 3, 1."""
    shares = (0.55, 0.35, 0.1)
    segments = tuple(Segment("tp", "TP", x, x, f"{x}") for x in shares)
    assert shares_of(Bar("step", "step", 1.0, "1 s", segments), 10) == [6, 3, 1]


@pytest.mark.parametrize("width", [60, 80, 100, 160, 200])
def test_no_line_is_wider_than_the_window(width: int) -> None:
    lines = card_lines(card_of(result()), width)
    assert max(len(line) for line in lines) <= width
    assert lines == card_lines(card_of(of_json(result())), width)


def test_colour_changes_no_character() -> None:
    card = card_of(result())
    coloured = card_text(card, 100, Style(is_on=True))
    assert "\x1b[38;5;" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == card_text(card, 100)


def test_every_surface_prints_the_same_numbers() -> None:
    card = card_of(result())
    surfaces = (card_text(card, 200), card_html(card), card_markdown(card))
    for text in texts(card):
        assert all(text in surface for surface in surfaces), text


def test_html_holds_its_styles_and_escapes_names() -> None:
    found = result()
    model = {**found.inputs["model"], "model": {**found.inputs["model"]["model"], "name": EVIL}}
    card = card_of(replace(found, inputs={**found.inputs, "model": model}))
    html = card_html(card)
    assert "<img" not in html
    assert "prefers-color-scheme: dark" in html
    assert "<style>" not in card_html(card, is_styled=False)
    assert "<img" not in card_markdown(card)
    tags: Any = Tags(html).found
    assert tags.count("section") == 1


def test_another_plan_is_told_from_the_recommended_one() -> None:
    found = result()
    card = card_of(found, 2)
    assert card.sentence.startswith("Plan 2: ")
    more = found.plans[1].step_time_s / found.best.step_time_s - 1
    assert f"{abs(more):.1%} {'more' if more >= 0 else 'less'} time than" in card.choice
    assert card.closed == ()
    assert card_of_saved(json.loads(found.dumps()), found.plans[1].plan_id) == card


def test_an_answer_without_plans_says_what_would_help() -> None:
    found = planner.solve("llama3-8b", "1xh100", top=1)
    card = card_of(found)
    assert card == card_of(of_json(found))
    assert not card.plan_id
    assert not card.figures
    assert card.drawing is None
    assert [x.line for x in card.commands] == [x.command for x in found.relaxations[:3]]
    miss = found.closest
    assert miss is not None
    assert f"{miss.peak_bytes / 2**30:.1f} GiB" in card.sentence


def test_every_term_has_one_colour_of_the_legend() -> None:
    assert set(TIME_KEYS) == set(ALL_TIME_TERMS)
    assert set(MEMORY_KEYS) == set(MEMORY_TERMS)
    assert set(TIME_KEYS.values()) | set(MEMORY_KEYS.values()) <= set(LEGEND)
    parallel = [LEGEND[key].light for key in ("compute", "tp", "cp", "ep", "dp", "pp", "waiting")]
    assert len(set(parallel)) == len(parallel)
