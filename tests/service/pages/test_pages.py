"""Pages as functions of their address, computed in this process."""

import asyncio
import html
import json
import re

import pytest

from service.handlers.problems import Refusal
from service.pages.examples import examples, gpus, said_first, sweeps
from service.pages.question import name_of, question_query
from service.pages.render import json_in_script
from service.pages.views.solve import draft_of, request_of, upload_name
from service.pages.views.sweeps import REPORT_CALL
from tests.service.pages.inline import Answering, form, page, text, visit
from tests.test_readme import ROOT

HOSTILE = "x\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}\u202e%{x}"
QUESTION = "model=llama3-8b&cluster=h100-x8&pin=tp%3D1,zero%3D1,mbs%3D1&top=30"
"""A small one."""


def scripts(html: str) -> list[str]:
    """Return the script elements that are no data."""
    return [
        tag for tag in re.findall(r"<script[^>]*>", html) if 'type="application/json"' not in tag
    ]


def test_the_first_page_names_all_views():
    found = text(page("/ui"))
    for title in (
        "New search",
        "Plans",
        "One plan",
        "Compare",
        "Sweeps",
        "Catalogue",
        "Accuracy",
        "Learn",
    ):
        assert f">{title}</a>" in found


def test_plans_of_a_question():
    found = text(page(f"/ui/plans?{QUESTION}"))
    assert "llama3-8b</bdi> on" in found
    assert "tp=1" in found
    assert found.count('name="plan"') > 3
    assert "Why it is first" in found
    assert len(scripts(found)) == 1  # ours; it loads Plotly when a figure is seen
    again = text(page(f"/ui/plans?{QUESTION}"))
    assert again == found


def test_plans_sorted_and_filtered_by_the_address():
    base = f"/ui/plans?{QUESTION}"
    found = text(page(f"{base}&sort=memory&desc=1&filter=zero%3D1"))
    rows = re.findall(r"<tr[^>]*><td[^>]*><input.*?</tr>", found)
    assert rows
    assert 'aria-sort="descending"' in found
    heads = re.findall(r'<th scope="col"([^>]*)><a class="sort" data-sort="([\w-]+)"', found)
    place = [key for more, key in heads if "hidden" not in more].index("memory") + 1
    memory = [
        float(re.findall(r"<t[dh].*?</t[dh]>", row)[place].split(">")[1].split("<")[0])
        for row in rows
    ]
    assert memory == sorted(memory, reverse=True)


def test_plans_without_a_question_say_how_to_ask():
    assert "It needs a model and a cluster first" in text(page("/ui/plans"))


def test_the_answer_as_files_is_that_of_the_command_line():
    from planner.render.answers.plan_table import plans_csv
    from planner.solver.solve import solve

    pins = {"tp": 1, "zero": 1, "mbs": 1}
    result = solve("llama3-8b", "h100-x8", top=30, pins=pins)
    assert text(page(f"/ui/plans.csv?{QUESTION}")) == plans_csv(result)
    assert text(page(f"/ui/plans.json?{QUESTION}")) == result.dumps()


# The form


def test_a_form_asks_what_the_question_it_shows_asks():
    request = {
        "model": "llama3-8b",
        "cluster": {"text": "name: x\n", "name": "c.yaml"},
        "top": 200,
        "pins": {"tp": "8", "recompute": "full", "split": "even"},
        "only": {"mbs": ["1", "2"]},
        "max": {"pp": 4, "sp": 1},
        "set": {"training.global_batch": "64"},
        "objective": "cost",
        "deadline": "30d",
        "within": 1.1,
        "pareto": ["step_time", "memory"],
    }
    assert request_of(draft_of(request)) == request


def test_a_form_that_is_right_leads_to_the_plans():
    found = page(
        "/ui/solve",
        "POST",
        form=form(
            model_source="example",
            model_example="llama3-8b",
            cluster_source="example",
            cluster_example="h100-x8",
            axis_tp="<= 4",
            axis_mbs="1, 2",
            more="split=even",
            set="training.global_batch=64\r\n",
            top="64",
            do="solve",
        ),
    )
    assert found.status == 303
    assert found.headers["location"] == (
        "/ui/plans?model=llama3-8b&cluster=h100-x8&pin=split%3Deven&max=tp%3D4"
        "&set=training.global_batch%3D64&only=mbs%3D1%2C2"
    )


