"""Sweeps: from a file, a dict or options to points, and one message for each bad sweep."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import SpecError, UsageError
from planner.specs.loader import cluster_from_dict, model_from_dict
from planner.sweeps.spec.description import stays
from planner.sweeps.spec.spec import load_sweep, sweep_from_dict, sweep_from_options
from planner.sweeps.sweep import Sweep

NODES, MEMORY = "pools.0.nodes", "pools.0.accelerator.memory"


def sweep_of(**sections: Any) -> Sweep:
    base: dict[str, Any] = {"model": "llama3-70b", "cluster": "h100-x512"}
    return sweep_from_dict({**base, **sections})


def columns_of(sweep: Sweep) -> list[dict[str, Any]]:
    return [dict(sweep.columns(point)) for point in sweep.points()]


def documents_of(sweep: Sweep) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    found = [sweep.inputs(point) for point in sweep.points()]
    return [(model.document, cluster.document) for model, cluster in found]


def test_a_grid_by_hand():
    sweep = sweep_of(vary={NODES: [32, 64], MEMORY: "80 GiB..160 GiB*2"})
    assert sweep.n_points == 4
    assert [point.index for point in sweep.points()] == [0, 1, 2, 3]
    gib = 2.0**30
    assert [tuple(row.values()) for row in columns_of(sweep)] == [
        (32, 80 * gib),
        (32, 160 * gib),
        (64, 80 * gib),
        (64, 160 * gib),
    ]
    pools = [cluster["pools"][0] for _, cluster in documents_of(sweep)]
    assert [pool["nodes"] for pool in pools] == [32, 32, 64, 64]
    assert pools[1]["accelerator"] == {
        "like": "h100-sxm-80gb",
        "name": "h100-sxm-80gb-custom",
        "memory": f"{160 * 2**30} B",
    }


def test_the_inputs_are_those_of_files_that_say_the_same():
    sweep = sweep_of(
        vary={
            "model.layers": [40],
            "model.moe": [{"experts": 8, "topk": 2}],
            "model.moe.every": [2],
            "training.precision": [["bf16", "fp8-tensorwise"]],
            "operations.pue": [1.1],
            "pools.0.accelerator.peaks.bf16": ["2 PFLOP/s"],
            "pools.0.nic_latency": ["3 us"],
            "fabric.tiers.0.oversubscription": ["7:1"],
            "model.details.window": [4096],
        },
    )
    ((point,),) = [list(sweep.points())]
    model, cluster = sweep.inputs(point)
    from planner.solver.sources import read_inputs

    changes = (
        ("model.layers", 40),
        ("model.moe", "{experts: 8, topk: 2, every: 2}"),
        ("training.precision", "[bf16, fp8-tensorwise]"),
        ("operations.pue", 1.1),
        ("pools.0.accelerator", "{like: h100-sxm-80gb, peaks: {bf16: 2 PFLOP/s}}"),
        ("pools.0.nic_latency", "3 us"),
        ("fabric.tiers.0.oversubscription", 7),
        ("model.details.window", 4096),
    )
    expected = read_inputs("llama3-70b", "h100-x512", changes)
    assert (model.document, cluster.document) == (expected[0].document, expected[1].document)
    assert model.listed == ("bf16", "fp8-tensorwise")


def test_whole_catalogue_entries_take_their_own_platform_where_the_file_is_told_to_say_nothing():
    usual = dict.fromkeys(
        f"pools.0.{key}"
        for key in ("accelerators_per_node", "scale_up_domain", "nic", "nics_per_node", "name")
    )
    entries = ["h100-sxm-80gb", "gb200-186gb", {"like": "b200-180gb", "memory": "200 GiB"}]
    sweep = sweep_of(
        set={**usual, "fabric.tiers": []},
        vary={"pools.0.accelerator": entries, "pools.0.devices": [576]},
    )
    pools = [sweep.inputs(point)[1].cluster.pools[0] for point in sweep.points()]
    assert [pool.n_devices for pool in pools] == [576] * 3
    assert [pool.n_nodes for pool in pools] == [72, 144, 72]
    assert [pool.scale_up_domain for pool in pools] == [8, 72, 8]
    assert pools[2].accelerator.memory_bytes == 200 * 2**30
    assert stays(sweep) == []
    # As the file says it, where it is not told otherwise; and that is said.
    kept = sweep_of(vary={"pools.0.accelerator": ["gb200-186gb", "h100"]})
    assert kept.inputs(next(kept.points()))[1].cluster.pools[0].scale_up_domain == 8
    (note,) = stays(kept)
    assert "pools.0 keeps accelerators_per_node 8, scale_up_domain 8, nic ib-ndr-400" in note
    assert "--set pools.0.accelerators_per_node=null" in note


def test_figures_of_an_instance_are_replaced_and_its_ports_stay():
    sweep = sweep_of(cluster="p5e-x128", vary={MEMORY: ["200 GiB"]})
    (_, cluster), (_, plain) = (
        documents_of(sweep)[0],
        documents_of(sweep_of(cluster="p5e-x128", vary={"training.seq_len": [8192]}))[0],
    )
    mine, its = cluster["pools"][0], plain["pools"][0]
    for key in ("nodes", "accelerators_per_node", "nic", "nics_per_node", "scale_up_domain"):
        assert mine[key] == its[key]
    assert mine["accelerator"]["memory"] == f"{200 * 2**30} B"


def test_whole_machines_can_be_varied():
    keys = ("accelerators_per_node", "scale_up_domain", "nic", "nics_per_node", "name")
    usual = dict.fromkeys(f"pools.0.{key}" for key in keys)
    sweep = sweep_of(set=usual, vary={"pools.0.instance": ["p5.48xlarge", "p4d.24xlarge"]})
    pools = [sweep.inputs(point)[1].cluster.pools[0] for point in sweep.points()]
    assert [pool.accelerator.name for pool in pools] == ["h100-sxm-80gb", "a100-sxm-40gb"]
    assert [pool.nics_per_node for pool in pools] == [32, 4]  # EFA ports of 100 Gb/s


def test_the_order_of_axes_changes_no_id_and_no_document():
    axes = {NODES: [32, 64], MEMORY: ["80 GiB", "160 GiB"], "training.seq_len": [4096, 8192]}
    one, other = sweep_of(vary=axes), sweep_of(vary=dict(reversed(axes.items())))
    assert {p.point_id for p in one.points()} == {p.point_id for p in other.points()}
    assert len({p.point_id for p in one.points()}) == 8
    assert one.sweep_id != other.sweep_id  # the rows stand in another order


def test_an_id_is_of_the_content_however_it_is_written():
    written = sweep_of(vary={MEMORY: ["80 GiB"], NODES: [64]})
    same = sweep_of(vary={"pools.0.accelerator": [{"like": "h100", "memory": "81920 MiB"}]})
    assert [p.point_id for p in written.points()] == [p.point_id for p in same.points()]
    others = (
        sweep_of(vary={MEMORY: ["81 GiB"]}),
        sweep_of(vary={MEMORY: ["80 GiB"]}, search={"pin": {"tp": 8}}),
        sweep_of(vary={MEMORY: ["80 GiB"]}, set={"training.tokens": "1T"}),
        sweep_of(vary={MEMORY: ["80 GiB"]}, set={"training.precision": ["bf16", "fp8-delayed"]}),
        sweep_of(vary={MEMORY: ["80 GiB"], "pools.0.price_per_hour": [2]}),
    )
    ids = {point.point_id for sweep in others for point in sweep.points()}
    assert len(ids) == len(others)
    assert not ids & {p.point_id for p in written.points()}


def test_price_power_and_failures_cost_no_search_unless_they_order_plans():
    free = {
        "pools.0.price_per_hour": [2, 3],
        "pools.0.accelerator.power": ["700 W", "1 kW"],
        "operations.device_mtbf": ["1000 h", "9000 h"],
    }
    sweep = sweep_of(vary={NODES: [32, 64], **free})
    assert len({p.costless_key for p in sweep.points()}) == 2
    assert len({p.point_id for p in sweep.points()}) == 16
    for search in ({"objective": "cost"}, {"deadline": "30d"}):
        assert len({p.costless_key for p in sweep_of(vary=free, search=search).points()}) == 8
    dear = sweep_of(vary={"pools.0.nic_speed": ["400 Gb/s", "800 Gb/s"], MEMORY: ["80 GiB"]})
    assert len({p.costless_key for p in dear.points()}) == 2
    assert len({p.shared_key for p in dear.points()}) == 1
    limits = {"pools.0.accelerator.power": ["700 W", "1 kW"], "pools.0.power_limit": ["500 W"]}
    assert len({p.costless_key for p in sweep_of(vary=limits).points()}) == 2


@settings(max_examples=10, deadline=None)
@given(st.integers(100, 2000), st.integers(1, 400))
def test_constraints_hold_for_every_point_that_is_emitted_and_fail_for_the_rest(most_kw, least):
    axes = {NODES: "8..512*2", "pools.0.accelerator.power": ["500 W", "700 W", "1.2 kW"]}
    where = [f"pools.0.accelerator.power * n_devices <= {most_kw} kW", f"{NODES} >= {least}"]
    everything = columns_of(sweep_of(vary=axes))
    sweep = sweep_of(vary=axes, where=where)
    kept = columns_of(sweep)
    power = "in.pools.0.accelerator.power"

    def holds(row: dict[str, Any]) -> bool:
        n = row[f"in.{NODES}"]
        return row[power] * n * 8 <= most_kw * 1e3 and n >= least

    assert kept == [row for row in everything if holds(row)]
    assert [point.index for point in sweep.points()] == [
        i for i, row in enumerate(everything) if holds(row)
    ]


def test_columns_that_change_together_derived_values_and_tables():
    sweep = sweep_of(
        set={"pools.0.nic": None},
        together={
            "generation": {
                "hopper": {"pools.0.accelerator": "h100", "pools.0.price_per_hour": 2.5},
                "blackwell": {"pools.0.accelerator": "b200", "pools.0.price_per_hour": 4},
            }
        },
        vary={NODES: [32, 64]},
        let={
            "die_area": {"by": "pools.0.accelerator", "h100": 814, "b200": 1600},
            "silicon": "die_area * n_devices",
            "it_power": "pools.0.accelerator.power * n_devices",
        },
        where=["silicon <= 4.2e5", "generation == 'hopper' or n_devices >= 256"],
    )
    rows = columns_of(sweep)
    assert [(r["in.generation"], r[f"in.{NODES}"], r["let.silicon"]) for r in rows] == [
        ("hopper", 32, 814 * 256),
        ("blackwell", 32, 1600 * 256),
        ("hopper", 64, 814 * 512),
    ]
    assert rows[1]["in.pools.0.accelerator"] == "b200"
    assert rows[1]["in.pools.0.price_per_hour"] == 4.0
    assert rows[0]["let.it_power"] == 256 * 700.0
    assert sweep.column_names() == tuple(rows[0])
    units = {item["column"]: item["unit"] for item in sweep.header()["inputs"]}
    assert units["let.it_power"] == "W"


def test_a_list_of_points_may_leave_fields_out():
    points = [{NODES: 32}, {NODES: 64, "training.seq_len": 4096}, {"training.seq_len": 16384}]
    sweep = sweep_of(points=points)
    assert sweep.design == "list"
    jobs = [(c["pools"][0]["nodes"], m["training"]["seq_len"]) for m, c in documents_of(sweep)]
    assert jobs == [(32, 8192), (64, 4096), (64, 16384)]
    assert [row["in.training.seq_len"] for row in columns_of(sweep)] == [None, 4096, 16384]


def test_a_sampled_design_repeats_no_point_and_is_the_same_for_a_seed():
    def sweep(seed: int) -> Sweep:
        vary = {NODES: [32, 64], "pools.0.nic_speed": "100 Gb/s .. 800 Gb/s log"}
        return sweep_of(design="latin", samples=12, seed=seed, vary=vary)

    one = [point.point_id for point in sweep(1).points()]
    assert one == [point.point_id for point in sweep(1).points()]
    assert one != [point.point_id for point in sweep(2).points()]
    assert len(set(one)) == 12
    few = sweep_of(design="latin", samples=12, vary={NODES: [32, 64]})
    assert len(list(few.points())) == 2


def test_models_clusters_and_options_of_the_search_can_be_varied(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(
        "model: {layers: 8, hidden: 1024, heads: 8, gated: false, vocab: 1000, tied: true}\n"
        "training: {seq_len: 1024, global_batch: 64}\nsearch: {pin: {tp: 2}, max: {pp: 4}}\n"
    )
    (tmp_path / "sweep.yaml").write_text(
        "vary:\n  model: [llama3-8b, mine.yaml]\n  cluster: [h100-x8, h100-x512]\n"
        "  search.framework: [default, any]\n  search.pin.mbs: 1..2*2\n"
    )
    sweep = load_sweep(tmp_path / "sweep.yaml")
    points = list(sweep.points())
    assert (sweep.name, len(points)) == ("sweep", 16)
    told = [(sweep.inputs(p), sweep.options_of(p)) for p in points]
    assert [m.shape.name for (m, _), _ in told[::8]] == ["llama3-8b", "mine"]
    assert {c.cluster.name for (_, c), _ in told} == {"h100-x8", "h100-x512"}
    assert {o.framework for _, o in told} == {"default", "any"}
    assert told[0][1].pins == {"mbs": 1}
    # The search section of a model file counts where the sweep says nothing.
    assert told[-1][1].pins == {"mbs": 2, "tp": 2}
    assert told[-1][1].at_most == {"pp": 4}
    assert sweep.header()["model"] is None
    assert len({p.point_id for p in points}) == 16


def test_a_combination_that_makes_no_inputs_is_a_point_with_a_reason():
    vary = {"pools.0.devices": [256, 260], "pools.0.scale_up_domain": [8, 12]}
    sweep = sweep_of(vary=vary)
    faults = [point.fault for point in sweep.points()]
    assert [bool(fault) for fault in faults] == [False, True, True, True]
    assert "260 devices are no whole nodes of 8" in faults[2]
    assert "a domain of 12 devices does not divide nodes of 8" in faults[1]
    bad = list(sweep.points())[2]
    with pytest.raises(SpecError, match="no whole nodes"):
        sweep.inputs(bad)
    assert dict(sweep.columns(bad))["in.pools.0.devices"] == 260
    # Constraints on varied fields alone leave it out as any other.
    kept = sweep_of(vary=vary, where=["pools.0.devices % 8 == 0", "n_devices > 0"])
    assert [point.index for point in kept.points()] == [0, 1]


def test_a_figure_that_one_point_lacks_is_a_row_with_a_reason():
    sweep = sweep_of(
        vary={"pools.0.price_per_hour": [2, None]}, where=["pools.0.price_per_hour < 3"]
    )
    assert [point.fault for point in sweep.points()] == [
        "",
        "a constraint cannot be judged: pools.0.price_per_hour is not stated; "
        "state it in the file, or under `set:`",
    ]


def test_a_sweep_goes_to_workers_whole():
    sweep = sweep_of(
        vary={NODES: [8, 16], "search.framework": ["default", "any"]}, where=["n_devices > 64"]
    )
    there = pickle.loads(pickle.dumps(sweep))
    assert list(there.points()) == list(sweep.points())
    assert there.header() == sweep.header()
    point = next(there.points())
    assert there.inputs(point)[1].document == sweep.inputs(point)[1].document


def test_dicts_give_the_points_that_names_give():
    model = {
        "model": {
            "layers": 8,
            "hidden": 1024,
            "heads": 8,
            "gated": False,
            "vocab": 1000,
            "tied": True,
        },
        "training": {"seq_len": 1024, "global_batch": 64},
    }
    cluster = {"pools": [{"accelerator": "h100", "nodes": 2}]}
    sweep = sweep_from_dict({"model": model, "cluster": cluster, "vary": {NODES: [2]}})
    (documents,) = documents_of(sweep)
    assert documents == (model_from_dict(model).document, cluster_from_dict(cluster).document)


BAD_SECTIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "the sweep varies nothing"),
    ({"vary": {NODES: []}}, "vary.pools.0.nodes: has no values"),
    ({"vary": {"pools.0.node": [1]}}, "unknown field 'pools.0.node'\n  fix: did you mean pools.0"),
    ({"vary": {"pools.3.nodes": [1]}}, "no item '3' in pools, a list of 1"),
    ({"vary": {"fabric.tiers.2.sharp": [True]}}, "no item '2' in fabric.tiers, a list of 1"),
    ({"vary": {MEMORY: ["80 GiB", 90]}}, "memory.1: 90 has no unit"),
    ({"vary": {MEMORY: "80 GiB..1 TiB"}}, "is continuous, and a grid needs single values"),
    ({"vary": {MEMORY: "80 GiB..1 TiB"}, "design": "latin"}, "without a number of points"),
    ({"vary": {NODES: [1]}, "design": "grid", "samples": 3}, "belongs to a Latin hypercube"),
    ({"vary": {NODES: [1]}, "design": "cube"}, "unknown value 'cube'"),
    ({"vary": {NODES: [1]}, "design": "list"}, "'list' without `points:`"),
    (
        {
            "vary": {
                NODES: "1..1000+1",
                "training.seq_len": "1..1000+1",
                "model.layers": "1..1000+1",
            }
        },
        "1,000,000,000 points, more than 1,000,000",
    ),
    ({"vary": {"pools.0.accelerator": ["h100", "rubbin"]}}, "unknown accelerator 'rubbin'"),
    ({"vary": {"pools.0.nic": ["ib-ndr-40"]}}, "unknown link 'ib-ndr-40'"),
    ({"vary": {"pools.0.devices": [8], NODES: [1]}}, "say the same"),
    ({"vary": {"model": ["llama3-8b", "llama3-9b"]}}, "no example called 'llama3-9b'"),
    ({"vary": {"search.framework": ["any", "jax"]}}, "unknown 'jax'"),
    ({"vary": {"search.pin.tq": [1]}}, "unknown axis 'tq'"),
    ({"vary": {"model.params": ["7B"]}}, "without `family:`"),
    ({"vary": {NODES: [1]}, "set": {NODES: 2}}, "is set and varied"),
    ({"vary": {NODES: [1]}, "set": {"pools.0.nics": 2}}, "unknown field 'pools.0.nics'"),
    ({"vary": {NODES: [1]}, "set": {"search.top": 2}}, "state it under `search:`"),
    ({"vary": {NODES: [1]}, "set": {"pools.0.nic": "x"}}, "unknown link 'x'"),
    ({"vary": {NODES: [1]}, "where": ["n_device < 3"]}, "did you mean n_devices?"),
    ({"vary": {NODES: [1]}, "where": ["n_devices"]}, "neither true nor false"),
    ({"vary": {NODES: [1]}, "where": ["pools.0.accelerator.power < 700"]}, "a power < a plain"),
    ({"vary": {NODES: [1]}, "where": ["pools.0.price_per_hour < 3"]}, "is not stated"),
    ({"vary": {NODES: [1]}, "let": {"n_devices": "3"}}, "is a field or column already"),
    ({"vary": {NODES: [1]}, "let": {"a": "b", "b": "1"}}, "a uses b, which comes after it"),
    ({"vary": {NODES: [1]}, "let": {"a": {"h100": 1}}}, "a table by what?"),
    (
        {
            "vary": {"pools.0.accelerator": ["h100", "b200"]},
            "let": {"a": {"by": "pools.0.accelerator", "h100": 1}},
        },
        "the table has no b200",
    ),
    (
        {
            "vary": {"pools.0.accelerator": ["h100", "b200"]},
            "let": {"a": {"by": "pools.0.accelerator", "h100": 1, "b20": 2}},
        },
        "'b20' is no accelerator of the sweep",
    ),
    ({"vary": {"search.top": [1, 2]}}, "search.top cannot be varied"),
    ({"vary": {"search.pareto": [["cost", "energy"]]}}, "search.pareto cannot be varied"),
    ({"vary": {"search": [{"pareto": ["cost", "energy"]}]}}, "one best plan"),
    ({"vary": {NODES: [1]}, "together": {"g": {"a": {NODES: 2}}}}, "is varied by"),
    ({"together": {"g": {"a": {NODES: 2}, "b": {MEMORY: "1 TB"}}}}, "does not say"),
    ({"together": {"g": {"a": {"pools.0.node": 2}}}}, "unknown field"),
    ({"together": {"g": [1, 2]}}, "expected values by name"),
    ({"points": []}, "has no points"),
    ({"points": [{NODES: 1}, {NODES: 1}]}, "the same point as item 0"),
    ({"points": [{NODES: 1}], "vary": {NODES: [1]}}, "stands beside `vary`"),
    ({"points": [{"pools.0.node": 1}]}, "unknown field"),
    ({"vary": {NODES: [1]}, "search": {"pareto": ["cost", "energy"]}}, "one best plan"),
    ({"vary": {NODES: [1]}, "search": {"pin": {"tq": 1}}}, "unknown axis 'tq'"),
    ({"vary": {NODES: [1]}, "model": None}, "no `model:`"),
    ({"vary": {NODES: [1]}, "cluster": "h100-x51"}, "did you mean h100-x512"),
    ({"vary": {NODES: [1]}, "wher": []}, "unknown key 'wher'"),
    ({"vary": [1]}, "expected a mapping of fields"),
]


@pytest.mark.parametrize(("sections", "message"), BAD_SECTIONS, ids=[m for _, m in BAD_SECTIONS])
def test_each_bad_sweep_has_one_message(sections, message):
    with pytest.raises(SpecError) as error:
        sweep_of(**sections)
    assert message in str(error.value)
    assert len(error.value.problems) == 1


def test_messages_name_file_and_line_or_the_option(tmp_path: Path):
    file = tmp_path / "s.yaml"
    head = "model: llama3-8b\ncluster: h100-x8\nvary:\n"
    for text, place in (
        (head + "  training.seq_len: [1024, 2048]\n  pools.0.nodess: [1]\n", "s.yaml:5:3"),
        (head + "  training.seq_len:\n    - 1024\n    - 0.5\n", "s.yaml:6:7"),
        (head + "  training.seq_len: [1]\nwhere:\n- n_devices < 3 W\n", "s.yaml:6:3"),
        (head + "  training.seq_len: [1]\nsearch:\n  framework: jax\n", "s.yaml:6:14"),
        ("model: nothing\ncluster: h100-x8\nvary: {training.seq_len: [1]}\n", "s.yaml:1:1"),
        ("model: {layers: 3}\n", "s.yaml:1:1"),
        ("- 1\n", "s.yaml:1:1"),
    ):
        file.write_text(text)
        with pytest.raises(SpecError) as error:
            load_sweep(file)
        assert place in str(error.value)
    with pytest.raises(SpecError, match=r"--vary pools\.0\.nodess=1: unknown field"):
        sweep_from_options("llama3-8b", "h100-x8", ["pools.0.nodess=1"])
    with pytest.raises(UsageError, match="given twice"):
        sweep_from_options("llama3-8b", "h100-x8", [f"{NODES}=1", f"{NODES}=2"])
    with pytest.raises(UsageError, match="is not of the form PATH=VALUES"):
        sweep_from_options("llama3-8b", "h100-x8", [NODES])


def test_a_model_or_a_result_in_the_place_of_a_sweep_is_told(tmp_path: Path):
    (tmp_path / "m.yaml").write_text("model: {layers: 1}\ntraining: {seq_len: 1}\n")
    with pytest.raises(SpecError, match="this is a model file, and a sweep file is needed"):
        load_sweep(tmp_path / "m.yaml")
    with pytest.raises(SpecError, match="is an example of a model or a cluster"):
        load_sweep("h100-x512")
