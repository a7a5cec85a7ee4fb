"""Runs of sharded replicas, read back from the files that plans are written as."""

import json
from dataclasses import replace

import pytest

import planner
from planner.analyze.joined_files import joined_files
from planner.analyze.sharded.changes import variants
from planner.cli.files import write_files
from planner.client.requests import run_of
from planner.errors import SpecError, UsageError
from planner.frameworks.runs.replica_start import replica_start, start_in
from planner.render.document import text_of
from planner.solver.answer.result_store import joined_plan_of
from planner.specs.inputs import Content
from service.handlers.calls import CALLS, call
from tests.planner.analyze.sharded.conftest import JOB, NEW, OLD
from tests.planner.solver.together.tiny import cluster

CLUSTER = cluster(NEW, OLD)
START = "torchtitan.sh"


@pytest.fixture(scope="module")
def written(data):
    """Plans with their files."""
    plans = [joined_plan_of(data, f"t{x['rank']}") for x in data["together"]["plans"]]
    return [(plan, joined_files(data, plan, ["torchtitan"], ["slurm"])) for plan in plans]


def checked(files, changed=CLUSTER, start=START, **more):
    """Return the report of files, without the search that the run stands beside."""
    beside = {name: text for name, text in files.items() if name != start}
    more = {"stop": lambda: True, **more}
    return planner.check(Content(files[start], start), changed, files=beside, **more)


def with_text(files, name, old, new):
    assert old in files[name]
    return {**files, name: files[name].replace(old, new)}


def test_what_is_written_is_priced_as_it_was(written):
    for plan, files in written[:2]:
        report = checked(files)
        assert report.exit_code == 0
        assert report.refusals == ()
        found = report.joined.opened.plan
        assert found.step_time_s == pytest.approx(plan.step_time_s, rel=1e-9)
        assert found.devices == plan.devices
        assert found.shard == plan.shard
        for kind, other in zip(found.kinds, plan.kinds, strict=True):
            assert kind.time == pytest.approx(other.time, rel=1e-9)
            assert (kind.mbs, kind.n_micro, kind.pools) == (other.mbs, other.n_micro, other.pools)
            assert kind.stages[0].peak_bytes == pytest.approx(other.stages[0].peak_bytes)


def test_folder_and_script_say_the_same(written, tmp_path):
    _, files = written[0]
    write_files(tmp_path, files)
    asked = {"stop": lambda: True}
    by_folder = planner.check(str(tmp_path), CLUSTER, **asked)
    by_script = planner.check(str(tmp_path / START), CLUSTER, **asked)
    assert by_folder.to_json() == by_script.to_json()
    assert text_of(by_folder) == text_of(by_script)


@pytest.mark.slow
def test_the_service_ranks_it_among_the_plans_found(written, tmp_path):
    plan, files = written[0]
    write_files(tmp_path, files)
    sent = run_of(str(tmp_path))
    assert {"nodes.txt", "new/torchtitan.sh", "old/torchtitan_recipe.py"} <= set(sent["files"])
    body = {"text": files[START], "name": START}
    answer = call("check", {"run": body, "files": sent["files"], "cluster": CLUSTER})
    CALLS["check"].answer.model_validate(answer)
    step_s = plan.step_time_s
    assert answer["together"]["step_time_s"] == pytest.approx(step_s, rel=1e-9)
    # The plan is of pinned ones: among all others are faster.
    assert answer["standing"]["rank"] > 1
    assert answer["standing"]["together"]["best"]["step_time_s"] < step_s


def test_worse_batches_are_said_with_what_to_write(written):
    plan, files = next((x, y) for x, y in written if _is_even(x))
    ranks = sum(kind.n_pipelines for kind in plan.kinds) * plan.kinds[0].n_micro
    changed = dict(files)
    for kind, other in zip(plan.kinds, plan.kinds[::-1], strict=True):
        name = f"{kind.pools[0]}/torchtitan_recipe.py"
        for key, n in (("local", 1), ("global", ranks)):
            old, new = f"{key}_batch_size={n * kind.mbs},", f"{key}_batch_size={n * other.mbs},"
            changed = with_text(changed, name, old, new)
    report = checked(changed)
    assert report.joined.opened.plan.step_time_s > plan.step_time_s
    best = report.changes[0]
    assert best.step_s == pytest.approx(plan.step_time_s, rel=1e-9)
    for kind in plan.kinds:
        assert f"{kind.pools[0]}: training.local_batch_size = {kind.mbs}" in best.settings
    told = replica_start(files[START]).rank_batches
    assert f'{START}: --rank-batches "{told}"' not in best.settings
    assert any("losses of ranks would weigh wrong" in note for note in report.notes)
    assert text_of(report)


