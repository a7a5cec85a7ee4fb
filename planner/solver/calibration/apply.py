"""Prices with a calibration: the same problem with its numbers in place of the priors.

Called where a problem is made (`planner.solver.solve.make_problem`,
`planner.measure.validate.prediction`), and nowhere else, so that search and cost model know
nothing of calibrations. Applying one twice counts its scales twice.
"""

from dataclasses import replace
from typing import Any

from costmodels.problem import Problem
from costmodels.stacks import EAGER, FUSED, NUMBERS, OF_DRIVERS, SHARED, StackProfile
from hardware.parts import Accelerator, Efficiency, Host, Link, Pool
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.parameters import (
    HELD,
    PART_FIELDS,
    RECIPE_NAMES,
    known_parameters,
)

_CLASSES = {profile.kind: profile for profile in (FUSED, EAGER)}
_Triple = tuple[float, float, float]


def calibrated(problem: Problem, calibration: Calibration) -> Problem:
    """Return the problem with the numbers of a calibration."""
    return replace(
        problem,
        pool=calibrated_pool(problem.pool, calibration),
        stack=calibrated_stack(problem.stack, calibration),
    )


def calibrated_stack(stack: StackProfile, calibration: Calibration) -> StackProfile:
    """Return a profile with its calibrated numbers.

    A profile that has the number of its class, and none of its own in the calibration, gets that
    of the class; a planned step keeps its own of `OF_DRIVERS`. The anchors scale what takes time:
    launches and the fixed part by `compute`, the wait for the last rank of a tp group by
    `scale_up`, stalls beside messages between nodes by `scale_out`.
    """
    values, base = calibration.values, _CLASSES[stack.kind]
    entries: dict[str, Any] = {}
    for field in NUMBERS:
        own, of_class = f"stack.{stack.name}.{field}", f"stack.{base.name}.{field}"
        if own in values:
            entries[field] = values[own]
        elif of_class in values and getattr(stack, field) == getattr(base, field):
            entries[field] = values[of_class]
    for field in SHARED:
        is_own = field in OF_DRIVERS and stack.memory_plan != "summed"
        if f"shared.{field}" in values and not is_own:
            entries[field] = values[f"shared.{field}"]
    stack = replace(stack, **entries)
    if values.get(HELD):
        stack = replace(stack, context_bytes=stack.context_bytes + values[HELD])
    compute, near, far = _anchors(calibration)
    if compute == near == far == 1.0:
        return stack
    return replace(
        stack,
        host_s_per_layer=stack.host_s_per_layer * compute,
        routing_host_s=stack.routing_host_s * compute,
        graph_launch_s=stack.graph_launch_s * compute,
        fixed_step_s=stack.fixed_step_s * compute,
        tp_hop_s=stack.tp_hop_s * near,
        stalled_hop_s=stack.stalled_hop_s * far,
        stalled_message_s=stack.stalled_message_s * far,
    )


def calibrated_pool(pool: Pool, calibration: Calibration) -> Pool:
    """Return a pool whose accelerator and links have their calibrated numbers."""
    compute, near, far = _anchors(calibration)
    return replace(
        pool,
        accelerator=_accelerator(pool.accelerator, pool.scale_up, calibration),
        scale_up=_link(pool.scale_up, calibration, near),
        nic=_link(pool.nic, calibration, far),
        host=_slower_host(pool.host, compute) if pool.host else None,
    )


def _anchors(calibration: Calibration) -> tuple[float, float, float]:
    values = calibration.values
    return (
        values.get("anchor.compute", 1.0),
        values.get("anchor.scale_up", 1.0),
        values.get("anchor.scale_out", 1.0),
    )


def _accelerator(part: Accelerator, link: Link, calibration: Calibration) -> Accelerator:
    """Return the accelerator: rates of compute, and what a ring reaches over its scale-up link."""
    compute, near, _ = _anchors(calibration)
    reach, name = 1.0, f"link.{link.name}.efficiency"
    if name in calibration.values:
        reach = calibration.values[name] / known_parameters()[name].prior
    in_switch = reach * calibration.values.get(f"link.{link.name}.in_switch_scale", 1.0)
    return replace(
        part,
        efficiency=_efficiency(part, calibration, compute),
        ring_bytes_per_s=part.ring_bytes_per_s * reach / near,
        in_switch_all_reduce_bytes_per_s=part.in_switch_all_reduce_bytes_per_s * in_switch / near,
        host=_slower_host(part.host, compute) if part.host else None,
    )


