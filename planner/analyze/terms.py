"""This plan's numbers of every term of a prediction (`costmodels.documentation.terms`)."""

from collections.abc import Callable

import numpy as np

from costmodels import memory, step
from costmodels.axes import CP_COMMS, RECOMPUTE_MODULES, SCHEDULES
from costmodels.breakdown import virtual_stage_times, virtual_weight_grad_times
from costmodels.comm import collectives, context_parallel, dispatch
from costmodels.comm.context_parallel import ContextSplit
from costmodels.comm.placement import Group, place_group
from costmodels.documentation.terms import MEMORY_TERMS, Term
from costmodels.layers import compute, experts
from costmodels.layers.kinds import added_kinds, kinds_of
from costmodels.layers.layer_kind import KindTerms, host_s
from costmodels.layers.params import kv_heads_per_rank
from costmodels.memory import param_bytes_kept
from costmodels.offload import activations as activation_offload
from costmodels.offload import optimizer as offload
from costmodels.offload.modules import offloads_modules
from costmodels.optimizers.groups import needs_groups
from costmodels.problem import Problem
from costmodels.schedule import pipeline
from costmodels.shape_terms import host_bytes, quantized_weight_bytes
from costmodels.towers.vision import (
    attended,
    projector_widths,
    trained_vision_params,
    vision_flops,
    vision_params,
)
from hardware.parts import Host, Provenance
from planner.solver.answer.result import Plan
from planner.units import GIB

Numbers = list[tuple[str, str]]


def _held(plan: Plan) -> int:
    """Return the layers of the slowest rank."""
    return sum(plan.layout.chunks_of(plan.breakdown.critical_stage))


def _common(problem: Problem, plan: Plan) -> Numbers:
    x, shape = plan.layout, problem.shape
    return [
        ("m (micro-batches)", str(x.n_micro)),
        ("b s / c (tokens of one)", f"{x.mbs * problem.job.seq_len // x.cp:,}"),
        (f"layers of the slowest rank ({plan.breakdown.critical_stage})", str(_held(plan))),
        ("t (tp), h, f", f"{x.tp}, {shape.hidden:,}, {shape.ffn:,}"),
    ]


def _rates(problem: Problem) -> Numbers:
    part = problem.pool.accelerator
    precision = problem.job.recipe.linear
    eff = part.efficiency
    return [
        (f"P (dense {precision} peak)", f"{part.peak_flops_per_s[precision] / 1e12:.0f} TFLOP/s"),
        ("eta (sustained GEMM share)", f"{eff.gemm_frac:.3f} (wgrad x {eff.wgrad_frac:.2f})"),
        ("S (multiprocessors), k0", f"{part.n_sms}, {eff.gemm_k_half:.0f}"),
        ("HBM x sustained share", f"{part.hbm_bytes_per_s / 1e12:.2f} TB/s x {eff.hbm_frac:.2f}"),
    ]


def _by_kind(plan: Plan) -> list[tuple[str, KindTerms]]:
    """Return one layer of each kind that a model has, by its title, with its terms.

    Of dense and expert models one line, of the layer without routed experts.
    """
    rows = plan.breakdown.rows
    shape = rows.problem.shape
    if not added_kinds(shape):
        return [("one layer", rows.layers)]
    kinds = zip(kinds_of(shape), rows.layers.of_kinds, shape.kind_counts, strict=True)
    return [(f"one {kind.title}", terms) for kind, terms, n in kinds if n]


def _per_layer(name: str) -> Callable[[Problem, Plan], Numbers]:
    def numbers(problem: Problem, plan: Plan) -> Numbers:
        is_end = name in ("head", "embedding")
        count = "m" if is_end else "m x layers"
        units = [("whole", plan.breakdown.rows.layers)] if is_end else _by_kind(plan)
        both_ways = [(unit, getattr(terms, name)) for unit, terms in units]
        return [
            *_common(problem, plan),
            *_rates(problem),
            *(
                (
                    f"{unit}, forward / backward",
                    f"{both.forward_s.item() * 1e3:.3f} / {both.backward_s.item() * 1e3:.3f} ms",
                )
                for unit, both in both_ways
            ),
            (f"term = {count} x both", f"{plan.breakdown.time_s[name]:.4f} s"),
        ]

    return numbers


