"""The reader of catalogue files: units, inheritance, errors that name the entry and the key."""

import pytest

from hardware._reader import CatalogueError, expand_like, read_link, read_sources
from hardware._units import parse_quantity, unit_scale

SOURCES = read_sources(
    {
        "sheet": {"text": "A data sheet", "date": "2026-01-02"},
        "guess": {"text": "An estimate", "date": "2026-01-03", "status": "assumed"},
    }
)


def _link(**changes):
    entry = {
        "kind": "scale-out",
        "aliases": [],
        "port": {"value": "400 Gb/s", "source": "sheet"},
        "latency_us": {
            "ring_base": [1, 2, 3],
            "ring_hop": [1, 2, 3],
            "tree_base": [1, 2, 3],
            "tree_hop": [1, 2, 3],
            "p2p": 4,
            "source": "guess",
        },
        "protocol_frac": {"value": [0.5, 0.92, 1.0], "source": "sheet"},
        "caps": {"value": [1, 2, float("inf")], "source": "sheet"},
        "efficiency": {"value": 0.9, "source": "sheet", "status": "assumed", "note": "by eye"},
    }
    return {**entry, **changes}


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("3.35 TB/s", "bytes_per_s", 3.35e12),
        ("200 Gb/s", "bytes_per_s", 25e9),  # bits
        ("200 GB/s", "bytes_per_s", 200e9),
        ("80 GB", "bytes", 80e9),
        ("80 GiB", "bytes", 85_899_345_920),
        ("81559 MiB", "bytes", 85_520_809_984),
        ("700 W", "watts", 700),
        ("4 us", "seconds", 4e-6),
    ],
)
def test_quantities(text, dimension, value):
    assert parse_quantity(text, dimension) == value


@pytest.mark.parametrize("text", ["80", "80 TB/s", "80GB", "eighty GB"])
def test_quantity_without_a_known_unit_or_number_is_refused(text):
    with pytest.raises(ValueError, match=text):
        parse_quantity(text, "bytes")


def test_scale_keeps_infinity():
    assert unit_scale(float("inf"), "1e9") == float("inf")


def test_figure_takes_date_and_status_from_its_source_unless_it_says_otherwise():
    origins = read_link("wire", _link(), SOURCES).provenance
    assert origins["bytes_per_s"].status == "confirmed"
    assert origins["ring_hop_s"].status == "assumed"
    assert origins["ring_hop_s"].date == "2026-01-03"
    assert origins["efficiency"].status == "assumed"
    assert origins["efficiency"].source == "A data sheet; by eye"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"port": {"value": "400 Gb/s", "source": "rumour"}}, "wire, port: source 'rumour'"),
        ({"port": {"value": "400", "source": "sheet"}}, "wire, port: '400' has no unit"),
        ({"port": {"source": "sheet"}}, "wire, port: wants value and source"),
        ({"efficiency": {"value": 1, "source": "sheet", "status": "sure"}}, "status 'sure'"),
        ({"caps": {"value": [1, 2], "source": "sheet"}}, "wire, caps: wants 3 numbers"),
        ({"colour": "red"}, "wire, colour: is not a key"),
    ],
)
def test_errors_name_the_entry_and_the_key(changes, message):
    with pytest.raises(CatalogueError, match=message):
        read_link("wire", _link(**changes), SOURCES)


def test_missing_key_is_named():
    entry = _link()
    del entry["efficiency"]
    with pytest.raises(CatalogueError, match="wire, efficiency: is missing"):
        read_link("wire", entry, SOURCES)


def test_like_takes_over_all_but_the_aliases():
    entries = {"a": {"x": 1, "y": 2, "aliases": ["b"]}, "c": {"like": "a", "y": 3}}
    assert expand_like(entries)["c"] == {"like": "a", "x": 1, "y": 3, "aliases": []}


@pytest.mark.parametrize(
    "entries", [{"a": {"like": "b"}, "b": {"like": "a"}}, {"a": {"like": "z"}}]
)
def test_like_that_leads_nowhere_is_refused(entries):
    with pytest.raises(CatalogueError, match="leads nowhere"):
        expand_like(entries)


def test_an_announced_link_has_no_confirmed_figure():
    ports = read_link("shipping", _link(), SOURCES).provenance["bytes_per_s"]
    assert ports.status == "confirmed"
    announced = read_link("announced", _link(status="assumed"), SOURCES)
    assert announced.status == "assumed"
    assert {origin.status for origin in announced.provenance.values()} == {"assumed"}


def test_a_status_that_does_not_exist_is_refused():
    with pytest.raises(
        CatalogueError, match="l, status: status 'planned' is not one of confirmed"
    ):
        read_link("l", _link(status="planned"), SOURCES)
