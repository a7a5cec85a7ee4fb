"""A calibration as a file: what it holds, what is refused, and where that stands."""

import json
from pathlib import Path

import pytest

from planner.errors import SpecError
from planner.solver.calibration.file import (
    SHIPPED,
    Calibration,
    calibration_from_json,
    calibration_of,
    load_calibration,
    rounded,
)
from planner.solver.calibration.parameters import ANCHORS, known_parameters
from planner.specs.yaml.document import parse_yaml
from tests.planner.command import run_here

HEAD = "schema_version: 1\nname: mine\nvalues:\n"


def refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        calibration_of(parse_yaml(text, "mine.yaml"), "mine.yaml")
    return str(caught.value)


def test_every_parameter_can_be_explained() -> None:
    for name, parameter in known_parameters().items():
        assert parameter.name == name
        assert parameter.low <= parameter.prior <= parameter.high, name
        assert parameter.meaning
        assert parameter.source
    kinds = {parameter.kind for parameter in known_parameters().values()}
    assert kinds == {"generation", "part", "recipe", "link", "stack", "shared", "anchor"}
    assert known_parameters()["link.ib-ndr-400.hop_scale"].of == "ib-ndr-400"
    assert known_parameters()["shared.node_spread"].of == ""


def test_what_is_written_is_read_and_written_again_the_same() -> None:
    found = Calibration(
        "our cluster: two",
        {"shared.node_spread": 0.03, "generation.hopper.gemm_frac": 0.7},
        {"generation.hopper.gemm_frac": "fitted"},
        {"dense": (0.9, 1.25)},
        ("llama3-70b, tp 8: 12.3 s",),
        "it's ours",
        resolution={"same-tp-pp": 0.02},
    )
    text = found.to_text()
    again = calibration_of(parse_yaml(text, ""), "")
    assert again == found
    assert again.to_text() == text
    assert again.content_hash == found.content_hash
    assert calibration_from_json(json.loads(json.dumps(found.to_json()))) == found
    assert text.index("generation.hopper") < text.index("shared.node_spread")


def test_the_hash_stands_for_what_prices_and_for_nothing_else() -> None:
    one = Calibration("one", {"shared.node_spread": 0.03})
    assert one.content_hash == Calibration("two", {"shared.node_spread": 0.03}).content_hash
    assert one.content_hash != Calibration("one", {"shared.node_spread": 0.04}).content_hash
    wide = Calibration("one", {"shared.node_spread": 0.03}, intervals={"dense": (0.9, 1.1)})
    assert one.content_hash != wide.content_hash
    finer = Calibration("one", {"shared.node_spread": 0.03}, resolution={"same-tp-pp": 0.01})
    assert one.content_hash != finer.content_hash


def test_the_shipped_file_is_as_the_program_writes_it() -> None:
    shipped = load_calibration()
    assert shipped is load_calibration("")
    text = SHIPPED.read_text(encoding="utf-8")
    assert text.endswith(shipped.to_text())
    assert not shipped.anchored
    for name, value in shipped.values.items():
        assert value == rounded(value, 4), name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "is no calibration"),
        ("values: {}", "has no name"),
        ("name: mine\nvalue: {}", "mine.yaml:2:1: value: unknown key 'value'"),
        ("schema_version: 2\nname: mine", "mine.yaml:1:17: schema_version"),
        (HEAD + "  generation.hoper.gemm_frac: 0.7", "did you mean generation.hopper.gemm_frac"),
        (HEAD + "  generation.hopper.gemm_frac: 1.7", "mine.yaml:4:32"),
        (HEAD + "  generation.hopper.gemm_frac: 1.7", "1.7 is out of range"),
        (HEAD + "  generation.hopper.gemm_frac: 1.7", "from 0.3 to 0.98"),
        (HEAD + "  shared.node_spread: fast", "'fast' is no number"),
        (HEAD + "  shared.node_spread: .nan", "is no number"),
        (HEAD + "  shared.node_spread: true", "true is no number"),
        (HEAD + "  {}\nprovenance:\n  shared.node_spread: fitted", "has no value above"),
        (
            HEAD + "  shared.node_spread: 0.03\nprovenance:\n  shared.node_spread: me",
            "mine.yaml:6",
        ),
        ("name: mine\nvalues: 3", "values is 3, not a mapping"),
        ("name: mine\nintervals:\n  dense: [1.1, 0.9]", "mine.yaml:3:10"),
        ("name: mine\nresolution:\n  same-tp-pp: 2.0", "mine.yaml:3:15"),
        ("name: mine\nanchored_by: run", "a list of measured steps"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(text: str, words: str) -> None:
    assert words in refusal(text)


def test_all_that_is_wrong_is_said_at_once() -> None:
    text = HEAD + "  generation.hopper.gemm_frac: 1.7\n  shared.node_spread: 1\n"
    assert "mine.yaml:4:32" in refusal(text)
    assert "mine.yaml:5:23" in refusal(text)


def test_values_that_are_set_are_checked() -> None:
    shipped = load_calibration()
    with pytest.raises(SpecError, match="out of range"):
        shipped.with_values({"generation.hopper.gemm_frac": 2.0}, "measured")
    found = shipped.with_values({"generation.hopper.gemm_frac": 0.66}, "measured", "ours")
    assert (found.name, found.value("generation.hopper.gemm_frac")) == ("ours", 0.66)
    assert found.provenance["generation.hopper.gemm_frac"] == "measured"
    assert shipped.value("generation.hopper.gemm_frac") != 0.66


def test_anchors_are_told() -> None:
    found = load_calibration().with_anchors(1.1, 1.1, 1.1, ("one step",))
    assert found.anchored
    assert [found.value(name) for name in ANCHORS] == [1.1] * 3
    assert "anchored_by:\n- 'one step'\n" in found.to_text()


def test_a_result_names_its_calibration_and_reopens_with_it(tmp_path: Path) -> None:
    file = tmp_path / "slow.yaml"
    file.write_text("name: slow\nvalues:\n  generation.hopper.gemm_frac: 0.4\n")
    words = ("llama3-8b", "h100-x8", "--pin", "zero=1", "--no-cache", "--format", "json")
    shipped = json.loads(run_here("evaluate", *words).stdout)
    told = run_here("evaluate", *words, "--calibration", str(file))
    slow = json.loads(told.stdout)
    assert shipped["calibration"]["hash"] == load_calibration().content_hash
    assert (slow["calibration"]["name"], slow["calibration"]["anchored"]) == ("slow", False)
    assert slow["result_id"] != shipped["result_id"]
    assert slow["plans"][0]["step_time_s"] > 1.2 * shipped["plans"][0]["step_time_s"]
    saved = tmp_path / "slow.json"
    saved.write_text(told.stdout)
    opened = json.loads(run_here("show", f"{saved}#1", "--format", "json").stdout)
    assert opened["step_time_s"] == slow["plans"][0]["step_time_s"]


def test_text_output_says_when_the_numbers_are_not_the_shipped_ones(tmp_path: Path) -> None:
    file = tmp_path / "slow.yaml"
    file.write_text("name: slow cluster\nvalues:\n  generation.hopper.gemm_frac: 0.4\n")
    words = ("evaluate", "llama3-8b", "h100-x8", "--pin", "zero=1", "--no-cache")
    assert "priced with" not in run_here(*words).stdout
    assert "priced with slow cluster (" in run_here(*words, "--calibration", str(file)).stdout


def test_a_missing_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    done = run_here("validate", "--calibration", str(tmp_path / "none.yaml"))
    assert done.returncode == 1
    assert "no such file" in " ".join(done.stderr.split())
