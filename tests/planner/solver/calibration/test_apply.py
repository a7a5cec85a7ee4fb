"""Pricing with a calibration: priors move nothing, anchors scale exactly, values reach terms."""

from dataclasses import replace

import pytest

from costmodels.breakdown import break_down
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.stacks import STACKS
from planner.solver.calibration.apply import calibrated, calibrated_stack
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.parameters import known_parameters
from planner.solver.options import SolveOptions, axis_items, pin_codes
from planner.solver.problem import make_problem
from planner.solver.sources import read_inputs
from planner.specs.search.axis_values import layout_from_pins
from searches.rules import Context
from tests.searches.instances import one_in

PRIORS = Calibration("priors", {name: p.prior for name, p in known_parameters().items()})
NOTHING = Calibration("nothing")
G = 1.37


def problem_and_layout(
    model: str, cluster: str, pins: str, stack: str = "", **changes: object
) -> tuple[Problem, Layout]:
    """Return an example problem without any calibration, and a layout on it."""
    batch = {"training.global_batch": 16384 * 9}
    given = read_inputs(model, cluster, tuple({**batch, **changes}.items()))
    fixed = pin_codes(axis_items([pins], "--pin"))
    options = SolveOptions(pins=fixed, stack=stack, own_calibration=NOTHING)
    problem = make_problem(*given, options)
    context = Context(problem, options.search_options(), problem.pool.n_devices)
    return problem, layout_from_pins(context, fixed)


CASES = {
    "pipeline": ("llama3-70b", "h100-x512", "tp=8,pp=4,vpp=5,mbs=1"),
    "zero-bubble": ("llama3-70b", "h100-x512", "tp=8,pp=4,schedule=zb-h1,mbs=1"),
    "context": ("llama3-8b", "h100-x512", "tp=2,cp=4,mbs=1,cp_comm=a2a"),
    "ring": ("llama3-8b", "h100-x512", "cp=16,mbs=1,cp_comm=p2p"),
    "experts": ("mixtral-8x7b", "a100-x1024", "tp=2,ep=8,pp=4,mbs=1"),
    "experts over nodes": ("deepseek-v3", "h100-x512", "tp=1,ep=64,pp=8,mbs=1"),
    "zero 3": ("llama2-70b", "a100-x1024", "zero=3,mbs=1,recompute=full"),
    "hpz": ("llama2-70b", "a100-x1024", "zero=3,hpz=8,mbs=1"),
    "optimizer on the host": ("llama3-8b", "h100-x8", "zero=1,optimizer_offload=on"),
    "activations on the host": (
        "llama3-8b",
        "h100-x8",
        "cp=2,zero=1,activation_offload_layers=11",
    ),
    "rack": ("llama3-405b", "gb200-nvl72-x576", "tp=8,pp=4,mbs=1,zero=0"),
    "mesh": ("llama3-8b", "mi300x-x64", "tp=4,mbs=1"),
    "user buffers": ("llama3-70b", "h100-x512", "tp=8,pp=4,mbs=1,tp_overlap=on"),
}
STACKS_OF = {
    "pipeline": ("megatron-core", "nanotron", "aleph-alpha", "megatron-lm-2021"),
    "zero 3": ("torchtitan", "deepspeed-zero3", "internevo"),
    "experts over nodes": ("megatron-core-deepep",),
    "optimizer on the host": ("megatron-core", "deepspeed"),
    "activations on the host": ("megatron-core", "eager", "hf-fsdp2"),
}


@pytest.mark.parametrize(
    ("case", "stack"),
    [(case, stack) for case in CASES for stack in STACKS_OF.get(case, ("",))],
)
@pytest.mark.parametrize("g", one_in(2, [G, 0.6]))
def test_all_anchors_together_scale_every_term_exactly(case: str, stack: str, g: float) -> None:
    problem, layout = problem_and_layout(*CASES[case], stack)
    plain = break_down(problem, layout)
    slow = break_down(calibrated(problem, NOTHING.with_anchors(g, g, g, ("a step",))), layout)
    assert slow.step_s == pytest.approx(g * plain.step_s, rel=1e-12)
    assert slow.closed_form_step_s == pytest.approx(g * plain.closed_form_step_s, rel=1e-12)
    for term, seconds in plain.time_s.items():
        limit = 1e-12 * plain.step_s
        assert slow.time_s[term] == pytest.approx(g * seconds, rel=1e-9, abs=limit), term
    assert slow.peak_bytes == plain.peak_bytes


@pytest.mark.parametrize("sharp", [False, True])
def test_networks_with_tiers_and_summing_switches_scale_exactly(sharp: bool) -> None:
    problem, layout = problem_and_layout("llama3-8b", "h100-x16384", "tp=8,pp=2,mbs=1,zero=0")
    fabric = replace(problem.fabric, rail_optimized=False, sharp=sharp)
    pool = replace(problem.pool, n_summing_tiers=2 if sharp else 0)
    problem = replace(problem, fabric=fabric, pool=pool)
    anchored = calibrated(problem, NOTHING.with_anchors(G, G, G, ("a step",)))
    plain, slow = break_down(problem, layout), break_down(anchored, layout)
    assert slow.step_s == pytest.approx(G * plain.step_s, rel=1e-12)


