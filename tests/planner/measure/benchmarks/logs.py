"""Logs in the format of nccl-tests, with times that the model gives or that a test states."""

from collections.abc import Sequence

import numpy as np

from hardware.parts import Fabric, Pool
from planner.measure.benchmarks.nccl_tests import COLLECTIVES, bus_bandwidth_factor
from planner.measure.benchmarks.sweep import SizeSweep, predicted_s

H100 = "NVIDIA H100 80GB HBM3"
PROGRAM = {collective: name for name, collective in COLLECTIVES.items()}
SIZES = tuple(float(2**i) for i in range(10, 33, 2))


def sweep_of(
    collective: str,
    n_ranks: int,
    n_nodes: int = 1,
    busy: int = 0,
    sizes: Sequence[float] = SIZES,
    times: Sequence[float] = (),
) -> SizeSweep:
    busy = busy or n_ranks // n_nodes
    return SizeSweep("made", collective, n_ranks, n_nodes, busy, tuple(sizes), tuple(times), H100)


def model_times(sweep: SizeSweep, pool: Pool, noise: float = 0.0, seed: int = 0) -> list[float]:
    """The model's times with log-normal noise, the same for the same seed."""
    random = np.random.default_rng([seed, sweep.n_ranks, len(sweep.collective)])
    times = np.array(predicted_s(sweep, pool, Fabric()))
    return (times * np.exp(noise * random.standard_normal(len(times)))).tolist()


def _time(us: float) -> str:
    return f"{us:.0f}" if us >= 1e4 else f"{us:.1f}" if us >= 100 else f"{us:.2f}"


def header(n_ranks: int, n_nodes: int, device: str = H100) -> list[str]:
    per_node = n_ranks // n_nodes
    lines = [
        "# nThread 1 nGpus 1 minBytes 1024 maxBytes 4294967296 step: 4(factor) warmup iters: 5"
        " iters: 20 agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
    ]
    return lines + [
        f"#  Rank {rank:2d} Group  0 Pid {1887 + rank:6d} on   worker-{rank // per_node} device"
        f" {rank % per_node:2d} [0x{8 + rank % per_node:02x}] {device}"
        for rank in range(n_ranks)
    ]


COLUMNS = [
    "#",
    "#                                                              out-of-place"
    "                       in-place",
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
    "            (us)  (GB/s)  (GB/s)",
]


def row(collective: str, n_ranks: int, size: float, seconds: float) -> str:
    algbw = size / seconds / 1e9
    busbw = algbw * bus_bandwidth_factor(collective, n_ranks)
    redop = "sum" if collective in ("all-reduce", "reduce-scatter", "reduce") else "none"
    block = f"{_time(seconds * 1e6):>8} {algbw:7.2f} {busbw:7.2f}"
    return (
        f"{int(size):12d}  {int(size) // 4:12d}     float  {redop:>6}      -1 {block}      0"
        f" {block}      0"
    )


def log(
    collective: str, n_ranks: int, n_nodes: int, sizes: Sequence[float], times: Sequence[float]
) -> str:
    """Return a whole log, as one program prints it."""
    rows = [row(collective, n_ranks, s, t) for s, t in zip(sizes, times, strict=True)]
    lines = [
        "# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703",
        f"# Collective test starting: {PROGRAM[collective]}_perf",
        *header(n_ranks, n_nodes),
        *COLUMNS,
        *rows,
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 123.456",
        "#",
    ]
    return "\n".join(lines) + "\n"