def test_four_fields_ask_for_plans():
    asked = form(
        model_example="llama3-8b",
        cluster_gpu="h100",
        cluster_count="1,024",
        seq="4096",
        batch="512",
    )
    found = page("/ui/solve", "POST", form=asked)
    address = found.headers["location"]
    assert (found.status, address) == (
        303,
        "/ui/plans?model=llama3-8b&cluster=1024xh100&set=training.seq_len%3D4096"
        "&set=training.global_batch%3D512",
    )
    back = text(page(address.replace("/ui/plans", "/ui/solve")))
    for field, value in (
        ("model_example", "llama3-8b"),
        ("cluster_gpu", "h100"),
        ("cluster_count", "1024"),
        ("seq", "4096"),
        ("batch", "512"),
    ):
        assert re.search(rf'name="{field}"[^>]* value="{value}"', back)
    assert '<details class="advanced">' in back


def test_an_uploaded_config_on_64_gpus_takes_three_fields():
    from service.pages.visit import Upload

    config = (ROOT / "examples/imports/mixtral-8x7b-config.json").read_text()
    files = {"model_file": Upload("config.json", config)}
    sent = form(model_source="example", cluster_gpu="H100", cluster_count="64", do="solve")
    found = page("/ui/solve", "POST", form=sent, files=files)
    assert found.status == 303
    asked = visit(found.headers["location"]).question()
    assert asked is not None
    assert asked["cluster"] == "64xH100"
    assert asked["model"] == {"text": config, "name": "config.json"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cluster_gpu": "h101", "cluster_count": "64"}, "did you mean h100"),
        ({"cluster_gpu": "h100", "cluster_count": "63"}, "56 or 64"),
        ({"cluster_gpu": "h100", "cluster_count": "many"}, "is no number of GPUs"),
        ({"cluster_gpu": "", "cluster_count": "8"}, "is no name of a GPU"),
        ({"cluster_gpu": "h100", "cluster_count": "8", "model_example": "lama3-8b"}, "llama3-8b"),
        ({"cluster_gpu": "h100", "cluster_count": "8", "seq": "long"}, "training.seq_len"),
    ],
)
def test_unknown_names_and_counts_are_said_with_what_exists(fields, words):
    asked = {"model_example": "llama3-8b", **fields}
    found = page("/ui/solve", "POST", form=form(**asked))
    assert found.status == 422
    assert words in html.unescape(text(found))
    for name, value in asked.items():
        assert re.search(rf'name="{name}"[^>]* value="{value}"', text(found))


def test_every_gpu_of_the_list_is_understood():
    for name, _ in gpus():
        read = Answering().call("check-spec", {"document": f"16x{name}"}, visit("/ui").caller)
        assert json.loads(asyncio.run(read).payload)["kind"] == "cluster"


def test_a_text_that_is_wrong_is_shown_with_its_line():
    found = page(
        "/ui/solve",
        "POST",
        form=form(
            model_source="text",
            model_text="model:\r\n  name: x\r\n  layres: 3\r\n",
            do="solve",
            cluster_source="example",
            cluster_example="h100-x8",
        ),
    )
    assert found.status == 422
    shown = text(found)
    assert "line 3" in shown
    assert "layres: 3" in shown
    assert 'aria-invalid="true"' in shown


WRONG = {"axis_zero": "5", "deadline": "tomorrow", "set": "foo=1"}
OWN = (ROOT / "examples/imports/mixtral-8x7b-config.json").read_text().rstrip()


def faults_beside(html):
    """Return what stands beside each field that is wrong, and which fields are marked."""
    said = re.findall(r'<span class="problem" id="fault-(\w+)"[^>]*>([^<]+)', html)
    marked = re.findall(r'name="(\w+)"[^>]*aria-describedby="[^"]*" aria-invalid="true"', html)
    return dict(said), set(marked)


