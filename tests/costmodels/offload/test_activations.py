"""Stored activations on the host: bytes, waits and what stays on the device, by hand."""

import random
from dataclasses import replace

import numpy as np
import pytest

from costmodels.breakdown import break_down
from costmodels.examples import DEEPSEEK_V3
from costmodels.offload.activations import RESIDENT_LAYERS, copy_bytes_per_s, waits
from costmodels.schedule.timeline import step_timeline
from costmodels.stacks import STACKS
from costmodels.step import activation_waits, needed_host_bytes, offloaded_activation_bytes
from hardware.parts import Host
from tests.searches.oracle_physics import waits_of_window

GB = 1e9
HOST = Host(link_bytes_per_s=50 * GB, memory_bytes=256 * GB, memory_bytes_per_s=70 * GB)


@pytest.fixture
def offloading(toy_problem, toy_pool, plain_layout):
    """Return (problem, layout) of 8 data-parallel ranks with activations on the host."""

    def make(n, stack="fused", link=50 * GB, **changes):
        host = replace(HOST, link_bytes_per_s=link)
        problem = toy_problem(pool=toy_pool(host=host), stack=stack, gbs=32)
        plain = plain_layout(problem, dp=8, zero=1)
        return problem, replace(plain, activation_offload_layers=n, **changes)

    return make


def test_all_devices_of_a_node_copy_at_once():
    assert copy_bytes_per_s(HOST) == 50 * GB
    assert copy_bytes_per_s(replace(HOST, memory_bytes_per_s=30 * GB)) == 30 * GB


def test_what_lies_between_first_and_last_layer_hides_copies():
    """Ten layers, a second forward and two backward each: eight lie between."""
    windowed, on_demand, blocking = (
        STACKS[name] for name in ("megatron-core", "deepspeed", "hf-fsdp2")
    )
    found = waits(windowed, np.array([7.0, 8.0, 11.0, 20.0]), 10.0, 20.0, 10)
    assert found.forward_s.tolist() == pytest.approx([0.0, 0.0, 3.0, 12.0])
    assert found.backward_s.tolist() == pytest.approx([0.0, 0.0, 0.0, 4.0])
    found = waits(on_demand, 11.0, 10.0, 20.0, 10)
    assert (found.forward_s, found.backward_s) == (pytest.approx(3.0), 11.0)
    found = waits(blocking, 11.0, 10.0, 20.0, 10)
    assert (found.forward_s, found.backward_s) == (11.0, 11.0)


@pytest.mark.parametrize("name", ["megatron-core", "deepspeed", "hf-fsdp2"])
def test_a_stage_without_layers_waits_for_nothing(name: str):
    found = waits(STACKS[name], np.array([0.0, 11.0]), 10.0, 20.0, np.array([0, 10]))
    assert (found.forward_s[0], found.backward_s[0]) == (0.0, 0.0)
    assert found.forward_s[1] >= 3.0


def test_the_closed_form_is_the_account_of_every_copy():
    stack, dice = STACKS["megatron-core"], random.Random(4)
    for _ in range(300):
        layers = dice.randint(3, 40)
        n = dice.randint(1, layers - RESIDENT_LAYERS)
        compute, copy = (
            dice.uniform(0.1, 2.0),
            dice.choice((0.0, 0.5, 1.0, 2.0, dice.uniform(0, 9))),
        )
        found = waits(stack, n * copy, layers * compute, layers * compute, layers)
        wanted = waits_of_window(copy, compute, layers, n)
        assert found.forward_s == pytest.approx(wanted, abs=1e-9)
        assert found.backward_s == pytest.approx(wanted, abs=1e-9)


