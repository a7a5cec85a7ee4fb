"""Curves against single searches, the choice of sizes, and bad questions."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

import planner
from planner.errors import UsageError
from planner.render.document import text_of
from planner.solver.request import SolveRequest
from planner.solver.sources import read_inputs
from planner.specs.examples import example_content
from planner.sweeps.rows import COLUMNS
from planner.sweeps.scaling.curve import SCALE_COLUMNS, Scaling, scale
from planner.sweeps.scaling.sizes import (
    POINTS,
    Job,
    SizeRange,
    device_sizes,
    grown,
    job_size,
    thinned,
)
from searches.feasibility import any_fits

ONLY = {"tp": [2, 4], "pp": [1, 2], "cp": [1], "mbs": [1], "recompute": ["none"]}
SMALL = (
    ("training.global_batch", 64),
    ("training.tokens", "100B"),
    ("pools.0.price_per_hour", 2.5),
)
"""64 sequences of 8,192 tokens."""


def curve(cluster: str = "h100-x8", **asked: object) -> Scaling:
    given: dict[str, object] = {"only": ONLY, "overrides": SMALL}
    return scale("llama3-8b", cluster, **(given | asked))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> Scaling:
    return curve(most=16, least=4)


@pytest.mark.slow
def test_each_size_is_its_own_search(found: Scaling) -> None:
    assert [row["scale.size"] for row in found.rows] == [4, 8, 16]  # two hold no activations
    for row in found.rows:
        n = row["scale.size"]
        nodes = max(1, int(str(n)) // 8)
        alone = planner.solve(
            "llama3-8b",
            "h100-x8",
            only=ONLY,
            pins={"devices": n},
            top=1,
            executor="serial",
            overrides=(*SMALL, ("pools.0.nodes", nodes)),
        ).best
        assert row["best.step_time_s"] == alone.step_time_s
        assert row["best.tp"] == alone.layout.tp
    first, last = found.rows[0], found.rows[-1]
    ratio = float(str(last["best.tokens_per_s"])) / float(str(first["best.tokens_per_s"]))
    assert last["scale.speedup"] == ratio
    assert last["scale.efficiency"] == pytest.approx(ratio / 4)
    assert last["scale.tokens_per_device"] == 64 * 8192 / 16
    cost = float(str(last["scale.device_s_per_token"])) * 1e6 * 2.5 / 3600
    assert last["best.usd_per_million_tokens"] == pytest.approx(cost)
    assert found.exit_code == 0


def test_a_model_file_may_say_what_to_search_for(tmp_path: Path) -> None:
    section = "search: {pin: {zero: 0}, objective: cost, top: 3, deadline: 30d}\n"
    path = tmp_path / "model.yaml"
    path.write_text(f"{example_content('model', 'llama3-8b').content}{section}")
    asked = {"only": ONLY, "overrides": SMALL, "least": 8, "most": 8}
    (row,) = scale(path, "h100-x8", **asked).rows  # type: ignore[arg-type]
    (free,) = scale("llama3-8b", "h100-x8", **asked).rows  # type: ignore[arg-type]
    assert (row["best.zero"], free["best.zero"]) == (0, 1)


def test_weak_scaling_grows_the_batch() -> None:
    found = curve(scaling="weak", most=16)
    batches = {row["scale.size"]: row["global_batch"] for row in found.rows}
    assert batches == {n: 8 * n for n in batches}
    assert max(batches) == 16
    assert {row["scale.tokens_per_device"] for row in found.rows} == {8 * 8192.0}
    assert "knee" in found.marks
    assert found.marks["knee"] is None


def test_a_batch_that_is_small_has_a_knee() -> None:
    """Four sequences: replicas run out at 4 tp pp devices, and stages and waits grow instead."""
    found = curve(
        "h100-x512",
        overrides=(("training.global_batch", 4),),
        least=4,
        most=128,
        only=ONLY | {"tp": [2, 4, 8], "pp": [1, 2, 4]},
        points=6,
    )
    knee, sizes = found.marks["knee"], [row["scale.size"] for row in found.rows]
    assert knee in sizes[:-1]
    assert found.marks["break_even_cost"] <= knee
    assert f"knee: {knee} devices" in text_of(found)


@pytest.mark.slow
def test_tokens_of_a_step_stay_over_sequence_lengths() -> None:
    found = curve(over="seq_len", most=32768)
    sizes = [row["seq_len"] for row in found.rows]
    assert sizes[:2] == [8192, 16384]
    assert {row["scale.tokens_per_step"] for row in found.rows} == {64 * 8192}
    weak = curve(over="seq_len", most=16384, scaling="weak")
    assert {row["global_batch"] for row in weak.rows} == {64}


@pytest.mark.slow
def test_the_wall_is_the_deepest_of_the_grid_that_fits() -> None:
    only = {"tp": [8], "pp": [1], "mbs": [1], "recompute": ["none"]}
    found = curve(over="layers", only=only)
    by_size = {row["scale.size"]: row for row in found.rows}
    wall = found.marks["wall"]
    assert by_size[wall]["status"] == "ok"
    fails = [n for n, row in by_size.items() if row["status"] == "infeasible"]
    assert fails
    assert "needs" in str(by_size[fails[0]]["reason"])
    step = max(n for n in by_size if n < wall) // 8
    inputs = read_inputs("llama3-8b", "h100-x8", SMALL)
    mine = Job(*inputs, SolveRequest.of(top=1, only=only).options())
    asked = SizeRange("layers", "strong")
    fits = [
        any_fits(mine.context(size))
        for size in (job_size(mine, asked, n) for n in (wall, wall + step))
        if size is not None
    ]
    assert fits == [True, False]
    assert "wall:" in text_of(found)


@pytest.mark.slow
def test_text_json_and_csv_are_of_the_same_rows(found: Scaling) -> None:
    assert found.dumps() == curve(most=16, least=4).dumps()
    data = json.loads(found.dumps())
    names = [column.name for column in (*SCALE_COLUMNS, *COLUMNS)]
    assert [column["name"] for column in data["columns"]] == names
    assert list(data["rows"][0]) == names
    cells = list(csv.DictReader(io.StringIO(found.csv())))
    assert [float(x["best.step_time_s"]) for x in cells] == [
        row["best.step_time_s"] for row in data["rows"]
    ]
    lines = text_of(found).splitlines()
    assert re.match(r"llama3-8b on h100-x8: strong scaling over devices, 64 sequences", lines[0])
    assert [int(line.split()[0]) for line in lines[2:4]] == [4, 8]


def test_nothing_fits_says_why() -> None:
    found = scale("llama3-405b", "h100-x8")
    assert found.exit_code == 3
    assert "MEM000" in text_of(found)


def test_a_stopped_curve_keeps_what_it_has() -> None:
    done: list[int] = []
    found = curve(stop=lambda: bool(done), progress=lambda n, of: done.append(n))
    assert done == [1]
    assert found.stopped == "time limit"
    assert found.exit_code == 4
    assert [row["scale.size"] for row in found.rows] == [4]
    assert "stopped (time limit)" in text_of(found)


def job() -> Job:
    inputs = read_inputs("llama3-70b", "h100-x512")
    return Job(*inputs, SolveRequest.of(top=1).options())


def test_sizes_are_spread_and_keep_both_ends() -> None:
    sizes = device_sizes(job(), SizeRange("devices", "strong", least=8, most=512, points=1000))
    assert len(sizes) > 40
    values = [x.value for x in sizes]
    assert values == sorted(set(values))
    few = [x.value for x in thinned(sizes, 10, keep=512)]
    assert len(few) <= 10
    assert (few[0], few[-1]) == (values[0], 512)
    assert {64, 128, 256} <= set(few)
    assert thinned(sizes, 1000, keep=512) == sizes
    assert SizeRange("devices", "strong").points == POINTS


def test_a_cluster_grows_by_whole_domains() -> None:
    _, racks = read_inputs("llama3-70b", "gb200-nvl72-x576")
    assert grown(racks, 577).cluster.pools[0].n_devices == 648
    assert grown(racks, 576) is racks


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"over": "width"}, "unknown 'width'"),
        ({"scaling": "big"}, "unknown 'big'"),
        ({"over": "layers", "scaling": "weak"}, "does not go with"),
        ({"least": 64, "most": 8}, "above --to 8"),
        ({"most": 2_000_000}, "1 to 1,000,000 devices"),
        ({"points": 1}, "2 to 10000"),
        ({"pins": {"devices": 8}}, "chooses the numbers of devices"),
        ({"over": "seq_len", "least": 100}, "no whole number of sequences"),
    ],
)
def test_bad_questions_have_one_answer(asked: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        curve(**asked)


def test_no_size_is_told_beside_those_that_are_asked_for() -> None:
    with pytest.raises(UsageError, match="no number of devices from 7 to 7"):
        curve(least=7, most=7)


def test_one_pool_at_a_time() -> None:
    with pytest.raises(UsageError, match="2 pools"):
        curve("mixed-h100-a100", overrides=())
