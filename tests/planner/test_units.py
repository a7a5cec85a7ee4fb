import contextlib
import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import units
from planner.errors import BadValue

POSITIVE = st.floats(min_value=1e-9, max_value=1e24)


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (units.parse_size, "80 GiB", 80 * 2**30),
        (units.parse_size, "80 GB", 80e9),
        (units.parse_size, "80GB", 80e9),
        (units.parse_size, "512 MiB", 512 * 2**20),
        (units.parse_size, "1_024 B", 1024),
        (units.parse_size, " 1.5e3 kB ", 1.5e6),
        (units.parse_bandwidth, "400 Gb/s", 50e9),
        (units.parse_bandwidth, "400 Gbps", 50e9),
        (units.parse_bandwidth, "400Gbit/s", 50e9),
        (units.parse_bandwidth, "50 GB/s", 50e9),
        (units.parse_bandwidth, "3.35 TB/s", 3.35e12),
        (units.parse_time, "3 us", 3e-6),
        (units.parse_time, "3 µs", 3e-6),
        (units.parse_time, "4 ms", 4e-3),
        (units.parse_time, "2 days", 172800),
        (units.parse_rate, "989 TFLOP/s", 989e12),
        (units.parse_rate, "2 PFLOPS", 2e15),
        (units.parse_rate, "1979 TOPS", 1979e12),
        (units.parse_count, "15e12", 15e12),
        (units.parse_count, "15T", 15e12),
        (units.parse_count, "70.6 B", 70.6e9),
        (units.parse_count, "4096", 4096),
        (units.parse_count, "1_000", 1000),
        (units.parse_count, 1_000, 1000),
        (units.parse_count, 15e12, 15e12),
        (units.parse_ratio, "1:7", 7),
        (units.parse_ratio, "7:1", 7),
        (units.parse_ratio, "3:2", 1.5),
        (units.parse_ratio, 7, 7),
        (units.parse_ratio, "1.067", 1.067),
    ],
)
def test_quantities_as_people_write_them(parse, text, expected):
    assert parse(text) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("parse", "value", "parts"),
    [
        (units.parse_bandwidth, "400gb", ["unclear", "400 GB/s (bytes)", "400 Gb/s (bits)"]),
        (units.parse_bandwidth, "400 gb/s", ["case matters", "400 Gb/s (bits)"]),
        (units.parse_bandwidth, "400 Gb", ["a size, not a bandwidth", "400 Gb/s"]),
        (units.parse_bandwidth, "50 GB", ["a size, not a bandwidth", "50 GB/s"]),
        (units.parse_bandwidth, 400, ["400 has no unit", "400 Gb/s or 400 GB/s"]),
        (units.parse_bandwidth, "fast", ["'fast' is not a bandwidth"]),
        (units.parse_size, 80, ["80 has no unit", "80 GiB or 80 GB"]),
        (units.parse_size, "80", ["80 has no unit", "80 GiB or 80 GB"]),
        (units.parse_size, "80 Gb", ["in bits", "80 GB (decimal) or 80 GiB (binary)"]),
        (units.parse_size, "80 gib", ["case matters", "80 GiB"]),
        (units.parse_size, "80 gb", ["case matters", "80 GB"]),
        (units.parse_size, "80,5 GB", ["comma"]),
        (units.parse_size, "80 furlongs", ["unknown unit 'furlongs'"]),
        (units.parse_size, True, ["true is not a size"]),
        (units.parse_size, None, ["null is not a size"]),
        (units.parse_size, "9e999 GB", ["not a finite number"]),
        (units.parse_size, " " * 10**6, ["is not a size"]),
        (units.parse_count, float("nan"), ["not a finite number"]),
        pytest.param(units.parse_count, 10**5000, ["not a finite number"], id="huge"),
        pytest.param(units.parse_size, 10**5000, ["has no unit"], id="huge size"),
        (units.parse_count, [1], ["a list is not a count"]),
        (units.parse_ratio, 0.5, ["0.5 is not an oversubscription", "1 or more"]),
        (units.parse_ratio, "0:7", ["not an oversubscription"]),
        (units.parse_ratio, "1:7:2", ["unknown unit"]),
        (units.parse_ratio, True, ["true is not an oversubscription"]),
        (units.parse_time, "3 parsec", ["unknown unit 'parsec'", "3 ms or 3 s"]),
        (units.parse_rate, "989 TFLOP", ["unknown unit 'TFLOP'", "989 TFLOP/s"]),
        (units.parse_rate, "989 tflop/s", ["case matters", "989 TFLOP/s"]),
    ],
)
def test_wrong_quantities_say_what_to_write(parse, value, parts):
    with pytest.raises(BadValue) as caught:
        parse(value)
    for part in parts:
        assert part in str(caught.value)


@given(POSITIVE)
def test_exact_texts_read_back_to_the_same_number(number):
    assert units.parse_size(units.exact_size(number)) == number
    assert units.parse_bandwidth(units.exact_bandwidth(number)) == number
    assert units.parse_rate(units.exact_rate(number)) == number


@given(st.floats(min_value=1e-5, max_value=1e13))
def test_a_formatted_time_reads_back_within_its_digits(time_s):
    assert units.parse_time(units.format_time(time_s)) == pytest.approx(time_s, rel=6e-3)


@given(st.floats(min_value=1, max_value=1e14))
def test_a_formatted_size_reads_back_within_its_digits(n_bytes):
    assert units.parse_size(units.format_size(n_bytes)) == pytest.approx(n_bytes, rel=0.051)


@given(st.floats(min_value=1, max_value=1e18))
def test_a_formatted_bandwidth_reads_back_within_its_digits(bytes_per_s):
    for text in (units.format_bandwidth(bytes_per_s), units.format_link_speed(bytes_per_s)):
        assert units.parse_bandwidth(text) == pytest.approx(bytes_per_s, rel=6e-3)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    for parse in (units.parse_size, units.parse_count, units.parse_ratio, units.parse_bandwidth):
        with contextlib.suppress(BadValue):
            assert math.isfinite(parse(text))


def test_formats_of_the_table():
    assert units.format_gib(61.2 * 2**30) == "61.2"
    assert units.format_percent(0.4301) == "43.0%"
    assert units.format_count(999_960) == "1.0 M"
    assert units.format_count(0) == "0"
    assert units.format_time(0.9999) == "1.00 s"
    assert units.format_time(0) == "0.00 us"
    assert units.format_rate(4.5e15) == "4500 TFLOP/s"
    assert units.format_bandwidth(100e9) == "100 GB/s"
    assert units.format_size(float("inf")) == units.format_count(float("nan")) == "-"


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(units).failed == 0
