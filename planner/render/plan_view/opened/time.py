"""Cards of the terms of a step: every term of the breakdown as the formula that gives it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodels.breakdown import Breakdown, pipeline_run, virtual_stage_times
from costmodels.documentation.terms import TERMS, Term
from costmodels.layers.layer_kind import ExpertLayerTerms
from costmodels.layers.layer_terms import LayerTerms
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.schedule import pipeline
from costmodels.schedule.stages import layer_prefix
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
class OpenedParts:
    """What the terms of the slowest rank are made of."""

    problem: Problem
    breakdown: Breakdown
    layers: LayerTerms
    experts: ExpertLayerTerms | None
    m: int
    """Micro-batches that the rank runs."""
    n_layers: int
    """Its layers."""
    routed: float
    """Those of them with experts."""
    full: int
    """Fully recomputed layers of it."""
    routed_full: float
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


def opened_parts(problem: Problem, breakdown: Breakdown) -> OpenedParts:
    """Return what the terms of a breakdown are made of."""
    rows, x, rank = breakdown.rows, breakdown.layout, breakdown.critical_stage
    chunks, stages = x.chunks_of(rank), x.stages_of(rank)
    run = pipeline_run(rows, x)
    flush_s, at_once_s = pipeline.flush_times_s([run, replace(run, hop_s=(0.0,) * x.pp)])
    forward, backward = virtual_stage_times(rows, x)
    routed = routed_full = 0.0
    if rows.layers.experts:
        routing, longest = problem.shape.expert_layers, max(x.stage_layers)
        prefix = layer_prefix(x.stage_layers, stages, routing, longest)
        routed, routed_full = prefix[-1], prefix[min(longest, x.recompute_layers)]
    return OpenedParts(
        problem,
        breakdown,
        rows.layers,
        rows.layers.experts,
        x.n_passes,
        sum(chunks),
        routed,
        sum(min(c, x.recompute_layers) for c in chunks),
        routed_full,
        x.has_embedding(rank),
        x.has_head(rank),
        flush_s,
        at_once_s,
        sum(forward[j] + backward[j] for j in stages),
    )


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
        numbers[name] = deck.add(
            f"time-{name}",
            f"{name}: {term.title}",
            Amount(value, "s"),
            Derivation(
                formula,
                substituted,
                term.source,
                inputs=term_numbers(term, problem, plan),
                method=name,
            ),
        )
    return numbers


def _s(array: Any) -> str:
    return exact(float(array.item() if hasattr(array, "item") else array), "s")


def _both(terms: Any) -> str:
    """Return forward and backward of a term of a layer as a sum."""
    return f"({_s(terms.forward_s)} + {_s(terms.backward_s)})"


def _in_layers(name: str) -> Callable[[OpenedParts], Substituted]:
    """Return the formula of what every layer takes, dense and expert layers apart."""

    def formula(p: OpenedParts) -> Substituted:
        dense = getattr(p.layers, name)
        if p.experts is None or not p.routed or not hasattr(p.experts, name):
            return f"{p.m} × {p.n_layers} × {_both(dense)}"
        return (
            "m (L_d (forward + backward) + L_e (forward + backward)), dense and expert layers",
            f"{p.m} × ({exact(p.n_layers - p.routed)} × {_both(dense)} + {exact(p.routed)} ×"
            f" {_both(getattr(p.experts, name))})",
        )

    return formula


def _routed(p: OpenedParts) -> str:
    assert p.experts is not None  # the term is not zero
    return f"{p.m} × {exact(p.routed)} × {_both(p.experts.routed)}"


def _head(p: OpenedParts) -> str:
    layers = p.layers
    waits = [x for x in (layers.head_tp, layers.head_cp, layers.head_ep) if x.total_s.item()]
    less = "".join(f" − {_both(x)}" for x in waits)
    return f"{p.m} × ({_both(layers.head)}{less})"


def _embedding(p: OpenedParts) -> str:
    wait = p.layers.embedding_tp
    less = f" − {_both(wait)}" if wait.total_s.item() else ""
    return f"{p.m} × ({_both(p.layers.embedding)}{less})"


def _recompute(p: OpenedParts) -> str:
    layers, x = p.layers, p.layout
    passes, waits = [], []
    modules = selective_again(p.breakdown.rows, x, p.breakdown.critical_stage)
    if p.full:
        passes.append(f"{p.full} × {_s(layers.recompute_full_s)}")
    if p.routed_full and p.experts:
        more = p.experts.recompute_full_s - layers.recompute_full_s
        passes.append(f"{exact(p.routed_full)} × ({_s(more)})")
    if modules.forward_s:
        passes.append(_s(modules.forward_s))
    for value in (_again_tp(p), _again_cp(p), _again_ep(p)):
        if value:
            waits.append(f" − {_s(value)}")
    return f"{p.m} × ({total(passes)}{''.join(waits)})"


def _again_tp(p: OpenedParts) -> float:
    """Return the tp waits of what runs again, seconds per micro-batch."""
    ahead = p.layers.tp_forward.exposed_s.item()
    modules = selective_again(p.breakdown.rows, p.layout, p.breakdown.critical_stage)
    recompute_s: float = p.full * ahead + modules.tp_exposed_s
    if p.experts:
        recompute_s += p.routed_full * (p.experts.tp_forward.exposed_s.item() - ahead)
    return recompute_s


def _again_cp(p: OpenedParts) -> float:
    """Return the cp waits of what runs again, seconds per micro-batch."""
    core = p.n_layers if "core_attn" in p.layout.recompute_modules else 0
    core += p.problem.shape.mtp_layers * p.last if core else 0
    value: float = (p.full + core) * p.layers.cp_forward.exposed_s.item()
    return value


def _again_ep(p: OpenedParts) -> float:
    """Return the exchange of tokens in what runs again, seconds per micro-batch."""
    modules = selective_again(p.breakdown.rows, p.layout, p.breakdown.critical_stage)
    once = p.experts.exchange.forward_s.item() if p.experts else 0.0
    value: float = p.routed_full * once + modules.exchange_s
    return value


def _host(p: OpenedParts) -> Formula:
    stalls_s = stalled(p.breakdown.rows).total_s.item()
    dense, text = _s(p.layers.host.total_s), TERMS["host"].equation
    if p.experts is None or not p.routed:
        inner = (
            f"{p.n_layers} × ({dense} + {_s(stalls_s)})" if stalls_s else f"{p.n_layers} × {dense}"
        )
        return text + (" + stalls" if stalls_s else ""), f"{p.m} × {inner}"
    sums = [f"{exact(p.n_layers - p.routed)} × {dense}"]
    sums += [f"{exact(p.routed)} × {_s(p.experts.host.total_s)}"]
    sums += [f"{p.n_layers} × {_s(stalls_s)}"] if stalls_s else []
    return text + ", dense and expert layers", f"{p.m} × ({total(sums)})"


def _tp(p: OpenedParts) -> str:
    layers, x, rank = p.layers, p.layout, p.breakdown.critical_stage
    ahead, after = layers.tp_forward.exposed_s.item(), layers.tp_backward.exposed_s.item()
    sums = [f"{exact(p.n_layers - p.routed)} × ({_s(ahead)} + {_s(after)})"]
    if p.experts and p.routed:
        more = p.experts
        waits = f"{_s(more.tp_forward.exposed_s)} + {_s(more.tp_backward.exposed_s)}"
        sums.append(f"{exact(p.routed)} × ({waits})")
    recompute_s = _again_tp(p)
    sums += [_s(recompute_s)] if recompute_s else []
    if x.has_embedding(rank) and layers.embedding_tp.total_s.item():
        sums.append(_s(layers.embedding_tp.total_s))
    if x.has_head(rank) and layers.head_tp.total_s.item():
        sums.append(_s(layers.head_tp.total_s))
    return f"{p.m} × ({total(sums)})"


def _cp(p: OpenedParts) -> str:
    ahead, after = p.layers.cp_forward.exposed_s.item(), p.layers.cp_backward.exposed_s.item()
    sums = [f"{p.n_layers} × ({_s(ahead)} + {_s(after)})"]
    recompute_s = _again_cp(p)
    sums += [_s(recompute_s)] if recompute_s else []
    sums += [_s(p.layers.head_cp.total_s)] if p.last and p.layers.head_cp.total_s.item() else []
    return f"{p.m} × ({total(sums)})"


def _ep(p: OpenedParts) -> str:
    assert p.experts is not None  # the term is not zero
    sums = [f"{exact(p.routed)} × {_both(p.experts.exchange)}"]
    recompute_s = _again_ep(p)
    sums += [_s(recompute_s)] if recompute_s else []
    sums += [_s(p.layers.head_ep.total_s)] if p.last and p.layers.head_ep.total_s.item() else []
    return f"{p.m} × ({total(sums)})"


def _overlap(p: OpenedParts) -> str:
    rows, slow = p.breakdown.rows, p.problem.stack.overlap_slowdown
    exposed, hidden = data_parallel_exposed(rows, stage_times(rows))
    kind = int((exposed + slow * hidden)[:, 0].argmax())
    sums = []
    dense = p.layers.tax.total_s.item()
    if dense and p.n_layers - p.routed:
        sums.append(f"{p.m} × {exact(p.n_layers - p.routed)} × {_s(dense)}")
    if p.experts and p.routed and p.experts.tax.total_s.item():
        sums.append(f"{p.m} × {exact(p.routed)} × {_s(p.experts.tax.total_s)}")
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
    return (
        TERMS["optimizer"].equation + (", routed experts apart" if len(moved) > 1 else ""),
        f"({total(sums)}) / ({exact(eff.hbm_bytes_per_s, 'B/s')} × {eff.efficiency.hbm_frac:g})",
    )


def optimizer_bytes(p: OpenedParts) -> tuple[list[float], list[str]]:
    """Return what the optimizer moves on the slowest kind of rank, bytes: values and sums."""
    from costmodels.offload.optimizer import gradients_leave

    rows, x, grad = p.breakdown.rows, p.layout, p.problem.job.recipe.grad_bytes
    offloaded_bytes = (grad + 24.0 + (2.0 * grad if gradients_leave(p.problem.stack) else 0.0)) * (
        x.optimizer_offload
    )

    def part(params: float, shard: float) -> tuple[float, str]:
        of_grads, of_states = (shard if x.zero >= stage else 1.0 for stage in (2, 1))
        value = params * (grad / of_grads + (4.0 * grad + 30.0 - offloaded_bytes) / of_states)
        less = f" − {offloaded_bytes:g}" if offloaded_bytes else ""
        text = (
            f"{exact(round(params))} × ({grad:g} B / {of_grads:g} + (4 × {grad:g} B + 30 B"
            f"{less}) / {of_states:g})"
        )
        return value, text

    dense, routed = rows.shapes.params[0], rows.shapes.experts
    if routed is None:
        results = [part(dense.max().item(), x.dp_shard)]
    else:
        shard = routed.data_groups.shard.n_ranks.item()
        kinds = [
            (part(a.item(), x.dp_shard), part(b.item(), shard))
            for a, b in zip(dense, routed.params[0], strict=True)
        ]
        moved = [one[0] + other[0] for one, other in kinds]
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
