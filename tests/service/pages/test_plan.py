"""The page of one plan, in a browser: figures, numbers that open, zoom, ranks, files, trace."""

import contextlib
import html
import json
import re
import shlex
import time

import pytest

ADDRESS = "/ui/plan?model=llama3-8b&cluster=h100-x8&pin=tp=2&pin=pp=2&plan=1"
FIGURES = (
    "waterfall",
    "memory",
    "memory-course",
    "timeline",
    "reached",
    "compute-roofline",
    "communication-roofline",
    "elasticities",
)


def test_the_question_as_a_command():
    from service.pages.views.plan import question_command

    question = {
        "model": "llama3-8b",
        "cluster": "h100-x8",
        "pins": {"tp": "2"},
        "max": {"pp": 4},
        "only": {"zero": ["1", "3"]},
        "set": {"pools.0.nodes": "2"},
        "objective": "cost",
        "step_limit_s": 2.5,
        "pareto": ["step_time", "memory"],
        "top": 5,
    }
    assert question_command(question) == (
        "planner solve llama3-8b h100-x8 --pin tp=2 --max pp=4 --set pools.0.nodes=2"
        " --only zero=1,3 --objective cost --step-limit 2.5 --pareto step_time,memory --top 5"
    )
    plain = question_command({"model": "llama3-8b", "cluster": "h100-x8", "pins": {"sp": True}})
    assert plain == "planner solve llama3-8b h100-x8 --pin sp=true --top 64"
    assert question_command({**question, "model": {"text": "..."}}) == ""
    assert "'a; rm -r'" in question_command({"model": "a; rm -r", "cluster": "c"})


@pytest.mark.slow
def test_the_page_is_written_by_a_worker():
    from service.handlers.running_call import RunningCall
    from service.pages.calls import CALLS
    from service.pages.views.plan import PAGE_CALLS

    asked = {
        "evaluate": {"model": "llama3-8b", "cluster": "h100-x8", "pins": {"tp": 2}},
        "trace_link": "/p/ui/plan/trace?x=<",
    }
    call = PAGE_CALLS["page-plan"]
    assert CALLS["page-plan"] is call
    found = call.function(call.request.model_validate(asked), RunningCall())
    assert found["plan_id"] in found["body"]
    assert "<code>planner trace</code> writes every block" in found["body"]
    assert 'href="/p/ui/plan/trace?x=&lt;"' in found["body"]
    json.dumps(found, allow_nan=False)
    trace = PAGE_CALLS["page-plan-trace"]
    asked.pop("trace_link")
    written = trace.function(trace.request.model_validate(asked), RunningCall())
    assert json.loads(written["text"])["otherData"]["plan"] == found["plan_id"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "question", "rank"),
    [
        ("pin=zero%3D1,mbs%3D1", {"pins": {"zero": "1", "mbs": "1"}}, 7),
        ("pareto=step_time,memory", {"pareto": ["step_time", "memory"]}, 30),
    ],
    ids=["the last layout", "far down a front"],
)
def test_the_commands_of_the_page_work_for_every_plan_that_it_lists(
    asked, question, rank, tmp_path, monkeypatch
):
    from service.pages.views.plan import question_command
    from tests.planner.command import run_here
    from tests.service.pages.inline import page, text

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    address = f"model=llama3-8b&cluster=h100-x8&{asked}"
    found = html.unescape(text(page(f"/ui/plan?{address}&plan={rank}")))
    printed = re.findall(r'<code id="command-\d+">([^<]+)</code>', found)
    assert printed[0] == question_command({"model": "llama3-8b", "cluster": "h100-x8", **question})
    named = {command.split()[1] for command in printed if "last#" in command}
    assert named >= {"show", "explain", "emit", "place", "trace"}
    plan_id = re.search(r"last#(\w+)", found)[1]
    for command in printed:
        ran = run_here(*shlex.split(command)[1:])
        assert ran.returncode == 0, (command, ran.stderr)
    assert plan_id in run_here("show", f"last#{plan_id}").stdout
    assert (tmp_path / "plan.html").exists()
    assert (tmp_path / "step.json").exists()
    assert "`" not in re.sub(r"<script.*?</script>|<pre.*?</pre>", "", found, flags=re.DOTALL)


