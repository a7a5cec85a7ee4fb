"""Plans scored per second per core, and where a solve spends its time.

    python benchmarks/bench_score.py

The reference in the same run is the scalar evaluation of the same plans one by one: ratios
against it carry over between machines, absolute figures do not.
"""

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from costmodels.shape_terms import shape_terms
from costmodels.step import join, peak_bytes, score, step_times
from planner.inputs import load_cluster, load_model
from planner.options import SolveOptions
from planner.solving import make_problem
from searches.plan_space import free_axes, legal_masks, plan_tables
from searches.rules import Context
from searches.search import TILE_ROWS, exact_step_s, search
from searches.shape_space import legal_shapes

PAIRS = (("llama3-405b", "h100-x16384"), ("llama3-70b", "h100-x512"), ("gpt3-175b", "a100-x1024"))


def context_of(model: str, cluster: str) -> Context:
    given = load_model(model), load_cluster(cluster)
    options = SolveOptions()
    problem = make_problem(*given, options)
    return Context(problem, options.search_options(), problem.pool.n_devices)


def seconds(run, repeat: int = 3) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def score_rate(model: str, cluster: str) -> None:
    """Full model, both numbers of every plan, on the pair's own legal plans repeated to a million."""
    context = context_of(model, cluster)
    shapes = legal_shapes(context).shapes
    axes = free_axes(context, shapes)
    masks, _, _ = legal_masks(context, shapes, axes)
    terms = shape_terms(context.problem, shapes)
    (table,) = plan_tables(context, shapes, axes, masks, 10**9)
    repeats = -(-(10**6) // len(table))
    big = table.take(np.tile(np.arange(len(table)), repeats)[: 10**6])
    tiles = [big.take(slice(i, i + TILE_ROWS)) for i in range(0, len(big), TILE_ROWS)]
    fast = seconds(lambda: [score(context.problem, terms, tile) for tile in tiles])
    some = [table.take(np.array([i])) for i in range(0, len(table), max(1, len(table) // 100))]
    slow = seconds(lambda: [score(context.problem, terms, one) for one in some], 1) / len(some)
    rate = len(big) / fast
    print(f"{model} on {cluster}: {rate / 1e6:.2f} M plans/s/core; one by one {1 / slow:,.0f}/s; "
          f"ratio {rate * slow:,.0f}")


def solve_shares(model: str, cluster: str) -> None:
    context = context_of(model, cluster)
    problem = context.problem
    solver = seconds(lambda: legal_shapes(context))
    shapes = legal_shapes(context).shapes
    axes = free_axes(context, shapes)
    masks, _, _ = legal_masks(context, shapes, axes)
    terms = shape_terms(problem, shapes)
    tables = list(plan_tables(context, shapes, axes, masks, TILE_ROWS))
    cross = seconds(lambda: list(plan_tables(context, shapes, axes, masks, TILE_ROWS)))
    shape_s = seconds(lambda: shape_terms(problem, shapes))
    rows = [join(problem, terms, table) for table in tables]
    prune = seconds(lambda: [peak_bytes(row) for row in rows])
    price = seconds(lambda: [step_times(row) for row in rows])
    outcome = search(context)
    layouts = [c.layout for c in outcome.finalists]
    exact = seconds(lambda: exact_step_s(problem, layouts), 1)
    whole = seconds(lambda: search(context))
    parts = {"CP-SAT": solver, "crossing": cross, "shape terms": shape_s, "memory": prune,
             "time": price, "recurrence": exact}  # fmt: skip
    text = ", ".join(f"{name} {value * 1e3:.1f} ms ({value / whole:.0%})" for name, value in parts.items())
    print(f"{model} on {cluster}: search {whole * 1e3:.0f} ms, {outcome.n_legal:,} plans: {text}")


if __name__ == "__main__":
    for pair in PAIRS:
        score_rate(*pair)
    for pair in PAIRS:
        solve_shares(*pair)
