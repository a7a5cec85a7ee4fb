"""Figures of the plan view: their numbers are those of the breakdown, the trace, the result."""

import math
from collections import defaultdict
from itertools import pairwise

import plotly.graph_objects as go
import pytest

from costmodels.breakdown import break_down, virtual_stage_times
from costmodels.comm.placement import tier_names
from costmodels.documentation.terms import term_groups
from costmodels.layers.flops import model_flops_per_step
from costmodels.schedule.timeline import MemoryLevel
from costmodels.step import data_parallel_exposed, stage_times
from planner.analyze.elasticities import elasticities
from planner.analyze.trace.chrome_trace import HIDDEN, THREADS, trace_events
from planner.frameworks.launchers.placement import place_plan
from planner.render.colours import TIME_KEYS
from planner.render.plan_view.cards import Amount, CardNumber, Deck, Derivation
from planner.render.plan_view.data import plan_view
from planner.render.plan_view.memory_figures import course_of, levels_in
from planner.render.plan_view.opened.memory import rank_memory
from planner.render.plan_view.opened.states import held_states
from planner.render.plan_view.opened.time import opened_parts
from planner.render.plan_view.operators import operators
from planner.render.plan_view.rank_map import MOST_NODES, rank_map
from planner.render.plan_view.step_drawing import (
    MAX_BLOCKS,
    MAX_RANKS,
    Window,
    draw_step,
    drawn_timeline,
    micro_batch_s,
    step_marks,
)
from planner.render.plan_view.step_figures import rate_levels
from planner.solver.answer.plans import plan_of_layout
from tests.planner.render.plan_view import plans
from tests.searches.instances import of_which


def value(view, number):
    """The number behind a cell."""
    assert isinstance(number, CardNumber)
    return view.deck.cards[number.key].value


def traces(figure, **kind):
    data = figure.chart.figure.to_plotly_json()["data"]
    return [t for t in data if all(t.get(key) == wanted for key, wanted in kind.items())]


@pytest.mark.parametrize("name", of_which(("interleaved",), plans.SPECS))
def test_the_bars_of_the_waterfall_end_at_the_step(name):
    view, plan = plans.viewed(name), plans.opened(name).plan
    bars = [
        (base, base + length)
        for trace in traces(view.waterfall, type="bar")
        if "base" in trace
        for base, length in zip(trace["base"], trace["x"], strict=True)
    ]
    ends = {0.0} | {end for _, end in bars}
    assert all(any(math.isclose(start, end, abs_tol=1e-9) for end in ends) for start, _ in bars)
    rows = view.waterfall.table.rows
    times = {row[0]: value(view, row[3]) for row in rows}
    total = times.pop("step time")
    assert math.fsum(times.values()) == pytest.approx(total, rel=1e-12)
    assert total == plan.step_time_s
    hidden, credit = times.pop("hidden traffic", 0.0), times.pop("overlap credit", 0.0)
    assert hidden == -credit
    assert times == {t: v for t, v in plan.breakdown.time_s.items() if v > 0.0}
    (step,) = [t for t in traces(view.waterfall, type="bar") if "base" not in t]
    # Every bar has its time beside it, on the side on which there is room.
    said = {
        y: t.strip()
        for trace in traces(view.waterfall, type="scatter")
        for y, t in zip(trace["y"], trace["text"], strict=True)
    }
    assert said == {row[0]: row[3].text for row in rows if row[0] != "step time"}
    sides = {
        (x < 0.4 * total, side)
        for trace in traces(view.waterfall, type="scatter")
        for x, side in zip(trace["x"], trace["textposition"], strict=True)
    }
    assert (True, "middle left") not in sides
    # The groups are those of `planner explain`; compute is a word for a part of what binds.
    assert {row[1] for row in rows} <= {*term_groups(), "total"}
    assert "compute" not in term_groups()
    assert step["x"] == [plan.step_time_s]
    assert step["error_x"]["array"] == [plan.step_time_p90_s - plan.step_time_s]
    assert step["error_x"]["arrayminus"] == [plan.step_time_s - plan.step_time_p10_s]


@pytest.mark.parametrize("name", of_which(("interleaved",), plans.SPECS))
def test_plotly_knows_every_setting_of_the_figures(name):
    """They are made without Plotly's check of every value, which takes long."""
    for one in plans.viewed(name).figures:
        data = one.chart.figure.to_plotly_json()
        assert go.Figure(data).to_plotly_json()["data"] == data["data"]


