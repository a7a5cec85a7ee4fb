"""Learn in a browser: forms that answer, faults beside their fields, with and without script."""

import re

import pytest

pytestmark = pytest.mark.page


def value_of(page, title):
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=title, exact=True))
    return row.locator("td").first.inner_text()


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 390)])
def test_the_list_leads_to_every_calculator(page_at, dark, width):
    screen = page_at("/ui/learn", dark=dark, width=width)
    screen.shot(f"learn-{'dark' if dark else 'light'}-{width}")
    assert screen.page.locator("main .cards a").count() == 15
    screen.check()
    screen.page.get_by_role("link", name="Pipeline modeler").click()
    assert screen.page.get_by_role("heading", level=1).inner_text() == "Pipeline modeler"


@pytest.mark.parametrize(
    ("path", "dark", "width"),
    [
        ("pipeline", False, 1280),
        ("overlap", True, 1280),
        ("collectives?collective=all-to-all&ranks=64", True, 390),
        ("compression", False, 390),
        ("memory?ranks=0&params=abc&nonsense=1", False, 1280),
    ],
)
def test_calculators_are_whole_and_accessible(page_at, path, dark, width):
    screen = page_at(f"/ui/learn/{path}", dark=dark, width=width)
    if "nonsense" not in path:
        screen.arrive()
        for plot in screen.page.locator(".plot").all():
            plot.scroll_into_view_if_needed()
        screen.page.wait_for_function(
            "() => [...document.querySelectorAll('.plot')].every((x) => x.querySelector('svg'))"
        )
    screen.shot(f"learn-{path.split('?')[0]}-{'dark' if dark else 'light'}-{width}")
    screen.check()


def test_results_follow_sliders_and_keys_and_the_address_holds_them(page_at):
    screen = page_at("/ui/learn/pipeline")
    page = screen.page
    assert value_of(page, "Bubble, share of the step") == "27.27 %"
    screen.arrive()
    page.wait_for_selector(".plot svg")
    slider = page.get_by_role("slider", name="Stages, slider", exact=True)
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile(r"\?stages=6$"))
    assert page.get_by_label("Stages", exact=True).input_value() == "6"
    assert value_of(page, "Bubble, share of the step") == "38.46 %"
    page.get_by_label("Micro-batches", exact=True).fill("40")
    page.wait_for_url(re.compile(r"micro_batches=40"))
    assert value_of(page, "Bubble, share of the step") == "11.11 %"
    assert "11.11 %" in page.locator("[data-announce]").inner_text()
    page.get_by_label("Schedule", exact=True).select_option("gpipe")
    page.wait_for_url(re.compile(r"schedule=gpipe"))
    assert value_of(page, "Micro-batches held at the peak") == "40"
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert value_of(page, "Bubble, share of the step") == "11.11 %"
    assert page.get_by_label("Stages", exact=True).input_value() == "6"
    screen.check()


def test_a_fault_stands_beside_its_field_and_goes_again(page_at):
    screen = page_at("/ui/learn/tensor-parallel")
    page = screen.page
    field = page.get_by_label("Tensor-parallel size t", exact=True)
    for text, said in (
        ("-8", "out of range"),
        ("nan", "finite"),
        ("eight", "not a number"),
        ("<img src=x onerror=alert(1)>", "not a number"),
    ):
        field.fill(text)
        page.wait_for_function(
            "said => document.getElementById('tp-problem').textContent.includes(said)", arg=said
        )
        assert field.get_attribute("aria-invalid") == "true"
        assert page.locator("[data-headline]").inner_text().startswith("No result")
    field.fill("4")
    page.wait_for_selector("#numbers-title")
    assert page.locator("#tp-problem").inner_text() == ""
    assert field.get_attribute("aria-invalid") is None
    page.get_by_label("Device", exact=True).select_option("a100-sxm-80gb")
    page.wait_for_selector("#peak_flops_per_s[placeholder='312']")
    screen.check()


def test_a_figure_that_a_newer_answer_replaced_is_not_drawn(page_at):
    # The library of figures is large: what asked for it may be gone when it comes.
    screen = page_at("/ui/learn/volumes")
    page = screen.page
    held = []
    page.route("**/*plotly*", lambda route: held.append(route))
    page.goto(f"{screen.served.address}/ui/learn/tensor-parallel")
    page.wait_for_selector("html[data-ready]", state="attached")
    page.locator("main .plot").first.scroll_into_view_if_needed()
    screen.arrive()
    page.wait_for_function("() => document.querySelector('script[src*=plotly]')")
    field = page.get_by_label("Tensor-parallel size t", exact=True)
    field.fill("eight")
    page.wait_for_function(
        "() => document.querySelector('[data-headline]').innerText.startsWith('No result')"
    )
    for each in held:
        each.continue_()
    page.wait_for_function("() => window.Plotly")
    field.fill("4")
    page.wait_for_selector("#numbers-title")
    screen.draw()
    screen.check()


def test_without_javascript_it_is_a_form(page_at):
    screen = page_at("/ui/learn/buckets", script=False)
    page = screen.page
    assert page.locator("[data-slider]").first.is_hidden()
    page.get_by_label("Buckets k", exact=True).fill("4")
    page.get_by_role("button", name="Calculate").click()
    assert "buckets=4" in page.url
    assert value_of(page, "A bucket") == "125 MB"
    assert page.get_by_role("heading", name="Where common formulas differ, and why").is_visible()


def test_hostile_inputs_run_no_script(page_at):
    attack = "%22%3E%3Cscript%3Ealert(1)%3C/script%3E"
    screen = page_at(f"/ui/learn/volumes?model={attack}&{attack}=1&tp=%E2%80%AE8")
    assert "No result" in screen.page.locator("[data-headline]").inner_text()
    assert "<script>" not in screen.page.locator("main").inner_html().lower()
    screen.check()
    answer = screen.page.goto(f"{screen.served.address}/ui/learn/{attack}")
    assert answer.status == 404
