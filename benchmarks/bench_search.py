"""Whole searches and plain scoring, each figure with its reference, in one run.

    python benchmarks/bench_search.py [--json] [--only scoring,405b,deepseek,calculon]

Figures per core are over process CPU time, so that a busy machine changes them little. `scoring`
prices every legal plan of a pair, none pruned; a random sample must equal the scalar model of the
tests (`tests/searches/oracle.py`, one plan at a time in plain Python) in step time and peak memory
to 1e-9. The sample has ranks in the usual order: that model takes minutes to place a plan of the
other order on 16,384 devices (the tests do it on fewer). `405b` and `deepseek` run whole solves in
a fresh interpreter: as a Python call once everything is imported, and as the command, from the
start of the process; once over every number of devices and once on all. Plans left out by a bound
or for their memory are counted apart.

`calculon` is the space of Calculon (github.com/calculon-ai/calculon, SC23) for GPT-3 175B on 512
A100: tp, pp, dp, micro-batch, interleaving, sequence parallelism, recomputation (none, attention,
full), optimizer sharding (ZeRO-1), overlap of data- and of tensor-parallel traffic on and off.
Every legal plan is priced. Its figure of 145 to 237 configurations per CPU-second is that of its
own code at commit caa4b11, on random samples of its default space. Switches of Calculon that have
no counterpart here: all-reduce or reduce-scatter with all-gather beside sequence parallelism (sp
has the second, else the first), gathering again in the backward, a ring or a pipe for the overlap
of tensor-parallel traffic, fused activations, what lies on the host (weights; and optimizer and
activations, because the example says nothing of its hosts), and which network each axis uses
(placement decides that). Here recomputation in full runs over 1 to all layers of a stage, there
over all or none.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from costmodels.layers.layer_terms import layer_table
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.shape_terms import shape_terms
from costmodels.step import score
from planner.solver.options import SolveOptions, axis_items, limit_codes, list_codes
from planner.solver.problem import make_problem
from planner.solver.sources import read_inputs
from searches.executors.executor import n_cpus
from searches.pricing.shape_tables import BLOCK_CELLS
from searches.rules import Context
from searches.space.free_axes import free_axes
from searches.space.plan_blocks import plan_blocks
from searches.space.plan_space import legal_masks
from searches.space.shape_space import legal_shapes
from searches.space.shards import make_shards

SCORED = (
    ("llama3-405b", "h100-x16384"),
    ("llama3-70b", "h100-x512"),
    ("gpt3-175b", "a100-x1024"),
    ("deepseek-v3", "h800-x2048"),
)
SCORED_AT_ONCE = 1_500_000
"""Plans of a pair that are timed, at least; a pair with more is sampled by whole blocks."""
SAMPLE = 64
"""Plans of a pair that are compared with the scalar model."""
SAME = 1e-9

CLOSED = ("optimizer_offload", "activation_offload", "tp_overlap")
EVERYTHING = [word for axis in CLOSED for word in ("--only", f"{axis}=off,on")]
SOLVES = {
    "405b": ["llama3-405b", "h100-x16384", "--framework", "any", "--max", "cp=4", *EVERYTHING],
    "deepseek": ["deepseek-v3", "h800-x2048"],
}
"""Arguments of `planner solve`. In the first everything is open: without `--max cp=4` the search
would stop at one rank of context parallelism for 4,096 tokens, which is cp 2, and the axes that
are named are closed by default."""
CALCULON_CONFIGURATIONS_PER_S = (145, 237)
CALCULON = {
    "only": "zero=0,1;dp_overlap=off,on;tp_overlap=off,on;split=even;cp=1;"
    "schedule=none,1f1b,interleaved;"
    "recompute_modules=none,core_attn;rank_order=tp-cp-ep-dp-pp",
    "at_most": {"vpp": 96, "mbs": 1536},
}


def cpu_s(run: Callable[[], Any], repeat: int = 3) -> float:
    """Return the least CPU seconds of several runs."""
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def context_of(model: str, cluster: str, options: SolveOptions, n_nodes: int = 0) -> Context:
    overrides = (("pools.0.nodes", n_nodes),) if n_nodes else ()
    problem = make_problem(*read_inputs(model, cluster, overrides), options)
    return Context(problem, options.search_options(), problem.pool.n_devices)


def blocks_of(context: Context, most: int = 0) -> list[tuple[Any, Any, Any]]:
    """Return (shape terms, block, layer table, legal) of the legal plans, in whole blocks.

    Of a space with more than `most` plans every so many blocks.
    """
    found = []
    for shard in make_shards(context, legal_shapes(context).shapes):
        axes = free_axes(context, shard.shapes)
        masks, _, _ = legal_masks(context, shard.shapes, axes)
        terms = shape_terms(context.problem, shard.shapes, axes.shardings)
        columns = (axes.mbs, axes.recompute_modules, context.options.mode_table)
        layers = layer_table(context.problem, shard.shapes, *columns)
        for one in plan_blocks(context, shard.shapes, axes, masks, BLOCK_CELLS):
            found.append((terms, one.block, layers, one.legal))
    total = n_legal(found)
    return found[:: max(1, total // most)] if most else found


def n_legal(blocks: list) -> int:
    return sum(int(np.count_nonzero(legal)) for *_, legal in blocks)


def scalar_plan(problem: Problem, layout: Layout) -> tuple[float, float]:
    """Return step time and peak memory of one plan by the scalar model."""
    from tests.searches import oracle

    plan = oracle.price(problem, layout, oracle.micro_batch(problem, layout))
    return plan.closed_form_s, plan.peak_bytes


def equal_to_scalar(problem: Problem, blocks: list) -> tuple[int, float, float]:
    """Return plans compared, the largest relative difference, and scalar plans per CPU-second."""
    chooser, worst, spent_s, n = random.Random(0), 0.0, 0.0, 0
    for terms, block, layers, legal in chooser.sample(blocks, min(8, len(blocks))):
        cells = np.flatnonzero(legal)
        if not len(cells):
            continue
        chosen = np.sort(np.array(chooser.sample(cells.tolist(), min(SAMPLE // 8, len(cells)))))
        scores = score(problem, terms, block, layers)
        size = legal.shape
        found = [
            np.broadcast_to(x, size).ravel()[chosen] for x in (scores.step_s, scores.peak_bytes)
        ]
        table = block.rows(chosen)
        layouts = [table.layout(i, problem.shape.layers) for i in range(len(chosen))]
        quick = [i for i, x in enumerate(layouts) if not x.pipelines_inside]
        if not quick:
            continue
        layouts, found = [layouts[i] for i in quick], [x[quick] for x in found]
        start = time.process_time()
        wanted = np.array([scalar_plan(problem, layout) for layout in layouts]).T
        spent_s += time.process_time() - start
        n += len(layouts)
        worst = max(worst, float(np.max(np.abs(np.array(found) / wanted - 1.0))))
    return n, worst, n / spent_s


def scoring(model: str, cluster: str) -> dict[str, Any]:
    """Price legal plans in full: step time and memory of each, none left out by a bound."""
    context = context_of(model, cluster, SolveOptions())
    problem, blocks = context.problem, blocks_of(context, SCORED_AT_ONCE)
    compared, worst, scalar = equal_to_scalar(problem, blocks)
    assert worst <= SAME, f"{model}: the scalar model differs by {worst:.1e}"
    spent_s = cpu_s(lambda: [score(problem, *one[:3]) for one in blocks], 5)
    fit = sum(
        int(
            np.count_nonzero(
                legal & (score(problem, *one).peak_bytes <= problem.pool.usable_bytes)
            )
        )
        for *one, legal in blocks
    )
    n = n_legal(blocks)
    return {
        "case": f"scoring {model} on {cluster}",
        "plans": n,
        "plans_that_fit": fit,
        "million_plans_per_s_and_core": round(n / spent_s / 1e6, 2),
        "scalar_plans_per_s": round(scalar),
        "ratio": round(n / spent_s / scalar),
        "compared": compared,
        "largest_difference": worst,
    }


CALL = """
import json, sys, time, resource
import planner.cli.app, planner.cli.commands.plans, planner
import ortools.sat.python.cp_model
from planner.solver.options import axis_items
args = json.loads(sys.argv[1])
pairs = list(zip(args[2::2], args[3::2]))
options = dict(pairs)
more = {"at_most": axis_items([options["--max"]], "--max")} if "--max" in options else {}
opened = [value.split("=") for name, value in pairs if name == "--only"]
more["only"] = {axis: values.split(",") for axis, values in opened}
if "--pin" in options:
    more["pins"] = {"devices": int(options["--pin"].split("=")[1])}