@pytest.mark.parametrize("name", plans.all_plans())
def test_memory_is_that_of_the_breakdown_and_the_stage_that_binds_is_marked(name):
    view, plan = plans.viewed(name), plans.opened(name).plan
    heads, found = view.memory.table.heads, plan.breakdown
    assert len(view.memory.table.rows) == plan.layout.pp
    for row, stage in zip(view.memory.table.rows, found.stages, strict=True):
        held = dict(zip(heads, row, strict=True))
        assert {h: value(view, held[h]) for h in heads[1:-2]} == {
            t: v for t, v in stage.items() if t in heads
        }
        assert all(v == 0.0 for t, v in stage.items() if t not in heads)
        assert value(view, held["peak"]) == pytest.approx(sum(stage.values()))
        assert value(view, held["free"]) == pytest.approx(plan.usable_bytes - sum(stage.values()))
    assert view.memory.table.marked == (found.peak_stage,)
    bars = traces(view.memory, type="bar")
    assert sum(sum(bar["x"]) for bar in bars) * 2**30 == pytest.approx(
        sum(sum(stage.values()) for stage in found.stages)
    )
    lines = view.memory.chart.figure.to_plotly_json()["layout"]["shapes"]
    limits = [plan.usable_bytes, plans.opened(name).problem.pool.accelerator.memory_bytes]
    assert [line["x0"] * 2**30 for line in lines] == pytest.approx(limits)


@pytest.mark.parametrize("name", plans.all_plans())
def test_memory_over_the_step_has_the_peak_of_the_answer(name):
    view, plan = plans.viewed(name), plans.opened(name).plan
    course, stage = course_of(plan), plan.breakdown.stages[plan.breakdown.peak_stage]
    rows = {row[0]: row for row in view.memory_course.table.rows}
    assert value(view, rows["peak"][-1]) == pytest.approx(plan.breakdown.peak_bytes, rel=1e-12)
    for row in rows.values():
        parts = [value(view, cell) for cell in row[3:-1]]
        assert sum(parts[:3]) == pytest.approx(stage["states"], rel=1e-12)
        assert sum(parts) == pytest.approx(value(view, row[-1]), rel=1e-12)
    assert value(view, rows["end"][-1]) == pytest.approx(stage["states"] + stage["overhead"])
    assert 0.0 < course.warm_up_s <= course.cool_down_s + 1e-12 or plan.layout.n_micro == 1
    assert course.end_s == pytest.approx(plan.step_time_s, rel=1e-6) or course.is_shortened
    # What is drawn is what is counted: the layers of a window add up to the peak in GiB.
    layers = traces(view.memory_course, type="scatter")
    n_windows = len(course.windows)
    constant = ("weights", "gradients", "optimizer", "runtime")
    heights = []
    for group in sorted({t["stackgroup"] for t in layers}):
        own = [t for t in layers if t["stackgroup"] == group]
        assert all(t["y"][0] == t["y"][1] for t in own if t["name"] in constant)
        always = sum(t["y"][0] for t in own if t["name"] in constant)
        changing = [t["y"] for t in own if t["name"] not in constant]
        heights.append(always + max(map(sum, zip(*changing, strict=True))))
    assert len(heights) == n_windows
    assert max(heights) * 2**30 <= plan.breakdown.peak_bytes * 1.001
    if n_windows == 1:
        assert max(heights) * 2**30 == pytest.approx(plan.breakdown.peak_bytes, rel=1e-3)


def test_weights_gradients_and_optimizer_of_a_dense_stage_by_hand():
    """Llama 3 8B over tp 2, one stage, ZeRO 1 over four: 2 B, 4 B and 12 B / 4 a parameter.

    Half of every matrix and all norms: 32 layers of 2 (4096 (4096 + 1024) + 3 * 4096 * 14336) / 2
    and 8,192 of norms, two tables of 128,256 x 4,096 / 2 and the last norm.
    """
    plan = plans.opened("dense").plan
    layer = (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336) / 2 + 2 * 4096
    n_params = 32 * layer + 128_256 * 4096 + 4096
    held = held_states(rank_memory(plan.breakdown, 0))
    assert held.weights == pytest.approx(2.0 * n_params, rel=1e-12)
    assert held.grads == pytest.approx(4.0 * n_params, rel=1e-12)
    assert held.optimizer == pytest.approx(3.0 * n_params, rel=1e-12)


