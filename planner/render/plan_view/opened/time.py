"""Cards of the terms of a step: every term of the breakdown as the formula that gives it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.breakdown import Breakdown, pipeline_run, virtual_stage_times
from costmodels.documentation.terms import TERMS, Term
from costmodels.layers.kinds import added_kinds, kinds_of
from costmodels.layers.layer_kind import ExpertLayerTerms, KindTerms, LayerKind
from costmodels.layers.layer_terms import LayerTerms
from costmodels.offload.modules import offloads_modules
from costmodels.optimizers.groups import needs_groups
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.schedule import pipeline
from costmodels.schedule.stages import layer_prefix
from costmodels.shapes import ModelShape
from costmodels.step import (
    activation_waits,
    data_parallel_exposed,
    offload_exposed,
    stage_times,
    stalled,
    straggler_factor,
)
from costmodels.traffic import selective_again
from planner.analyze.terms import term_numbers
from planner.render.plan_view.cards import Amount, CardNumber, Deck, Derivation
from planner.render.plan_view.quantities import exact, quantity_text, total
from planner.solver.answer.result import Plan

Formula = tuple[str, str]
"""In symbols, and with the numbers put in."""
Substituted = Formula | str
"""The same; a text alone is the equation of the term with the numbers put in."""


def in_symbols(term: Term, value: Substituted) -> Formula:
    """Return a formula; where it is the equation of its term, that is put before it."""
    return (term.equation, value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class KindPart:
    """The layers of one kind on a rank."""

    kind: LayerKind
    terms: KindTerms
    count: float
    """Its layers."""
    full: float
    """Fully recomputed ones of them."""


@dataclass(frozen=True, slots=True)
class OpenedParts:
    """What the terms of the slowest rank are made of."""

    problem: Problem
    breakdown: Breakdown
    layers: LayerTerms
    kinds: tuple[KindPart, ...]
    """The kinds of layers that it has."""
    m: int
    """Micro-batches that the rank runs."""
    n_layers: int
    """Its layers."""
    first: bool
    last: bool
    flush_s: float
    """The pipeline with its messages."""
    at_once_s: float
    """The same, were messages to take no time."""
    busy_s: float
    """What the rank computes and waits for tp, cp and ep in a micro-batch."""

    @property
    def layout(self) -> Layout:
        """The plan's layout."""
        return self.breakdown.layout


def rank_kinds(breakdown: Breakdown, rank: int) -> tuple[KindPart, ...]:
    """Return the kinds of layers of which a pipeline rank of a plan has some."""
    rows, x = breakdown.rows, breakdown.layout
    shape, longest = rows.problem.shape, max(x.stage_layers)
    result = []
    for i, (kind, terms) in enumerate(zip(kinds_of(shape), rows.layers.of_kinds, strict=True)):
        flags = [one == i for one in shape.layer_sequence]
        prefix = layer_prefix(x.stage_layers, x.stages_of(rank), flags, longest)
        if prefix[-1]:
            n_full = prefix[min(longest, x.recompute_layers)]
            result.append(KindPart(kind, terms, prefix[-1], n_full))
    return tuple(result)


def kinds_text(kinds: Iterable[LayerKind]) -> str:
    """Return kinds of layers in words: `dense and expert layers`."""
    titles = [kind.title.removesuffix(" layer") for kind in kinds]
    return f"{' and '.join(titles)} layers"


def added_rows(shape: ModelShape) -> tuple[tuple[str, str], ...]:
    """Return what one layer of each added kind of a model computes, by its record."""
    return tuple((f"one {kind.title}", kind.equation) for kind in added_kinds(shape))


def with_records(source: str, shape: ModelShape) -> str:
    """Return the source of a number of layers, with those of the records of added kinds."""
    return "; ".join((source, *(f"{x.title}: {x.source}" for x in added_kinds(shape))))


