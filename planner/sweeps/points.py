"""One point of a sweep: the values it sets, the two inputs they make, and its names.

A point is named by its content, so that a sweep that was stopped, or another sweep that meets the
same point, knows it again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.solver.answer.result_parts import calibration_json
from planner.solver.options import SolveOptions
from planner.specs.identity import content_id
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.search.section import TOGETHER

TIMED_GOALS = ("step_time", "tokens_per_s", "memory", "devices")
"""Objectives that order plans alike whatever devices cost, draw and fail."""


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of values."""

    index: int
    """Place in the design, from 0, before constraints leave points out."""
    values: tuple[tuple[str, object], ...]
    """Varied field or column and its value as written, in the order of the axes."""
    point_id: str
    """12 hex digits of the content: model, cluster, options, catalogue, calibration, version."""
    costless_key: str
    """Equal for points that differ in nothing that a search looks at: price, power, failures."""
    derived: tuple[tuple[str, object], ...] = ()
    """Columns computed from the point (`let:`): a number in base units, or text."""
    shared_key: str = ""
    """Sorts points next to one another that share work: same model, same devices."""
    fault: str = ""
    """Why the values make no valid inputs, where they make none."""


def point_names(
    model: ModelInput,
    cluster: ClusterInput,
    options: SolveOptions,
    priced: Mapping[str, Any] | None = None,
) -> tuple[str, str, str]:
    """Return the id, the costless key and the shared key of a point whose inputs are read.

    `priced` is what `calibration_json` says of the options, where that is known already.
    """
    priced = calibration_json(options.calibration) if priced is None else priced
    options_json = options.to_json()
    job = {**model.document, "listed": list(model.precisions)}
    bare = cluster.document if _orders_by_cost(options) else without_costs(cluster.document)
    devices = [pool.n_devices for pool in cluster.cluster.pools]
    return (
        content_id("point", job, cluster.document, options_json, priced),
        content_id("costless", job, bare, options_json, priced),
        content_id("shared", job, options_json) + "".join(f"-{n:08d}" for n in devices),
    )


def failed_names(values: tuple[tuple[str, object], ...], sweep: str) -> tuple[str, str, str]:
    """Return the names of a point whose values make no valid inputs."""
    text = json.dumps(values, default=str)
    name = content_id("bad point", sweep, text)
    return name, name, name


def _orders_by_cost(options: SolveOptions) -> bool:
    """Tell whether price, power or failures decide which plans are in the answer."""
    if options.pools == TOGETHER:  # plans over several pools are ranked and listed with costs
        return True
    limited = options.deadline_s is not None or options.budget_usd is not None
    return limited or any(x not in TIMED_GOALS for x in options.goals)


def without_costs(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return a canonical cluster without prices, power of boards, failures and host names.

    Under a power limit the power of the board says how far rates fall, and so it stays.
    """
    pools = []
    for pool in cluster["pools"]:
        fields = {k: v for k, v in pool.items() if k not in ("hosts", "price_per_hour")}
        part = fields["accelerator"]
        if isinstance(part, Mapping):
            costs = ("name",) if "power_limit" in fields else ("name", "power")
            figures = {k: v for k, v in part.items() if k not in costs}
            fields["accelerator"] = figures if len(figures) > 1 else figures["like"]
        pools.append(fields)
    return {**{k: v for k, v in cluster.items() if k != "operations"}, "pools": pools}
