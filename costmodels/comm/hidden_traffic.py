"""When in a step the data-parallel traffic runs that compute does not wait for.

The cost model knows how much of it hides beside which blocks (`step.data_parallel_exposed`), not
when within them. What is drawn here is the earliest time that the model's own windows allow:

- weights once a step (ZeRO 1 and 2): from the start of a rank's first forward on;
- gradients once a step (ZeRO 0 and 1): the share of each model chunk from the start of its last
  backward on, one after the other; the last share so that it ends with that backward, as what is
  not hidden follows it. Where the backward is split, all of it before the last weight gradient;
- in every micro-batch (ZeRO 2 and 3): from the start of each block on, in proportion to its time.

What is waited for is not placed: a step has it behind the pipeline.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodels.breakdown import Breakdown, virtual_stage_times, virtual_weight_grad_times
from costmodels.comm.data_parallel import exposed_each_s
from costmodels.plans import ZERO_BUBBLE, Layout
from costmodels.schedule.pipeline import TimedBlock, Timeline
from costmodels.schedule.stages import layer_prefix, other_kinds
from costmodels.schedule.zero_bubble import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Part
from costmodels.step import (
    Rows,
    StageTimes,
    exposed_gather_once,
    exposed_reduce_once,
    stage_times,
    wire_times,
)

Floats = NDArray[np.float64]

FIRST_FORWARD, LAST_BACKWARD = "first forward", "last backward"
FORWARDS, LATER_FORWARDS, BACKWARDS = "forwards", "later forwards", "backwards"
GRADIENTS, WEIGHTS, BOTH = "gradients", "weights", "weights and gradients"


@dataclass(frozen=True, slots=True)
class DataParallelPart:
    """Data-parallel traffic of one place in the step; seconds of a step by kind of rank."""

    what: str
    """`gradients`, `weights`, or both."""
    beside: str
    """`first forward` and `last backward`: once a step; `forwards` (all, or all but the `first
    forward`: `later forwards`) and `backwards`: in every micro-batch."""
    time_s: Floats
    """On the wire."""
    exposed_s: Floats
    """What compute waits for."""

    @property
    def hidden_s(self) -> Floats:
        """What runs beside compute."""
        return np.asarray(np.maximum(0.0, self.time_s - self.exposed_s))


@dataclass(frozen=True, slots=True)
class HiddenTraffic:
    """Data-parallel traffic of one rank beside its compute."""

    what: str
    start_s: float
    end_s: float
    micros: tuple[int, ...]
    """Micro-batches of the block that it runs beside; none for what moves once a step."""


@dataclass(frozen=True, slots=True)
class RankTraffic:
    """Data-parallel traffic of one rank in a step, seconds, and when what hides of it runs."""

    time_s: float
    """On the wire."""
    exposed_s: float
    """What compute waits for."""
    hidden: tuple[HiddenTraffic, ...]

    @property
    def hidden_s(self) -> float:
        """What runs beside compute: the sum of `hidden`."""
        return max(0.0, self.time_s - self.exposed_s)


def data_parallel_parts(rows: Rows, times: StageTimes) -> tuple[DataParallelPart, ...]:
    """Return `step.data_parallel_exposed` of one plan by what it is and where in the step.

    `rows` is a table of one plan; arrays are `(n_kinds, 1)`. The sums over the parts are its
    exposed and hidden time.
    """
    wire, zero = wire_times(rows), rows.table.zero.item()
    m, stack = rows.table.n_micro.item(), rows.problem.stack
    reduced = DataParallelPart(
        GRADIENTS, LAST_BACKWARD, wire.reduce_s, exposed_reduce_once(rows, times, wire)
    )
    gathered = DataParallelPart(
        WEIGHTS, FIRST_FORWARD, wire.gather_s, exposed_gather_once(rows, times, wire)
    )
    prefetched = stack.zero3_traffic == "prefetched"
    near = wire.gather_s if wire.again_s is None else wire.again_s
    near_piece = wire.gather_piece_s if wire.again_piece_s is None else wire.again_piece_s
    results: list[DataParallelPart] = []

    def each(what: str, beside: str, n: int, one: Floats, piece: Floats, by: Floats) -> None:
        waits = exposed_each_s(one, piece, by) if prefetched else one
        results.append(DataParallelPart(what, beside, n * one, n * waits))

    if zero <= 1:
        results += [gathered, reduced]
    elif zero == 2:
        overlapped = prefetched and stack.zero1_overlap == "both"
        results.append(gathered if overlapped else replace(gathered, exposed_s=gathered.time_s))
        each(GRADIENTS, BACKWARDS, m, wire.reduce_s, wire.reduce_piece_s, times.backward_s)
    else:
        args = (wire.gather_s, wire.gather_piece_s, times.forward_s)
        if wire.again_s is None:
            each(WEIGHTS, FORWARDS, m, *args)
        else:
            each(WEIGHTS, FIRST_FORWARD, 1, *args)
            each(WEIGHTS, LATER_FORWARDS, m - 1, near, near_piece, times.forward_s)
        behind = near + wire.reduce_s
        each(BOTH, BACKWARDS, m, behind, wire.reduce_piece_s, times.backward_s)
    if rows.table.shardings.dp_blocking[rows.table.sharding].item():
        results = [replace(part, exposed_s=part.time_s) for part in results]
    return tuple(results)


def hidden_traffic(plan: Breakdown, run: Timeline) -> tuple[RankTraffic, ...]:
    """Return the data-parallel traffic of every pipeline rank of a plan, `run` its blocks in time.

    `run` may have fewer micro-batches than the plan: what moves in each of them is that of these.
    """
    rows, layout = plan.rows, plan.layout
    parts = data_parallel_parts(rows, stage_times(rows))
    share = layout.n_micro / rows.table.n_micro.item()
    seconds_of, out = _seconds_of(rows, layout), []
    for rank in range(layout.pp):
        kind, blocks = _kind_of(rows, layout, rank), run.blocks[rank]
        spans: list[HiddenTraffic] = []
        for part in parts:
            hidden_s = part.hidden_s[kind, 0].item()
            if hidden_s <= 0.0:
                continue
            if part.beside == LAST_BACKWARD:
                total = part.time_s[kind, 0].item()
                spans += _beside_last_backward(part.what, total, hidden_s, blocks, layout)
            elif part.beside == FIRST_FORWARD and layout.zero < 3:
                start = blocks[0].start_s
                spans.append(HiddenTraffic(part.what, start, start + hidden_s, ()))
            else:
                total = hidden_s if part.beside == FIRST_FORWARD else hidden_s * share
                spans += _in_blocks(part, total, blocks, seconds_of)
        time_s, exposed_s = (
            sum(x[kind, 0].item() for x in each)
            for each in ([p.time_s for p in parts], [p.exposed_s for p in parts])
        )
        out.append(RankTraffic(time_s, exposed_s, _one_behind_the_other(spans)))
    return tuple(out)


def _beside_last_backward(
    what: str, time_s: float, hidden_s: float, blocks: Sequence[TimedBlock], layout: Layout
) -> list[HiddenTraffic]:
    """Return gradients that move once a step: each chunk's share from its last backward on."""
    if layout.schedule in ZERO_BUBBLE:
        end = blocks[-1].end_s
        return [HiddenTraffic(what, end - hidden_s, end, ())]
    last = {stage: block for block in blocks for stage, _, kind in block.parts if kind == BACKWARD}
    windows = sorted((block.start_s, block.end_s) for block in last.values())
    # What is not hidden comes last: the last chunk's share is the one that is cut.
    left, free, spans = hidden_s, 0.0, []
    for start, _ in windows[:-1]:
        took = min(time_s / len(windows), left)
        begins = max(free, start)
        spans.append((begins, begins + took))
        left, free = left - took, begins + took
    start, latest = windows[-1]
    begins, out = max(free, start, latest - left), []
    spans.append((begins, begins + left))
    for begins, ends in reversed(spans):
        took, ends = ends - begins, min(ends, latest)
        latest = ends - took
        out.append(HiddenTraffic(what, latest, ends, ()))
    return [span for span in out if span.end_s > span.start_s]


