"""What a pipeline rank always holds, by kind: weights, gradients, states of the optimizer."""

from dataclasses import dataclass

import numpy as np

from costmodels.layers.params import expert_params
from costmodels.memory import StateParts, state_parts_per_param
from costmodels.optimizers.groups import needs_groups
from costmodels.parameters import embedding_params, head_params
from costmodels.tuning.adapters import expert_adapter_params, layer_adapter_params
from planner.render.plan_view.cards import Amount, CardNumber, Deck, Derivation
from planner.render.plan_view.opened.memory import StageParts, group_state_bytes
from planner.render.plan_view.quantities import exact, total

Params = list[tuple[float, float]]
"""How often, and parameters of one."""
SOURCE = "costmodels.memory.state_parts_per_param"
NEGLIGIBLE_FRAC = 1e-9
"""Of all states: what rounding leaves of weights where there are none."""


@dataclass(frozen=True, slots=True)
class HeldStates:
    """Bytes of a rank by kind; they add up to the term `states`."""

    weights: float
    grads: float
    optimizer: float


@dataclass(frozen=True, slots=True)
class _Trained:
    """Trained parameters that are sharded alike."""

    params: Params
    n_shard: float
    per_param: StateParts

    @property
    def count(self) -> float:
        return sum(n * one for n, one in self.params)


def _trained(p: StageParts) -> list[_Trained]:
    """Return the trained parameters of a rank: all but routed experts, then those."""
    problem, x, shape = p.problem, p.breakdown.layout, p.problem.shape
    tuning, tp = problem.job.tuning, np.array([x.tp], dtype=np.int32)
    dense: Params = []
    for k in p.kinds:
        if tuning:
            one = layer_adapter_params(shape, tuning, tp, routed=k.kind.is_routed)
        else:
            one = k.kind.params(shape, tp)
        dense.append((k.count, one.item()))
    if p.first and not tuning:
        dense.append((1.0, embedding_params(shape, problem.job.seq_len, tp).item()))
    if p.last and not tuning:
        dense.append((1.0, head_params(shape, tp, np.array([x.pp])).item()))
    groups = [(dense, float(x.dp_shard))]
    if routed := p.breakdown.rows.shapes.experts:
        n = sum(k.count for k in p.kinds if k.kind.is_routed)
        if not tuning:
            n += p.last * shape.mtp_layers * bool(shape.expert_layers[-1])
        if tuning:
            expert = expert_adapter_params(shape, tuning, x.ep, x.etp).item()
        else:
            expert = expert_params(shape, x.ep, x.etp).item()
        groups.append(([(n, expert)], float(routed.data_groups.shard.n_ranks.item())))
    return [
        _Trained(params, shard, _per_param(p, shard))
        for params, shard in groups
        if any(n for n, _ in params)
    ]


def _per_param(p: StageParts, n_shard: float) -> StateParts:
    x = p.breakdown.layout
    return state_parts_per_param(
        p.problem.job.recipe,
        x.zero,
        n_shard,
        int(x.optimizer_offload),
        hpz=x.hpz,
        stack=p.problem.stack,
    )


def held_states(p: StageParts) -> HeldStates:
    """Return what a rank holds of weights, gradients and optimizer, bytes.

    Gradients and optimizer are those of the trained parameters; weights are the rest of the term
    `states`: frozen and quantised ones among them.
    """
    trained = _trained(p)
    grads = sum(t.per_param.grads.item() * t.count for t in trained)
    optimizer = sum(t.per_param.optimizer.item() * t.count for t in trained)
    if _has_groups(p):
        optimizer += group_state_bytes(p)
    states = p.breakdown.stages[p.rank]["states"]
    weights = states - grads - optimizer
    return HeldStates(weights if weights > NEGLIGIBLE_FRAC * states else 0.0, grads, optimizer)


def _has_groups(p: StageParts) -> bool:
    job = p.problem.job
    return not job.tuning and needs_groups(job.recipe.optimizer)


def add_state_cards(deck: Deck, p: StageParts) -> dict[str, CardNumber]:
    """Add the cards of weights, gradients and optimizer of a rank; the numbers by kind."""
    held, trained = held_states(p), _trained(p)

    def products(kind: str) -> list[str]:
        return [
            f"{exact(getattr(t.per_param, kind).item(), 'B')} × ({_params_text(t.params)})"
            for t in trained
        ]

    optimizer = products("optimizer")
    if _has_groups(p):
        optimizer.append(f"({exact(group_state_bytes(p), 'B')})")
    whole = [f"{round(x):,} B" for x in (held.grads, held.optimizer)]
    states = f"{round(p.breakdown.stages[p.rank]['states']):,} B"
    per = "bytes of a parameter after sharding × trained parameters of the rank"
    texts = {
        "weights": ("states − gradients − optimizer", " − ".join([states, *whole])),
        "grads": (per, total(products("grads"))),
        "optimizer": (per, total(optimizer)),
    }
    names = {"weights": "weights", "grads": "gradients", "optimizer": "states of the optimizer"}
    return {
        kind: deck.add(
            f"held-{p.rank}-{kind}",
            f"{names[kind]} on stage {p.rank}",
            Amount(getattr(held, kind), "B"),
            Derivation(*texts[kind], SOURCE, method="states"),
        )
        for kind in names
    }


def _params_text(params: Params) -> str:
    return total(f"{exact(n)} × {exact(one)}" for n, one in params)
