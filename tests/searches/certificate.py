"""A search's certificate, checked the slow way: every plan of the space, one by one, in scalars.

A program of its own: the loops and rules of `oracle`, the prices of `oracle_physics` and
`oracle_models`, and a lower bound of its own that decides which plans need their pipeline
simulated. Of the package it looks at what the search answered, and at the bounds by which it says
that it left plans out.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from costmodels.axes import CP_COMMS, RANK_ORDERS, SCHEDULES
from costmodels.plans import Layout
from costmodels.problem import Problem
from searches.pricing.outcome import Outcome
from searches.rules import Context
from searches.space.free_axes import batch_sizes
from searches.space.shape_space import legal_shapes
from searches.space.shards import batch_bounds_s
from tests.searches import oracle
from tests.searches import oracle_models as models
from tests.searches import oracle_physics as physics

ROUNDING = 1e-9
Batch = tuple[object, ...]
"""What plans of one batch share: the shape, mbs and mode."""


@dataclass(frozen=True)
class Checked:
    """What the program counted."""

    n_legal: int
    n_fit: int
    n_excluded: int
    n_simulated: int
    """Plans whose own lower bound left open whether they beat the first."""
    first_s: float
    """The least exact step of all; inf where nothing fits."""


def batch_of(plan: Layout) -> Batch:
    return (
        plan.tp,
        plan.pp,
        plan.dp,
        plan.vpp,
        plan.split,
        plan.cp,
        plan.cp_comm,
        plan.ep,
        plan.etp,
        plan.schedule,
        plan.rank_order,
        plan.mbs,
        plan.sp + (plan.sp and plan.tp_overlap),
        plan.switches,
    )


def bounds_of(context: Context) -> dict[Batch, float]:
    """Return what the search says that the plans of each batch take at least, seconds."""
    s = legal_shapes(context).shapes
    least, sizes = batch_bounds_s(context, s), batch_sizes(context).tolist()
    columns = (s.tp, s.pp, s.dp, s.vpp, s.split, s.cp, s.cp_comm, s.ep, s.etp, s.schedule)
    rows = zip(*(x.tolist() for x in (*columns, s.rank_order)), strict=True)
    sp = range(least.shape[2] // len(oracle.mode_choices(context.options)))
    modes = [(n, switches) for switches in oracle.mode_choices(context.options) for n in sp]
    return {
        (
            *row[:4],
            oracle.SPLITS[row[4]],
            row[5],
            CP_COMMS[row[6]],
            *row[7:9],
            SCHEDULES[row[9]],
            RANK_ORDERS[row[10]],
            mbs,
            *mode,
        ): float(least[i, j, k])
        for i, row in enumerate(rows)
        for j, mbs in enumerate(sizes)
        for k, mode in enumerate(modes)
    }


def legal_plans(context: Context) -> Iterator[Layout]:
    """Yield every legal plan that the search counts, by plain loops."""
    problem, options = context.problem, context.options
    proven: dict[object, bool] = {}
    for shape in oracle.all_shapes(problem, options, context.n_devices):
        if oracle.broken_shape_rule(problem, options, shape):
            continue
        for plan in oracle.all_layouts(problem, options, shape):
            if oracle.is_no_candidate(problem, options, plan):
                continue
            if oracle.broken_plan_rule(problem, options, plan):
                continue
            if not oracle.is_dominated(problem, options, plan, proven):
                yield plan


def busiest_s(problem: Problem, plan: Layout, one: oracle.Micro) -> float:
    """Return a lower bound of the exact step: the busiest rank without a moment of waiting."""
    if isinstance(one, models.Micro):
        pairs = [models.rank_s(problem, plan, one, rank) for rank in range(plan.pp)]
        outside = models.outside_s(problem, plan, one)
    else:
        pairs = [physics.rank_s(problem, plan, one, rank) for rank in range(plan.pp)]
        outside = physics.outside_pipeline_s(problem, plan, one)
    return physics.straggler(problem, plan) * plan.n_micro * max(map(sum, pairs)) + outside


def check_certificate(context: Context, outcome: Outcome) -> Checked:
    """Walk the space and assert what the outcome claims of it; return the counts."""
    problem, known = context.problem, dict[object, oracle.Micro]()
    least, usable = bounds_of(context), oracle.usable_bytes(context.problem)
    first_s = outcome.finalists[0].step_s if outcome.finalists else float("inf")
    counts = dict.fromkeys(("legal", "fit", "excluded", "simulated", "below"), 0)
    best = float("inf")
    with remembered():
        for plan in legal_plans(context):
            key = (
                plan.tp,
                plan.cp,
                plan.cp_comm,
                plan.mbs,
                plan.sp,
                plan.ep,
                plan.etp,
                plan.tp_overlap,
                plan.switches,
                models.is_special(problem, plan.schedule),
            )
            problem = oracle.as_overlapped(context.problem, plan)
            if key not in known:
                known[key] = oracle.micro_batch(problem, plan)
            one = known[key]
            priced = oracle.price(problem, plan, one)
            at_least = busiest_s(problem, plan, one)
            fits = priced.peak_bytes <= usable and oracle.host_holds(problem, plan)
            named = least[batch_of(plan)]
            counts["legal"] += 1
            counts["fit"] += fits
            counts["below"] += priced.closed_form_s < outcome.bound_s * (1 - ROUNDING)
            # A bound holds for every plan of its batch, whether it fits or not.
            assert named <= at_least * (1 + ROUNDING) or named <= exact(problem, plan, one), plan
            assert named <= priced.closed_form_s * (1 + ROUNDING), plan
            if named > outcome.bound_s:
                counts["excluded"] += 1
                assert priced.closed_form_s > outcome.bound_s, plan
            if fits and at_least < first_s * (1 - ROUNDING):
                counts["simulated"] += 1
                step_s = exact(problem, plan, one)
                assert step_s >= first_s * (1 - ROUNDING), plan
                best = min(best, step_s)
    over = outcome.rejected_plans.get("MEM001", 0)
    assert counts["legal"] == outcome.n_legal
    assert counts["excluded"] == outcome.n_excluded
    assert outcome.n_fit + over + outcome.n_excluded == counts["legal"]
    assert outcome.n_fit <= counts["fit"]
    # Whatever is faster than the bound by its closed form has a price.
    assert counts["below"] <= outcome.n_fit + over
    assert bool(outcome.finalists) == (counts["fit"] > 0)
    if outcome.finalists:
        mine = outcome.finalists[0].layout
        assert oracle.exact_step_s(problem, mine) == pytest.approx(first_s, rel=ROUNDING)
        best = min(best, first_s)
    n = (counts[name] for name in ("legal", "fit", "excluded", "simulated"))
    return Checked(*n, best)


def exact(problem: Problem, plan: Layout, one: oracle.Micro) -> float:
    """Return the step with every block simulated, of a plan whose micro-batch is known."""
    if isinstance(one, models.Micro):
        return models.exact_step_s(problem, plan, one)
    flush = physics.simulated_flush_s(problem, plan, one)
    slow = physics.straggler(problem, plan)
    return slow * flush + physics.outside_pipeline_s(problem, plan, one)


def with_bounds(context: Context, n_finalists: int, bound: bool = True) -> Context:
    """Return the search with its bounds on, or off."""
    options = replace(context.options, n_finalists=n_finalists, bound=bound)
    return replace(context, options=options)


# Prices that many plans share ------------------------------------------------------------------


def _of_states(problem: Problem, plan: Layout, *rest: object) -> object:
    """Return what the traffic and the states of a plan depend on."""
    return (
        plan.tp,
        plan.pp,
        plan.dp,
        plan.vpp,
        plan.cp,
        plan.ep,
        plan.etp,
        plan.stage_layers,
        plan.zero,
        plan.shard,
        plan.rank_order,
        plan.schedule,
        plan.dp_overlap,
        plan.optimizer_offload,
        plan.hpz,
        *rest,
    )


def _of_messages(problem: Problem, plan: Layout, message_bytes: float) -> object:
    return plan.tp, plan.pp, plan.dp, plan.cp, plan.rank_order, message_bytes


def _of_rank(problem: Problem, plan: Layout, one: oracle.Micro, rank: int) -> object:
    """Return what a micro-batch of a rank depends on: nothing of the sharding."""
    return (
        plan.tp,
        plan.pp,
        plan.dp,
        plan.vpp,
        plan.cp,
        plan.cp_comm,
        plan.ep,
        plan.etp,
        plan.stage_layers,
        plan.rank_order,
        plan.schedule,
        plan.mbs,
        plan.sp,
        plan.recompute,
        plan.recompute_layers,
        plan.recompute_modules,
        plan.tp_overlap,
        plan.activation_offload_layers,
        plan.switches,
        rank,
    )


SHARED: tuple[tuple[Any, str, Callable[..., object]], ...] = (
    (physics, "hops_s", _of_messages),
    (physics, "rank_s", _of_rank),
    (models, "rank_s", _of_rank),
    *(
        (physics, name, _of_states)
        for name in (
            "passes",
            "optimizer_s",
            "tied_embedding_s",
            "overhead_bytes",
            "unsharded_bytes",
            "host_holds",
            "rank_params",
        )
    ),
    *(
        (models, name, _of_states)
        for name in (
            "both_passes",
            "optimizer_s",
            "shared_s",
            "communicators",
            "rank_params",
            "rank_experts",
            "unsharded_bytes",
        )
    ),
)
"""Functions of a plan, and what of it decides their value: for one problem."""


@contextmanager
def remembered() -> Iterator[None]:
    """Evaluate the functions of `SHARED` once for every distinct value that decides them."""

    def once(run: Callable[..., object], key: Callable[..., object]) -> Callable[..., object]:
        found: dict[object, object] = {}

        def known(*args: object) -> object:
            at = key(*args)
            if at not in found:
                found[at] = run(*args)
            return found[at]

        return known

    with pytest.MonkeyPatch.context() as patch:
        for module, name, key in SHARED:
            patch.setattr(module, name, once(getattr(module, name), key))
        yield