def _is_even(plan):
    """Tell whether batches may change places between the two kinds of a plan."""
    first, second = plan.kinds
    return first.n_pipelines == second.n_pipelines and first.mbs != second.mbs


def test_recomputation_that_is_not_needed_is_said(data, written):
    plan, _ = written[0]
    kind = plan.kinds[1]
    again = replace(kind, stages=(replace(kind.stages[0], recompute="full"),))
    changed = replace(plan, kinds=(plan.kinds[0], again))
    report = checked(joined_files(data, changed, ["torchtitan"], ["slurm"]))
    assert report.joined.opened.plan.step_time_s > plan.step_time_s
    texts = [x.text for x in report.changes]
    assert f"recompute full -> none in {kind.pools[0]}" in texts
    assert all(x.settings for x in report.changes)


def test_two_batches_on_one_pool_are_one_job(data, written):
    plan, _ = next((x, y) for x, y in written if x.kinds[0].n_pipelines == 2 * x.shard)
    first, second = plan.kinds
    # As where a batch does not divide: one replica of a pool takes one sequence more.
    parts = [
        replace(
            first,
            n_pipelines=first.n_pipelines // 2,
            mbs=first.mbs + more,
            n_sequences=first.n_pipelines // 2 * (first.mbs + more) * first.n_micro,
        )
        for more in (1, 0)
    ]
    files = joined_files(data, replace(plan, kinds=(*parts, second)), ["torchtitan"], ["slurm"])
    report = checked(files)
    found = report.joined.opened.plan
    assert found.devices == plan.devices
    assert [kind.mbs for kind in found.kinds] == [first.mbs + 1, first.mbs, second.mbs]
    assert found.step_time_s >= plan.step_time_s * (1.0 - 1e-9)
    assert report.joined.to_json()["together"]["kinds"][1]["n_replicas"] == 1
    assert text_of(report)


def test_variants_train_on_the_same_batch(plans):
    for opened in plans:
        plan = opened.sharded
        found = list(variants(plan, ["old", "new"], 2))
        assert {"mbs", "tp"} <= {x.axis for x in found}
        for one in found:
            assert one.plan.n_sequences == plan.n_sequences, one
            assert one.plan.pools == plan.pools
            for pool in plan.pools:
                assert one.plan.n_devices(pool) == plan.n_devices(pool), one
            assert all(kind.mbs > 0 for kind in one.plan.kinds)


def test_a_run_that_does_not_fit_says_on_which_pool(written):
    _, files = written[0]
    small = cluster(NEW, {**OLD, "accelerator": {"like": "a100-sxm-80gb", "memory": "6 GB"}})
    report = checked(files, small)
    assert report.exit_code == 3
    assert report.fits is False
    assert "does not fit: old" in text_of(report)


def test_kinds_that_are_no_one_job_are_not_priced(written):
    plan, files = written[0]
    recipe = "new/torchtitan_recipe.py"
    old = f"data_parallel_shard_degree={plan.shard},"
    n_ranks = sum(kind.n_pipelines for kind in plan.kinds)
    replicas = f"data_parallel_replicate_degree={n_ranks // plan.shard},"
    other = with_text(files, recipe, old, f"data_parallel_shard_degree={n_ranks},")
    other = with_text(other, recipe, replicas, "data_parallel_replicate_degree=1,")
    report = checked(other)
    assert report.joined is None
    assert "all replicas take part in every collective" in report.not_priced
    fewer = with_text(files, "nodes.txt", "3 new n2\n", "")
    assert "names 3" in checked(fewer).not_priced
    mixed = "0 old\n1 new\n2 old\n3 new\n"
    assert "several pools" in checked({**files, "nodes.txt": mixed}).not_priced
    assert "not priced:" in text_of(report)


def test_the_batch_is_that_of_all_kinds_or_is_not_said(written):
    plan, files = written[0]
    n = sum(kind.n_sequences for kind in plan.kinds)
    said = checked(files)
    assert f"global batch {n}," in text_of(said)
    assert said.to_json()["inputs"]["model"]["training"]["global_batch"] == n
    fewer = checked(with_text(files, "nodes.txt", "3 new n2\n", ""))
    assert fewer.not_priced
    assert "global batch" not in text_of(fewer)
    assert "global_batch" not in fewer.to_json()["inputs"]["model"]["training"]


