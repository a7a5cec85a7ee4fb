"""`planner --server`: the same output as here, and what cannot be asked of a service."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.cli import app as cli
from planner.cli.progress import TerminalProgress
from planner.client import Client, ServiceError
from planner.option_names import JOB_FIELDS
from planner.solver.answer.result import Result
from service.access.auth import Auth, read_tokens
from service.handlers.calls import CALLS
from service.handlers.limits import DEFAULTS
from service.rest.operations import OPERATIONS
from tests.planner.command import run_here
from tests.planner.scripted_server import scripted
from tests.service.live import live_service

ROOT = Path(__file__).parents[2]
TOKEN = "sue-solves-0123456789"
SMALL = ("llama3-8b", "h100-x8")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tokens = Auth(read_tokens(f"sue solve {TOKEN}\nann read ann-reads-0123456789", "tokens"))
    with live_service(tmp_path_factory.mktemp("live"), auth=tokens) as found:
        yield found


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PLANNER_TOKEN", TOKEN)
    monkeypatch.delenv("PLANNER_SERVER", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "r.json"
    path.write_text(run_here("solve", *SMALL, "--format", "json", "--no-cache").stdout)
    return path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with files of a user."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, example in (("job.yaml", "models/llama3-8b"), ("node.yaml", "clusters/h100-x8")):
        (folder / name).write_text((ROOT / "examples" / f"{example}.yaml").read_text())
    wrong = (folder / "node.yaml").read_text().replace("nodes:", "nodez:")
    (folder / "wrong.yaml").write_text(wrong)
    run = "- {model: job.yaml, cluster: node.yaml, layout: {tp: 2}, step_time_s: 40.5}\n"
    (folder / "run.yaml").write_text(run)
    (folder / "sweep.yaml").write_text(
        "model: job.yaml\ncluster: node.yaml\nvary: {training.global_batch: [64, 128]}\n"
    )
    (folder / "jobs.yaml").write_text(
        "free: {h100: 4}\n"
        "jobs:\n"
        "- {name: a, curve: [{pool: h100, nodes: 4, tokens_per_s: 900}]}\n"
        "- name: b\n"
        "  tokens: 1.0e+6\n"
        "  deadline_s: 3600\n"
        "  curve: [{pool: h100, nodes: 2, tokens_per_s: 500}]\n"
    )
    (folder / "batch.yaml").write_text(
        "jobs: {mine: mine/job.yaml}\nclusters: {h100: h100-x8}\ncounts: [8, 7]\n"
    )
    (folder / "fast.yaml").write_text(run.replace("40.5", "0.5"))  # beyond the devices' peak
    (folder / "astray.yaml").write_text(run.replace("job.yaml", "jib.yaml"))
    return folder


def more(*words: str) -> Any:
    """Return a case that takes longer and tells less: it runs with -m service."""
    return pytest.param(words, marks=pytest.mark.service)


def both(url: str, *words: str) -> None:
    """Check that a command says the same here and asked of a service."""
    here, there = run_here(*words), run_here("--server", url, *words)
    assert (there.returncode, there.stderr) == (here.returncode, here.stderr)
    assert there.stdout == here.stdout
    assert here.stdout or here.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("solve", *SMALL),
        more(
            "solve",
            *SMALL,
            "--format",
            "json",
            "--top",
            "2",
            "--objective",
            "memory",
            "--within",
            "1.3",
            "--set",
            "training.global_batch=64",
            "--set",
            "pools.0.price_per_hour=20",
        ),
        more(
            "solve",
            *SMALL,
            "--format",
            "csv",
            "--only",
            "tp=1,2",
            "--max",
            "pp=2",
            "--framework",
            "megatron",
        ),
        more("solve", "mine/job.yaml", "h100-x8", "--pin", "mbs=64"),
        ("solve", "mine/job.yaml", "mine/node.yaml", "--format", "json", "--top", "1"),
        ("solve", "mine/job.yaml", "h100-x8", "--pin", "devices=6"),
        ("solve", "mine/job.yaml", "mine/wrong.yaml"),
        ("solve", "mine/none.yaml", "h100-x8"),
        ("solve", *SMALL, "--top", "0"),
        ("solve", *SMALL, "--pin", "tx=3"),
        ("solve", *SMALL, "--objective", "beauty"),
        ("solve", *SMALL, "--format", "xml"),
        ("evaluate", *SMALL, "--pin", "tp=2"),
        ("evaluate", *SMALL, "--pin", "tp=1,zero=0,mbs=8", "--format", "json"),
        more("scale", *SMALL, "--points", "2"),
        ("allocate", "mine/jobs.yaml"),
        ("allocate", "mine/jobs.yaml", "--objective", "deadline", "--format", "json"),
        ("allocate", "mine/node.yaml"),
        ("batch-solve", "mine/batch.yaml"),
        more("batch-solve", "mine/batch.yaml", "--framework", "megatron", "--format", "json"),
        ("evaluate", *SMALL, "--pin", "tp=2", "--reference", "mine/run.yaml"),
        ("evaluate", *SMALL, "--pin", "tp=2", "--reference", "mine/fast.yaml"),
        ("evaluate", *SMALL, "--pin", "tp=2", "--reference", "mine/astray.yaml"),
        more("solve", *SMALL, "--pin", "mbs=64", "--reference", "mine/run.yaml"),
        more("scale", *SMALL, "--points", "2", "--reference", "mine/run.yaml"),
        ("check-spec", "h100-x8"),
        ("check-spec", "llama3-8b"),
        ("check-spec", "mine/sweep.yaml"),
        ("check-spec", "mine/node.yaml"),
        ("check-spec", "mine/wrong.yaml"),
        ("rule",),
        ("rule", "tp002"),
        ("rule", "MLM003"),
        ("rule", "XX1"),
        ("catalog", "list"),
        ("catalog", "show", "H100"),
        ("catalog", "show", "ib-ndr-400"),
        ("catalog", "show", "none"),
    ],
)
@pytest.mark.usefixtures("files")
def test_a_command_says_the_same(url: str, words: tuple[str, ...]) -> None:
    both(url, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "{}#1"),
        ("explain", "{}#2", "--term", "bubble"),
        ("explain", "{}#77"),
        ("emit", "{}#1", "--for", "megatron,torchtitan"),
        ("emit", "{}#1", "--for", "none"),
        ("place", "{}#1"),
        ("place", "{}#1", "--format", "json", "--hosts", "box7"),
        more("diff", "{0}#1", "{0}#2"),
        more("diff", "{0}#1", "{0}#3", "--format", "json"),
        more("replan", "{}#1", "--gained", "1"),
        more("replan", "{}#1", "--gained", "1", "--format", "json"),
    ],
)
def test_a_plan_that_was_saved_here_is_sent(url: str, saved: Path, words: tuple[str, ...]) -> None:
    both(url, *(word.format(saved) for word in words))


@pytest.mark.service
def test_a_run_is_sent_with_the_files_that_it_names(url: str, tmp_path: Path) -> None:
    emitted = run_here(
        "solve",
        *SMALL,
        "--framework",
        "deepspeed",
        "--top",
        "1",
        "--emit",
        "deepspeed",
        "--out",
        str(tmp_path / "out"),
    )
    assert emitted.returncode == 0, emitted.stderr
    (folder,) = (tmp_path / "out").iterdir()
    names = sorted(path.name for path in folder.iterdir())
    script = next(name for name in names if name.endswith(".sh"))
    both(url, "check", str(folder / script), "h100-x8", "--model", "llama3-8b")
    both(url, "check", str(folder / script), "h100-x8", "--model", "llama3-8b", "--format", "json")
    both(url, "check", str(ROOT / "examples/models/llama3-8b.yaml"), "h100-x8")
    command = ("--model", "llama3-8b", "h100-x8", "--", "bash", str(folder / script))
    both(url, "check", *command)
    both(url, "check", "--format", "json", *command)
    both(url, "check", "h100-x8", "--", "torchrun", "--nproc-per-node=8", "nothing.py")


@pytest.mark.service
def test_files_are_written_here(url: str, saved: Path, tmp_path: Path) -> None:
    for folder, words in (("a", ()), ("b", ("--server", url))):
        out = str(tmp_path / folder)
        run_here(
            *words,
            "solve",
            *SMALL,
            "--top",
            "2",
            "--emit",
            "megatron",
            "--launcher",
            "slurm",
            "--out",
            out,
        )
        run_here(*words, "emit", f"{saved}#1", "--out", f"{out}/one")
        run_here(*words, "scale", *SMALL, "--points", "1", "--html", f"{out}/page.html")
    written = [
        {p.relative_to(top).as_posix(): p.read_text() for p in top.rglob("*") if p.is_file()}
        for top in (tmp_path / "a", tmp_path / "b")
    ]
    assert written[0] == written[1]
    assert len(written[0]) > 4


@pytest.mark.parametrize("name", ["../out.sh", "/nowhere/out", "..", "a\\b", ""])
def test_no_file_is_written_where_an_answer_says(saved: Path, tmp_path: Path, name: str) -> None:
    """Whoever answers at the address is not trusted with more than the folder that was named."""
    emitted = {"plan_id": name, "files": {"megatron.sh": "x", name: "x"}}
    with scripted((200, {}, emitted)) as server:
        found = run_here("--server", server.url, "emit", f"{saved}#1", "--out", "out")
    assert "no plain name" in found.stderr
    result = json.loads(saved.read_text())
    result["plans"][0]["plan_id"] = name
    cached = {**json.loads(saved.read_text()), "result_id": name}
    for answer in (result, cached):
        with scripted((200, {}, answer)) as server:
            found = run_here(
                "--server", server.url, "solve", *SMALL, "--emit", "megatron", "--out", "out"
            )
        assert "no plain name" in found.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("job", ["{model: {hiden: 4}}", "mine/wrong.yaml", "nope"])
def test_what_is_wrong_with_one_job_of_a_batch_is_placed_as_here(
    url: str, files: Path, job: str
) -> None:
    (files / "wrong.yaml").write_text("model: {hiden: 4}\n")
    text = f"jobs:\n  a: llama3-8b\n  b: {job}\nclusters: {{c: h100-x8}}\ncounts: [8]\n"
    Path("batch.yaml").write_text(text)
    here = run_here("batch-solve", "batch.yaml")
    there = run_here("--server", url, "batch-solve", "batch.yaml")
    assert there.returncode in (1, 2)
    places = [found.stderr.split(": ")[1:3] for found in (here, there)]
    assert places[0] == places[1]
    assert places[0][1].startswith("jobs.b")


@pytest.mark.service
def test_a_sweep_writes_the_same_rows(url: str, files: Path) -> None:
    words = (
        "sweep",
        "mine/job.yaml",
        "mine/node.yaml",
        "--quiet",
        "--pin",
        "tp=1",
        "--vary",
        "training.global_batch=64,128",
        "--reference",
        "mine/run.yaml",
    )
    for name, asked in (("a.jsonl", ()), ("b.jsonl", ("--server", url))):
        found = run_here(*asked, *words, "-o", name)
        assert found.returncode == 0, found.stderr
    rows = [Path(name).read_text() for name in ("a.jsonl", "b.jsonl")]
    assert rows[0] == rows[1]
    assert len(rows[0].splitlines()) == 2
    again = run_here("--server", url, *words, "-o", "b.jsonl")
    assert "nothing to do" in again.stdout
    varied = ("--vary", "model=mine/job.yaml,llama3-8b")
    refused = run_here("--server", url, "sweep", *SMALL, *varied, "-o", "c.jsonl")
    assert (refused.returncode, "mine/job.yaml" in refused.stderr) == (2, True)
    assert not Path("c.jsonl").exists()


@pytest.mark.service
def test_rows_of_a_sweep_lie_here_as_they_come(url: str, files: Path, monkeypatch: Any) -> None:
    """An interrupt keeps those that are there, and the same command goes on with the others."""
    come = Client.rows

    def two(self: Client, call: str, request: Any, **more: Any) -> Iterator[Any]:
        for n, row in enumerate(come(self, call, request, **more)):
            if n == 2:
                raise KeyboardInterrupt
            yield row

    words = (
        "--server",
        url,
        "sweep",
        *SMALL,
        "--quiet",
        "--pin",
        "tp=1",
        "-o",
        "a.jsonl",
        "--vary",
        "training.global_batch=64,72,80,88",
    )
    with monkeypatch.context() as patched:
        patched.setattr(Client, "rows", two)
        found = run_here(*words)
    assert (found.returncode, "2 of 4 points" in found.stderr) == (130, True)
    assert "2 of an earlier run" in run_here(*words).stdout
    assert run_here(*words[2:-3], "b.jsonl", *words[-2:]).returncode == 0
    assert Path("a.jsonl").read_text() == Path("b.jsonl").read_text()


@pytest.mark.slow
def test_sizes_are_counted_on_a_terminal_as_they_are_here(url: str, monkeypatch: Any) -> None:
    words = ("scale", *SMALL, "--points", "2", "--pin", "tp=1", "--only", "mbs=1,recompute=none")
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(TerminalProgress, "__call__", lambda _, *n: told.append(n))
    for asked in ((), ("--server", url)):
        told.clear()
        assert run_here(*asked, *words).returncode == 0
        assert told[-1] == (2, 2)


@pytest.mark.service
def test_the_answer_is_kept_for_last(url: str) -> None:
    run_here("--server", url, "solve", *SMALL, "--top", "1")
    assert run_here("explain", "last#1").returncode == 0
    run_here("--server", url, "replan", "last#1", "--gained", "1")
    assert "16 devices" in run_here("show", "last#1").stdout


def test_the_server_is_named_by_the_environment_too(
    url: str, monkeypatch: pytest.MonkeyPatch, saved: Path
) -> None:
    monkeypatch.setenv("PLANNER_SERVER", url)
    monkeypatch.setenv("PLANNER_TOKEN", "nobody's")
    refused = run_here("rule", "TP002")
    assert refused.returncode == 1
    assert "token" in refused.stderr
    assert run_here("show", f"{saved}#1").returncode == 0  # asks nobody
    options = run_here("solve", *SMALL, "--executor", "serial")
    assert options.returncode == 2
    assert "--executor works on this machine" in options.stderr


def test_a_token_may_stand_in_a_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLANNER_TOKEN")
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    asked = run_here("--server", url, "--token-file", str(file), "rule", "TP002")
    assert asked.returncode == 0
    file.write_text("sue solve " + TOKEN)
    for path, said in ((file, "3 words"), (tmp_path / "none", "No such")):
        refused = run_here("--server", url, "--token-file", str(path), "rule", "TP002")
        assert (refused.returncode, said in " ".join(refused.stderr.split())) == (1, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("recommend", "size", *SMALL), "planner recommend works on this machine"),
        (("show", "last#1"), "planner show works on this machine"),
        (("import", "model", "x"), "planner import model works on this machine"),
        (("solve", *SMALL, "--ray-address", "x:1"), "--ray-address works on this machine"),
        (("place", "last#1", "--out", "x"), "--out works on this machine"),
    ],
)
def test_what_no_service_does_is_refused(url: str, words: tuple[str, ...], said: str) -> None:
    refused = run_here("--server", url, *words)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: {said}")
    assert "Traceback" not in refused.stderr


def test_every_call_of_the_service_has_a_command() -> None:
    from planner.cli.remote import SERVED

    names = {"catalogue": "catalog show", "rules": "rule"}
    assert {names.get(name, name) for name in CALLS} <= {*SERVED}


def test_a_role_that_may_not_ask_is_said(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_TOKEN", "ann-reads-0123456789")
    assert run_here("--server", url, "rule", "TP002").returncode == 0
    refused = run_here("--server", url, "solve", *SMALL)
    assert refused.returncode == 1
    assert "role" in refused.stderr


def test_what_changes_the_answer_can_be_asked_of_a_service_too() -> None:
    """Every option is a field of the call, or is known to change no answer."""
    from typer.main import get_command

    fields = {
        "pin": "pins",
        "set_": "set",
        "max_": "max",
        "time_limit": "time_limit_s",
        "step_limit": "step_limit_s",
        "from_": "from_",
        "for_": "for_",
        "first": "a",
        "second": "b",
        "file": "run",
        "point_limit": "point_limit_s",
        "as_": "set",  # one of them, `model.as`; so those of the job
        **dict.fromkeys(JOB_FIELDS, "set"),
    }
    of_sweep_files = {
        "vary",
        "design",
        "samples",
        "seed",
        "where",
        "let",
        "set_",
        "pin",
        "only",
        "max_",
        "framework",
        "stack",
        "pool",
        "pools",
        "objective",
        "deadline",
        "budget",
        "step_limit",
        "within",
        "memory_margin",
        "files",
    }
    here = {"form", "columns", "verbose", "out", "html", "cache", "executor", "ray_address"}
    here |= {"quiet", "dry_run", "emit"}
    root = get_command(cli.app)
    for name, call in CALLS.items():
        if name in ("catalogue", "rules"):
            continue
        left_out = set(here)
        if name == "solve":
            left_out.add("launcher")  # of what --emit writes
        if name == "check":
            left_out.add("command")  # goes as the text of a run
        known = set(call.request.model_fields)
        command = root.commands[name]  # type: ignore[attr-defined]  # a group
        for parameter in command.params:
            option = str(parameter.name)
            if name == "sweep" and option in of_sweep_files:
                continue
            wanted = "document" if name == "check-spec" else fields.get(option, option)
            assert option in left_out or wanted in known, (name, option)


# The client, against the service itself


def test_the_client_asks_and_gets_results_of_the_library(url: str) -> None:
    import planner

    with Client(url, token=TOKEN) as service:
        answer = service.solve(*SMALL, top=2)
        mine = planner.solve(*SMALL, top=2)
        assert Result.from_json(answer).dumps() == mine.dumps()
        assert answer["plans"][0]["plan_id"] == mine.best.plan_id
        assert service.explain(answer, 2)["plan_id"] == answer["plans"][1]["plan_id"]
        assert service.emit(answer)["files"]["megatron.sh"]
        assert service.version()["calls"] == list(CALLS)
        assert service.is_ready()
        with pytest.raises(ServiceError) as caught:
            service.solve(*SMALL, colour="red")
    assert caught.value.code == "malformed"
    assert "colour" in str(caught.value)


def test_jobs_are_submitted_watched_and_read_by_pages(url: str) -> None:
    request = {"model": "llama3-8b", "cluster": "h100-x8", "points": 2}
    with Client(url, token=TOKEN) as service:
        job = service.submit("scale", request, idempotency_key="k1")
        assert service.submit("scale", request, idempotency_key="k1")["job_id"] == job["job_id"]
        states = [event["state"] for event in service.watch(job["job_id"]) if "state" in event]
        assert states[-1] == "SUCCEEDED"
        whole = service.result(job["job_id"]).json()
        pages = list(service.pages(job["job_id"], 1))
        rows = [item for page in pages for item in page["items"]]
        assert rows == whole[pages[0]["list"]]
        assert job["job_id"] in [found["job_id"] for found in service.jobs()]
        assert service.cancel(job["job_id"])["state"] == "SUCCEEDED"
        with pytest.raises(ServiceError) as caught:
            service.job("0" * 32)
    assert caught.value.status == 404


def test_a_large_question_is_waited_for_and_a_deadline_holds(tmp_path: Path) -> None:
    with live_service(tmp_path, replace(DEFAULTS, large_space=1)) as url, Client(url) as service:
        told: list[object] = []
        answer = service.ask(
            "solve", {"model": "llama3-8b", "cluster": "h100-x8"}, progress=told.append
        )
        assert answer.job_id
        assert answer.json()["complete"]
        assert told
        stopped = service.solve("llama3-70b", "h100-x512", wait_s=0.001)
        assert stopped["complete"] is False


def test_the_client_knows_the_paths_of_all_calls() -> None:
    from planner.client import FACTS, PATHS

    for operation in OPERATIONS:
        if operation.call:
            expected = PATHS.get(operation.call, f"/v1/plans:{operation.call}")
            in_query = operation.call in FACTS
            assert operation.path == (f"/v1/{operation.call}" if in_query else expected)


@pytest.mark.service
def test_certificates(tmp_path: Path) -> None:
    import subprocess

    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            "key.pem",
            "-out",
            "cert.pem",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
        cwd=tmp_path,
    )
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    with live_service(tmp_path, tls_cert=cert, tls_key=key, tls_client_ca=cert) as url:
        with Client(url, ca=cert, cert=(cert, key)) as service:
            assert service.version()["api"] == "v1"
        given = ("--server", url, "--server-ca", str(cert))
        asked = run_here(
            *given, "--server-cert", str(cert), "--server-key", str(key), "rule", "TP002"
        )
        assert asked.returncode == 0, asked.stderr
        assert run_here(*given, "--server-cert", str(cert), "rule").returncode == 2
        with Client(url, retries=0) as stranger, pytest.raises(ServiceError, match="ca=FILE"):
            stranger.version()


def test_help_names_the_option() -> None:
    from typer.testing import CliRunner

    assert "--server" in CliRunner().invoke(cli.app, ["--help"]).output
