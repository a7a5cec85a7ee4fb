"""Where the ranks of a plan run: the order of ranks, groups and their tiers, hosts."""

from collections.abc import Sequence

import numpy as np

from costmodels.plans import Layout
from costmodels.shapes import ModelShape
from hardware.parts import Fabric, Pool
from planner.documents import Blank, Code, Grid, GridSpacing, Paragraph, Part
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

MAX_HOSTS_SHOWN = 8
"""Hosts of the table; `ranks.txt` and the JSON name them all."""
MAX_MEMBERS_SHOWN = 6
"""Ranks shown of a group that is not evenly spaced."""


def placement_document(placement: Placement, heading: str = "") -> list[Part]:
    """Return the groups as counts, strides and first rank lists, and where the nodes begin."""
    shown = [group for group in placement.groups if group.n_members > 1]
    return [
        *([Paragraph(heading)] if heading else []),
        *_order_parts(placement),
        Blank(),
        _group_grid(shown, placement.nodes_per_domain > 1, has_ranks=True),
        Blank(),
        *(Paragraph(f"{group.name}: {MEANINGS[group.name]}") for group in shown),
        Blank(),
        *_host_parts(placement),
    ]


def tier_parts(layout: Layout, shape: ModelShape, pool: Pool, fabric: Fabric) -> list[Part]:
    """Return the order of ranks, and how far each kind of group reaches, as `show` prints it."""
    formula = rank_formula(dense_grid(layout))
    heading = Paragraph(f"placement: rank = {formula} ({layout.rank_order})")
    try:
        groups = process_groups(layout, shape, pool, fabric)
    except EmitError as error:
        return [heading, Code((f"  {error.message}",))]
    shown = [group for group in groups if group.n_members > 1]
    if not shown:
        return [heading, Paragraph("  no groups")]
    has_racks = pool.scale_up_domain > pool.devices_per_node
    return [heading, _group_grid(shown, has_racks, has_ranks=False, indent=2)]


def _group_grid(
    groups: Sequence[ProcessGroups], has_racks: bool, *, has_ranks: bool, indent: int = 0
) -> Grid:
    """Return a table of groups; `has_racks` where domains are larger than nodes."""
    heads = ("group", "size", "groups", "stride", "nodes", *["domains"] * has_racks, "tier")
    rows = []
    for group in groups:
        counts = [group.n_members, len(group.ranks), group.stride or "-", group.n_nodes]
        counts += [group.n_domains] * has_racks
        ranks = [_first_groups(group)] if has_ranks else []
        rows.append((group.name, *map(str, counts), group.tier, *ranks))
    numeric = tuple(range(1, len(heads) - 1))
    heads = (*heads, *["ranks"] * has_ranks)
    return Grid(heads, tuple(rows), "Process groups", numeric, spacing=GridSpacing(indent=indent))


def _order_parts(placement: Placement) -> list[Part]:
    per_node, n_nodes = placement.devices_per_node, len(placement.hosts)
    text = f"{placement.n_ranks} ranks, {per_node} on each of {n_nodes} node{'s' * (n_nodes > 1)}"
    if placement.nodes_per_domain > 1:
        text += f", {placement.nodes_per_domain} nodes to a scale-up domain"
    formulas = zip(("rank", "experts"), placement.grids, strict=False)
    return [
        Paragraph(text),
        *(Paragraph(f"{name} = {rank_formula(grid)}") for name, grid in formulas),
    ]


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


def _host_parts(placement: Placement) -> list[Part]:
    hosts, per_node = placement.hosts, placement.devices_per_node
    note = "" if placement.hosts_known else " (placeholders: name yours with --hosts)"
    n = len(hosts)
    is_cut = n > MAX_HOSTS_SHOWN + 1
    shown = [*range(MAX_HOSTS_SHOWN), n - 1] if is_cut else [*range(n)]
    lines = []
    for i in shown:
        first = i * per_node
        domain = f", domain {i // placement.nodes_per_domain}"
        lines.append(
            f"  {hosts[i]}: ranks {rank_list(np.arange(first, first + per_node))}"
            + domain * (placement.nodes_per_domain > 1)
        )
    if is_cut:
        lines.insert(-1, "  ...")
    return [Paragraph(f"hosts in network order{note}:"), Code(tuple(lines))]
