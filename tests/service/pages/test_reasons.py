"""Compare, accuracy, catalogue and case studies: what they show is what the library says."""

import html
import json
import re
from functools import cache
from typing import Any

import pytest

import planner
from service.handlers.problems import Refusal
from service.pages.shown_data import shown_data
from service.pages.views.accuracy import accuracy_figure, measured_rows_of, worst
from service.pages.views.cases import case_figures, curve_figures, series_figures
from service.pages.views.catalogue import KINDS, parts
from service.pages.views.compare import renamed
from tests.service.pages.inline import page, text

QUESTION = "model=llama3-8b&cluster=h100-x8&pin=tp%3D1,zero%3D2&max=mbs%3D2&top=6"
MANY_LAYOUTS = "model=llama3-8b&cluster=a100-x1024&pin=zero%3D1&top=5"
"""A question with five layouts, some tied, some hardly told apart, some neither."""
HOSTILE = "%3Cscript%3Ealert(1)%3C/script%3E%22'%E2%80%AE"


def shown(address: str) -> str:
    """Return the text of a page with its entities resolved."""
    return html.unescape(text(page(address)))


@cache
def result() -> Any:
    pins = {"tp": 1, "zero": 2}
    return planner.solve("llama3-8b", "h100-x8", top=6, pins=pins, at_most={"mbs": 2})


@cache
def many_layouts() -> Any:
    """Return the answer to `MANY_LAYOUTS`."""
    return planner.solve("llama3-8b", "a100-x1024", top=5, pins={"zero": 1})


def plans() -> list[str]:
    return [plan.plan_id for plan in result().plans]


# Compare


def compared(address: str = "") -> str:
    first, second = plans()[:2]
    return shown(address or f"/ui/compare?{QUESTION}&plan={first}&plan={second}")


@pytest.mark.slow
def test_compare_says_what_the_library_says() -> None:
    from planner.analyze.comparison import compare
    from planner.render.answers.comparison import verdict
    from planner.solver.answer.result_store import plan_of_result

    data = result().to_json()
    found = compare(*(plan_of_result(data, plan_id, "it") for plan_id in plans()[:2]))
    answer = compared()
    assert f"{verdict(found)}." in answer
    for turn in found.turns:
        assert turn in answer
    for axis, a, b, meaning in found.layout:
        row = f'<th scope="row">{axis}</th><td>{a}</td><td>{b}</td><td>{meaning}</td>'
        assert row in answer
    for plan in found.plans:
        assert f"{plan.step_time_s:.4f} s" in answer
        assert f"{plan.step_time_s * 1e3:,.2f}" in answer


@pytest.mark.slow
def test_compare_shows_up_to_four_plans_in_their_order_each_against_the_first() -> None:
    from planner.analyze.comparison import compare
    from planner.render.answers.comparison import verdict
    from planner.solver.answer.result_store import plan_of_result

    found = [plan.plan_id for plan in many_layouts().plans]
    assert len(found) == 5
    given = [found[2], "1", found[3], "2", found[4]]
    answer = compared(f"/ui/compare?{MANY_LAYOUTS}&" + "&".join(f"plan={plan}" for plan in given))
    sides = re.findall(r'id="side-([A-D])">.: <a[^>]*>(\w+)</a>', answer)
    ids = (found[2], found[0], found[3], found[1])
    assert sides == list(zip("ABCD", ids, strict=True))
    assert f"A with {found[4]}" in answer  # the fifth is named, not dropped
    # Ties are those of the whole list, not of the plans that are shown.
    said = re.findall(r"<dt>Rank</dt><dd>(.*?)</dd>", answer)
    ties = [
        "1: recommended"
        if plan.rank == 1
        else f"{plan.rank}, ties with the fastest"
        if plan.tie
        else f"{plan.rank}, hardly told from the fastest"
        if plan.group == 1
        else f"{plan.rank}"
        for plan in (many_layouts().plans[i] for i in (2, 0, 3, 1))
    ]
    assert said == ties
    assert len({words.partition(",")[2] for words in said}) == 3  # one of each kind
    data = many_layouts().to_json()
    opened = [plan_of_result(data, plan_id, "it") for plan_id in ids]
    for name, other in zip("BCD", opened[1:], strict=True):
        each = compare(opened[0], other)
        assert f"<b>A and {name}:</b> {renamed(verdict(each), name)}." in answer
        for axis, _, value, meaning in each.layout:
            row = next(row for row in answer.split("<tr>") if f'row">{axis}</th>' in row)
            assert f"<td>{value}</td>" in row
            assert meaning in row
    times = [plan.breakdown.time_s for *_, plan in opened]
    for term in times[0]:
        if any(time[term] for time in times):
            cells = "".join(f'<td class="n">{time[term] * 1e3:,.2f}</td>' for time in times)
            assert f'<th scope="row">{term}</th>{cells}' in answer