def _in_blocks(
    part: DataParallelPart,
    hidden_s: float,
    blocks: Sequence[TimedBlock],
    seconds_of: Callable[[Part], float],
) -> list[HiddenTraffic]:
    """Return traffic beside the blocks of every micro-batch, in proportion to their time."""
    kinds = (FORWARD,) if "forward" in part.beside else (BACKWARD, INPUT_GRAD, WEIGHT_GRAD)

    def beside(block: TimedBlock) -> float:
        return sum(seconds_of(x) for x in block.parts if x[2] in kinds and _counts(part, x[1]))

    timed = [(block, beside(block)) for block in blocks]
    total = sum(seconds for _, seconds in timed)
    return [
        HiddenTraffic(
            part.what,
            block.start_s,
            block.start_s + hidden_s * (seconds / total),
            tuple(micro for _, micro, _ in block.parts),
        )
        for block, seconds in timed
        if seconds > 0.0
    ]


def _counts(part: DataParallelPart, micro: int) -> bool:
    """Tell whether a part runs beside the blocks of a micro-batch."""
    if part.beside == FIRST_FORWARD:
        return micro == 0
    return part.beside != LATER_FORWARDS or micro > 0


def _one_behind_the_other(spans: Collection[HiddenTraffic]) -> tuple[HiddenTraffic, ...]:
    """Return spans in order of time, each after the end of the one before: there is one wire."""
    out: list[HiddenTraffic] = []
    for span in sorted(spans, key=lambda x: (x.start_s, x.end_s)):
        start = max(span.start_s, out[-1].end_s) if out else span.start_s
        out.append(replace(span, start_s=start, end_s=start + span.end_s - span.start_s))
    return tuple(out)


def _seconds_of(rows: Rows, layout: Layout) -> Callable[[Part], float]:
    """Return what tells how long a part of a block takes."""
    forward, backward = virtual_stage_times(rows, layout)
    weight_grad_s = virtual_weight_grad_times(rows, layout)
    n = len(layout.stage_layers)

    def seconds(part: Part) -> float:
        stage, _, kind = part
        j = stage % n
        if kind == WEIGHT_GRAD:
            return weight_grad_s[j]
        total = forward[j] if kind == FORWARD else backward[j]
        return total - weight_grad_s[j] if kind == INPUT_GRAD else total

    return seconds


def _kind_of(rows: Rows, layout: Layout, rank: int) -> int:
    """Return the place of a rank's kind in arrays by kind of rank."""

    def held(r: int) -> tuple[object, ...]:
        stages, counts = layout.stages_of(r), layout.stage_layers
        kinds = other_kinds(rows.problem.shape.layer_sequence)
        others = [layer_prefix(counts, stages, x, max(counts)) for x in kinds]
        return (sorted(layout.chunks_of(r)), others, layout.has_embedding(r), layout.has_head(r))

    own = held(rank)
    firsts = rows.shapes.kinds.rank[0].tolist()
    return next(k for k, r in enumerate(firsts) if held(r) == own)