def test_windows_of_the_memory_begin_and_end_at_their_edges():
    levels = [MemoryLevel(0.0, 1, 10.0, 0.0), MemoryLevel(2.0, 2, 20.0, 5.0)]
    assert levels_in(levels, Window("steady state", 1.0, 3.0)) == [
        MemoryLevel(1.0, 1, 10.0, 0.0),
        MemoryLevel(2.0, 2, 20.0, 5.0),
        MemoryLevel(3.0, 2, 20.0, 5.0),
    ]


@pytest.mark.parametrize("name", plans.all_plans())
def test_rates_go_from_the_peak_to_what_the_step_achieves(name):
    found, plan = plans.opened(name), plans.opened(name).plan
    levels = rate_levels(found.problem, plan)
    part = found.problem.pool.accelerator
    assert [level.key for level in levels[:3]] == ["peak", "sustained", "compute"]
    assert levels[0].rate == part.peak_flops_per_s[found.problem.job.recipe.linear]
    assert levels[1].rate == levels[0].rate * part.efficiency.gemm_frac
    flops = model_flops_per_step(found.problem.shape, found.problem.job)
    assert levels[-1].rate == pytest.approx(flops / plan.layout.n_devices / plan.step_time_s)
    rates = [level.rate for level in levels[2:]]
    assert rates == sorted(rates, reverse=True)
    assert levels[-1].time_s == plan.step_time_s
    # Each level has the time of one more kind: what lies between two is that kind's time.
    between = {b.key: b.time_s - a.time_s for a, b in pairwise(levels[2:])}
    for key, seconds in between.items():
        terms = [v for t, v in plan.breakdown.time_s.items() if TIME_KEYS[t] == key]
        assert seconds == pytest.approx(sum(terms), rel=1e-6, abs=1e-9 * plan.step_time_s)


@pytest.mark.parametrize("name", plans.all_plans())
def test_operators_add_up_to_the_terms_of_the_step(name):
    found = plans.opened(name)
    sums = defaultdict(float)
    for one in operators(opened_parts(found.problem, found.plan.breakdown)):
        sums[one.term] += one.time_s * one.n_calls
        assert one.moved_bytes > 0.0
        assert one.rate <= one.peak_flops_per_s
        # No roof is broken: the memory is not faster than its data sheet, either.
        assert one.moved_bytes / one.time_s <= found.problem.pool.accelerator.hbm_bytes_per_s
    if found.problem.shape.mtp_layers:
        del sums["head"]  # the layers of multi-token prediction are part of that term
    assert sums == pytest.approx({t: found.plan.breakdown.time_s[t] for t in sums}, rel=1e-9)
    assert {"linear", "attention", "elementwise"} <= set(sums)


def test_one_product_of_a_roofline_by_hand():
    """The MLP of Llama-3 8B at tp 2: 8192 tokens x 4096 x 2 14336 / 2."""
    found = plans.opened("dense")
    rows = operators(opened_parts(found.problem, found.plan.breakdown))
    (up,) = [o for o in rows if (o.name, o.direction) == ("MLP up", "forward")]
    assert up.flops == 2 * 8192 * 4096 * 14336
    assert up.moved_bytes == 2 * (8192 * 4096 + 4096 * 14336 + 8192 * 14336)
    assert up.n_calls == 32 * 16  # layers, and 64 sequences over dp 4


@pytest.mark.parametrize("name", plans.all_plans())
def test_every_collective_stands_on_the_communication_roofline(name):
    view, plan = plans.viewed(name), plans.opened(name).plan
    wires = plan.breakdown.transfers
    if not wires:
        assert len(view.rooflines) == 1
        return
    table = view.rooflines[1].table
    columns = {head: i for i, head in enumerate(table.heads)}
    for row, one in zip(table.rows, wires, strict=True):
        assert row[0].text == one.axis
        assert row[1] == one.collective
        shown = {
            h: value(view, row[i]) for h, i in columns.items() if isinstance(row[i], CardNumber)
        }
        assert shown["Ranks"] == one.group_size
        assert shown["Calls"] == one.n_calls
        assert shown["Message"] == one.message_bytes
        assert shown["Sent"] == one.sent_bytes
        assert shown["On the wire"] == one.time_s
        assert shown["Waited for"] == one.exposed_s
    dots = sum(len(t["x"]) for t in traces(view.rooflines[1], mode="markers"))
    assert dots == len(wires)


