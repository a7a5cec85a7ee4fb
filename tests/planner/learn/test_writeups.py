"""Every example that pages in circulation print can be asked: their number, or ours and why."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.learn import calculators
from planner.learn.results import CalculatorResult

TABLE = yaml.safe_load((Path(__file__).parent / "writeups.yaml").read_text(encoding="utf-8"))
CASES = [(row, case) for row in TABLE for case in row["cases"]]
IDS = [f"{row['row']}-{row['cases'].index(case)}-{case['calculator']}" for row, case in CASES]
UNITS = {
    "": 1.0,
    "%": 0.01,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "Gb/s": 1e9 / 8,
    "GB/s": 1e9,
}
QUANTITY = re.compile(r"(\d+(?:\.(\d+))?)\s*(\S*)")


def read(given: str | dict[str, str]) -> tuple[float, float]:
    """A value in base units, and half a unit of its last digit or what `within` says."""
    if isinstance(given, dict):
        return read(given["value"])[0], read(given["within"])[0]
    number, decimals, unit = QUANTITY.fullmatch(given).groups()
    half = 0.5 * 10.0 ** -len(decimals or "")
    return float(number) * UNITS[unit], (half + 1e-9) * UNITS[unit]


@cache
def asked(place: int) -> CalculatorResult:
    _, case = CASES[place]
    one = calculators()[case["calculator"]]
    return one.answer({key: str(value) for key, value in case["set"].items()})


def numbers(result: CalculatorResult) -> dict[str, float]:
    return {number.key: number.value for number in result.numbers}


def test_the_table_is_whole() -> None:
    assert [row["row"] for row in TABLE] == list(range(1, 21))


@pytest.mark.parametrize("place", range(len(CASES)), ids=IDS)
def test_the_printed_number_stands_there_as_ours_or_as_theirs(place: int) -> None:
    result, case = asked(place), CASES[place][1]
    ours = numbers(result)
    theirs = {x.key: x.printed for x in result.differences}
    one = calculators()[case["calculator"]]
    for key, given in case["printed"].items():
        value, within = read(given)
        if key.startswith("input."):
            inputs = one.read({k: str(v) for k, v in case["set"].items()}).resolved
            found = [inputs[key.removeprefix("input.")]]
        else:
            found = [each[key] for each in (ours, theirs) if key in each]
        assert any(abs(x - value) <= within for x in found), (key, given, found)


@pytest.mark.parametrize("place", range(len(CASES)), ids=IDS)
def test_ours_is_the_corrected_number(place: int) -> None:
    result, case = asked(place), CASES[place][1]
    known = {x.key: x.ours for x in result.differences} | numbers(result)
    for key, given in case.get("ours", {}).items():
        value, within = read(given)
        assert known[key] == pytest.approx(value, abs=within), key


@pytest.mark.parametrize("place", range(len(CASES)), ids=IDS)
def test_it_says_why(place: int) -> None:
    result, case = asked(place), CASES[place][1]
    for key in case.get("why", []):
        found = result.difference(key)
        assert not found.agrees
        assert found.texts[0] != found.texts[1]
        assert len(found.why) >= 20
        assert found.where
    for words in case.get("advice", []):
        assert any(words in text for text in result.advice), result.advice


@pytest.mark.parametrize("place", range(len(CASES)), ids=IDS)
def test_a_printed_number_that_is_not_ours_has_a_reason(place: int) -> None:
    """Nothing printed is left without its reason: the table cannot forget one."""
    result, case = asked(place), CASES[place][1]
    ours = numbers(result)
    told: set[str] = set()
    for key, given in case["printed"].items():
        value, within = read(given)
        if key in ours and abs(ours[key] - value) <= within:
            continue
        if key.startswith("input."):
            continue
        found: Any = result.difference(key)
        assert found.agrees or found.why
        told.add(key)
    reasons = {key for key in told if not result.difference(key).agrees}
    assert reasons <= set(case.get("why", [])) | {"of_backward"}