def _efficiency(part: Accelerator, calibration: Calibration, compute: float) -> Efficiency:
    eff, values = part.efficiency, calibration.values
    prefix = f"generation.{part.generation}"
    fields = ("gemm_frac", "hbm_frac", "kernel_latency_s", "fp8_gain", "gemm_k_half")
    named = {field: f"{prefix}.{field}" for field in (*fields, "attention_seq_half")}
    fitted: dict[str, Any] = {f: values[name] for f, name in named.items() if name in values}
    kernels = {
        kernel: (
            values.get(f"{prefix}.{kernel}_forward", forward),
            values.get(f"{prefix}.{kernel}_backward", backward),
        )
        for kernel, (forward, backward) in eff.attention_frac.items()
    }
    own = {field: f"part.{part.name}.{field}" for field in PART_FIELDS}
    fitted |= {f: values[own[f]] for f in ("gemm_frac", "hbm_frac") if own[f] in values}
    of_recipe = {recipe: f"recipe.{recipe}.gain" for recipe in RECIPE_NAMES}
    gains = {recipe: values.get(name, 1.0) for recipe, name in of_recipe.items()}
    gains = {recipe: gain for recipe, gain in gains.items() if gain != 1.0}
    eff = replace(eff, attention_frac=kernels, recipe_gain=gains, **fitted)
    cut = part.power_share
    of_all = values.get(f"{prefix}.attention_scale", 1.0)
    scale = values.get(own["attention_scale"], of_all) * cut / compute
    return replace(
        eff,
        gemm_frac=eff.gemm_frac * cut / compute,
        hbm_frac=eff.hbm_frac / compute,
        kernel_latency_s=eff.kernel_latency_s * compute,
        attention_frac={k: (f * scale, b * scale) for k, (f, b) in eff.attention_frac.items()},
    )


def _link(link: Link, calibration: Calibration, slower: float) -> Link:
    """Return a link with its calibrated share of the wire and latencies, `slower` times as slow.

    For a scale-up link the share is that of the accelerator's ring rate.
    """
    values, name = calibration.values, f"link.{link.name}"
    share = values.get(f"{name}.efficiency", link.efficiency)
    hop = values.get(f"{name}.hop_scale", 1.0) * slower
    base = values.get(f"{name}.base_scale", 1.0) * slower
    simple, cap = values.get(f"{name}.simple_scale", 1.0), values.get(f"{name}.ll_cap_scale", 1.0)
    library = values.get(f"{name}.library_latency_scale", 1.0)

    def times(triple: _Triple, low: float, simple: float) -> _Triple:
        """Scale the figures of LL and LL128 by `low`, those of Simple by `simple`."""
        return triple[0] * low, triple[1] * low, triple[2] * simple

    return replace(
        link,
        efficiency=share / slower,
        ring_decline=values.get(f"{name}.ring_decline", link.ring_decline),
        ring_base_s=times(link.ring_base_s, base, base * simple),
        tree_base_s=times(link.tree_base_s, base, base * simple),
        ring_hop_s=times(link.ring_hop_s, hop, hop * simple),
        tree_hop_s=times(link.tree_hop_s, hop, hop * simple),
        protocol_bytes_per_s=times(link.protocol_bytes_per_s, cap / slower, 1.0 / slower),
        p2p_latency_s=link.p2p_latency_s * base * values.get(f"{name}.p2p_scale", 1.0),
        latency_factor=link.latency_factor * library * slower,
    )


def _slower_host(host: Host, factor: float) -> Host:
    return replace(
        host,
        link_bytes_per_s=host.link_bytes_per_s / factor,
        memory_bytes_per_s=host.memory_bytes_per_s / factor,
    )
