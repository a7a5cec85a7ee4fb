"""Cards of the memory of every pipeline rank: each term as the formula that gives it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.axes import SCHEDULES
from costmodels.breakdown import Breakdown
from costmodels.comm.tensor_parallel import tensor_parallel_group
from costmodels.documentation.terms import TERMS
from costmodels.layers.kinds import kinds_of
from costmodels.layers.params import expert_linear_params, expert_params
from costmodels.memory import (
    in_flight_chunks,
    param_bytes_kept,
    queue_is_full,
    state_bytes_per_param,
)
from costmodels.offload.activations import INPUTS_AT_ONCE
from costmodels.offload.modules import LAYERS_ON_THE_WAY, offloads_modules
from costmodels.offload.optimizer import gradients_leave
from costmodels.optimizers.groups import needs_groups
from costmodels.parameters import embedding_params, head_params
from costmodels.plans import ZERO_BUBBLE
from costmodels.problem import Problem
from costmodels.schedule import zero_bubble
from costmodels.schedule.in_flight import ROUNDS, chunks_in_flight
from costmodels.schedule.stages import BOTH_WAYS, layer_prefix, other_kinds
from costmodels.schedule.timeline import unequal_chunk_bytes
from costmodels.shape_terms import quantized_weight_bytes
from costmodels.tuning.adapters import expert_adapter_params, layer_adapter_params
from costmodels.tuning.records import OTHER_BYTES
from planner.analyze.terms import term_numbers
from planner.render.plan_view.cards import Amount, CardNumber, Deck, Derivation
from planner.render.plan_view.opened.time import (
    OF_LAYERS,
    Formula,
    KindPart,
    Substituted,
    added_rows,
    in_symbols,
    rank_kinds,
    with_records,
)
from planner.render.plan_view.quantities import exact, quantity_text, total
from planner.solver.answer.result import Plan


@dataclass(frozen=True, slots=True)
class StageParts:
    """What a pipeline rank holds."""

    problem: Problem
    breakdown: Breakdown
    rank: int
    n_layers: int
    """Its layers."""
    kinds: tuple[KindPart, ...]
    """The kinds of layers that it has."""
    full: int
    """Fully recomputed layers."""
    first: bool
    last: bool
    chunks: float
    """Chunks in flight, each 1 / v of the rank."""


def rank_memory(breakdown: Breakdown, rank: int) -> StageParts:
    """Return what a pipeline rank of a plan holds."""
    x, problem = breakdown.layout, breakdown.rows.problem
    counts = x.chunks_of(rank)
    code = SCHEDULES.index(x.schedule)
    return StageParts(
        problem,
        breakdown,
        rank,
        sum(counts),
        rank_kinds(breakdown, rank),
        sum(min(c, x.recompute_layers) for c in counts),
        x.has_embedding(rank),
        x.has_head(rank),
        in_flight_chunks(code, rank, x.pp, x.vpp, x.n_micro).item(),
    )


def add_memory_cards(deck: Deck, problem: Problem, plan: Plan) -> list[dict[str, CardNumber]]:
    """Add the card of every term of memory on every pipeline rank; the numbers by rank and term.

    The sum of a rank stands under `peak`, what it leaves free under `headroom`.
    """
    out, usable = [], plan.usable_bytes
    for rank, terms in enumerate(plan.breakdown.stages):
        parts, numbers = rank_memory(plan.breakdown, rank), {}
        for name, value in terms.items():
            term = TERMS[name]
            opened = FORMULAS[name](parts) if name in FORMULAS else exact(value, "B")
            formula, substituted = in_symbols(term, opened)
            of_layers, shape = name in OF_LAYERS, problem.shape
            inputs = term_numbers(term, problem, plan) if rank == plan.breakdown.peak_stage else ()
            numbers[name] = deck.add(
                f"memory-{rank}-{name}",
                f"{name} of stage {rank}: {term.title}",
                Amount(value, "B"),
                Derivation(
                    formula,
                    substituted,
                    with_records(term.source, shape) if of_layers else term.source,
                    inputs=(*inputs, *(added_rows(shape) * of_layers)),
                    method=name,
                ),
            )
        peak = sum(terms.values())
        numbers["peak"] = deck.add(
            f"memory-{rank}-peak",
            f"peak of stage {rank}",
            Amount(peak, "B"),
            Derivation(
                "sum of its terms",
                total(exact(value, "B") for value in terms.values()),
                "costmodels.step.memory_terms: a backward starts while all micro-batches of the"
                " rank are in flight",
            ),
        )
        numbers["headroom"] = deck.add(
            f"memory-{rank}-headroom",
            f"free on stage {rank}",
            Amount(usable - peak, "B", text=quantity_text(usable - peak, "B")),
            Derivation(
                "usable memory − peak",
                f"{_whole(usable)} − {_whole(peak)}",
                "planner.solver.answer.result.Plan: usable memory is that of the device less "
                "the reserve of the"
                " pool",
            ),
        )
        out.append(numbers)
    return out


def _whole(n_bytes: float) -> str:
    """Return bytes in full: a small difference counts."""
    return f"{round(n_bytes):,} B"


def _b(value: float) -> str:
    return exact(float(value), "B")


def _states(p: StageParts) -> Formula:
    problem, x = p.problem, p.breakdown.layout
    shape, recipe = problem.shape, problem.job.recipe

    def per_param(shard: float) -> str:
        per_param_bytes = param_bytes_kept(recipe, problem.stack)
        weight = per_param_bytes.shard_weights if x.zero >= 3 else per_param_bytes.weights
        weights = f"{weight:g} B" + (f" / {shard:g}" if x.zero >= 3 else "")
        grads = f"{per_param_bytes.grads:g} B" + (f" / {shard:g}" if x.zero >= 2 else "")
        states = f"{per_param_bytes.states:g} B" + (f" / {shard:g}" if x.zero >= 1 else "")
        parts = [weights] if weight else []
        if x.zero >= 3 and x.hpz > 1:
            parts.append(f"{recipe.param_bytes:g} B / {x.hpz}")
        if not (x.optimizer_offload and x.zero >= 2 and gradients_leave(problem.stack)):
            parts.append(grads)
        if not x.optimizer_offload:
            parts.append(states)
        text = total(parts)
        # Written as the model counts it, or not at all.
        has_states = state_bytes_per_param(
            recipe,
            x.zero,
            shard,
            int(x.optimizer_offload),
            hpz=x.hpz,
            stack=problem.stack,
        ).item()
        return f"({text})" if has_states else "0 B"

    if problem.job.tuning:
        return _tuned_states(p, per_param)
    params = _held_params(p)
    text = f"{per_param(x.dp_shard)} × ({total(params)})"
    routed = p.breakdown.rows.shapes.experts
    n_routed = sum(k.count for k in p.kinds if k.kind.is_routed)
    n_routed += p.last * shape.mtp_layers * (shape.n_experts and shape.expert_layers[-1])
    if routed is not None and n_routed:
        shard = routed.data_groups.shard.n_ranks.item()
        one = expert_params(shape, x.ep, x.etp).item()
        text += f" + {per_param(shard)} × {exact(n_routed)} × {exact(one)}"
    text += _quantized_weights(p, n_routed if routed is not None else 0)
    if frozen := _frozen_bytes(p):
        text += f" + {exact(frozen, 'B')}"
    if needs_groups(recipe.optimizer):
        more = group_state_bytes(p)
        text += f" + {exact(more, 'B')}" if more >= 0 else f" − {exact(-more, 'B')}"
        symbols = f"{TERMS['states'].equation} + {problem.job.optimizer}'s own by group"
        return symbols, text
    return (
        TERMS["states"].equation + (", routed experts apart" if n_routed else ""),
        text,
    )


def _held_params(p: StageParts) -> list[str]:
    """Return the parameters of a rank, trained or frozen, without routed experts."""
    shape, x = p.problem.shape, p.breakdown.layout
    tp = np.array([x.tp], dtype=np.int32)
    params = [f"{exact(k.count)} × {exact(k.kind.params(shape, tp).item())}" for k in p.kinds]
    if p.first:
        params.append(exact(embedding_params(shape, p.problem.job.seq_len, tp).item()))
    if p.last:
        params.append(exact(head_params(shape, tp, np.array([x.pp])).item()))
    return params


def _tuned_states(p: StageParts, per_param: Callable[[float], str]) -> Formula:
    """Return the states of adapters and the frozen weights beside them."""
    problem, x, shape = p.problem, p.breakdown.layout, p.problem.shape
    tuning, tp = problem.job.tuning, np.array([x.tp], dtype=np.int32)
    assert tuning is not None  # asked for of adapters alone
    adapters, linear = [], []
    for k in p.kinds:
        one = layer_adapter_params(shape, tuning, tp, routed=k.kind.is_routed).item()
        adapters.append(f"{exact(k.count)} × {exact(one)}")
        linear.append(f"{exact(k.count)} × {exact(k.kind.linear_weights(shape, tp).item())}")

    def frozen(params: list[str], weights: list[str], shard: float) -> str:
        narrower = OTHER_BYTES - tuning.storage.weight_bytes
        text = f"{_b(OTHER_BYTES)} × ({total(params)})"
        text = f"({text} − {_b(narrower)} × ({total(weights)}))" if narrower else text
        is_beside = problem.stack.sharded_units and x.zero in (1, 2)
        parts = [f"1 / {shard:g}"] * (x.zero >= 3 or bool(is_beside))
        parts += ["1"] * (x.zero < 3)
        return f"{text} × ({total(parts)})"

    sums = [
        f"{per_param(x.dp_shard)} × ({total(adapters)})",
        frozen(_held_params(p), linear, x.dp_shard),
    ]
    routed, n_routed = (
        p.breakdown.rows.shapes.experts,
        sum(k.count for k in p.kinds if k.kind.is_routed),
    )
    if routed is not None and n_routed:
        shard = routed.data_groups.shard.n_ranks.item()
        one, n = expert_adapter_params(shape, tuning, x.ep, x.etp).item(), exact(n_routed)
        sums.append(f"{per_param(shard)} × {n} × {exact(one)}")
        held = f"{n} × {exact(expert_params(shape, x.ep, x.etp).item())}"
        weights = f"{n} × {exact(expert_linear_params(shape, x.ep, x.etp).item())}"
        sums.append(frozen([held], [weights], shard))
    text = total(sums) + _quantized_weights(p, n_routed if routed is not None else 0)
    return "(W + G + K) of adapters + frozen weights in their storage, over their shards", text


def _frozen_bytes(p: StageParts) -> float:
    """Return the weights of a vision tower on a rank that are not trained, bytes."""
    tower = p.breakdown.rows.layers.tower
    return tower.frozen_bytes.item() if tower and p.first else 0.0


def group_state_bytes(p: StageParts) -> float:
    """Return what groups of parameters take more than one figure a parameter on a rank, bytes."""
    states = p.breakdown.stages[p.rank]["states"]
    problem, x, recipe = p.problem, p.breakdown.layout, p.problem.job.recipe
    shape, tp = problem.shape, np.array([x.tp], dtype=np.int32)
    each = state_bytes_per_param(recipe, x.zero, x.dp_shard, stack=problem.stack).item()
    params = sum(k.count * k.kind.params(shape, tp).item() for k in p.kinds)
    params += embedding_params(shape, problem.job.seq_len, tp).item() * p.first
    params += head_params(shape, tp, np.array([x.pp])).item() * p.last
    flat, n_routed = each * params, 0.0
    if routed := p.breakdown.rows.shapes.experts:
        n_routed = sum(k.count for k in p.kinds if k.kind.is_routed)
        n_routed += p.last * shape.mtp_layers * shape.expert_layers[-1]
        shard = routed.data_groups.shard.n_ranks.item()
        one = state_bytes_per_param(recipe, x.zero, shard, stack=problem.stack).item()
        flat += one * n_routed * expert_params(shape, x.ep, x.etp).item()
    if each := quantized_weight_bytes(problem):
        weights = sum(k.count * k.kind.linear_weights(shape, tp).item() for k in p.kinds)
        if p.last and shape.mtp_layers:
            layer = kinds_of(shape)[shape.layer_sequence[-1]].linear_weights(shape, tp).item()
            weights += shape.mtp_layers * (2.0 * shape.hidden**2 / x.tp + layer)
        if p.breakdown.rows.shapes.experts:
            weights += n_routed * expert_linear_params(shape, x.ep, x.etp).item()
        flat += each * weights
    return float(states - flat - _frozen_bytes(p))


def _quantized_weights(p: StageParts, n_routed: float) -> str:
    """Return what quantised weights of linear layers add; empty where there are none."""
    problem, x, shape = p.problem, p.breakdown.layout, p.problem.shape
    each, tp = quantized_weight_bytes(problem), np.array([x.tp], dtype=np.int32)
    if not each or x.zero >= 3:
        return ""
    weights = [
        f"{exact(k.count)} × {exact(k.kind.linear_weights(shape, tp).item())}" for k in p.kinds
    ]
    if p.last and shape.mtp_layers:
        layer = kinds_of(shape)[shape.layer_sequence[-1]].linear_weights(shape, tp).item()
        weights.append(f"{shape.mtp_layers} × {exact(2.0 * shape.hidden**2 / x.tp + layer)}")
    if n_routed:
        one = expert_linear_params(shape, x.ep, x.etp).item()
        weights.append(f"{exact(n_routed)} × {exact(one)}")
    sign = "+" if each > 0 else "−"
    return f" {sign} {_b(abs(each))} × ({total(weights)})"


def _activations(p: StageParts) -> Formula:
    x, rows, shape = p.breakdown.layout, p.breakdown.rows, p.problem.shape
    layers, sets = rows.layers, rows.sets
    layer_bytes = sets.kept_bytes.take(rows.set_index).item()
    full_total, inputs = float(p.n_layers - p.full), float(p.full)
    kinds = other_kinds(shape.layer_sequence)
    on_host = [0.0] * len(kinds)
    if x.activation_offload:
        if x.recompute == "full":
            inputs = min(inputs, INPUTS_AT_ONCE)
        else:
            offloaded = min(p.n_layers, x.activation_offload_layers)
            full_total -= offloaded
            longest = max(x.stage_layers)
            on_host = [
                layer_prefix(x.stage_layers, x.stages_of(p.rank), flags, longest)[
                    min(offloaded, longest)
                ]
                for flags in kinds
            ]
    sums = []
    if full_total:
        sums.append(f"{exact(full_total)} × {_b(layer_bytes)}")
    if inputs:
        sums.append(f"{exact(inputs)} × {_b(layers.checkpoint_bytes.item())}")
    if chunks := unequal_chunk_bytes(rows, x, p.rank):
        return _unequal_activations(p, chunks)
    after, extras = [], [more.take(rows.set_index).item() for more in sets.other_kept_bytes]
    for flags, extra, left in zip(kinds, extras, on_host, strict=True):
        prefix = layer_prefix(x.stage_layers, x.stages_of(p.rank), flags, max(x.stage_layers))
        stay = prefix[-1] - prefix[min(x.recompute_layers, len(prefix) - 1)] - left
        if stay:
            after.append(f"{exact(stay)} × ({_b(extra)})")
    if p.last and shape.mtp_layers:
        last_kind = shape.layer_sequence[-1]
        one = layer_bytes + (extras[last_kind - 1] if last_kind else 0.0)
        after.append(f"{shape.mtp_layers} × {_b(one)}")
    if p.first:
        after.append(_b(layers.embedding_bytes.item()))
    parts = 2 if x.placement == BOTH_WAYS else x.vpp
    flight = f"{exact(p.chunks)} / {parts}" if parts > 1 else exact(p.chunks)
    text = TERMS["activations"].equation
    text = f"{text[:-1]} + ends)" if after else text
    if x.schedule not in ZERO_BUBBLE:
        return text, f"{flight} × ({total([*sums, *after])})"
    early, deferred = f"{flight} × ({total(sums)})", _deferred_wgrad(p, full_total, layer_bytes)
    rest = f" + {flight} × ({total(after)})" if after else ""
    return (
        f"max({text[: -len(' + ends)')] if after else text[:-1]}), the same while weight"
        " gradients wait)" + (" + ends" if after else ""),
        f"max({early}, {deferred}){rest}",
    )


def _unequal_activations(p: StageParts, chunks: tuple[float, ...]) -> Formula:
    """Return the activations of unequal interleaved chunks at the moment that holds most."""
    x = p.breakdown.layout
    n_rounds = min(ROUNDS, max(1, x.n_micro // x.pp))
    moments = chunks_in_flight(p.rank, x.pp, x.vpp, n_rounds)
    peak = moments[(moments @ np.array(chunks)).argmax()]
    sums = [f"{n} × {_b(size)}" for n, size in zip(peak.tolist(), chunks, strict=True)]
    return "Σ over chunks of micro-batches in flight × what the chunk keeps", total(sums)


def _deferred_wgrad(p: StageParts, full_layers: float, layer_bytes: float) -> str:
    """Return the activations while most weight gradients wait (`costmodels.step`)."""
    x, rows = p.breakdown.layout, p.breakdown.rows
    layers, code = rows.layers, SCHEDULES.index(x.schedule)
    core = layers.modules.attention_bytes[0].item() * ("core_attn" in x.recompute_modules)
    before, waiting = zero_bubble.late_chunks(code, p.rank, x.pp, x.n_micro)
    one = layers.kept_bytes.item() - core
    share = 1.0 if code == zero_bubble.ZB_H1 else 0.5
    return (
        f"{share:g} × ({exact(before.item())} × ({exact(full_layers)} × {_b(layer_bytes)} +"
        f" {p.full} × {_b(layers.checkpoint_bytes.item())}) + {exact(waiting.item())} ×"
        f" {exact(full_layers + p.full)} × {_b(one)})"
    )


def _logits(p: StageParts) -> str:
    value = p.breakdown.rows.layers.logits_bytes.item()
    return f"{int(p.last)} × {_b(value)}"


def _working(p: StageParts) -> Formula:
    x, rows, problem = p.breakdown.layout, p.breakdown.rows, p.problem
    layers = rows.layers
    if p.full:
        counts = problem.shape.kind_counts
        recompute_bytes = max(
            terms.kept_bytes.item() for terms, n in zip(layers.of_kinds, counts, strict=True) if n
        )
    else:
        recompute_bytes = rows.sets.passing_bytes.take(rows.set_index).item()
    if rows.shapes.phases is not None:
        return _planned_working(p, recompute_bytes)
    gone = 0.0
    if p.last:
        sharded = problem.stack.logits_sharded
        gone = (layers.logits_bytes if sharded else layers.gathered_bytes).item()
    text = f"max(0, {_b(recompute_bytes)} + {_b(layers.working_bytes.item())} − {_b(gone)})"
    sums = [text, _b(layers.scratch_bytes.item())]
    symbols = [TERMS["working"].equation]
    if x.pp > 1:
        sums.append(f"2 × {_b(layers.message_bytes.item())}")
        symbols.append("messages")
    if offloads_modules(rows.table.modes):
        sums.append(_on_the_way(p))
        symbols.append("modules on their way to and from the host")
    if problem.stack.queued_tensors and _queue_is_full(p):
        sums.append(_b(layers.queued_bytes.item()))
        symbols.append("collectives not yet free")
    units = rows.shapes.zero_working_bytes[rows.table.sharding, rows.table.shape].item()
    if units:
        sums.append(_b(units))
        flat = problem.stack.flat_optimizer
        symbols.append("flat tensors, " * flat + "unsharded units of ZeRO")
    return " + ".join(symbols), total(sums)


def _planned_working(p: StageParts, recompute_bytes: float) -> Formula:
    """Return what makes the sum of the terms the most of a planned step's moments."""
    x, rows, layers = p.breakdown.layout, p.breakdown.rows, p.breakdown.rows.layers
    kinds, phases = rows.shapes.kinds, rows.shapes.phases
    assert phases is not None  # the caller has looked
    alike = kinds.has_embedding == p.first
    alike = alike & (kinds.has_head == p.last) & (kinds.layers == p.n_layers)
    at = rows.table.sharding.item(), rows.table.shape.item(), int(alike[0].argmax())
    sums, more = 0.0, 0.0
    if x.n_micro > 1:
        sums, more = phases.head_sums[at], phases.backward_sums[at]
    if phases.ring[at] > phases.head[at]:
        of_head = [_b(phases.ring[at] + sums), *[_b(layers.ring_bytes.item())] * p.last]
    else:
        of_head = [_b(phases.head[at] + sums)]
    backward = [_b(phases.backward[at] + more), _b(recompute_bytes)]
    backward.append(_b(layers.working_bytes.item()))
    if x.pp > 1:
        backward.append(f"2 × {_b(layers.message_bytes.item())}")
    logits = f" − {_b(layers.logits_bytes.item())}" if p.last else ""
    return (
        "max(copies of weights and gathered head, copies, gradients and one layer's backward"
        " − logits)",
        f"max({total(of_head)}, {total(backward)}{logits})",
    )


