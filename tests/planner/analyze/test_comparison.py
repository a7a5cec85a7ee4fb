"""Two plans term by term: the differences add up, and what turns it round does turn it round."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import planner
from costmodels.breakdown import break_down
from planner.analyze.comparison import Opened, compare
from planner.analyze.recommend.questions import with_bandwidth
from planner.cli.commands.inspection import run_diff
from planner.render.document import text_of
from planner.solver.answer.result import Result
from planner.solver.answer.result_store import open_plan
from planner.specs.loader import cluster_from_dict, model_from_dict
from tests.searches.instances import one_in

CLUSTER = {"name": "x64", "pools": [{"accelerator": "h100-sxm-80gb", "nodes": 8}], "fabric": {}}
PINS = {"tp": 2, "pp": 4, "mbs": 1, "zero": 1}


def opened(tmp_path: Path, name: str, result: Result) -> Opened:
    path = tmp_path / f"{name}.json"
    path.write_text(result.dumps(), encoding="utf-8")
    return open_plan(f"{path}#1")


def evaluated(
    tmp_path: Path, model: str = "llama3-8b", cluster: object = CLUSTER, **pins: object
) -> Opened:
    name = "-".join(f"{key}{value}" for key, value in [("m", model), *pins.items()])
    found = planner.evaluate(model, cluster, pins=PINS | pins, framework="any")
    return opened(tmp_path, f"{name}-{found.result_id}", found)


def test_terms_add_up_to_the_step_and_to_the_peak(tmp_path: Path) -> None:
    found = compare(evaluated(tmp_path), evaluated(tmp_path, pp=8, tp=4))
    data = json.loads(found.dumps())
    a, b = found.plans
    gaps = [of["difference"] for of in data["time"].values()]
    assert sum(gaps) == pytest.approx(b.step_time_s - a.step_time_s, rel=1e-9)
    shares = sum(of["share_of_a"] for of in data["time"].values())
    assert shares == pytest.approx(b.step_time_s / a.step_time_s - 1.0, rel=1e-9)
    assert [abs(gap) for gap in gaps] == sorted((abs(gap) for gap in gaps), reverse=True)
    for side, plan in (("a", a), ("b", b)):
        total = sum(of[side] for of in data["memory"].values())
        assert total == pytest.approx(plan.breakdown.peak_bytes, rel=1e-12)
        for axis, of in data["traffic"].items():
            sent = sum(t.sent_bytes for t in plan.breakdown.transfers if t.axis == axis)
            assert of["sent_bytes"][side] == pytest.approx(sent)
    assert data["winner"] == ("A" if a.step_time_s < b.step_time_s else "B")
    axes = {row["axis"] for row in data["layout"]}
    assert {"tp", "pp", "dp"} <= axes
    assert "zero" not in axes


NEWER = {
    "schedule": ({"schedule": "zb-h1"}, "1f1b -> zb-h1: order of forwards and backwards"),
    "rank_order": (
        {"rank_order": "tp-cp-ep-pp-dp"},
        "the next stage of a pipeline is 16 -> 2 ranks away",
    ),
    "dp_shard": (
        {"dp_shard": 4},
        "8 -> 4: ranks over which ZeRO shards, 1 -> 2 copies of what it shards",
    ),
    "recompute": (
        {"recompute": "selective", "recompute_modules": "mlp"},
        "none -> mlp: what runs forward twice",
    ),
    "offload": (
        {"optimizer_offload": "on"},
        "off -> on: where the optimizer states are, and the update runs",
    ),
    "dp_overlap": ({"dp_overlap": "off"}, "on -> off: data-parallel traffic beside compute"),
    "split": ({"split": "ends"}, "even -> ends: layers of the stages"),
}
"""An axis that changes alone, and what the comparison says of it."""


@pytest.mark.parametrize("axis", one_in(9, NEWER))
def test_every_axis_that_changes_is_named_in_words(axis: str, tmp_path: Path) -> None:
    pins, words = NEWER[axis]
    sides = [
        planner.evaluate(
            "llama3-8b", CLUSTER, pins=PINS | {"split": "even"} | more, framework="any"
        )
        for more in ({}, pins)
    ]
    found = compare(*(opened(tmp_path, f"{i}", side) for i, side in enumerate(sides)))
    assert [row[0] for row in found.layout] == [axis]
    text = " ".join(text_of(found).split())
    assert words in text
    assert found.inputs == ()


@pytest.mark.slow
def test_the_other_way_round_says_the_same(tmp_path: Path) -> None:
    one, two = evaluated(tmp_path), evaluated(tmp_path, pp=8)
    ahead, back = compare(one, two).to_json(), compare(two, one).to_json()
    assert {ahead["winner"], back["winner"]} == {"A", "B"}
    for term, of in ahead["time"].items():
        assert of["difference"] == -back["time"][term]["difference"]
    swapped = [x.translate(str.maketrans("AB", "BA")) for x in ahead["turns"]]
    assert swapped == list(back["turns"])


def test_a_plan_against_itself(tmp_path: Path) -> None:
    one = evaluated(tmp_path)
    found = compare(one, one)
    assert (found.winner, found.layout, found.inputs, found.turns) == ("", (), (), ())
    text = text_of(found)
    assert "the layouts are the same" in text
    assert "same number of tokens" in text


@pytest.mark.slow
def test_what_turns_it_round_does(tmp_path: Path) -> None:
    """What is said of terms and links holds when both plans are priced anew."""
    lost, won = evaluated(tmp_path, tp=8), evaluated(tmp_path, tp=4)
    found = compare(won, lost)
    assert found.winner == "A"
    links = [text for text in found.turns if "times the scale-" in text]
    for text in links:
        ratio = float(text.split(" wins on ")[1].split()[0])
        link = text.split(" the ")[1].split()[0]
        changed = with_bandwidth(lost[2], link, ratio)
        slow, fast = (break_down(changed, x[3].layout).step_s for x in (lost, won))
        assert slow < fast
    terms = next(x for x in found.turns if "behind" in x).split(" with ")[1].split(" as in ")[0]
    saved = sum(
        lost[3].breakdown.time_s[t] - won[3].breakdown.time_s[t] for t in terms.split(" and ")
    )
    assert saved > lost[3].step_time_s - won[3].step_time_s
    assert any("single change" in x or "wins with" in x for x in found.turns)


def test_a_long_pipeline_wins_with_a_larger_batch(tmp_path: Path) -> None:
    """Eight stages idle for half of the step at this batch and keep weights small: the more
    micro-batches, the less idle time."""
    model = model_from_dict(
        {
            "model": {
                "layers": 32,
                "hidden": 4096,
                "heads": 32,
                "kv_heads": 8,
                "ffn": 14336,
                "vocab": 128256,
                "gated": True,
                "tied": False,
            },
            "training": {"seq_len": 8192, "global_batch": 32, "precision": "bf16"},
        }
    ).document
    sides = [
        opened(
            tmp_path,
            f"tp{tp}pp{pp}",
            planner.evaluate(
                model,
                CLUSTER,
                framework="any",
                pins={"tp": tp, "pp": pp, "mbs": 1, "zero": 1, "sp": True},
            ),
        )
        for tp, pp in ((2, 8), (8, 2))
    ]
    found = compare(*sides)
    assert found.winner == "B"
    (text,) = [x for x in found.turns if "global batch" in x]
    ratio = int(text.split("batch of ")[1].replace(",", "")) // 32

    def step_s(side: Opened, ratio: int) -> float:
        problem, layout = side[2], side[3].layout
        job = replace(problem.job, global_batch=32 * ratio)
        return break_down(replace(problem, job=job), replace(layout, gbs=32 * ratio)).step_s

    assert step_s(sides[0], ratio) < step_s(sides[1], ratio)
    assert step_s(sides[0], ratio // 2) >= step_s(sides[1], ratio // 2)


def test_plans_of_different_problems_say_what_differs(tmp_path: Path) -> None:
    one = evaluated(tmp_path)
    two = evaluated(tmp_path, model="llama2-7b", cluster="h100-x512")
    found = compare(one, two)
    text = text_of(found)
    assert "not the same problem" in text
    assert any(
        x.startswith("model: ") and "name llama3-8b -> llama2-7b" in x for x in found.inputs
    )
    assert any(x.startswith("pool: ") and "nodes 8 -> 64" in x for x in found.inputs)
    assert found.turns == ()
    assert "on 512 devices against 64" in text or "on 64 devices against 512" in text


def test_a_plan_that_does_not_fit_is_told(tmp_path: Path) -> None:
    small = cluster_from_dict(
        {"pools": [{"accelerator": "h100-sxm-80gb", "nodes": 1}], "fabric": {}}
    ).document
    fits, too_large = (
        opened(
            tmp_path,
            f"tp{tp}",
            planner.evaluate(
                "llama3-8b",
                small,
                framework="any",
                pins={"tp": tp, "pp": 1, "mbs": mbs, "zero": 1},
            ),
        )
        for tp, mbs in ((2, 1), (1, 16))
    )
    assert too_large[3].headroom_frac < 0 <= fits[3].headroom_frac
    text = text_of(compare(fits, too_large))
    assert "does not fit" in text


@pytest.mark.slow
def test_the_table_is_narrow_and_the_command_prints_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, pins in (("a", {}), ("b", {"pp": 8})):
        found = planner.evaluate("llama3-8b", CLUSTER, pins=PINS | pins, framework="any")
        (tmp_path / f"{name}.json").write_text(found.dumps(), encoding="utf-8")
    names = f"{tmp_path / 'a.json'}#1", f"{tmp_path / 'b.json'}#1"
    run_diff(*names, "table")
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 100
    for part in ("layout, A -> B", "time by term", "memory of the fullest", "traffic", "win"):
        assert part in text
    run_diff(*names, "json")
    assert json.loads(capsys.readouterr().out)["a"]["step_time_s"] > 0
    with pytest.raises(planner.errors.UsageError, match="--format"):
        run_diff(*names, "csv")


def test_a_second_copy_of_the_weights_is_named(tmp_path: Path) -> None:
    pins = {"mbs": 1, "zero": 3}
    sides = [
        planner.evaluate("llama3-8b", CLUSTER, pins=pins | {"hpz": hpz}, framework="any")
        for hpz in (1, 8)
    ]
    assert "hpz" not in json.loads(sides[0].dumps())["plans"][0]["layout"]
    assert json.loads(sides[1].dumps())["plans"][0]["layout"]["hpz"] == 8
    found = compare(*(opened(tmp_path, f"{i}", side) for i, side in enumerate(sides)))
    assert [row[:3] for row in found.layout] == [("hpz", "1", "8")]


def test_small_differences_have_no_unit(tmp_path: Path) -> None:
    one = evaluated(tmp_path)
    slower = replace(one[3], tokens_per_s=0.999 * one[3].tokens_per_s)
    text = text_of(compare(one, (*one[:3], slower)))
    assert "many small differences\n" in text