def test_each_anchor_scales_its_own_part() -> None:
    problem, layout = problem_and_layout("llama3-70b", "h100-x512", "tp=8,pp=4,mbs=1")
    plain = break_down(problem, layout).time_s

    def times(compute: float, near: float, far: float) -> dict[str, float]:
        anchored = calibrated(problem, NOTHING.with_anchors(compute, near, far, ("x",)))
        return dict(break_down(anchored, layout).time_s)

    by_compute, by_near, by_far = times(G, 1, 1), times(1, G, 1), times(1, 1, G)
    for term in ("linear", "attention", "elementwise", "head", "embedding", "optimizer", "fixed"):
        assert by_compute[term] == pytest.approx(G * plain[term], rel=1e-12)
        assert by_near[term] == pytest.approx(plain[term], rel=1e-12)
        assert by_far[term] == pytest.approx(plain[term], rel=1e-12)
    assert by_near["tp"] > 1.2 * plain["tp"]
    assert by_far["tp"] == pytest.approx(plain["tp"], rel=1e-12)
    assert by_far["pp"] > 1.2 * plain["pp"]


@pytest.mark.parametrize("stack", STACKS)
def test_priors_move_nothing(stack: str) -> None:
    problem, _ = problem_and_layout("llama3-8b", "h100-x512", "tp=8,mbs=1", stack)
    assert calibrated(problem, PRIORS) == problem
    assert calibrated(problem, NOTHING) == problem


def test_a_profile_has_the_calibrated_number_of_its_class_unless_it_has_its_own() -> None:
    found = Calibration("x", {"stack.eager.elementwise_factor": 3.0})
    assert calibrated_stack(STACKS["torchtitan"], found).elementwise_factor == 3.0
    own = STACKS["nanotron"].elementwise_factor
    assert own != STACKS["eager"].elementwise_factor
    assert calibrated_stack(STACKS["nanotron"], found).elementwise_factor == own
    assert calibrated_stack(STACKS["megatron-core"], found) == STACKS["megatron-core"]
    both = Calibration("x", {**found.values, "stack.torchtitan.elementwise_factor": 2.5})
    assert calibrated_stack(STACKS["torchtitan"], both).elementwise_factor == 2.5


@pytest.mark.parametrize(
    ("name", "value", "pins", "term", "grows"),
    [
        ("generation.hopper.gemm_frac", 0.5, "tp=8", "linear", True),
        ("generation.hopper.attention_scale", 0.7, "tp=8", "attention", True),
        ("generation.hopper.hbm_frac", 0.6, "tp=8", "elementwise", True),
        ("generation.hopper.kernel_latency_s", 9e-6, "tp=8", "elementwise", True),
        ("link.nvlink4.efficiency", 0.5, "tp=8", "tp", True),
        ("link.nvlink4.hop_scale", 3.0, "tp=8", "tp", True),
        ("link.nvlink4.base_scale", 3.0, "tp=8", "tp", True),
        ("link.ib-ndr-400.efficiency", 0.5, "zero=3,recompute=full", "dp", True),
        ("link.ib-ndr-400.base_scale", 4.0, "tp=8,pp=8", "pp", True),
        ("stack.megatron-core.tp_hop_s", 40e-6, "tp=8", "tp", True),
        ("stack.megatron-core.elementwise_factor", 1.5, "tp=8", "elementwise", False),
        ("stack.megatron-core.fixed_step_s", 30e-3, "tp=8", "fixed", True),
        ("shared.node_spread", 0.04, "tp=8", "straggler", True),
        ("shared.overlap_slowdown", 0.3, "tp=8", "overlap", True),
    ],
)
def test_each_value_reaches_its_term(
    name: str, value: float, pins: str, term: str, grows: bool
) -> None:
    problem, layout = problem_and_layout("llama3-8b", "h100-x512", f"{pins},mbs=1")
    before = break_down(problem, layout).time_s[term]
    changed = calibrated(problem, Calibration("x", {name: value}))
    after = break_down(changed, layout).time_s[term]
    assert after > before if grows else after < before


def test_fp8_gain_moves_fp8_alone() -> None:
    slow = Calibration("x", {"generation.hopper.fp8_gain": 0.8})
    for precision, moves in (("bf16", False), ("fp8-delayed", True)):
        changes = {"training.precision": precision}
        problem, layout = problem_and_layout("llama3-8b", "h100-x8", "mbs=1,zero=1", **changes)
        before = break_down(problem, layout).time_s["linear"]
        after = break_down(calibrated(problem, slow), layout).time_s["linear"]
        assert (after > before) is moves
