"""Figures that a cluster file replaces: they reach the cost model, of that pool alone."""

import numpy as np
import pytest

import planner
from costmodels.comm.collectives import ALGORITHMS, collective_s, point_to_point_s
from costmodels.comm.placement import Group
from costmodels.examples import LLAMA3_8B
from costmodels.problem import Problem
from costmodels.shapes import TrainingJob
from costmodels.stacks import FUSED
from hardware.catalogue import load_catalogue
from hardware.parts import Fabric
from planner.analyze.elasticities import FIGURES
from planner.cli.spec_check import check_spec
from planner.errors import SpecError
from planner.render.catalog import sheet_document, sheet_of
from planner.render.terminal import lines_of
from planner.specs.loader import cluster_from_dict, load_cluster

US, GB = 1e-6, 1e9


def pool(accelerator="h100", nodes=2, **fields):
    """One pool of H100 nodes with some fields replaced."""
    given = cluster_from_dict({"pools": [{"accelerator": accelerator, "nodes": nodes, **fields}]})
    return given.cluster.pools[0]


def group(of, ranks_per_domain, n_domains):
    return Group(
        n_ranks=np.array(ranks_per_domain * n_domains),
        ranks_per_domain=np.array(ranks_per_domain),
        n_domains=np.array(n_domains),
        wire_bytes_per_s=np.array(of.nic_bytes_per_s * ranks_per_domain),
        tier=np.array(0),
    )


def inside(of):
    return group(of, 8, 1)


def test_every_latency_of_the_port_follows_its_hop():
    """InfiniBand's hops are 2.7, 4.0 and 14 us: a hop of 5.4 us doubles all of them."""
    nic = pool(nic="ib-ndr-400", nic_latency="5.4 us").nic
    assert nic.ring_hop_s == pytest.approx((5.4 * US, 8 * US, 28 * US))
    assert nic.tree_hop_s == pytest.approx((10 * US, 17 * US, 28 * US))
    assert nic.p2p_latency_s == pytest.approx(44.8 * US)
    assert nic.latency_factor == pytest.approx(2.0)
    assert nic.bytes_per_s == 50 * GB


def test_a_latency_of_the_file_is_the_figure_of_the_elasticity():
    """`elasticity.scale_out_latency` is of the same change: all latencies of the link alike."""
    job, usual = TrainingJob(8192, 64, "bf16"), pool(nic="ib-ndr-400")
    problem = Problem(LLAMA3_8B, job, usual, Fabric(), FUSED)
    figure = next(x for x in FIGURES if x.name == "scale_out_latency")
    grown = figure.changed(problem, 2.0).pool.nic
    stated = pool(nic="ib-ndr-400", nic_latency="5.4 us").nic
    for field in ("ring_base_s", "ring_hop_s", "tree_base_s", "tree_hop_s"):
        assert getattr(stated, field) == pytest.approx(getattr(grown, field))
    assert stated.p2p_latency_s == pytest.approx(grown.p2p_latency_s)
    assert stated.latency_factor == pytest.approx(grown.latency_factor)


def test_a_message_between_nodes_takes_the_latency_of_the_file():
    """22.4 us + 1 MB / 48.5 GB/s on one pair of ports; 11.2 us with half the hop of 2.7 us."""
    usual = pool(nic="ib-ndr-400")
    quick = pool(nic="ib-ndr-400", nic_latency="1.35 us")
    times = [float(point_to_point_s(1e6, group(p, 1, 2), p)) for p in (usual, quick)]
    assert times == pytest.approx([22.4 * US + 1e6 / 48.5e9, 11.2 * US + 1e6 / 48.5e9])


def test_a_short_gather_in_a_node_takes_the_latency_of_the_file():
    """NVLink with LL: base 6.6 us and seven hops of 0.6 us; half of that with hops of 0.3 us."""
    usual, quick = pool(), pool(scale_up_latency="300 ns")
    times = [float(collective_s("all-gather", 1.0, inside(p), p)) for p in (usual, quick)]
    assert times == pytest.approx([10.8 * US, 5.4 * US], rel=1e-5)


def test_sums_in_the_switch_can_be_switched_off():
    """1 GB on eight H100: 25 us + 1.75 GB / 480 GB/s; a ring 56 us + 1.75 / 370.8."""
    usual, off = pool(), pool(sums_in_switch=False)
    times = [float(collective_s("all-reduce", GB, inside(p), p)) for p in (usual, off)]
    ring = 8.4 * US + 14 * 3.4 * US + 1.75 / 370.8
    assert times == pytest.approx([25 * US + 1.75 / 480, ring])
    assert off.accelerator.in_switch_all_reduce_bytes_per_s == 0
    assert off.accelerator.ring_bytes_per_s == usual.accelerator.ring_bytes_per_s


