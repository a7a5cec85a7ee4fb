"""What is asked of one plan over several pools, be it of pipelines or of sharded replicas."""

from planner.analyze.joined.explanation import JoinedExplanation, explain_joined
from planner.analyze.joined.timeline import joined_trace_json
from planner.analyze.sharded.explanation import ShardedExplanation, explain_sharded
from planner.analyze.sharded.timeline import sharded_trace_json
from planner.solver.together.opened import OpenedSeveral
from planner.solver.together.replicas.opened import OpenedSharded


def explain_several(
    opened: OpenedSeveral, term: str = ""
) -> JoinedExplanation | ShardedExplanation:
    """Return what explains a plan, or one term; `UsageError` for a term that it does not have."""
    if isinstance(opened, OpenedSharded):
        return explain_sharded(opened, term)
    return explain_joined(opened, term)


def trace_several_json(opened: OpenedSeveral, micro_batches: int = 0) -> str:
    """Return the trace file of one step of a plan; `micro_batches` as for plans on one pool.

    Raises `UsageError` where they make more blocks than a trace holds.
    """
    if isinstance(opened, OpenedSharded):
        return sharded_trace_json(opened, micro_batches)
    return joined_trace_json(opened, micro_batches)