def test_compare_asks_for_what_is_missing() -> None:
    assert "It needs a model and a cluster first" in shown("/ui/compare")
    assert 'name="plan" value="2"' in shown(f"/ui/compare?{QUESTION}")
    with pytest.raises(Refusal) as refused:
        page(f"/ui/compare?{QUESTION}&plan=1&plan={HOSTILE}")
    assert "no plan" in refused.value.detail


# Accuracy


def test_accuracy_shows_every_source_and_every_reason() -> None:
    answer = shown("/ui/accuracy")
    data = shown_data("accuracy")
    for source in data["sources"]:
        assert f"/ui/accuracy?source={source['source']}" in answer
        assert source["what"] in answer
    for each in data["skipped"]:
        assert each["reason"] in answer
        assert each["takes"] in answer
    n = sum(source["n_used"] for source in data["sources"])
    assert n + sum(each["n"] for each in data["skipped"]) == data["totals"]["n_rows"]


def test_worst_misses_are_the_worst() -> None:
    runs = measured_rows_of("", "step")
    ratios = [max(r["predicted"] / r["measured"], r["measured"] / r["predicted"]) for r in runs]
    found = worst(runs)
    assert max(ratios) == max(
        found[0]["predicted"] / found[0]["measured"], found[0]["measured"] / found[0]["predicted"]
    )
    answer = shown("/ui/accuracy")
    places = [answer.index(f'<th scope="row">{run["id"]}</th>') for run in found]
    assert places == sorted(places)


