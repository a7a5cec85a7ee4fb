"""`planner replan`: stops and break-even by hand, lost nodes by name, and the command."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.analyze.replan.replan import (
    Replan,
    crossing_s,
    fewer_replicas,
    lost_of_text,
    nearest_batches,
    open_options,
    replan,
    with_nodes,
)
from planner.errors import UsageError
from planner.render.document import text_of
from planner.solver.answer.result_store import plan_of_result, read_options
from planner.solver.execution import Execution
from planner.solver.options import SolveOptions
from planner.specs.loader import cluster_from_dict
from searches.executors.executor import SerialExecutor
from tests.planner.command import run_here

CLUSTER: dict[str, Any] = {
    "name": "four",
    "pools": [{"accelerator": "h100", "nodes": 4, "hosts": "n[1-4]"}],
    "operations": {
        "device_mtbf": "32000 h",
        "restart": "300 s",
        "checkpoint_bandwidth": "10 GB/s",
    },
}
PINS = {"tp": 8, "recompute": "none"}
N = 8030261248


def changed(
    pins: dict[str, object] | None = None, cluster: dict[str, Any] = CLUSTER, **asked: Any
) -> Replan:
    data = planner.evaluate("llama3-8b", cluster, pins=pins or PINS).to_json()
    opened = plan_of_result(data, "1", "result")
    options = read_options(data["inputs"]["options"])
    # A small space: only the old degrees, so that the search takes no time.
    narrow = {axis: frozenset({v}) for axis, v in (("tp", 8), ("pp", 1), ("cp", 1), ("mbs", 1))}
    options = replace(options, only=narrow)
    return replan(opened, options, Execution(SerialExecutor()), **asked)


@pytest.fixture(scope="module")
def one_lost() -> Replan:
    return changed(lost=["n2"])


def test_stops_by_hand(one_lost: Replan) -> None:
    move = one_lost.move
    assert move is not None
    # (2 + 12) bytes of all parameters, from storage of 10 GB/s whatever the devices.
    assert move.checkpoint_bytes == pytest.approx(14 * N)
    assert move.read_s == pytest.approx(14 * N / 10e9)
    # 32 devices fail every 1,000 h; Daly's interval for a stop of 11.24 s; half of it is lost.
    delta, mtbf = 14 * N / 10e9, 1000 * 3600.0
    ratio = delta / (2 * mtbf)
    interval = math.sqrt(2 * delta * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - delta
    assert move.redo_s == pytest.approx(interval / 2)
    assert move.write_s == 0.0
    # Loading is a part of the restart, and shorter.
    assert move.stop_s == pytest.approx(300.0 + interval / 2)
    # ZeRO 1 over 4: the shard of n2 was nowhere else.
    assert move.network_s is None


def test_a_planned_change_writes_a_checkpoint_and_loses_nothing() -> None:
    found = changed(gained=4)
    move, kept = found.move, found.carry_on
    assert move is not None
    assert move.redo_s == 0.0
    assert move.write_s == pytest.approx(14 * N / 10e9)
    assert move.stop_s == pytest.approx(300.0 + 14 * N / 10e9)
    assert kept.reason == "as it was"
    assert kept.move is not None
    assert kept.move.stop_s == 0.0
    assert found.n_nodes == (4, 8)
    best = found.best
    assert best is not None
    assert best.layout.n_devices == 64
    assert kept.plan is not None
    assert found.break_even_s == pytest.approx(
        best.tokens_per_s * move.stop_s / (best.tokens_per_s - kept.plan.tokens_per_s)
    )
    assert found.verdict == "move"
    # dp 4 -> 8 on the same and new nodes, tp 8: an old rank d keeps a part of its piece of the
    # state only where [d/8, (d+1)/8) meets [d/4, (d+1)/4): the first whole, the second not.
    weights, state = 2 * N / 8, 12 * N / 8 / 8
    want = 8 * (0 + state + state + state + 4 * (weights + state))
    assert move.total_bytes == pytest.approx(want, rel=5e-3)
    assert move.max_bytes == pytest.approx(weights + state, rel=5e-3)
    # The new nodes receive most: 8 devices of a node through 8 ports.
    rate = found.move.port_bytes_per_s  # type: ignore[union-attr]
    through, senders = (weights + state) / rate, want / (4 * 8 * rate)
    assert move.network_s == pytest.approx(max(through, senders), rel=5e-3)


def test_between_devices_where_every_piece_is_left() -> None:
    pins = {**PINS, "dp_shard": 2, "zero": 1}
    found = changed(pins, lost=["n2"], via="network")
    move = found.move
    assert move is not None
    assert move.network_s is not None
    assert move.via == "network"
    assert move.stop_s == max(300.0, move.network_s)
    both = changed(pins, lost=["n2", "n4"], via="network")
    assert both.move is not None
    assert both.move.network_s is None
    assert both.move.via == "checkpoint"


def test_the_old_layout_goes_on_with_fewer_replicas(one_lost: Replan) -> None:
    kept = one_lost.carry_on
    batch = one_lost.old.layout.gbs
    assert kept.plan is not None
    # Three nodes are left, and dp 3 does not divide the batch: dp 2 does.
    assert batch % 3
    assert (kept.plan.layout.dp, kept.plan.layout.gbs) == (2, batch)
    assert kept.nearest is not None
    assert kept.nearest.plan.layout.dp == 3
    assert kept.nearest.global_batch == 3 * round(batch / 3)
    assert one_lost.lost == ("n2",)
    hosts = one_lost.result.inputs["cluster"]["pools"][0]["hosts"]
    assert hosts == "n[1,3-4]"


def test_idle_nodes_take_the_place_of_lost_ones() -> None:
    found = changed({**PINS, "devices": 16}, lost=["n1"])
    kept = found.carry_on
    assert kept.plan is not None
    assert (kept.reason, kept.plan.layout.dp) == ("as it was", 2)
    assert kept.move is not None
    # Rank r of n2 is now rank r - 8 on the first node: it has none of the pieces it needs but the
    # weights; n3 has nothing.
    state, weights = 12 * N / 16, 2 * N / 8
    assert kept.move.total_bytes == pytest.approx(8 * (state + state + weights), rel=5e-3)
    assert kept.move.stop_s > 300.0


def test_a_lost_idle_node_stops_nothing() -> None:
    found = changed({**PINS, "devices": 16}, lost=["n4"])
    kept = found.carry_on
    assert kept.move is not None
    assert (kept.move.stop_s, kept.move.total_bytes) == (0.0, 0.0)


@pytest.mark.slow
def test_no_plan_is_an_answer() -> None:
    cluster = {
        **CLUSTER,
        "pools": [{"accelerator": "h100", "nodes": 2, "memory_margin": "76 GiB"}],
    }
    found = changed({"tp": 8}, cluster, lost=1)
    assert found.best is None
    assert found.carry_on.plan is None
    assert "does not fit" in found.carry_on.reason or "breaks" in found.carry_on.reason
    assert (found.verdict, found.exit_code) == ("nothing fits", 3)
    assert "nothing fits" in text_of(found)
    assert found.to_json()["batch"]["kept"] is False


@pytest.mark.parametrize(
    ("moved", "kept", "want"),
    [
        ((120.0, 600.0), (100.0, 0.0), 3600.0),  # 120 (t - 600) = 100 t
        ((120.0, 900.0), (100.0, 300.0), 3900.0),  # 120 (t - 900) = 100 (t - 300)
        ((100.0, 0.0), (100.0, 0.0), None),
        ((90.0, 0.0), (100.0, 0.0), None),
        ((120.0, 100.0), (100.0, 500.0), 100.0),  # ahead as soon as it runs
    ],
)
def test_break_even(
    moved: tuple[float, float], kept: tuple[float, float], want: float | None
) -> None:
    assert crossing_s(moved, kept) == want


def test_batches_that_divide() -> None:
    assert nearest_batches(1024, 504, {8})[0] == 1008
    for batch in nearest_batches(1000, 96, {4, 6}):
        assert any(96 % p == 0 and batch % (96 // p) == 0 for p in range(1, 97))
        assert batch != 1000
    assert nearest_batches(64, 7, {8}) == [63, 70]


def test_replicas_fill_whole_nodes(one_lost: Replan) -> None:
    old = one_lost.old.layout
    found = [x.dp for x in fewer_replicas(old, [1, 2, 4, 8, 16, 24, 32])]
    assert found == [4, 2, 1]
    free = list(fewer_replicas(old, [8, 16, 24, 32], keep_batch=False))
    assert [x.dp for x in free] == [4, 3, 2, 1]
    assert all(x.gbs % (x.mbs * x.dp) == 0 for x in free)
    alone = free[-1]
    assert (alone.zero, alone.dp_overlap) == (0, True)


def test_pins_and_limits_of_the_old_plan_are_dropped() -> None:
    given = SolveOptions(
        pins={"tp": 8},
        only={"devices": frozenset({8}), "pp": frozenset({1})},
        at_most={"devices": 8, "tp": 8},
        framework="megatron",
        deadline_s=5.0,
    )
    found = open_options(given)
    assert (found.pins, dict(found.only), dict(found.at_most)) == (
        {},
        {"pp": frozenset({1})},
        {"tp": 8},
    )
    assert (found.framework, found.deadline_s) == ("megatron", None)


def test_racks_stay_racks() -> None:
    rack = {"name": "r", "pools": [{"accelerator": "gb200-186gb", "nodes": 36}]}
    cluster = cluster_from_dict(rack)
    assert cluster.cluster.pools[0].scale_up_domain == 72
    fewer = with_nodes(cluster, 35, []).cluster.pools[0]
    assert (fewer.n_nodes, fewer.scale_up_domain) == (35, 72)
    with pytest.raises(UsageError, match="2000000 nodes do not make this cluster"):
        with_nodes(cluster, 2_000_000, [])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "no node is lost"),
        ({"gained": -1}, "below 0"),
        ({"lost": 5}, "runs on 4 nodes"),
        ({"lost": ["n9"]}, "no host 'n9'"),
        ({"lost": 4}, "no node is left"),
    ],
)
def test_nodes_that_are_not_there(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        changed(**asked)


def test_what_lost_names() -> None:
    assert lost_of_text(" 3 ") == 3
    assert lost_of_text("") == 0
    assert lost_of_text("n[1-2],m") == ("n1", "n2", "m")
    with pytest.raises(UsageError, match="--lost"):
        lost_of_text("n[2-")


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "c.yaml").write_text(json.dumps(CLUSTER))
    solve = ["llama3-8b", str(tmp_path / "c.yaml"), "--only", "tp=8,pp=1,cp=1,mbs=1"]
    assert run_here("solve", *solve).returncode == 0
    shown = run_here("replan", "last#1", "--lost", "n3")
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    assert max(map(len, shown.stdout.splitlines())) <= 100
    assert "nodes 4 -> 3: 1 lost (n3)" in shown.stdout
    # The new plans are the last result: nodes can be lost again, and explained.
    again = run_here("replan", "last#1", "--lost", "n1", "--format", "json")
    data = json.loads(again.stdout)
    assert data["nodes"] == {"before": 3, "lost": ["n1"], "gained": 0, "after": 2}
    assert run_here("explain", "last#1").stdout.startswith(
        f"plan {data['result']['plans'][0]['plan_id']}"
    )
    for words, said in (
        (["--lost", "x["], "--lost"),
        (["--lost", "1", "--via", "air"], "--via"),
        (["--lost", "1", "--format", "csv"], "--format"),
    ):
        failed = run_here("replan", "last#1", *words)
        assert failed.returncode == 2
        assert said in failed.stderr
