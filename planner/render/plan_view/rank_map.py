"""Ranks drawn into nodes and racks: which group of each axis every rank belongs to.

Small clusters are drawn whole. Of larger ones the nodes are drawn that the groups of rank 0 reach
first, second and last, with those beside it: all others repeat them.
"""

from dataclasses import dataclass

import numpy as np

from costmodels.problem import Problem
from planner.errors import EmitError
from planner.frameworks.launchers.hosts import chosen_hosts
from planner.frameworks.launchers.placement import (
    MEANINGS,
    Placement,
    ProcessGroups,
    dense_grid,
    place_plan,
)
from planner.render.answers.placement import rank_formula
from planner.render.plan_view.cards import (
    Amount,
    Cell,
    Deck,
    Derivation,
    Label,
    NumberTable,
    Words,
)
from planner.solver.answer.result import Plan
from planner.specs.inputs import ClusterInput

AXES = ("tp", "cp", "ep", "etp", "dp", "pp")
"""Axes by which ranks can be coloured."""
MOST_NODES = 16
N_COLOURS = 10


@dataclass(frozen=True, slots=True)
class DrawnRank:
    """One device of a drawn node."""

    rank: int
    groups: tuple[int, ...]
    """Number of its group on each axis of the map."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """One drawn node."""

    host: str
    index: int
    ranks: tuple[DrawnRank, ...]


@dataclass(frozen=True, slots=True)
class DrawnUnit:
    """Nodes that stand together: a scale-up domain or a unit of the network's lowest tier."""

    name: str
    nodes: tuple[DrawnNode, ...]
    gap: bool
    """Nodes between this unit and the one before are not drawn."""


@dataclass(frozen=True, slots=True)
class RankMap:
    """The ranks of a plan as they are drawn."""

    axes: tuple[str, ...]
    meanings: tuple[str, ...]
    units: tuple[DrawnUnit, ...]
    says: Words
    table: NumberTable


def rank_map(deck: Deck, problem: Problem, plan: Plan, cluster: ClusterInput) -> RankMap | None:
    """Return the map of ranks; None where the devices do not fill whole nodes."""
    pool, fabric = problem.pool, problem.fabric
    try:
        hosts = chosen_hosts(None, cluster)
        placed = place_plan(plan.layout, problem.shape, pool, fabric, hosts)
    except EmitError:
        try:
            placed = place_plan(plan.layout, problem.shape, pool, fabric)
        except EmitError:
            return None
    by_name = {group.name: group for group in placed.groups if group.n_members > 1}
    axes = tuple(axis for axis in AXES if axis in by_name)
    chosen = shown_nodes(placed, [by_name[axis] for axis in axes])
    of_rank = {axis: _group_of_rank(by_name[axis]) for axis in axes}
    units = _units(placed, chosen, [of_rank[axis] for axis in axes], problem)
    says = _says(deck, plan, placed, len(chosen))
    return RankMap(axes, tuple(MEANINGS[axis] for axis in axes), units, says, _table(deck, placed))