def _attention(problem: Problem, plan: Plan) -> Numbers:
    part = problem.pool.accelerator
    kernel = (
        compute.fused_kernel(problem.stack, part) if problem.shape.flash_attention else "unfused"
    )
    shares = part.efficiency.attention_frac.get(kernel)
    extra = [
        ("kernel, share of peak forward / backward", f"{kernel}, {shares}"),
        ("s, s_half", f"{problem.job.seq_len}, {part.efficiency.attention_seq_half:.0f}"),
    ]
    return extra + _per_layer("attention")(problem, plan)


def _tower(problem: Problem, plan: Plan) -> Numbers:
    """Return the numbers of a vision tower and its projector."""
    shape, vision, tower = problem.shape, problem.shape.vision, plan.breakdown.rows.layers.tower
    if vision is None or tower is None:
        return [("vision tower", "none: the model reads text alone")]
    tp, both = np.array([plan.layout.tp], dtype=np.int32), tower.total
    each, widths = vision.images * vision.patches, projector_widths(vision, shape)
    reaches = ", ".join(f"{n} x {seen}" for n, seen in attended(vision) if n)
    return [
        *_common(problem, plan),
        *_rates(problem),
        ("patches, tokens of a sequence", f"{each}, {vision.tokens} of {problem.job.seq_len}"),
        ("layers x patches that see one another", reaches),
        ("widths of the projector", " -> ".join(str(x) for x in widths)),
        ("parameters on a device", f"{vision_params(shape, tp).item():,.0f}"),
        ("of them trained", f"{trained_vision_params(shape, tp).item():,.0f} ({vision.trained})"),
        ("FLOPs of a sequence", f"{vision_flops(shape):.6g}"),
        (
            "micro-batch, forward / backward",
            f"{both.forward_s.item() * 1e3:.3f} / {both.backward_s.item() * 1e3:.3f} ms",
        ),
        ("kept by a micro-batch", f"{tower.kept_bytes.item() / GIB:.4f} GiB"),
        ("frozen weights", f"{tower.frozen_bytes.item() / GIB:.4f} GiB"),
        ("term = m x both, on the first stage", f"{plan.breakdown.time_s['tower']:.4f} s"),
    ]


def _recompute(problem: Problem, plan: Plan) -> Numbers:
    x = plan.layout
    chunks = x.chunks_of(plan.breakdown.critical_stage)
    n_recomputed = sum(min(c, x.recompute_layers) for c in chunks)
    return [
        ("kind, layers per virtual stage", f"{x.recompute_text}, {x.recompute_layers}"),
        ("recomputed layers of the slowest rank", f"{n_recomputed} of {sum(chunks)}"),
        *(
            (f"{unit}'s forward again", f"{terms.recompute_full_s.item() * 1e3:.3f} ms")
            for unit, terms in _by_kind(plan)
        ),
        *_modules(plan),
        ("term", f"{plan.breakdown.time_s['recompute']:.4f} s"),
    ]


def _modules(plan: Plan) -> Numbers:
    """Return what each recomputed module takes again, and no longer keeps, in one layer."""
    layers, rows = plan.breakdown.rows.layers, []
    kinds = [("one layer", layers.modules)]
    kinds += [("one expert layer", layers.experts.modules)] if layers.experts else []
    if added_kinds(plan.breakdown.rows.problem.shape):
        kinds = [(unit, terms.modules) for unit, terms in _by_kind(plan)]
    for name in plan.layout.recompute_modules:
        i = RECOMPUTE_MODULES.index(name)
        for kind, terms in kinds:
            forward_s = terms.forward_s[i].item()
            dropped = (terms.attention_bytes[i] + terms.mlp_bytes[i]).item()
            if forward_s:
                text = f"{forward_s * 1e3:.3f} ms, {dropped / GIB:.4f} GiB less"
                rows.append((f"{name} of {kind} again", text))
    return rows


