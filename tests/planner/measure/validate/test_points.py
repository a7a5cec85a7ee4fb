"""Reading the measured runs."""

import pytest

from planner.errors import SpecError
from planner.measure.validate.points import read_measured_points, unread_columns
from planner.units import GIB

HEAD = (
    "id,model,hardware,n_gpus,seq_len,gbs,mbs,tp,pp,step_time_s,tok_s_gpu,mem_unit,peak_mem_gb,oom"
)


@pytest.fixture
def read(tmp_path):
    def write(text):
        path = tmp_path / "points.csv"
        path.write_text(text, encoding="utf-8")
        return read_measured_points(path)

    return write


def test_a_row_is_typed_and_empty_cells_are_none(read):
    (point,) = read(f"{HEAD},colour\nus-1b-1,m,h,8,4096,256,,1,,2.5,,,,,red\n")
    assert (point.source, point.n_gpus, point.mbs, point.pp) == ("us", 8, None, None)
    assert (point.step_s, point.oom, point.peak_bytes) == (2.5, None, None)
    assert (point.line, point.cells["colour"], point.stack) == (2, "red", "")


def test_step_time_from_tokens(read):
    (point,) = read(f"{HEAD}\nx-1,m,h,8,1000,16,1,1,1,,500,,,\n")
    assert point.step_s == pytest.approx(16 * 1000 / (500 * 8))


@pytest.mark.parametrize(("unit", "scale"), [("GiB", GIB), ('"GB, unstated"', 1e9), ("", 1e9)])
def test_memory_units(read, unit, scale):
    (point,) = read(f"{HEAD}\nx-1,m,h,8,,,,,,,,{unit},10,0\n")
    assert point.peak_bytes == pytest.approx(10 * scale)


def test_a_run_out_of_memory_has_no_figures(read):
    (point,) = read(f"{HEAD}\nx-1,m,h,8,1,1,1,1,1,2.0,,GiB,10,1\n")
    assert (point.step_s, point.peak_bytes, point.oom) == (None, None, True)


def test_all_bad_cells_are_one_error_with_lines(read):
    with pytest.raises(SpecError) as caught:
        read(f"{HEAD}\nx-1,m,h,eight,,,,,,,,,,\nx-2,m,h,8,,,0,,,nan,,,,maybe\n")
    text = str(caught.value)
    assert "points.csv:2: n_gpus: 'eight' is not a whole number" in text
    assert "points.csv:3: mbs: '0'" in text
    assert "points.csv:3: step_time_s: 'nan'" in text
    assert "points.csv:3: oom: 'maybe' is not 0 or 1" in text


@pytest.mark.parametrize(
    "cells",
    [("", "m", "h", "8"), ("x-1", "", "h", "8"), ("x-1", "m", "", "8"), ("x-1", "m", "h", "")],
)
def test_an_empty_cell_never_refuses_the_file(read, cells):
    point, other = read(f"{HEAD}\n{','.join(cells)},,,,,,,,,,\nx-2,m,h,8,,,,,,,,,,\n")
    assert point.id == (cells[0] or "line-2")
    assert (point.model, point.hardware, str(point.n_gpus or "")) == cells[1:]
    assert (other.id, other.source) == ("x-2", "x")


def test_lines_count_breaks_inside_quotes(read):
    with pytest.raises(SpecError, match=r"points.csv:4: n_gpus"):
        read('id,model,hardware,n_gpus,notes\nx-1,m,h,8,"two\nlines"\nx-2,m,h,?,\n')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column id, model, hardware, n_gpus is missing"),
        ("id,model,n_gpus\n", "column hardware is missing"),
        (f"{HEAD}\n", "no measured run"),
        (f"{HEAD}\nx-1,m,h\n", "3 cells in a table of 14 columns"),
        (f"{HEAD},id\n", "column id appears twice"),
        (f'{HEAD}\n"x-1,m', "points.csv:2: is no CSV text"),
        (f"{HEAD}\nx-1,m,h,8,,{10**12},,,,,,,,\n", "points.csv:2: gbs: '1000000000000' is not"),
        (HEAD.replace(",", ";"), "column id, model, hardware, n_gpus is missing"),
    ],
)
def test_bad_files(read, text, message):
    with pytest.raises(SpecError, match=message):
        read(text)


def test_a_missing_file(tmp_path):
    with pytest.raises(SpecError, match="cannot be read"):
        read_measured_points(tmp_path / "nowhere.csv")


def test_bytes_that_are_no_text_are_placed(tmp_path):
    path = tmp_path / "points.csv"
    path.write_bytes(f"{HEAD}\nx-1,m,h,8,,,,,,,,,,\n".encode() * 9000 + b"x-2,\xe9")
    with pytest.raises(SpecError, match=r"points\.csv:18001: is not UTF-8 text"):
        read_measured_points(path)


def test_columns_that_are_not_read_are_named(read):
    points = read(f"{HEAD},source,step_time_ms,zzz\nx-1,m,h,8,,,,,,,,,,,w,1,2\n")
    assert unread_columns(points) == (("step_time_ms", "step_time_s"), ("zzz", ""))
