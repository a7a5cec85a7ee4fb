"""Which connection ends for a new one, and what is counted and logged of it."""

import logging

from service.access.connection_bounds import ConnectionBounds, ConnectionLimits
from service.telemetry.connection_tally import ConnectionTally


class Named:
    """A connection that notes when it is ended."""

    def __init__(self, name: str, ended: list[str]) -> None:
        self.name, self.ended = name, ended

    def end_idle(self) -> None:
        self.ended.append(self.name)


def bounded(total: int, per_address: int) -> tuple[ConnectionBounds, ConnectionTally, list[str]]:
    tally = ConnectionTally("rest")
    return ConnectionBounds(ConnectionLimits(total, per_address), tally), tally, []


def test_the_oldest_idle_one_of_the_address_ends_first():
    bounds, tally, ended = bounded(10, 3)
    a, b, c, d, e = (Named(name, ended) for name in "abcde")
    other = Named("other", ended)
    assert all(bounds.admit(each, "10.0.0.1") for each in (a, b))
    assert bounds.admit(other, "10.0.0.2")
    assert bounds.admit(c, "10.0.0.1")
    bounds.set_busy(a)
    assert bounds.admit(d, "10.0.0.1")
    assert ended == ["b"]
    bounds.set_idle(a)  # idle for less time than c and d
    assert bounds.admit(e, "10.0.0.1")
    assert ended == ["b", "c"]
    assert tally.measure() == {"idle": 4, "busy": 0}
    assert (dict(tally.ended), dict(tally.refused)) == ({"address": 2}, {})


def test_of_all_the_oldest_idle_one_ends_and_busy_ones_never_do():
    bounds, tally, ended = bounded(2, 2)
    a, b, c, d = (Named(name, ended) for name in "abcd")
    assert bounds.admit(a, "10.0.0.1")
    assert bounds.admit(b, "10.0.0.2")
    bounds.set_busy(a)
    assert bounds.admit(c, "10.0.0.3")
    assert ended == ["b"]
    bounds.set_busy(c)
    assert not bounds.admit(d, "10.0.0.4")
    assert ended == ["b"]
    assert (dict(tally.ended), dict(tally.refused)) == ({"total": 1}, {"total": 1})
    bounds.forget(a)
    bounds.forget(a)
    assert bounds.admit(d, "10.0.0.4")
    assert tally.measure() == {"idle": 1, "busy": 1}


def test_a_network_of_ipv6_counts_as_one_address():
    bounds, _, ended = bounded(10, 1)
    assert bounds.admit(Named("a", ended), "2001:db8::1")
    assert bounds.admit(Named("b", ended), "2001:db8::2")
    assert bounds.admit(Named("c", ended), "2001:db8:0:1::1")
    assert ended == ["a"]


def test_one_line_a_minute_says_how_many(caplog):
    now_s = 0.0
    tally = ConnectionTally("rest", monotonic=lambda: now_s)
    with caplog.at_level(logging.WARNING, logger="planner.service"):
        for _ in range(5):
            tally.note("10.0.0.1", "address", was_refused=False)
        now_s = 61.0
        tally.note("10.0.0.1", "total", was_refused=True)
    first, second = (record.fields for record in caplog.records)
    assert (first["ended"], first["refused"], first["since_last_line"]) == (1, 0, 1)
    assert (second["ended"], second["refused"], second["since_last_line"]) == (5, 1, 5)