def _head(problem: Problem, plan: Plan) -> Numbers:
    """Return the numbers of the head; its collectives stand under tp, cp and ep."""
    rows, layers = _per_layer("head")(problem, plan), plan.breakdown.rows.layers
    waits = sum(x.total_s.item() for x in (layers.head_tp, layers.head_cp, layers.head_ep))
    modules = problem.shape.mtp_layers
    more = [("of that under tp, cp and ep", f"{waits * 1e3:.3f} ms")]
    if modules:
        more.append(("modules of multi-token prediction, each a layer and a head", str(modules)))
    term = ("term = m x (both - waits)", f"{plan.breakdown.time_s['head']:.4f} s")
    return [*rows[:-1], *more, term]


def _tp_kind(problem: Problem, plan: Plan) -> str:
    stack = problem.stack
    return stack.tp_overlap_on if plan.layout.tp_overlap else stack.tp_overlap


def _on_the_wire(plan: Plan, axis: str) -> Numbers:
    """Return what one layer sends over tp or cp, and waits for, in both directions."""
    rows = []
    for unit, terms in _by_kind(plan):
        for name in ("forward", "backward"):
            both = getattr(terms, f"{axis}_{name}")
            total, waits = both.total_s.item() * 1e3, both.exposed_s.item() * 1e3
            rows.append(
                (f"{unit}, {name}: on the wire / waited for", f"{total:.3f} / {waits:.3f} ms")
            )
    return rows


def _tp(problem: Problem, plan: Plan) -> Numbers:
    x = 2.0 * plan.layout.mbs * problem.job.seq_len / plan.layout.cp * problem.shape.hidden
    rows = [
        ("x = 2 b s h / c", f"{x / 1e6:.1f} MB"),
        ("overlap of the stack", _tp_kind(problem, plan)),
    ]
    rows += _on_the_wire(plan, "tp")
    group = place_group(plan.layout.tp, 1, problem.pool, problem.fabric)
    ring = collectives.inside_bytes_per_s(group, problem.pool).item() / 1e9
    rows.append(("ring bandwidth per device, one way", f"{ring:.0f} GB/s"))
    return [*_common(problem, plan), *rows, ("term", f"{plan.breakdown.time_s['tp']:.4f} s")]


def _cp(problem: Problem, plan: Plan) -> Numbers:
    x, layers = plan.layout, plan.breakdown.rows.layers
    if x.cp == 1:
        return [("cp", "1: no exchange"), ("term", "0.0000 s")]
    split = ContextSplit(np.array(x.tp), np.array(x.cp), np.array(CP_COMMS.index(x.cp_comm)))
    group = context_parallel.context_group(problem, split)
    n_tokens = x.mbs * problem.job.seq_len // x.cp
    kv = kv_heads_per_rank(problem.shape, x.tp).item() * problem.shape.head_dim
    core, link = layers.attention, _link_bytes_per_s(problem, group) / 1e9
    rows = [
        ("c (cp), exchange", f"{x.cp}, {x.cp_comm}"),
        ("n = b s / c (tokens of a rank)", f"{n_tokens:,}"),
        ("k (width of its keys)", f"{kv:g}"),
        ("keys and values of a rank, 4 n k", f"{4 * n_tokens * kv / 1e6:.1f} MB"),
        (
            "ranks of a group in one domain, link of one",
            f"{group.ranks_per_domain.item():g}, {link:.0f} GB/s",
        ),
        (
            "attention of one step, forward / backward",
            f"{core.forward_s.item() / x.cp * 1e3:.3f} / "
            f"{core.backward_s.item() / x.cp * 1e3:.3f} ms",
        ),
    ]
    rows += _on_the_wire(plan, "cp")
    return [*rows, ("term", f"{plan.breakdown.time_s['cp']:.4f} s")]


def _link_bytes_per_s(problem: Problem, group: Group) -> float:
    """Return what one rank of a group reaches to its neighbour, one way."""
    if group.n_domains.item() > 1:
        return group.wire_bytes_per_s.item() / group.ranks_per_domain.item()
    return problem.pool.accelerator.pair_bytes_per_s