@pytest.mark.parametrize("do", ["solve", "check"])
def test_a_wrong_pin_brings_the_form_back_as_it_was_filled_in(do):
    from service.pages.visit import Upload

    sent = form(
        **WRONG,
        model_source="text",
        model_text=OWN,
        cluster_source="example",
        cluster_example="p5e-x128",
        axis_tp="<= 4",
        more="split=even",
        top="200",
        objective="energy",
        do=do,
    )
    file = Upload("dir/mine.json", f"{OWN}\n\n")
    for files, model in (({}, OWN), ({"model_file": file}, file.text)):
        found = page("/ui/solve", "POST", form=sent, files=files)
        shown = text(found)
        assert found.status == 422
        said, marked = faults_beside(shown)
        assert {name: words.strip() for name, words in said.items()} == {
            "axis_zero": "zero is at most 3, not 5",
            "deadline": "&#39;tomorrow&#39; is not a time",
            "set": "foo=1: unknown key &#39;foo&#39;",
        }
        assert marked == said.keys()
        kept = html.unescape(shown)
        assert f">\n{model}</textarea>" in kept
        assert ">\nfoo=1</textarea>" in kept
        for field, value in (
            ("axis_zero", "5"),
            ("axis_tp", "<= 4"),
            ("deadline", "tomorrow"),
            ("more", "split=even"),
        ):
            assert re.search(f'name="{field}" value="{re.escape(value)}"', kept)
        assert re.search('name="cluster_example"[^>]* value="p5e-x128"', kept)
        for chosen in ("energy", "200"):
            assert re.search(rf'<option[^>]*"?{chosen}"? selected|<option selected>{chosen}', kept)
    assert 'data-read="model">mine.json<' in kept


def test_contradicting_pins_are_said_and_none_is_dropped():
    asked = form(
        model_source="example",
        model_example="llama3-8b",
        cluster_source="example",
        cluster_example="h100-x8",
        axis_tp="4",
        more="tp=8",
        do="solve",
    )
    found = page("/ui/solve", "POST", form=asked)
    assert found.status == 422
    assert "tp is pinned to 4 and to 8" in text(found)
    for address, words in (
        ("pin=tp%3D8&pin=tp%3D4", "tp is pinned to 8 and to 4"),
        ("max=pp%3D8,pp%3D4", "pp is bounded by 8 and by 4"),
    ):
        with pytest.raises(Refusal, match=words):
            page(f"/ui/plans?model=llama3-8b&cluster=h100-x8&{address}")
        shown = text(page(f"/ui/solve?model=llama3-8b&cluster=h100-x8&{address}"))
        assert words in shown  # and the form holds both, to be changed
        assert re.search(r'name="more" value="[tp]p(=|&lt;=)8 [tp]p(=|&lt;=)4"', shown)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"axis_tp": "8", "more": "tp<=4"}, "more", "tp=8 and tp<=4 contradict each other"),
        ({"objective": "cost"}, "objective", "cost needs a price"),
        ({"deadline": "30d", "set": "training.tokens=null"}, "deadline", "needs the tokens"),
        ({"within": "1.05"}, "within", "Allowed slowdown belongs to Objective memory"),
        ({"objective": "energy", "pareto": "step_time,memory"}, "pareto", "ask for two answers"),
        ({"step_limit_s": "soon"}, "step_limit_s", "'soon' is not a number"),
        ({"pool": "b200"}, "pool", "the cluster has no pool 'b200'"),
        ({"more": "dp_shard=7"}, "more", "cuts the 8 ranks"),
        ({"axis_devices": "3"}, "axis_devices", "leaves no number of devices"),
        ({"axis_schedule": "zb-h1"}, "axis_schedule", "schedule zb-h1 is not searched"),
        ({"set": "pools.0.nodes=few"}, "set", "expected a whole number"),
        ({"set": "nodes"}, "set", "'nodes' is not PATH=VALUE"),
        ({"more": "nonsense"}, "more", "is not AXIS=VALUE"),
    ],
)
def test_pins_limits_and_changes_are_checked_while_typing(fields, field, words):
    sent = {
        "model_source": "example",
        "model_example": "llama3-8b",
        "cluster_source": "example",
        "cluster_example": "h100-x8",
        **fields,
    }
    body = json.dumps({"kind": "form", "fields": sent}).encode()
    answer = json.loads(text(page("/ui/check", "POST", body=body)))
    assert [fault["field"] for fault in answer["faults"]] == [field]
    assert words in answer["faults"][0]["message"]
    assert "--" not in answer["faults"][0]["message"] + answer["faults"][0]["fix"]