def test_what_is_said_of_one_kind_names_its_folder(written):
    plan, files = written[0]
    kind = next(x for x in plan.kinds if x.pools == ("new",))
    n_ranks = sum(x.n_pipelines for x in plan.kinds)
    recipe, step = "new/torchtitan_recipe.py", n_ranks * kind.n_micro * kind.mbs
    odd = with_text(files, recipe, f"global_batch_size={step},", f"global_batch_size={step + 1},")
    report = checked(odd)
    lead = "new, as if all nodes were like it: "
    assert report.refusals
    assert all(x.reason.startswith(lead) for x in report.refusals)
    assert report.repairs
    assert all(x.startswith(lead) for x in report.repairs)
    assert f"global batch {plan_batch(report)}," in text_of(report)
    # A rule that all kinds break in the same way is one of the run.
    tp = f"tensor_parallel_degree={kind.stages[0].tp},"
    both = with_text(odd, recipe, tp, "tensor_parallel_degree=32,")
    both = with_text(both, "old/torchtitan_recipe.py", tp, "tensor_parallel_degree=32,")
    shared = checked(both).refusals
    assert any(not x.reason.startswith(lead) for x in shared)
    assert len({(x.rule.code, x.reason) for x in shared}) == len(shared)


def plan_batch(report):
    return report.joined.opened.sharded.n_sequences


def test_what_is_missing_is_said(written, tmp_path):
    _, files = written[0]
    gone = {name: text for name, text in files.items() if name != "new/torchtitan.sh"}
    with pytest.raises(SpecError, match=r"new/torchtitan\.sh, which is not there"):
        checked(gone)
    gone = {name: text for name, text in files.items() if name != "new/torchtitan_recipe.py"}
    with pytest.raises(SpecError, match=r"write the folder again \(planner emit\)"):
        checked(gone)
    with pytest.raises(UsageError, match="kinds of replicas"):
        checked(files, pool="new")
    write_files(tmp_path, {name: text for name, text in files.items() if name != "nodes.txt"})
    with pytest.raises(UsageError, match=r"nodes of several pools, by .* missing"):
        planner.check(str(tmp_path), CLUSTER)


def test_pools_that_are_not_there_are_named(written):
    _, files = written[0]
    with pytest.raises(UsageError, match="has no pool 'foo'"):
        checked(files, pool="foo")
    with pytest.raises(UsageError, match=r"such as old/torchtitan\.sh") as raised:
        checked(files, pool="old")
    assert "leave --pool out" in str(raised.value)
    with pytest.raises(UsageError, match="names pool old, which the cluster does not have"):
        checked(files, cluster(NEW))
    other = {**NEW, "name": "other"}
    with pytest.raises(UsageError, match="names pool old, new, which the cluster does not have"):
        checked(files, cluster(other))


def test_a_folder_without_start_is_said_before_pools(written, tmp_path):
    _, files = written[0]
    with pytest.raises(SpecError, match="no such file"):
        planner.check(str(tmp_path / "gone"), CLUSTER)
    with pytest.raises(SpecError, match="is a folder without start script"):
        planner.check(str(tmp_path), CLUSTER)
    write_files(tmp_path, {name: text for name, text in files.items() if name != START})
    with pytest.raises(SpecError, match="is a folder without start script"):
        planner.check(str(tmp_path), CLUSTER)


def test_a_start_script_names_its_folders(written, tmp_path):
    plan, files = written[0]
    start = replica_start(files[START])
    assert [folder for folder, _ in start.folders] == [x.pools[0] for x in plan.kinds]
    assert start.n_nodes == 4
    assert start.script == START
    assert replica_start(files[f"{start.folders[0][0]}/{START}"]) is None
    assert start_in(str(tmp_path)) == str(tmp_path)
    with pytest.raises(UsageError, match="out of order"):
        replica_start(files[START].replace("NODE_RANK <= 3", "NODE_RANK <= 0"))
    with pytest.raises(UsageError, match="names no folder"):
        replica_start(files[START].replace("KIND=old", "KIND=.."))


@pytest.mark.slow
def test_fsdp2_is_priced_as_it_was():
    result = planner.solve(
        JOB,
        CLUSTER,
        framework="fsdp2",
        pools="together",
        executor="serial",
        top=1,
        at_most={"mbs": 4},
        pins={"tp": 1, "recompute": "none"},
    )
    data = json.loads(json.dumps(result.to_json()))
    plan = joined_plan_of(data, "t1")
    files = joined_files(data, plan, ["fsdp2"], ["slurm"])
    report = checked(files, start="accelerate.sh", model=JOB)
    found = report.joined.opened.plan
    assert found.step_time_s == pytest.approx(plan.step_time_s, rel=1e-9)
    assert found.plan_id == plan.plan_id
    kind = next(x for x in plan.kinds if x.pools == ("new",))
    batch = '"per_device_train_batch_size": '
    other = with_text(
        files, "new/trainer_args.json", f"{batch}{kind.mbs}", f"{batch}{kind.mbs + 1}"
    )
    notes = checked(other, start="accelerate.sh", model=JOB).notes
    assert any("losses of ranks would weigh wrong" in note for note in notes)