def test_sums_in_the_switch_can_be_given_to_a_part_without_them():
    """MI300X has none. With 600 GB/s: 25 us + 1.75 GB / 600 GB/s, from six devices on."""
    switched = pool({"like": "mi300x", "in_switch_bandwidth": "600 GB/s"}, sums_in_switch=True)
    nvls = ALGORITHMS["all-reduce"]["hierarchical"]
    time = nvls.time_s(GB, inside(switched), switched)
    assert float(time) == pytest.approx(25 * US + 1.75 / 600)
    assert float(nvls.time_s(GB, group(switched, 4, 1), switched)) == np.inf


def test_a_stated_rate_of_the_switch_stands_beside_a_scaled_bandwidth():
    """Twice the scale-up bandwidth doubles what rings reach, not the stated rate of the switch."""
    part = pool(
        {"like": "h100", "scale_up_bandwidth": "900 GB/s", "in_switch_bandwidth": "1 TB/s"}
    ).accelerator
    assert part.ring_bytes_per_s == pytest.approx(741.6 * GB)
    assert part.in_switch_all_reduce_bytes_per_s == 1000 * GB
    assert part.in_switch_min_ranks == 5


def test_the_switch_of_a_part_without_a_rate_is_refused():
    with pytest.raises(SpecError, match=r"pools\.0\.sums_in_switch: no rate is known.*mi300x"):
        pool("mi300x", sums_in_switch=True)


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("nic_latency", "5", "has no unit|text"),
        ("nic_latency", "5 GB", "unknown unit"),
        ("scale_up_latency", "1 s", "out of range\n  fix: allowed: 1 ns to 10 ms"),
        ("sums_in_switch", "maybe", "true or false"),
    ],
)
def test_bad_values_are_refused(key, value, part):
    with pytest.raises(SpecError, match=part):
        load_cluster("h100-x8", [(f"pools.0.{key}", value)])


def test_only_the_pool_that_states_it_changes():
    pools = [
        {"name": "near", "accelerator": "h100", "nodes": 2, "scale_up_latency": "0.3 us"},
        {"name": "far", "accelerator": "h100", "nodes": 2, "nic_latency": "27 us"},
    ]
    near, far = cluster_from_dict({"pools": pools}).cluster.pools
    catalogue = load_catalogue()
    assert far.scale_up == catalogue.link("nvlink4")
    assert near.nic == catalogue.link(near.nic.name)
    assert near.scale_up.ring_hop_s[0] == pytest.approx(0.3 * US)
    assert far.nic.ring_hop_s[0] == pytest.approx(27 * US)


def test_replaced_figures_are_in_the_document_and_no_longer_assumed():
    changes = [
        ("pools.0.nic", "ib-xdr-800"),
        ("pools.0.nic_latency", "2 us"),
        ("pools.0.scale_up_latency", "0.4 us"),
        ("pools.0.sums_in_switch", "false"),
    ]
    given = load_cluster("h100-x512", changes)
    stated = given.document["pools"][0]
    assert stated["nic_latency"] == "2e-06 s"
    assert stated["scale_up_latency"] == "4e-07 s"
    assert stated["sums_in_switch"] is False
    assert cluster_from_dict(given.document).document == given.document
    assert not [x for x in given.assumed if "hop" in x or "p2p" in x]


def test_a_power_limit_slows_products_and_saves_energy():
    """B200 at 700 of 1000 W: 0.7^0.6 = 0.807 of the rates of products, of no other time."""
    pins = {"tp": 1, "mbs": 1}
    free, limited = (
        planner.evaluate("llama3-8b", {"pools": [pool]}, pins=pins).plans[0]
        for pool in (
            {"accelerator": "b200", "nodes": 1, "name": "p"},
            {"accelerator": "b200", "nodes": 1, "name": "p", "power_limit": "700 W"},
        )
    )
    times = [plan.breakdown.rows.problem.pool.accelerator for plan in (free, limited)]
    assert times[1].efficiency.gemm_frac / times[0].efficiency.gemm_frac == pytest.approx(0.7**0.6)
    assert times[1].efficiency.hbm_frac == times[0].efficiency.hbm_frac
    assert 1.1 < limited.step_time_s / free.step_time_s < 0.7**-0.6
    assert limited.run.power_w == pytest.approx(0.7 * free.run.power_w)
    assert limited.plan_id != free.plan_id