def test_on_a_torus_links_are_those_that_a_collective_has():
    view, plan = plans.viewed("torus"), plans.opened("torus").plan
    table = view.rooflines[1].table
    share = table.heads.index("Of the link")
    # A ring of 4 chips of 4x4x4 holds two groups of tp, a line each: one link. Experts have what
    # their eight ranks, two chips apart, have of the slowest axis, all devices the three rings.
    links = {
        ("tp", "all-gather"): 1,
        ("ep", "all-to-all"): min(8 / (2 * 2), 8 / (4 * 1)) * 7 / 8,
        ("dp", "all-gather"): None,
    }
    wires = {(x.axis, x.collective): x for x in plan.breakdown.transfers}
    for key, n_links in links.items():
        rate = wires[key].torus_bytes_per_s
        assert n_links is None or rate == pytest.approx(n_links * 90e9), key
        assert rate < 540e9
    for row, one in zip(table.rows, plan.breakdown.transfers, strict=True):
        reached = one.sent_bytes / one.time_s / one.torus_bytes_per_s
        assert value(view, row[share]) == pytest.approx(reached)
        assert reached <= 1.0 + 1e-9, one.axis


def test_a_view_of_chips_says_no_gpu():
    assert "GPU" not in plans.shown("torus")
    assert "TPU chip" in plans.shown("torus")


def spans(events):
    """Rank, thread, start and end of what is drawn, microseconds."""
    return {
        (e["pid"], e["tid"], e["ts"], e["ts"] + e["dur"], e["name"])
        for e in events
        if e["ph"] == "X"
    }


@pytest.mark.parametrize("name", ["experts", "interleaved"])
def test_the_drawn_step_is_the_one_of_the_trace(name):
    found = plans.opened(name)
    whole = spans(trace_events(found.problem, found.plan))
    drawing = draw_step(found.plan)
    drawn = spans(drawing.events)
    assert drawn <= whole
    inside = {
        s
        for s in whole
        if s[0] in drawing.ranks
        and any(s[2] < w.end_s * 1e6 and s[3] > w.start_s * 1e6 for w in drawing.windows)
    }
    blocks = {s for s in inside if s[1] == 0}
    assert blocks <= drawn  # no gap in a window but those of the pipeline
    assert drawing.end_s == pytest.approx(found.plan.step_time_s, rel=1e-9)
    if len(drawing.windows) == 1:
        assert drawn == whole


@pytest.mark.parametrize("name", plans.all_plans())
def test_dp_traffic_that_is_drawn_is_the_traffic_of_the_plan(name):
    """What hides and what is waited for add up to the time on the wire, on the stage of the term.

    Of a step that is cut, the whole trace is added up.
    """
    found, view = plans.opened(name), plans.viewed(name)
    rows = found.plan.breakdown.rows
    exposed, hidden = data_parallel_exposed(rows, stage_times(rows))
    kind = (exposed + rows.problem.stack.overlap_slowdown * hidden)[:, 0].argmax()
    wires = (exposed + hidden)[kind, 0]
    # Of a stage without experts the price has an empty call that is no transfer.
    listed = sum(x.time_s for x in found.plan.breakdown.transfers if x.axis == "dp")
    assert listed == pytest.approx(wires, rel=3e-4)
    sums = defaultdict(float)
    kinds = set()
    for e in trace_events(found.problem, found.plan):
        if e["ph"] == "X" and e["tid"] == THREADS["dp"]:
            sums[e["pid"]] += e["dur"] * 1e-6
            kinds.add(e["cat"])
    if wires == 0.0:
        assert not sums
        return
    n_events = len(found.plan.breakdown.layout.stage_layers) * found.plan.layout.n_micro
    assert any(total == pytest.approx(wires, abs=4e-9 * n_events) for total in sums.values())
    hides = HIDDEN in kinds
    drawn = {t["name"] for t in traces(view.timeline, fill="toself")}
    assert hides == ("dp traffic, hidden" in drawn)
    assert hides == any("not when" in note for note in view.timeline.chart.notes)
    hides_s = [c.value for key, c in view.deck.cards.items() if key.endswith("-dp-hidden")]
    assert hides == any(value > 0.0 for value in hides_s)
    if hides:
        waits = found.plan.breakdown.time_s["dp"]
        assert any(value + waits == pytest.approx(wires, rel=1e-9) for value in hides_s)