def _expert_numbers(problem: Problem, plan: Plan) -> Numbers:
    """Return the sizes of the routed experts on this plan; one line for a dense model."""
    x, shape, one = plan.layout, problem.shape, plan.breakdown.rows.layers.experts
    if one is None:
        return [("experts", "none: a dense model")]
    tokens = x.mbs * problem.job.seq_len / x.cp / (x.tp if x.sp else 1)
    local = shape.n_experts / x.ep
    load = float(experts.load_factor(shape, x.ep))
    rows = tokens * shape.top_k * x.etp * load
    return [
        ("m (micro-batches)", str(x.n_micro)),
        ("n (tokens that a device routes)", f"{tokens:,.0f}"),
        ("E, k, f_e", f"{shape.n_experts}, {shape.top_k}, {shape.expert_ffn:,}"),
        ("e (ep), t_e (etp)", f"{x.ep}, {x.etp}"),
        ("experts on a device, rows of each", f"{local:g}, {rows / local:,.0f}"),
        ("load of the busiest rank over the mean", f"{load:g}"),
    ]


def _experts(problem: Problem, plan: Plan) -> Numbers:
    one, rows = plan.breakdown.rows.layers.experts, _expert_numbers(problem, plan)
    if one is not None:
        ahead, after = one.routed.forward_s.item() * 1e3, one.routed.backward_s.item() * 1e3
        rows += [
            *_rates(problem),
            ("one layer, forward / backward", f"{ahead:.3f} / {after:.3f} ms"),
        ]
    return [*rows, ("term", f"{plan.breakdown.time_s['experts']:.4f} s")]


def _exchange(problem: Problem, plan: Plan) -> Numbers:
    one, rows = plan.breakdown.rows.layers.experts, _expert_numbers(problem, plan)
    x = plan.layout
    if one is not None and x.ep > 1:
        ep, etp = (np.array([degree], dtype=np.int32) for degree in (x.ep, x.etp))
        group, modes = dispatch.expert_group(problem, ep, etp), plan.breakdown.rows.table.modes
        copies = dispatch.sent_copies(problem, group, modes.at(0))
        inside, outside = (one.item() for one in copies)
        sent = next(x for x in plan.breakdown.transfers if x.axis == "ep")
        rows += [
            ("dispatcher", str(x.value("dispatcher"))),
            ("ranks, per domain", f"{x.ep}, {group.ranks_per_domain.item():g}"),
            ("copies of a token sent inside / outside", f"{inside:.2f} / {outside:.2f}"),
            ("algorithm", sent.algorithm),
            ("one layer, either way", f"{one.exchange.forward_s.item() * 1e3:.3f} ms"),
        ]
    return [*rows, ("term", f"{plan.breakdown.time_s['ep']:.4f} s")]


def _overlap(problem: Problem, plan: Plan) -> Numbers:
    def hidden(axis: str) -> list[tuple[str, float]]:
        sums = []
        for unit, terms in _by_kind(plan):
            ahead, after = (getattr(terms, f"{axis}_{way}") for way in ("forward", "backward"))
            sums.append((unit, (ahead.hidden_s + after.hidden_s).item()))
        return sums

    return [
        ("slowdown of compute beside a collective", f"{problem.stack.overlap_slowdown:.2f}"),
        *((f"hidden tp traffic of {unit}", f"{s * 1e3:.3f} ms") for unit, s in hidden("tp")),
        *((f"hidden cp traffic of {unit}", f"{s * 1e3:.3f} ms") for unit, s in hidden("cp") if s),
        ("term, with the hidden dp traffic", f"{plan.breakdown.time_s['overlap']:.4f} s"),
    ]