def test_megatron_by_hand(offloading):
    problem, layout = offloading(3, link=1 * GB)
    found = break_down(problem, layout)
    plain = break_down(problem, replace(layout, activation_offload_layers=0))
    layers, m, total = found.rows.layers, layout.n_micro, problem.shape.layers
    kept = layers.kept_bytes.item()
    copy = 3 * kept / 1e9
    forward, backward = layers.layer.forward_s.item(), layers.layer.backward_s.item()
    waited = copy - (total - 2) * forward, copy - (total - 2) * backward
    assert min(waited) > 0
    assert found.time_s["offload"] == pytest.approx(m * sum(waited))
    freed = plain.stages[0]["activations"] - found.stages[0]["activations"]
    assert freed == pytest.approx(3 * kept)
    assert offloaded_activation_bytes(found.rows).max() == pytest.approx(3 * kept)
    assert needed_host_bytes(found.rows).item() == pytest.approx(3 * kept)
    assert found.step_s == pytest.approx(found.closed_form_step_s)
    copies = [t for t in found.transfers if t.axis == "host"]
    assert [t.sent_bytes for t in copies] == pytest.approx([3 * m * kept] * 2)
    assert sum(t.exposed_s for t in copies) == pytest.approx(found.time_s["offload"])


def test_a_fast_link_hides_all_of_it(offloading):
    problem, layout = offloading(3, link=10_000 * GB)
    pool = replace(problem.pool, host=replace(problem.pool.host, memory_bytes_per_s=1e13))
    problem = replace(problem, pool=pool)
    found = break_down(problem, layout)
    plain = break_down(problem, replace(layout, activation_offload_layers=0))
    assert found.step_s == plain.step_s
    assert found.peak_bytes < plain.peak_bytes


@pytest.mark.parametrize(("stack", "times"), [("deepspeed", 1), ("hf-fsdp2", 2)])
def test_inputs_of_recomputed_layers_by_hand(offloading, stack, times):
    """DeepSpeed hides the copies down, FSDP2 neither; two inputs stay on the device."""
    problem, layout = offloading(4, stack, recompute="full", recompute_layers=4)
    found = break_down(problem, layout)
    plain = break_down(problem, replace(layout, activation_offload_layers=0))
    tokens = layout.mbs * problem.job.seq_len
    size = 2.0 * tokens * problem.shape.hidden
    term = layout.n_micro * times * 4 * size / 50e9
    assert found.time_s["offload"] == pytest.approx(term)
    assert found.step_s - plain.step_s == pytest.approx(term, rel=1e-6)
    freed = plain.stages[0]["activations"] - found.stages[0]["activations"]
    assert freed == pytest.approx((4 - 2) * size)


def test_optimizer_and_activations_share_the_host(offloading):
    problem, layout = offloading(3)
    both = break_down(problem, replace(layout, optimizer_offload=True))
    alone = break_down(problem, layout)
    states = both.rows.shapes.params.max() / 8 * 16
    needed = needed_host_bytes(both.rows).item()
    assert needed == pytest.approx(states + offloaded_activation_bytes(alone.rows).max())
    copies = activation_waits(both.rows).total_s.max() * layout.n_micro
    assert both.time_s["offload"] > copies


def test_the_timeline_ends_with_the_step(offloading):
    problem, layout = offloading(3, link=1 * GB)
    found = break_down(problem, replace(layout, optimizer_offload=True))
    timeline = step_timeline(found)
    end = timeline.pipeline.end_s + sum(seconds for _, _, seconds in timeline.after)
    assert end == pytest.approx(found.step_s)


def test_layers_with_experts_keep_more(toy_problem, toy_pool, plain_layout):
    """Of DeepSeek-V3's 61 layers the first three are dense; what leaves no longer stays."""
    problem = toy_problem(DEEPSEEK_V3, pool=toy_pool(host=HOST), gbs=32)
    plain = plain_layout(problem, dp=8, zero=1)
    before = break_down(problem, plain)
    layers = before.rows.layers
    dense, expert = layers.kept_bytes.item(), layers.experts.kept_bytes.item()
    assert expert != pytest.approx(dense, rel=1e-3)
    for n in (2, 10):
        found = break_down(problem, replace(plain, activation_offload_layers=n))
        wanted = min(n, 3) * dense + max(0, n - 3) * expert
        assert offloaded_activation_bytes(found.rows).max() == pytest.approx(wanted)
        freed = before.stages[0]["activations"] - found.stages[0]["activations"]
        assert freed == pytest.approx(wanted)
        assert found.step_s == pytest.approx(found.closed_form_step_s)