def test_a_small_step_by_hand():
    """pp 2, two micro-batches, 1F1B: F0 F1 - B0 B1 on the first rank, F0 B0 F1 B1 on the last."""
    found = plans.opened("dense")
    spec = plans.Spec(
        "llama3-8b",
        "h100-x8",
        {"pp": 2, "tp": 4, "mbs": 1},
        sets=(("training.global_batch", 2),),
    )
    result = plans.evaluate(spec.model, spec.cluster, pins=spec.pins, overrides=spec.sets)
    plan = result.plans[0]
    drawing = draw_step(plan)
    order = {
        rank: [
            e["name"]
            for e in drawing.events
            if e["pid"] == rank and e["tid"] == 0 and e["cat"] != "after the pipeline"
        ]
        for rank in (0, 1)
    }
    assert order == {0: ["F0", "F1", "B0", "B1"], 1: ["F0", "B0", "F1", "B1"]}
    deck = Deck()
    deck.add("step-time", "step", Amount(plan.step_time_s, "s"), Derivation("T", "1", "x"))
    figure = drawn_timeline(deck, found.problem, plan)
    kinds = {t["name"] for t in traces(figure, fill="toself")}
    assert {"forward", "backward", "tp traffic", "messages between stages"} <= kinds
    (forward,) = [t for t in traces(figure, fill="toself") if t["name"] == "forward"]
    assert len(forward["x"]) == 6 * 4  # four forwards, each a closed shape and a gap
    # Blocks and idle time of each rank fill the pipeline.
    for row in figure.table.rows:
        busy, idle = (deck.cards[cell.key].value for cell in row[1:3])
        assert busy + idle == pytest.approx(drawing.step.pipeline.end_s)


def test_the_marks_of_a_step_are_its_end_its_windows_and_one_micro_batch():
    found = plans.opened("interleaved")
    drawing = draw_step(found.plan)
    stages = drawing.step.pipeline.blocks
    busy_s = [sum(block.end_s - block.start_s for block in blocks) for blocks in stages]
    n_micro = found.plan.layout.n_micro
    assert micro_batch_s(drawing) == pytest.approx(max(busy_s) / n_micro)
    marks = step_marks(drawing, 1e-3)
    assert marks["end"] == pytest.approx(found.plan.step_time_s * 1e3, rel=1e-5)
    assert marks["micro_batch"] == pytest.approx(max(busy_s) / n_micro * 1e3, rel=1e-5)
    assert marks["names"] == ["whole step"]
    assert marks["windows"] == [[0.0, marks["end"]]]


@pytest.mark.slow
def test_a_long_step_is_cut_and_says_so():
    spec = plans.Spec("llama3-70b", "h100-x512", {"tp": 1, "pp": 32, "mbs": 1, "zero": 1})
    plan = plans.evaluate(spec.model, spec.cluster, pins=spec.pins).plans[0]
    drawing = draw_step(plan)
    assert [w.name for w in drawing.windows] == ["warm-up", "steady state", "cool-down"]
    assert len(drawing.ranks) == MAX_RANKS < plan.layout.pp
    blocks = [e for e in drawing.events if e["tid"] == 0]
    assert len(blocks) <= 1.3 * MAX_BLOCKS  # those at the edges of windows besides
    starts = [w.start_s for w in drawing.windows]
    ends = [w.end_s for w in drawing.windows]
    assert starts[0] == 0.0
    assert ends[-1] == pytest.approx(plan.step_time_s, rel=1e-6)
    assert all(a < b for a, b in zip(ends, starts[1:], strict=False))
    deck = Deck()
    figure = drawn_timeline(deck, plan.breakdown.rows.problem, plan)
    assert "timeline-left-out" in deck.cards
    layout = figure.chart.figure.to_plotly_json()["layout"]
    assert layout["grid"]["columns"] == 3
    assert {"xaxis", "xaxis2", "xaxis3"} <= set(layout)


@pytest.mark.parametrize("name", plans.all_plans())
def test_ranks_are_drawn_where_they_run(name):
    found = plans.opened(name)
    drawn = rank_map(Deck(), found.problem, found.plan, found.cluster)
    placed = place_plan(
        found.plan.layout, found.problem.shape, found.problem.pool, found.problem.fabric
    )
    for unit in drawn.units:
        for node in unit.nodes:
            for cell in node.ranks:
                assert placed.host(cell.rank) == node.host
                for axis, number in zip(drawn.axes, cell.groups, strict=True):
                    assert cell.rank in placed.group(axis).ranks[number]
    several = {g.name for g in placed.groups if g.n_members > 1}
    assert set(drawn.axes) == several & {"tp", "cp", "ep", "etp", "dp", "pp"}
    assert {row[0] for row in drawn.table.rows} == several
    assert {row[-1].text for row in drawn.table.rows} <= set(tier_names(found.problem.fabric))


