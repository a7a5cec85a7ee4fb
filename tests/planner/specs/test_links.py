"""Links between pools in cluster files."""

import pytest

from hardware.pool_links import link_between
from planner.errors import SpecError
from planner.specs.loader import cluster_from_dict, load_cluster

POOLS = [
    {"name": "new", "accelerator": "h100-sxm-80gb", "nodes": 4},
    {"name": "old", "accelerator": "a100-sxm-80gb", "nodes": 8, "nic": "ib-hdr-200"},
    {"name": "third", "accelerator": "h100-sxm-80gb", "nodes": 2},
]


def read(*links):
    return cluster_from_dict({"name": "c", "pools": POOLS, "links": list(links)})


def test_a_stated_link_is_read_and_stands_in_the_document():
    stated = read(
        {
            "between": ["old", "new"],
            "bandwidth": "100 Gb/s",
            "latency": "20 ms",
            "wan": True,
            "price_per_gb": 0.02,
        }
    )
    (link,) = stated.cluster.links
    assert (link.bytes_per_s, link.latency_s, link.is_wan) == (12.5e9, 0.02, True)
    assert link.price_per_byte == pytest.approx(0.02e-9)
    new, old, _ = stated.cluster.pools
    assert link_between(stated.cluster, new, old) is link
    again = cluster_from_dict(stated.document)
    assert again.document == stated.document
    assert again.cluster == stated.cluster


def test_oversubscription_is_of_the_ports_of_the_smaller_pool():
    plain, over = (
        read({"between": ["new", "old"], "oversubscription": x}).cluster.links[0]
        for x in (1, "4:1")
    )
    new, old, _ = read().cluster.pools
    ports = [pool.n_devices * pool.nic_bytes_per_s for pool in (new, old)]
    assert plain.bytes_per_s == min(ports) == 4 * over.bytes_per_s
    assert plain.latency_s == max(new.nic.p2p_latency_s, old.nic.p2p_latency_s)


def test_without_links_the_document_has_none_and_neither_has_one_pool():
    assert "links" not in read().document
    stated = read({"between": ["new", "old"], "bandwidth": "1 TB/s"})
    assert stated.only(0).document == read().only(0).document
    assert stated.only(0).cluster == read().only(0).cluster


@pytest.mark.parametrize(
    ("link", "parts"),
    [
        ("{between: [a, c], bandwidth: 1 TB/s}", ["c.yaml:5:19", "no pool 'c'", "pools: a, b"]),
        ("{between: [a, a], bandwidth: 1 TB/s}", ["c.yaml:5:15", "joins pool 'a' with itself"]),
        ("{between: [a], bandwidth: 1 TB/s}", ["c.yaml:5:15", "expected two pools"]),
        ("{between: [a, b]}", ["links.0.bandwidth: is missing", "`oversubscription`"]),
        (
            "{between: [a, b], bandwidth: 1 TB/s, oversubscription: 2}",
            ["c.yaml:5:60", "stands beside `bandwidth`"],
        ),
        ("{between: [a, b], bandwidth: 1 TB/s, wan: true}", ["latency", "such as `20 ms`"]),
        ("{between: [a, b], bandwidth: fast}", ["c.yaml:5:34", "is not a bandwidth"]),
        ("{between: [a, b], bandwith: 1 TB/s}", ["c.yaml:5:23", "did you mean `bandwidth`"]),
        ("{between: [a, b], bandwidth: 1 TB/s, price_per_gb: -1}", ["c.yaml:5:56", "0 to 1000"]),
    ],
)
def test_wrong_links_name_their_line(tmp_path, link, parts):
    path = tmp_path / "c.yaml"
    path.write_text(
        "pools:\n  - {name: a, accelerator: h100, nodes: 2}\n"
        f"  - {{name: b, accelerator: a100-sxm-80gb, nodes: 2}}\nlinks:\n  - {link}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_cluster(path)
    for part in parts:
        assert part in str(caught.value)


def test_a_pair_has_one_link():
    link = {"between": ["new", "old"], "bandwidth": "1 TB/s"}
    with pytest.raises(SpecError, match="a second link between 'old' and 'new'"):
        read(link, {**link, "between": ["old", "new"]})


def test_a_link_can_be_set_like_every_field():
    changed = load_cluster("two-sites-h100", [("links.0.bandwidth", "400 Gb/s")])
    assert changed.cluster.links[0].bytes_per_s == 50e9