def _host(problem: Problem, plan: Plan) -> Numbers:
    rows = plan.breakdown.rows
    launch = host_s(problem, rows.table.shapes.tp).item()
    return [
        ("least time of a layer for the host", f"{launch * 1e3:.2f} ms"),
        ("stalled beside blocked messages", f"{step.stalled(rows).total_s.item() * 1e3:.3f} ms"),
        *(
            (
                f"{unit} on the device",
                f"{(terms.layer.total_s - terms.host.total_s).item() * 1e3:.3f} ms",
            )
            for unit, terms in _by_kind(plan)
        ),
        ("term = m x layers x what is missing", f"{plan.breakdown.time_s['host']:.4f} s"),
    ]


def _idle_share(plan: Plan) -> Numbers:
    """Return the idle share for equal stages, or what can wait where the backward is split."""
    x = plan.layout
    deferred_wgrad_s = virtual_weight_grad_times(plan.breakdown.rows, x)
    if deferred_wgrad_s:
        return [
            (
                "its weight gradients, which can wait",
                f"{max(deferred_wgrad_s) * 1e3:.3f} ms at most",
            )
        ]
    return [("idle share for equal stages", f"{pipeline.bubble_frac(x.pp, x.vpp, x.n_micro):.1%}")]


def _pipeline(term: str) -> Callable[[Problem, Plan], Numbers]:
    def numbers(problem: Problem, plan: Plan) -> Numbers:
        x, result = plan.layout, plan.breakdown
        forward, backward = virtual_stage_times(result.rows, x)
        hops = step.boundary_hops_s(result.rows, x)
        hop = max(hops[: max(1, x.pp - 1)])
        message = result.rows.layers.message_bytes.item()
        slow = max(f + b for f, b in zip(forward, backward, strict=True))
        return [
            ("schedule, p, v, m", f"{x.schedule}, {x.pp}, {x.vpp}, {x.n_micro}"),
            ("slowest virtual stage, forward + backward", f"{slow * 1e3:.3f} ms"),
            ("message between stages, slowest hop", f"{message / 1e6:.2f} MB, {hop * 1e6:.0f} us"),
            *_idle_share(plan),
            (
                "closed-form step / exact step",
                f"{result.closed_form_step_s:.4f} / {result.step_s:.4f} s",
            ),
            ("term", f"{result.time_s[term]:.4f} s"),
        ]

    return numbers


def _overlap_words(plan: Plan) -> str:
    """Return which data-parallel traffic of the plan runs beside compute."""
    stack, zero = plan.breakdown.rows.problem.stack, plan.layout.zero
    if zero >= 2:
        return "yes" if stack.zero3_traffic == "prefetched" else "no"
    kind = stack.zero1_overlap if zero else stack.dp_overlap
    return {"none": "no", "reduce": "the reduction", "both": "yes"}[kind]


def _dp(problem: Problem, plan: Plan) -> Numbers:
    x, recipe, shapes = plan.layout, problem.job.recipe, plan.breakdown.rows.shapes
    wire = shapes.data_parallel
    params = shapes.params[0].max()
    reduce, gather = wire.reduce_s.max(), wire.gather_s.max()
    group = shapes.data_groups.all_ranks
    return [
        ("N (parameters on one device)", f"{params / 1e9:.3f} B"),
        (
            "G_w, W_w (bytes on the wire)",
            f"{recipe.grad_wire_bytes:g}, {recipe.param_wire_bytes:g}",
        ),
        ("ranks, per domain", f"{x.dp * x.cp}, {group.ranks_per_domain.item():g}"),
        (
            "bandwidth out of a domain, all its ranks",
            f"{group.wire_bytes_per_s.item() / 1e9:.1f} GB/s",
        ),
        ("one reduction / one gather", f"{reduce * 1e3:.1f} / {gather * 1e3:.1f} ms"),
        *_second_copy(plan),
        ("hidden beside compute", _overlap_words(plan)),
        ("term", f"{plan.breakdown.time_s['dp']:.4f} s"),
    ]


def _second_copy(plan: Plan) -> Numbers:
    """Return the gathers of a step from a second copy of the weights, where there is one."""
    x, shapes = plan.layout, plan.breakdown.rows.shapes
    secondary_gather_s = shapes.data_parallel.again_s
    if x.hpz == 1 or secondary_gather_s is None:
        return []
    gathers = f"1, {2 * x.n_micro - 1} of {secondary_gather_s.max() * 1e3:.1f} ms"
    return [(f"gathers of a step over all ranks, over hpz {x.hpz}", gathers)]