def test_what_a_search_takes_is_right_while_typing_and_for_check_only():
    fields = {
        "model_source": "example",
        "model_example": "llama3-8b",
        "axis_tp": "1, 2",
        "cluster_source": "example",
        "cluster_example": "h100-x8",
        "axis_pp": "<=2",
        "more": "split=even",
        "set": "pools.0.nodes=2\n",
        "objective": "memory",
        "within": "1.1",
        "axis_recompute": "full",
    }
    body = json.dumps({"kind": "form", "fields": fields}).encode()
    assert json.loads(text(page("/ui/check", "POST", body=body))) == {"faults": [], "looked": True}
    found = page("/ui/solve", "POST", form=form(**fields, do="check"))
    assert found.status == 200
    assert "changed fields: no problems found" in text(found)
    empty = json.dumps({"kind": "form", "fields": {}}).encode()
    assert json.loads(text(page("/ui/check", "POST", body=empty))) == {
        "faults": [],
        "looked": False,
    }


def test_an_uploaded_config_is_read_as_the_command_line_reads_it(tmp_path):
    from planner.specs.loader import load_model
    from service.pages.visit import Upload

    path = ROOT / "examples/imports/mixtral-8x7b-config.json"
    found = page(
        "/ui/solve",
        "POST",
        form=form(
            model_source="example",
            cluster_source="example",
            cluster_example="p5e-x128",
            do="check",
        ),
        files={"model_file": Upload("../dir/mixtral-8x7b-config.json", path.read_text())},
    )
    assert found.status == 200
    shape = load_model(path).shape
    assert f"{shape.layers} layers" in text(found)
    assert text(found).count("assumed training.seq_len = ") == 1
    assert 'data-read="model">mixtral-8x7b-config.json<' in text(found)


def test_a_cluster_in_the_place_of_a_model_is_said():
    found = page(
        "/ui/solve",
        "POST",
        form=form(
            model_source="text",
            model_text="name: x\npools:\n- {instance: p5.48xlarge, nodes: 2}\n",
            cluster_source="example",
            cluster_example="h100-x8",
            do="solve",
        ),
    )
    assert found.status == 422
    assert "this describes a cluster, and a model is wanted here" in text(found)


def test_texts_that_name_files_and_addresses_are_refused():
    for name in ("/etc/passwd", "http://127.0.0.1/x.yaml", "../x.yaml"):
        asked = page(
            "/ui/check",
            "POST",
            body=json.dumps({"kind": "model", "source": "example", "example": name}).encode(),
        )
        assert json.loads(text(asked))["problem"]["code"] == "path-or-url"
    assert upload_name("../../etc/pass wd") == "pass_wd"
    assert upload_name("..") == ""


def test_the_check_while_typing():
    good = page(
        "/ui/check",
        "POST",
        body=json.dumps({"kind": "model", "source": "example", "example": "llama3-8b"}).encode(),
    )
    assert "no problems found" in json.loads(text(good))["summary"]
    bad = page(
        "/ui/check",
        "POST",
        body=json.dumps({"kind": "model", "source": "text", "text": "model:\n\tx: 1"}).encode(),
    )
    assert json.loads(text(bad))["problem"]["errors"][0]["line"] == 2
    with pytest.raises(Refusal):
        page("/ui/check", "POST", body=b'{"kind": "other"}')


@pytest.mark.parametrize("kind", ["model", "cluster"])
def test_the_chosen_example_is_edited_and_nothing_else_of_the_form_is_lost(kind):
    name = examples(kind)[0][0]
    sent = {f"{kind}_example": name, "axis_tp": "4", "do": f"edit-{kind}"}
    found = text(page("/ui/solve", "POST", form=form(**sent)))
    assert f'value="{name}.yaml"' in found
    assert re.search(r'name="axis_tp" value="4"', found)
    assert f'name="{kind}_source" value="text" checked' in found
    unknown = text(page("/ui/solve", "POST", form=form(**sent | {f"{kind}_example": "../x"})))
    assert f'name="{kind}_source" value="example" checked' in unknown


@pytest.mark.parametrize("kind", ["model", "cluster"])
def test_an_example_can_be_edited(kind):
    found = text(page(f"/ui/solve?model=llama3-8b&cluster=h100-x8&edit={kind}"))
    assert ("training:" in found) == (kind == "model")
    assert ("fabric:" in found) == (kind == "cluster")


# Hostile names


