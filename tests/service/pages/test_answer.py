"""What stands around the table of plans: card, funnel, launch script, the map of degrees."""

import html
import io
import json
import re
import zipfile

import pytest

from planner.render.card.answer import card_of
from planner.solver.answer.result import Result
from service.handlers.calls import call
from service.handlers.problems import Refusal
from service.pages.answer.funnel import funnel, width_percent
from service.pages.views.launch import archive
from tests.service.pages.inline import page, text

QUESTION = "model=llama3-8b&cluster=8xh100&pin=tp%3D1,zero%3D1,mbs%3D1"


@pytest.fixture(scope="module")
def answer():
    request = {
        "model": "llama3-8b",
        "cluster": "8xh100",
        "pins": {"tp": 1, "zero": 1, "mbs": 1},
        "top": 64,
    }
    return call("solve", json.dumps(request).encode())


@pytest.fixture(scope="module")
def shown():
    return text(page(f"/ui/plans?{QUESTION}"))


def test_the_card_on_the_page_is_that_of_the_json(answer, shown):
    card = card_of(Result.from_json(answer))
    plain = html.unescape(shown)
    assert f"<h2>{card.sentence}</h2>" in plain
    figures = re.findall(r'data-figure="([\w]+)"><dt>.*?</dt><dd><b>(.*?)</b>', plain)
    assert figures == [(x.key, x.text) for x in card.figures]
    for bar in card.bars:
        for part in bar.segments:
            assert f"<title>{part.label} {part.text}</title>" in plain
    best = answer["plans"][0]
    assert card.figure("step_time_s").value == best["step_time_s"]
    row = re.search(r'<tr class="first">.*?</tr>', plain)[0]
    assert best["plan_id"] in row
    assert f"{best['step_time_s']:,.3f}</td>" in row


def test_the_title_says_the_count_that_was_asked(shown):
    assert "<h1><bdi>llama3-8b</bdi> on 8 x h100-sxm-80gb</h1>" in shown


def test_the_funnel_adds_up(answer):
    result = Result.from_json(answer)
    legal, within, fit, listed = funnel(result)
    assert legal["n"] == result.counts.space
    assert legal["n"] - within["lost"] == within["n"]
    assert within["n"] - fit["lost"] == fit["n"] == result.counts.fit
    assert listed["n"] == len(answer["plans"])
    widths = [stage["width"] for stage in (legal, within, fit, listed)]
    assert widths == sorted(widths, reverse=True)
    assert legal["width"] == 100.0
    assert width_percent(0, 0) == 0.0


def test_one_click_gives_the_launch_script(shown):
    link = html.unescape(re.search(r'href="(/ui/plan/launch[^"]*)"', shown)[1])
    sent = page(link)
    assert sent.media == "application/zip"
    packed = zipfile.ZipFile(io.BytesIO(sent.content))
    assert {"megatron.sh", "slurm-megatron.sbatch"} <= set(packed.namelist())
    script = packed.read("slurm-megatron.sbatch").decode()
    assert "#SBATCH --nodes=1" in script
    assert "#SBATCH --gpus-per-node=8" in script
    assert packed.getinfo("megatron.sh").external_attr >> 16 == 0o755
    assert page(link).content == sent.content


@pytest.mark.parametrize(
    ("more", "words"),
    [("launcher=x", "launcher: 'x' is none of slurm"), ("for=nothing", "nothing")],
)
def test_launchers_and_frameworks_that_are_none_are_refused(more, words):
    with pytest.raises(Refusal) as caught:
        page(f"/ui/plan/launch?{QUESTION}&plan=1&{more}")
    assert words in f"{caught.value.detail} {caught.value.errors}"


def test_an_archive_is_the_same_for_the_same_files():
    files = {"b.txt": "2", "a.sh": "1"}
    assert archive(files) == archive(dict(reversed(files.items())))


def test_the_map_links_each_pair_and_says_why_one_has_no_plan():
    asked = "model=llama3-70b&cluster=8xh100&pin=mbs%3D1&only=tp%3D4,8&only=pp%3D1,2"
    found = text(page(f"/ui/plans/map?{asked}"))
    assert len(re.findall(r'<td class="n none"', found)) == 4
    assert found.count("GiB per GPU") >= 3
    good = text(page("/ui/plans/map?model=llama3-8b&cluster=8xh100&pin=mbs%3D1"))
    cells = re.findall(r'--shade: (\d+)%"><a href="([^"]*)">([\d.]+) s', good)
    assert len(cells) == 10
    fastest = min(cells, key=lambda cell: float(cell[2]))
    assert fastest[0] == max((shade for shade, _, _ in cells), key=int) == "60"
    assert "tp%3D" in fastest[1]
    assert ">needs 16</td>" in good  # tp 8 x pp 2 on eight GPUs
    assert "It needs a model and a cluster first" in text(page("/ui/plans/map"))
