"""The layout that an existing run means, or the nearest one that can be priced.

A run that its framework refuses often has one number that does not divide. Then the nearest number
that does is taken, and said; where there is none the run is not priced, and why is said.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodels.axes import AXES, RANK_ORDERS, modules_code, modules_of, switch_axes
from costmodels.offload.activations import RESIDENT_LAYERS
from costmodels.plans import PIPELINES_INSIDE, Layout, PlanTable
from costmodels.problem import Problem
from costmodels.schedule.stages import spelled, stage_layers
from costmodels.shapes import ModelShape
from searches.mode_rules import broken_mode_rules
from searches.options import SearchOptions
from searches.rules import INSIDE_MOE, MOE, RULES, Context, first_broken_rule, modules_in


@dataclass(frozen=True, slots=True)
class Nearest:
    """A layout for the stated fields of a run."""

    layout: Layout | None
    repairs: tuple[str, ...] = ()
    """What was changed to come to a layout, in words; empty where the run is one."""
    why_not: str = ""
    """Why there is none."""

    @property
    def global_batch(self) -> int | None:
        """Sequences of a step of the layout."""
        return self.layout.gbs if self.layout else None


def nearest_layout(
    run_layout: Mapping[str, Any], shape: ModelShape, seq_len: int, n_devices: int, per_node: int
) -> Nearest:
    """Return the layout of stated fields on `n_devices` devices in nodes of `per_node`.

    Fields as in `ExistingRun.layout`; degrees default to 1, the batch is needed.
    """
    repairs: list[str] = []
    tp, pp, cp = (max(1, int(run_layout.get(axis, 1))) for axis in ("tp", "pp", "cp"))
    n = _devices(n_devices, tp * pp * cp, per_node)
    if not n:
        degrees = f"tp {tp} x pp {pp} x cp {cp}"
        why = f"{degrees} does not divide {n_devices} devices, nor fewer nodes of {per_node}"
        return Nearest(None, (), why)
    if n != n_devices:
        repairs.append(f"{n} devices, not {n_devices}: a multiple of tp {tp} x pp {pp} x cp {cp}")
    dp = n // (tp * pp * cp)
    vpp = max(1, int(run_layout.get("vpp") or 1)) if pp > 1 else 1
    if pp * vpp > shape.layers:
        return Nearest(None, (), f"{pp * vpp} stages for {shape.layers} layers")
    counts = _counts(run_layout, shape.layers, pp, vpp, repairs)
    in_rounds = _schedule(run_layout, pp, vpp) == "interleaved"
    batch = _batch(run_layout, dp, pp if in_rounds else 1, repairs)
    ep, etp = (max(1, int(run_layout.get(axis, 1))) for axis in ("ep", "etp"))
    if not shape.n_experts and ep * etp > 1:
        repairs.append(f"ep 1, not {ep}: the model is dense")
        ep = etp = 1
    elif shape.n_experts:
        ep, etp = _expert_grid(ep, etp, tp * cp * dp, shape, repairs)
    sp = bool(run_layout.get("sp")) and tp > 1
    if sp and seq_len % (tp * cp):
        repairs.append(
            f"without sequence parallelism: {seq_len} tokens do not divide by {tp * cp}"
        )
        sp = False
    zero = int(run_layout.get("zero", 0)) if dp * cp > 1 else 0
    named = (
        name for name in ("even", "ends") if stage_layers(shape.layers, pp, vpp, name) == counts
    )
    kind = str(run_layout.get("recompute", "none"))
    modules = _modules(run_layout, kind, shape, repairs)
    kind = "none" if kind == "selective" and not modules else kind
    n_recomputed = int(run_layout.get("recompute_layers") or max(counts)) if kind == "full" else 0
    n_recomputed = max(min(n_recomputed, max(counts)), int(kind == "full"))
    values: dict[str, Any] = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "etp": etp}
    own = ((axis.name, run_layout.get(axis.name, axis.off), axis.off) for axis in switch_axes())
    layout = Layout(
        **values | {"vpp": vpp},
        n_devices=n,
        split=next(named, spelled(counts)),
        mbs=max(1, int(run_layout.get("mbs", 1))),
        gbs=batch,
        zero=zero,
        sp=sp,
        schedule=_schedule(run_layout, pp, vpp),
        recompute=kind,
        recompute_layers=n_recomputed,
        recompute_modules=modules,
        stage_layers=counts,
        switches=tuple((name, value) for name, value, off in own if value != off),
    )
    layout = replace(
        layout,
        rank_order=str(run_layout.get("rank_order", RANK_ORDERS[0])),
        shard=_shard(run_layout, dp * cp, zero, repairs),
        cp_comm=_exchange(run_layout, tp, cp, shape, repairs),
        optimizer_offload=bool(run_layout.get("optimizer_offload")),
        dp_overlap=bool(run_layout.get("dp_overlap", True)) or dp * cp == 1,
        activation_offload_layers=_offloaded(
            run_layout, pp, kind, n_recomputed, shape.layers, repairs
        ),
        tp_overlap=bool(run_layout.get("tp_overlap")) and sp,
    )
    layout = replace(layout, hpz=_second_copy(run_layout, layout, repairs))
    return Nearest(layout, tuple(repairs))


def _second_copy(run_layout: Mapping[str, Any], layout: Layout, repairs: list[str]) -> int:
    """Return the ranks that share a second copy of the weights, as far as that has a price."""
    hpz = int(run_layout.get("hpz") or 1)
    other = max(layout.tp, layout.pp, layout.ep, layout.etp) > 1
    if hpz == 1 or layout.zero != 3:
        return 1
    if other or layout.shard:
        repairs.append("without hpZ: its groups would hold ranks with different weights")
        return 1
    if layout.dp * layout.cp % hpz:
        repairs.append(f"without hpZ: groups of {hpz} do not divide {layout.dp * layout.cp} ranks")
        return 1
    return hpz


def _offloaded(
    run_layout: Mapping[str, Any],
    pp: int,
    kind: str,
    recomputed: int,
    layers: int,
    repairs: list[str],
) -> int:
    """Return the layers whose stored activations are on the host, as far as that has a price."""
    n = int(run_layout.get("activation_offload_layers") or 0)
    maximum = recomputed if kind == "full" else max(0, layers - RESIDENT_LAYERS)
    if n and (pp > 1 or kind == "selective"):
        why = "beside selective recompute" if pp == 1 else "in a pipeline"
        repairs.append(f"activations on the device: on the host {why} they have no price")
        return 0
    if n > maximum:
        repairs.append(f"activations of {maximum} layers on the host, not of {n}")
    return maximum if n and kind == "full" else min(n, maximum)


def _modules(
    run_layout: Mapping[str, Any], kind: str, shape: ModelShape, repairs: list[str]
) -> tuple[str, ...]:
    """Return the recomputed modules of a run that change something, each once."""
    if kind != "selective":
        return ()
    named = modules_code(run_layout.get("recompute_modules") or ("core_attn",))
    if missing := named & ~modules_in(shape):
        repairs.append(
            f"without recompute of {' and '.join(modules_of(missing))}: the model has"
            " none apart from the operators beside it"
        )
    inside = named & INSIDE_MOE if named & MOE else 0
    if inside:
        repairs.append(f"recompute of moe alone: {' and '.join(modules_of(inside))} lies in it")
    return modules_of(named & ~missing & ~inside)


def _exchange(
    run_layout: Mapping[str, Any], tp: int, cp: int, shape: ModelShape, repairs: list[str]
) -> str:
    """Return the exchange over the context, one that needs no whole heads where they are none."""
    named = str(run_layout.get("cp_comm") or "p2p") if cp > 1 else ""
    if named == "a2a" and (shape.heads % (tp * cp) or shape.kv_heads % (tp * cp)):
        repairs.append(f"cp_comm p2p, not a2a: heads do not divide by tp {tp} x cp {cp}")
        return "p2p"
    return named


MODE_OF_CODE = {
    "DSP": "dispatcher",
    "EPO": "ep_overlap",
    "CGR": "cuda_graph",
    "OFM": "offload_modules",
}
"""Axis that the rules of a kind refuse."""


def with_legal_modes(problem: Problem, layout: Layout) -> Nearest:
    """Return a layout without the ways of running its layers that break a rule.

    A dispatcher where no token leaves its rank goes without a word: all are the same.
    """
    repairs: list[str] = []
    while layout.switches:
        code = next(broken_mode_rules(problem, PlanTable.from_layouts([layout])), "")
        name = MODE_OF_CODE.get(code[:3], "")
        if not name:
            break
        axis, value = AXES[name], layout.value(name)
        rest = tuple(pair for pair in layout.switches if pair[0] != name)
        if rest == layout.switches:
            break
        near = replace(layout, switches=rest)
        if name == "offload_modules":
            near = _with_modules(problem, near, str(value).split("+"))
        if code != "DSP003":
            now = axis.text(near.value(name))
            repairs.append(f"{name} {now}, not {axis.text(value)}: {RULES[code].title}")
        layout = near
    return Nearest(layout, tuple(repairs))


def _with_modules(problem: Problem, layout: Layout, names: Sequence[str]) -> Layout:
    """Return a layout that offloads those of some modules that no rule keeps on the device."""
    sent: list[str] = []
    for name in names:
        value = "+".join([*sent, name])
        trial = replace(layout, switches=(*layout.switches, ("offload_modules", value)))
        broken = broken_mode_rules(problem, PlanTable.from_layouts([trial]))
        if not any(code.startswith("OFM") for code in broken):
            sent.append(name)
    more = (("offload_modules", "+".join(sent)),) if sent else ()
    return replace(layout, switches=(*layout.switches, *more))


def why_not_priced(problem: Problem, layout: Layout) -> str:
    """Return why the cost model does not know a layout; "" where it does.

    Memory, and plans that the search leaves out because they are the same as others, are no
    reason.
    """
    requested = {"rank_order": frozenset({PIPELINES_INSIDE})}  # whether or not it changes anything
    options = SearchOptions(only=requested, framework="any")
    context = Context(problem, options, layout.n_devices)
    n_offloaded = min(layout.activation_offload_layers, 1)  # whether there is a host
    plain = replace(
        layout, recompute="none", recompute_layers=0, activation_offload_layers=n_offloaded
    )
    code = first_broken_rule(context, plain)
    return f"{code} {RULES[code].title}: {RULES[code].why}" if code else ""


def _expert_grid(
    ep: int, etp: int, ranks: int, shape: ModelShape, repairs: list[str]
) -> tuple[int, int]:
    """Return ep and etp, or the nearest that divide the experts and the ranks of a stage."""

    def divides(ep: int, etp: int) -> bool:
        is_whole = shape.n_experts % ep == 0 and shape.expert_ffn % etp == 0
        return is_whole and ranks % (ep * etp) == 0

    if divides(ep, etp):
        return ep, etp
    smaller = ((e, t) for t in (etp, 1) for e in range(ep, 0, -1) if t == etp or e == ep)
    near = next((pair for pair in [(ep, 1), *smaller] if divides(*pair)), (1, 1))
    repairs.append(
        f"ep {near[0]} and etp {near[1]}, not {ep} and {etp}: they divide {shape.n_experts}"
        f" experts and the {ranks} ranks of a stage"
    )
    return near


def _devices(n: int, degrees: int, per_node: int) -> int:
    """Return the most devices up to `n` that the degrees divide: whole nodes, or part of one."""
    if n % degrees == 0:
        return n
    total = math.lcm(degrees, per_node)
    if n >= total:
        return n // total * total
    return per_node // degrees * degrees if degrees <= min(n, per_node) else 0


def _counts(
    run_layout: Mapping[str, Any], layers: int, pp: int, vpp: int, repairs: list[str]
) -> tuple[int, ...]:
    counts = tuple(run_layout.get("counts") or ())
    if len(counts) == pp * vpp and sum(counts) == layers and min(counts) >= 0:
        return counts
    share, rest = divmod(layers, pp * vpp)
    spread = tuple(share + (i < rest) for i in range(pp * vpp))
    if rest or counts:
        repairs.append(
            f"stages of {min(spread)} to {max(spread)} layers: {layers} layers do not go into"
            f" {pp * vpp} stages as stated"
        )
    return spread


def _batch(run_layout: Mapping[str, Any], dp: int, group: int, repairs: list[str]) -> int:
    """Return the global batch, or the nearest that gives every rank whole micro-batches.

    `group` micro-batches run in one round: pp of them where chunks are interleaved.
    """
    mbs = max(1, int(run_layout.get("mbs", 1)))
    requested = int(run_layout.get("gbs") or mbs * dp)
    unit = mbs * dp * group
    if requested % unit == 0:
        return requested
    nearest = max(unit, (requested + unit // 2) // unit * unit)
    what = f"mbs {mbs} x dp {dp}" + (f" x pp {group} (interleaving)" if group > 1 else "")
    repairs.append(f"global batch {nearest}, not {requested}: a multiple of {what}")
    return nearest


def _schedule(run_layout: Mapping[str, Any], pp: int, vpp: int) -> str:
    if pp == 1:
        return "none"
    named = str(run_layout.get("schedule") or "")
    usual = "interleaved" if vpp > 1 else "1f1b"
    return named if named not in ("", "none") else usual


def _shard(run_layout: Mapping[str, Any], n_ranks: int, zero: int, repairs: list[str]) -> int:
    """Return the ranks of a ZeRO group, 0 for all of them."""
    group = int(run_layout.get("dp_shard") or n_ranks)
    if not zero or group == n_ranks:
        return 0
    if n_ranks % group:
        repairs.append(f"ZeRO over all {n_ranks} ranks: groups of {group} do not divide them")
        return 0
    return group
