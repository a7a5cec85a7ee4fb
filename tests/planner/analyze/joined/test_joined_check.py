"""Runs over several pools, read back from the files that plans are written as."""

import json
import re
from dataclasses import replace

import pytest

import planner
from costmodels.axes import RANK_ORDERS
from planner.analyze.joined.check import plan_of_ranks, why_not_modelled
from planner.analyze.joined_files import joined_files, layout_of, rank_pools
from planner.errors import UsageError
from planner.render.document import text_of
from planner.solver.answer.result_store import joined_plan_of, plan_of_result
from planner.solver.together.opened import mixed_plan
from planner.specs.inputs import Content
from planner.specs.loader import model_from_dict
from service.handlers.calls import CALLS, call
from tests.planner.solver.together.tiny import MODEL, NEW, OLD, PINS, cluster

CLUSTER = cluster({**NEW, "hosts": "n01"}, {**OLD, "hosts": "o01"})


@pytest.fixture(scope="module")
def data():
    result = planner.solve(
        MODEL, CLUSTER, pins=PINS, top=6, executor="serial", pools="together", framework="megatron"
    )
    return result.to_json()


@pytest.fixture(scope="module")
def written(data):
    """Plans that are one grid on whole nodes, with their files."""
    plans = [joined_plan_of(data, f"t{x['rank']}") for x in data["together"]["plans"]]
    files = [(plan, joined_files(data, plan, ["megatron"], ["slurm"])) for plan in plans]
    return [(plan, texts) for plan, texts in files if "megatron.sh" in texts]


def checked(files, changed=CLUSTER, nodes=None, **more):
    beside = {"nodes.txt": files["nodes.txt"] if nodes is None else nodes}
    script = Content(files["megatron.sh"], "megatron.sh")
    more = {"stop": lambda: True, **more}  # without the search that it stands beside
    return planner.check(script, changed, files=beside, **more)


def test_what_is_written_is_priced_as_it_was(written):
    assert written
    for plan, files in written:
        report = checked(files)
        assert report.exit_code == 0
        assert report.refusals == ()
        found = report.joined.opened.plan
        assert found.step_time_s == pytest.approx(plan.step_time_s, rel=1e-9)
        assert found.devices == plan.devices
        for kind, other in zip(found.kinds, plan.kinds, strict=True):
            assert [x.peak_bytes for x in kind.stages] == pytest.approx(
                [x.peak_bytes for x in other.stages]
            )
            assert kind.time == pytest.approx(other.time)


def test_ranks_give_back_the_plan(data):
    """Also of plans that share nodes, or have several kinds."""
    model = model_from_dict(data["inputs"]["model"])
    for x in data["together"]["plans"]:
        plan = joined_plan_of(data, f"t{x['rank']}")
        names = list(plan.devices)
        for order in RANK_ORDERS:
            ranks = [names.index(name) for name in rank_pools(plan, order)]
            again = plan_of_ranks(layout_of(plan, model, order), ranks)
            kinds = {(k.stages, k.n_pipelines, k.n_sequences) for k in again.kinds}
            assert kinds == {
                (k.stages, k.n_pipelines, k.n_sequences) for k in mixed_plan(plan, names).kinds
            }


def test_a_stage_on_two_pools_is_not_priced(data):
    plan = joined_plan_of(data, "t1")
    wide = replace(layout_of(plan, model_from_dict(data["inputs"]["model"])), tp=2, dp=1)
    assert plan_of_ranks(wide, [0, 1, 0, 1]) is None


def test_other_nodes_give_another_price(written):
    plan, files = written[0]
    rows = [line.split()[1] for line in files["nodes.txt"].splitlines()]
    swapped = "".join(f"{i} {name}\n" for i, name in enumerate(reversed(rows)))
    found = checked(files, nodes=swapped).joined.opened.plan
    assert found.step_time_s > plan.step_time_s
    assert [x.pool for x in found.kinds[0].stages] == [x.pool for x in plan.kinds[0].stages][::-1]


