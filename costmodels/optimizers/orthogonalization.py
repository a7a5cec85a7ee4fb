"""Newton-Schulz steps: their FLOPs, by what tensor parallelism does with a cut matrix."""

from dataclasses import dataclass

from costmodels.optimizers.matrices import Matrix
from costmodels.optimizers.records import MuonOptions

NS_ELEMENT_BYTES = 2.0
"""Width of the operands (fp32_matmul_prec medium: bf16) and of a Gram matrix on the wire."""
MOMENTUM_BYTES = 4.0
"""Width of what is gathered: the momentum in fp32."""
SYRK_FRAC = 0.5
"""Share of a symmetric product that is computed with SYRK: one triangle."""


CAST_BYTES = 12.0
"""The momentum read in fp32 and written in bf16, the update the other way."""


@dataclass(frozen=True, slots=True)
class Orthogonalization:
    """What one rank does for one matrix in one step."""

    gram: float
    """Rows of the Gram matrix."""
    other: float
    """The other dimension of what the rank multiplies."""
    gathered_bytes: float = 0.0
    """All-gather over tp: bytes of the whole momentum."""
    reduced_bytes: float = 0.0
    """One all-reduce over tp of the Gram matrix of a step."""
    n_reductions: int = 0


def newton_schulz_flops(gram: float, other: float, options: MuonOptions) -> float:
    """Return the FLOPs of the Newton-Schulz steps of one matrix.

    F = k (4 g^2 l + 2 g^3): A = X X^T 2 g^2 l, B = b A + c A A 2 g^3, a X + B X 2 g^2 l; k steps,
    g the shorter dimension of a whole matrix. With SYRK half of the two symmetric products:
    k (3 g^2 l + g^3).
    Source: Jordan et al. 2024; Emerging-Optimizers muon_utils.py (newton_schulz_step).

    >>> newton_schulz_flops(2, 4, MuonOptions())  # 5 (4 * 4 * 4 + 2 * 8)
    400.0
    >>> newton_schulz_flops(2, 4, MuonOptions(use_syrk=True))  # 5 (3 * 4 * 4 + 8)
    280.0
    """
    symmetric = SYRK_FRAC if options.use_syrk else 1.0
    one = symmetric * (2.0 * gram**2 * other + 2.0 * gram**3) + 2.0 * gram**2 * other
    return float(options.num_ns_steps * one)


def orthogonalization(piece: Matrix, tp: int, options: MuonOptions) -> Orthogonalization:
    """Return what a rank multiplies to orthogonalize one matrix cut over `tp` ranks.

    duplicated: all-gather of 4 m n bytes, then the whole on every rank. distributed: the Gram
    matrix of the dimension that is not cut is summed over tp in each step, whether it is the
    shorter one or not; the other dimension is the shard's. blockwise: the shard alone.
    layer-sharded: the whole, on the one rank that is its home.
    Source: Emerging-Optimizers muon_utils.py (newton_schulz_tp); Megatron-LM
    core/optimizer/emerging_optimizers.py; its issue 6676 for the last. Left out: the sum of the
    norm, one number a matrix.

    >>> piece = Matrix(8, 4, cut="rows")
    >>> orthogonalization(piece, 2, MuonOptions(tp_mode="distributed"))
    Orthogonalization(gram=4.0, other=4.0, gathered_bytes=0.0, reduced_bytes=32.0, n_reductions=5)
    """
    rows, columns = float(piece.rows), float(piece.columns)
    short, long = min(rows, columns), max(rows, columns)
    if tp == 1 or not piece.cut or options.tp_mode == "layer-sharded":
        return Orthogonalization(short, long)
    if options.tp_mode == "duplicated":
        return Orthogonalization(short, long, gathered_bytes=MOMENTUM_BYTES * rows * columns)
    gram, cut = (columns, rows) if piece.cut == "rows" else (rows, columns)
    if options.tp_mode == "blockwise":
        return Orthogonalization(min(gram, cut / tp), max(gram, cut / tp))
    return Orthogonalization(
        gram,
        cut / tp,
        reduced_bytes=NS_ELEMENT_BYTES * gram**2,
        n_reductions=options.num_ns_steps,
    )
