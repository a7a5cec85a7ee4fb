"""A placement as text: a table, JSON, and the files that launchers read."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from costmodels.plans import Layout
from costmodels.shapes import ModelShape
from hardware.parts import Fabric, Pool
from planner.errors import EmitError
from planner.frameworks.launchers.placement import (
    MEANINGS,
    Ints,
    Placement,
    ProcessGroups,
    RankGrid,
    dense_grid,
    process_groups,
)
from planner.frameworks.registry import frameworks

MAX_HOSTS_SHOWN = 8
"""Hosts of the table; `ranks.txt` and the JSON name them all."""
MAX_MEMBERS_SHOWN = 6
"""Ranks shown of a group that is not evenly spaced."""


def placement_table(placement: Placement, heading: Sequence[str] = ()) -> str:
    """Return the groups as counts, strides and first rank lists, and where the nodes begin."""
    shown = [group for group in placement.groups if group.n_members > 1]
    lines = [*heading, *_order_lines(placement), ""]
    lines += _group_lines(shown, placement.nodes_per_domain > 1, lists=True)
    lines += ["", *(f"{group.name}: {MEANINGS[group.name]}" for group in shown)]
    return "\n".join([*lines, "", *_host_lines(placement)]) + "\n"


def tier_lines(layout: Layout, shape: ModelShape, pool: Pool, fabric: Fabric) -> list[str]:
    """Return the order of ranks, and how far each kind of group reaches, as `show` prints it."""
    heading = f"placement: rank = {rank_formula(dense_grid(layout))} ({layout.rank_order})"
    try:
        groups = process_groups(layout, shape, pool, fabric)
    except EmitError as error:
        return [heading, f"  {error.message}"]
    shown = [group for group in groups if group.n_members > 1]
    if not shown:
        return [heading, "  no groups"]
    racks = pool.scale_up_domain > pool.devices_per_node
    return [heading, *(f"  {line}" for line in _group_lines(shown, racks, lists=False))]


def _group_lines(groups: Sequence[ProcessGroups], racks: bool, *, lists: bool) -> list[str]:
    """Return a table of groups; `racks` where domains are larger than nodes."""
    head = ("group", "size", "groups", "stride", "nodes", *["domains"] * racks, "tier")
    rows = [(*head, *["ranks"] * lists)]
    for group in groups:
        counts = [group.n_members, len(group.ranks), group.stride or "-", group.n_nodes]
        counts += [group.n_domains] * racks
        first = [_first_groups(group)] if lists else []
        rows.append((group.name, *map(str, counts), group.tier, *first))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if 0 < i < len(head) - 1 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _order_lines(placement: Placement) -> list[str]:
    per_node, n_nodes = placement.devices_per_node, len(placement.hosts)
    lines = [
        f"{placement.n_ranks} ranks, {per_node} on each of {n_nodes} node{'s' * (n_nodes > 1)}"
        + f", {placement.nodes_per_domain} nodes to a scale-up domain"
        * (placement.nodes_per_domain > 1)
    ]
    names = ("rank", "experts")
    for name, grid in zip(names, placement.grids, strict=False):
        lines.append(f"{name} = {rank_formula(grid)}")
    return lines


def rank_formula(grid: RankGrid) -> str:
    """Return how a rank follows from its places along the axes that have several.

    >>> rank_formula(RankGrid(("pp", "dp", "cp", "tp"), (4, 2, 1, 8)))
    'tp + 8 dp + 16 pp'
    """
    terms, stride = [], 1
    for axis, size in zip(reversed(grid.axes), reversed(grid.sizes), strict=True):
        if size > 1:
            terms.append(axis if stride == 1 else f"{stride} {axis}")
        stride *= size
    return " + ".join(terms) or "0"


def _first_groups(group: ProcessGroups) -> str:
    shown = ", ".join(rank_list(row) for row in group.ranks[:3])
    return shown + ", ..." * (len(group.ranks) > 3)


def rank_list(ranks: Ints) -> str:
    """Return sorted ranks as a range where they are evenly spaced.

    >>> rank_list(np.arange(4)), rank_list(np.arange(1, 18, 8)), rank_list(np.arange(1))
    ('0-3', '1-17 by 8', '0')
    """
    if len(ranks) == 1:
        return str(ranks[0])
    steps = np.diff(ranks)
    if (steps == steps[0]).all():
        by = f" by {steps[0]}" if steps[0] > 1 else ""
        return (
            f"{ranks[0]}+{ranks[1]}" if len(ranks) == 2 and by else f"{ranks[0]}-{ranks[-1]}{by}"
        )
    shown = "+".join(str(rank) for rank in ranks[:MAX_MEMBERS_SHOWN])
    return shown + f"+...+{ranks[-1]}" * (len(ranks) > MAX_MEMBERS_SHOWN)


def _host_lines(placement: Placement) -> list[str]:
    hosts, per_node = placement.hosts, placement.devices_per_node
    note = "" if placement.hosts_known else " (placeholders: name yours with --hosts)"
    lines = [f"hosts in network order{note}:"]
    first = range(min(len(hosts), MAX_HOSTS_SHOWN))
    last = [len(hosts) - 1] if len(hosts) > MAX_HOSTS_SHOWN + 1 else []
    shown = [*first, *last] if last else [*range(len(hosts))]
    for i in shown:
        if last and i == last[0]:
            lines.append("  ...")
        low = i * per_node
        domain = f", domain {i // placement.nodes_per_domain}"
        lines.append(
            f"  {hosts[i]}: ranks {rank_list(np.arange(low, low + per_node))}"
            + domain * (placement.nodes_per_domain > 1)
        )
    return lines


def placement_json(placement: Placement, plan_id: str) -> str:
    """Return everything as JSON: every rank with its host and places, every group's ranks."""
    return json.dumps(placement_document(placement, plan_id)) + "\n"