def opened_parts(problem: Problem, breakdown: Breakdown) -> OpenedParts:
    """Return what the terms of a breakdown are made of."""
    rows, x, rank = breakdown.rows, breakdown.layout, breakdown.critical_stage
    stages, run = x.stages_of(rank), pipeline_run(rows, x)
    flush_s, at_once_s = pipeline.flush_times_s([run, replace(run, hop_s=(0.0,) * x.pp)])
    forward, backward = virtual_stage_times(rows, x)
    return OpenedParts(
        problem,
        breakdown,
        rows.layers,
        rank_kinds(breakdown, rank),
        x.n_passes,
        sum(x.chunks_of(rank)),
        x.has_embedding(rank),
        x.has_head(rank),
        flush_s,
        at_once_s,
        sum(forward[j] + backward[j] for j in stages),
    )


OF_LAYERS = (
    *("linear", "attention", "elementwise", "experts", "recompute"),
    *("host", "tp", "cp", "ep", "overlap"),
    *("states", "activations", "working"),
)
"""Terms that depend on what one layer is."""


def add_time_cards(deck: Deck, problem: Problem, plan: Plan) -> dict[str, CardNumber]:
    """Add the card of every term of the step that takes time; the numbers by name of the term."""
    parts, result = opened_parts(problem, plan.breakdown), plan.breakdown
    numbers = {}
    for name, value in result.time_s.items():
        if value <= 0.0:
            continue
        term = TERMS[name]
        opened = FORMULAS[name](parts) if name in FORMULAS else exact(value, "s")
        formula, substituted = in_symbols(term, opened)
        of_layers, shape = name in OF_LAYERS, problem.shape
        numbers[name] = deck.add(
            f"time-{name}",
            f"{name}: {term.title}",
            Amount(value, "s"),
            Derivation(
                formula,
                substituted,
                with_records(term.source, shape) if of_layers else term.source,
                inputs=(*term_numbers(term, problem, plan), *(added_rows(shape) * of_layers)),
                method=name,
            ),
        )
    return numbers


def _s(array: Any) -> str:
    return exact(float(array.item() if hasattr(array, "item") else array), "s")


def _both(terms: Any) -> str:
    """Return forward and backward of a term of a layer as a sum."""
    return f"({_s(terms.forward_s)} + {_s(terms.backward_s)})"


SYMBOLS = {"dense": "d", "moe": "e"}
"""Indices of L in formulas, by kind of layer; the others have their names."""


def _in_layers(name: str) -> Callable[[OpenedParts], Substituted]:
    """Return the formula of what every layer takes, the kinds of layers apart."""

    def formula(p: OpenedParts) -> Substituted:
        if len(p.kinds) == 1:
            return f"{p.m} × {p.n_layers} × {_both(getattr(p.kinds[0].terms, name))}"
        sums = [f"{exact(x.count)} × {_both(getattr(x.terms, name))}" for x in p.kinds]
        marks = [SYMBOLS.get(x.kind.name, x.kind.name) for x in p.kinds]
        symbols = " + ".join(f"L_{mark} (forward + backward)" for mark in marks)
        titles = kinds_text(x.kind for x in p.kinds)
        return f"m ({symbols}), {titles}", f"{p.m} × ({total(sums)})"

    return formula


def _with_experts(p: OpenedParts) -> list[tuple[KindPart, ExpertLayerTerms]]:
    """Return the kinds with routed experts, with their terms."""
    return [(x, x.terms) for x in p.kinds if isinstance(x.terms, ExpertLayerTerms)]


def _routed(p: OpenedParts) -> str:
    sums = [f"{exact(x.count)} × {_both(terms.routed)}" for x, terms in _with_experts(p)]
    return f"{p.m} × {sums[0]}" if len(sums) == 1 else f"{p.m} × ({total(sums)})"


def _head(p: OpenedParts) -> str:
    layers = p.layers
    waits = [x for x in (layers.head_tp, layers.head_cp, layers.head_ep) if x.total_s.item()]
    less = "".join(f" − {_both(x)}" for x in waits)
    return f"{p.m} × ({_both(layers.head)}{less})"


