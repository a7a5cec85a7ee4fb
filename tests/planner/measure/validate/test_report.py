"""The whole report on a small file."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from planner.cli.commands.validate import run_validate
from planner.errors import SpecError, UsageError
from planner.measure.validate import baselines
from planner.measure.validate.points import MeasuredPoint, read_measured_points, unread_columns
from planner.measure.validate.prediction import case_of
from planner.measure.validate.report import (
    DATA,
    read_entries,
    totals,
    unread_keys,
    validation_report,
)
from planner.measure.validate.rows import measured_sweeps, price_points, use

MODEL = {
    "layers": 8,
    "hidden": 1024,
    "heads": 8,
    "kv_heads": 8,
    "head_dim": 128,
    "ffn": 4096,
    "gated": False,
    "vocab": 32000,
    "tied": False,
}
MODELS = {"m": MODEL}
HARDWARE = {"h": {"gpu": "h100-sxm-80gb", "gpus_per_node": 8}, "null": {"gpu": None}}
BASE = MeasuredPoint(
    id="x-0",
    model="m",
    hardware="h",
    n_gpus=8,
    line=2,
    cells={},
    seq_len=2048,
    gbs=64,
    mbs=1,
    tp=1,
    pp=1,
    dp=8,
    zero=1,
    sp=False,
    recompute="none",
    precision="bf16",
    attention="flash2",
    stack="megatron-core",
)


def points(*cells):
    return [replace(BASE, id=f"x-{i}", line=i + 2, **c) for i, c in enumerate(cells)]


FOUR = (
    {"step_time_s": 1.0},
    {"step_time_s": 1.2, "tp": 2, "dp": 4},
    {"step_time_s": 1.5, "tp": 4, "dp": 2},
    {"step_time_s": 1.4, "mbs": 2},
)


def test_repeats_of_a_layout_count_once_with_their_median():
    given = points(*({"step_time_s": t} for t in (1.0, 3.0, 1.2)), {"step_time_s": 9.0, "mbs": 2})
    one, other = use(price_points(given, MODELS, HARDWARE))
    assert (one.step_s, one.n_rows, other.step_s) == (1.2, 3, 9.0)


def test_a_sweep_has_four_rows_and_three_layouts():
    used = use(price_points(points(*FOUR), MODELS, HARDWARE))
    (sweep,) = measured_sweeps(used, "any")
    assert (len(sweep.plans), sweep.key) == (4, "x/m/h/8/2048/64")
    assert not measured_sweeps(used[:3], "any")
    two = points(*[FOUR[0]] * 3, FOUR[1])
    assert not measured_sweeps(use(price_points(two, MODELS, HARDWARE)), "any")


def test_layout_only_fixes_the_kernels():
    unfused = [c | {"attention": "unfused"} for c in FOUR]
    used = use(price_points(points(*FOUR, *unfused), MODELS, HARDWARE))
    assert [len(s.plans) for s in measured_sweeps(used, "any")] == [8]
    assert [len(s.plans) for s in measured_sweeps(used, "layout-only")] == [4, 4]


def test_slow_runs_are_left_out_with_their_reason():
    big = {"n_gpus": 16, "dp": 16, "gbs": 128}
    report = validation_report(
        points({"step_time_s": 1.0}, big | {"step_time_s": 2.4}, big | {"step_time_s": 2.6}),
        MODELS,
        HARDWARE,
    )
    assert report.sources[0].skipped == {"slow": 1}
    assert report.sources[0].n_used == 2


def test_a_run_too_fast_for_its_printed_bubble_is_left_out_with_its_reason():
    # 8 micro-batches, 4 stages: 11 slots as printed, 8.75 in four chunks; 0.10 s against 0.16 s.
    pipe = {"pp": 4, "dp": 2, "mbs": 4}
    given = points(
        pipe | {"vpp": 1, "step_time_s": 1.1},
        pipe | {"vpp": 4, "step_time_s": 1.4},
        pipe | {"vpp": 1, "step_time_s": 1.5},  # 0.136 s: within a quarter of 0.16 s
    )
    models = {"m": MODEL | {"layers": 16}}
    report = validation_report(given, models, HARDWARE)
    assert report.sources[0].skipped == {"vpp contradicted": 1}
    assert [row.skipped for row in report.rows] == ["vpp contradicted", "", ""]
    other = [replace(given[0], precision="fp8"), *given[1:]]
    assert not validation_report(other, models, HARDWARE).sources[0].skipped


def test_oom_rows_are_labels_and_nothing_else():
    report = validation_report(
        points({"oom": True, "gbs": 8 * 512, "mbs": 512}, {"oom": False, "step_time_s": 1.0}),
        MODELS,
        HARDWARE,
    )
    found = report.sources[0]
    assert found.step_time.n == 1
    assert (found.oom.n_oom, found.oom.n_fit, found.oom.balanced_accuracy) == (1, 1, 1.0)


def test_families_weigh_the_same():
    given = points(*FOUR, {"step_time_s": 0.9})
    given[-1] = replace(given[-1], id="y-1")
    report = validation_report(given, MODELS, HARDWARE)
    medians = [source.step_time.median_ape for source in report.sources]
    assert report.to_json()["totals"]["all"]["step_time"]["median_ape"] == np.mean(medians)


def test_constant_mfu_is_the_median_of_the_runs():
    cases = [case_of(p, MODELS, HARDWARE) for p in points(*FOUR)[:3]]
    found = baselines.constant_mfu(cases, ["h"] * 3, np.array([1.0, 1.2, 1.5]))
    assert found == pytest.approx([1.2, 1.2, 1.2])
    apart = baselines.constant_mfu(cases, ["h", "h", "g"], np.array([1.0, 1.0, 1.5]))
    assert apart == pytest.approx([1.0, 1.0, 1.5])


def test_naive_step_by_hand():
    (point,) = points({"tp": 2, "pp": 2, "dp": 2, "mbs": 1, "step_time_s": 1.0})
    case = case_of(point, MODELS, HARDWARE)
    params = 8 * (4 * 1024**2 + 2 * 1024 * 4096) + 2 * 32000 * 1024
    compute = 6 * params * 64 * 2048 / (0.5 * 8 * 989e12)
    message = 2 * 2048 * 1024
    tensor = 32 * 4 * 4 * (2 * 1 * (message / 2 / 450e9 + 5e-6))
    hops = 2 * 32 * (message / 450e9 + 5e-6)
    data = 2 * (4 * params / 4 / 2 / 450e9 + 5e-6)
    expected = (compute + tensor + hops) * (1 + 1 / 32) + data
    assert baselines.naive_step_s(case) == pytest.approx(expected)


def test_rule_of_thumb_ranks_by_degree_then_node_then_pp_then_mbs():
    plans = (
        {"tp": 2, "dp": 4, "mbs": 2},
        {"tp": 2, "dp": 4},
        {"pp": 2, "dp": 4},
        {"mbs": 4},
        {"mbs": 4, "zero": 0},
    )
    cases = [case_of(p, MODELS, HARDWARE) for p in points(*(c | FOUR[0] for c in plans))]
    assert baselines.rule_of_thumb(cases).tolist() == [1, 2, 3, 0, 0]


COLUMNS = (
    "id,source,model,hardware,n_gpus,seq_len,gbs,mbs,tp,pp,cp,dp,vpp,zero,sp,recompute,precision,"
    "attention,stack,step_time_s,tok_s_gpu,mfu,peak_mem_gb,mem_unit,oom,notes,never_seen"
)


@pytest.fixture
def files(tmp_path):
    """Return a small file of traps, as the arguments of `run_validate`."""
    base = dict.fromkeys(COLUMNS.split(","), "") | {
        "model": "m",
        "hardware": "h",
        "n_gpus": 8,
        "seq_len": 2048,
        "gbs": 64,
        "mbs": 1,
        "tp": 1,
        "pp": 1,
        "dp": 8,
        "step_time_s": 1.0,
        "never_seen": "x",
    }
    rows = [
        base | {"id": "a-1"},
        base | {"id": "a-2", "tp": 2, "dp": 4, "step_time_s": "", "tok_s_gpu": 13000},
        base | {"id": "a-3", "mbs": 2, "stack": "from-the-future"},
        base | {"id": "a-4", "tp": 4, "dp": 2, "peak_mem_gb": 10, "mem_unit": "GiB", "oom": 0},
        base | {"id": "a-5", "tp": 4, "pp": 8, "dp": 1, "notes": "CHECK: 32 ranks on 8"},
        base | {"id": "b-1", "hardware": "null"},
        base | {"id": "b-2", "step_time_s": "", "mfu": 0.4},
    ]
    with (tmp_path / "points.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS.split(","))
        table.writeheader()
        table.writerows(rows)
    (tmp_path / "models.yaml").write_text(yaml.safe_dump(MODELS))
    (tmp_path / "hardware.yaml").write_text(yaml.safe_dump(HARDWARE))
    return [str(tmp_path / name) for name in ("points.csv", "models.yaml", "hardware.yaml")]


def test_json_has_the_names_of_the_contract(files, capsys):
    assert run_validate(*files, "json", "row") == 0
    found = json.loads(capsys.readouterr().out)
    names = {"schema_version", "calibration", "sources", "sweeps", "baselines", "totals", "rows"}
    assert set(found) == {*names, "intervals", "eras", "left_out"}
    everywhere, *by_regime = found["intervals"]
    assert set(everywhere) == {"regime", "n", "inside", "below", "above"}
    assert everywhere["regime"] == "all"
    assert everywhere["n"] == sum(one["n"] for one in by_regime) == 4
    assert everywhere["inside"] + everywhere["below"] + everywhere["above"] == pytest.approx(1.0)
    assert set(found["calibration"]) == {"name", "hash", "anchored"}
    a, b = found["sources"]
    assert {"source", "n_rows", "n_used", "skipped", "step_time", "memory", "oom"} <= set(a)
    assert {"median_ape", "p90_ape", "bias"} <= set(a["step_time"])
    assert {"median_ape", "p90_ape", "bias"} <= set(a["memory"])
    assert {"balanced_accuracy", "recall_oom", "recall_fit"} <= set(a["oom"])
    assert (a["n_rows"], a["n_used"], a["skipped"]) == (5, 4, {"more ranks than devices": 1})
    assert b["skipped"] == {"accelerator not stated": 1, "only a FLOP rate": 1}
    assert b["step_time"]["median_ape"] is None
    assert set(found["baselines"]) == {"b0", "b1", "b2"}
    (sweep,) = found["sweeps"]
    assert {"key", "mode", "n_plans", "tau", "regret_1", "regret_3"} <= set(sweep)
    unknown = found["rows"][2]
    assert "stack 'from-the-future' has no profile: class eager" in unknown["assumed"]
    assert found["rows"][4]["skipped"] == "more ranks than devices"


def test_the_same_input_gives_the_same_bytes(files, capsys):
    run_validate(*files, "json", "row")
    first = capsys.readouterr().out
    run_validate(*files, "json", "row")
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("source", ("more ranks than devices 1", "4 of 7 rows used", "B0", "stack not stated")),
        ("sweep", ("a/m/h/8/2048/64", "any")),
        ("row", ("a-4", "accelerator not stated", "fits")),
    ],
)
def test_tables(files, capsys, by, words):
    assert run_validate(*files, by=by) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in words)


def test_bad_options_and_files(files, tmp_path):
    with pytest.raises(UsageError):
        run_validate(*files, form="xml")
    with pytest.raises(UsageError):
        run_validate(*files, by="moon")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(SpecError, match="no mapping"):
        run_validate(files[0], str(tmp_path / "list.yaml"), files[2])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "moe: {experts: 8, topkk: 2}",
            "m.moe.topkk: unknown key 'topkk'\n  fix: did you mean topk?",
        ),
        ("mla: {latent: 8}", "m.mla.latent: unknown key 'latent'"),
        ("assumed: {inter_gb: 8}", "m.assumed.inter_gb: unknown key 'inter_gb'"),
        ("moe: 8", "m.moe: 8 is no mapping"),
        ("heads: many", "m.heads: 'many' is no whole number from 0 on"),
        ("heads: 2.5", "m.heads: 2.5 is no whole number"),
        ("heads: true", "m.heads: true is no whole number"),
        ("inter_gbs: 50 GB/s", "m.inter_gbs: '50 GB/s' is no number from 0 on"),
        ("power_w: -3", "m.power_w: -3 is no number from 0 on"),
        ("hbm_gbs: .inf", "m.hbm_gbs: inf is no number from 0 on"),
        ("tied: maybe", "m.tied: 'maybe' is neither true nor false"),
        ("moe: {experts: '8'}", "m.moe.experts: '8' is no whole number"),
    ],
)
def test_wrong_values_and_unknown_keys_are_refused_by_name(tmp_path, entry, message):
    (tmp_path / "models.yaml").write_text(f"m:\n  layers: 2\n  anything: 3\n  {entry}\n")
    with pytest.raises(SpecError) as caught:
        read_entries(tmp_path / "models.yaml")
    assert message in str(caught.value)
    assert "models.yaml:4" in str(caught.value)


def test_keys_of_entries_that_are_not_read_are_named(files, tmp_path, capsys):
    """`anything` stands beside the keys of a model: named, and no reason to stop."""
    assert unread_keys({"m": {"layers": 2, "hiden": 3, "zzz": 1}, "n": {"zzz": 2}}) == (
        ("hiden", "hidden"),
        ("zzz", ""),
    )
    models = tmp_path / "more.yaml"
    models.write_text(Path(files[1]).read_text() + "other: {power: 5}\n")
    run_validate(files[0], str(models), files[2])
    assert "note: 'power' is not read: did you mean power_w?\n" in capsys.readouterr().err


def test_nothing_that_ships_is_left_unread():
    assert unread_columns(read_measured_points(DATA / "points.csv")) == ()
    for name in ("models.yaml", "hardware.yaml"):
        assert unread_keys(read_entries(DATA / name)) == ()


def test_the_share_of_rows_used_leaves_out_what_waits():
    one = replace(BASE, step_time_s=1.0)
    points = [replace(one, id=f"x-{i}", line=2 + i) for i in range(4)]
    points[1] = replace(points[1], lora=True)
    points[2] = replace(points[2], packed=True)
    points[3] = replace(points[3], hardware="null")
    found = totals(validation_report(points, MODELS, HARDWARE))
    assert (found["n_rows"], found["n_used"], found["n_eligible"]) == (4, 3, 4)


def test_the_shipped_rows_are_complete():
    shipped = read_measured_points(DATA / "points.csv")
    assert len(shipped) == 4439
    assert sum(bool(point.oom) for point in shipped) == 363
    models = yaml.safe_load((DATA / "models.yaml").read_text())
    hardware = yaml.safe_load((DATA / "hardware.yaml").read_text())
    assert {p.model for p in shipped} <= set(models)
    assert {p.hardware for p in shipped} <= set(hardware)