start, cpu = time.perf_counter(), time.process_time()
answer = planner.solve(*args[:2], framework=options.get("--framework", ""), **more)
wall = time.perf_counter() - start
worker = resource.getrusage(resource.RUSAGE_CHILDREN)
counts = answer.counts
print(json.dumps({
    "legal": counts.space, "fit": counts.fit, "excluded": counts.excluded,
    "shapes": counts.shapes, "step_s": answer.plans[0].step_time_s, "wall_s": wall,
    "cpu_s": time.process_time() - cpu + worker.ru_utime + worker.ru_stime,
}))
"""


def child(command: list[str], folder: str) -> tuple[str, float, float, float]:
    """Return what a process prints, its wall and CPU seconds and its peak memory, MB."""
    env = {
        **os.environ,
        "PYTHONPYCACHEPREFIX": folder,
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{command}: exit code {process.returncode}"
    return text, wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def solve(name: str, pin: str = "", repeat: int = 3) -> dict[str, Any]:
    """Run one whole solve in a fresh interpreter, called and as the command; the best of several.

    Compiled modules are written by the first run, which does not count.
    """
    import tempfile

    arguments = SOLVES[name] + (["--pin", pin] if pin else [])
    main = "import sys; from planner.cli.app import main; main()"
    command = [sys.executable, "-c", main, "solve", *arguments, "--no-cache"]
    call = [sys.executable, "-c", CALL, json.dumps(arguments)]
    with tempfile.TemporaryDirectory() as folder:
        child(command, folder)
        called = [json.loads(child(call, folder)[0]) for _ in range(repeat)]
        started = [child(command, folder)[1:] for _ in range(repeat)]
    best = min(called, key=lambda x: x["wall_s"])
    return {
        "case": "planner solve " + " ".join(arguments),
        "legal_plans": best["legal"],
        "plans_that_fit": best["fit"],
        "excluded_by_bound": best["excluded"],
        "shapes": best["shapes"],
        "step_s": round(best["step_s"], 3),
        "in_process_wall_s": round(best["wall_s"], 2),
        "in_process_cpu_s": round(min(x["cpu_s"] for x in called), 2),
        "from_start_wall_s": round(min(x[0] for x in started), 2),
        "from_start_cpu_s": round(min(x[1] for x in started), 2),
        "peak_mb_of_largest_process": round(max(x[2] for x in started)),
        "million_legal_plans_per_cpu_s": round(
            best["legal"] / min(x["cpu_s"] for x in called) / 1e6, 1
        ),
    }


def calculon() -> dict[str, Any]:
    """Enumerate and price every legal plan of Calculon's dimensions; CPU time of all of it."""
    only = list_codes(
        axis_items([x for item in CALCULON["only"].split(";") for x in _items(item)], "--only")
    )
    options = SolveOptions(
        only=only,
        at_most=limit_codes(CALCULON["at_most"]),
    )
    context = context_of("gpt3-175b", "a100-x1024", options, n_nodes=64)
    counted = []

    def run() -> None:
        blocks = blocks_of(context)
        for *one, _ in blocks:
            score(context.problem, *one)
        counted.append(n_legal(blocks))

    spent_s = cpu_s(run)
    rate = counted[0] / spent_s
    slow, fast = CALCULON_CONFIGURATIONS_PER_S
    return {
        "case": "GPT-3 175B on 512 A100, Calculon's dimensions",
        "plans": counted[0],
        "cpu_s": round(spent_s, 3),
        "million_plans_per_cpu_s": round(rate / 1e6, 2),
        "calculon_configurations_per_cpu_s": f"{slow} to {fast}",
        "times_as_many": f"{rate / fast:,.0f} to {rate / slow:,.0f}",
    }


def _items(item: str) -> list[str]:
    axis, values = item.split("=")
    return [f"{axis}={value}" for value in values.split(",")]


CASES: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "scoring": lambda: (scoring(*pair) for pair in SCORED),
    "405b": lambda: (solve("405b", pin) for pin in ("", "devices=16384")),
    "deepseek": lambda: (solve("deepseek", pin) for pin in ("", "devices=2048")),
    "calculon": lambda: iter([calculon()]),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--json", action="store_true")
    options.add_argument("--only", default=",".join(CASES))
    asked = options.parse_args()
    machine = {"processors": n_cpus(), "load": round(os.getloadavg()[0], 1)}
    found = [{"case": "machine", **machine}]
    for name in asked.only.split(","):
        for figures in CASES[name]():
            found.append(figures)
            if not asked.json:
                text = "".join(
                    f"\n    {key} {_text(value)}"
                    for key, value in figures.items()
                    if key != "case"
                )
                print(f"{figures['case']}{text}", flush=True)
    found[0]["peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    if asked.json:
        print(json.dumps(found, indent=1))
    else:
        print("machine", *(f"{key} {value}" for key, value in found[0].items() if key != "case"))


def _text(value: object) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:.3g}"
        if isinstance(value, float) and value < 1e-3
        else str(value)
    )


if __name__ == "__main__":
    main()