def _embedding(p: OpenedParts) -> str:
    wait = p.layers.embedding_tp
    less = f" − {_both(wait)}" if wait.total_s.item() else ""
    return f"{p.m} × ({_both(p.layers.embedding)}{less})"


def _tower(p: OpenedParts) -> str:
    assert p.layers.tower is not None  # its term is there
    return f"{p.m} × {_both(p.layers.tower.total)}"


def _recompute(p: OpenedParts) -> str:
    passes = [f"{exact(x.full)} × {_s(x.terms.recompute_full_s)}" for x in p.kinds if x.full]
    waits = []
    modules = selective_again(p.breakdown.rows, p.layout, p.breakdown.critical_stage)
    if modules.forward_s:
        passes.append(_s(modules.forward_s))
    for value in (_again_tp(p), _again_cp(p), _again_ep(p)):
        if value:
            waits.append(f" − {_s(value)}")
    return f"{p.m} × ({total(passes)}{''.join(waits)})"


def _again_tp(p: OpenedParts) -> float:
    """Return the tp waits of what runs again, seconds per micro-batch."""
    modules = selective_again(p.breakdown.rows, p.layout, p.breakdown.critical_stage)
    recompute_s: float = sum(x.full * x.terms.tp_forward.exposed_s.item() for x in p.kinds)
    return recompute_s + modules.tp_exposed_s


def _again_cp(p: OpenedParts) -> float:
    """Return the cp waits of what runs again, seconds per micro-batch."""
    core = "core_attn" in p.layout.recompute_modules
    recompute_s: float = sum(
        (x.full + core * x.count) * x.terms.cp_forward.exposed_s.item() for x in p.kinds
    )
    more = p.problem.shape.mtp_layers * p.last * core
    return recompute_s + float(more * p.layers.cp_forward.exposed_s.item())


def _again_ep(p: OpenedParts) -> float:
    """Return the exchange of tokens in what runs again, seconds per micro-batch."""
    modules = selective_again(p.breakdown.rows, p.layout, p.breakdown.critical_stage)
    once: float = sum(x.full * terms.exchange.forward_s.item() for x, terms in _with_experts(p))
    return once + modules.exchange_s


def _host(p: OpenedParts) -> Formula:
    stalls_s, text = stalled(p.breakdown.rows).total_s.item(), TERMS["host"].equation
    if len(p.kinds) == 1:
        one = _s(p.kinds[0].terms.host.total_s)
        inner = f"{p.n_layers} × ({one} + {_s(stalls_s)})" if stalls_s else f"{p.n_layers} × {one}"
        return text + (" + stalls" if stalls_s else ""), f"{p.m} × {inner}"
    sums = [f"{exact(x.count)} × {_s(x.terms.host.total_s)}" for x in p.kinds]
    sums += [f"{p.n_layers} × {_s(stalls_s)}"] if stalls_s else []
    return f"{text}, {kinds_text(x.kind for x in p.kinds)}", f"{p.m} × ({total(sums)})"


def _waits(p: OpenedParts, axis: str) -> list[str]:
    """Return what the layers of each kind wait for tp or cp, in both directions."""
    sums = []
    for x in p.kinds:
        ahead, after = (getattr(x.terms, f"{axis}_{way}") for way in ("forward", "backward"))
        sums.append(f"{exact(x.count)} × ({_s(ahead.exposed_s)} + {_s(after.exposed_s)})")
    return sums


def _tp(p: OpenedParts) -> str:
    layers, x, rank = p.layers, p.layout, p.breakdown.critical_stage
    sums = _waits(p, "tp")
    recompute_s = _again_tp(p)
    sums += [_s(recompute_s)] if recompute_s else []
    if x.has_embedding(rank) and layers.embedding_tp.total_s.item():
        sums.append(_s(layers.embedding_tp.total_s))
    if x.has_head(rank) and layers.head_tp.total_s.item():
        sums.append(_s(layers.head_tp.total_s))
    return f"{p.m} × ({total(sums)})"


