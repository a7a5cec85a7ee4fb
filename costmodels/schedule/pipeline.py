"""Pipeline schedules: closed forms for ranking, the exact recurrence for the plans that matter.

Times are per micro-batch, seconds. `n_micro` is m, p the ranks, v the chunks per rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.plans import ZERO_BUBBLE
from costmodels.schedule import lockstep, rounds, zero_bubble
from costmodels.schedule.zero_bubble import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Step

Floats = NDArray[np.float64]


def compute_s(
    slowest_s: ArrayLike, all_stages_s: ArrayLike, vpp: ArrayLike, n_micro: ArrayLike
) -> Floats:
    """Return the closed-form pipeline time without point-to-point latency, seconds.

    T = m t_max + (sum_r t_r - t_max) / v

    t_r is forward plus backward of rank r's whole stage. Exact for equal stages: m t + (p - 1) t
    / v, the bubble of GPipe, 1F1B (v = 1) and interleaved 1F1B (Narayanan et al. 2021, section
    2.2), and for interleaving when only the last chunk differs. An upper bound for uneven
    1F1B whose backward times are in proportion to the forward times; not one when the slowest
    forward and backward are on different ranks, nor for interleaving with uneven chunks.
    `simulate_s` gives the exact time.

    >>> compute_s(3.0, 12.0, 1, 8).item()  # p = 4, t = 3, m = 8: (8 + 3) * 3
    33.0
    """
    slowest, total = np.asarray(slowest_s), np.asarray(all_stages_s)
    return np.asarray(np.asarray(n_micro) * slowest + (total - slowest) / np.asarray(vpp))


def p2p_s(
    schedule: ArrayLike, pp: ArrayLike, vpp: ArrayLike, n_micro: ArrayLike, hop_s: ArrayLike
) -> Floats:
    """Return the point-to-point time that the schedule exposes, closed form, seconds.

    GPipe: 2 (p - 1) tau. 1F1B: tau [2 (p - 1) + 2 (m - 1 - ceil((m - 1)/p))]: neighbours
    ping-pong, so 2 (p - 1)/p of tau is exposed per micro-batch also in the steady state.
    Interleaved: 2 (p v - 1) tau while tau is shorter than a chunk. For equal stages exact as long
    as messages are short, and a lower bound of what longer ones take: every path through the
    recurrence costs its blocks and a whole number of tau, so the step, the longest of them, is
    convex in tau. Source: simulation of the recurrence below (tests). Schedules that split the
    backward: `zero_bubble.crossings`.

    >>> p2p_s(2, 8, 1, 32, 1.0).item()
    68.0
    """
    code, p = np.asarray(schedule), np.asarray(pp, dtype=np.float64)
    m, v = np.asarray(n_micro, dtype=np.float64), np.asarray(vpp, dtype=np.float64)
    one_f_one_b = zero_bubble.alternating_crossings(p, m)
    crossings = np.where(code == 1, 2 * (p - 1), np.where(code == 3, 2 * (p * v - 1), one_f_one_b))
    if np.any(code >= zero_bubble.FIRST_CODE):
        split = zero_bubble.crossings(code, p, m)
        crossings = np.where(code >= zero_bubble.FIRST_CODE, split, crossings)
    return np.where(p > 1, crossings * np.asarray(hop_s), 0.0)


def bubble_frac(pp: int, vpp: int, n_micro: int) -> float:
    """Return the idle share of the step for equal stages: (p - 1) / (m v + p - 1).

    >>> round(bubble_frac(4, 1, 8), 3)
    0.273
    """
    return (pp - 1) / (n_micro * vpp + pp - 1)


Block = tuple[int, int, bool]
"""One block of a rank's program: virtual stage, micro-batch, backward or forward."""

PROVEN_PERIODS = (7, 14)
"""Periods of p micro-batches that are simulated in turn, to see whether all blocks shift by the
same time from one period to the next. The second is for schedules that split the backward."""
LONG_PERIODS = 24
"""Least periods after which a pipeline that keeps changing a little is taken to be periodic; up to
11 more, so that what is left to extrapolate is a multiple of `COMMON_PERIODS`."""
COMMON_PERIODS, COMMON_DIVISORS = 12, (1, 2, 3, 4, 6, 12)
"""Steps that repeat after one of these numbers of periods repeat after 12. Where that is not
proven, the step is simulated whole, or, beyond `WHOLE_TICKS`, the mean over the last 12 taken."""
WHOLE_TICKS = 16384
"""Length of the steps that are simulated whole rather than estimated: a tenth of a second for any
number of them at a time."""
STEADY_PERIODS = (16, 24)
"""As `LONG_PERIODS`, for schedules that split the backward: both lengths are simulated."""