def shown_nodes(placed: Placement, groups: list[ProcessGroups]) -> tuple[int, ...]:
    """Return the nodes that are drawn, in order."""
    n = len(placed.hosts)
    if n <= MOST_NODES:
        return tuple(range(n))
    per_node, chosen = placed.devices_per_node, {0, 1}
    for group in groups:
        members = group.ranks[np.argmax((group.ranks == 0).any(axis=1))].tolist()
        chosen |= {members[i] // per_node for i in (0, 1, -1)}
    chosen |= {n - 1}
    return tuple(sorted(chosen)[:MOST_NODES])


def _group_of_rank(group: ProcessGroups) -> list[int]:
    """Return the number of the group that each rank is in."""
    out = np.zeros(group.ranks.size, dtype=np.int64)
    out[group.ranks] = np.arange(len(group.ranks))[:, None]
    return [int(x) for x in out]


def _units(
    placed: Placement, chosen: tuple[int, ...], of_rank: list[list[int]], problem: Problem
) -> tuple[DrawnUnit, ...]:
    per_node, tiers = placed.devices_per_node, problem.tiers
    size, name = len(placed.hosts), "cluster"
    if placed.nodes_per_domain > 1:
        size, name = placed.nodes_per_domain, "scale-up domain"
    elif tiers:
        size, name = tiers[0].n_nodes, tiers[0].name
    out: list[DrawnUnit] = []
    last = -1
    for unit in dict.fromkeys(index // size for index in chosen):
        nodes = []
        for index in (i for i in chosen if i // size == unit):
            ranks = range(index * per_node, (index + 1) * per_node)
            cells = tuple(DrawnRank(r, tuple(one[r] for one in of_rank)) for r in ranks)
            nodes.append(DrawnNode(placed.hosts[index], index, cells))
        gap = bool(out) and nodes[0].index != last + 1
        label = name if name == "cluster" else f"{name} {unit}"
        out.append(DrawnUnit(label, tuple(nodes), gap))
        last = nodes[-1].index
    return tuple(out)


def _says(deck: Deck, plan: Plan, placed: Placement, n_drawn: int) -> Words:
    x, per_node = plan.layout, placed.devices_per_node
    nodes = deck.add(
        "map-nodes",
        "nodes in use",
        Amount(len(placed.hosts), "", text=f"{len(placed.hosts):,}"),
        Derivation(
            "devices / devices of a node",
            f"{x.n_devices:,} / {per_node}",
            "planner.frameworks.launchers.placement.place_plan",
        ),
    )
    stage = x.tp * x.cp * x.dp
    of_stage = deck.add(
        "map-stage",
        "ranks of a pipeline stage",
        Amount(stage, "", text=f"{stage:,}"),
        Derivation(
            "tp × cp × dp",
            f"{x.tp} × {x.cp} × {x.dp}",
            "planner.frameworks.launchers.placement.dense_grid",
        ),
    )
    formula = rank_formula(dense_grid(x))
    sentence: Words = (
        nodes,
        " node" + "s" * (len(placed.hosts) > 1) + "; ranks are numbered ",
        Label(formula),
        " (",
        Label(x.rank_order),
        "). ",
        of_stage,
        " ranks are a pipeline stage. ",
    )
    left = len(placed.hosts) - n_drawn
    if left:
        left_out = deck.add(
            "map-left-out",
            "nodes that are not drawn",
            Amount(left, "", text=f"{left:,}"),
            Derivation(
                "nodes − those drawn",
                f"{len(placed.hosts):,} − {n_drawn}",
                "planner.render.plan_view.rank_map",
            ),
        )
        sentence += (
            left_out,
            " nodes are omitted: they repeat these. Shows the nodes that the groups of the first"
            " rank reach first, second and last, the second node and the last.",
        )
    return sentence


def _table(deck: Deck, placed: Placement) -> NumberTable:
    """Return every kind of group with several ranks, and how far the widest reaches."""
    rows: list[tuple[Cell, ...]] = []
    n, source = placed.n_ranks, "planner.frameworks.launchers.placement.process_groups"
    for group in (g for g in placed.groups if g.n_members > 1):
        key = f"group-{group.name}"
        members = deck.add(
            f"{key}-ranks",
            f"ranks of a {group.name} group",
            Amount(group.n_members, "", text=f"{group.n_members:,}"),
            Derivation(
                "ranks of all groups / groups",
                f"{group.ranks.size:,} / {len(group.ranks):,}",
                source,
                inputs=(("what they do together", MEANINGS[group.name]),),
            ),
        )
        groups = deck.add(
            f"{key}-groups",
            f"{group.name} groups",
            Amount(len(group.ranks), "", text=f"{len(group.ranks):,}"),
            Derivation(
                "ranks in such groups / ranks of one",
                f"{group.ranks.size:,} / {group.n_members:,}",
                source,
                inputs=(("ranks of the plan", f"{n:,}"),),
            ),
        )
        first = group.ranks[0].tolist()
        stride = (
            deck.add(
                f"{key}-stride",
                f"distance of neighbours in a {group.name} group",
                Amount(group.stride, "", text=f"{group.stride:,}"),
                Derivation("second rank − first rank", f"{first[1]:,} − {first[0]:,}", source),
            )
            if group.stride
            else None
        )
        nodes = deck.add(
            f"{key}-nodes",
            f"nodes that the widest {group.name} group touches",
            Amount(group.n_nodes, "", text=f"{group.n_nodes:,}"),
            Derivation(
                "nodes with a member",
                str(group.n_nodes),
                "planner.frameworks.launchers.placement.units_touched",
            ),
        )
        domains = deck.add(
            f"{key}-domains",
            f"scale-up domains that the widest {group.name} group touches",
            Amount(group.n_domains, "", text=f"{group.n_domains:,}"),
            Derivation(
                "domains with a member",
                str(group.n_domains),
                "planner.frameworks.launchers.placement.units_touched",
            ),
        )
        rows.append(
            (
                group.name,
                MEANINGS[group.name],
                members,
                groups,
                stride,
                nodes,
                domains,
                Label(group.tier),
            )
        )
    heads = ("Group", "Its ranks", "Ranks", "Groups", "Stride", "Nodes", "Domains", "Network")
    return NumberTable(heads, tuple(rows))
