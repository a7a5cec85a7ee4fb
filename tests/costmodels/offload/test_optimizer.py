"""An optimizer on the host: bytes, times and what stays on the device, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.breakdown import break_down
from costmodels.memory import state_bytes_per_param
from costmodels.offload.optimizer import HostUpdate, host_state_bytes, pipelined_s
from costmodels.plans import PlanTable
from costmodels.precision import RECIPES
from costmodels.shape_terms import host_bytes, shape_terms
from costmodels.stacks import FUSED
from hardware.parts import Host

GB = 1e9
HOST = Host(link_bytes_per_s=50 * GB, memory_bytes=256 * GB, memory_bytes_per_s=70 * GB)


@pytest.fixture
def offloading(toy_problem, toy_pool, plain_layout):
    """Return (problem, layout) of 8 ranks that offload, on a stack."""

    def make(stack="fused", zero=1, gbs=32):
        problem = toy_problem(pool=toy_pool(host=HOST), stack=stack, gbs=gbs)
        return problem, replace(plain_layout(problem, dp=8, zero=zero), optimizer_offload=True)

    return make


def local_params(problem, layout) -> float:
    table = PlanTable.from_layouts([layout])
    return shape_terms(problem, table.shapes, table.shardings).params.item()


def test_states_leave_the_device():
    recipe = RECIPES["bf16", "adam"]
    held = state_bytes_per_param(recipe, np.arange(4), 8.0, 1)
    assert held.tolist() == [6.0, 6.0, 2.5, 0.75]
    leaving = replace(FUSED, offload_overlap="gradients")
    left = state_bytes_per_param(recipe, np.arange(4), 8.0, 1, stack=leaving)
    assert left.tolist() == [6.0, 6.0, 2.0, 0.25]
    mixed = state_bytes_per_param(recipe, 1, 8.0, np.array([0, 1]))
    assert mixed.tolist() == [7.5, 6.0]
    assert host_state_bytes(1e9) == 16e9


def test_pieces_overlap_all_but_the_first():
    parts = HostUpdate(*(np.array(x) for x in (1.0, 4.0, 2.0, 4.0)))
    assert pipelined_s(parts) == 7.0 / 4 + 3.0  # one piece through all three, then Adam alone
    assert pipelined_s(replace(parts, n_pieces=np.array(1.0))) == 7.0


def test_megatron_by_hand(offloading):
    problem, layout = offloading()
    n = local_params(problem, layout) / 8
    copy, adam = 4 * n / 50e9, 28 * n / (0.45 * 70e9)
    k = np.ceil(8 * n / 40e6)
    found = break_down(problem, layout)
    assert found.time_s["offload"] == pytest.approx((2 * copy + adam) / k + adam * (1 - 1 / k))
    on_device = break_down(problem, replace(layout, optimizer_offload=False))
    hbm = problem.pool.accelerator.hbm_bytes_per_s * problem.pool.accelerator.efficiency.hbm_frac
    saved = on_device.time_s["optimizer"] - found.time_s["optimizer"]
    assert saved == pytest.approx((4 + 24) * n / hbm)
    freed = on_device.stages[0]["states"] - found.stages[0]["states"]
    assert freed == pytest.approx(12 * n)
    assert found.step_s > on_device.step_s


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_deepspeed_by_hand(offloading, zero):
    problem, layout = offloading("deepspeed", zero=zero)
    slow = replace(HOST, link_bytes_per_s=1e8)
    problem = replace(problem, pool=replace(problem.pool, host=slow))
    n = local_params(problem, layout) / 8
    copy, adam = 4 * n / 1e8, 36 * n / (0.45 * 70e9)
    found = break_down(problem, layout)
    # The link is so slow that what the backward hides is a small part.
    m = layout.n_micro
    down = copy if zero == 1 else copy * (2 * m - 1)
    term = found.time_s["offload"]
    assert down * 0.9 < term - adam - copy <= down
    kept = {1: 6.0, 2: 2.0, 3: 0.25}[zero]
    assert found.stages[0]["states"] == pytest.approx(kept * 8 * n)


def test_a_fast_link_hides_the_gradients_but_for_a_piece(offloading):
    problem, layout = offloading("deepspeed")
    n = local_params(problem, layout) / 8
    copy, adam, k = 4 * n / 50e9, 36 * n / (0.45 * 70e9), np.ceil(8 * n / 40e6)
    found = break_down(problem, layout)
    assert found.time_s["offload"] == pytest.approx(copy / k + adam + copy)


def test_traffic_to_the_host(offloading):
    problem, layout = offloading("deepspeed", zero=3)
    n, m = local_params(problem, layout) / 8, layout.n_micro
    down, up = (t for t in break_down(problem, layout).transfers if t.axis == "host")
    assert (down.collective, up.collective) == ("device-to-host", "host-to-device")
    assert down.sent_bytes == pytest.approx(4 * n * m)
    assert up.sent_bytes == pytest.approx(4 * n * m)
    assert down.time_s == pytest.approx(down.sent_bytes / 50e9)
    problem, layout = offloading()
    down, up = (t for t in break_down(problem, layout).transfers if t.axis == "host")
    assert down.sent_bytes == pytest.approx(4 * n)
    off = replace(layout, optimizer_offload=False)
    assert not [t for t in break_down(problem, off).transfers if t.axis == "host"]


def test_bytes_on_the_host(offloading):
    problem, layout = offloading()
    rows = [replace(layout, optimizer_offload=False), layout, replace(layout, zero=0)]
    table = PlanTable.from_layouts(rows)
    n = local_params(problem, layout)
    by_sharding = host_bytes(problem, table.shapes, table.shardings)[table.sharding, np.arange(3)]
    assert by_sharding.tolist() == pytest.approx([0.0, 16 * n / 8, 16 * n])


def test_faster_hosts_never_make_a_step_longer(offloading):
    problem, layout = offloading(gbs=8)
    times = []
    for factor in (0.25, 1.0, 4.0, 16.0):
        host = Host(50 * GB * factor, 256 * GB, 70 * GB * factor)
        other = replace(problem, pool=replace(problem.pool, host=host))
        times.append(break_down(other, layout).step_s)
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 4
