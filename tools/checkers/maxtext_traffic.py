"""What the layers of a tiny plan send: priced, and in the step that XLA compiles of MaxText."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from costmodels.breakdown import break_down
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import STACKS
from hardware.catalogue import load_catalogue
from hardware.parts import Fabric, Pool

TOLERANCE = 0.02
SUMS = {"all-reduce": "sums", "reduce-scatter": "sums", "all-gather": "gathers"}
"""XLA sums whole on a CPU and cuts after; the logical tensor of both is the same."""
WIDTHS = {"bf16": 2, "fp32": 4}

Elements = dict[tuple[str, int], float]
"""Elements of logical tensors in a step, by kind of collective and ranks of a group."""


def priced(plan: Layout, shape: ModelShape, job: TrainingJob, pool: Pool) -> Elements:
    """Return what the layers of a plan send: the price of twice as many less that of all."""
    part = load_catalogue().accelerator("tpu-v5p")
    pool = replace(pool, accelerator=part)
    longer = replace(shape, layers=2 * shape.layers)
    twice = replace(
        plan,
        stage_layers=(longer.layers,),
        recompute_layers=2 * plan.recompute_layers,
    )
    result: Elements = defaultdict(float)
    for sign, model, layout in ((1, longer, twice), (-1, shape, plan)):
        problem = Problem(model, job, pool, Fabric(), STACKS["maxtext"])
        for one in break_down(problem, layout).transfers:
            if one.collective in SUMS and one.dtype in WIDTHS:
                sent = one.n_calls * one.message_bytes / WIDTHS[one.dtype]
                result[SUMS[one.collective], one.group_size] += sign * sent
    return {key: sent for key, sent in result.items() if sent}


def compiled(told: Sequence[Mapping[str, Any]], n_micro: int, layers: int) -> Elements:
    """Return what the layers of a compiled step send.

    Those in the loop over layers of every micro-batch, and weights of all layers at once.
    """
    result: Elements = defaultdict(float)
    for one in told:
        inside = one["n_runs"] == n_micro * layers and "while" in one["source"]
        if one["kind"] in SUMS and (inside or "'layers'" in one["source"].replace("\\", "")):
            sent = one["n_runs"] * sum(one["elements"])
            result[SUMS[one["kind"]], one["group_size"]] += sent
    return dict(result)


def apart(ours: Elements, theirs: Elements) -> list[str]:
    """Return what is further apart than `TOLERANCE`.

    Groups of which the price knows nothing count where they send more than that of all: norms are
    summed over the axes of a mesh one after the other.
    """
    least = TOLERANCE * sum(theirs.values())
    lines = []
    for key in sorted({*ours, *theirs}):
        mine, other = ours.get(key, 0.0), theirs.get(key, 0.0)
        if abs(mine - other) > max(TOLERANCE * mine, least * (key not in ours)):
            numbers = f"{other:,.0f} elements, priced {mine:,.0f}"
            lines.append(f"{key[0]} over {key[1]} ranks: {numbers}")
    return lines
