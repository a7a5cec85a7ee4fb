"""The axis of docs/extending.md, added to a copy of the packages, is found in all places."""

from pathlib import Path

import pytest

from tests.planner.page_copy import follow, run_in, section_blocks, section_text

SECTION = "Add an axis"
GENERATED = ("docs/search.md", "docs/openapi.json", "CHANGELOG.md")
MOST_FILES = 6


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    follow(folder, section_blocks(SECTION))
    return folder


def test_it_takes_few_files() -> None:
    assert all(name in section_text(SECTION) for name in GENERATED)
    files = {block.file for block in section_blocks(SECTION)}
    assert len(files | set(GENERATED)) <= MOST_FILES


@pytest.mark.slow
def test_the_test_of_the_page_passes(copy: Path) -> None:
    program = "from tests.planner.test_manual_gc import *; test_it_is_found_where_it_is_named()"
    run_in(copy, "-c", program)


PROGRAM = """
import json
from pathlib import Path

import planner
assert Path(planner.__file__).is_relative_to(Path.cwd())
from planner.analyze.check.check import check
from planner.render.answers.plan_table import plans_csv
from planner.render.document import text_of
from planner.solver.answer.result import Plan
from searches.frameworks.registry import framework_names
from searches.frameworks.table import refusals
from planner.specs.loader import load_model
from service.handlers.calls import call

JOB = {"model": "llama3-8b", "cluster": "h100-x8"}

def solve(**options):
    return planner.solve(*JOB.values(), top=2, framework="megatron", **options)

# Search: off unless named, pinned, and beside the others.
off, on = solve(), solve(pins={"manual_gc": "on"})
assert off.plans[0].layout.value("manual_gc") is False
assert [p.layout.value("manual_gc") for p in on.plans] == [True, True]
assert on.plans[0].plan_id != off.plans[0].plan_id
one = {"tp": 8, "sp": 1, "mbs": 1, "recompute": "none"}
both = solve(pins=one, only={"manual_gc": ["off", "on"]}).plans
assert len({p.layout.value("manual_gc") for p in both}) == 2

# JSON, table, CSV, explain.
plan = on.plans[0]
assert plan.to_json()["layout"]["manual_gc"] is True
assert "manual_gc" not in off.plans[0].to_json()["layout"]
assert Plan.from_json(plan.to_json()).layout == plan.layout
heads = [line for line in text_of(on).splitlines() if line.split()[:1] == ["#"]]
assert heads and "gc" in heads[0].split()
plain_heads = [line for line in text_of(off).splitlines() if line.split()[:1] == ["#"]]
assert plain_heads and "gc" not in plain_heads[0].split()
assert "manual_gc" in plans_csv(on).splitlines()[0]
Path("on.json").write_text(on.dumps())
text = call("explain", {"result": on.to_json(), "plan": 1})["text"]
assert "gc on: garbage collected on all ranks at once." in text

# Refused by the others, in their words.
model = load_model("llama3-8b")
for name in framework_names():
    texts = refusals(name, plan.layout, model.shape, model.job)
    assert any("manual_gc" in text for text in texts) == (name != "megatron")

# Written, read back, and told as a change.
files = call("emit", {"result": on.to_json(), "plan": 1, "for": ["megatron"]})["files"]
assert "--manual-gc" in files["megatron.sh"].split()
plain = call("emit", {"result": off.to_json(), "plan": 1, "for": ["megatron"]})["files"]
assert "--manual-gc" not in plain["megatron.sh"]
Path("megatron.sh").write_text(files["megatron.sh"])
report = check("megatron.sh", "h100-x8")
assert report.accepted, report.refusals
assert report.plan.layout.value("manual_gc") is True
assert report.plan.layout == plan.layout
from planner.frameworks.megatron.settings import changed_flags, megatron_settings
problem = plan.breakdown.rows.problem
gone = changed_flags(report.run, plan.layout, off.plans[0].layout,
                     megatron_settings(off.plans[0].layout, problem))
assert gone["--manual-gc"] is None

# REST, gRPC, docs.
from service.handlers.answers import LayoutBody
from service.rest.openapi import openapi_text
field = LayoutBody.model_fields["manual_gc"]
assert field.description == "garbage collected on all ranks at once"
assert '"manual_gc"' in openapi_text()
from service.proto.planner.v1 import planner_pb2
from service.rpc.convert import message_of, to_dict
answer = call("solve", {**JOB, "framework": "megatron", "top": 1, "pins": {"manual_gc": "on"}})
assert answer["plans"][0]["layout"]["manual_gc"] is True
message = message_of(answer["plans"][0]["layout"], planner_pb2.Layout)
assert to_dict(message)["manual_gc"] is True

import importlib.util
spec = importlib.util.spec_from_file_location("generate_docs", "docs/generate.py")
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)
row = "| `manual_gc` | garbage collected on all ranks at once | off, on | off | `--manual-gc` |"
assert row in generate.axes_table()
"""


@pytest.mark.slow
def test_it_is_found_in_search_table_files_and_services(copy: Path) -> None:
    run_in(copy, "-c", PROGRAM)