def _optimizer(problem: Problem, plan: Plan) -> Numbers:
    params = _held_params(plan)
    shard = plan.layout.dp_shard if plan.layout.zero else 1
    return [
        ("N (most parameters on one device)", f"{params / 1e9:.3f} B"),
        ("D (shards)", str(shard)),
        ("G (gradient bytes)", f"{problem.job.recipe.grad_bytes:g}"),
        *_groups(problem, plan),
        *_rates(problem)[-1:],
        ("term", f"{plan.breakdown.time_s['optimizer']:.4f} s"),
    ]


def _groups(problem: Problem, plan: Plan) -> Numbers:
    """Return what an optimizer by groups of parameters takes more; nothing for the others."""
    if not needs_groups(problem.job.recipe.optimizer):
        return []
    shapes = plan.breakdown.rows.shapes
    groups = (shapes.groups, shapes.experts.groups if shapes.experts else None)
    parts = zip(("matrices", "matrices of routed experts"), groups, strict=True)
    return [
        (f"{problem.job.optimizer}: {what}, slowest rank", f"{terms.update_s.max():.4f} s")
        for what, terms in parts
        if terms is not None
    ]


def _straggler(problem: Problem, plan: Plan) -> Numbers:
    nodes = plan.layout.n_devices / problem.pool.devices_per_node
    factor = step.straggler_factor(problem, plan.layout.n_devices)
    return [
        ("nodes", f"{nodes:g}"),
        ("sigma", f"{problem.stack.node_spread:.3f}"),
        ("S", f"{factor:.4f}"),
        ("term", f"{plan.breakdown.time_s['straggler']:.4f} s"),
    ]


def _offload(problem: Problem, plan: Plan) -> Numbers:
    host, update = problem.pool.host, plan.breakdown.rows.shapes.host_update
    term = ("term", f"{plan.breakdown.time_s['offload']:.4f} s")
    sends_modules = offloads_modules(plan.breakdown.rows.table.modes)
    of_layers = plan.layout.activation_offload
    if host is None or (update is None and not of_layers and not sends_modules):
        return [("optimizer states and activations", "on the device"), ("term", "0 s")]
    result = _optimizer_away(problem, plan, host, update) if update is not None else []
    result += _activations_away(problem, plan, host) if of_layers else []
    result += _modules_away(problem, plan, host) if sends_modules else []
    return [*result, term]


def _optimizer_away(
    problem: Problem, plan: Plan, host: Host, update: offload.HostUpdate
) -> Numbers:
    """Return the numbers of an optimizer on the host."""
    table = plan.breakdown.rows.table
    offloaded_bytes = float(host_bytes(problem, table.shapes, table.shardings).max())
    usable = offload.HOST_USABLE_FRAC * host.memory_bytes
    parts = (update.down_s, update.adam_s, update.up_s)
    down, adam, up = (f"{part.max():.4f}" for part in parts)
    return [
        ("what overlaps what", problem.stack.offload_overlap),
        (
            "n (parameters that one device offloads)",
            f"{offloaded_bytes / offload.HOST_STATE_BYTES:,.0f}",
        ),
        (
            "on the host, of the share of a device",
            f"{offloaded_bytes / GIB:.2f} of {usable / GIB:.2f} GiB",
        ),
        *_host_figures(problem, host),
        ("down, Adam, up", f"{down}, {adam}, {up} s"),
        ("pieces", f"{update.n_pieces.max():.0f}"),
    ]


def _host_figures(problem: Problem, host: Host) -> Numbers:
    figures = problem.pool.accelerator.provenance
    return [
        (f"{name}{_origin(figures.get(f'host.{figure}'))}", f"{value / 1e9:.1f} GB/s")
        for name, figure, value in (
            ("B_link", "link_bytes_per_s", host.link_bytes_per_s),
            ("B_host", "memory_bytes_per_s", host.memory_bytes_per_s),
        )
    ]