def test_a_run_that_does_not_fit_says_which_stage(written):
    _, files = written[0]
    small = cluster(NEW, {**OLD, "accelerator": {"like": "a100-sxm-80gb", "memory": "3 GB"}})
    report = checked(files, small)
    assert report.exit_code == 3
    assert report.fits is False
    assert "does not fit: stage" in text_of(report)
    assert report.joined.fullest_stage.pool == "old"


def test_more_nodes_than_a_pool_has_are_said(written):
    _, files = written[0]
    nodes = "0 new\n1 new\n2 old\n3 old\n"
    script = files["megatron.sh"].replace("--nnodes 2", "--nnodes 4")
    report = checked({**files, "megatron.sh": script}, nodes=nodes)
    assert not report.enough
    assert report.exit_code == 3
    assert any("pool new has 1 nodes, the run starts on 2" in note for note in report.notes)
    fewer = checked(files, nodes=nodes)
    assert "names nodes for 8" in fewer.not_priced
    assert "not priced:" in text_of(fewer)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("0 new\n2 old\n", "line 2 is '2 old'"),
        ("0 new\n1 else\n", "no pool 'else'"),
        ("0\n", "line 1 is '0'"),
    ],
)
def test_a_wrong_list_is_refused(written, nodes, message):
    with pytest.raises(UsageError, match=message):
        checked(written[0][1], nodes=nodes)


def test_a_list_that_is_empty_or_cannot_be_read_is_one_error(written, tmp_path):
    with pytest.raises(UsageError, match=r"nodes.txt: it names no node"):
        checked(written[0][1], nodes="\n")
    script, path = tmp_path / "megatron.sh", tmp_path / "nodes.txt"
    script.write_text(written[0][1]["megatron.sh"])
    path.write_text("")
    with pytest.raises(UsageError, match=f"{path}: it names no node"):
        planner.check(script, CLUSTER)
    path.write_bytes(b"0 new\n1 \xff\n")
    with pytest.raises(UsageError, match=f"{path}: the list of nodes cannot be read"):
        planner.check(script, CLUSTER)
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match=f"{path}: the list of nodes cannot be read"):
        planner.check(script, CLUSTER)


def test_pools_stand_in_one_order(written):
    plan, files = written[0]
    for own in (CLUSTER, {**CLUSTER, "pools": CLUSTER["pools"][::-1]}):
        assert list(checked(files, own).joined.opened.plan.devices) == list(plan.devices)


def test_without_a_list_a_pool_has_to_be_named(written):
    script = Content(written[0][1]["megatron.sh"], "megatron.sh")
    with pytest.raises(UsageError, match="has 2 pools"):
        planner.check(script, CLUSTER, files={})
    one = planner.check(script, CLUSTER, files={"nodes.txt": "0 new\n1 old\n"}, pool="new")
    assert one.plan is not None


def test_what_plans_over_several_pools_do_not_have_is_named(data):
    layout = layout_of(joined_plan_of(data, "t1"), model_from_dict(data["inputs"]["model"]))
    assert why_not_modelled("megatron", layout) == ""
    assert why_not_modelled("deepspeed", layout) == "a run of deepspeed"
    assert why_not_modelled("megatron", replace(layout, vpp=2)) == "2 chunks a rank"
    part = replace(layout, recompute="full", recompute_layers=1)
    assert why_not_modelled("megatron", part) == "recomputation of some layers"


def test_it_is_read_beside_the_script_and_through_the_service(written, tmp_path):
    plan, files = written[0]
    for name in ("megatron.sh", "nodes.txt"):
        (tmp_path / name).write_text(files[name])
    report = planner.check(tmp_path / "megatron.sh", CLUSTER)
    assert report.joined.opened.plan.step_time_s == pytest.approx(plan.step_time_s)
    body = {
        "run": {"text": files["megatron.sh"], "name": "megatron.sh"},
        "files": {"nodes.txt": files["nodes.txt"]},
        "cluster": CLUSTER,
        "with_text": True,
    }
    answer = call("check", body)
    CALLS["check"].answer.model_validate(answer)
    assert json.loads(json.dumps(report.to_json()["together"])) == answer["together"]
    assert "slowest stage:" in answer["text"]
    assert report._repr_html_()


