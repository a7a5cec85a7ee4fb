"""Clusters said in words where a file is expected."""

import pytest

from planner.errors import SpecError
from planner.specs.loader import load_cluster


@pytest.mark.parametrize(
    ("text", "pool"),
    [
        ("64xh100", ("h100-sxm-80gb", 8, 8, "ib-ndr-400", 8)),
        ("64 x H100", ("h100-sxm-80gb", 8, 8, "ib-ndr-400", 8)),
        ("4x4090", ("rtx-4090-24gb", 1, 4, "ethernet-10", 1)),
        ("4x8xa100-80gb", ("a100-sxm-80gb", 4, 8, "ib-hdr-200", 8)),
        ("2x4x4090", ("rtx-4090-24gb", 2, 4, "ethernet-10", 1)),
        ("8x4090", ("rtx-4090-24gb", 2, 4, "ethernet-10", 1)),
        ("4090", ("rtx-4090-24gb", 1, 1, "ethernet-10", 1)),
        ("p5.48xlarge", ("h100-sxm-80gb", 1, 8, "efa-100", 32)),
        ("1xt4", ("t4-16gb", 1, 1, "tcp-100", 1)),
        ("gb200:256", ("gb200-186gb", 64, 4, "ib-ndr-400", 4)),
        ("2xp5.48xlarge", ("h100-sxm-80gb", 2, 8, "efa-100", 32)),
        ("2 nodes of p5.48xlarge", ("h100-sxm-80gb", 2, 8, "efa-100", 32)),
        ("2 nodes of h100", ("h100-sxm-80gb", 2, 8, "ib-ndr-400", 8)),
        ("512xh100@roce400", ("h100-sxm-80gb", 64, 8, "roce-400", 8)),
        ("512xh100@efa-400", ("h100-sxm-80gb", 64, 8, "efa-400", 8)),
    ],
)
def test_words(text, pool):
    (found,) = load_cluster(text).cluster.pools
    assert (
        found.accelerator.name,
        found.n_nodes,
        found.devices_per_node,
        found.nic.name,
        found.nics_per_node,
    ) == pool


def test_fields_are_set_as_in_a_file():
    (pool,) = load_cluster("64xh100", [("pools.0.nodes", "2")]).cluster.pools
    assert pool.n_devices == 16


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("100xh100", "96 or 104"),
        ("0xh100", "out of range"),
        ("99999999999999999999xh100", "out of range"),
        ("8xh10", "did you mean h100"),
        ("8xh100@roce", "did you mean roce-"),
        ("8xh100@nvlink4", "no network is called 'nvlink4'"),
        ("8xgpus", "no accelerator, server or cloud machine is called 'gpus'"),
        ("2x8xp5.48xlarge", "2 nodes of p5.48xlarge"),
        ("2x0xh100", "accelerators_per_node"),
        ("h101", "in words: 64xh100"),
        ("xh100", "in words: 64xh100"),
    ],
)
def test_words_that_say_no_cluster(text, words):
    with pytest.raises(SpecError) as caught:
        load_cluster(text)
    assert words in str(caught.value)


def test_a_file_comes_before_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "8xh100").write_text("pools: [{accelerator: a100, nodes: 3}]\n")
    assert load_cluster("8xh100").cluster.pools[0].n_nodes == 3