Ends = list[list[float]]
"""When each block ends: by virtual stage, then by micro-batch."""


def rank_program(schedule: str, rank: int, pp: int, vpp: int, n_micro: int) -> list[Block]:
    """Return the order in which `rank` runs its blocks.

    1F1B: p - r - 1 warm-up forwards, then forward and backward in turn, then the backwards left.
    Interleaved: 2 (p - r - 1) + (v - 1) p warm-up forwards over groups of p micro-batches per
    chunk, backwards with the chunks reversed. Needs m to be a multiple of p.
    Source: Megatron-LM core/pipeline_parallel/schedules.py.
    """
    _check_rounds(schedule, pp, n_micro)
    if schedule == "interleaved":
        order = [
            (chunk, base + i)
            for base in range(0, n_micro, pp)
            for chunk in range(vpp)
            for i in range(pp)
        ]
        forwards = [(chunk * pp + rank, micro, False) for chunk, micro in order]
        backwards = [((vpp - 1 - chunk) * pp + rank, micro, True) for chunk, micro in order]
        warm_up = min(len(order), 2 * (pp - rank - 1) + (vpp - 1) * pp)
    else:
        forwards = [(rank, micro, False) for micro in range(n_micro)]
        backwards = [(rank, micro, True) for micro in range(n_micro)]
        warm_up = n_micro if schedule == "gpipe" else min(n_micro, pp - rank - 1)
    program = forwards[:warm_up]
    steady = len(forwards) - warm_up
    for pair in zip(forwards[warm_up:], backwards[:steady], strict=True):
        program.extend(pair)
    return program + backwards[steady:]


def _check_rounds(schedule: str, pp: int, n_micro: int) -> None:
    if schedule == "interleaved" and n_micro % pp:
        raise ValueError(f"interleaved: {n_micro} micro-batches are no multiple of pp {pp}")


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """One step through a pipeline: its schedule, and how long its blocks and messages take."""

    schedule: str
    pp: int
    vpp: int
    n_micro: int
    forward_s: tuple[float, ...]
    """By virtual stage in model order, per micro-batch; so are the other stage times."""
    backward_s: tuple[float, ...]
    hop_s: float | tuple[float, ...]
    """`(pp,)`: over the boundary after each rank, the last one back to rank 0; or one for all."""
    weight_grad_s: tuple[float, ...] = ()

    @property
    def hops_s(self) -> tuple[float, ...]:
        """Of each boundary, `(pp,)`."""
        return self.hop_s if isinstance(self.hop_s, tuple) else (self.hop_s,) * self.pp


def simulate_s(run: PipelineRun) -> float:
    """Return the exact time of one step through the pipeline, seconds.

    end(block) = max( end(previous block of the rank), end(producer) + tau ) + duration

    F of stage j needs F of stage j - 1, B of stage j needs B of stage j + 1 (the last: its own
    F); tau is charged between ranks, and a rank goes on while its message travels. `forward_s`
    and `backward_s` are per virtual stage in model order, `(pp * vpp,)`; `hop_s` is one tau for
    all boundaries or `(pp,)`: entry r from rank r to r + 1, the last from rank p - 1 back to 0.
    One pass over the 2 m v p blocks.

    The schedules of `costmodels.schedule.zero_bubble` also take `weight_grad_s`, the part of
    `backward_s` that can wait; DualPipe takes its p stages once.

    >>> one, two = (1.0,) * 4, (2.0,) * 4
    >>> simulate_s(PipelineRun("1f1b", 4, 1, 8, one, two, 0.0))  # (8 + 3) * 3
    33.0
    >>> simulate_s(PipelineRun("zb-h1", 4, 1, 8, one, two, 0.0, one))  # 8 * 3 + 3 * 1
    27.0
    """
    return _simulate(run)[0]


