"""The accelerator of docs/extending.md is found in catalogue, search, sweep and service."""

import csv
import io
from pathlib import Path

import pytest

from tests.planner.page_copy import ROOT, follow, run_in, section_blocks

CLUSTER = """
pools:
  - {accelerator: mi340x, nodes: 1, accelerators_per_node: 8, nic: roce-400, nics_per_node: 8}
fabric: {rail_optimized: true}
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    follow(folder, section_blocks("Add an accelerator"))
    (folder / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    return folder


def test_the_catalogue_lists_and_shows_it(copy: Path) -> None:
    listed = run_in(copy, "-m", "planner", "catalog", "list")
    assert "mi340x-128gb" in listed
    shown = run_in(copy, "-m", "planner", "catalog", "show", "MI340X")
    assert "128" in shown
    assert "960" in shown
    assert "an example" in shown


@pytest.mark.slow
def test_it_is_solved_and_swept(copy: Path) -> None:
    pins = ("--pin", "tp=2,zero=1")
    solved = run_in(copy, "-m", "planner", "solve", "llama3-8b", "cluster.yaml", *pins)
    assert "8 x mi340x-128gb" in solved
    parts = "pools.0.accelerator=mi325x-256gb,mi340x-128gb"
    swept = ("sweep", "llama3-8b", "cluster.yaml", *pins, "--vary", parts, "-o", "rows.csv")
    run_in(copy, "-m", "planner", *swept, "--quiet", "--executor", "serial")
    rows = list(csv.DictReader(io.StringIO((copy / "rows.csv").read_text(encoding="utf-8"))))
    assert [row["in.pools.0.accelerator"] for row in rows] == ["mi325x-256gb", "mi340x-128gb"]
    first, second = (float(row["best.step_time_s"]) for row in rows)
    assert second > 1.2 * first  # 960 of 1307 TFLOP/s


PROGRAM = """
from pathlib import Path

from hardware.device_names import load_device_names
from planner.learn.machines import device
from service.handlers.calls import call

cluster = {
    "pools": [{"accelerator": "mi340x", "nodes": 1, "accelerators_per_node": 8,
               "nic": "roce-400", "nics_per_node": 8}],
    "fabric": {"rail_optimized": True},
}
answer = call("solve", {"model": "llama3-8b", "cluster": cluster, "top": 1})
assert answer["plans"]
parts = call("catalogue", {})
names = [part["name"] for part in parts["accelerators"]]
assert "mi340x-128gb" in names
one = call("catalogue", {"name": "mi340x"})
assert one["accelerators"][0]["peak_flops_per_s"]["bf16"] == 960e12
assert device("mi340x-128gb").hbm_bytes_per_s == 4e12
(form,) = load_device_names().family("mi340x")
assert (form.part, form.memory_bytes) == ("mi340x-128gb", 128 * 2**30)
"""


@pytest.mark.slow
def test_the_service_and_the_calculators_have_it(copy: Path) -> None:
    run_in(copy, "-c", PROGRAM)


REST = """
import asyncio
import sys
import tempfile

import httpx

sys.path.append({root!r})
from tests.service.inline import SETTINGS, inline_engine
from service.handlers import calls
from service.rest.application import Rest
from service.settings.serving import PublicAddress


async def main():
    async with inline_engine(tempfile.mkdtemp(), calls=calls) as engine:
        app = Rest(engine, None, SETTINGS, PublicAddress(only_hosts=frozenset({{"localhost"}})))
        transport = httpx.ASGITransport(app=app, client=("10.0.0.7", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.get("/v1/catalogue", params={{"name": "mi340x"}})
            assert answer.status_code == 200, answer.text
            assert answer.json()["accelerators"][0]["name"] == "mi340x-128gb"


asyncio.run(main())
"""


def test_rest_answers_with_it(copy: Path) -> None:
    run_in(copy, "-c", REST.format(root=str(ROOT)))
