"""The Lua plugin in a slurmctld that runs: jobs get the size and layout of their plans.

scripts/check_slurm runs them, where Slurm is installed; a plain run of the tests starts no Slurm.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import planner
from planner.specs.search.axis_values import layout_to_json
from tests.examples.slurm_cluster import ASKED_FOR, SlurmCluster, missing, slurm_cluster
from tests.service.waiting import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(not os.environ.get(ASKED_FOR), reason="scripts/check_slurm runs it"),
    pytest.mark.skipif(missing() != "", reason=missing()),
]
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=5\n{plan}env | grep ^PLAN_ > {out}\n"
ASKED = "#PLAN model=llama3-8b cluster=h100-x8 pools.0.nodes=2 pins.tp={tp}\n"


@pytest.fixture(scope="module")
def cluster(service: dict[str, str]) -> Iterator[SlurmCluster]:
    # The path of munged's socket has room for few characters: not below pytest's folder.
    with TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        config = folder / "planner.curl"
        config.write_text(
            f'url = "{service["PLANNER_SERVER"]}/v1/plans:solve"\n'
            f'header = "Authorization: Bearer {service["PLANNER_TOKEN"]}"\n'
            'header = "Prefer: wait=60"\nmax-time = 90\n'
        )
        with slurm_cluster(folder, config) as found:
            yield found


def submit(cluster: SlurmCluster, plan: str, *options: str) -> tuple[str, str]:
    """Return the number of the job, or what was said where it was refused."""
    script = SCRIPT.format(plan=plan, out=cluster.folder / "env.out")
    done = cluster.run("sbatch", "--parsable", *options, stdin=script)
    return done.stdout.strip(), done.stderr


def test_a_job_runs_with_the_size_and_layout_of_the_best_plan(cluster: SlurmCluster) -> None:
    number, said = submit(cluster, ASKED.format(tp=4), "--nodes=7")
    assert number, said
    wait_until(lambda: cluster.job(number)["JobState"] in ("COMPLETED", "FAILED"))
    job = cluster.job(number)
    assert job["JobState"] == "COMPLETED", job
    best = planner.solve(
        "llama3-8b", "h100-x8", pins={"tp": 4}, top=1, overrides=(("pools.0.nodes", 2),)
    ).best
    assert (job["NumNodes"], job["NumTasks"], job["NodeList"]) == ("2", "2", "n[1-2]")
    assert re.fullmatch("gres[:/]gpu:8", job["TresPerNode"])
    assert job["Comment"] == f"planner:{best.plan_id}"
    lines = (cluster.folder / "env.out").read_text().splitlines()
    variables = dict(line.partition("=")[::2] for line in lines)
    layout = layout_to_json(best.layout)
    assert {f"PLAN_{axis.upper()}" for axis in layout} <= {*variables}
    assert (variables["PLAN_TP"], variables["PLAN_ID"]) == ("4", best.plan_id)
    assert variables["PLAN_STAGE_LAYERS"] == ",".join(map(str, layout["stage_layers"]))


def test_jobs_without_the_line_pass(cluster: SlurmCluster) -> None:
    number, said = submit(cluster, "", "--nodes=1", "--hold")
    assert number, said
    job = cluster.job(number)
    assert job["NumNodes"].partition("-")[0] == "1"
    assert "Comment" not in job


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (ASKED.format(tp=3), "planner:"),
        ("#PLAN model=llama3-70b cluster=h100-x8 pins.tp=8 pins.pp=1\n", "nothing fits"),
        ("#PLAN model=llama3-8b cluster=nowhere\n", "nowhere"),
    ],
)
def test_what_cannot_run_is_refused_with_words(
    cluster: SlurmCluster, plan: str, said: str
) -> None:
    number, words = submit(cluster, plan, "--hold")
    assert number == ""
    assert said in words
    assert "Batch job submission failed" in words


def test_slurmctld_has_loaded_the_plugin(cluster: SlurmCluster) -> None:
    shown = cluster.run("scontrol", "show", "config").stdout
    assert "JobSubmitPlugins        = lua" in shown
    log = (cluster.folder / "slurmctld.log").read_text()
    assert "job_submit.lua" not in log or "error" not in log.partition("job_submit.lua")[2][:200]