def _simulate(run: PipelineRun) -> tuple[float, Ends, Ends]:
    """Return what `simulate_s` does, and when every forward and backward ends."""
    if run.schedule in ZERO_BUBBLE:
        return _simulate_split(run)
    pp, n_micro, forward_s, backward_s = run.pp, run.n_micro, run.forward_s, run.backward_s
    last, taus = pp * run.vpp - 1, run.hops_s
    forward_end = [[-1.0] * n_micro for _ in range(last + 1)]
    backward_end = [[-1.0] * n_micro for _ in range(last + 1)]
    programs = [rank_program(run.schedule, rank, pp, run.vpp, n_micro) for rank in range(pp)]
    clock, position = [0.0] * pp, [0] * pp
    active = list(range(pp))
    while active:
        for rank in active:
            program, start, now = programs[rank], position[rank], clock[rank]
            done = len(program)
            for i in range(start, done):
                stage, micro, backward = program[i]
                if backward:
                    if stage == last:
                        ready = forward_end[stage][micro]
                    else:
                        ready = backward_end[stage + 1][micro]
                        ready = ready + taus[rank] if ready >= 0.0 else ready
                elif stage == 0:
                    ready = 0.0
                else:
                    ready = forward_end[stage - 1][micro]
                    ready = ready + taus[rank - 1] if ready >= 0.0 else ready
                if ready < 0.0:
                    done = i
                    break
                now = max(ready, now) + (backward_s if backward else forward_s)[stage]
                (backward_end if backward else forward_end)[stage][micro] = now
            position[rank], clock[rank] = done, now
        active = [rank for rank in active if position[rank] < len(programs[rank])]
    return max(clock), forward_end, backward_end


def _split_times(run: PipelineRun) -> dict[int, list[float]]:
    """Return how long each kind of block takes on each virtual stage, seconds.

    The stages of DualPipe come twice, as `zero_bubble.program` counts them.
    """
    copies = 2 if run.schedule == "dualpipe" else 1
    times = {
        FORWARD: list(run.forward_s) * copies,
        BACKWARD: list(run.backward_s) * copies,
        WEIGHT_GRAD: list(run.weight_grad_s) * copies,
    }
    halves = zip(times[BACKWARD], times[WEIGHT_GRAD], strict=False)
    times[INPUT_GRAD] = [backward - weight_grad for backward, weight_grad in halves]
    return times


def _boundaries(run: PipelineRun, n_stages: int) -> list[tuple[int, int, float]]:
    """Return (rank, next rank, seconds of a message) after each virtual stage but the last."""
    pp, taus = run.pp, run.hops_s
    if run.schedule not in ZERO_BUBBLE:
        return [(j % pp, (j + 1) % pp, taus[j % pp]) for j in range(n_stages - 1)]
    rank_of = [r if r < pp else 2 * pp - 1 - r for r in range(n_stages)]
    return [(a, b, 0.0 if a == b else taus[min(a, b)]) for a, b in pairwise(rank_of)]


def _simulate_split(run: PipelineRun) -> tuple[float, Ends, Ends]:
    """Return time and ends of a step whose programs come from `zero_bubble`, seconds.

    The same recurrence; a pair of forward and backward starts when both can and takes as long as
    both, and W needs the B of its own rank, which its program has put before it.
    """
    flush, ends = rounds.simulate(run.schedule, run.pp, run.n_micro, [_round_times(run)])
    forward, backward = ends[..., 0].tolist()
    return flush.item(), forward, backward


def _round_times(run: PipelineRun) -> rounds.Times:
    times = _split_times(run)
    # After stage j: the boundary between two ranks, none where the V turns.
    hops = [tau for _, _, tau in _boundaries(run, len(times[FORWARD]))]
    return rounds.Times([times[kind] for kind in range(rounds.N_KINDS)], hops)


@dataclass(frozen=True, slots=True)
class TimedBlock:
    """What a rank runs at a time, and when; seconds from the start of the step."""

    start_s: float
    end_s: float
    parts: Step
    """(virtual stage, micro-batch, kind): one block, or a forward and a backward in one."""


