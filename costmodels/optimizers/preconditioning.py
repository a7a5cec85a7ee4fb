"""What SOAP keeps and computes for one matrix."""

FACTOR_BYTES = 4.0
"""Width of factors and eigenbases."""
FACTORS_PER_SIDE = 2
"""The factor and its eigenbasis."""


def preconditioner_bytes(rows: float, columns: float) -> float:
    """Return what factors and eigenbases of one matrix take, bytes.

    8 (m^2 + n^2) + 4 (m + n): L and Q_L of m x m, R and Q_R of n x n, their eigenvalues, in fp32.
    Source: Emerging-Optimizers legacy_soap/soap.py (_init_group).

    >>> preconditioner_bytes(2, 4)  # 8 (4 + 16) + 4 * 6
    184.0
    """
    squares = FACTORS_PER_SIDE * FACTOR_BYTES * (rows**2 + columns**2)
    return float(squares + FACTOR_BYTES * (rows + columns))


def preconditioning_flops(rows: float, columns: float) -> float:
    """Return the FLOPs of a step of SOAP on one matrix, m x n.

    F = 12 (m^2 n + m n^2) + 26/3 (m^3 + n^3)

    KL-Shampoo's factors 4 (m^2 n + m n^2) and 2 d^3 a side; the first moment out of the old basis
    and into the new one, the gradient in and the update out 8 (m^2 n + m n^2); of each basis K Q
    2 d^3, QR with Q formed 8/3 d^3, the diagonal of Q^T K Q 2 d^3.
    Source: Emerging-Optimizers legacy_soap/soap.py, utils/eig.py (orthogonal_iteration); Golub and
    Van Loan, section 5.2, for QR. Left out: eigh in the first step.

    >>> round(preconditioning_flops(3, 3))  # 12 * 54 + 26 / 3 * 54
    1116
    """
    both = rows**2 * columns + rows * columns**2
    return float(12.0 * both + 26.0 / 3.0 * (rows**3 + columns**3))
