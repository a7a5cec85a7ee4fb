"""From which size on worker processes and Ray pay, as ratios against serial in the same run.

    python benchmarks/bench_executors.py [--no-ray] [--largest PLANS]

The shards of one large search are repeated until they hold the wanted number of legal plans. Each
executor starts from nothing (`cold`) and, started already, runs once more (`warm`). A ratio above
1 is faster than serial. Ratios carry over between machines with as many processors; absolute
figures do not.
"""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.specs.loader import load_cluster, load_model
from searches.executors.executor import (
    Executor,
    ProcessExecutor,
    RayExecutor,
    SerialExecutor,
    n_cpus,
)
from searches.pricing.shard_prices import search_shard
from searches.rules import Context
from searches.space.shape_space import legal_shapes
from searches.space.shards import Shard, count_plans, make_shards

SIZES = (20_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)


def large_shards() -> list[Shard]:
    """Return the shards of GPT-3 on 1,024 A100, interleaving up to 96 chunks, in mixed order."""
    given = load_model("gpt3-175b"), load_cluster("a100-x1024")
    options = SolveOptions(at_most={"vpp": 96})
    problem = make_problem(*given, options)
    context = Context(problem, options.search_options(), problem.pool.n_devices)
    return make_shards(context, legal_shapes(context).shapes)


def shards_of(pattern: list[Shard], n_plans: int) -> tuple[list[Shard], int]:
    """Return repeated shards that hold about `n_plans` plans, and how many they hold."""
    counts = [count_plans(shard) for shard in pattern]
    shards, total = [], 0
    while total < n_plans:
        i = len(shards) % len(pattern)
        shards.append(pattern[i])
        total += counts[i]
    return shards, total


def run_s(executor: Executor, shards: list[Shard]) -> tuple[float, list]:
    """Return the seconds and answers of one pass, group by group as a search does it."""
    start = time.perf_counter()
    executor.prepare(lambda enough: 0)
    answers: list = []
    group = executor.group_size
    for i in range(0, len(shards), group):
        answers += executor.map(search_shard, shards[i : i + group])
    return time.perf_counter() - start, answers


def same(found: list, wanted: list) -> bool:
    """Tell whether two lists of answers are equal to the last bit."""

    def numbers(answer) -> tuple:
        batches = (x.tobytes() for x in (answer.batches.least_s, answer.batches.n_fit))
        return answer.best, answer.rivals, answer.n_candidates, answer.rejected, *batches

    return [numbers(x) for x in found] == [numbers(x) for x in wanted]


def measure(make, shards: list[Shard]) -> tuple[float, float, list]:
    """Return seconds from nothing, seconds once started, and the answers."""
    executor = make()
    try:
        cold_s, answers = run_s(executor, shards)
        warm_s, again = run_s(executor, shards)
    finally:
        executor.close()
    assert same(answers, again)
    return cold_s, warm_s, answers


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--no-ray", action="store_true")
    options.add_argument("--largest", type=int, default=SIZES[-1])
    asked = options.parse_args()
    makers = {"processes": ProcessExecutor}
    if not asked.no_ray:
        makers["ray"] = RayExecutor
    pattern = large_shards()
    print(f"{n_cpus()} processors; serial in seconds, others as serial time / own time")
    print(f"{'plans':>12} {'shards':>7} {'serial s':>9}", end="")
    print("".join(f" {name + ' cold':>15} {name + ' warm':>15}" for name in makers))
    pays: dict[str, int] = {}
    """The least size from which on every larger one was faster than serial."""
    for size in SIZES:
        if size > asked.largest:
            break
        shards, n_plans = shards_of(pattern, size)
        serial_s, wanted = run_s(SerialExecutor(), shards)
        line = f"{n_plans:>12,} {len(shards):>7} {serial_s:>9.2f}"
        for name, make in makers.items():
            cold_s, warm_s, answers = measure(make, shards)
            assert same(answers, wanted)
            line += f" {serial_s / cold_s:>15.2f} {serial_s / warm_s:>15.2f}"
            if cold_s < serial_s:
                pays.setdefault(name, n_plans)
            else:
                pays.pop(name, None)
        print(line, flush=True)
    for name in makers:
        print(
            f"{name}: pays from about {pays[name]:,} plans"
            if name in pays
            else f"{name}: does not pay up to {asked.largest:,} plans"
        )


if __name__ == "__main__":
    main()