def _on_the_way(p: StageParts) -> str:
    """Return what offloaded modules have on the device: two layers, or all that there are."""
    x, shape = p.breakdown.layout, p.problem.shape
    kinds = zip(p.breakdown.rows.layers.of_kinds, shape.kind_counts, strict=True)
    layer_bytes = max(terms.away.freed_bytes.item() for terms, n in kinds if n)
    n_resident = p.n_layers + (shape.mtp_layers if p.last else 0)
    parts = 2 if x.placement == BOTH_WAYS else x.vpp
    n_layers = min(LAYERS_ON_THE_WAY, float(n_resident * p.chunks / parts))
    return f"{exact(n_layers)} × {_b(layer_bytes)}"


def _queue_is_full(p: StageParts) -> bool:
    x, problem = p.breakdown.layout, p.problem
    domains = tensor_parallel_group(problem, np.array([x.tp], dtype=np.int32)).n_domains
    pp, vpp = np.array([x.pp], dtype=np.int32), np.array([x.vpp], dtype=np.int32)
    return bool(
        queue_is_full(
            problem.shape.layers,
            pp,
            vpp,
            np.array([p.chunks]),
            domains,
            blocking_p2p=problem.stack.blocking_p2p,
        ).item()
    )


def _fragmentation(p: StageParts) -> str:
    share = p.problem.stack.fragmentation_frac
    value = p.breakdown.stages[p.rank]["activations"]
    return f"{share:g} × {_b(value)}"


def _overhead(p: StageParts) -> str:
    stack = p.problem.stack
    value = p.breakdown.stages[p.rank]["overhead"]
    if not stack.communicator_bytes:
        return _b(stack.context_bytes)
    n = round((value - stack.context_bytes) / stack.communicator_bytes)
    return f"{_b(stack.context_bytes)} + {n} × {_b(stack.communicator_bytes)}"


FORMULAS: Mapping[str, Callable[[StageParts], Substituted]] = {
    "states": _states,
    "activations": _activations,
    "logits": _logits,
    "working": _working,
    "fragmentation": _fragmentation,
    "overhead": _overhead,
}
"""By term of the memory."""
