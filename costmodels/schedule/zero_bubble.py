"""Schedules that run weight gradients apart or two pipelines in one: ZB-H1, ZB-V, DualPipe(V).

F is a forward, B the gradient of the input (recomputation belongs to it), W that of the weights.
A rank of ZB-H1 and DualPipe holds one virtual stage per direction, one of ZB-V and DualPipeV the
virtual stages r and 2 p - 1 - r. `costmodels.schedule.pipeline.simulate_s` runs the programs.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.axes import SCHEDULES

Floats = NDArray[np.float64]

FORWARD, BACKWARD, INPUT_GRAD, WEIGHT_GRAD = range(4)
"""Kinds of block; BACKWARD is B and W in one."""
ZB_H1, ZB_V, DUALPIPE, DUALPIPE_V = (
    SCHEDULES.index(name) for name in ("zb-h1", "zb-v", "dualpipe", "dualpipe-v")
)
FIRST_CODE = ZB_H1
"""The schedules of this module are the last ones of `SCHEDULES`."""

Part = tuple[int, int, int]
"""Virtual stage, micro-batch, kind of block."""
Step = tuple[Part, ...]
"""What a rank runs at a time: one block, or a forward and a backward whose results both leave at
the end of the pair."""


class _Program:
    """The program of one rank over two virtual stages, micro-batches counted as they come."""

    def __init__(self, stages: tuple[int, int]) -> None:
        self.stages = stages
        self.steps: list[Step] = []
        self.counts = {kind: [0, 0] for kind in range(4)}
        self.waiting: list[Part] = []

    def part(self, kind: int, chunk: int) -> Part:
        """Count and return the next block of a kind on chunk 0 or 1."""
        # A whole backward counts as the gradient of the input, which comes in the same order.
        count = self.counts[INPUT_GRAD if kind == BACKWARD else kind]
        count[chunk] += 1
        return self.stages[chunk], count[chunk] - 1, kind

    def add(self, kind: int, chunk: int) -> None:
        """Append one block."""
        self.steps.append((self.part(kind, chunk),))

    def pair(self, forward: int, backward: int) -> None:
        """Append a forward of one chunk with a backward of the other."""
        self.steps.append((self.part(FORWARD, forward), self.part(BACKWARD, backward)))

    def backward(self, chunk: int, split: bool) -> None:
        """Append a backward, its weight gradient left for later where `split`."""
        self.add(INPUT_GRAD if split else BACKWARD, chunk)
        if split:
            stage, micro, _ = self.steps[-1][0]
            self.waiting.append((stage, micro, WEIGHT_GRAD))

    def oldest_weight_grad(self) -> None:
        """Append the weight gradient that has waited longest."""
        self.steps.append((self.waiting.pop(0),))


def _zb_h1(rank: int, pp: int, n_micro: int) -> list[Step]:
    """1F1B, W of micro-batch i behind B of micro-batch i + r; what is left at the end."""
    warm_up = min(n_micro, pp - rank - 1)
    steps: list[Step] = [((rank, i, FORWARD),) for i in range(warm_up)]
    for i in range(n_micro):
        if warm_up + i < n_micro:
            steps.append(((rank, warm_up + i, FORWARD),))
        steps.append(((rank, i, INPUT_GRAD),))
        if i >= rank:
            steps.append(((rank, i - rank, WEIGHT_GRAD),))
    deferred = range(max(0, n_micro - rank), n_micro)
    return steps + [((rank, i, WEIGHT_GRAD),) for i in deferred]


def _zb_v(rank: int, pp: int, n_micro: int) -> list[Step]:
    """The order of PyTorch's ScheduleZBVZeroBubble; micro-batches that do not exist left out."""
    total = max(n_micro, 2 * pp - 1)
    program = _Program((rank, 2 * pp - 1 - rank))
    add, done = program.add, program.counts
    for _ in range(2 * (pp - rank) - 1):
        add(FORWARD, 0)
    for _ in range(rank):
        add(FORWARD, 1)
        add(FORWARD, 0)
    for _ in range(pp - rank):
        for kind in (FORWARD, INPUT_GRAD, WEIGHT_GRAD):
            add(kind, 1)
    while done[FORWARD][1] < total:
        if done[FORWARD][0] < total:
            add(FORWARD, 0)
        add(INPUT_GRAD, 0)
        add(WEIGHT_GRAD, 0)
        for kind in (FORWARD, INPUT_GRAD, WEIGHT_GRAD):
            add(kind, 1)
    for _ in range(rank):
        add(INPUT_GRAD, 0)
        add(INPUT_GRAD, 1)
    for _ in range(pp - rank):
        add(INPUT_GRAD, 0)
        add(WEIGHT_GRAD, 0)
    for chunk in (1, 0):
        while done[WEIGHT_GRAD][chunk] < total:
            add(WEIGHT_GRAD, chunk)
    return [step for step in program.steps if step[0][1] < n_micro]


