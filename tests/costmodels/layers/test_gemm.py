"""Matrix products on a round-numbered accelerator: waves, memory bound, properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.examples import toy_accelerator
from costmodels.layers.gemm import gemm_s

TOY = toy_accelerator()
sizes = st.integers(1, 20_000)


def seconds(m: int, k: int, n: int, precision: str = "bf16", rate: float = 1.0, part=TOY) -> float:
    return gemm_s(m, k, n, part, precision, rate).item()


def test_a_large_square_by_hand():
    # 32 * 64 tiles of 256 x 128 = 2048, 21 waves of 100; each 2 * 32768 * (8192 + 128) FLOPs;
    # 2100 * 2 * 32768 * 8320 = 1.14504e12 over 225e12 = 5.0891 ms; + 4 us.
    by_hand = 2100 * 2 * 32_768 * 8_320 / 225e12 + 4e-6
    assert seconds(8192, 8192, 8192) == pytest.approx(by_hand, rel=1e-12)
    assert by_hand == pytest.approx(5.0931e-3, rel=1e-4)


def test_a_single_row_is_memory_bound_by_hand():
    # 2 B (8192 + 8192^2 + 8192) = 134.25 MB over 1.6 TB/s = 83.9 us; + 4 us.
    assert seconds(1, 8192, 8192) == pytest.approx(134_250_496 / 1.6e12 + 4e-6, rel=1e-12)


def test_one_tile_more_than_the_multiprocessors_costs_a_wave():
    # 100 tiles of 256 x 128 fill one wave exactly; row 2561 starts an eleventh row of tiles.
    one = seconds(2560, 65_536, 1280)
    two = seconds(2561, 65_536, 1280)
    assert one == pytest.approx(100 * 2 * 32_768 * (65_536 + 128) / 225e12 + 4e-6)
    assert 1.2 < two / one < 2.0  # a smaller tile wastes less than the second wave


def test_smaller_tiles_lose_five_percent_per_halving():
    # 64 x 64 is three halvings of 256 x 128: one wave of 100 tiles at 0.95^3 of the rate.
    by_hand = 2 * 100 * 64 * 64 * (65_536 + 128) / (225e12 * 0.95**3) + 4e-6
    assert seconds(640, 65_536, 640) == pytest.approx(by_hand, rel=1e-12)


def test_precision_picks_peak_and_width():
    assert seconds(8192, 8192, 8192, "tf32") == pytest.approx(
        2 * (seconds(8192, 8192, 8192) - 4e-6) + 4e-6
    )
    # 4 bytes an element: twice the traffic of the memory-bound row.
    assert seconds(1, 8192, 8192, "tf32") > 1.9 * seconds(1, 8192, 8192)


def test_arrays_broadcast_and_agree_with_scalars():
    table = gemm_s([[1024.0], [4096.0]], 2048, [512.0, 3072.0], TOY, "bf16")
    assert table.shape == (2, 2)
    assert table[1, 0] == seconds(4096, 2048, 512)


@given(m=sizes, k=sizes, n=sizes, more=st.integers(1, 5000))
def test_a_larger_product_never_takes_less_time(m, k, n, more):
    base = seconds(m, k, n)
    assert seconds(m + more, k, n) >= base
    assert seconds(m, k + more, n) > base
    assert seconds(m, k, n + more) >= base


@given(m=sizes, k=sizes, n=sizes, factor=st.floats(1.01, 4.0))
def test_a_faster_part_never_takes_longer(m, k, n, factor):
    base = seconds(m, k, n)
    peaks = {name: factor * peak for name, peak in TOY.peak_flops_per_s.items()}
    assert seconds(m, k, n, part=toy_accelerator(peak_flops_per_s=peaks)) <= base
    assert seconds(m, k, n, part=toy_accelerator(hbm_bytes_per_s=factor * 2e12)) <= base
    assert seconds(m, k, n, rate=1 / factor) >= base


@given(m=sizes, k=sizes, n=sizes)
def test_never_above_the_sustained_share_of_the_peak(m, k, n):
    assert seconds(m, k, n) > 2.0 * m * k * n / (300e12 * 0.75)


def test_no_warning_on_a_table_of_zero_rows():
    assert gemm_s(np.array([]), 8, 8, TOY, "bf16").shape == (0,)