@pytest.mark.slow
def test_of_a_large_cluster_representative_nodes_are_drawn():
    result = plans.evaluate(
        "llama3-405b",
        "h100-x16384",
        pins={"tp": 8, "pp": 16, "zero": 1},
        overrides=(("training.global_batch", 2048),),
    )
    plan = result.plans[0]
    model, cluster = plans.read_inputs("llama3-405b", "h100-x16384")
    problem, _ = plan_of_layout(model, cluster, plans_options(), plan.layout)
    deck = Deck()
    drawn = rank_map(deck, problem, plan, cluster)
    nodes = [node.index for unit in drawn.units for node in unit.nodes]
    assert 2 < len(nodes) <= MOST_NODES
    assert nodes == sorted(set(nodes))
    assert {0, 1, 2047} <= set(nodes)
    reached = {cell.rank for unit in drawn.units for node in unit.nodes for cell in node.ranks}
    placed = place_plan(plan.layout, problem.shape, problem.pool, problem.fabric)
    for axis in drawn.axes:
        first = placed.group(axis).ranks[0].tolist()
        assert {first[0], first[1], first[-1]} <= reached
    assert deck.cards["map-left-out"].value == 2048 - len(nodes)


def plans_options():
    from planner.solver.request import SolveRequest

    return SolveRequest.of(top=1).options()


@pytest.mark.parametrize("name", ["zero3", "experts"])
def test_elasticities_are_those_of_the_library(name):
    view, found = plans.viewed(name), plans.opened(name)
    expected = elasticities(found.problem, found.plan.layout)
    rows = {row[0].replace(" ", "_"): row for row in view.elasticities.table.rows}
    for figure, row in rows.items():
        assert value(view, row[4]) == expected[figure]
        assert value(view, row[3]) == pytest.approx(
            abs(expected[figure]) * 0.01 * found.plan.step_time_s
        )
    assert all(abs(v) < 5e-5 for figure, v in expected.items() if figure not in rows)


def test_the_nearest_plans_are_priced_as_plans():
    view, found = plans.viewed("zero3"), plans.opened("zero3")
    assert view.next_table is not None
    fits = [row for row in view.next_table.rows if row[1] == "yes"]
    times = [value(view, row[2]) for row in fits]
    assert times == sorted(times)
    for row in view.next_table.rows:
        peak, change = value(view, row[4]), value(view, row[3])
        assert (peak <= found.plan.usable_bytes) == (row[1] == "yes")
        assert change == pytest.approx(value(view, row[2]) / found.plan.step_time_s - 1)


@pytest.mark.slow
def test_the_same_plan_gives_the_same_bytes():
    found = plans.opened("zero3")
    again = plan_view(found.model, found.cluster, found.problem, found.plan)
    assert again.dumps() == plans.viewed("zero3").dumps()
    assert break_down(found.problem, found.plan.layout).step_s == found.plan.step_time_s


@pytest.mark.slow
def test_of_a_very_long_step_a_shorter_one_is_drawn():
    sets = (("training.global_batch", 32768),)
    spec = plans.Spec("llama3-70b", "h100-x512", {"tp": 8, "pp": 16, "mbs": 1}, sets=sets)
    plan = plans.evaluate(spec.model, spec.cluster, pins=spec.pins, overrides=sets).plans[0]
    drawing = draw_step(plan)
    assert drawing.shortened
    # Its blocks take what those of the whole step take.
    forward, backward = virtual_stage_times(plan.breakdown.rows, plan.layout)
    first = drawing.step.pipeline.blocks[3][0]
    last = drawing.step.pipeline.blocks[3][-1]
    assert first.end_s - first.start_s == pytest.approx(forward[3])
    assert last.end_s - last.start_s == pytest.approx(backward[3])
    deck = Deck()
    deck.add("micro-batches", "m", Amount(plan.layout.n_micro, ""), Derivation("m", "1", "x"))
    figure = drawn_timeline(deck, plan.breakdown.rows.problem, plan)
    drawn = deck.cards["timeline-micro-batches"].value
    assert 3 * 16 <= drawn < plan.layout.n_micro
    assert drawn % 32 == 0
    assert "is drawn in place of" in figure.chart.says
