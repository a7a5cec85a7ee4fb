"""`planner show --html`: the plan view as one file that needs no network."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from planner.render.plan_view.data import plan_view
from planner.render.plan_view.page import plan_html
from planner.solver.solve import evaluate
from planner.solver.sources import read_inputs
from tests.planner.command import run_here

PINS = {"tp": 2, "pp": 2, "zero": 1}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result in a file."""
    found = evaluate("llama3-8b", "h100-x8", pins=PINS)
    path = tmp_path_factory.mktemp("result") / "result.json"
    path.write_text(found.dumps(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(saved: Path) -> str:
    """The plan view of its plan, written to a file."""
    out = saved.parent / "plan.html"
    done = run_here("show", f"{saved}#1", "--html", str(out))
    assert (done.returncode, done.stdout) == (0, "")
    assert "needs no network" in done.stderr
    return out.read_text(encoding="utf-8")


def test_writes_what_show_prints(saved, page):
    text = page
    printed = json.loads(run_here("show", f"{saved}#1", "--format", "json").stdout)
    data = {
        key: json.loads(found)
        for key, found in re.findall(
            r'<script type="application/json" id="([a-z-]+)-data">(.*?)</script>', text, re.S
        )
    }
    bars = {
        name: length
        for trace in data["waterfall"]["data"]
        if trace["type"] == "bar"
        for name, length in zip(trace["y"], trace["x"], strict=True)
    }
    for term, seconds in printed["time"].items():
        assert bars.get(term, 0.0) == seconds
    assert bars["step time"] == printed["step_time_s"]
    for trace in data["memory"]["data"]:
        held = [stage[trace["name"]] for stage in printed["memory"]["stages"]]
        assert [x * 2**30 for x in trace["x"]] == pytest.approx(held, abs=1.0)
    assert f"Plan {printed['plan_id']}" in text
    assert f"planner show '{saved}#1' --html" in text.replace("&#39;", "'")


def test_loads_nothing(page):
    plain = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert "default-src 'none'" in plain
    assert not re.search(r"<(link|script|img|iframe)[^>]+(src|href)=\"(?!data:)", plain)
    links = re.findall(r'href="([^"]*)"', plain)
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)


@pytest.mark.slow
def test_the_same_bytes_again_and_to_stdout(saved, page):
    assert run_here("show", f"{saved}#1", "--html", "-").stdout == page


def test_a_file_that_cannot_be_written_is_one_clear_error(saved, tmp_path):
    done = run_here("show", f"{saved}#1", "--html", str(tmp_path / "none" / "plan.html"))
    assert done.returncode == 1
    assert "there is no folder" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert "fix: name another file" in done.stderr


HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e%{x}"


@pytest.mark.slow
def test_names_are_texts():
    """Files may not hold such names; if one ever did, it would be text."""
    model, cluster = read_inputs("llama3-8b", "h100-x8")
    plan = evaluate("llama3-8b", "h100-x8", pins=PINS).plans[0]
    problem = plan.breakdown.rows.problem
    part = replace(problem.pool.accelerator, name=HOSTILE)
    problem = replace(
        problem,
        shape=replace(problem.shape, name=HOSTILE),
        pool=replace(problem.pool, name=HOSTILE, accelerator=part),
    )
    cluster = replace(
        cluster,
        cluster=replace(cluster.cluster, name=HOSTILE),
        sources=tuple(replace(one, hosts=(HOSTILE,)) for one in cluster.sources),
    )
    view = plan_view(model, cluster, problem, plan)
    text = plan_html(view, '{"name": "</script>"}')
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.S)  # Plotly and ours
    assert "<img" not in own
    assert "<script>alert" not in own
    assert own.count("&lt;script&gt;alert(1)") >= 4  # model, cluster, accelerator, host
    json.dumps(view.to_json(), allow_nan=False)