@pytest.mark.page
def test_no_line_parts_a_number_from_its_full_stop(page_at):
    """Browsers break lines beside buttons: what stands at one without a blank shares its line."""
    screen = page_at(ADDRESS, wait="#binds")
    parted = """() => [...document.querySelectorAll(".plan p button.num, .plan li button.num")]
        .filter((button) => /^[^\\s]/.test((button.nextSibling || {}).data || " "))
        .filter((button) => {
          const range = document.createRange();
          range.setStart(button.nextSibling, 0);
          range.setEnd(button.nextSibling, 1);
          return range.getBoundingClientRect().top > button.getBoundingClientRect().bottom - 3;
        }).map((button) => button.textContent)"""
    for width in range(340, 1400, 53):
        screen.page.set_viewport_size({"width": width, "height": 900})
        assert screen.page.evaluate(parted) == [], width


@pytest.mark.page
@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 1280), (False, 390)])
def test_figures_are_drawn(page_at, dark, width):
    screen = page_at(ADDRESS, dark=dark, width=width)
    page = screen.page
    page.wait_for_selector("#waterfall")
    screen.arrive()
    for key in FIGURES:
        page.locator(f"#{key}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#{key} .main-svg")
    screen.check()
    screen.shot(f"plan-{'dark' if dark else 'light'}-{width}")
    assert page.get_by_role("heading", level=1).count() == 1


@pytest.mark.page
def test_a_block_of_the_step_says_what_it_is_and_the_step_zooms(page_at):
    from playwright.sync_api import TimeoutError as Late

    screen = page_at(ADDRESS)
    page = screen.page
    screen.arrive()
    for key in FIGURES:  # all of them: one that is drawn later moves those below it
        page.locator(f"#{key}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#{key} .main-svg")
    place = """() => {
          const plot = document.querySelector("#timeline .plot"), full = plot._fullLayout;
          plot.scrollIntoView({block: "center", behavior: "instant"});
          const trace = plot.data.find((t) => t.hoveron === "points" && t.name === "backward");
          const x = full.xaxis._offset + full.xaxis.d2p(trace.x[0]);
          const y = full.yaxis._offset + full.yaxis.d2p(trace.y[0]);
          const box = plot.getBoundingClientRect();
          return [box.left + x, box.top + y];
        }"""
    text = page.locator("#timeline .hovertext")
    deadline = time.monotonic() + 60
    while not text.count() and time.monotonic() < deadline:
        page.mouse.move(0, 0)
        x, y = page.evaluate(place)
        page.mouse.move(x - 1, y)
        page.mouse.move(x, y)
        with contextlib.suppress(Late):
            text.first.wait_for(state="attached", timeout=2_000)
    said = text.first.text_content()
    assert re.search(r"[FB]\d+(\.\d)? on stage \d: [\d.]+ ms from", said)
    span = """() => { const [a, b] = document.querySelector("#timeline .plot").layout.xaxis.range;
              return b - a; }"""
    whole = page.evaluate(span)
    page.get_by_role("button", name="Closer").focus()
    page.keyboard.press("Enter")
    shown = f"(wanted) => Math.abs(({span})() / wanted - 1) < 1e-6"
    page.wait_for_function(shown, arg=whole / 2)
    page.get_by_role("button", name="Whole step").click()
    page.wait_for_function(shown, arg=whole)
    assert not screen.complaints


