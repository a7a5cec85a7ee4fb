"""Files of sharded replicas over several pools: what each kind of node gets."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import planner
from planner.analyze.joined_files import joined_files, joined_placement
from planner.analyze.sharded_files import rank_batches
from planner.cli.commands.plans import run_emit, show_files
from planner.cli.files import write_files
from planner.errors import EmitError
from planner.solver.answer.result_store import joined_plan_of
from tests.planner.solver.together.tiny import MODEL, cluster, pool

GOLDENS = Path(__file__).parents[2] / "goldens" / "emit"
VARYING = re.compile(
    r"plan [0-9a-f]+, t1 of result [0-9a-f]+|predicted step .*|written by planner .*"
    r"|--job-name=.*"
)
"""What versions and catalogues change."""
JOB = {**MODEL, "training": {"seq_len": 4096, "global_batch": 48, "tokens": 1e9}}
NEW = pool("new", nodes=2, hosts="n[1-2]")
OLD = pool("old", "a100-sxm-80gb", nodes=2, hosts="o[1-2]")


def answer(framework):
    """Return the JSON of an answer with two accumulation steps."""
    result = planner.solve(
        JOB,
        cluster(NEW, OLD),
        framework=framework,
        pools="together",
        executor="serial",
        top=1,
        at_most={"mbs": 4},
        pins={"tp": 1, "recompute": "none"},
    )
    return result.to_json()


@pytest.fixture(scope="module", params=["torchtitan", "fsdp2"])
def written(request):
    """Framework, answer, plan and its files."""
    data = answer(request.param)
    plan = joined_plan_of(data, "t1")
    return request.param, data, plan, joined_files(data, plan, [request.param], ["slurm"])


def test_each_kind_of_node_gets_its_batch(written):
    framework, _, plan, files = written
    n_ranks = sum(kind.n_pipelines for kind in plan.kinds)
    assert len({kind.mbs for kind in plan.kinds}) == 2
    for kind in plan.kinds:
        folder = kind.pools[0]
        if framework == "torchtitan":
            recipe = files[f"{folder}/torchtitan_recipe.py"]
            assert f"local_batch_size={kind.mbs}," in recipe
            # torchtitan divides it by ranks and local batch: the accumulation steps of all.
            assert f"global_batch_size={kind.mbs * n_ranks * kind.n_micro}," in recipe
            assert f"data_parallel_replicate_degree={n_ranks // plan.shard}," in recipe
            assert f"data_parallel_shard_degree={plan.shard}," in recipe
        else:
            own = json.loads(files[f"{folder}/trainer_args.json"])
            assert own["per_device_train_batch_size"] == kind.mbs
            assert own["gradient_accumulation_steps"] == kind.n_micro
    batches = rank_batches(plan.kinds)
    total = sum(int(n) * int(x) for n, x in (part.split("x") for part in batches.split(",")))
    assert total * plan.kinds[0].n_micro == 48


def test_all_kinds_train_as_many_steps(written):
    framework, _, plan, files = written
    name = "torchtitan_recipe.py" if framework == "torchtitan" else "trainer_args.json"
    texts = [files[f"{kind.pools[0]}/{name}"] for kind in plan.kinds]
    steps = {
        re.search(r'\bsteps"?[=:] ?(\d+)', text.replace("max_", "")).group(1) for text in texts
    }
    # 1e9 tokens of 48 sequences of 4,096 a step.
    assert steps == {"5087"}


def test_folders_differ_in_the_batch_alone(written):
    _, _, plan, files = written
    first, second = (kind.pools[0] for kind in plan.kinds)
    names = [name.split("/", 1)[1] for name in files if name.startswith(f"{first}/")]
    assert names
    for name in names:
        lines = [
            [x for x in files[f"{folder}/{name}"].splitlines() if not x.startswith("#")]
            for folder in (first, second)
        ]
        changed = [(a, b) for a, b in zip(*lines, strict=True) if a != b]
        assert all("batch" in a for a, _ in changed)


def test_the_start_finds_the_kind_of_a_node(written, tmp_path):
    _, data, plan, files = written
    (script,) = (name for name in files if "/" not in name and name.endswith(".sh"))
    write_files(tmp_path, files)
    for kind in plan.kinds:
        stub = tmp_path / kind.pools[0] / script
        stub.write_text(f'echo "{kind.pools[0]} $*"\n')
    placed = {
        node: group["pool"]
        for group in joined_placement(data, plan).pools
        for node in range(group["nodes"][0], group["nodes"][1] + 1)
    }
    listed = [line.split()[1] for line in files["nodes.txt"].splitlines()]
    assert listed == [placed[i] for i in sorted(placed)]
    for node, name in placed.items():
        output = _started(tmp_path / script, node)
        assert output.stdout.startswith(name)
    assert _started(tmp_path / script, len(placed)).returncode == 1


def test_replicas_are_placed_within_pools(written):
    _, data, plan, _ = written
    placed = joined_placement(data, plan)
    (replica,) = (x for x in placed.placement.groups if x.name == "zero")
    (every,) = (x for x in placed.placement.groups if x.name == "dp")
    assert replica.tier != "between pools"
    assert every.tier == "between pools"
    starts = {pool["ranks"][0] for pool in placed.pools}
    assert starts <= set(replica.ranks.min(axis=1).tolist())
    assert replica.ranks.shape[1] == plan.shard * plan.kinds[0].stages[0].cp


def _started(script, node):
    return subprocess.run(
        ["bash", str(script), "--smoke"],
        env={"NODE_RANK": str(node), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_batches_of_ranks_are_handed_on(written, tmp_path):
    _, _, plan, files = written
    (script,) = (name for name in files if "/" not in name and name.endswith(".sh"))
    write_files(tmp_path, files)
    (tmp_path / plan.kinds[0].pools[0] / script).write_text('echo "$@"\n')
    words = _started(tmp_path / script, 0).stdout.split()
    assert words[words.index("--rank-batches") + 1] == rank_batches(plan.kinds)


def test_a_job_of_several_components_starts_all_nodes(written):
    framework, _, _, files = written
    job = files[
        "slurm-torchtitan.sbatch" if framework == "torchtitan" else "slurm-accelerate.sbatch"
    ]
    assert job.count("#SBATCH hetjob") == 1
    assert "--het-group=0,1" in job


def test_scripts_are_those_that_bash_reads(written, tmp_path):
    write_files(tmp_path, written[3])
    for path in [*tmp_path.glob("*.sh"), *tmp_path.glob("*.sbatch")]:
        assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
        if shutil.which("shellcheck"):
            assert subprocess.run(["shellcheck", str(path)], check=False).returncode == 0


def test_files_are_the_kept_ones(written, request):
    framework, _, _, files = written
    names = [name for name in files if "/" not in name]
    names += [name for name in files if name.endswith(("_recipe.py", "trainer_args.json", "yaml"))]
    for name in names:
        text = VARYING.sub("*", files[name])
        path = GOLDENS / f"replicas-{framework}-{name.replace('/', '-')}"
        if request.config.getoption("--renew"):
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text


def test_two_batches_on_one_pool_have_a_folder_each(written):
    framework, data, plan, _ = written
    first, second = plan.kinds
    half = first.n_pipelines // 2
    # As where a batch does not divide: one replica of a pool takes one sequence more.
    parts = [replace(first, n_pipelines=half, mbs=first.mbs + more) for more in (1, 0)]
    files = joined_files(data, replace(plan, kinds=(*parts, second)), [framework], ["torchrun"])
    folders = {name.split("/")[0] for name in files if "/" in name}
    assert folders == {*(f"{x.pools[0]}-mbs{x.mbs}" for x in (*parts, second))}


def test_other_frameworks_and_older_releases_get_a_reason(written):
    framework, data, plan, _ = written
    assert "closest" in joined_files(data, plan, ["megatron"], ["slurm"])["megatron.txt"]
    if framework == "torchtitan":
        old = joined_files(data, plan, ["torchtitan@0.2.2"], ["slurm"])
        assert list(old) == ["torchtitan.txt"]
        assert "0.3.0" in old["torchtitan.txt"]


def test_emit_writes_the_folders(written, tmp_path, capsys):
    framework, data, plan, files = written
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(data))
    run_emit(f"{path}#t1", framework, str(tmp_path / "run"), "slurm")
    folder = tmp_path / "run" / f"t1-{plan.plan_id}"
    found = {str(x.relative_to(folder)) for x in folder.rglob("*") if x.is_file()}
    assert found == set(files)
    capsys.readouterr()
    show_files(files, [framework], None)
    shown = capsys.readouterr().out
    assert "def main" not in shown  # programs are the same for every plan


def test_names_that_lead_out_of_the_folder_are_refused(tmp_path):
    for name in ("../out.sh", "/tmp/out.sh", "a/../../out.sh"):
        with pytest.raises(EmitError):
            write_files(tmp_path, {name: "text"})
