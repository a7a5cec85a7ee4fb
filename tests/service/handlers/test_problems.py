"""A refusal names what the caller wrote: fields over a transport, options on the command line."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.option_names import REQUEST_FIELDS, SWEEP_FIELDS
from service.handlers.calls import call
from service.handlers.problems import Refusal
from tests.planner.command import run_here
from tests.service.handlers.test_calls import JOB
from tests.service.live import live_service
from tests.service.transports import OverGrpc, OverRest, Refused, Service

MIXED = {**JOB, "cluster": "mixed-h100-a100"}
RUNNING = {"evaluate": {**JOB, "pins": {"tp": 2}}}
SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096"
    " --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096"
    " --micro-batch-size 1 --global-batch-size 128 --bf16 --train-iters 10 --vocab-size 32000"
)
RUN = {"run": SCRIPT, "cluster": "h100-x8"}
OPTIONS = sorted({*REQUEST_FIELDS, *SWEEP_FIELDS, "server", "format", "out", "executor", "search"})
OPTION = re.compile(rf"--({'|'.join(OPTIONS)})\b")
SOLVED: list[tuple[dict[str, Any], str]] = [
    ({"top": 0}, "top must be at least 1"),
    ({"pins": {"tx": 1}}, "pins: unknown axis"),
    ({"pins": {"tp": "x"}}, '"pins": {"tp": 1}'),
    ({"pins": {"tp": 0}}, "pins: tp must be at least 1"),
    ({"pins": {"tp": 10**9}}, "pins: tp is at most"),
    ({"pins": {"recompute": "odd"}}, "pins: recompute cannot be"),
    ({"pins": {"recompute_modules": "odd"}}, "pins: recompute_modules cannot be"),
    ({"pins": {"split": "9-x"}}, '"pins": {"split": "9-11-11-9"}'),
    ({"pins": {"split": "9-11-12"}}, '"pins": {"split": "9-11-12"}'),
    ({"pins": {"tp": 8}, "only": {"tp": [4]}}, "pins tp and only tp contradict"),
    ({"only": {"tp": [4, 8]}, "max": {"tp": 2}}, '"only": {"tp": [4, 8]} and "max": {"tp": 2}'),
    ({"max": {"recompute": 1}}, "max: recompute has no order"),
    ({"allow": ["nope"]}, "allow: unknown"),
    ({"objective": "beauty"}, "objective: unknown"),
    ({"objective": "cost"}, '"set": {"pools.0.price_per_hour": 2.95}'),
    ({"within": 0.5}, "within must be"),
    ({"within": 1.2}, 'within belongs to "objective": "memory"'),
    ({"deadline": "x"}, "deadline: 'x' is not a time"),
    ({"deadline": "-3d"}, "deadline must be above 0"),
    ({"step_limit_s": -1.0}, '"step_limit_s": 12.5'),
    ({"pareto": ["cost"]}, '"pareto": ["step_time", "memory"]'),
    ({"pareto": ["step_time", "tokens_per_s"]}, "pareto: step_time and"),
    ({"pareto": ["step_time", "memory"], "objective": "cost"}, "pareto and"),
    ({"pins": {"devices": 7}}, "pins, only or max devices leaves"),
    ({"set": {"pools.0.nodez": 3}}, '"set": {"pools.0.nodez": 3}'),
    ({"set": {"pools.7.nodes": 1}}, '"set": {"pools.7.nodes": 1}'),
    ({"set": {"a": "["}}, '"set": {"a": "["}'),
    (
        {"set": {"pools.0.accelerator.colour": "red"}},
        '"set": {"pools.0.accelerator.colour": "red"}: pools.0.accelerator.colour: unknown key',
    ),
    ({"set": {"training.precision": "fp32"}}, '"set": {"training.precision": "bf16"}'),
    ({"set": {"search": "{pin: {tp: x}}"}}, "for example search tp=1"),
]
OTHERS: list[tuple[str, dict[str, Any], str]] = [
    ("evaluate", {**MIXED, "pins": {"tp": 2}}, "name it with pool"),
    (
        "evaluate",
        {**JOB, "pins": {}, "set": {"training.precision": "[bf16, fp16]"}},
        '"pins": {"precision": "bf16"}',
    ),
    ("scale", MIXED, "name it with pool"),
    ("scale", {**JOB, "points": 1}, "points must be 2"),
    ("scale", {**JOB, "pins": {"devices": 8}}, "from and to in place"),
    ("scale", {**JOB, "from": 16, "to": 8}, '"from": 16 is above "to": 8'),
    ("scale", {**JOB, "from": -1}, "from must be"),
    ("scale", {**JOB, "over": "layers", "scaling": "weak"}, '"over": "layers"'),
    ("replan", RUNNING, '"lost": 2, or "gained": 4'),
    ("replan", {**RUNNING, "lost": 5}, '"lost": 5: the plan runs'),
    ("replan", {**RUNNING, "lost": ["n1"]}, "lost names hosts"),
    ("replan", {**RUNNING, "gained": -1}, '"gained": -1 is below 0'),
    ("place", {**RUNNING, "hosts": ""}, "hosts is empty"),
    ("place", {**RUNNING, "hosts": "n[1-"}, "hosts: 'n[1-'"),
    ("check", {**RUN, "pins": {"tp": 2}}, "pins tp: run says"),
    ("check", {**RUN, "cluster": "mixed-h100-a100"}, "name it with pool"),
    ("check", {**RUN, "framework": "deepspeed"}, '"framework": "megatron"'),
    ("check", {**RUN, "set": {"nope": 3}}, "set nope: Megatron-LM"),
    ("check", {**RUN, "version": "x.y"}, '"version": "0.19.2"'),
    ("check", {**RUN, "run": SCRIPT.replace("32 ", "$L ", 1)}, '"env": {"L": "..."}'),
    ("check", {**RUN, "run": '{"zero_optimization": {"stage": 1}}'}, '"model": "llama3-8b"'),
    ("sweep", {"spec": JOB}, '"vary": {"PATH": ["VALUES"]}'),
    ("sweep", {"spec": {**JOB, "vary": {"pools.0.nodes": "1..4"}}}, '"design": "latin"'),
    (
        "sweep",
        {"spec": {**JOB, "vary": {"pools.0.nodes": [1]}, "search": {"within": 3}}},
        "within belongs to",
    ),
]
FIELDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("solve", {**JOB, "framework": "nope"}, "unknown framework", "framework"),
    ("solve", {**JOB, "stack": "nope"}, "unknown stack", "stack"),
    ("solve", {**JOB, "pool": "nope"}, "the cluster has no pool", "pool"),
    ("evaluate", {**JOB, "pins": {"tp": 3}}, "not a multiple of tp 3", "pins"),
    ("solve", {**JOB, "objective": "cost"}, "cost needs a price", "objective"),
    ("solve", {**JOB, "pareto": ["cost", "memory"]}, "cost needs a price", "pareto"),
    (
        "solve",
        {**JOB, "cluster": {"text": "a: [", "name": "c.yaml"}},
        "not valid YAML",
        "cluster",
    ),
    ("solve", {**JOB, "calibration": "nope"}, "is no calibration", "calibration"),
    ("explain", {**RUNNING, "term": "nope"}, "no term", "term"),
    ("explain", {**RUNNING, "plan": 7}, "no plan '7'", "plan"),
    ("explain", {"result": {"a": 1}}, "is not a result of planner", "result"),
    ("explain", {"solve": {**JOB, "pool": "nope"}}, "the cluster has no pool", "solve.pool"),
    (
        "explain",
        {"solve": {**JOB, "cluster": {"text": "a: [", "name": "c.yaml"}}},
        "not valid YAML",
        "solve.cluster",
    ),
    ("explain", {"evaluate": {**JOB, "pins": {"tx": 2}}}, "unknown axis", "evaluate.pins"),
    ("diff", {"a": RUNNING, "b": {**RUNNING, "plan": 9}}, "no plan '9'", "b.plan"),
    (
        "diff",
        {"a": {"evaluate": {**JOB, "pins": {"tp": 3}}}, "b": RUNNING},
        "not a multiple",
        "a.evaluate.pins",
    ),
    ("emit", {**RUNNING, "for": ["nope"]}, "unknown framework", "for"),
    ("emit", {**RUNNING, "launcher": ["nope"]}, "unknown launcher", "launcher"),
    ("place", {**RUNNING, "hosts": "n1\nn1"}, "is named 2 times", "hosts"),
    ("replan", RUNNING, "no node is lost or gained", "lost"),
    ("replan", {**RUNNING, "lost": 1}, "no node is left", "lost"),
    ("check", {**RUN, "framework": "nope"}, "unknown framework", "framework"),
    ("check", {**RUN, "pool": "nope"}, "the cluster has no pool", "pool"),
    ("check", {**RUN, "run": "nonsense"}, "is not a run that is known", "run"),
    (
        "check-spec",
        {"document": {"text": "x", "name": "a.yaml"}},
        "expected a model file",
        "document",
    ),
    ("catalogue", {"name": "nope"}, "GET /v1/catalogue", "name"),
    ("rules", {"code": "XX1"}, "GET /v1/rules lists them all", "code"),
    (
        "evaluate",
        {**JOB, "pins": {"tp": 8, "sp": 1, "dp_shard": 1, "mbs": 3}},
        "GET /v1/rules?code=",
        "pins",
    ),
    (
        "solve",
        {**JOB, "set": {"pools.0.accelerator": "nope"}},
        "`GET /v1/catalogue` shows",
        "pools.0.accelerator",
    ),
]
"""What is wrong is said without an option, and has its field all the same."""
CASES = [("solve", {**JOB, **more}, words) for more, words in SOLVED] + OTHERS


def said(problem: dict[str, Any]) -> str:
    """Return the words of a problem, those for the command line aside."""
    faults = [
        {k: x for k, x in each.items() if k != "in_options"} for each in problem.get("errors", ())
    ]
    return json.dumps([problem["detail"], faults]).replace('\\"', '"')


@pytest.mark.parametrize(("name", "request_", "words"), CASES)
def test_a_refusal_names_fields_of_the_request(
    name: str, request_: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refusal) as caught:
        call(name, request_)
    text = said(caught.value.to_json())
    assert words in text
    assert not OPTION.search(text)


@pytest.mark.parametrize(("name", "request_", "words", "field"), FIELDS)
def test_a_refusal_has_the_field_that_is_wrong(
    name: str, request_: dict[str, Any], words: str, field: str
) -> None:
    with pytest.raises(Refusal) as caught:
        call(name, request_)
    text = said(caught.value.to_json())
    assert words in text
    assert not re.search(r"\bplanner (catalog|rule|solve|show)\b", text)
    assert [fault.field for fault in caught.value.errors] == [field]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    from service.handlers import calls
    from service.handlers.limits import RequestLimits

    found = Service(tmp_path_factory.mktemp("real"), "", calls, RequestLimits())
    yield found
    found.close()


@pytest.mark.parametrize("name", ["solve", "evaluate", "place", "check"])
def test_both_transports_say_the_same(real: Service, name: str) -> None:
    request, words = next((asked, words) for call, asked, words in CASES if call == name)
    problems = []
    for ask in (OverRest(real), OverGrpc(real)):
        with pytest.raises(Refused) as caught:
            ask.call(name, request)
        problems.append({k: x for k, x in caught.value.problem.items() if k != "instance"})
    assert problems[0] == problems[1]
    assert words in said(problems[0])


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("solve", *JOB.values(), "--top", "0"), "--top must be at least 1, not 0"),
        (("solve", *JOB.values(), "--top", "1000"), ""),
        (("solve", *JOB.values(), "--pin", "devices=7"), "--pin, --only or --max devices"),
        (("solve", *JOB.values(), "--pin", "tp=8", "--only", "tp=4"), "--pin tp and --only tp"),
        (("solve", *JOB.values(), "--objective", "cost"), "--set pools.0.price_per_hour=2.95"),
        (("solve", *JOB.values(), "--set", "pools.0.nodez=3"), "--set pools.0.nodez=3"),
        (("evaluate", "llama3-8b", "mixed-h100-a100"), "name it with --pool"),
        (("scale", *JOB.values(), "--points", "1"), "for example --points 16"),
        (("scale", *JOB.values(), "--over", "layers", "--scaling", "weak"), "--over layers"),
    ],
)
def test_over_a_server_the_command_names_its_options(
    url: str, words: tuple[str, ...], shown: str
) -> None:
    there = run_here("--server", url, *words)
    if not shown:  # a limit of the service alone
        assert there.stderr.startswith("error: --top: plans in the answer: 1,000")
        return
    here = run_here(*words)
    assert (there.returncode, there.stderr) == (here.returncode, here.stderr)
    assert shown in " ".join(there.stderr.split())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_service(tmp_path_factory.mktemp("live")) as found:
        yield found


LIBRARY = Path(planner.__file__).parent
HERE_ALONE = (
    "frameworks/launchers/hosts.py",
    "analyze/recommend/questions.py",
    "analyze/trace/chrome_trace.py",
    "analyze/trace/comparison.py",
    "analyze/trace/summary.py",
    "analyze/kineto/",
    "cli/",
    "client/",
    "data/",
    "frameworks/launchers/files.py",
    "frameworks/launchers/kubernetes.py",
    "frameworks/launchers/launch.py",
    "frameworks/launchers/slurm.py",
    "learn/",
    "measure/",
    "render/charts/",
    "render/plan_view/",
    "render/report/",
    "solver/answer/result_store.py",
    "solver/calibration/",
    "specs/importers/",
    "specs/loader.py",
    "sweeps/spec/",
)
"""Modules of commands that no service answers, or that read what the command line alone has."""


def test_no_error_of_what_a_service_calls_spells_an_option_out() -> None:
    """It is named by `planner.option_names.option`, so that each edge can say it in its words."""
    of_requests = re.compile(rf"--({'|'.join(sorted({*REQUEST_FIELDS, *SWEEP_FIELDS}))})\b")
    found = []
    for path in sorted(LIBRARY.rglob("*.py")):
        here = path.relative_to(LIBRARY)
        if here.as_posix().startswith(HERE_ALONE) or here.parent.as_posix() == "sweeps":
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if of_requests.search(text) else ():
            if isinstance(node, ast.Raise) and node.exc is not None:
                texts = [
                    x.value
                    for x in ast.walk(node.exc)
                    if isinstance(x, ast.Constant) and isinstance(x.value, str)
                ]
                found += [(path.name, node.lineno, x) for x in texts if of_requests.search(x)]
    assert not found


@pytest.mark.slow
def test_no_option_of_a_message_is_lost_in_an_f_string() -> None:
    """A message is joined with `+`: of an f-string the text alone is left, with `--pin` in it."""
    lost = [
        (path.name, part.lineno)
        for path in LIBRARY.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if isinstance(part, ast.Call)
        and isinstance(part.func, ast.Name)
        and part.func.id in ("option", "command", "option_or_section")
    ]
    assert not lost
