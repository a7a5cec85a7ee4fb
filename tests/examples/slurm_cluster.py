"""A Slurm cluster of two nodes on this machine: munged, slurmctld with the plugin, two slurmd."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.examples.conftest import ROOT
from tests.service.waiting import PATIENCE_S, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "sinfo", "scancel", "curl")
N_GPUS = 8
ASKED_FOR = "PLANNER_SLURM_TESTS"
"""Variable of the environment without which no cluster is started."""
CONF = """\
ClusterName=check
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
GresTypes=gpu
JobSubmitPlugins=lua
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1 Gres=gpu:{gpus}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1 Gres=gpu:{gpus}
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def missing() -> str:
    """Return why no cluster can run here; empty where one can."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


@dataclass(frozen=True, slots=True)
class SlurmCluster:
    """A cluster that runs."""

    folder: Path
    env: dict[str, str]

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a client of Slurm."""
        return subprocess.run(
            words, env=self.env, text=True, capture_output=True, input=stdin, cwd=self.folder
        )

    def job(self, number: str) -> dict[str, str]:
        """Return a job as `scontrol show job` tells it."""
        shown = self.run("scontrol", "--oneliner", "show", "job", number).stdout
        pairs = (word.partition("=") for word in shown.split())
        return {name: value for name, _, value in pairs}


@contextmanager
def slurm_cluster(folder: Path, curl_config: Path) -> Iterator[SlurmCluster]:
    """Run a cluster until the end of the block; `curl_config` says whom the plugin asks."""
    host = socket.gethostname()
    ports = dict(zip(("controller", "first", "second"), _free_ports(3), strict=True))
    for name in ("run", "state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    for place in (folder, folder / "run"):
        place.chmod(0o755)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    for i in range(N_GPUS):  # as a device must be one; none of them is opened
        (folder / f"gpu{i}").symlink_to("/dev/null")
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{N_GPUS - 1}]\n")
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(folder=folder, host=host, gpus=N_GPUS, **ports))
    plugin = ROOT / "examples" / "schedulers" / "job_submit.lua"
    (folder / "job_submit.lua").write_text(plugin.read_text())
    env = {**os.environ, "SLURM_CONF": str(conf), "PLANNER_CURL_CONFIG": str(curl_config)}
    env["PATH"] = f"{env['PATH']}:/usr/sbin:/sbin"
    with ExitStack() as stack:
        munged = ["munged", "--foreground", "--force", f"--socket={folder}/run/munge.sock"]
        munged += [f"--key-file={folder}/key", f"--log-file={folder}/munged.log"]
        munged += [f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/seed"]
        stack.enter_context(_running(munged, folder, env))
        wait_until((folder / "run" / "munge.sock").exists)
        stack.enter_context(_running(["slurmctld", "-D", "-c", "-f", str(conf)], folder, env))
        for node in ("n1", "n2"):
            command = ["slurmd", "-D", "-N", node, "-f", str(conf)]
            stack.enter_context(_running(command, folder, env))
        cluster = SlurmCluster(folder, env)
        wait_until(lambda: _idle(cluster) == 2)
        try:
            yield cluster
        finally:
            cluster.run("scancel", "--full", "--partition=main")


def _idle(cluster: SlurmCluster) -> int:
    """Return how many nodes are idle; fails where a node never will be."""
    shown = cluster.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()
    assert "inval" not in shown, (cluster.folder / "slurmctld.log").read_text()[-2000:]
    return shown.count("idle")


@contextmanager
def _running(command: list[str], folder: Path, env: dict[str, str]) -> Iterator[None]:
    with (folder / f"{command[0]}.out").open("ab") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S / 4)
        process.kill()
        process.wait()


def _free_ports(n: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports
