"""Seconds for long lists of plans: made together, and one by one in the same run.

    python benchmarks/bench_list.py [PLANS]

The reference opens and describes a sample of the same plans one at a time, as `planner show` does
with one, and is scaled to all of them. The writer of JSON is held against `json.dumps`. Ratios
carry over between machines, absolute figures do not.
"""

import json
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from planner import solve
from planner.render.answers.plan_table import plans_csv
from planner.render.document import text_of
from planner.solver.answer.plans import plan_of_layout
from planner.solver.answer.result import Result
from planner.solver.request import SolveRequest
from planner.solver.sources import read_inputs
from planner.specs.json_text import indented
from service.pages.answer.listing import listing

PLANS = 5000
SAMPLE = 50
QUESTIONS = (
    ("llama3-70b", "h100-x512"),
    ("llama3-405b", "h100-x16384"),
    ("mixtral-8x7b", "h100-x512"),
    ("deepseek-v3", "h800-x2048"),
)


def cpu_s(run) -> tuple[float, object]:
    """Return the processor time of a call, and what it returns."""
    start = time.process_time()
    found = run()
    return time.process_time() - start, found


def one_by_one_s(names: tuple[str, str], result: Result) -> float:
    """Return what all plans of a list would take alone, from a sample of them."""
    given = read_inputs(*names)
    options = SolveRequest.of(top=1).options()
    some = result.plans[:: max(1, len(result.plans) // SAMPLE)]

    def run() -> None:
        for plan in some:
            plan_of_layout(*given, options, plan.layout)[1].to_json()

    return cpu_s(run)[0] / len(some) * len(result.plans)


def measure(model: str, cluster: str, n_plans: int) -> None:
    """Print what one question takes, in parts."""

    def ask(top: int) -> Result:
        return solve(model, cluster, top=top, executor="serial")

    ask(10)  # imports and files
    few_s, _ = cpu_s(lambda: ask(10))
    many_s, result = cpu_s(lambda: ask(n_plans))
    # Before what JSON asks for of each plan is made.
    shown = {
        name: cpu_s(lambda run=run: run(result))[0]
        for name, run in (("table", text_of), ("csv", plans_csv), ("page", listing))
    }
    data_s, data = cpu_s(result.to_json)
    text_s, text = cpu_s(lambda: indented(data))
    plain_s, plain = cpu_s(lambda: json.dumps(data, indent=1, allow_nan=False))
    assert text == plain
    alone_s = one_by_one_s((model, cluster), result)
    made_s = many_s - few_s + data_s
    n = len(result.plans)
    print(
        f"{model} on {cluster}: {n:,} plans {many_s:.2f} s (10: {few_s:.2f} s), "
        + ", ".join(f"{name} {value:.2f} s" for name, value in shown.items())
        + f", json {data_s + text_s:.2f} s; one by one {alone_s:.1f} s, ratio"
        f" {alone_s / made_s:.1f}; json.dumps {plain_s:.2f} s, ratio {plain_s / text_s:.1f}"
    )


if __name__ == "__main__":
    for question in QUESTIONS:
        measure(*question, int(sys.argv[1]) if len(sys.argv) > 1 else PLANS)
