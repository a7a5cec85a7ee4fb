"""Steps through pipelines written as rows of numbers."""

from collections.abc import Sequence

from costmodels.schedule.pipeline import PipelineRun, flush_times_s, simulate_s


def run_of(
    schedule: str,
    sizes: tuple[int, int, int],
    stages: tuple[Sequence[float], Sequence[float]],
    hop_s: float | Sequence[float] = 0.0,
    weight_grad_s: Sequence[float] = (),
) -> PipelineRun:
    """Return a run; `sizes` are pp, vpp and micro-batches, `stages` forwards and backwards."""
    hops = hop_s if isinstance(hop_s, float | int) else tuple(hop_s)
    forward, backward = map(tuple, stages)
    return PipelineRun(schedule, *sizes, forward, backward, hops, tuple(weight_grad_s))


def exact_s(schedule: str, p: int, v: int, m: int, *times) -> float:
    """Return the simulated step of forwards, backwards, hops and weight gradients."""
    return simulate_s(run_of(schedule, (p, v, m), times[:2], *times[2:]))


def flush_s(schedule: str, p: int, v: int, m: int, *times) -> float:
    """Return the same step as `flush_times_s` finds it."""
    return flush_times_s([run_of(schedule, (p, v, m), times[:2], *times[2:])])[0]