def _modules_away(problem: Problem, plan: Plan, host: Host) -> Numbers:
    """Return the numbers of modules whose inputs wait on the host, by kind of layer."""
    rows = plan.breakdown.rows
    needed, usable = (
        step.needed_host_bytes(rows).item(),
        offload.HOST_USABLE_FRAC * host.memory_bytes,
    )
    numbers = [
        ("modules on the host", str(plan.layout.value("offload_modules"))),
        *_host_figures(problem, host),
        ("on the host, of the share of a device", f"{needed / GIB:.2f} of {usable / GIB:.2f} GiB"),
    ]
    index = rows.index.item()
    for kind, terms in zip(kinds_of(problem.shape), rows.layers.of_kinds, strict=True):
        freed, copied = (x.item(index) for x in (terms.away.freed_bytes, terms.away.copied_bytes))
        copy_s = copied / activation_offload.copy_bytes_per_s(host)
        waited = f"{terms.copies.forward_s.item(index) * 1e3:.3f}"
        waited += f", {terms.copies.backward_s.item(index) * 1e3:.3f} ms"
        numbers += [
            (f"{kind.title}: freed, copied one way", f"{freed / GIB:.3f}, {copied / GIB:.3f} GiB"),
            (f"{kind.title}: C, waited forward and backward", f"{copy_s * 1e3:.3f} ms; {waited}"),
        ]
    return numbers


def _activations_away(problem: Problem, plan: Plan, host: Host) -> Numbers:
    """Return the numbers of stored activations on the host."""
    x, rows = plan.layout, plan.breakdown.rows
    offloaded_bytes = step.offloaded_activation_bytes(rows).max()
    copy_s, wait_s = (
        offloaded_bytes / activation_offload.copy_bytes_per_s(host),
        step.activation_waits(rows),
    )
    waited = f"{wait_s.forward_s.max() * 1e3:.3f}, {wait_s.backward_s.max() * 1e3:.3f} ms"
    usable = offload.HOST_USABLE_FRAC * host.memory_bytes
    return [
        ("copies of activations", problem.stack.activation_copies),
        ("layers on the host, L", f"{x.activation_offload_layers}, {problem.shape.layers}"),
        *_host_figures(problem, host),
        (
            "activations on the host, of the share",
            f"{offloaded_bytes / GIB:.2f} of {usable / GIB:.2f} GiB",
        ),
        ("C (all copies of a micro-batch one way)", f"{copy_s * 1e3:.3f} ms"),
        ("waited for, forward and backward", waited),
    ]


def _origin(figure: Provenance | None) -> str:
    """Return a mark for a catalogue figure that is assumed."""
    return " (assumed)" if figure and figure.status == "assumed" else ""


def _fixed(problem: Problem, plan: Plan) -> Numbers:
    return [
        (
            "data, logging, scalar reductions (assumed)",
            f"{problem.stack.fixed_step_s * 1e3:.0f} ms",
        )
    ]


def _states(problem: Problem, plan: Plan) -> Numbers:
    recipe, x, params = problem.job.recipe, plan.layout, _held_params(plan)
    param_bytes = param_bytes_kept(recipe, problem.stack)
    weights = param_bytes.shard_weights if x.zero >= 3 else param_bytes.weights
    more = quantized_weight_bytes(problem) if x.zero < 3 else 0.0
    return [
        ("recipe", f"{recipe.name} ({recipe.note})"),
        ("W + G + K", f"{weights:g} + {param_bytes.grads:g} + {param_bytes.states:g} bytes"),
        ("ZeRO stage, D", f"{x.zero}, {x.dp_shard}"),
        *([("second copy, W / hpz", f"{recipe.param_bytes / x.hpz:g} bytes")] * (x.hpz > 1)),
        *([("a weight of linear layers, more", f"{more:g} bytes")] * bool(more)),
        ("N (most parameters on one device)", f"{params / 1e9:.3f} B"),
        *_routed_params(plan),
    ]