def test_a_power_limit_is_in_the_document_and_named_as_assumed():
    given = cluster_from_dict(
        {"pools": [{"accelerator": "b200", "nodes": 2, "power_limit": "0.7 kW"}]}
    )
    assert given.document["pools"][0]["power_limit"] == "700.0 W"
    assert cluster_from_dict(given.document).document == given.document
    assert "b200-sxm-180gb.power_share (0.807 of its rates at 700 of 1000 W)" in given.assumed
    usual = {"pools": [{"accelerator": "b200", "nodes": 2}]}
    whole = {"pools": [{"accelerator": "b200", "nodes": 2, "power_limit": "1000 W"}]}
    assert cluster_from_dict(whole).document == cluster_from_dict(usual).document


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"power_limit": "1.2 kW"}, "1200 W is not below the 1000 W of the board"),
        ({"power_limit": "200 W"}, "200 W is less than a quarter of the 1000 W"),
        ({"power_limit": "700"}, "no unit|text"),
        ({"power_limit": "-5 W"}, "power_limit"),
        (
            {"accelerator": {"like": "b200", "power": "700 W"}, "power_limit": "700 W"},
            "700 W is not below the 700 W of the board\n  fix: leave it out, or give the power of",
        ),
        (
            {"accelerator": "tpu-v5p", "power_limit": "200 W"},
            "power of tpu-v5p itself is not known",
        ),
    ],
)
def test_a_power_limit_that_is_none_is_refused(fields, message):
    entry = {"accelerator": "b200", "nodes": 2, **fields}
    with pytest.raises(SpecError, match=message):
        cluster_from_dict({"pools": [entry]})


def test_the_figures_of_the_catalogue_leave_the_document_as_it_is():
    """Ids of plans do not change where a file says what is true anyway."""
    plain = load_cluster("h100-x512")
    said = load_cluster(
        "h100-x512",
        [
            ("pools.0.nic_latency", "2.7 us"),
            ("pools.0.scale_up_latency", "600 ns"),
            ("pools.0.sums_in_switch", "true"),
        ],
    )
    assert said.document == plain.document
    assert said.cluster == plain.cluster


def test_check_spec_names_what_is_replaced(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(
        "pools:\n  - name: p\n    nodes: 2\n"
        "    accelerator: {like: h100, power: 500 W, peaks: {bf16: 800 TFLOP/s}}\n"
        "    nic_latency: 1 us\n    sums_in_switch: false\n"
    )
    lines = check_spec(file).splitlines()
    assert (
        "  replaced figures: p.power 500.0 W, p.peaks.bf16 800000000000000 FLOP/s,"
        " p.nic_latency 1e-06 s, p.sums_in_switch false" in lines
    )


def test_a_plan_is_another_one_with_another_latency():
    """Eight H100 and tp 8: shorter hops make a shorter step, and another id."""
    pins = {"tp": 8, "mbs": 1}
    usual, quick = (
        planner.evaluate("llama3-8b", "h100-x8", pins=pins, overrides=change).plans[0]
        for change in ((), [("pools.0.scale_up_latency", "60 ns")])
    )
    assert quick.plan_id != usual.plan_id
    assert quick.step_time_s < usual.step_time_s
    assert quick.headroom_frac == usual.headroom_frac


@pytest.mark.parametrize("name", ["rubin-ultra", "uec-800"])
def test_the_sheet_of_an_announced_part_says_so(name):
    first = lines_of(sheet_document(sheet_of(name)))[0]
    assert first.endswith("announced: nobody has measured it")
    assert not sheet_of("h100").announced


def test_plans_on_announced_parts_say_so():
    document = {"pools": [{"accelerator": "rubin", "nodes": 2}]}
    given = cluster_from_dict(document)
    assert given.announced == ("rubin-288gb", "nvlink6")
    assert given.assumed[:2] == (
        "rubin-288gb.every figure (announced)",
        "nvlink6.every figure (announced)",
    )
    found = planner.evaluate("llama3-8b", document, pins={"tp": 8, "mbs": 1})
    assert "assumed every figure of rubin-288gb, nvlink6 (announced, not measured)" in found.notes
    usual = planner.evaluate("llama3-8b", "h100-x8", pins={"tp": 8, "mbs": 1})
    assert not [note for note in usual.notes if "announced" in note]
