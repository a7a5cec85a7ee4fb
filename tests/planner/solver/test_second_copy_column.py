"""hpZ: a column of the table where some listed plan uses it, one of the CSV always."""

import csv
import io

import planner
from planner.render.answers.plan_table import plans_csv, plans_markdown
from planner.render.document import text_of

PINS = {"tp": 1, "pp": 1, "zero": 3, "mbs": 1, "cp": 1, "dp_shard": 64, "devices": 64}


def test_hpz_has_a_column_where_a_plan_uses_it() -> None:
    found = planner.solve(
        "llama3-8b", "h100-x512", pins=PINS, only={"hpz": [1, 8]}, framework="deepspeed"
    )
    sizes = [plan.layout.hpz for plan in found.plans]
    assert 8 in sizes
    rows = list(csv.DictReader(io.StringIO(plans_csv(found))))
    assert [int(row["hpz"]) for row in rows] == sizes
    heading = next(x for x in text_of(found).splitlines() if x.split()[:1] == ["#"])
    at = heading.split().index("hpz")
    table = [x.lstrip("*=~ ").split() for x in text_of(found).splitlines()]
    ids = {p.plan_id for p in found.plans}
    shown = {row[-1]: row[at] for row in table if row and row[-1] in ids}
    assert list(shown.values()) == [str(n) if n > 1 else "-" for n in sizes]
    assert "| hpz |" in plans_markdown(found)


def test_hpz_has_none_where_no_plan_does() -> None:
    found = planner.solve("llama3-8b", "h100-x512", pins=PINS, framework="deepspeed")
    assert found.plans
    assert "hpz" not in text_of(found)
    rows = csv.DictReader(io.StringIO(plans_csv(found)))
    assert {row["hpz"] for row in rows} == {"1"}  # a file for programs has every axis