def _held_params(plan: Plan) -> float:
    """Return the most parameters on one device, routed experts included."""
    shapes = plan.breakdown.rows.shapes
    params = shapes.params[0] + (shapes.experts.params[0] if shapes.experts else 0.0)
    return float(params.max())


def _routed_params(plan: Plan) -> Numbers:
    """Return what of them are routed experts, and over how many ranks ZeRO shards those."""
    routed = plan.breakdown.rows.shapes.experts
    if routed is None:
        return []
    shard = routed.data_groups.shard.n_ranks.item()
    maximum = routed.params[0].max() / 1e9
    return [("of them routed experts, D of those", f"{maximum:.3f} B, {shard:g}")]


def _activations(problem: Problem, plan: Plan) -> Numbers:
    x, result = plan.layout, plan.breakdown
    layers = result.rows.layers
    stage = result.peak_stage
    routed = []
    if layers.experts:
        routed = [
            (
                "one expert layer, one micro-batch",
                f"{layers.experts.kept_bytes.item() / GIB:.3f} GiB",
            )
        ]
    schedule = SCHEDULES.index(x.schedule)
    chunks = memory.in_flight_chunks(schedule, stage, x.pp, x.vpp, x.n_micro).item()
    dense = [("one layer, one micro-batch", f"{layers.kept_bytes.item() / GIB:.3f} GiB")]
    if all(problem.shape.expert_layers):
        dense = []
    kinds = [*dense, *routed]
    if added_kinds(problem.shape):
        kinds = [
            (f"{unit}, one micro-batch", f"{terms.kept_bytes.item() / GIB:.3f} GiB")
            for unit, terms in _by_kind(plan)
        ]
    return [
        *kinds,
        ("the same, fully recomputed", f"{layers.checkpoint_bytes.item() / GIB:.3f} GiB"),
        *_modules(plan),
        (f"layers of stage {stage}", str(sum(x.chunks_of(stage)))),
        (
            "chunks in flight, each 1/v of the stage",
            f"{chunks:g} of v = {len(x.chunks_of(stage))}",
        ),
    ]


def _memory_term(name: str) -> Callable[[Problem, Plan], Numbers]:
    by_name = {"states": _states, "activations": _activations}

    def numbers(problem: Problem, plan: Plan) -> Numbers:
        rows = by_name[name](problem, plan) if name in by_name else []
        if name == "fragmentation":
            rows = [("share of activations", f"{problem.stack.fragmentation_frac:.2f}")]
        stage = plan.breakdown.peak_stage
        value = plan.breakdown.stages[stage][name] / GIB
        return [*rows, (f"term, stage {stage}", f"{value:.3f} GiB")]

    return numbers


NUMBERS: dict[str, Callable[[Problem, Plan], Numbers]] = {
    "linear": _per_layer("linear"),
    "attention": _attention,
    "elementwise": _per_layer("elementwise"),
    "experts": _experts,
    "head": _head,
    "embedding": _per_layer("embedding"),
    "tower": _tower,
    "recompute": _recompute,
    "host": _host,
    "tp": _tp,
    "cp": _cp,
    "ep": _exchange,
    "overlap": _overlap,
    "pp": _pipeline("pp"),
    "bubble": _pipeline("bubble"),
    "dp": _dp,
    "optimizer": _optimizer,
    "offload": _offload,
    "straggler": _straggler,
    "fixed": _fixed,
    **{name: _memory_term(name) for name in MEMORY_TERMS},
}
"""By term: what goes into it, where that is more than its value."""


def term_numbers(term: Term, problem: Problem, plan: Plan) -> Numbers:
    """Return this plan's numbers of a term of the step or of the memory."""
    if term.name in NUMBERS:
        return NUMBERS[term.name](problem, plan)
    result = plan.breakdown
    if term.kind == "time":
        return [("term", f"{result.time_s[term.name]:.4f} s")]
    value = result.stages[result.peak_stage][term.name] / GIB
    return [(f"term, stage {result.peak_stage}", f"{value:.3f} GiB")]
