"""A placement as data, and as the files that launchers read."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.frameworks.launchers.placement import MEANINGS, Ints, Placement
from planner.frameworks.registry import frameworks


def placement_json(placement: Placement, plan_id: str) -> dict[str, Any]:
    """Return everything: every rank with its host and places, every group's ranks."""
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
