"""Failures, checkpoints and restarts: what is left of the time for training."""

import math
from dataclasses import dataclass

from costmodels.parameters import trained_params
from costmodels.problem import Problem
from hardware.parts import Operations


@dataclass(frozen=True, slots=True)
class Goodput:
    """What failures and checkpoints take from a run on one number of devices."""

    mtbf_s: float
    """Mean time between failures of the whole job."""
    checkpoint_bytes: float
    checkpoint_s: float
    """How long one checkpoint stops training."""
    restart_s: float
    interval_s: float
    """Training time between two checkpoints that loses least."""
    goodput_frac: float
    """Training time over wall-clock time, both of steps that count."""


def saved_bytes(problem: Problem) -> float:
    """Return what a checkpoint of the job holds, bytes: (W + K) N, whatever the layout.

    W are the weights and K the optimizer state with the master copy, N all parameters; gradients
    are not kept. Source: what Megatron-LM's distributed checkpoint and DeepSpeed write. Left out:
    the state of the data loader and of random numbers.
    """
    recipe = problem.job.recipe
    params = trained_params(problem.shape, problem.job.seq_len, problem.job.tuning)
    return (recipe.param_bytes + recipe.state_bytes) * params


def job_mtbf_s(operations: Operations, n_devices: int) -> float:
    """Return the mean time between failures of a job on `n_devices`, seconds: M = M_1 / n.

    Failures of devices are taken as independent, and the first of them ends the run. Source:
    series system of exponential lifetimes; M_1 from 419 unexpected interruptions in 54 days on
    16,384 H100 (Llama 3, arXiv 2407.21783, section 3.3.4) unless the cluster file states it. Left
    out: failures that hit many devices at once, more failures of new hardware.
    """
    return operations.device_mtbf_s / n_devices


def checkpoint_time_s(operations: Operations, n_bytes: float, n_devices: int) -> float:
    """Return how long a checkpoint stops training, seconds.

    delta = bytes / bandwidth of the storage, or what the cluster file states. Without either the
    storage is taken to grow with the devices (`Operations.bandwidth_is_per_device`). An
    asynchronous checkpoint stops training only while it is copied to the host: state that time.
    """
    if operations.checkpoint_s is not None:
        return operations.checkpoint_s
    devices = n_devices if operations.bandwidth_is_per_device else 1
    return n_bytes / (operations.checkpoint_bytes_per_s * devices)


def best_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Return the training time between two checkpoints that loses least, seconds.

    tau = sqrt(2 delta M) (1 + sqrt(delta / (2 M)) / 3 + delta / (18 M)) - delta for delta < 2 M,
    else M.  Its leading term is Young's sqrt(2 delta M). Source: Daly 2006, Future Generation
    Computer Systems 22(3), equation 37; Young 1974, CACM 17(9).

    >>> round(best_interval_s(60.0, 6 * 3600.0))  # sqrt(2 x 60 x 21600) = 1610
    1570
    """
    if checkpoint_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2.0 * mtbf_s)
    young = math.sqrt(2.0 * checkpoint_s * mtbf_s)
    return young * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - checkpoint_s


def goodput_frac(checkpoint_s: float, mtbf_s: float, restart_s: float, interval_s: float) -> float:
    """Return the share of the wall-clock time that is training which counts (0-1).

    tau / (M exp(R / M) (exp((tau + delta) / M) - 1)): failures are exponential with mean M, also
    during checkpoints and restarts; each loses the work since the last checkpoint and R. Source:
    Daly 2006, equation 20. Without checkpoints' cost (delta = 0) checkpoints never stop: the limit
    for tau -> 0 is exp(-R / M). Left out: planned stops, steps repeated after loss spikes.

    >>> round(goodput_frac(60.0, 6 * 3600.0, 600.0, 1570.0), 3)
    0.902
    """
    if interval_s <= 0.0:
        return math.exp(-restart_s / mtbf_s)
    try:
        wall_s = (
            mtbf_s
            * math.exp(restart_s / mtbf_s)
            * math.expm1((interval_s + checkpoint_s) / mtbf_s)
        )
    except OverflowError:  # fails many times before it ever gets as far as a checkpoint
        return 0.0
    return interval_s / wall_s


def goodput(problem: Problem, operations: Operations, n_devices: int) -> Goodput:
    """Return what failures and checkpoints take from a run of the job on `n_devices`.

    It depends on the layout through the number of devices alone.
    """
    n_bytes = saved_bytes(problem)
    mtbf_s = job_mtbf_s(operations, n_devices)
    stop_s = checkpoint_time_s(operations, n_bytes, n_devices)
    interval_s = best_interval_s(stop_s, mtbf_s)
    share = goodput_frac(stop_s, mtbf_s, operations.restart_s, interval_s)
    return Goodput(mtbf_s, n_bytes, stop_s, operations.restart_s, interval_s, share)
