"""Inputs of modules on the host: bytes, waits and what stays on the device, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.axes import OFFLOAD_MODULES
from costmodels.breakdown import break_down
from costmodels.comm.dispatch import Degrees
from costmodels.examples import DEEPSEEK_V3, LLAMA3_70B
from costmodels.layers.compute import ForwardBackward
from costmodels.modes import ModeRows
from costmodels.offload.modules import ModuleCopies, module_copies, module_waits
from costmodels.plans import SwitchTable
from costmodels.schedule.timeline import step_timeline
from costmodels.step import needed_host_bytes
from hardware.parts import Host

GB, MIB = 1e9, 2.0**20
HOST = Host(link_bytes_per_s=50 * GB, memory_bytes=256 * GB, memory_bytes_per_s=70 * GB)
ALL = "+".join(OFFLOAD_MODULES)


def sent(*names: str) -> ModeRows:
    """Return one mode that sends some modules."""
    table = SwitchTable.of_rows([(("offload_modules", "+".join(names)),)])
    zero = np.zeros(1, dtype=np.int32)
    return ModeRows(zero, zero, table)


def copies(problem, tokens, *names, tp=1, sp=0, ep=1, routed=False) -> ModuleCopies:
    one = np.ones(1, dtype=np.int32)
    degrees = Degrees(one * tp, one * sp, one * ep, one)
    modes = replace(sent(*names), sp=one * sp)
    return module_copies(problem, np.array([float(tokens)]), degrees, modes, (True, routed))


def mib(problem, tokens, *names, **split) -> tuple[float, float]:
    """Return what leaves the device and what is copied one way, MiB."""
    found = copies(problem, tokens, *names, **split)
    return found.freed_bytes.item() / MIB, found.copied_bytes.item() / MIB


def test_a_dense_layer_by_hand(toy_problem):
    """8,192 tokens of 8,192 elements: 128 MiB; keys and values of 8 heads of 128 16 MiB each."""
    problem = toy_problem(LLAMA3_70B)
    assert mib(problem, 8192, "qkv_linear") == (256.0, 256.0)  # both sides of the norm
    # Queries, keys, values; the output is copied too, but the projection after it holds it.
    assert mib(problem, 8192, "core_attn") == (160.0, 288.0)
    assert mib(problem, 8192, "core_attn", "attn_proj") == (288.0, 416.0)
    assert mib(problem, 8192, "attn_norm") == (0.0, 0.0)  # joined with the product after it
    # Over tp 8 a rank has one head of keys: 2^20 elements, which are just enough.
    assert mib(problem, 8192, "core_attn", "attn_proj", tp=8) == (36.0, 52.0)
    assert mib(problem, 8191, "core_attn", "attn_proj", tp=8)[0] == pytest.approx(31.996, abs=1e-3)
    # The norm's two sides are cut over tp with sequence parallelism alone.
    assert mib(problem, 8192, "qkv_linear", tp=8) == (256.0, 256.0)
    assert mib(problem, 8192, "qkv_linear", tp=8, sp=1) == (32.0, 32.0)


def test_an_expert_layer_by_hand(toy_problem):
    """4,096 tokens of DeepSeek-V3: h 7,168, 128 heads of 192 and 128, 8 experts of 2,048 each."""
    problem = toy_problem(DEEPSEEK_V3)
    assert mib(problem, 4096, "attn_norm", routed=True) == (56.0, 56.0)
    assert mib(problem, 4096, "qkv_linear", routed=True) == (56.0, 56.0)
    assert mib(problem, 4096, "mlp_norm", routed=True) == (56.0, 56.0)
    assert mib(problem, 4096, "core_attn", routed=True) == (512.0, 640.0)  # 192, 192, 128; 128
    assert mib(problem, 4096, "core_attn", "attn_proj", routed=True) == (640.0, 768.0)
    assert mib(problem, 4096, "expert_fc1", routed=True) == (448.0, 448.0)  # 8 x 56
    assert mib(problem, 4096, "moe_act", routed=True) == (256.0, 256.0)  # 8 x 4,096 elements
    for name in ("mlp_norm", "expert_fc1", "moe_act"):
        assert mib(problem, 4096, name) == (0.0, 0.0)
    # 8,192 tokens x 128 heads of log-sum-exp are 2^20 elements of 4 bytes.
    found = mib(problem, 8192, "core_attn", routed=True)
    assert found == (2 * 512.0 + 4.0, 2 * 640.0 + 4.0)


@pytest.mark.parametrize(
    ("precision", "norm", "projection", "experts"),
    [
        ("fp8-tensorwise", (2 + 1, 2 + 1), (2, 2), (1, 2)),
        ("fp8-delayed", (2 + 1, 2 + 1), (2 + 1, 1), (1, 2)),
        ("fp8-mxfp8", (2 + 1.03125, 2 + 1.03125), (2, 2), (1.03125, 1.03125)),
        ("nvfp4", (2 + 0.5625, 2 + 0.5625), (2, 2), (0.5625, 0.5625)),
    ],
)
def test_quantised_inputs(toy_problem, precision, norm, projection, experts):
    """Bytes of an element that leave and that are copied."""
    problem, elements = toy_problem(LLAMA3_70B, precision=precision), 8192 * 8192
    stack = replace(problem.stack, quantized_copies=True)
    problem = replace(problem, stack=stack)
    found = copies(problem, 8192, "qkv_linear")
    assert found.freed_bytes.item() / elements == pytest.approx(norm[0])
    assert found.copied_bytes.item() / elements == pytest.approx(norm[1])
    core = copies(problem, 8192, "core_attn")
    both = copies(problem, 8192, "core_attn", "attn_proj")
    freed = both.freed_bytes - core.freed_bytes
    assert freed.item() / elements == pytest.approx(projection[0])
    copied = both.copied_bytes - core.copied_bytes
    assert copied.item() / elements == pytest.approx(projection[1])
    routed = replace(problem, shape=DEEPSEEK_V3)
    found, rows = copies(routed, 4096, "expert_fc1", routed=True), 4096 * 8 * 7168
    assert found.freed_bytes.item() / rows == pytest.approx(experts[0])
    assert found.copied_bytes.item() / rows == pytest.approx(experts[1])


def test_copies_wait_for_their_own_layer(toy_problem, toy_pool):
    """50 GB in a second: 100 GB beside a forward of 1.5 s and a backward of 2.5 s."""
    problem = toy_problem(pool=toy_pool(host=HOST))
    size = np.array([100 * GB, 50 * GB])
    found = module_waits(
        problem,
        ModuleCopies(size, size, size, size),
        ForwardBackward(np.array([1.5, 1.5]), np.array([2.5, 2.5])),
    )
    assert found.forward_s.tolist() == [0.5, 0.0]
    assert found.backward_s.tolist() == [0.0, 0.0]
    slow = replace(problem, pool=toy_pool(host=replace(HOST, memory_bytes_per_s=20 * GB)))
    found = module_waits(
        slow, ModuleCopies(size, size, size, size), ForwardBackward(size * 0, size * 0 + 2.0)
    )
    assert found.forward_s.tolist() == [5.0, 2.5]
    assert found.backward_s.tolist() == [3.0, 0.5]


@pytest.fixture
def opened(toy_problem, toy_pool, plain_layout):
    """Return (problem, layout) of a pipeline of four stages that sends attention."""
    problem = toy_problem(LLAMA3_70B, toy_pool(host=HOST), seq_len=8192, gbs=16)
    layout = plain_layout(problem, tp=2, pp=4, sp=True)
    return problem, replace(layout, switches=(("offload_modules", "core_attn+attn_proj"),))


def test_a_pipeline_by_hand(opened):
    """Half of 288 MiB leave a layer, 20 layers a stage, 4 - r micro-batches in flight."""
    problem, layout = opened
    found = break_down(problem, layout)
    plain = break_down(problem, replace(layout, switches=()))
    freed, copied = 144 * MIB, 208 * MIB
    for rank, (stage, before) in enumerate(zip(found.stages, plain.stages, strict=True)):
        gone = before["activations"] - stage["activations"]
        assert gone == pytest.approx((4 - rank) * 20 * freed)
        assert stage["working"] - before["working"] == pytest.approx(2 * freed)
    assert needed_host_bytes(found.rows).item() == pytest.approx(4 * 20 * copied)
    down, up = (t for t in found.transfers if t.axis == "host")
    assert (down.collective, up.collective) == ("modules-to-host", "modules-to-device")
    assert down.sent_bytes == up.sent_bytes == pytest.approx(16 * 20 * copied)
    assert down.n_calls == 16 * 20
    assert down.time_s == pytest.approx(16 * 20 * copied / (50 * GB))


def test_a_link_too_slow_shows_in_every_layer(opened):
    problem, layout = opened
    host = replace(HOST, link_bytes_per_s=1 * GB)
    slow = replace(problem, pool=replace(problem.pool, host=host))
    plain, found = break_down(slow, replace(layout, switches=())), break_down(slow, layout)
    before = plain.rows.layers.layer
    copy = 208 * MIB / GB
    waits = copy - before.forward_s.item(), copy - before.backward_s.item()
    assert min(waits) > 0
    assert found.time_s["offload"] == pytest.approx(16 * 20 * sum(waits))
    down, up = (t for t in found.transfers if t.axis == "host")
    assert (down.exposed_s, up.exposed_s) == pytest.approx([16 * 20 * x for x in waits])
    assert sum(found.time_s.values()) == pytest.approx(found.step_s)
    timeline = step_timeline(found)
    end = timeline.pipeline.end_s + sum(seconds for _, _, seconds in timeline.after)
    assert end == pytest.approx(found.step_s)


def test_no_module_and_no_host_change_nothing(opened):
    problem, layout = opened
    plain = replace(layout, switches=())
    assert break_down(problem, plain).time_s["offload"] == 0.0
    alone = replace(problem, pool=replace(problem.pool, host=None))
    assert break_down(alone, layout).step_s == break_down(alone, plain).step_s


def test_recomputation_and_offload_of_one_tensor_count_once(toy_problem, toy_pool, plain_layout):
    """mla_up_proj drops queries, keys and values; with core_attn away they are gone already."""
    shape = replace(DEEPSEEK_V3, layers=4, mtp_layers=0)
    problem = toy_problem(shape, toy_pool(host=HOST), gbs=8)
    plain = replace(plain_layout(problem, dp=8), ep=8)
    again = {"recompute": "selective", "recompute_modules": ("mla_up_proj", "layernorm")}
    every = (("offload_modules", "qkv_linear+core_attn+attn_proj"),)
    kept = {
        name: break_down(problem, replace(plain, **changes)).stages[0]["activations"]
        for name, changes in {
            "none": {},
            "again": again,
            "away": {"switches": every},
            "both": {**again, "switches": every},
        }.items()
    }
    tokens = 4096
    projected = 2 * tokens * 128 * (192 + 192 + 128)
    normed = 2 * tokens * 7168
    shared = 4 * (projected + normed)
    assert kept["none"] - kept["both"] == pytest.approx(
        (kept["none"] - kept["again"]) + (kept["none"] - kept["away"]) - shared
    )