def placement_document(placement: Placement, plan_id: str) -> dict[str, Any]:
    """Return what `placement_json` writes."""
    columns = _columns(placement)
    grids = zip(("dense", "expert"), placement.grids, strict=False)
    return {
        "plan_id": plan_id,
        "n_ranks": placement.n_ranks,
        "rank_order": placement.layout.rank_order,
        "grids": {name: dict(zip(g.axes, g.sizes, strict=True)) for name, g in grids},
        "frameworks": {
            one.name: {
                "dense": one.grid.dense,
                "expert": one.grid.expert,
                "source": one.grid.source,
            }
            for one in frameworks()
            if one.grid
        },
        "devices_per_node": placement.devices_per_node,
        "nodes_per_domain": placement.nodes_per_domain,
        "hosts_known": placement.hosts_known,
        "hosts": list(placement.hosts),
        "ranks": [
            {"rank": rank, "host": placement.host(rank), "local_rank": placement.local_rank(rank)}
            | {axis: int(places[rank]) for axis, places in columns.items()}
            for rank in range(placement.n_ranks)
        ],
        "groups": {
            group.name: {
                "meaning": MEANINGS[group.name],
                "n_members": group.n_members,
                "n_groups": len(group.ranks),
                "stride": group.stride,
                "n_nodes": group.n_nodes,
                "n_domains": group.n_domains,
                "tier": group.tier,
                "ranks": group.ranks.tolist(),
            }
            for group in placement.groups
        },
    }


def _columns(placement: Placement) -> dict[str, Ints]:
    """Return the place of every rank along tp pp dp cp, and with experts ep etp edp."""
    dense, *experts = placement.grids
    columns = {axis: dense.coordinate(axis) for axis in ("tp", "pp", "dp", "cp")}
    for grid in experts:
        columns |= {axis: grid.coordinate(axis) for axis in ("ep", "etp", "edp")}
    return columns


def placement_files(placement: Placement, header: Sequence[str]) -> dict[str, str]:
    """Return the files of a placement: name to text.

    `ranks.txt` for people and scripts, `hostfile` for mpirun and the deepspeed launcher,
    `openmpi-rankfile`, and `slurm-hostfile`: a line per rank for SLURM_HOSTFILE, which takes no
    comments.
    """
    comments = "".join(f"# {line}\n" for line in header)
    columns = {"ep": np.zeros(placement.n_ranks, dtype=np.int64)} | _columns(placement)
    axes = ["tp", "pp", "dp", "cp", "ep", *(x for x in ("etp", "edp") if x in columns)]
    table = np.stack([columns[axis] for axis in axes], axis=1).tolist()
    ranks = [
        f"{rank} {placement.host(rank)} {placement.local_rank(rank)} {' '.join(map(str, places))}"
        for rank, places in enumerate(table)
    ]
    per_node = placement.devices_per_node
    return {
        "ranks.txt": _text([f"{comments}# rank host local_rank {' '.join(axes)}", *ranks]),
        "hostfile": comments + _text([f"{host} slots={per_node}" for host in placement.hosts]),
        "openmpi-rankfile": _RANKFILE_HEAD.format(header=comments)
        + _text(
            [
                f"rank {rank}={placement.host(rank)} slot={placement.local_rank(rank)}"
                for rank in range(placement.n_ranks)
            ]
        ),
        "slurm-hostfile": _text([placement.host(rank) for rank in range(placement.n_ranks)]),
    }


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


_RANKFILE_HEAD = """\
{header}# mpirun --map-by rankfile:FILE=openmpi-rankfile (Open MPI 4: --rankfile openmpi-rankfile).
# A slot is a core: as written every rank stands on one core, that of its device's number. Write
# the cores next to its device instead (slot=0-13), or use `hostfile` with --map-by slot
# --bind-to none, which gives the same order and binds nothing.
"""
