"""The exchange of tokens beside another micro-batch: what shows, what it slows, by hand."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.axes import SwitchTable
from costmodels.breakdown import break_down
from costmodels.comm import dispatch
from costmodels.comm.dispatch import Degrees
from costmodels.comm.expert_overlap import LayerHalves, exchange_beside, exposed_exchange
from costmodels.layers.compute import ForwardBackward
from costmodels.layers.experts import ExpertTimes
from costmodels.modes import ModeRows
from tests.costmodels.comm.test_dispatch import ROUTED, arr, ranks

DEGREES = Degrees(ranks(1), ranks(0), ranks(8), ranks(1))
ON = (("ep_overlap", "1f1b"),)
HALVES = LayerHalves(
    ForwardBackward(arr(3.0), arr(7.0)), ForwardBackward(arr(2.0), arr(2.5)), arr(1.5)
)


@pytest.mark.parametrize(
    ("leg", "forward", "backward"),
    [
        (1.0, 0.0, 0.0),
        (3.0, 0.5, 0.0),  # the dispatch of the forward beside experts backward, 2.5
        (4.0, 1.5, 1.0 + 0.5),  # combine beside 3, dispatch beside 1.5 + 2
        (8.0, 5.5 + 1.0, 5.0 + 4.5),
    ],
)
def test_what_shows_by_hand(leg, forward, backward):
    waits = exposed_exchange(arr(leg), HALVES)
    assert (waits.forward_s.item(), waits.backward_s.item()) == (forward, backward)


def routed_times(leg: float) -> ExpertTimes:
    """Return experts with 1 s of routing each way and the halves above."""
    one = ForwardBackward(arr(1.0), arr(1.0))
    compute = ForwardBackward(arr(2.0 + 1.0), arr(2.5 + 1.0 + 1.5))
    return ExpertTimes(compute, ForwardBackward(arr(2 * leg), arr(2 * leg)), one, arr(1.5))


REST = ForwardBackward(arr(2.0), arr(6.0))
"""The layer without its experts: with routing 3 s forward and 7 s backward."""


def modes(**codes: int) -> ModeRows:
    table = SwitchTable.of_product({axis: (code,) for axis, code in codes.items()})
    return ModeRows(ranks(0), ranks(0), table)


def test_nothing_hides_without_overlap(toy_problem):
    for off in (ModeRows.of_sp(ranks(0)), modes(ep_overlap=0)):
        found = exchange_beside(toy_problem(ROUTED), DEGREES, off, REST, routed_times(4.0))
        assert (found.exposed.forward_s.item(), found.exposed.backward_s.item()) == (8.0, 8.0)
        assert (found.hidden_s.item(), found.tax.total_s.item()) == (0.0, 0.0)


@pytest.mark.parametrize(("dispatcher", "share"), [(0, 0.15), (2, 0.2), (3, 0.24)])
def test_what_hides_slows_the_compute_beside_it(toy_problem, dispatcher, share):
    """4 s legs: 16 s in all, 1.5 + 1.5 show, 13 hide; half of the tax each way."""
    for kind in (1, 2):
        mode = modes(dispatcher=dispatcher, ep_overlap=kind)
        found = exchange_beside(toy_problem(ROUTED), DEGREES, mode, REST, routed_times(4.0))
        assert (found.exposed.forward_s.item(), found.exposed.backward_s.item()) == (1.5, 1.5)
        assert found.hidden_s.item() == 13.0
        assert found.tax.forward_s.item() == pytest.approx(share * 6.5)
        assert found.tax.backward_s.item() == pytest.approx(share * 6.5)


@given(
    leg=st.floats(0, 10),
    parts=st.tuples(*[st.floats(0, 5)] * 5),
)
def test_no_more_shows_than_there_is_and_no_less_than_does_not_fit(leg, parts):
    a_f, a_b, m_f, m_b, w = map(arr, parts)
    halves = LayerHalves(ForwardBackward(a_f, a_b), ForwardBackward(m_f, m_b), w)
    waits = exposed_exchange(arr(leg), halves)
    assert 0 <= waits.forward_s.item() <= 2 * leg
    assert 0 <= waits.backward_s.item() <= 2 * leg
    assert waits.total_s.item() >= 4 * leg - sum(parts) - 1e-9


# Whole plans ---------------------------------------------------------------------------------


def both(problem, layout):
    """Return a plan without and with overlap."""
    return break_down(problem, layout), break_down(problem, replace(layout, switches=ON))


def test_a_step_pays_once_for_its_ends(toy_problem, plain_layout):
    """m + 1 phases of one stage: the first forward and the last backward have no partner."""
    problem = toy_problem(ROUTED, stack=replace_tax(toy_problem))
    layout = replace(plain_layout(problem, dp=16, zero=1), ep=8)
    off, on = both(problem, layout)
    one = on.rows.layers.experts
    exposed, hidden = one.exchange.total_s.item(), one.exchange_hidden_s.item()
    assert hidden > 0
    full = off.rows.layers.experts.exchange.total_s.item()
    assert exposed + hidden == pytest.approx(full)
    m, n = layout.n_micro, 8
    assert one.fill_s.item() == pytest.approx(full - exposed)  # no tax, and the host keeps up
    assert on.time_s["ep"] == pytest.approx(m * n * exposed + n * (full - exposed), rel=1e-12)
    assert off.time_s["ep"] == pytest.approx(m * n * full, rel=1e-12)


def replace_tax(toy_problem):
    """Return a stack whose traffic slows no compute, with a host that is never late."""
    return replace(never_late(toy_problem), overlap_slowdown=0.0)


def never_late(toy_problem):
    """Return a stack whose host launches all at once."""
    return replace(toy_problem().stack, host_s_per_layer=0.0, routing_host_s=0.0)


def test_a_host_that_is_late_has_no_fill(toy_problem, plain_layout):
    slow = replace(toy_problem().stack, host_s_per_layer=1.0)
    problem = toy_problem(ROUTED, stack=slow)
    off, on = both(problem, replace(plain_layout(problem, dp=16, zero=1), ep=8))
    assert on.rows.layers.experts.fill_s.item() == pytest.approx(0.0, abs=1e-15)
    layers = [plan.rows.layers.experts.layer.total_s.item() for plan in (off, on)]
    assert layers[0] == pytest.approx(layers[1], rel=1e-12)


def test_memory_by_hand(toy_problem, plain_layout):
    """Without a pipeline a layer more, and the temporaries of the experts twice."""
    problem = toy_problem(ROUTED)
    layout = replace(plain_layout(problem, dp=16, zero=1), ep=8)
    off, on = both(problem, layout)
    layer = on.rows.layers.experts.kept_bytes.item()
    rows = 4096 * 2 * (6 * 2048 + 4 * 1024)
    logits = off.stages[0]["logits"]
    temporaries = off.rows.layers.working_bytes.item()
    seen = [max(0.0, x - logits) for x in (temporaries, temporaries + rows)]
    more = on.stages[0]["working"] - off.stages[0]["working"]
    assert more == pytest.approx(layer + seen[1] - seen[0], rel=1e-12)
    assert on.stages[0]["activations"] == off.stages[0]["activations"]


def test_a_pipeline_has_one_more_chunk_in_flight(toy_problem, plain_layout):
    problem = toy_problem(ROUTED)
    layout = replace(plain_layout(problem, pp=2, vpp=2, dp=16, zero=1), ep=8)
    off, on = both(problem, layout)
    layer = on.rows.layers.experts.kept_bytes.item()
    ids = on.rows.layers.embedding_bytes.item()
    # Two layers a chunk; token ids are counted by half micro-batches on the first rank.
    more = [
        b["activations"] - a["activations"] for a, b in zip(off.stages, on.stages, strict=True)
    ]
    assert more == pytest.approx([2 * layer + ids / 2, 2 * layer], rel=1e-12)


def test_few_micro_batches_are_in_flight_anyway(toy_problem, plain_layout):
    problem = toy_problem(ROUTED, gbs=32)
    layout = replace(plain_layout(problem, pp=2, vpp=2, dp=16, zero=1), ep=8)
    assert layout.n_micro == 2  # 2 m = 4 chunks, all of which the first rank holds
    off, on = both(problem, layout)
    assert on.stages[0]["activations"] == off.stages[0]["activations"]


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 2), (2, 4)])
def test_a_steady_state_without_tax_is_no_slower(toy_problem, plain_layout, pp, vpp):
    problem = toy_problem(ROUTED, stack=replace_tax(toy_problem), gbs=1024)
    layout = replace(plain_layout(problem, pp=pp, vpp=vpp, dp=16, zero=1), ep=8)
    off, on = both(problem, layout)
    assert on.step_s <= off.step_s
    for term in set(on.time_s) - {"ep", "bubble", "straggler", "dp", "overlap"}:
        assert on.time_s[term] == off.time_s[term], term


def test_more_multiprocessors_taken_are_never_faster(toy_problem, toy_pool, plain_layout):
    times = []
    for n_sms in (1000, 200, 100, 60, 30):  # 20 of them
        part = replace(toy_pool().accelerator, n_sms=n_sms)
        base = toy_problem(ROUTED, pool=toy_pool(8, accelerator=part))
        terms = break_down(
            base,
            replace(
                plain_layout(base, dp=16, zero=1),
                ep=8,
                switches=(("dispatcher", "deepep"), ("ep_overlap", "1f1b")),
            ),
        ).rows.layers.experts
        times.append((terms.tax.total_s / terms.exchange_hidden_s).item())
    assert times == sorted(times)
    assert times == pytest.approx([0.02, 0.1, 0.2, 1 / 3, 2 / 3])


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 2)])
def test_kernels_that_take_more_are_never_faster(toy_problem, plain_layout, monkeypatch, pp, vpp):
    """Steps of DeepEP with 0, 10, 20, 40 and 80 of 100 multiprocessors; buffers grow alike."""
    problem = toy_problem(ROUTED, stack=never_late(toy_problem))
    switches = (("dispatcher", "deepep"), *ON)
    layout = replace(plain_layout(problem, pp=pp, vpp=vpp, dp=16, zero=1), ep=8, switches=switches)
    plans = []
    for n_sms in (0, 10, 20, 40, 80):
        monkeypatch.setattr(dispatch, "DEEPEP_SMS", n_sms)
        plans.append(break_down(problem, layout))
    for one, other in pairwise(plans):
        assert other.step_s > one.step_s
        assert other.peak_bytes > one.peak_bytes


def test_transfers_show_what_the_terms_do(toy_problem, plain_layout):
    problem = toy_problem(ROUTED, stack=replace_tax(toy_problem))
    layout = replace(plain_layout(problem, dp=16, zero=1), ep=8)
    off, on = both(problem, layout)
    for plan in (off, on):
        shown = sum(t.exposed_s for t in plan.transfers if t.axis == "ep")
        assert shown == pytest.approx(plan.time_s["ep"], rel=1e-9)
    whole = [sum(t.time_s for t in x.transfers if t.axis == "ep") for x in (off, on)]
    assert whole[0] == pytest.approx(whole[1], rel=1e-12)
