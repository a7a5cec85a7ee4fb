"""`planner kueue-controller`: what it refuses, what it needs, and a whole admission by it."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.cli import plugins
from service.kueue.reconciler import Settings
from tests.planner.command import run_here
from tests.service.kueue.kueue_cluster import (
    CHECK,
    CONFIG_MAPS,
    NOTES,
    OURS,
    OncePlanner,
    fill,
    reconciler_of,
    template,
)
from tests.service.waiting import PATIENCE_S
from tools.kubernetes_api.kueue import CHECKS, JOB, Kueue, Reservation
from tools.kubernetes_api.server import Access, ApiServer, api_server

ROOT = Path(__file__).parents[3]
PROGRAM = """
from importlib.metadata import EntryPoint
from planner.cli import plugins
point = EntryPoint("kueue-controller", "service.kueue.command:app", plugins.GROUP)
plugins._found = lambda: {point.name: point}
from planner.cli.app import main
main()
"""


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command be found as pyproject.toml declares it, without installing it again."""
    import tomllib

    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    name = "kueue-controller"
    found = {name: EntryPoint(name, points[plugins.GROUP][name], plugins.GROUP)}
    monkeypatch.setattr(plugins, "_found", lambda: found)


@pytest.fixture
def role() -> Any:
    """Return the rules of the ClusterRole in deploy/."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "kueue.yaml").read_text())
    return next(x["rules"] for x in documents if x["kind"] == "ClusterRole")


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--api-server", "127.0.0.1:8001"), 2, "is no address"),
        (("--kubeconfig", "/nowhere/config"), 2, "/nowhere/config is not there"),
        (("--time-limit", "0"), 2, "must be above 0"),
        (("--log-level", "loud"), 2, "debug, info"),
        (("--api-server", "http://127.0.0.1:1", "--check"), 1, "http://127.0.0.1:1"),
        (("--workers", "0"), 2, "--workers"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    words: tuple[str, ...], code: int, said: str
) -> None:
    done = run_here("kueue-controller", *words)
    assert (done.returncode, said in " ".join(done.stderr.split())) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("declared", "kueue")
def test_what_it_needs_is_tried(served: ApiServer) -> None:
    done = run_here("kueue-controller", "--api-server", served.url, "--check")
    assert (done.returncode, "planner answers checks of planner/kueue" in done.stderr) == (0, True)
    assert "kueue.x-k8s.io/v1beta2" in done.stderr
    assert not any(method == "PATCH" for method, _ in served.requests)


@pytest.mark.usefixtures("declared")
def test_rights_that_it_lacks_are_named() -> None:
    with api_server(Access(rules=[])) as served:
        done = run_here("kueue-controller", "--api-server", served.url, "--check")
    assert done.returncode == 1
    assert "admissionchecks is forbidden" in done.stderr
    assert "deploy/kueue.yaml" in done.stderr


def test_the_role_in_deploy_is_enough_and_no_more(role: Any) -> None:
    with api_server(Access("secret", role)) as served:
        kueue = fill(served)
        reconciler = reconciler_of(served, OncePlanner(), "secret")
        reconciler.reconcile_check(CHECK)
        text = (ROOT / "examples" / "models" / "llama3-8b.yaml").read_text()
        body = {"metadata": {"name": "mine", "namespace": "team"}, "data": {"m": text}}
        kueue.store.create(CONFIG_MAPS, body)
        notes = NOTES | {"planner/model": "configmap:mine/m", "planner/config-map": "train-plan"}
        kueue.submit("train", template(notes), 2)
        kueue.reserve("train", OURS)
        reconciler.reconcile("team", "train")
        assert kueue.check("train", CHECK)["state"] == "Ready"
        reconciler.api.list_all(reconciler.kinds.workloads)
        used = {_right(method, path) for method, path in served.requests}
    granted = {
        (resource, verb)
        for rule in role
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    # Watching and listing checks are the controller's, creating goes with the patch.
    rest = {(x, "watch") for x in ("workloads", "admissionchecks")}
    rest |= {("admissionchecks", "list"), ("configmaps", "create")}
    assert granted == {x for x in used if x} | rest


def _right(method: str, path: str) -> tuple[str, str] | None:
    match = re.match(
        r"/(?:api|apis/[^/]+)/v[^/]+(?:/namespaces/[^/]+)?/(\w+)(/[^/?]+)?(/status)?", path
    )
    if match is None:
        return None
    verb = "patch" if method == "PATCH" else "get" if match[2] else "list"
    return f"{match[1]}{match[3] or ''}", verb


def test_the_manifest_is_of_this_command() -> None:
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "kueue.yaml").read_text()))
    kinds = {x["kind"]: x for x in documents}
    assert kinds["AdmissionCheck"]["spec"] == {"controllerName": Settings().name}
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["planner", "kueue-controller"]
    assert container["args"][0] == "--planner"
    account = kinds["ServiceAccount"]["metadata"]
    assert pod["serviceAccountName"] == account["name"]
    (subject,) = kinds["ClusterRoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", **account}
    assert (
        kinds["ClusterRoleBinding"]["roleRef"]["name"] == kinds["ClusterRole"]["metadata"]["name"]
    )


def example_job() -> dict[str, Any]:
    documents = yaml.safe_load_all(
        (ROOT / "examples" / "schedulers" / "kueue_job.yaml").read_text()
    )
    return next(x for x in documents if x["kind"] == "Job")


def submit_example(kueue: Kueue) -> str:
    """Create the job of the example, and the Workload that Kueue makes of it; return its name."""
    job = example_job()
    name, spec = job["metadata"]["name"], job["spec"]
    kueue.store.create(JOB, job)
    least = int(job["metadata"]["annotations"]["kueue.x-k8s.io/job-min-parallelism"])
    template = {"name": "main", "count": spec["parallelism"], "template": spec["template"]}
    kueue.submit_pod_sets(name, [template | {"minCount": least}])
    return str(name)


def test_the_example_gets_all_that_it_reads(served: ApiServer, kueue: Kueue) -> None:
    name = submit_example(kueue)
    patch = {"metadata": {"annotations": {"planner/cluster": "h100-x512"}}}
    kueue.store.merge(CHECKS, ("", CHECK), patch)
    kueue.reserve(name, Reservation([CHECK], count=2))
    reconciler_of(served, OncePlanner()).reconcile("team", name)
    assert kueue.check(name, CHECK)["state"] == "Ready", kueue.check(name, CHECK)
    assert kueue.advance(name) == "admitted"
    started = kueue.job(name)["spec"]
    notes = started["template"]["metadata"]["annotations"]
    (container,) = started["template"]["spec"]["containers"]
    paths = [x["valueFrom"]["fieldRef"]["fieldPath"] for x in container["env"] if "valueFrom" in x]
    keys = [re.fullmatch(r"metadata\.annotations\['(.+)'\]", path)[1] for path in paths]  # type: ignore[index]
    assert keys
    assert all(notes[key] for key in keys)
    volume = next(x for x in started["template"]["spec"]["volumes"] if "configMap" in x)
    data = kueue.store.get(CONFIG_MAPS, "team", volume["configMap"]["name"])["data"]
    script = re.search(r"/plan/(\S+\.sh)", container["command"][-1])
    assert script is not None
    done = subprocess.run(["bash", "-n"], input=data[script[1]], text=True)
    assert done.returncode == 0
    assert "NODE_RANK" in data[script[1]]


@pytest.fixture
def process(served: ApiServer, kueue: Kueue) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROGRAM, "kueue-controller", "--api-server", served.url]
    started = subprocess.Popen(
        [*command, "--log-format", "text"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate(timeout=PATIENCE_S)


@pytest.mark.service
def test_a_process_admits_rejects_and_ends(process: subprocess.Popen[str], kueue: Kueue) -> None:
    lines: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
    reader.start()
    for name, notes in (("good", NOTES), ("bad", NOTES | {"planner/model": "nothing-7b"})):
        kueue.submit(name, template(notes), 2)
        kueue.reserve(name, OURS)
    wanted = [("good", "Ready"), ("bad", "Rejected")]
    assert kueue.store.wait(
        lambda: all(kueue.check(name, CHECK).get("state") == state for name, state in wanted),
        PATIENCE_S,
    ), lines
    assert kueue.advance("good") == "admitted"
    assert kueue.advance("bad") == "deactivated"
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    reader.join(PATIENCE_S)
    assert any("decided" in line and "team/good" in line for line in lines)
    assert not any("Traceback" in line for line in lines)
