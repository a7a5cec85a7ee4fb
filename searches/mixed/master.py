"""Which pipelines share the pools: CP-SAT over kinds of pipelines and how many of each.

    maximise   sum_v b_v D_v
    subject to sum_v a_v D_v <= N  (each pool)
               D_v = 0 or low_v <= D_v <= high_v, a multiple of its expert group; at most K used

b_v are the sequences that one pipeline of kind v gets done within the step in question.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from searches.cp_sat import cp_model, make_solver, solve_model

WORK = 0.4
"""Limit of one solve in CP-SAT's deterministic seconds."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Pipelines of one kind in the master problem."""

    devices: tuple[int, ...]
    """Of each pool, one pipeline."""
    done: int
    """Sequences that one pipeline gets done."""
    least: int
    """Fewest pipelines: with fewer the optimizer's states do not fit."""
    most: int
    multiple: int = 1
    kinds: int = 1
    """Kinds of a plan that it stands for."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the master found."""

    counts: tuple[int, ...]
    """Pipelines of each candidate; empty where nothing reaches the target."""
    reached: int
    """Sequences that they get done."""
    bound: int
    """More sequences than this no choice gets done."""


def choose(
    candidates: Sequence[Candidate],
    sizes: Sequence[int],
    most_kinds: int,
    target: int,
    excluded: Sequence[tuple[tuple[int, int], ...]] = (),
) -> Choice:
    """Return the pipelines that get most sequences done, as far as the target at least.

    `excluded` are choices that are known: (candidate, pipelines) of every kind in use.
    """
    model = cp_model().CpModel()
    counts, used = [], []
    for v, one in enumerate(candidates):
        low, high = -(-one.least // one.multiple), one.most // one.multiple
        domain = cp_model().Domain.from_intervals([[0, 0], [max(1, low), max(1, low, high)]])
        counts.append(model.new_int_var_from_domain(domain, f"d{v}"))
        used.append(model.new_bool_var(f"u{v}"))
        model.add(counts[v] >= max(1, low)).only_enforce_if(used[v])
        model.add(counts[v] == 0).only_enforce_if(~used[v])
    for k, size in enumerate(sizes):
        terms = [
            one.devices[k] * one.multiple * counts[v]
            for v, one in enumerate(candidates)
            if one.devices[k]
        ]
        if terms:
            model.add(sum(terms) <= size)
    model.add(sum(one.kinds * x for one, x in zip(candidates, used, strict=True)) <= most_kinds)
    for known in excluded:
        differs = []
        names = dict(known)
        for v, n in names.items():
            flag = model.new_bool_var("")
            model.add(counts[v] != n // candidates[v].multiple).only_enforce_if(flag)
            differs.append(flag)
        others = [used[v] for v in range(len(candidates)) if v not in names]
        model.add_bool_or([*differs, *others])
    done = sum(one.done * one.multiple * counts[v] for v, one in enumerate(candidates))
    model.add(done >= target)
    model.maximize(done)
    solver = make_solver()
    solver.parameters.max_deterministic_time = WORK
    status = solve_model(solver, model, None)
    if status == cp_model().INFEASIBLE:
        return Choice((), 0, target - 1)
    bound = int(solver.best_objective_bound)
    if status not in (cp_model().OPTIMAL, cp_model().FEASIBLE):
        return Choice((), 0, bound)
    values = tuple(
        int(solver.value(x)) * one.multiple for x, one in zip(counts, candidates, strict=True)
    )
    return Choice(values, int(solver.objective_value), bound)
