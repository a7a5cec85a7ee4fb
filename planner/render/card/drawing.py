"""The layout on the cluster: which nodes hold which stage of which replica, and what crosses what.

Ranks are numbered as `Layout.rank_order` says: the stages of a pipeline lie `stage_stride` apart,
the replicas TP x CP apart, or TP x CP x PP where whole pipelines lie inside.
"""

from collections.abc import Mapping
from typing import Any

from costmodels.plans import Layout
from planner.render.card.card import Box, DrawnGroup, LayoutDrawing
from planner.render.nouns import noun_of_pool
from planner.solver.answer.result import Plan

MAX_REPLICAS = 3
"""Replicas that are drawn: the first ones, and the last."""
MAX_STAGES = 8
"""Stages that are drawn: the first ones, and the last."""
SCALE_UP = "scale-up"
"""Name of the tier inside a scale-up domain in the traffic of a plan."""
WIRES = {"nvlink": "NVLink", "xgmi": "xGMI", "pcie": "PCIe", "ici": "ICI"}
"""What people call links of a scale-up domain, by the beginning of their name."""


def drawing_of(plan: Plan, pool: Mapping[str, Any]) -> LayoutDrawing:
    """Return where the boxes of a plan lie on a pool of a cluster document."""
    x = plan.layout
    unit, size = unit_of(pool)
    boxes = tuple(
        tuple(_box(x, replica, stage, (unit, size)) for stage in _shown(x.pp, MAX_STAGES))
        for replica in _shown(x.dp, MAX_REPLICAS)
    )
    units = -(-x.n_devices // size)
    return LayoutDrawing(
        x.dp,
        x.pp,
        x.tp,
        x.cp,
        x.ep,
        x.tp * x.cp,
        unit,
        size,
        units,
        boxes,
        drawn_groups(plan, pool),
        noun_of_pool(pool),
    )


def unit_of(pool: Mapping[str, Any]) -> tuple[str, int]:
    """Return what places are called and the devices of one: a rack where NVLink spans nodes.

    A slice where links of TPUs do.
    """
    node = int(pool["accelerators_per_node"])
    domain = int(pool.get("segment") or pool["scale_up_domain"])
    if domain <= node:
        return "node", node
    return "slice" if wire_name(pool) == WIRES["ici"] else "rack", domain


def _shown(count: int, most: int) -> list[int]:
    """Return the numbers that are drawn of `count`: the first ones and the last."""
    return list(range(count)) if count <= most else [*range(most - 1), count - 1]


def _box(layout: Layout, replica: int, stage: int, unit: tuple[str, int]) -> Box:
    x, (name, size) = layout, unit
    width = x.tp * x.cp
    replica_stride = width * x.pp if x.pipelines_inside else width
    first = replica * replica_stride + stage * x.stage_stride
    low, high = first // size, (first + width - 1) // size
    place = f"{name} {low}" if low == high else f"{name}s {low}-{high}"
    return Box(replica, stage, first, place)


def drawn_groups(plan: Plan, pool: Mapping[str, Any]) -> tuple[DrawnGroup, ...]:
    """Return the groups that send anything, with what their traffic crosses."""
    x = plan.layout
    sizes = {"tp": x.tp, "cp": x.cp, "ep": x.ep, "pp": x.pp, "dp": x.dp}
    groups = []
    for axis, size in sizes.items():
        sent = [t for t in plan.breakdown.transfers if t.axis == axis]
        if size == 1 or not sent:
            continue
        tiers = {t.tier for t in sent if t.sent_bytes > 0} or {t.tier for t in sent}
        is_local = tiers == {SCALE_UP}
        wires = [wire_name(pool)] * (SCALE_UP in tiers) + ["network"] * bool(tiers - {SCALE_UP})
        groups.append(
            DrawnGroup(
                axis,
                f"{axis.upper()} {size}",
                size,
                is_local,
                " and ".join(wires),
                sum(round(t.sent_bytes) for t in sent),
                sum(t.exposed_s for t in sent),
            )
        )
    return tuple(groups)


def wire_name(pool: Mapping[str, Any]) -> str:
    """Return what the scale-up link of a pool is called: NVLink; else `scale-up`."""
    from hardware.catalogue import UnknownPartError, load_catalogue

    accelerator = pool["accelerator"]
    if isinstance(accelerator, Mapping):
        link = str(accelerator.get("scale_up_link", ""))
        accelerator = accelerator.get("like") or accelerator.get("name") or ""
    else:
        link = ""
    if not link:
        try:
            link = load_catalogue().accelerator(str(accelerator)).scale_up_link
        except UnknownPartError:
            return SCALE_UP
    return next((word for start, word in WIRES.items() if link.startswith(start)), SCALE_UP)
