"""Compressed answers: whose, and that nothing is lost."""

import asyncio
import gzip

import pytest

from service.http.compression import LEAST_BYTES, accepts_gzip, compressed, gzipped


@pytest.mark.parametrize(
    ("header", "takes"),
    [
        ("gzip", True),
        ("br;q=1.0, GZIP;q=0.8", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip;q=0.001", True),
        ("identity", False),
        ("", False),
    ],
)
def test_the_header_says_who_takes_gzip(header, takes):
    assert accepts_gzip(header) is takes


def test_small_answers_stay_as_they_are():
    content = b"x" * (LEAST_BYTES - 1)
    assert asyncio.run(compressed(content, "gzip")) == (content, {})


@pytest.mark.parametrize("n_bytes", [LEAST_BYTES, 1_700_000])
def test_large_answers_come_back_whole(n_bytes):
    content = b"step_time_s=16.126 " * (n_bytes // 19 + 1)
    sent, headers = asyncio.run(compressed(content, "gzip"))
    assert headers == {"vary": "accept-encoding", "content-encoding": "gzip"}
    assert gzip.decompress(sent) == content
    assert len(sent) < len(content) / 10
    assert sent == gzipped(content)
    assert asyncio.run(compressed(content, "br")) == (content, {"vary": "accept-encoding"})
