"""One step of a plan over several pools in time: a Chrome trace, a process for each stage.

Blocks, messages and memory are those of traces of plans on one pool
(`planner.analyze.trace.chrome_trace`), each stage with the times of its pool.
"""

from collections.abc import Iterator, Sequence

from costmodels.comm.hidden_traffic import RankTraffic
from costmodels.mixed.plans import PipelineKind
from costmodels.mixed.prices import KindPrice, in_flight
from costmodels.plans import Layout
from costmodels.schedule.pipeline import PipelineRun, timeline
from costmodels.schedule.timeline import NOTHING, RankMemory, StageWires, StepTimeline
from planner import __version__
from planner.analyze.trace.chrome_trace import (
    Event,
    cut_note,
    drawn_events,
    drawn_micro_batches,
    trace_text,
)
from planner.solver.together.opened import OpenedJoined

CLOSED_FORM = "closed form"
"""What the price has beyond the pipeline as it is drawn: it is an upper bound of it."""
WAIT = "wait for other pipelines"
NOTES = (
    "one pipeline of each kind is drawn, the one with most micro-batches; all of a kind are alike",
    "traffic of tp, cp and ep is part of its block",
    "what sync, exchange and update take of the stage that takes longest is drawn on each",
    "memory: a micro-batch counts from the start of its forward to the end of its backward;"
    " temporaries of a backward are counted all the time",
)


def joined_trace_json(opened: OpenedJoined, micro_batches: int = 0) -> str:
    """Return the trace file of one step: the same bytes for the same plan.

    `micro_batches` keeps the first and last of them, 0 keeps all. Raises `UsageError` where they
    make more blocks than a trace holds.
    """
    steps = [step_of(opened, i) for i in range(len(opened.mixed.kinds))]
    events, ends_s = joined_trace_events(opened, steps, micro_batches)
    plan = opened.plan
    about = {
        "plan": plan.plan_id,
        "pipelines": [_kind_words(opened, i) for i in range(len(plan.kinds))],
        "model": opened.model.shape.name,
        "predicted_step_s": plan.step_time_s,
        "trace_end_s": max(ends_s),
        "predicted_peak_bytes": max(x.peak_bytes for k in plan.kinds for x in k.stages),
        "notes": list(_notes(opened, steps, ends_s, micro_batches)),
        "written_by": f"planner {__version__}",
    }
    return trace_text(events, about)


def joined_trace_events(
    opened: OpenedJoined, steps: Sequence[StepTimeline], micro_batches: int = 0
) -> tuple[list[Event], list[float]]:
    """Return the events of one step, names first, then in order of time; the end of each kind.

    `steps` are those of the kinds (`step_of`).
    """
    kinds = opened.mixed.kinds
    # Of all kinds together: each is one of the pipelines of the trace.
    blocks_each = 2 * sum(kind.pp for kind in kinds)
    drawn_micro_batches(max(kind.n_micro for kind in kinds), blocks_each, micro_batches)
    named: list[Event] = []
    timed: list[Event] = []
    ends_s: list[float] = []
    first_rank = first_flow = 0
    for i, kind in enumerate(kinds):
        shown = drawn_micro_batches(kind.n_micro, 2 * kind.pp, micro_batches)
        events, end_s = drawn_events(steps[i], _layout(kind), shown)
        for event in events:
            _move(event, first_rank, first_flow)
            if event["name"] == "process_name":
                event["args"] = {"name": _stage_words(opened, i, event["pid"] - first_rank)}
            (named if event["ph"] == "M" else timed).append(event)
        first_rank += kind.pp
        first_flow = max([first_flow, *(x["id"] for x in timed if "id" in x)])
        ends_s.append(end_s)
    timed.sort(key=lambda e: (e["ts"], e["pid"], e["tid"], e["ph"], e.get("id", 0)))
    return named + timed, ends_s


def _move(event: Event, first_rank: int, first_flow: int) -> None:
    """Let the ranks and flows of an event begin behind those of other kinds."""
    event["pid"] += first_rank
    if "id" in event:
        event["id"] += first_flow
    if event["name"] == "process_sort_index":
        event["args"] = {"sort_index": event["pid"]}
    if "to" in event.get("args", {}):
        event["args"]["to"] += first_rank


