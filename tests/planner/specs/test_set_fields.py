"""`--set` takes the fields that `--vary` takes: the answer is that of the edited file."""

from pathlib import Path

import pytest

import planner
from planner.errors import SpecError
from planner.specs.examples import example_content
from tests.planner.command import run_here

MODEL, CLUSTER = (
    str(example_content(kind, name).content)  # type: ignore[arg-type]  # the two kinds
    for kind, name in (("model", "llama3-8b"), ("cluster", "h100-x8"))
)
PART = "accelerator: h100-sxm-80gb"
CASES = [
    (
        {"pools.0.accelerator.memory": "96GiB"},
        PART,
        "accelerator: {like: h100-sxm-80gb, memory: 96GiB}",
    ),
    (
        {"pools.0.accelerator.memory": "96 GiB", "pools.0.accelerator.hbm_bandwidth": "4 TB/s"},
        PART,
        "accelerator: {like: h100-sxm-80gb, memory: 96 GiB, hbm_bandwidth: 4 TB/s}",
    ),
    ({"pools.0.accelerator": "h200-sxm-141gb"}, PART, "accelerator: h200-sxm-141gb"),
    ({"pools.0.devices": "16"}, "nodes: 1", "nodes: 2"),
    ({"pools.0.instance": "p5.48xlarge"}, PART, "instance: p5.48xlarge"),
]
PINS = {"tp": 2, "recompute": "full"}


@pytest.mark.parametrize(("sets", "stated", "edited"), CASES)
def test_the_answer_is_that_of_the_edited_file(
    tmp_path: Path, sets: dict[str, str], stated: str, edited: str
) -> None:
    assert CLUSTER.count(stated) == 1
    file = tmp_path / "h100-x8.yaml"
    file.write_text(CLUSTER.replace(stated, edited))
    mine = planner.evaluate("llama3-8b", "h100-x8", pins=PINS, overrides=tuple(sets.items()))
    own = planner.evaluate("llama3-8b", file, pins=PINS)
    assert (mine.result_id, mine.best.plan_id) == (own.result_id, own.best.plan_id)
    assert mine.best.to_json() == own.best.to_json()


def test_a_figure_of_the_part_of_an_instance(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("pools: [{instance: p5.48xlarge, nodes: 1}]\n")
    set_one = planner.evaluate(
        "llama3-8b", file, pins=PINS, overrides=(("pools.0.accelerator.memory", "96GiB"),)
    )
    text = "pools: [{accelerator: {like: h100-sxm-80gb, memory: 96GiB}, nodes: 1, nic: efa-100,"
    file.write_text(f"{text} nics_per_node: 32, accelerators_per_node: 8}}]\n")
    own = planner.evaluate("llama3-8b", file, pins=PINS)
    assert set_one.best.to_json() == own.best.to_json()


def test_a_section_that_the_file_does_not_have(tmp_path: Path) -> None:
    file = tmp_path / "llama3-8b.yaml"
    file.write_text(f"{MODEL}\nsearch: {{pin: {{tp: 2}}, top: 1}}\n")
    own = planner.solve(file, "h100-x8")
    mine = planner.solve(
        "llama3-8b", "h100-x8", overrides=(("search.pin.tp", 2), ("search.top", 1))
    )
    assert [x.plan_id for x in mine.plans] == [x.plan_id for x in own.plans]
    assert len(own.plans) == 1


@pytest.mark.slow
def test_all_commands_that_price_take_it() -> None:
    words = ("llama3-8b", "h100-x8", "--set", "pools.0.accelerator.memory=96GiB")
    for command, more in (
        ("evaluate", ("--pin", "tp=2", "--no-cache")),
        ("solve", ("--pin", "tp=2", "--top", "1", "--no-cache")),
        ("scale", ("--pin", "tp=2", "--points", "2")),
        ("recommend", ()),
    ):
        first = ("layout",) if command == "recommend" else ()
        done = run_here(command, *first, *words, *more)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("pools.0.accelerator.memory", "much", "--set pools.0.accelerator.memory=much"),
        ("pools.0.accelerator.colour", "red", "unknown key 'colour'"),
        ("pools.0.devices", "12", "12 devices are no whole nodes of 8"),
        ("pools.0.devices", "many", "'many' is no whole number of devices"),
        ("pools.3.accelerator.memory", "96GiB", "no item '3' in pools"),
    ],
)
def test_what_cannot_be_set_names_the_option(path: str, value: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        planner.evaluate("llama3-8b", "h100-x8", pins=PINS, overrides=((path, value),))
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"--set {path}={value}")