def _dualpipe_v(rank: int, pp: int, n_micro: int) -> list[Step]:
    """The eight phases of DeepSeek's DualPipeV, and of DualPipe on twice the ranks."""
    program = _Program((rank, 2 * pp - 1 - rank))
    later = pp - rank - 1
    for _ in range(2 * later):
        program.add(FORWARD, 0)
    for _ in range(rank + 1):
        program.add(FORWARD, 0)
        program.add(FORWARD, 1)
    for _ in range(later):
        program.backward(1, split=True)
        program.oldest_weight_grad()
        program.add(FORWARD, 1)
    for i in range(n_micro - 2 * pp + rank + 1):
        if i == 0 and rank == pp - 1:
            program.add(FORWARD, 0)
            program.backward(1, split=False)
        else:
            program.pair(0, 1)
        program.pair(1, 0)
    for _ in range(later):
        program.backward(1, split=False)
        program.pair(1, 0)
    # The second half of these backwards leaves its weight gradients for the end.
    half = rank + 1
    for i in range(2 * half):
        program.backward(1 - i % 2, split=i >= half)
    for _ in range(later):
        program.oldest_weight_grad()
        program.backward(0, split=True)
    for _ in range(half):
        program.oldest_weight_grad()
    return program.steps


def program(schedule: str, rank: int, pp: int, n_micro: int) -> list[Step]:
    """Return what `rank` runs, in order.

    Virtual stages count along the way of a micro-batch. DualPipe has two ways: stages 0 to p - 1
    from rank 0 to p - 1 for the first half of the micro-batches, p to 2 p - 1 back for the
    second; each numbers its micro-batches from 0. Sources: Qi et al. 2023, Zero Bubble Pipeline
    Parallelism, section 2.3 (ZB-H1); PyTorch torch/distributed/pipelining/schedules.py (ZB-V,
    DualPipeV); deepseek-ai/DualPipe dualpipe.py. Raises ValueError where DualPipe lacks
    micro-batches.

    >>> program("zb-h1", 1, 2, 2)[:4]  # F, B, F, B: the weight gradients of rank 1 come one late
    [((1, 0, 0),), ((1, 0, 2),), ((1, 1, 0),), ((1, 1, 2),)]
    """
    if schedule == "zb-h1":
        return _zb_h1(rank, pp, n_micro)
    if schedule == "zb-v":
        return _zb_v(rank, pp, n_micro)
    ranks, n = (pp, n_micro) if schedule == "dualpipe-v" else (pp // 2, n_micro // 2)
    uneven = schedule == "dualpipe" and (pp % 2 or n_micro % 2)
    if uneven or n < 2 * ranks:
        raise ValueError(f"{schedule}: {n_micro} micro-batches do not fill a pipeline of {pp}")
    steps = _dualpipe_v(min(rank, 2 * ranks - 1 - rank), ranks, n)
    if schedule == "dualpipe-v":
        return steps
    # Of the two stages of a rank, the one that is not `rank` is on the way back.
    back = 2 * pp - 1 - rank
    return [tuple((s if s == rank else back, i, kind) for s, i, kind in step) for step in steps]


def bubble_s(
    schedule: ArrayLike,
    pp: ArrayLike,
    n_micro: ArrayLike,
    forward_s: ArrayLike,
    input_grad_s: ArrayLike,
    weight_grad_s: ArrayLike,
) -> Floats:
    """Return how long a rank is idle in a step, closed form for equal stages, seconds.

    Exact for ZB-H1 with W <= F; else within 3 % of a step with a full pipeline (m >= 2 p - 1).
    F, B, W are of a rank's whole share of the model, one micro-batch; f = F/2, b = B/2, w = W/2.
    ZB-H1: (p - 1)(F + B) - (min(m, p) - 1) min(B, W), so (p - 1)(F + B - W) from m = p on: Qi et
    al. 2023. ZB-V: max( (p-1) b, 2 (p-1)(b - w), (2p-3) f - (p-2) b, max(f, b) + (p-2) w ), and
    (p-1)(F + B) - (m-1) min(F, (F+B)/2) where m is small: fitted to the recurrence; F = B = W
    leaves (p-1) f, the first forward's way down, which Qi et al. count as no bubble because the
    ranks start and end staggered. DualPipeV, and DualPipe with twice the p:
    max( (p-1)(2f + b - w), (p-2) f + (p-1)(2b - w), 2 (p-1) f ), a pair taking F + B + W. At most
    DeepSeek's (p-1)(pair + backward - 3W) = (p-1)(f + 2b - w) where b >= f, and equal at b = f.

    >>> bubble_s(ZB_H1, 4, 8, 1.0, 1.0, 1.0).item(), bubble_s(ZB_V, 4, 8, 1.0, 1.0, 1.0).item()
    (3.0, 1.5)
    """
    code, m = np.asarray(schedule), np.asarray(n_micro, dtype=np.float64)
    p = np.asarray(pp, dtype=np.float64)
    forward, grad, wgrad = (np.asarray(x) for x in (forward_s, input_grad_s, weight_grad_s))
    zb_h1 = (p - 1) * (forward + grad) - (np.minimum(m, p) - 1) * np.minimum(grad, wgrad)
    f, b, w = forward / 2, grad / 2, wgrad / 2
    full = np.maximum((p - 1) * b, 2 * (p - 1) * (b - w))
    full = np.maximum(full, (2 * p - 3) * f - (p - 2) * b)
    full = np.maximum(full, np.maximum(f, b) + (p - 2) * w)
    few = (p - 1) * (forward + grad) - (m - 1) * np.minimum(forward, f + b)
    half = np.where(code == DUALPIPE, p / 2, p)
    dual = np.maximum((half - 1) * (2 * f + b - w), (half - 2) * f + (half - 1) * (2 * b - w))
    # One stage a direction of DualPipe is all of a rank's share, half of it in DualPipeV.
    dual = np.where(half > 1, np.maximum(dual, 2 * (half - 1) * f), 0.0)
    zb_v = np.where(p > 1, np.maximum(full, few), 0.0)
    return np.where(
        code == ZB_H1,
        zb_h1,
        np.where(code == ZB_V, zb_v, np.where(code == DUALPIPE, 2 * dual, dual)),
    )


def alternating_crossings(pp: ArrayLike, n_micro: ArrayLike) -> Floats:
    """Return how many message times a 1F1B step of equal ranks waits for while they are short.

    2 (p - 1) + 2 (m - 1 - ceil((m - 1)/p)): a micro-batch down and up once, and as neighbours run
    a forward and a backward in turn, each further one waits for two, but for every p-th.
    """
    p, more = np.asarray(pp, dtype=np.float64), np.asarray(n_micro, dtype=np.float64) - 1
    return np.asarray(2 * (p - 1) + 2 * (more - np.ceil(more / p)))


def crossings(schedule: ArrayLike, pp: ArrayLike, n_micro: ArrayLike) -> Floats:
    """Return how many message times a step waits for, closed form.

    ZB-H1: as 1F1B, but at most 4 (p - 1), as weight gradients hide the rest. ZB-V: 5 p - 7.
    DualPipeV: as 1F1B, with m/2 DualPipe; a tenth more where B is much longer than F.
    Source: simulation of the recurrence with short messages (tests).
    """
    code, p = np.asarray(schedule), np.asarray(pp, dtype=np.float64)
    m = np.asarray(n_micro, dtype=np.float64) / np.where(code == DUALPIPE, 2.0, 1.0)
    one_f_one_b = alternating_crossings(p, m)
    zb_h1 = np.minimum(one_f_one_b, 4 * (p - 1))
    zb_v = np.maximum(5 * p - 7, 2 * (p - 1))
    return np.where(code == ZB_H1, zb_h1, np.where(code == ZB_V, zb_v, one_f_one_b))


def held_chunks(schedule: ArrayLike, pp: ArrayLike, n_micro: ArrayLike) -> Floats:
    """Return the chunks whose activations any rank holds at its peak, till their W is done.

    ZB-H1: min(m, p). ZB-V: min(2 m, 2 p), each half of the rank. DualPipe: p + 1, each half of
    the rank's two stages; DualPipeV: 2 p + 1. Sources as for `program`, replayed in the tests.

    >>> [held_chunks(code, 8, 32).item() for code in (ZB_H1, ZB_V, DUALPIPE, DUALPIPE_V)]
    [8.0, 16.0, 9.0, 17.0]
    """
    code = np.asarray(schedule)
    p, m = np.asarray(pp, dtype=np.float64), np.asarray(n_micro, dtype=np.float64)
    fewer = np.where(code == ZB_H1, np.minimum(m, p), np.minimum(2 * m, 2 * p))
    return np.where(code == DUALPIPE, p + 1, np.where(code == DUALPIPE_V, 2 * p + 1, fewer))


def late_chunks(
    schedule: ArrayLike, rank: ArrayLike, pp: ArrayLike, n_micro: ArrayLike
) -> tuple[Floats, Floats]:
    """Return the chunks before their B and those that wait for W alone, when most of these wait.

    Recomputation rebuilds the activations of the latter, so they count in full. (p - r, r), in
    ZB-V (p - r, 2 r), in DualPipe r counted from the nearer end and p halved; the chunk whose
    backward runs is not among them.
    """
    code, n = np.asarray(schedule), np.asarray(n_micro, dtype=np.float64)
    p, r = np.asarray(pp, dtype=np.float64), np.asarray(rank, dtype=np.float64)
    mirrored = code == DUALPIPE
    p, r = np.where(mirrored, p / 2, p), np.where(mirrored, np.minimum(r, p - 1 - r), r)
    n = np.where(mirrored, n / 2, n)
    waiting = np.minimum(np.where(code == ZB_V, 2 * r, r), np.where(code == ZB_V, 2 * n, n))
    before = np.minimum(p - r, np.where(code == ZB_H1, n, 2 * n) - waiting)
    return before, waiting
