"""How long a rank takes for one matrix of each kind: Newton-Schulz, preconditioners, sums."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.comm.collectives import collective_s, even_exchange
from costmodels.comm.placement import place_group
from costmodels.layers.gemm import gemm_s
from costmodels.optimizers.matrices import Matrix
from costmodels.optimizers.orthogonalization import (
    CAST_BYTES,
    MOMENTUM_BYTES,
    SYRK_FRAC,
    orthogonalization,
)
from costmodels.optimizers.preconditioning import preconditioning_flops
from costmodels.problem import Problem

Floats = NDArray[np.float64]

LAYER_SHARDED = "layer-sharded"


@dataclass(frozen=True, slots=True)
class MatrixTimes:
    """Of one matrix on a rank that updates it, seconds; a number, or a column of problems."""

    compute_s: Floats
    traffic_s: Floats
    """Its own collectives over tensor parallelism; of layer-sharded ones see `exchange_s`."""


def matrix_times(problem: Problem, matrix: Matrix, tp: int) -> MatrixTimes:
    """Return the time of one matrix beside its elementwise update, which `groups` has."""
    optimizer = problem.job.recipe.optimizer
    if optimizer.is_orthogonalized:
        each = [_orthogonalized(problem, piece, tp) for piece in matrix.pieces]
        return MatrixTimes(
            np.asarray(sum(x.compute_s for x in each)), np.asarray(sum(x.traffic_s for x in each))
        )
    if optimizer.has_preconditioners:
        return _preconditioned(problem, matrix, tp)
    return MatrixTimes(np.zeros(()), np.zeros(()))


def newton_schulz_s(problem: Problem, gram: float, other: float) -> Floats:
    """Return the time of the steps on a matrix whose Gram matrix is `gram` wide, seconds.

    k ( y t(g, l, g) + y t(g, g, g) + t(g, g, l) ) + casts, t the time of a product in bf16
    (`costmodels.layers.gemm.gemm_s`), y = 1, or 1/2 of what is not launch with SYRK; the casts to
    bf16 and back 12 g l bytes over the sustained HBM bandwidth.
    Source: Emerging-Optimizers muon_utils.py (newton_schulz). Left out: launches that the host
    does not get out in time, batches of matrices alike.
    """
    options, part = problem.job.muon, problem.pool.accelerator
    launch_s = part.efficiency.kernel_latency_s
    share = SYRK_FRAC if options.use_syrk else 1.0
    symmetric = gemm_s(gram, other, gram, part, "bf16") + gemm_s(gram, gram, gram, part, "bf16")
    symmetric = share * (symmetric - 2.0 * launch_s) + 2.0 * launch_s
    steps = options.num_ns_steps * (symmetric + gemm_s(gram, gram, other, part, "bf16"))
    moved = CAST_BYTES * gram * other
    return np.asarray(steps + moved / (part.hbm_bytes_per_s * part.efficiency.hbm_frac))


def _orthogonalized(problem: Problem, piece: Matrix, tp: int) -> MatrixTimes:
    work = orthogonalization(piece, tp, problem.job.muon)
    compute = newton_schulz_s(problem, work.gram, work.other)
    group = place_group(np.array([tp], dtype=np.int32), 1, problem.pool, problem.fabric)
    reductions = collective_s("all-reduce", work.reduced_bytes, group, problem.pool)
    traffic = work.n_reductions * reductions
    if work.gathered_bytes:
        traffic = traffic + collective_s("all-gather", work.gathered_bytes, group, problem.pool)
    return MatrixTimes(compute, _plain(traffic))


def exchange_s(problem: Problem, shard_elements: float, tp: int) -> Floats:
    """Return the all-to-all to the homes of matrices and back, seconds.

    Each rank sends 4 bytes of each of its `shard_elements`, in one call for all matrices.
    Source: Megatron-LM issue 6676.
    """
    group = place_group(np.array([tp], dtype=np.int32), 1, problem.pool, problem.fabric)
    exchange = even_exchange(MOMENTUM_BYTES * shard_elements, group)
    return _plain(2.0 * collective_s("all-to-all", exchange, group, problem.pool))


def _preconditioned(problem: Problem, matrix: Matrix, tp: int) -> MatrixTimes:
    """Return SOAP's time: its FLOPs at the fp32 rate of large products.

    It takes the shard of a tensor-parallel rank as the matrix. Left out: that a QR runs below the
    rate of products, launches.
    """
    part = problem.pool.accelerator
    rows, columns = matrix.shard_sizes(tp)
    rate = part.peak_flops_per_s["fp32"] * part.efficiency.gemm_frac
    return MatrixTimes(np.asarray(preconditioning_flops(rows, columns) / rate), np.zeros(()))


def _plain(values: Floats) -> Floats:
    """Return a column of one number as that number."""
    array = np.asarray(values)
    return array.reshape(()) if array.size == 1 else array