@dataclass(frozen=True, slots=True)
class StageMessage:
    """One activation or gradient on its way between two ranks."""

    sender: int
    receiver: int
    stage: int
    """Virtual stage that the message comes from."""
    micro: int
    kind: int
    """FORWARD for an activation, BACKWARD for a gradient."""
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Every block and message of one step through the pipeline."""

    blocks: tuple[tuple[TimedBlock, ...], ...]
    """By rank, in the order in which it runs them."""
    messages: tuple[StageMessage, ...]
    end_s: float


def timeline(run: PipelineRun) -> Timeline:
    """Return when every block of `simulate_s` runs.

    DualPipe: virtual stage p + i is stage i of the way back, as `zero_bubble.program` counts.

    >>> step = timeline(PipelineRun("1f1b", 2, 1, 2, (1.0, 1.0), (2.0, 2.0), 0.5))
    >>> [(block.start_s, block.end_s) for block in step.blocks[0]]
    [(0.0, 1.0), (1.0, 2.0), (5.0, 7.0), (8.0, 10.0)]
    """
    total, forward_end, backward_end = _simulate(run)
    times = _split_times(run)
    ends = {FORWARD: forward_end, BACKWARD: backward_end, INPUT_GRAD: backward_end}
    blocks = []
    for rank in range(run.pp):
        now, own = 0.0, []
        for step in _steps(run, rank):
            took = sum(times[kind][stage] for stage, _, kind in step)
            stage, micro, kind = step[0]
            # A weight gradient waits for nothing but its rank.
            end = now + took if kind == WEIGHT_GRAD else ends[kind][stage][micro]
            waited = end - took > now + 1e-12 * end  # less is rounding
            own.append(TimedBlock(end - took if waited else now, end, step))
            now = end
        blocks.append(tuple(own))
    messages = []
    for j, (a, b, tau) in enumerate(_boundaries(run, len(forward_end))):
        if a == b:
            continue
        for micro in range(run.n_micro):
            sent_s, returned_s = forward_end[j][micro], backward_end[j + 1][micro]
            pair = (
                StageMessage(a, b, j, micro, FORWARD, sent_s, sent_s + tau),
                StageMessage(b, a, j + 1, micro, BACKWARD, returned_s, returned_s + tau),
            )
            messages += [message for message in pair if message.start_s >= 0.0]
    return Timeline(tuple(blocks), tuple(messages), total)


def _steps(run: PipelineRun, rank: int) -> list[Step]:
    """Return the program of a rank, whatever the schedule, as steps of blocks with their kind."""
    if run.schedule in ZERO_BUBBLE:
        return zero_bubble.program(run.schedule, rank, run.pp, run.n_micro)
    program = rank_program(run.schedule, rank, run.pp, run.vpp, run.n_micro)
    return [((j, i, BACKWARD if backward else FORWARD),) for j, i, backward in program]


def _period_s(schedule: str, pp: int, n_micro: int, ends: Floats) -> float:
    """Return the time by which every block shifts from one period to the next, -1 if not all do.

    Looked at are two periods in the middle of the step, which neither the warm-up nor the end
    reaches. As the recurrence knows nothing but differences of times, a schedule in which all of
    them repeat goes on repeating.
    """
    shift, n = (pp // 2, n_micro // 2) if schedule == "dualpipe" else (pp, n_micro)
    first, last = n - 5 * shift, n - 3 * shift
    ends = ends[..., :n]
    steps = ends[..., first + shift : last + shift] - ends[..., first:last]
    period = float(steps.flat[0])
    return period if np.ptp(steps) <= 1e-10 * period else -1.0


def flush_times_s(runs: Sequence[PipelineRun]) -> list[float]:
    """Return what `simulate_s` does, of many pipelines, at a cost that does not grow with m.

    Schedules repeat every p micro-batches once they are in their steady state. Where all blocks of
    a short simulation are seen to do so, the rest of the step is whole periods, exactly; a
    remainder of m mod p is simulated too. Otherwise a longer one is simulated, and if that does
    not repeat either, the whole step; very long ones (`WHOLE_TICKS`) are estimated from the mean
    of the last periods, within half a percent in the tests. GPipe is two flow shops of equal jobs:

    T = sum f + (m - 1) max f + sum b + (m - 1) max b + 2 sum tau

    1F1B and interleaved pipelines run together (`costmodels.schedule.lockstep`).

    >>> one = PipelineRun("1f1b", 4, 1, 800, (1.0,) * 4, (2.0,) * 4, 0.0)
    >>> flush_times_s([one, replace(one, schedule="gpipe")])  # (800 + 3) * 3 both
    [2409.0, 2409.0]
    """
    entries: dict[PipelineRun, float] = {}
    together, split = [], []
    for run in dict.fromkeys(runs):
        if run.pp == 1:
            entries[run] = run.n_micro * (sum(run.forward_s) + sum(run.backward_s))
        elif run.schedule == "gpipe":
            entries[run] = _gpipe_s(run)
        elif run.schedule in ZERO_BUBBLE:
            split.append(run)
        else:
            _check_rounds(run.schedule, run.pp, run.n_micro)
            together.append(run)
    entries |= _flush_together_s(together)
    entries |= _flush_split_s(split)
    return [entries[run] for run in runs]


def _gpipe_s(run: PipelineRun) -> float:
    recomputed = run.n_micro - 1
    work = (sum(times) + recomputed * max(times) for times in (run.forward_s, run.backward_s))
    return sum(work) + 2.0 * sum(run.hops_s[:-1])


def _flush_together_s(runs: Sequence[PipelineRun]) -> dict[PipelineRun, float]:
    """Return the step of 1F1B and interleaved pipelines, seconds."""
    entries: dict[PipelineRun, float] = {}
    unproven = list(runs)
    for least, lags in ((PROVEN_PERIODS[0], (1,)), (LONG_PERIODS, COMMON_DIVISORS)):
        short = [_shortened(run, least, max(lags)) for run in unproven]
        flush, period = _lockstep(short, lags)
        entries |= {
            run: flush[i] + (run.n_micro - short[i].n_micro) // run.pp * period[i]
            for i, run in enumerate(unproven)
            if short[i] is run or period[i] >= 0.0
        }
        unproven = [run for run in unproven if run not in entries]
    complete = [run for run in unproven if _order(run).n_ticks <= WHOLE_TICKS]
    entries |= dict(zip(complete, _lockstep(complete, ())[0], strict=True))
    unproven = [run for run in unproven if run not in entries]
    # What the last periods of the long simulation added, for the rest.
    long = [_shortened(run, LONG_PERIODS, COMMON_PERIODS) for run in unproven]
    fewer = [replace(run, n_micro=run.n_micro - COMMON_PERIODS * run.pp) for run in long]
    flush, _ = _lockstep(long + fewer, ())
    for i, run in enumerate(unproven):
        each = (flush[i] - flush[len(long) + i]) / (long[i].n_micro - fewer[i].n_micro)
        entries[run] = flush[i] + (run.n_micro - long[i].n_micro) * each
    return entries


def _shortened(run: PipelineRun, n_periods: int, multiple: int) -> PipelineRun:
    """Return the run with at least `n_periods` periods, a multiple of periods left out."""
    left_out = (run.n_micro // run.pp - n_periods) // multiple * multiple
    return run if left_out <= 0 else replace(run, n_micro=run.n_micro - left_out * run.pp)


def _lockstep(runs: Sequence[PipelineRun], lags: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return the step and the period, -1 if none is proven, of each run, seconds."""
    rows = [lockstep.Pipeline(_order(x), x.forward_s, x.backward_s, x.hops_s) for x in runs]
    return lockstep.flush_and_period_s(rows, lags)