@pytest.mark.page
def test_it_says_first_what_binds_and_its_numbers_open(page_at):
    screen = page_at(ADDRESS, wait="#binds")
    page = screen.page
    binds = page.locator("#binds")
    first = "(each) => each.compareDocumentPosition(document.getElementById('time'))"
    assert binds.evaluate(first) == 4  # DOCUMENT_POSITION_FOLLOWING
    assert re.search(r"\w+, [\d.]+% of the step", binds.locator(".says").text_content())
    binds.locator("summary").click()
    for button in binds.locator("button.num").all()[:40]:
        button.click()
        card = page.locator(f"#{button.get_attribute('popovertarget')}")
        card.wait_for(state="visible")
        assert card.locator(".value").text_content().strip()
        page.keyboard.press("Escape")
        card.wait_for(state="hidden")
    names = page.locator(".facts dt").all_text_contents()
    place = names.index("Model FLOPs utilization")
    assert names[place + 1] == "Hardware FLOPs utilization"
    assert not screen.complaints


@pytest.mark.page
@pytest.mark.parametrize("script", [True, False])
def test_numbers_open_by_keyboard_and_ranks_take_colours(page_at, script):
    screen = page_at(ADDRESS, script=script, wait="#waterfall")
    page = screen.page
    page.locator(".facts button[popovertarget=card-step-time]").first.focus()
    page.keyboard.press("Enter")
    card = page.locator("#card-step-time")
    card.wait_for(state="visible")
    assert "costmodels.breakdown" in card.locator(".source").text_content()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Close
    card.wait_for(state="hidden")
    assert page.locator(".a-tp").first.is_visible()
    page.get_by_role("radio", name="pp").check()
    assert page.locator(".a-pp").first.is_visible()
    assert not page.locator(".a-tp").first.is_visible()
    page.locator("#memory summary").click()
    assert page.locator("#memory tr.marked").count() == 1
    assert not screen.complaints


@pytest.mark.page
def test_the_timeline_zooms_to_one_micro_batch_and_back(page_at):
    screen = page_at(ADDRESS, wait="#drawn")
    page = screen.page
    page.locator("#drawn").scroll_into_view_if_needed()
    screen.arrive()
    page.wait_for_selector("#timeline .plot[data-drawn]")
    shown = "() => document.querySelector('#timeline .plot').layout.xaxis.range"
    span = "() => 1.5 * document.querySelector('#timeline .plot').given.layout.meta.micro_batch"
    low, high = page.evaluate(shown)
    page.get_by_role("button", name="One micro-batch").click()
    near, far = page.evaluate(shown)
    assert far - near == pytest.approx(page.evaluate(span))
    width = page.locator("[data-minimap] i").evaluate("(each) => parseFloat(each.style.width)")
    assert width == pytest.approx(100 * (far - near) / (high - low), rel=0.1)
    page.get_by_role("button", name="Whole step").click()
    assert page.evaluate(shown) == pytest.approx([low, high])
    assert not screen.complaints


@pytest.mark.page
def test_files_and_the_trace_are_downloaded(page_at):
    screen = page_at(ADDRESS, wait="#run")
    page = screen.page
    with page.expect_download() as found:
        page.locator("a", has_text="Download the trace").click()
    with open(found.value.path(), encoding="utf-8") as file:
        trace = json.load(file)
    assert found.value.suggested_filename == f"{trace['otherData']['plan']}-step.json"
    with page.expect_download() as found:
        page.locator(".file a").first.click()
    with open(found.value.path(), encoding="utf-8") as file:
        assert file.read() == page.locator(".file pre code").first.text_content()
    assert not screen.complaints


@pytest.mark.page
def test_an_address_without_a_question_or_with_a_wrong_plan(page_at):
    screen = page_at("/ui/plan")
    screen.check()
    assert screen.page.get_by_role("link", name="An example").count() == 1
    screen = page_at(f"{ADDRESS[:-1]}<script>", wait="main")
    assert "is no rank and no plan id" in screen.page.locator("main").text_content()
