"""Dispatchers: copies, messages, buffers and multiprocessors, worked out by hand."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from costmodels.axes import DISPATCHERS, SwitchTable
from costmodels.breakdown import break_down
from costmodels.comm import dispatch
from costmodels.comm.collectives import collective_s
from costmodels.comm.dispatch import Degrees
from costmodels.comm.placement import place_group
from costmodels.layers import experts
from costmodels.modes import ModeRows
from costmodels.shapes import ModelShape

ROUTED = ModelShape(
    "routed",
    layers=8,
    hidden=1024,
    heads=8,
    kv_heads=8,
    head_dim=128,
    ffn=4096,
    gated=True,
    vocab=32000,
    tied=False,
    n_experts=8,
    top_k=2,
    expert_ffn=2048,
)
DEEPSEEK = replace(ROUTED, hidden=7168, n_experts=256, top_k=8, n_groups=8, top_groups=4)
MIB, GIB = 2**20, 2**30


def arr(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def ranks(*degrees: int) -> np.ndarray:
    return np.array(degrees, dtype=np.int32)


def split(ep: int, etp: int = 1) -> Degrees:
    return Degrees(ranks(1), ranks(0), ranks(ep), ranks(etp))


def using(name: str, **others: int) -> ModeRows:
    """Return one row with a dispatcher, and table values of other switches."""
    codes = {"dispatcher": (DISPATCHERS.index(name),)}
    codes |= {axis: (code,) for axis, code in others.items()}
    return ModeRows(ranks(0), ranks(0), SwitchTable.of_product(codes))


# Copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [1, 2, 4, 8])
@pytest.mark.parametrize(("groups", "used"), [(1, 1), (2, 1), (4, 2), (4, 3)])
def test_distinct_shares_by_enumeration(units, groups, used):
    n, k, size = 8, 2, 8 // groups
    counts = []
    for chosen in combinations(range(groups), used):
        allowed = [e for e in range(n) if e // size in chosen]
        found = [len({e * units // n for e in pick}) for pick in combinations(allowed, k)]
        counts.append(np.mean(found))
    assert dispatch.distinct_units(n, k, groups, used, units) == pytest.approx(np.mean(counts))


def test_deduplication_and_groups_send_fewer_copies(toy_problem):
    plain = toy_problem(DEEPSEEK)
    free = toy_problem(replace(DEEPSEEK, n_groups=1, top_groups=1))
    group = place_group(64, 1, plain.pool, plain.fabric)
    cases = ((plain, "alltoall"), (free, "deepep"), (plain, "deepep"))
    copies = [dispatch.sent_copies(p, group, using(name))[1].item() for p, name in cases]
    assert copies[0] == 8 * 56 / 64
    assert copies[1] == pytest.approx(dispatch.distinct_units(256, 8, 1, 1, 8) * 7 / 8)
    assert copies[0] > copies[1] > copies[2]
    assert copies[2] <= 4 * 7 / 8


def test_copies_of_every_dispatcher_by_hand(toy_problem):
    """16 ranks in nodes of 8, two of 16 experts a token: 15/16 of the ranks differ."""
    problem = toy_problem(replace(ROUTED, n_experts=16))
    group = place_group(16, 1, problem.pool, problem.fabric)
    pairs = 16 * 15 / 2
    to_ranks = 2.0  # one expert a rank
    to_nodes = 1 + 8 * 8 / pairs  # one node, or two where the experts lie in both
    wanted = {
        "alltoall": (2 * 7 / 16, 2 * 8 / 16),
        "deepep": (to_ranks * 15 / 16, to_nodes * 8 / 16),
        "hybridep": (to_ranks * 15 / 16, to_nodes * 8 / 16),
        "allgather": (7, 8),
    }
    for name, copies in wanted.items():
        found = dispatch.sent_copies(problem, group, using(name))
        assert tuple(x.item() for x in found) == pytest.approx(copies, rel=1e-12), name


def test_at_rest_a_plan_has_the_dispatcher_of_its_stack(toy_problem):
    off = ModeRows.of_sp(ranks(0))
    for stack, name in (("megatron-core", "alltoall"), ("megatron-core-deepep", "deepep")):
        problem = toy_problem(ROUTED, stack=stack)
        group = place_group(8, 1, problem.pool, problem.fabric)
        found, wanted = (dispatch.sent_copies(problem, group, x) for x in (off, using(name)))
        assert found == wanted
        assert dispatch.sent_copies(problem, group, using("allgather"))[0].item() == 7


def test_a_table_without_a_plan_has_no_copies(toy_problem):
    problem = toy_problem(ROUTED)
    group = dispatch.expert_group(problem, ranks(), ranks())
    near, far = dispatch.sent_copies(problem, group, ModeRows.of_sp(ranks()))
    assert (len(near), len(far)) == (0, 0)


# Times ---------------------------------------------------------------------------------------


def test_all_to_all_by_hand(toy_problem):
    problem = toy_problem(ROUTED)
    # 16 ranks in nodes of 8: of 2 copies 2 * 7/16 stay inside, 1 leaves.
    group = place_group(16, 1, problem.pool, problem.fabric)
    n = arr(1e9)
    near, far = 2 * 7 / 16 * 1e9 / (0.75 * 250e9), 1e9 / (0.9 * 50e9)
    latency = 10e-6 + 7 * 2e-6 + 8 * 5e-6
    sent = dispatch.token_exchange(problem, n, group, using("alltoall"))
    found = collective_s("all-to-all", sent, group, problem.pool)
    assert found.item() == pytest.approx(latency + max(near, far), rel=1e-12)
    alone = place_group(1, 1, problem.pool, problem.fabric)
    sent = dispatch.token_exchange(problem, n, alone, using("alltoall"))
    assert collective_s("all-to-all", sent, alone, problem.pool).item() == 0.0


def test_a_dispatch_of_every_dispatcher_by_hand(toy_problem):
    """4096 tokens of 2048 bytes to 16 experts on two nodes of eight."""
    problem = toy_problem(replace(ROUTED, n_experts=16))
    n, latency = 4096 * 2 * 1024, 10e-6 + 7 * 2e-6 + 8 * 5e-6
    inside, outside = 0.75 * 250e9, 0.9 * 50e9
    once = max(2 * 15 / 16 * n / inside, (1 + 64 / 120) / 2 * n / outside)
    # The ring of an all-gather: 14 hops inside, one outside, as NCCL's over nodes; 12 us a rank.
    group = place_group(16, 1, problem.pool, problem.fabric)
    ring = collective_s("all-gather", 16.0 * n, group, problem.pool).item() + 15 * 12e-6
    wanted = {
        "alltoall": latency + max(2 * 7 / 16 * n / inside, n / outside),
        "deepep": latency + once,
        "hybridep": latency + once,
        "allgather": ring,
    }
    for name, seconds in wanted.items():
        found = dispatch.dispatch_s(problem, arr(4096), arr(1), split(16), using(name))
        assert found.item() == pytest.approx(seconds, rel=1e-12), name


def test_an_allgather_sends_all_tokens_whatever_the_routing(toy_problem):
    problem, load = toy_problem(ROUTED), (arr(1.0), arr(1.5))
    for name in DISPATCHERS:
        even, uneven = (
            dispatch.dispatch_s(problem, arr(4096), x, split(8), using(name)).item() for x in load
        )
        assert (uneven == even) == (name == "allgather"), name


def test_only_an_allgather_goes_over_etp_too(toy_problem):
    problem = toy_problem(ROUTED)
    times = {
        name: [
            dispatch.dispatch_s(problem, arr(4096), arr(1), split(1, etp), using(name)).item()
            for etp in (1, 2)
        ]
        for name in DISPATCHERS
    }
    assert times["allgather"][0] == 0.0 < times["allgather"][1]
    assert all(times[name] == [0.0, 0.0] for name in ("alltoall", "deepep", "hybridep"))
    # The exchange of a layer has two gathers of the rows besides, but for an allgather.
    exchange = {
        name: experts.expert_times(problem, arr(4096), split(4, 2), using(name)).exchange
        for name in ("alltoall", "allgather")
    }
    one = dispatch.dispatch_s(problem, arr(4096), arr(1), split(4, 2), using("allgather")).item()
    assert exchange["allgather"].forward_s.item() == pytest.approx(2 * one, rel=1e-12)
    one = dispatch.dispatch_s(problem, arr(4096), arr(1), split(4, 2), using("alltoall")).item()
    # 4 ranks 2 apart in a node: 2 * 3/4 copies of 8 MiB, 10 + 3 * 2 us.
    assert one == pytest.approx(16e-6 + 1.5 * 4096 * 2048 / (0.75 * 250e9), rel=1e-12)
    # 2 ranks gather 4096 * 2 * 2 rows of 2048 bytes: 10 + 2 us of ring, 12 us of waiting.
    gather = 12e-6 + 4096 * 4 * 2048 / 2 / 250e9 + 12e-6
    assert exchange["alltoall"].forward_s.item() == pytest.approx(2 * (one + gather), rel=1e-12)


# Memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "mib"), [(1, 0.0), (8, 320.16), (16, 360.18 + 80.12), (64, 360.18 + 320.47)]
)
def test_deepep_buffers_by_hand(toy_problem, n, mib):
    """20 SMs are 10 channels; 8 peers x 256 or 288 tokens x 16,392 bytes, and 8 nodes."""
    problem = toy_problem(DEEPSEEK)
    found = dispatch.dispatcher_buffer_bytes(problem, arr(4096), split(n), using("deepep")).item()
    assert found / MIB == pytest.approx(mib, abs=0.01)
    if n == 64:
        assert found == 10 * 8 * 288 * 16392 + 10 * 8 * 128 * 2 * 16408


@pytest.mark.parametrize(("n", "chunk"), [(4, 256), (72, 480), (96, 480), (128, 560), (144, 720)])
def test_deepep_receives_more_at_once_over_more_ranks(toy_problem, n, chunk):
    problem = toy_problem(DEEPSEEK)
    found = dispatch.dispatcher_buffer_bytes(problem, arr(1.0), split(n), using("deepep")).item()
    far = 10 * n / 8 * 128 * 2 * 16408 if n > 8 else 0.0
    assert found == 10 * min(n, 8) * chunk * 16392 + far


@pytest.mark.parametrize(
    ("n", "domain", "gib"), [(1, 8, 0.0), (8, 8, 0.48), (64, 64, 3.80), (64, 8, 3.59 + 1.22)]
)
def test_hybridep_buffers_by_hand(toy_problem, toy_pool, n, domain, gib):
    pool = toy_pool(8, scale_up_domain=domain)
    problem = toy_problem(DEEPSEEK, pool=pool)
    found = dispatch.dispatcher_buffer_bytes(
        problem, arr(4096), split(n), using("hybridep")
    ).item()
    assert found / GIB == pytest.approx(gib, abs=0.006)
    if (n, domain) == (64, 8):  # 4 bytes of 32 experts a domain, of 256 for its own node
        near = 64 * (14336 + 128 + 224)
        far = 14336 + 1024 + 224 + 7 * (14336 + 128 + 224) + 14 * (14336 + 128)
        assert found == 4096 * (near + far)


def test_the_others_hold_no_buffers(toy_problem):
    problem = toy_problem(DEEPSEEK)
    for name in ("alltoall", "allgather"):
        assert (
            dispatch.dispatcher_buffer_bytes(problem, arr(4096), split(64), using(name)).item()
            == 0.0
        )


def test_transient_bytes_by_hand(toy_problem):
    """Rows of 2 a token: 6 x 2048 + 4 x 1024 bytes; 1.5 of them for fixed sizes, twice beside."""
    problem = toy_problem(ROUTED)
    rows = 4096 * 2 * (6 * 2048 + 4 * 1024)
    cases = {
        "alltoall": ({}, rows),
        "allgather": ({}, rows + 4 * 1024 * 4096 * 4),
        "deepep": ({"ep_overlap": 1}, 2 * rows),
        "hybridep": ({"ep_overlap": 1, "cuda_graph": 9}, 3 * rows),
    }
    for name, (others, wanted) in cases.items():
        found = experts.transient_bytes(problem, arr(4096), split(4), using(name, **others))
        assert found.item() == wanted, name
    capped = toy_problem(replace(ROUTED, capacity_factor=1.0))
    found = experts.transient_bytes(capped, arr(4096), split(4), using("alltoall", cuda_graph=9))
    assert found.item() == rows  # sizes are fixed anyway


# Multiprocessors -----------------------------------------------------------------------------


def test_shares_of_compute_by_hand(toy_problem, toy_pool):
    """Of 100 multiprocessors; HybridEP takes 24 inside a domain and 8 over several."""
    problem = toy_problem(ROUTED)
    wanted = {
        ("alltoall", 8): 0.15,
        ("allgather", 8): 0.15,
        ("deepep", 8): 0.20,
        ("deepep", 16): 0.20,
        ("hybridep", 8): 0.24,
        ("hybridep", 16): 0.08,
    }
    for (name, ep), share in wanted.items():
        found = dispatch.taken_share(problem, split(ep), using(name)).item()
        assert found == pytest.approx(share), (name, ep)


# Whole plans ---------------------------------------------------------------------------------


def test_what_a_plan_sends_is_that_of_its_dispatcher(toy_problem, plain_layout):
    problem = toy_problem(replace(ROUTED, n_experts=16))
    layout = replace(plain_layout(problem, dp=16, zero=1), ep=16)
    plans = {
        name: break_down(problem, replace(layout, switches=(("dispatcher", name),) if i else ()))
        for i, name in enumerate(DISPATCHERS)
    }
    sent = {
        name: {t.collective for t in plan.transfers if t.axis == "ep"}
        for name, plan in plans.items()
    }
    gathers = {"all-gather", "reduce-scatter"}
    assert sent.pop("allgather") == gathers
    assert set(map(frozenset, sent.values())) == {frozenset({"all-to-all"})}
    for name, plan in plans.items():
        waits = sum(t.exposed_s for t in plan.transfers if t.axis == "ep")
        assert waits == pytest.approx(plan.time_s["ep"], rel=1e-9), name
    away = {
        name: sum(t.scale_out_bytes for t in plan.transfers if t.axis == "ep")
        for name, plan in plans.items()
    }
    # 1 of two copies leaves the node, or (1 + 64/120) / 2 of one.
    ratio = away["deepep"] / away["alltoall"]
    assert ratio == pytest.approx((1 + 64 / 120) / 2, rel=0.01)
    assert away["hybridep"] == away["deepep"]
    held = {name: plan.stages[0]["working"] for name, plan in plans.items()}
    more = held["deepep"] - held["alltoall"]
    assert more == pytest.approx(10 * 8 * 288 * 4104 + 10 * 2 * 128 * 2 * 4120)


def test_the_stacks_dispatcher_sends_what_the_named_one_does(toy_problem, plain_layout):
    stack = toy_problem(ROUTED, stack="megatron-core-deepep")
    layout = replace(plain_layout(stack, dp=16, zero=1), ep=8, etp=2)
    named = replace(layout, switches=(("dispatcher", "deepep"),))
    plain = toy_problem(ROUTED, stack="megatron-core")
    transfers = [break_down(stack, layout).transfers, break_down(plain, named).transfers]
    assert transfers[0] == transfers[1]
    # Weights of the router go in calls of their own with alltoall alone.
    counts = [len(x) for x in (*transfers, break_down(plain, layout).transfers)]
    assert counts[0] == counts[1] < counts[2]
