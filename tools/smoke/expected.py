"""What a smoke run has to find in the running job: the plan, in the words of its one line.

The line starts with `planner-smoke ` and holds what the program read from process groups, module
trees and tensors. Here the same facts are derived from the plan, and the two are compared.
"""

import json
import math
from typing import Any

from costmodels.parameters import total_params
from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from hardware.parts import Fabric, Pool
from planner.frameworks.launchers.placement import process_groups

Facts = dict[str, Any]
LINE = "planner-smoke "
LOSS_TOLERANCE = 0.35
"""The first loss of a new model is ln(vocab) plus what the initialisation adds to the logits."""
PARAMETERS_TOLERANCE = 1e-3
ALWAYS = ("tp", "cp", "dp", "pp", "ep", "etp")
"""Axes whose groups a job reports where they have several ranks."""


def expected_facts(
    layout: Layout, shape: ModelShape, job: TrainingJob, pool: Pool, fabric: Fabric
) -> Facts:
    """Return what a job that runs the plan must report."""
    groups = {one.name: one.ranks.tolist() for one in process_groups(layout, shape, pool, fabric)}
    wanted = {name: sorted(groups[name]) for name in ALWAYS if name in groups}
    if layout.zero and layout.dp_shard > 1:
        wanted["dp_shard"] = sorted(groups["zero"])
    n_shards = layout.dp_shard
    return {
        "world_size": layout.n_devices,
        "groups": {name: ranks for name, ranks in wanted.items() if len(ranks[0]) > 1},
        "stage_layers": list(layout.stage_layers),
        "n_micro": layout.n_micro,
        "mbs": layout.mbs,
        "gbs": layout.gbs,
        "sharding": {
            "parameters": n_shards if layout.zero >= 3 else 1,
            "gradients": n_shards if layout.zero >= 2 else 1,
            "optimizer": n_shards if layout.zero >= 1 else 1,
        },
        "experts": expert_homes(groups, shape, layout.n_devices),
        "parameters": round(total_params(shape, job.seq_len)),
        "first_loss": math.log(shape.vocab),
    }


def expert_homes(groups: dict[str, list[list[int]]], shape: ModelShape, n: int) -> list[list[int]]:
    """Return the experts of a layer that every rank holds; no list for a dense model."""
    if not shape.n_experts:
        return []
    homes: list[list[int]] = [[] for _ in range(n)]
    for ranks in groups["ep"]:
        share = shape.n_experts // len(ranks)
        for place, rank in enumerate(ranks):
            homes[rank] = list(range(place * share, (place + 1) * share))
    return homes


def reported_facts(output: str) -> Facts | None:
    """Return the one line of a job's output; None where it has none."""
    for line in output.splitlines():
        _, found, text = line.partition(LINE)
        if found:
            facts: Facts = json.loads(text)
            return facts
    return None


def differences(expected: Facts, reported: Facts) -> list[str]:
    """Return what a running job has otherwise than its plan, a line each."""
    if not any(reported.get("experts") or []):  # a dense model: every rank holds none
        reported = reported | {"experts": []}
    lines = [
        f"{name}: the job has {reported.get(name)}, the plan {want}"
        for name, want in expected.items()
        if name not in ("groups", "parameters", "first_loss", "sharding")
        and (reported.get(name) or want)
        and reported.get(name) != want
    ]
    lines += _group_differences(expected["groups"], reported.get("groups", {}))
    shards = reported.get("sharding", {})
    lines += [
        f"sharding of {name}: the job has {shards.get(name)}, the plan {want}"
        for name, want in expected["sharding"].items()
        if shards.get(name) != want
    ]
    off = reported.get("parameters", 0) / expected["parameters"] - 1
    if abs(off) > PARAMETERS_TOLERANCE:
        lines.append(
            f"parameters: the job has {reported.get('parameters')},"
            f" the plan {expected['parameters']} ({off:+.2%})"
        )
    losses = reported.get("losses") or [math.nan]
    if not abs(losses[0] - expected["first_loss"]) <= LOSS_TOLERANCE:
        lines.append(f"first loss: {losses[0]}, ln(vocab) is {expected['first_loss']:.3f}")
    if len(losses) < 2 or not all(map(math.isfinite, losses)):
        lines.append(f"losses: {losses}, two finite ones are due")
    return lines


def _group_differences(expected: Facts, reported: Facts) -> list[str]:
    """Return where process groups differ; axes of one rank may be reported or not."""
    found = {
        name: sorted(sorted(ranks) for ranks in groups)
        for name, groups in reported.items()
        if any(len(ranks) > 1 for ranks in groups)
    }
    return [
        f"groups of {name}: the job has {found.get(name)}, the plan {expected.get(name)}"
        for name in sorted(expected.keys() | (found.keys() & set(ALWAYS)))
        if found.get(name) != expected.get(name)
    ]
