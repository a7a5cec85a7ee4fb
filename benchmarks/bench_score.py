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

from costmodels.layers.layer_terms import layer_table
from costmodels.shape_terms import shape_terms
from costmodels.step import join, peak_bytes, score, step_times
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.specs.loader import load_cluster, load_model
from searches.pricing.layout_prices import exact_step_s
from searches.pricing.shape_tables import BLOCK_CELLS
from searches.rules import Context
from searches.search import search
from searches.space.free_axes import free_axes
from searches.space.plan_blocks import plan_blocks
from searches.space.plan_space import legal_masks
from searches.space.shape_space import legal_shapes
from searches.space.shards import make_shards

PAIRS = (
    ("llama3-405b", "h100-x16384"),
    ("llama3-70b", "h100-x512"),
    ("gpt3-175b", "a100-x1024"),
    ("deepseek-v3", "h800-x2048"),
)


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


def blocks_of(context: Context) -> list:
    """Return (shape terms, layer table, block) for the legal plans of the pair."""
    found = []
    for shard in make_shards(context, legal_shapes(context).shapes):
        axes = free_axes(context, shard.shapes)
        masks, _, _ = legal_masks(context, shard.shapes, axes)
        terms = shape_terms(context.problem, shard.shapes, axes.shardings)
        layers = layer_table(context.problem, shard.shapes, axes.mbs, axes.recompute_modules)
        for block in plan_blocks(context, shard.shapes, axes, masks, BLOCK_CELLS):
            found.append((terms, layers, block))
    return found


def score_rate(model: str, cluster: str) -> None:
    """Price the pair's own legal plans: step time and memory of each, none pruned."""
    context = context_of(model, cluster)
    problem, blocks = context.problem, blocks_of(context)
    n = sum(np.count_nonzero(found.legal) for _, _, found in blocks)
    repeat = max(1, 10**6 // n)
    plans = [(terms, found.block, layers) for terms, layers, found in blocks] * repeat
    fast = seconds(lambda: [score(problem, *one) for one in plans]) / repeat
    one_by_one = [
        (terms, found.block.rows(cells[i : i + 1]))
        for terms, _, found in blocks[:: max(1, len(blocks) // 10)]
        if len(cells := np.flatnonzero(found.legal))
        for i in range(0, len(cells), max(1, len(cells) // 10))
    ]
    slow = seconds(lambda: [score(problem, terms, one) for terms, one in one_by_one], 1)
    slow /= len(one_by_one)
    print(
        f"{model} on {cluster}: {n:,} plans, {n / fast / 1e6:.2f} M plans/s/core; one by one "
        f"{1 / slow:,.0f}/s; ratio {n / fast * slow:,.0f}"
    )


def solve_shares(model: str, cluster: str) -> None:
    """Say where a search spends its time."""
    context = context_of(model, cluster)
    problem = context.problem
    solver = seconds(lambda: legal_shapes(context))
    blocks = seconds(lambda: blocks_of(context)) - solver
    found = blocks_of(context)
    rows = [join(problem, terms, block.block, layers) for terms, layers, block in found]
    prune = seconds(lambda: [peak_bytes(row) for row in rows])
    price = seconds(lambda: [step_times(row) for row in rows])
    outcome = search(context)
    layouts = [c.layout for c in outcome.finalists]
    exact = seconds(lambda: exact_step_s(problem, layouts), 1)
    whole = seconds(lambda: search(context))
    parts = {
        "CP-SAT": solver,
        "terms and masks": blocks,
        "memory": prune,
        "time": price,
        "recurrence": exact,
    }
    text = ", ".join(
        f"{name} {value * 1e3:.1f} ms ({value / whole:.0%})" for name, value in parts.items()
    )
    print(f"{model} on {cluster}: search {whole * 1e3:.0f} ms, {outcome.n_legal:,} plans: {text}")


if __name__ == "__main__":
    for pair in PAIRS:
        score_rate(*pair)
    for pair in PAIRS:
        solve_shares(*pair)
