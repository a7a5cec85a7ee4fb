"""Many full searches of neighbouring problems in one process: what a point of a sweep takes.

    python benchmarks/bench_sweep.py [--points 1000] [--any] [--fresh 20] [--processes 2] [--json]

Llama-3 70B on 256 to 4,096 H100 x memory x scale-up domain x network ports x batch: direct calls
of `solve_inputs`, best plan and runner-up, without any file, row or elasticity. Points with the
same model and number of devices stand side by side, as in a sweep, and share work
(`searches.pricing.shared_work`); `--fresh` of them, evenly spread, are also searched with nothing
shared, and must give the same result, byte for byte; `memory_ratio` is what a point alone takes
over what it takes after others that differ in memory alone. Times are CPU seconds of the searches
alone, so that a busy machine changes them little; points per second is by the clock, over all
processes.
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from planner.solver.answer.result import Result
from planner.solver.execution import Execution
from planner.solver.request import SolveRequest
from planner.solver.solve import solve_inputs
from planner.solver.sources import read_inputs
from searches.executors.executor import SerialExecutor
from searches.pricing.shared_work import SharedWork

NODES = (32, 64, 128, 256, 512)
MEMORY_GIB = (64, 80, 96, 120, 144)
DOMAINS = (8, 16, 32, 64)
PORTS = (4, 8, 16)
BATCHES = (1024, 2048, 512, 1536)
"""Sequences a step: the first for up to 300 points, the others for more."""


class Point(NamedTuple):
    """What differs from one search to the next."""

    nodes: int
    batch: int
    domain: int
    memory_gib: int
    ports: int


def points(n: int) -> list[Point]:
    """Return the first n points, those with the same number of devices side by side."""
    axes = (DOMAINS, MEMORY_GIB, PORTS)
    found = [
        Point(nodes, batch, *rest)
        for batch in BATCHES
        for nodes in NODES
        for rest in product(*axes)
    ]
    return sorted(islice(found, n), key=lambda p: (NODES.index(p.nodes), found.index(p)))


def search_point(point: Point, framework: str, shared: SharedWork | None) -> tuple[Result, float]:
    """Return the result of one point and the CPU seconds of its search."""
    accelerator = {"like": "h100-sxm-80gb", "memory": f"{point.memory_gib} GiB"}
    model, cluster = read_inputs(
        "llama3-70b",
        "h100-x512",
        (
            ("training.global_batch", point.batch),
            ("pools.0.nodes", point.nodes),
            ("pools.0.accelerator", accelerator),
            ("pools.0.scale_up_domain", point.domain),
            ("pools.0.nics_per_node", point.ports),
        ),
    )
    options = SolveRequest.of(top=2, framework=framework).options()
    start = time.process_time()
    result = solve_inputs(model, cluster, options, Execution(SerialExecutor(), shared=shared))
    return result, time.process_time() - start


def sweep(task: tuple[Sequence[Point], str]) -> tuple[list[float], int, int, int]:
    """Return CPU seconds of each point, peak memory, and tables that were found and made."""
    some, framework = task
    shared = SharedWork()
    took = [search_point(point, framework, shared)[1] for point in some]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return took, peak, shared.n_found, shared.n_made


def compared(some: Sequence[Point], framework: str) -> tuple[float, float, float]:
    """Return CPU seconds a point without and with shared work; the results are the same.

    The last are those after points that differ in memory alone.
    """
    shared, alone_s, shared_s, memory_s = SharedWork(), 0.0, 0.0, 0.0
    for point in some:
        alone, took = search_point(point, framework, None)
        alone_s += took
        search_point(point._replace(ports=PORTS[0] + PORTS[-1] - point.ports), framework, shared)
        neighbour, took = search_point(point, framework, shared)
        shared_s += took
        work = SharedWork()
        for memory_gib in (m for m in MEMORY_GIB[1:4] if m != point.memory_gib):
            search_point(point._replace(memory_gib=memory_gib), framework, work)
        roomier, took = search_point(point, framework, work)
        memory_s += took
        texts = {json.dumps(one.to_json()) for one in (alone, neighbour, roomier)}
        if len(texts) > 1:
            raise SystemExit(f"{point}: another result with shared work")
    return alone_s / len(some), shared_s / len(some), memory_s / len(some)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--any", action="store_true", help="every framework and none")
    parser.add_argument("--fresh", type=int, default=20, help="points searched alone as well")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    framework = "any" if asked.any else "default"
    chosen = points(asked.points)
    search_point(chosen[0], framework, None)  # imports
    n = max(1, asked.processes)
    size = -(-len(chosen) // n)
    tasks = [(chosen[i : i + size], framework) for i in range(0, len(chosen), size)]
    start = time.monotonic()
    if n > 1:
        with multiprocessing.get_context("spawn").Pool(n) as pool:
            answers = pool.map(sweep, tasks, chunksize=1)
    else:
        answers = [sweep(task) for task in tasks]
    wall_s = time.monotonic() - start
    took = sorted(x for answer in answers for x in answer[0])
    alone_s, shared_s, memory_s = compared(
        chosen[:: max(1, len(chosen) // asked.fresh)], framework
    )
    figures = {
        "points": len(took),
        "framework": framework,
        "processes": n,
        "points_per_s": len(took) / wall_s,
        "cpu_s_per_point": sum(took) / len(took),
        "cpu_s_p50": took[len(took) // 2],
        "cpu_s_p99": took[int(0.99 * (len(took) - 1))],
        "alone_cpu_s_per_point": alone_s,
        "ratio": alone_s / shared_s,
        "memory_ratio": alone_s / memory_s,
        "peak_bytes": sum(answer[1] for answer in answers),
        "tables_found": sum(answer[2] for answer in answers),
        "tables_made": sum(answer[3] for answer in answers),
    }
    if asked.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:22s} {value:.4g}" if isinstance(value, float) else f"{name:22s} {value}")


if __name__ == "__main__":
    main()