def step_of(opened: OpenedJoined, index: int) -> StepTimeline:
    """Return the step of one kind of pipelines in time, from the recurrence of its stages."""
    kind, priced = opened.mixed.kinds[index], opened.priced.kinds[index]
    run = PipelineRun(
        schedule="1f1b",
        pp=kind.pp,
        vpp=1,
        n_micro=kind.n_micro,
        forward_s=tuple(x.forward_s for x in priced.stages),
        backward_s=tuple(x.backward_s for x in priced.stages),
        hop_s=(*priced.hops_s, 0.0),
    )
    laid_out = timeline(run)
    nothing = {"tp": NOTHING, "cp": NOTHING, "ep": NOTHING}
    memory = tuple(
        RankMemory(
            always_bytes=x.states_bytes + x.other_bytes,
            backward_bytes=0.0,
            chunk_bytes=(x.activation_bytes / in_flight(kind.pp, r, kind.n_micro),),
            late_bytes=0.0,
            pp=kind.pp,
        )
        for r, x in enumerate(priced.stages)
    )
    waits_s = opened.priced.step_s - priced.step_s
    return StepTimeline(
        pipeline=laid_out,
        layers=tuple(stage.layers for stage in kind.stages),
        wires=(StageWires(nothing, nothing),) * kind.pp,
        memory=memory,
        data_parallel=(RankTraffic(0.0, 0.0, ()),) * kind.pp,
        after=tuple(_after(priced, laid_out.end_s, waits_s)),
    )


def _after(
    priced: KindPrice, pipeline_s: float, waits_s: float
) -> Iterator[tuple[str, str, float]]:
    """Yield what follows the pipeline, in seconds, without what takes no time."""
    closed_s = priced.compute_s + priced.bubble_s + priced.messages_s - pipeline_s
    parts = (
        # Less is rounding.
        (CLOSED_FORM, "compute", closed_s if closed_s > 1e-12 * pipeline_s else 0.0),
        ("straggler", "compute", priced.straggle_s),
        ("sync", "dp", priced.sync_s),
        (WAIT, "compute", waits_s),
        ("exchange", "dp", priced.exchange_s),
        ("optimizer", "compute", priced.update_s),
        ("fixed", "compute", priced.fixed_s),
    )
    return (part for part in parts if part[2] > 0.0)


def _layout(kind: PipelineKind) -> Layout:
    """Return the pipeline of a kind as traces take it; its degrees differ by stage."""
    counts = tuple(stage.layers for stage in kind.stages)
    return Layout(
        n_devices=kind.pp * kind.n_pipelines,
        tp=1,
        pp=kind.pp,
        dp=kind.n_pipelines,
        vpp=1,
        split="-".join(map(str, counts)),
        schedule="1f1b",
        mbs=kind.mbs,
        gbs=kind.mbs * kind.n_micro * kind.n_pipelines,
        zero=1,
        sp=False,
        recompute="none",
        recompute_layers=0,
        stage_layers=counts,
    )


def _stage_words(opened: OpenedJoined, index: int, rank: int) -> str:
    """Return what a stage is called: its kind, place, pool, accelerator and layers."""
    kinds = opened.plan.kinds
    stage = kinds[index].stages[rank]
    named = f"kind {index + 1}, " if len(kinds) > 1 else ""
    return (
        f"{named}stage {rank + 1}: {stage.pool}, {opened.part(stage.pool)}, {stage.layers} layers"
    )


def _kind_words(opened: OpenedJoined, index: int) -> str:
    kind = opened.plan.kinds[index]
    return (
        f"{kind.n_pipelines} of {len(kind.stages)} stages over {' and '.join(kind.pools)},"
        f" {kind.n_micro} micro-batches of {kind.mbs}"
    )


def _notes(
    opened: OpenedJoined, steps: Sequence[StepTimeline], ends_s: list[float], micro_batches: int
) -> Iterator[str]:
    """Yield what a reader of the trace should know."""
    yield from NOTES
    for i, kind in enumerate(opened.mixed.kinds, 1):
        if 0 < micro_batches < kind.n_micro:
            yield f"kind {i}: {cut_note(micro_batches, kind.n_micro)}"
    step_s = opened.priced.step_s
    if any(step.after and step.after[0][0] == CLOSED_FORM for step in steps):
        yield (
            f"the price of a pipeline of unlike stages is an upper bound: {CLOSED_FORM} is by how"
            " much it is longer than the pipeline drawn"
        )
    if max(ends_s) > step_s * (1.0 + 1e-9):
        yield (
            "the pipeline drawn is longer than its price, which takes messages to be short"
            f" ({max(ends_s) / step_s - 1.0:+.1e})"
        )
