"""The step that a file of `planner trace` draws, added up again by term."""

from collections.abc import Iterable, Mapping
from typing import Any

from planner.analyze.kineto.measurement import MeasuredTrace
from planner.analyze.trace.chrome_trace import COMPUTE
from planner.errors import UsageError

AFTER = "after the pipeline"
PARTS_AFTER = {
    "straggler": "pipeline",
    "tied embedding": "pipeline",
    "dp": "dp",
    "overlap": "compute",
    "optimizer": "optimizer",
    "offload": "compute",
    "fixed": "fixed",
}
"""What stands behind the pipeline, by name, and its part of the step."""


def is_drawn(header: Mapping[str, Any]) -> bool:
    """Tell whether the header of a trace is that of `planner trace`."""
    about = header.get("otherData")
    return isinstance(about, dict) and str(about.get("written_by", "")).startswith("planner ")


def measure_drawn(
    path: str, header: Mapping[str, Any], events: Iterable[Mapping[str, Any]], pp_rank: int
) -> MeasuredTrace:
    """Return the parts of the step of one pipeline rank, seconds.

    `compute`: the blocks without what they wait for; `tp`, `cp`, `ep`: those waits; `pipeline`:
    where no block runs before the pipeline ends, with the stragglers. Raises `UsageError` for a
    file that leaves out micro-batches.
    """
    about = header["otherData"]
    notes = [str(note) for note in about.get("notes", [])]
    cut = [note for note in notes if note.startswith("cut:")]
    if cut:
        raise UsageError(
            f"{path} leaves out part of the step ({cut[0]})",
            "write it whole, planner trace without --micro-batches",
        )
    try:
        parts, seen, end_us = _added_up(events, pp_rank)
    except (KeyError, TypeError, AttributeError):
        fix = "write the file again: planner trace PLAN"
        raise UsageError(f"{path} is no longer as planner trace wrote it", fix) from None
    if not seen:
        raise UsageError(f"{path} draws no pipeline rank {pp_rank}", "name another with --rank")
    return MeasuredTrace(
        path=path,
        rank=None,
        steps=(0,),
        step_times_s=(end_us * 1e-6,),
        parts_s=parts,
        traffic=(),
        unknown_s={},
        communicators=(),
        notes=(),
    )


def _added_up(
    events: Iterable[Mapping[str, Any]], pp_rank: int
) -> tuple[dict[str, float], bool, float]:
    """Return the parts in seconds, whether the rank is drawn, and the end in microseconds."""
    names = ("compute", "tp", "cp", "ep", "dp", "pipeline", "optimizer", "fixed")
    parts = dict.fromkeys(names, 0.0)
    busy_us = pipeline_end_us = end_us = 0.0
    seen = False
    for event in events:
        if event.get("ph") != "X":
            continue
        own = event["pid"] == pp_rank
        seen |= own
        until = event["ts"] + event["dur"]
        end_us = max(end_us, until)
        if event["cat"] == AFTER:
            if own:
                parts[PARTS_AFTER[event["name"]]] += event["dur"] * 1e-6
        elif event["tid"] == COMPUTE:
            pipeline_end_us = max(pipeline_end_us, until)
            busy_us += event["dur"] if own else 0.0
        elif own and event["cat"] in ("tp", "cp", "ep"):
            parts[event["cat"]] += event["args"]["waits_ms"] * 1e-3
    parts["compute"] += busy_us * 1e-6 - parts["tp"] - parts["cp"] - parts["ep"]
    parts["pipeline"] += (pipeline_end_us - busy_us) * 1e-6
    return parts, seen, end_us