def _cp(p: OpenedParts) -> str:
    sums = _waits(p, "cp")
    recompute_s = _again_cp(p)
    sums += [_s(recompute_s)] if recompute_s else []
    sums += [_s(p.layers.head_cp.total_s)] if p.last and p.layers.head_cp.total_s.item() else []
    return f"{p.m} × ({total(sums)})"


def _ep(p: OpenedParts) -> str:
    sums = [f"{exact(x.count)} × {_both(terms.exchange)}" for x, terms in _with_experts(p)]
    recompute_s = _again_ep(p)
    sums += [_s(recompute_s)] if recompute_s else []
    sums += [_s(p.layers.head_ep.total_s)] if p.last and p.layers.head_ep.total_s.item() else []
    return f"{p.m} × ({total(sums)})"


def _overlap(p: OpenedParts) -> str:
    rows, slow = p.breakdown.rows, p.problem.stack.overlap_slowdown
    exposed, hidden = data_parallel_exposed(rows, stage_times(rows))
    kind = int((exposed + slow * hidden)[:, 0].argmax())
    sums = [
        f"{p.m} × {exact(x.count)} × {_s(x.terms.tax.total_s)}"
        for x in p.kinds
        if x.terms.tax.total_s.item()
    ]
    if hidden[kind, 0].item():
        sums.append(f"{slow:g} × {_s(hidden[kind, 0])}")
    return total(sums)


def _pp(p: OpenedParts) -> Formula:
    tied = p.breakdown.rows.shapes.embedding_sync_s.item()
    more = f" + {_s(tied)}" if tied else ""
    return (
        TERMS["pp"].equation + (" + sum of shared gradients" if tied else ""),
        f"{_precise(p.flush_s)} − {_precise(p.at_once_s)}{more}",
    )


def _bubble(p: OpenedParts) -> str:
    return f"{_precise(p.at_once_s)} − {p.m} × {_precise(p.busy_s)}"


def _precise(seconds: float) -> str:
    """Return a time whose small difference to another one counts."""
    return f"{seconds:.10g} s".replace("e-", "e−")


def _dp(p: OpenedParts) -> str:
    rows = p.breakdown.rows
    exposed, hidden = data_parallel_exposed(rows, stage_times(rows))
    kind = int((exposed + rows.problem.stack.overlap_slowdown * hidden)[:, 0].argmax())
    hidden_s = hidden[kind, 0].item()
    wire = exposed[kind, 0].item() + hidden_s
    return f"{_precise(wire)} − {_precise(hidden_s)}" if hidden_s else _s(wire)


def _optimizer(p: OpenedParts) -> Formula:
    moved, sums = optimizer_bytes(p)
    eff = p.problem.pool.accelerator
    symbols = TERMS["optimizer"].equation + (", routed experts apart" if len(moved) > 1 else "")
    text = f"({total(sums)}) / ({exact(eff.hbm_bytes_per_s, 'B/s')} × {eff.efficiency.hbm_frac:g})"
    more = p.breakdown.time_s["optimizer"] - sum(moved) / hbm_rate(p)
    if not needs_groups(p.problem.job.recipe.optimizer):
        return symbols, text
    return f"{symbols} + {p.problem.job.optimizer}'s own by group", f"{text} + {_s(more)}"


def hbm_rate(p: OpenedParts) -> float:
    """Return the memory bandwidth that an update sustains, bytes/s."""
    part = p.problem.pool.accelerator
    return part.hbm_bytes_per_s * part.efficiency.hbm_frac


def group_update_s(p: OpenedParts) -> NDArray[np.float64]:
    """Return what groups of parameters take more, by kind of rank, seconds."""
    shapes = p.breakdown.rows.shapes
    groups = [shapes.groups, shapes.experts.groups if shapes.experts else None]
    none = np.zeros(shapes.params.shape[1])
    return sum((x.update_s.reshape(-1) for x in groups if x is not None), none)


