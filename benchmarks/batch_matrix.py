"""Seconds for a matrix of questions: jobs x kinds of devices x numbers of them, in one call.

    python benchmarks/batch_matrix.py [JOBS] [SAMPLE]

20 jobs (the dense and routed models that ship, in several batches and lengths), 4 kinds of devices
and 8 numbers of them are solved by `batch_solve` with all processes and with one; the reference
solves a sample of the same questions one by one, sharing nothing, and is scaled to all of them.
Ratios carry over between machines, absolute figures do not. What a service does with the same
matrix a second time, when it is in its store, is in `bench_service.py`.
"""

import contextlib
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import planner
from planner.errors import PlannerError
from planner.solver.request import SolveRequest
from planner.specs.loader import load_model
from planner.sweeps.scaling.batch import answered, batch_cells

CLUSTERS = {"h100": "h100-x512", "a100": "a100-x1024", "h200": "64xh200", "b200": "64xb200"}
COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024)
MODELS = ("llama3-8b", "llama3-70b", "llama2-13b", "mixtral-8x7b")
CHANGES = ((512, 8192), (1024, 4096), (256, 8192), (2048, 4096), (128, 16384))
SAMPLE = 16


def jobs(n: int) -> dict[str, dict]:
    """Return so many jobs by name, the models in turn."""
    chosen = [(name, *change) for change in CHANGES for name in MODELS][:n]
    found = {}
    for name, batch, length in chosen:
        document = dict(load_model(name).document)
        training = {**document["training"], "global_batch": batch, "seq_len": length}
        found[f"{name}-{batch}x{length}"] = {**document, "training": training}
    return found


def main() -> None:
    """Print one line a way of asking."""
    n_jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    sample = int(sys.argv[2]) if len(sys.argv) > 2 else SAMPLE
    asked = jobs(n_jobs)
    cells = batch_cells(asked, CLUSTERS, COUNTS, SolveRequest())
    print(f"{len(cells)} questions, load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    start = time.perf_counter()
    rows = answered(cells, executor="processes").rows
    together_s = time.perf_counter() - start
    print(f"all processes   {together_s:7.1f} s, {together_s / len(cells):.3f} s a question")
    start = time.process_time()
    again = answered(cells).rows
    alone_s = time.process_time() - start
    print(f"one process     {alone_s:7.1f} s of CPU; rows are the same: {again == rows}")
    n_ok = sum(row["status"] == "ok" for row in rows)
    start = time.process_time()
    for cell in cells[:: max(1, len(cells) // sample)]:
        pins = {"devices": cell.n_devices}
        with contextlib.suppress(PlannerError):  # beyond the cluster, which `solve` does not grow
            planner.solve(asked[cell.job], CLUSTERS[cell.cluster], pins=pins, top=1)
    n_sample = len(range(0, len(cells), max(1, len(cells) // sample)))
    single_s = (time.process_time() - start) / n_sample * len(cells)
    print(f"one by one      {single_s:7.1f} s of CPU, of {n_sample} questions")
    print(f"rows with a plan {n_ok}; one by one / one process {single_s / alone_s:.2f}")


if __name__ == "__main__":
    main()