def _order(run: PipelineRun) -> lockstep.Order:
    return lockstep.Order(run.schedule, run.pp, run.vpp, run.n_micro)


def _flush_split_s(runs: Sequence[PipelineRun]) -> dict[PipelineRun, float]:
    """Return the step of schedules that split the backward, seconds."""
    entries: dict[PipelineRun, float] = {}
    unproven = list(runs)
    for periods in PROVEN_PERIODS:
        short = [_first_periods(run, periods) for run in unproven]
        for run, one, (total, period) in zip(unproven, short, _split_together(short), strict=True):
            if one.n_micro == run.n_micro:
                entries[run] = total
            elif period >= 0.0:
                entries[run] = total + (run.n_micro - one.n_micro) // run.pp * period
        unproven = [run for run in unproven if run not in entries]
    # What the last periods of a longer simulation add, for the rest.
    both = [[_first_periods(run, periods) for run in unproven] for periods in STEADY_PERIODS]
    (short, first), (long, second) = ((runs, _split_together(runs)) for runs in both)
    for i, run in enumerate(unproven):
        each = (second[i][0] - first[i][0]) / max(1, long[i].n_micro - short[i].n_micro)
        entries[run] = second[i][0] + (run.n_micro - long[i].n_micro) * each
    return entries


def _first_periods(run: PipelineRun, periods: int) -> PipelineRun:
    """Return the run with no more than some periods of p micro-batches and what is left of one.

    Two ways of a period each in DualPipe; the number of micro-batches stays even.
    """
    n_micro = periods * run.pp + run.n_micro % run.pp
    return run if run.n_micro <= n_micro else replace(run, n_micro=n_micro)


def _split_together(runs: Sequence[PipelineRun]) -> list[tuple[float, float]]:
    """Return the step and the period, -1 where none is seen, of each run, seconds."""
    results: list[tuple[float, float]] = [(0.0, -1.0)] * len(runs)
    alike: dict[tuple[str, int, int], list[int]] = {}
    for i, run in enumerate(runs):
        alike.setdefault((run.schedule, run.pp, run.n_micro), []).append(i)
    for (schedule, pp, n_micro), rows in alike.items():
        times = [_round_times(runs[i]) for i in rows]
        flush, ends = rounds.simulate(schedule, pp, n_micro, times)
        repeats = n_micro // pp >= PROVEN_PERIODS[0]
        for j, i in enumerate(rows):
            period = _period_s(schedule, pp, n_micro, ends[..., j]) if repeats else -1.0
            results[i] = float(flush[j]), period
    return results
