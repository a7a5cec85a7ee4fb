"""What was found for runs left out: kept beside the calibration, and only for that one."""

from dataclasses import replace
from pathlib import Path

from planner.solver.calibration.file import load_calibration
from planner.solver.calibration.intervals import Coverage
from planner.solver.calibration.left_out import FamilyLeftOut, LeftOut, read_left_out


def found() -> LeftOut:
    return LeftOut(
        load_calibration().content_hash,
        {"aa": FamilyLeftOut(3, 0.04, 0.1, None)},
        (Coverage("all", 3, 0.8, 0.1, 0.1),),
        {"stack.x.tp_hop_s": ("aa",), "stack.y.tp_hop_s": ("aa", "us")},
    )


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "left_out.json"
    path.write_text(found().to_text())
    assert read_left_out(load_calibration(), path) == found()


def test_it_says_nothing_of_another_calibration(tmp_path: Path) -> None:
    path = tmp_path / "left_out.json"
    assert read_left_out(load_calibration(), path) is None
    path.write_text(replace(found(), calibration="another").to_text())
    assert read_left_out(load_calibration(), path) is None


def test_numbers_that_rest_on_one_family() -> None:
    assert found().of_one_family == {"aa": ["stack.x.tp_hop_s"]}