def test_medians_of_the_page_are_those_of_its_runs() -> None:
    for source in shown_data("accuracy")["sources"]:
        runs = measured_rows_of(source["source"], "step")
        assert len(runs) == source["step_time"]["n"]
        if runs:
            errors = sorted(abs(run["predicted"] / run["measured"] - 1) for run in runs)
            n = len(errors)
            median = (errors[(n - 1) // 2] + errors[n // 2]) / 2
            assert median == pytest.approx(source["step_time"]["median_ape"], abs=2e-5)


def test_a_source_alone() -> None:
    answer = shown("/ui/accuracy?source=sc21")
    assert "Accuracy: sc21" in answer
    assert "us-8b-" not in re.sub(r"<script.*?</script>", "", answer, flags=re.DOTALL)
    drawn = accuracy_figure("sc21", "step")
    assert drawn is not None
    assert len(drawn["table"]["rows"]) == len(measured_rows_of("sc21", "step"))
    with pytest.raises(Refusal) as refused:
        page(f"/ui/accuracy?source={HOSTILE}")
    assert refused.value.status == 404


def test_predictions_of_the_page_are_what_the_model_says_now() -> None:
    """A few runs of every source are predicted again: the packaged data is current."""
    from planner.measure.validate.points import read_measured_points
    from planner.measure.validate.report import DATA, read_entries
    from planner.measure.validate.rows import price_points
    from planner.solver.answer.result_parts import calibration_json
    from planner.solver.calibration.file import load_calibration

    data = shown_data("accuracy")
    now = calibration_json(load_calibration())
    assert data["basis"] == {key: now[key] for key in data["basis"]}, "run scripts/page_data"
    rows = {row[0]: dict(zip(data["columns"], row, strict=True)) for row in data["layouts"]}
    first = {row["source"]: row["id"] for row in reversed(rows.values()) if row["predicted_s"]}
    points = [
        point for point in read_measured_points(DATA / "points.csv") if point.id in first.values()
    ]
    entries = [read_entries(DATA / f"{name}.yaml") for name in ("models", "hardware")]
    priced = price_points(points, *entries, load_calibration())
    for row in priced:
        assert row.prediction is not None
        saved = rows[row.point.id]["predicted_s"]
        assert row.prediction.step_s == pytest.approx(saved, rel=1e-5), "run scripts/page_data"


# Catalogue


def test_the_catalogue_names_every_part_and_every_source() -> None:
    from hardware.catalogue import load_catalogue

    catalogue, answer = load_catalogue(), shown("/ui/catalogue")
    for kind, _, _ in KINDS:
        for name in getattr(catalogue, kind):
            assert f'href="/ui/catalogue/{name}"' in answer
    part = catalogue.accelerators["h100-sxm-80gb"]
    sheet = shown("/ui/catalogue/h100-sxm-80gb")
    for origin in part.provenance.values():
        assert origin.date in sheet
    for alias in part.aliases:
        assert alias in sheet
    assert "989 TFLOP/s" in sheet
    assert "Ridge points" in sheet


@pytest.mark.parametrize("kind", [kind for kind, _, _ in KINDS])
def test_every_part_has_its_page(kind: str) -> None:
    for row in parts()[kind][::7]:
        assert f"<h1>{row[0]}</h1>" in shown(f"/ui/catalogue/{row[0]}")


def test_the_filter_looks_at_all_words() -> None:
    from hardware.catalogue import load_catalogue

    answer = shown("/ui/catalogue?filter=nvidia+blackwell")
    assert 'href="/ui/catalogue/b200-sxm-180gb"' in answer
    assert 'href="/ui/catalogue/h100-sxm-80gb"' not in answer
    assert "None of" in shown("/ui/catalogue?filter=no-such-part")
    # A source that names another part is no match: names, aliases, vendor, architecture, kind are.
    found = re.findall(r'href="/ui/catalogue/([^"]+)"', shown("/ui/catalogue?filter=b200"))
    assert {name for name in found if name in load_catalogue().accelerators} == {
        "b200-sxm-180gb",
        "gb200-186gb",
    }
    assert {"hgx-b200", "a4-highgpu-8g"} <= set(found)
    for word, name in (
        ("hopper", "h100-sxm-80gb"),
        ("amd", "mi300x-192gb"),
        ("aws", "p5.48xlarge"),
        ("link nvlink4", "nvlink4"),
        ("assumed", "gb200-186gb"),
    ):
        assert f'href="/ui/catalogue/{name}"' in shown(f"/ui/catalogue?filter={word}"), word
    found = text(page(f"/ui/catalogue?filter={HOSTILE}"))
    assert "<script>alert" not in found


def test_an_unknown_part_is_not_found() -> None:
    with pytest.raises(Refusal) as refused:
        page("/ui/catalogue/h100-sxm-80g")
    assert refused.value.status == 404
    assert "did you mean h100-sxm-80gb" in refused.value.errors[0].fix


# Case studies


def test_cases_show_published_and_own_plans() -> None:
    answer, data = shown("/ui/cases"), shown_data("cases")
    for case in data["cases"]:
        assert case["title"] in answer
        assert case["source"] in answer
        for key in ("published", "own"):
            if case[key]:
                assert f"<td>{case[key]['layout']}</td>" in answer
    for each in data["series"]:
        assert each["title"] in answer
        assert each["note"] in answer
        assert {row["n_devices"] for row in each["rows"]} >= {each["rows"][0]["n_devices"]}
    assert any(each["note"] for each in data["series"])
    kinds = [each["kind"] for each in data["series"]]
    assert kinds.count("strong") >= 3
    assert kinds.count("weak") >= 3
    assert {each["kind"] for each in data["curves"]} == {"strong", "weak"}
    figures = (*case_figures(), *series_figures(), *curve_figures())
    assert all(found is not None for found in figures)
    keys = [found["key"] for found in figures if found]
    assert len(set(keys)) == len(keys)


def test_cases_are_those_of_the_documentation() -> None:
    from pathlib import Path

    from planner.specs.yaml.document import load_yaml

    folder = Path(__file__).resolve().parents[3] / "docs" / "case_studies"
    data = shown_data("cases")
    for name, key in (("layouts", "cases"), ("scaling", "series")):
        entries = load_yaml(folder / f"{name}.yaml").data
        assert [e["title"] for e in entries] == [c["title"] for c in data[key]]


def test_a_case_is_what_the_model_says_now() -> None:
    from planner.solver.answer.result_parts import calibration_json
    from planner.solver.calibration.file import load_calibration

    data = shown_data("cases")
    now = calibration_json(load_calibration())
    assert data["basis"] == {key: now[key] for key in data["basis"]}, "run scripts/page_data"
    case: dict[str, Any] = next(c for c in data["cases"] if c["model"] == "llama2-70b")
    again = planner.evaluate(
        case["model"],
        case["cluster"],
        pins=case["pins"],
        framework="any",
        stack=case["stack"],
        overrides=tuple(case["overrides"].items()),
    ).best
    assert again.step_time_s == pytest.approx(case["published"]["step_time_s"], rel=1e-5)
    step_s = sum(case["own"]["time_s"].values())
    assert step_s == pytest.approx(case["own"]["step_time_s"], rel=1e-5)


def test_figures_are_data_that_scripts_may_hold() -> None:
    for address in ("/ui/accuracy?source=sc21", "/ui/cases"):
        found = text(page(address))
        for data in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', found):
            assert "<" not in data
            json.loads(data)


# Step by step


@pytest.mark.slow
def test_the_walk_shows_every_step_and_its_end() -> None:
    from planner.render.answers.recommendation import conclusion, walk_end

    asked = "model=llama3-8b&cluster=h100-x8&pin=tp%3D1&max=pp%3D1,cp%3D1,mbs%3D2"
    answer = shown(f"/ui/walk?{asked}")
    found = planner.recommend(
        "layout", "llama3-8b", "h100-x8", pins={"tp": 1}, at_most={"pp": 1, "cp": 1, "mbs": 2}
    ).answer
    assert found is not None
    assert walk_end(found) in answer
    for step in found["steps"]:
        assert step["question"] in answer
        assert f"<p>{conclusion(step)}.</p>" in answer
    assert answer.count(">taken<") == sum(step["chosen"] is not None for step in found["steps"])
    assert "It needs a model and a cluster first" in shown("/ui/walk")


# In a browser


@pytest.mark.page
@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 390)])
@pytest.mark.parametrize(
    "path", ["/ui/catalogue", "/ui/catalogue/gb300-288gb", "/ui/accuracy", "/ui/cases"]
)
def test_in_a_browser(page_at, path, dark, width):  # type: ignore[no-untyped-def]
    screen = page_at(path, dark=dark, width=width)
    if path in ("/ui/accuracy", "/ui/cases"):
        screen.draw()
    screen.shot(f"{path.strip('/').replace('/', '-')}-{'dark' if dark else 'light'}-{width}")
    screen.check()


@pytest.mark.page
def test_two_ticked_plans_are_compared(page_at):  # type: ignore[no-untyped-def]
    screen = page_at(f"/ui/plans?{QUESTION}", wait="table.plans")
    boxes = screen.page.locator("tbody input[name=plan]")
    boxes.nth(0).check()
    boxes.nth(1).check()
    screen.page.locator("[data-compare]").click()
    screen.page.wait_for_selector(".headline", timeout=60_000)
    screen.draw()
    screen.shot("compare")
    screen.page.set_viewport_size({"width": 390, "height": 900})
    screen.check()
    screen.page.set_viewport_size({"width": 1280, "height": 900})
    screen.check()
    assert screen.page.get_by_role("heading", level=1).inner_text().startswith("Two plans of")
    screen.page.get_by_role("link", name="Swap A and B").click()
    screen.page.wait_for_selector(f"#side-A:has-text('{plans()[1]}')", timeout=60_000)