def test_a_list_of_one_pool_says_to_name_it(written):
    _, files = written[0]
    nodes = files["nodes.txt"].replace(" new", " old").replace(" n01", " o01")
    with pytest.raises(UsageError, match="nodes of pool old alone"):
        checked(files, nodes=nodes)


def test_a_plan_that_is_not_there_is_told_the_names_of_those_over_several_pools(data):
    with pytest.raises(UsageError, match=r"ranks and ids: .*t1"):
        plan_of_result(data, "t99", "result.json")


@pytest.fixture(scope="module")
def slow(written):
    """A run that computes all activations again, and its report beside the plans found."""
    files = next(texts for plan, texts in written if len(plan.kinds) == 1)
    script = files["megatron.sh"]
    flags = "--recompute-granularity full --recompute-method block --recompute-num-layers 4"
    assert "--recompute" not in script
    changed = script.replace("--micro-batch-size", f"{flags} --micro-batch-size", 1)
    report = checked({**files, "megatron.sh": changed}, stop=None)
    return {**files, "megatron.sh": changed}, report


@pytest.fixture(scope="module")
def found():
    """The plans that the framework runs on the same nodes, no axis pinned."""
    asked = {"top": 20, "executor": "serial", "pools": "together", "framework": "megatron"}
    return planner.solve(MODEL, CLUSTER, **asked).to_json()


def test_a_run_is_ranked_among_the_plans_found(slow, found):
    _, report = slow
    standing, run = report.standing, report.joined.opened.plan
    steps = [x["step_time_s"] for x in found["together"]["plans"] if x["runs_on"]]
    assert standing.n_fit == len(steps)
    assert standing.joined.step_time_s == pytest.approx(min(steps))
    assert standing.rank == 1 + sum(x < run.step_time_s * (1 - 1e-9) for x in steps)
    least = min(standing.joined.step_time_s, standing.alone.step_time_s)
    assert standing.ratio == pytest.approx(run.step_time_s / least)
    assert standing.rank > 1
    assert standing.bound_s <= run.step_time_s
    assert "found over these pools" in " ".join(text_of(report).split())
    assert report.to_json()["standing"]["together"]["best"]["plan_id"] == standing.joined.plan_id


def test_the_best_of_the_plans_found_is_first(found):
    plan = joined_plan_of(found, "t1")
    report = checked(joined_files(found, plan, ["megatron"], ["torchrun"]), stop=None)
    assert report.standing.rank == 1
    assert report.standing.joined.plan_id == plan.plan_id
    assert report.joined.opened.plan.step_time_s == pytest.approx(plan.step_time_s)


def test_a_search_that_is_stopped_gives_no_rank(written):
    report = checked(written[0][1])
    assert report.standing.rank is None
    assert report.standing.stopped


def test_changes_make_the_run_faster_when_they_are_written(slow):
    files, report = slow
    assert report.changes
    first = report.changes[0]
    assert first.text.startswith("recompute full ->")
    assert first.gain_frac > 0.1
    steps = [x.step_s for x in report.changes]
    assert steps == sorted(steps)
    dropped = [x for x in first.settings if x.startswith("drop ")]
    script = files["megatron.sh"]
    for words in dropped:
        flag = words.removeprefix("drop ")
        script = re.sub(rf"{flag} \S+ ", "", script)
    again = checked({**files, "megatron.sh": script})
    if len(dropped) == len(first.settings):
        assert again.joined.opened.plan.step_time_s == pytest.approx(first.step_s)


def test_layers_move_to_the_faster_pool(written):
    files = next(texts for plan, texts in written if len(plan.kinds) == 1)
    assert "old" in files["nodes.txt"]
    nodes = "0 old\n1 new\n"
    script = files["megatron.sh"]
    report = checked({**files, "megatron.sh": script}, nodes=nodes)
    before = report.joined.opened.plan.kinds[0].stages
    moved = [x for x in report.changes if x.text.startswith("layers ")]
    times = [x.time_s for x in before]
    if max(times) > 1.2 * min(times):
        assert moved
        assert moved[0].layout.stage_layers != tuple(x.layers for x in before)
