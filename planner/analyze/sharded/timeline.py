"""One step of sharded replicas in time: a Chrome trace, a process for each kind of replica.

Every micro-batch waits for its weights, runs its forward and its backward, and waits for its
gradients: first inside the replica, then over all of them. Traffic that hides is drawn beside the
block that hides it. Times are those of the price (`costmodels.mixed.sharded_prices`), so that the
step ends where it was priced to.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from planner import __version__
from planner.analyze.sharded.traffic import ReplicaTraffic, kind_traffic
from planner.analyze.trace.chrome_trace import (
    COMPUTE,
    DP,
    HIDDEN,
    Event,
    complete_event,
    cut_note,
    drawn_micro_batches,
    name_event,
    ticks_us,
    trace_text,
)
from planner.solver.together.records import JoinedKind
from planner.solver.together.replicas.opened import OpenedSharded

EXCHANGE = 6
"""Thread of the sum over the replicas."""
THREADS = {COMPUTE: "compute", DP: "inside the replica", EXCHANGE: "over the replicas"}
WAIT = "wait for other replicas"
AFTER = "after the micro-batches"
NOTES = (
    "one replica of each kind is drawn; all of a kind are alike",
    "traffic of tp and cp is part of its block",
    "a fast replica waits once, before its optimizer; in truth unit by unit",
    "traffic that hides is named hidden: the model knows how much, not when; drawn from the start"
    " of the block that hides it",
    "memory: a micro-batch counts from the start of its forward to the end of its backward",
)


@dataclass(frozen=True, slots=True)
class _Micro:
    """One micro-batch of a replica, seconds of each part in the order of time."""

    parts: tuple[tuple[str, int, float], ...]
    """Name, thread, seconds."""
    gather_hidden_s: float
    scatter_hidden_s: float
    exchange_hidden_s: float

    @property
    def each_s(self) -> float:
        """From its start to that of the next."""
        return sum(seconds for _, _, seconds in self.parts)


def sharded_trace_json(opened: OpenedSharded, micro_batches: int = 0) -> str:
    """Return the trace file of one step: the same bytes for the same plan.

    `micro_batches` keeps the first and last of them, 0 keeps all. Raises `UsageError` where they
    make more blocks than a trace holds.
    """
    events, ends_s = sharded_trace_events(opened, micro_batches)
    plan, n_micro = opened.plan, opened.sharded.n_micro
    is_cut = 0 < micro_batches < n_micro
    about = {
        "plan": plan.plan_id,
        "replicas": [_kind_words(opened, kind) for kind in plan.kinds],
        "model": opened.model.shape.name,
        "predicted_step_s": plan.step_time_s,
        "trace_end_s": max(ends_s),
        "predicted_peak_bytes": max(x.peak_bytes for k in plan.kinds for x in k.stages),
        "notes": [*NOTES, *([cut_note(micro_batches, n_micro)] if is_cut else [])],
        "written_by": f"planner {__version__}",
    }
    return trace_text(events, about)


def sharded_trace_events(
    opened: OpenedSharded, micro_batches: int = 0
) -> tuple[list[Event], list[float]]:
    """Return the events of one step, names first, then in order of time; the end of each kind."""
    n_micro, kinds = opened.sharded.n_micro, opened.plan.kinds
    shown = drawn_micro_batches(n_micro, 2 * len(kinds), micro_batches)
    named: list[Event] = []
    timed: list[Event] = []
    ends_s: list[float] = []
    for i, kind in enumerate(kinds):
        micro = _micro(opened, i)
        start_s = n_micro * micro.each_s
        own = [*_micro_events(i, micro, shown), *_memory_events(i, micro, kind, shown)]
        for name, seconds in _after(opened, kind):
            # The end of the last is the step, not on the grid of ticks.
            end_s = start_s + seconds
            end_us = end_s * 1e6 if name == "fixed" else ticks_us(end_s)
            span = ticks_us(start_s), end_us
            own.append(complete_event(i, COMPUTE, name, AFTER, span, {}))
            start_s = end_s
        ends_s.append(start_s)
        named += _names(opened, i, {event["tid"] for event in own if event["ph"] == "X"})
        timed += own
    timed.sort(key=lambda e: (e["ts"], e["pid"], e["tid"], e["ph"], e["name"]))
    return named + timed, ends_s


def _micro(opened: OpenedSharded, index: int) -> _Micro:
    """Return one micro-batch of a kind of replicas."""
    m, priced = opened.sharded.n_micro, opened.priced.kinds[index]
    traffic: ReplicaTraffic = kind_traffic(opened, index)
    parts = (
        ("weights", DP, traffic.gather_waits_s / m),
        ("F", COMPUTE, priced.forward_s),
        ("B", COMPUTE, priced.backward_s),
        ("gradients", DP, traffic.scatter_waits_s / m),
        ("sum over the replicas", EXCHANGE, traffic.exchange_waits_s / m),
        ("slowed by hidden traffic", COMPUTE, traffic.slowdown_s / m),
        ("straggler", COMPUTE, priced.straggle_s / m),
    )
    inside_s = traffic.gather_s / 2.0 + traffic.scatter_s - traffic.scatter_waits_s
    return _Micro(
        parts=parts,
        gather_hidden_s=(traffic.gather_s / 2.0 - traffic.gather_waits_s) / m,
        scatter_hidden_s=inside_s / m,
        exchange_hidden_s=(traffic.exchange_s - traffic.exchange_waits_s) / m,
    )


def _after(opened: OpenedSharded, kind: JoinedKind) -> Iterator[tuple[str, float]]:
    """Yield what follows the micro-batches, seconds, without what takes no time."""
    yield from (
        (name, seconds)
        for name, seconds in (
            (WAIT, opened.plan.step_time_s - kind.step_time_s),
            ("optimizer", kind.time["update"]),
            ("fixed", kind.time["fixed"]),
        )
        if seconds > 0.0
    )


def _micro_events(pid: int, micro: _Micro, shown: Collection[int]) -> Iterator[Event]:
    """Yield the blocks of each micro-batch, what is waited for, and what hides beside them."""
    hidden = {
        "F": (("weights", DP, micro.gather_hidden_s),),
        "B": (
            ("weights and gradients", DP, micro.scatter_hidden_s),
            ("sum over the replicas", EXCHANGE, micro.exchange_hidden_s),
        ),
    }
    categories = {"F": "forward", "B": "backward"}
    for n in sorted(shown):
        start_s = n * micro.each_s
        for name, tid, seconds in micro.parts:
            span = ticks_us(start_s), ticks_us(start_s + seconds)
            args = {"micro_batch": n}
            if span[1] > span[0]:
                category = categories.get(name, "waited for" if tid != COMPUTE else "slower")
                title = f"{name}{n}" if name in categories else f"{name} {n}"
                yield complete_event(pid, tid, title, category, span, args)
            for what, lane, hidden_s in hidden.get(name, ()):
                beside = ticks_us(start_s), ticks_us(start_s + min(hidden_s, seconds))
                if beside[1] > beside[0]:
                    title, more = f"{what} {n} (hidden)", {**args, "hidden_ms": hidden_s * 1e3}
                    yield complete_event(pid, lane, title, HIDDEN, beside, more)
            start_s += seconds


def _memory_events(
    pid: int, micro: _Micro, kind: JoinedKind, shown: Collection[int]
) -> Iterator[Event]:
    """Yield the memory of a device of a replica whenever it changes."""
    stage = kind.stages[0]
    low = stage.states_bytes + stage.other_bytes
    ahead_s, forward_s, backward_s = (seconds for _, _, seconds in micro.parts[:3])
    levels = {0.0: low}
    for n in sorted(shown):
        start_s = n * micro.each_s + ahead_s
        levels[ticks_us(start_s)] = stage.peak_bytes
        levels[ticks_us(start_s + forward_s + backward_s)] = low
    for at_us, level in levels.items():
        args = {"bytes": level}
        yield {"ph": "C", "pid": pid, "tid": COMPUTE, "ts": at_us, "name": "memory", "args": args}


def _names(opened: OpenedSharded, pid: int, used: Collection[int]) -> Iterator[Event]:
    label = _kind_words(opened, opened.plan.kinds[pid])
    yield name_event(pid, COMPUTE, "process_name", {"name": label})
    yield name_event(pid, COMPUTE, "process_sort_index", {"sort_index": pid})
    for tid in sorted(used):
        yield name_event(pid, tid, "thread_name", {"name": THREADS[tid]})
        yield name_event(pid, tid, "thread_sort_index", {"sort_index": tid})


def _kind_words(opened: OpenedSharded, kind: JoinedKind) -> str:
    n, stage = kind.n_pipelines // opened.plan.shard, kind.stages[0]
    each = opened.plan.shard * stage.tp * stage.cp
    return (
        f"{kind.pools[0]}, {opened.part(kind.pools[0])}: {n} of {each} devices,"
        f" {kind.n_micro} micro-batches of {kind.mbs}"
    )