@pytest.mark.parametrize("path", ["/ui/plans", "/ui/solve"])
def test_names_of_users_are_text(path):
    cluster = (
        f"name: {json.dumps(HOSTILE)}\npools:\n- {{name: {json.dumps(HOSTILE)}, accelerator: "
        "h100-sxm-80gb, nodes: 1, accelerators_per_node: 8, nic: ib-ndr-400, nics_per_node: 8}\n"
    )
    query = question_query(
        {
            "model": "llama3-8b",
            "cluster": {"text": cluster},
            "top": 5,
            "pins": {"tp": 1, "zero": 1},
        }
    )
    address = f"{path}?" + "&".join(f"{key}={value}" for key, (value, *_) in query.items())
    try:
        found = text(page(address))
    except Refusal as problem:
        from service.pages.render import render_page

        found = render_page(visit(address), "problem.html.j2", problem=problem)
    assert "<script>alert" not in found
    assert "<img src=x" not in found
    assert "49" not in re.findall(r"<h1>.*?</h1>", found)[0]
    assert all("/ui/static/" in tag for tag in scripts(found))


def test_hostile_parameters_are_text():
    from urllib.parse import quote

    for name in ("filter", "sort", "try"):
        found = text(page(f"/ui/plans?{QUESTION}&{name}={quote(HOSTILE)}"))
        assert "<script>alert" not in found
        assert "<img src=x" not in found


def test_json_in_a_script_ends_no_script():
    assert json.loads(json_in_script({"a": HOSTILE})) == {"a": HOSTILE}
    assert not set("<>&") & set(json_in_script({"</script>": "<!--&"}))


# Sweeps

SPEC = "name: nodes\nmodel: llama3-8b\ncluster: h100-x8\nvary:\n  pools.0.nodes: [1, 2]\n"


def test_a_sweep_is_checked_with_its_lines_and_submitted():
    bad = page(
        "/ui/sweeps/check",
        "POST",
        body=json.dumps(
            {"source": "text", "text": SPEC.replace("nodes: [", "nodess: [")}
        ).encode(),
    )
    fault = json.loads(text(bad))["problem"]["errors"][0]
    assert (fault["line"], fault["fix"]) == (5, "did you mean pools.0.nodes?")
    found = page("/ui/sweeps", "POST", form=form(sweep_source="text", sweep_text=SPEC, do="check"))
    assert "points: 2" in text(found)
    with_file = form(sweep_source="text", sweep_text="calibration: /etc/x\n" + SPEC)
    refused = page("/ui/sweeps", "POST", form=with_file)
    assert refused.status == 422


def test_all_packaged_sweeps_are_offered_and_right():
    for name, said in sweeps():
        assert said
        found = page(
            "/ui/sweeps/check",
            "POST",
            body=json.dumps({"source": "example", "example": name}).encode(),
        )
        assert "points:" in json.loads(text(found))["summary"], name


@pytest.mark.slow
def test_a_sweep_is_drawn_with_the_charts_of_reports():
    from service.handlers.calls import call

    answer = call(
        "sweep",
        {
            "spec": {
                "model": "llama3-8b",
                "cluster": "h100-x8",
                "vary": {"pools.0.nodes": [1, 2, 4]},
            }
        },
    )
    report = call(REPORT_CALL, {"result": answer})
    assert "Fastest" in report["headline"] or "fastest" in report["headline"]
    assert len(report["lead"]) == 3
    assert report["lead_chart"]["key"] == "lead"
    keys = [section["key"] for section in report["sections"]]
    assert "axes" in keys
    assert report["points"]["n_rows"] == 3
    assert report["csv"].count("\n") == 4
    json.dumps(report, allow_nan=False)
    with pytest.raises(Refusal):
        call(REPORT_CALL, {"result": {"rows": [1]}})


# Words


def test_first_sentences_and_names():
    assert said_first("# Llama 3 8B. Architecture: x\nmodel: 1") == "Llama 3 8B"
    assert said_first("name: x") == ""
    assert name_of({"text": "model:\n  name: my-model  # x\n"}, "model") == "my-model"
    assert name_of({"text": "a: b", "name": "f.yaml"}, "model") == "f.yaml"
    assert name_of({"text": "a: b"}, "model") == "your model"
    assert all(said for kind in ("model", "cluster") for _, said in examples(kind))


def test_calls_of_pages_are_no_part_of_the_interface():
    from service.handlers.calls import CALLS, PAGE_CALLS
    from service.rest.openapi import openapi_text

    assert PAGE_CALLS
    assert all(name.startswith("page-") for name in PAGE_CALLS)
    assert not set(PAGE_CALLS) & set(CALLS)
    assert "page-" not in openapi_text()
    assert Answering().cached("x", b"", None) is None  # type: ignore[arg-type]