def optimizer_bytes(p: OpenedParts) -> tuple[list[float], list[str]]:
    """Return what the optimizer moves on the slowest kind of rank, bytes: values and sums."""
    from costmodels.offload.optimizer import gradients_leave

    rows, x, grad = p.breakdown.rows, p.layout, p.problem.job.recipe.grad_bytes
    # Adam's own bytes and the cast of the weights; on the host Adam takes none of them here.
    update = 30.0 if x.optimizer_offload else p.problem.job.recipe.adam_bytes + 6.0
    offloaded_bytes = (grad + 24.0 + (2.0 * grad if gradients_leave(p.problem.stack) else 0.0)) * (
        x.optimizer_offload
    )

    def part(params: float, shard: float) -> tuple[float, str]:
        of_grads, of_states = (shard if x.zero >= stage else 1.0 for stage in (2, 1))
        value = params * (grad / of_grads + (4.0 * grad + update - offloaded_bytes) / of_states)
        less = f" − {offloaded_bytes:g}" if offloaded_bytes else ""
        text = (
            f"{exact(round(params))} × ({grad:g} B / {of_grads:g} + (4 × {grad:g} B + {update:g} B"
            f"{less}) / {of_states:g})"
        )
        return value, text

    dense, routed = rows.shapes.params[0], rows.shapes.experts
    beside = group_update_s(p) * hbm_rate(p)
    if routed is None:
        values = [part(a.item(), x.dp_shard)[0] + b for a, b in zip(dense, beside, strict=True)]
        results = [part(dense[values.index(max(values))].item(), x.dp_shard)]
    else:
        shard = routed.data_groups.shard.n_ranks.item()
        kinds = [
            (part(a.item(), x.dp_shard), part(b.item(), shard))
            for a, b in zip(dense, routed.params[0], strict=True)
        ]
        moved = [one[0] + other[0] + b for (one, other), b in zip(kinds, beside, strict=True)]
        results = [*kinds[moved.index(max(moved))]]
    return [value for value, _ in results], [text for _, text in results]


def _offload(p: OpenedParts) -> Formula:
    rows = p.breakdown.rows
    sums, symbols = [], []
    update = offload_exposed(rows, stage_times(rows)).max().item()
    if update:
        sums.append(_s(update))
        symbols.append("update on the host − what runs beside compute")
    if p.layout.activation_offload:
        copy_waits = activation_waits(rows)
        waits = f"{_s(copy_waits.forward_s[0].item())} + {_s(copy_waits.backward_s[0].item())}"
        sums.append(f"{p.m} × ({waits})")
        symbols.append("m (waits for copies of activations, forward + backward)")
    if offloads_modules(rows.table.modes):
        each = [f"{exact(x.count)} × {_both(x.terms.copies)}" for x in p.kinds]
        sums.append(f"{p.m} × ({total(each)})")
        symbols.append("m L (waits for copies of modules, forward + backward)")
    return total(symbols), total(sums)


def _straggler(p: OpenedParts) -> str:
    factor = straggler_factor(p.problem, p.layout.n_devices)
    return f"({factor:.10g} − 1) × {_s(p.flush_s)}"


def _fixed(p: OpenedParts) -> str:
    value = p.problem.stack.fixed_step_s
    return exact(value, "s")


FORMULAS: Mapping[str, Callable[[OpenedParts], Substituted]] = {
    "linear": _in_layers("linear"),
    "attention": _in_layers("attention"),
    "elementwise": _in_layers("elementwise"),
    "experts": _routed,
    "head": _head,
    "embedding": _embedding,
    "tower": _tower,
    "recompute": _recompute,
    "host": _host,
    "tp": _tp,
    "cp": _cp,
    "ep": _ep,
    "overlap": _overlap,
    "pp": _pp,
    "bubble": _bubble,
    "dp": _dp,
    "optimizer": _optimizer,
    "offload": _offload,
    "straggler": _straggler,
    "fixed": _fixed,
}
"""By term of the step."""


def time_text(seconds: float, digits: int = 4) -> str:
    """Return a time of the step as the view shows it."""
    return quantity_text(seconds, "s", digits)
