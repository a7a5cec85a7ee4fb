"""Time of a matrix multiplication from its shape."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.precision import FP4_BYTES, Recipe
from hardware.parts import Accelerator

Floats = NDArray[np.float64]

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 64))
"""Output tiles (rows, columns) that matrix libraries choose from."""

TILE_HALVING_LOSS = 0.05
"""Rate lost per halving of the tile area below 256 x 128: less reuse of what is loaded."""

_TILE_ROWS, _TILE_COLUMNS = np.array(TILES, dtype=np.float64).T
_TILE_RATE_FRAC = (1.0 - TILE_HALVING_LOSS) ** np.log2(256 * 128 / (_TILE_ROWS * _TILE_COLUMNS))

_ELEMENT_BYTES = {"fp4": FP4_BYTES, "fp8": 1.0, "tf32": 4.0, "fp32": 4.0}


def element_bytes(precision: str) -> float:
    """Return the width of one operand element in HBM, bytes."""
    return _ELEMENT_BYTES.get(precision, 2.0)


def linear_rate_frac(recipe: Recipe, accelerator: Accelerator) -> float:
    """Return the share of its peak that a linear layer sustains, over that in 16 bits."""
    gain = accelerator.efficiency.recipe_gain.get(recipe.fp8_recipe or recipe.fp4_recipe, 1.0)
    return recipe.linear_rate_frac * gain


def gemm_s(
    rows: ArrayLike,
    inner: ArrayLike,
    columns: ArrayLike,
    accelerator: Accelerator,
    precision: str,
    rate_frac: float = 1.0,
) -> Floats:
    """Return the time of a (rows x inner) times (inner x columns) product in seconds.

    t = max( W * S * 2 Tr Tc (k + k0) / (P eta),  bytes / (B_hbm * frac) ) + launch

    W = ceil( ceil(rows/Tr) ceil(columns/Tc) / S ) waves of S multiprocessors, the best of `TILES`;
    P the dense peak, eta the sustained share of the generation times `rate_frac`, k0 the inner
    length at which a tile reaches half its rate. Bytes: both inputs and the output once.

    Source: fit of this form to 183 measured A100 shapes published with SimuMax (4dcaae5): mean
    error 3.6 % against 5.8 % for one constant share. Left out: split-k, power limits that
    depend on the data, odd sizes that are not multiples of the tile's vector width.

    >>> from costmodels.examples import toy_accelerator
    >>> round(float(gemm_s(8192, 8192, 8192, toy_accelerator(), "bf16")) * 1e3, 2)  # 21 waves
    5.09
    """
    m, k, n = (np.asarray(x, dtype=np.float64) for x in (rows, inner, columns))
    eff = accelerator.efficiency
    rate = accelerator.peak_flops_per_s[precision] * eff.gemm_frac * rate_frac
    if precision == "fp8":
        rate *= eff.fp8_gain
    # All tiles at once, along an axis of their own: most calls are of a few products.
    by_tile = (-1,) + (1,) * max(m.ndim, k.ndim, n.ndim, np.ndim(rate))
    tile_rows, tile_columns = _TILE_ROWS.reshape(by_tile), _TILE_COLUMNS.reshape(by_tile)
    tiles = np.ceil(m / tile_rows) * np.ceil(n / tile_columns)
    waves = np.ceil(tiles / accelerator.n_sms)
    work = 2.0 * waves * accelerator.n_sms * tile_rows * tile_columns * (k + eff.gemm_k_half)
    best = (work / (rate * _TILE_RATE_FRAC.reshape(by_tile))).min(axis=0)
    traffic = element_bytes(precision) * (m * k + k * n + m * n)
    memory = traffic / (accelerator.hbm_bytes_per_s * eff.hbm_frac)
    return np.asarray(np.maximum(best, memory) + eff.kernel_latency_s)
