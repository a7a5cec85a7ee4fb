"""Context parallelism: a ring by hand, collectives counted, buffers, and what must hold."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.axes import CP_COMMS
from costmodels.breakdown import break_down
from costmodels.comm.collectives import collective_s
from costmodels.comm.context_parallel import (
    ContextSplit,
    attention_kernels,
    buffer_bytes,
    context_group,
    exchange_times,
    kept_bytes,
    merge_times,
    ring_times,
)
from costmodels.layers.compute import AttentionKernels, ForwardBackward, attention_times
from costmodels.plans import Layout
from costmodels.problem import Problem
from tests.searches.instances import one_in

KINDS = CP_COMMS[1:]
MS = 1e-3


def split(cp: int, kind: str, tp: int = 1) -> ContextSplit:
    codes = (tp, cp, CP_COMMS.index(kind))
    return ContextSplit(*(np.array([x], dtype=np.int32) for x in codes))


def core(problem: Problem, at: ContextSplit) -> ForwardBackward:
    return attention_times(
        problem.shape,
        problem.job,
        problem.pool.accelerator,
        problem.stack,
        tokens(problem, at),
        attention_kernels(at),
    )


def tokens(problem: Problem, at: ContextSplit) -> np.ndarray:
    return problem.job.seq_len / at.cp.astype(float)


def with_cp(problem: Problem, plain: Layout, cp: int, kind: str) -> Layout:
    n = plain.tp * plain.pp * plain.dp * cp
    return replace(plain, cp=cp, cp_comm=kind, n_devices=n)


@pytest.mark.parametrize(
    ("cp", "ahead", "after", "wanted"),
    [
        (2, 2.0, 4.0, (1.0, 0.0)),  # one message of 3 ms ahead of 2 ms; two of 3 behind 4
        (4, 2.0, 4.0, (3.0, 2.0)),  # the two inner messages of 5 ms stick out
        (4, 9.0, 9.0, (0.0, 0.0)),
        (3, 1.0, 2.0, (4.0, 2.0 + 3.0)),
    ],
)
def test_a_ring_waits_step_by_step(cp, ahead, after, wanted):
    beside = ForwardBackward(np.array(ahead * MS), np.array(after * MS))
    both = ring_times(np.array(float(cp)), np.array(3 * MS), np.array(5 * MS), beside)
    assert [x.exposed_s.item() for x in both] == pytest.approx([w * MS for w in wanted])
    total = ((cp - 1) * 3 * MS, (2 * 3 + (cp - 2) * 5) * MS)
    assert [x.total_s.item() for x in both] == pytest.approx(total)


def test_the_messages_of_a_ring_by_hand(toy_problem):
    # 8 KV heads of 128 on one rank: 4 * 1024 * 1024 bytes over 250 GB/s after 4 us.
    problem, at = toy_problem(), split(4, "p2p")
    none = ForwardBackward(np.zeros(1), np.zeros(1))
    forward, backward = exchange_times(problem, at, tokens(problem, at), none)
    block = 4 * 1024 * 1024 / 250e9
    assert forward.total_s.item() == pytest.approx(3 * (4e-6 + block))
    assert backward.total_s.item() == pytest.approx(2 * (4e-6 + block) + 2 * (4e-6 + 2 * block))
    assert forward.exposed_s == pytest.approx(forward.total_s)


@pytest.mark.parametrize("tp", [1, 4])
def test_gathers_and_all_to_alls_are_counted(toy_problem, tp):
    problem = toy_problem()
    late = 3 * problem.stack.tp_hop_s
    for kind, one, counts in (("all-gather", "all-gather", (2, 4)), ("a2a", "all-to-all", (1, 1))):
        at = split(4, kind, tp)
        group = context_group(problem, at)
        assert group.n_domains.item() == (1 if tp == 1 else 2)
        n, key, query = tokens(problem, at), 1024 / tp, 2048 / tp
        if kind == "a2a":
            times = [collective_s(one, 2 * n * w, group, problem.pool) for w in (query, key)]
            unit = 2 * sum(times).item() + 4 * late
        else:
            unit = collective_s(one, 4 * 2 * n * key, group, problem.pool).item() + late
        for found, count in zip(
            exchange_times(problem, at, n, core(problem, at)), counts, strict=True
        ):
            assert found.total_s.item() == pytest.approx(count * unit)
            assert found.exposed_s == pytest.approx(found.total_s)


def test_kernels_of_each_exchange(toy_problem):
    kernels = {kind: attention_kernels(split(8, kind)) for kind in CP_COMMS}
    cut = {kind: (int(k.n_kernels[0]), int(k.key_blocks[0])) for kind, k in kernels.items()}
    assert cut == {"": (1, 1), "p2p": (8, 8), "all-gather": (2, 1), "a2a": (1, 1)}
    problem = toy_problem(seq_len=8192)
    times = {kind: core(problem, split(8, kind)).total_s.item() for kind in KINDS}
    assert times["a2a"] < times["all-gather"] < times["p2p"]  # short kernels are slow ones


def test_buffers_by_hand(toy_problem):
    problem, n = toy_problem(), np.array([1024.0])
    found = {kind: buffer_bytes(problem, split(4, kind), n).item() / 1024 for kind in CP_COMMS}
    q, k = 2048, 1024
    assert found == {
        "": 0.0,
        "p2p": 16 * k + 4 * (q + 2 * k),
        "all-gather": 8 * 4 * k + 2 * q,
        "a2a": 4 * (q + 2 * k),
    }
    kept = {kind: kept_bytes(problem, split(4, kind), n).item() for kind in CP_COMMS}
    assert kept == {"": 0.0, "p2p": 0.0, "all-gather": 0.0, "a2a": 2 * 1024 * q}


def test_without_context_parallelism_nothing_is_added(toy_problem, plain_layout):
    problem, at = toy_problem(), split(1, "")
    n = tokens(problem, at)
    alone = attention_times(
        problem.shape,
        problem.job,
        problem.pool.accelerator,
        problem.stack,
        n,
        AttentionKernels(at.tp),
    )
    assert core(problem, at) == alone
    added = merge_times(problem, at, n)
    assert (added.forward_s.item(), added.backward_s.item()) == (0.0, 0.0)
    found = break_down(problem, plain_layout(problem, tp=2, pp=2, dp=4, zero=1, sp=True))
    assert found.time_s["cp"] == 0.0
    assert not [t for t in found.transfers if t.axis == "cp"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tp", [1, 2])
def test_tokens_of_a_rank_shrink_and_so_does_its_memory(toy_problem, plain_layout, kind, tp):
    problem = toy_problem(seq_len=16384, gbs=8)
    plain = plain_layout(problem, tp=tp, dp=2, zero=1, sp=tp > 1)
    before = break_down(problem, plain).stages[0]
    for cp in (2, 4):
        after = break_down(problem, with_cp(problem, plain, cp, kind)).stages[0]
        kept = problem.shape.layers * 2 * 16384 * 2048 / tp if kind == "a2a" else 0.0
        assert after["activations"] == pytest.approx((before["activations"] + kept) / cp)
        assert after["logits"] == pytest.approx(before["logits"] / cp)
        assert after["states"] < before["states"]  # ZeRO shards over dp cp


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_transfers_add_up_to_the_term(toy_problem, plain_layout, kind, recompute):
    problem = toy_problem(seq_len=4096, gbs=8)
    plain = plain_layout(problem, tp=4, pp=2, dp=1, zero=1, sp=True, recompute=recompute)
    found = break_down(problem, with_cp(problem, plain, 4, kind))
    rows = [t for t in found.transfers if t.axis == "cp"]
    assert sum(t.exposed_s for t in rows) == pytest.approx(found.time_s["cp"])
    assert found.time_s["cp"] > 0  # tp 4 cp 4 leaves the node
    layers = found.rows.layers
    held, again = 12, 12 if recompute == "full" else 0
    forward, backward = layers.cp_forward.total_s.item(), layers.cp_backward.total_s.item()
    wanted = found.n_micro * ((held + again) * forward + held * backward)
    assert sum(t.time_s for t in rows) == pytest.approx(wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seq_len", one_in(2, [4096, 65536]))
def test_more_bandwidth_is_never_slower(toy_problem, toy_pool, plain_layout, kind, seq_len):
    before = None
    for ratio in (0.1, 0.5, 1.0, 3.0, 100.0):
        pool = toy_pool(8)
        nic = replace(pool.nic, bytes_per_s=ratio * pool.nic.bytes_per_s)
        part = replace(
            pool.accelerator, ring_bytes_per_s=ratio * pool.accelerator.ring_bytes_per_s
        )
        problem = toy_problem(pool=replace(pool, nic=nic, accelerator=part), seq_len=seq_len)
        plain = plain_layout(problem, tp=2, dp=2, zero=1, sp=True)
        found = [break_down(problem, with_cp(problem, plain, cp, kind)) for cp in (2, 4, 8)]
        now = [(x.step_s, x.time_s["cp"]) for x in found]
        if before:
            assert np.all(np.array(now) <= np.array(before) * (1 + 1e-12))
        before = now


def test_a_ring_hides_from_the_length_on_that_the_rule_says(toy_problem):
    """s/c >= 2 R k / (q B): 180 TFLOP/s and 250 GB/s with half the heads give 720 tokens."""
    exposed = []
    for per_rank in (256, 512, 1024, 2048, 8192):
        problem, at = toy_problem(seq_len=8 * per_rank), split(8, "p2p")
        part = replace(
            problem.pool.accelerator,
            n_sms=1,
            efficiency=replace(problem.pool.accelerator.efficiency, attention_seq_half=0.0),
        )
        problem = replace(problem, pool=replace(problem.pool, accelerator=part))
        forward, _ = exchange_times(problem, at, tokens(problem, at), core(problem, at))
        exposed.append(forward.exposed_s.item() > 0)
    assert exposed == [True, True, False, False, False]
