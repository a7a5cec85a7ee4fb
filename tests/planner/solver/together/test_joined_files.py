"""Files and commands for plans over several pools."""

import json
import shutil
import subprocess
from dataclasses import replace

import pytest

import planner
from costmodels.axes import RANK_ORDERS
from planner.analyze.joined_files import joined_files, layout_of, node_groups, rank_pools
from planner.cli.commands.inspection import run_place
from planner.cli.commands.plans import run_emit, run_show
from planner.errors import UsageError
from planner.frameworks.launchers.node_types import NodeGroup, hetjob_script, node_list
from planner.render.document import text_of
from planner.solver.answer.result_store import joined_plan_of, plan_of_result
from planner.specs.loader import cluster_from_dict, model_from_dict
from tests.planner.solver.together.tiny import MODEL, NEW, OLD, PINS, cluster


@pytest.fixture(scope="module")
def data():
    named = cluster({**NEW, "hosts": "n01"}, {**OLD, "hosts": "o01"})
    result = planner.solve(
        MODEL, named, pins=PINS, top=4, executor="serial", pools="together", framework="megatron"
    )
    return result.to_json()


@pytest.fixture(scope="module")
def staged(data):
    """A plan of one kind of pipeline."""
    plans = [joined_plan_of(data, f"t{x['rank']}") for x in data["together"]["plans"]]
    return next(plan for plan in plans if len(plan.kinds) == 1)


def test_ranks_go_through_the_stages_of_all_replicas(data, staged):
    read = cluster_from_dict(data["inputs"]["cluster"])
    pools = rank_pools(staged, RANK_ORDERS[0])
    assert len(pools) == staged.n_devices
    groups = node_groups(staged, read)
    assert [(x.pool, x.n_nodes, x.per_node) for x in groups] == [
        (pool, 1, 2) for pool in staged.kinds[0].pools
    ]
    assert {x.pool: x.hosts for x in groups} == {"new": ("n01",), "old": ("o01",)}
    names = {"new": "n01", "old": "o01"}
    lines = [f"{i} {x.pool} {names[x.pool]}" for i, x in enumerate(groups)]
    assert node_list(groups) == "\n".join(lines) + "\n"


def test_the_layout_is_that_of_the_stages(data, staged):
    layout = layout_of(staged, model_from_dict(data["inputs"]["model"]))
    assert layout.stage_layers == tuple(x.layers for x in staged.kinds[0].stages)
    assert layout.n_micro == staged.kinds[0].n_micro
    assert layout.tp * layout.cp * layout.pp * layout.dp == staged.n_devices


def test_megatron_gets_a_script_and_a_job_of_several_components(data, staged):
    files = joined_files(data, staged, ["megatron", "deepspeed"], ["slurm"])
    assert "--pipeline-model-parallel-layout" in files["megatron.sh"]
    job = files["slurm-megatron.sbatch"]
    assert job.count("#SBATCH hetjob") == 1
    assert "#SBATCH --nodelist=n01" in job
    assert "--het-group=0,1" in job
    assert "holds a job over unlike pools" in files["deepspeed.txt"]


def test_the_job_is_a_script_that_bash_reads(tmp_path):
    groups = [NodeGroup("a", "h100", 3, 8), NodeGroup("b", "a100", 2, 8, ("b1", "b2"))]
    path = tmp_path / "job.sbatch"
    path.write_text(hetjob_script(groups, "megatron.sh", "job", ["one plan"]))
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    if shutil.which("shellcheck"):
        assert subprocess.run(["shellcheck", str(path)], check=False).returncode == 0


def test_a_plan_with_missing_features_gets_their_names(data, staged):
    plan = replace(staged, runs_on=(), missing=("recomputation that differs by stage",))
    files = joined_files(data, plan, ["megatron"], ["torchrun"])
    assert list(files) == ["megatron.txt"]
    assert "no framework has recomputation that differs by stage" in files["megatron.txt"]


def test_stages_that_share_a_node_are_refused(data, staged):
    kind = staged.kinds[0]
    half = replace(kind, n_pipelines=1)
    plan = replace(staged, kinds=(half,), devices={"new": 1, "old": 1})
    files = joined_files(data, plan, ["megatron"], ["torchrun"])
    assert "a node would hold ranks of two pools" in files["megatron.txt"]


def test_other_launchers_are_refused(data, staged):
    with pytest.raises(UsageError, match="launcher jobset starts no job over nodes of several"):
        joined_files(data, staged, ["megatron"], ["jobset"])


def test_show_and_emit_take_such_a_plan_and_others_name_why_not(data, staged, tmp_path, capsys):
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(data))
    reference = f"{path}#t{staged.rank}"
    run_show(reference, "table")
    assert staged.plan_id in capsys.readouterr().out
    run_show(reference, "json")
    assert json.loads(capsys.readouterr().out)["plan_id"] == staged.plan_id
    run_emit(f"{path}#{staged.plan_id[:6]}", "megatron", str(tmp_path / "run"), "slurm")
    written = {x.name for x in (tmp_path / "run").glob("*/*")}
    assert {"megatron.sh", "nodes.txt", "slurm-megatron.sbatch"} <= written
    run_place(reference, None, "", "json")
    placed = json.loads(capsys.readouterr().out)
    assert [x["ranks"] for x in placed["pools"]] == [[0, 1], [2, 3]]
    run_place(reference, None, "", "table")
    assert "node ranks" in capsys.readouterr().out
    with pytest.raises(UsageError, match="uses several pools"):
        plan_of_result(data, f"t{staged.rank}", "answer")


def test_the_text_of_an_answer_begins_with_what_to_do(data):
    result = planner.solver.answer.result.Result.from_json(data)
    text = text_of(result.together)
    assert text.startswith("Use ")
    assert "t1" in text
    assert result.together._repr_html_()
