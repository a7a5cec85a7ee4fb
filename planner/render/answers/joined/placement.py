"""Where the ranks of a plan over several pools run: nodes by pool, groups, hosts."""

from planner.analyze.joined_files import JoinedPlacement
from planner.documents import Blank, Part
from planner.render.answers.placement import placement_document
from planner.render.answers.together import pool_nodes_grid


def joined_placement_document(placed: JoinedPlacement, heading: str = "") -> list[Part]:
    """Return which nodes of which pool hold which ranks, then the groups as on one pool."""
    first, *rest = placement_document(placed.placement, heading)
    return [first, Blank(), pool_nodes_grid(placed.pools), Blank(), *rest]
