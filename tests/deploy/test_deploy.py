"""The files of deploy/: schemas accept them, and what they say of the service is so."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from planner.specs.yaml.document import parse_yaml
from service.command import app
from service.http.server import LAST_ANSWERS_S
from service.settings.options import Options
from service.settings.serving import GRPC_PORT, PORT, PROBE_PORT
from service.tenants.file import tenants_of

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SCHEMA = json.loads((Path(__file__).parent / "data" / "kubernetes.json").read_text())
LONGEST_STOP_S = Options().drain_s + Options().grace_s + LAST_ANSWERS_S
"""What a service takes to stop at most, by its own settings."""
USER = 10001


def options_of_serve() -> dict[str, bool]:
    """Return the options of `planner serve`, and whether they take a value."""
    command = typer.main.get_command(app)
    return {
        option: not getattr(parameter, "is_flag", False)
        for parameter in command.params
        for option in parameter.opts
    }


def check_serve(words: list[str]) -> dict[str, str]:
    """Return the options of a command line of `planner serve`; fail where there is none such."""
    known, found = options_of_serve(), {}
    waiting = list(words)
    while waiting:
        option = waiting.pop(0)
        assert option in known, f"planner serve has no {option}"
        found[option] = waiting.pop(0) if known[option] else ""
    return found


# Kubernetes


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    return {document["kind"]: document for document in documents}


@pytest.fixture(scope="module")
def pod(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["Deployment"]["spec"]["template"]["spec"]
    return found


def validate(document: Any) -> None:
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_schemas_accept_the_manifest(manifest: dict[str, Any]) -> None:
    kinds = {"ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
    assert {*manifest} == kinds
    for document in manifest.values():
        validate(document)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Deployment", lambda d: d["spec"].update(replica=2)),
        ("Deployment", lambda d: d["spec"]["template"]["spec"]["containers"][0].pop("image")),
        ("Deployment", lambda d: d["spec"]["template"]["spec"]["volumes"][0].pop("secret")),
        ("Service", lambda d: d["spec"].update(ports=[])),
        ("PodDisruptionBudget", lambda d: d["spec"].update(maxUnavailable=1)),
        ("NetworkPolicy", lambda d: d["spec"].update(policyTypes=["Both"])),
    ],
)
def test_schemas_refuse_what_the_cluster_would(kind: str, change: Any) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    document = next(x for x in documents if x["kind"] == kind)
    change(document)
    with pytest.raises(jsonschema.ValidationError):
        validate(document)


def test_all_parts_select_the_same_pods(manifest: dict[str, Any]) -> None:
    labels = manifest["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert manifest["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert manifest["Service"]["spec"]["selector"] == labels
    assert manifest["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert manifest["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels


def test_ports_are_those_of_the_service(manifest: dict[str, Any], pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": PORT, "grpc": GRPC_PORT, "probes": PROBE_PORT}
    del ports["probes"]  # of the kubelet of the node alone, which no policy keeps out
    assert {x["targetPort"]: x["port"] for x in manifest["Service"]["spec"]["ports"]} == ports
    allowed = manifest["NetworkPolicy"]["spec"]["ingress"][0]["ports"]
    assert {port["port"] for port in allowed} == {*ports}
    assert container["env"][0]["name"] == "PLANNER_DATABASE"
    check_serve(container["args"])


def test_the_groups_of_the_manifest_are_read(
    manifest: dict[str, Any], pod: dict[str, Any]
) -> None:
    options = check_serve(pod["containers"][0]["args"])
    mounts = {x["name"]: x["mountPath"] for x in pod["containers"][0]["volumeMounts"]}
    volume = next(x for x in pod["volumes"] if x["name"] == "tenants")
    assert volume["configMap"]["name"] == manifest["ConfigMap"]["metadata"]["name"]
    ((name, text),) = manifest["ConfigMap"]["data"].items()
    assert options["--tenants"] == f"{mounts['tenants']}/{name}"
    found = tenants_of(parse_yaml(text, name))
    assert [group.name for group in found.to_groups()] == ["schedulers", "teams"]
    assert found.default_group == "teams"


def test_the_groups_of_the_documentation_are_read() -> None:
    text = (ROOT / "docs" / "tenants.md").read_text()
    example = re.search(r"```yaml\n(groups:.*?)```", text, re.DOTALL)
    assert example is not None
    found = tenants_of(parse_yaml(example[1], "tenants.md"))
    assert found.to_providers().kubernetes is not None


def test_probes_ask_for_what_there_is(pod: dict[str, Any]) -> None:
    from service.rest.operations import OPERATIONS

    open_paths = {each.path for each in OPERATIONS if each.method == "GET" and not each.role}
    (container,) = pod["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in open_paths
        assert container[probe]["httpGet"]["port"] == "probes"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_a_pod_has_the_time_to_drain(pod: dict[str, Any]) -> None:
    sleep, seconds = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep"
    assert pod["terminationGracePeriodSeconds"] >= LONGEST_STOP_S + int(seconds) + 5


def test_a_pod_may_do_nothing_that_it_need_not(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == USER
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {*mounts} == {volume["name"] for volume in pod["volumes"]}
    assert {"/tmp", "/var/lib/planner"} <= {*mounts.values()}
    (item,) = next(v["secret"]["items"] for v in pod["volumes"] if v["name"] == "tokens")
    assert f"{mounts['tokens']}/{item['path']}" == entrypoint()["--token-file"]


# Docker


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text()
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]  # type: ignore[misc]  # a word and the rest


def of(name: str) -> list[str]:
    return [rest for word, rest in instructions() if word == name]


def entrypoint() -> dict[str, str]:
    (found,) = of("ENTRYPOINT")
    words = json.loads(found)
    assert words[:2] == ["planner", "serve"]
    return check_serve(words[2:])


def test_the_image_is_built_in_two_stages_of_a_pinned_base() -> None:
    first, second = of("FROM")
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+ AS build", first)
    assert second == first.removesuffix(" AS build")
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    version = tuple(int(x) for x in re.findall(r"\d+", first)[:2])
    low, high = (
        tuple(int(x) for x in part.split(".")) for part in re.findall(r"[\d.]+", supported)
    )
    assert low <= version < high


def test_the_image_is_made_of_files_that_there_are_and_all_that_the_wheel_needs() -> None:
    copied = [shlex.split(rest) for rest in of("COPY") if not rest.startswith("--from")]
    sources = {word for words in copied for word in words[:-1]}
    for source in sources:
        assert (ROOT / source).exists(), source
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], project["project"]["readme"]}
    needed |= {*project["project"]["license-files"], "pyproject.toml"}
    assert sources == needed
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == sources
    (extras,) = re.findall(r"pip install [^']*'\.\[([a-z,]+)\]'", " ".join(of("RUN")))
    assert {*extras.split(",")} <= {*project["project"]["optional-dependencies"]}


def test_the_image_runs_as_a_user_of_its_own_and_says_how_it_is() -> None:
    assert of("USER") == [str(USER)]
    assert f"--uid {USER}" in " ".join(of("RUN"))
    assert of("EXPOSE") == [f"{PORT} {GRPC_PORT}"]
    (health,) = of("HEALTHCHECK")
    program = json.loads(health.partition("CMD ")[2])
    assert program[:2] == ["python", "-c"]
    compile(program[2], "healthcheck", "exec")
    assert f"http://127.0.0.1:{PORT}/livez" in program[2]
    given = entrypoint()
    assert given["--data"] in of("VOLUME")
    assert given["--host"] == "0.0.0.0"
    assert "--insecure" not in given


# systemd


@pytest.fixture(scope="module")
def unit() -> dict[str, list[str]]:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    parser.read(DEPLOY / "planner.service")
    assert parser.sections() == ["Unit", "Service", "Install"]
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "planner.service").read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_the_unit_starts_reloads_and_drains(unit: dict[str, list[str]]) -> None:
    program, serve, *options = shlex.split(unit["ExecStart"][0])
    assert program == "/opt/planner/bin/planner"
    assert serve == "serve"
    assert check_serve(options)["--data"] == f"/var/lib/{unit['StateDirectory'][0]}"
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert float(unit["TimeoutStopSec"][0]) >= LONGEST_STOP_S + 5
    assert unit["KillMode"] == ["mixed"]  # workers must not be told to end before the jobs do


def test_the_unit_is_installed_with_what_its_header_names() -> None:
    """PostgreSQL, which it offers, needs its driver; hashes are read by its dynamic user."""
    text = (DEPLOY / "planner.service").read_text()
    assert "PLANNER_DATABASE" in text
    assert "pip install '.[pages,postgres]'" in text
    assert "-Dm644 tokens /etc/planner/tokens      # hashes alone" in text


def test_the_unit_is_hardened(unit: dict[str, list[str]]) -> None:
    for name in ("DynamicUser", "ProtectHome", "PrivateTmp", "NoNewPrivileges", "PrivateDevices"):
        assert unit[name] == ["yes"]
    assert unit["ProtectSystem"] == ["strict"]
    assert unit["CapabilityBoundingSet"] == [""]
    # Workers limit their memory and lower their priority.
    assert not any("@resources" in value for value in unit["SystemCallFilter"])


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd here")
    text = (DEPLOY / "planner.service").read_text()
    # The program need not be installed to look at its unit.
    copy = tmp_path / "planner.service"
    copy.write_text(text.replace("/opt/planner/bin/planner", "/bin/true"))
    done = subprocess.run([program, "verify", str(copy)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    copy.write_text(copy.read_text().replace("ProtectSystem=strict", "ProtectSystem=most"))
    done = subprocess.run([program, "verify", str(copy)], capture_output=True, text=True)
    assert "protect system" in done.stderr  # it looks at what the settings say


# What the headers of the files say


@pytest.mark.parametrize("name", ["Dockerfile", "kubernetes.yaml", "planner.service"])
def test_options_that_are_named_exist(name: str) -> None:
    text = (DEPLOY / name).read_text()
    known = {*options_of_serve(), "--help"}
    for words in re.findall(r"planner serve((?: --?[a-z-]+(?: [^\s-]\S*)?)+)", text):
        assert {word for word in words.split() if word.startswith("--")} <= known
