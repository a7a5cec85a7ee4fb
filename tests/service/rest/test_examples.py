"""Examples of docs/openapi.json: what the service answers to them, and what their schemas allow.

`pytest --renew -m "slow or not slow" tests/service/rest/test_examples.py` asks anew and writes
them; then scripts/openapi.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

import service.rest.examples as stored
from service.access.admission import overloaded
from service.access.auth import Auth, read_tokens
from service.engine import too_late_problem
from service.handlers import calls
from service.handlers.calls import CALLS
from service.handlers.limits import RequestLimits
from service.http.connections import too_many_connections
from service.jobs.queue import _expired
from service.jobs.records import JobView, State
from service.jobs.store import StoreFull
from service.rest.application import Rest
from service.rest.components import PROBLEMS
from service.rest.endpoints import defect
from service.rest.openapi import openapi_document
from service.settings.serving import PublicAddress
from tests.service.inline import inline_engine
from tests.service.waiting import PATIENCE_S
from tests.snapshots import check_snapshot

FOLDER = Path(stored.__file__).parent / "example_data"
TOKEN, READER = "sue-solves-0123456789", "ann-reads-0123456789"
LLAMA = {"model": "llama3-8b", "cluster": "h100-x8"}
PINS = {"tp": 2, "recompute": "none"}
ONE = {"evaluate": {**LLAMA, "pins": PINS}}
RUN = "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 32 --hidden-size 4096 \
--num-attention-heads 32 --ffn-hidden-size 14336 --seq-length 8192 --max-position-embeddings 8192 \
--group-query-attention --num-query-groups 8 --swiglu --vocab-size 128256 --micro-batch-size 1 \
--global-batch-size 128 --bf16 --use-distributed-optimizer"
REQUESTS: dict[str, dict[str, Any]] = {
    "solve": {**LLAMA, "framework": "megatron", "max": {"pp": 2}, "top": 1},
    "evaluate": {**LLAMA, "pins": PINS},
    "explain": {**ONE, "term": "bubble"},
    "emit": {
        "evaluate": {**LLAMA, "framework": "fsdp2", "pins": {"recompute": "full", "zero": 3}},
        "for": ["axolotl"],
    },
    "check": {"run": RUN, "cluster": "h100-x8"},
    "diff": {"a": ONE, "b": {"evaluate": {**LLAMA, "pins": {"tp": 4}}}},
    "scale": {**LLAMA, "from": 8, "to": 16, "points": 2, "pins": {"tp": 2}},
    "batch-solve": {
        "jobs": {"llama": "llama3-8b"},
        "clusters": {"h100": "h100-x8"},
        "counts": [8],
    },
    "allocate": {
        "free": {"h100": 4},
        "jobs": [
            {
                "name": "first",
                "curve": [
                    {"pool": "h100", "nodes": 1, "tokens_per_s": 90_000.0},
                    {"pool": "h100", "nodes": 2, "tokens_per_s": 170_000.0},
                ],
            },
            {
                "name": "second",
                "curve": [{"pool": "h100", "nodes": 3, "tokens_per_s": 250_000.0}],
                "weight": 2.0,
            },
        ],
    },
    "sweep": {
        "spec": {
            "cluster": "h100-x8",
            "model": "llama3-8b",
            "search": {"max": {"cp": 1, "pp": 1}, "pin": {"tp": 2}},
            "vary": {"training.global_batch": [64, 128]},
        }
    },
    "replan": {
        "evaluate": {**LLAMA, "cluster": "16xh100", "pins": {"tp": 2, "recompute": "full"}},
        "lost": 1,
    },
    "place": {**ONE, "hosts": "n7"},
    "trace": {**ONE, "micro_batches": 1},
    "catalogue": {"name": "h100"},
    "rules": {"code": "TP002"},
    "check-spec": {"document": "h100-x8"},
}
QUICK = ("allocate", "catalogue", "check-spec", "evaluate", "place", "rules")


def view(state: State, **more: Any) -> JobView:
    """Return a job as the store has it."""
    sha256 = "9f2d" * 16 if state is State.SUCCEEDED else ""
    values: dict[str, Any] = {
        "started_at": None,
        "finished_at": None,
        "complete": None,
        "problem": None,
        "attempts": 0,
        "n_events": 1,
    }
    fixed = ("6f1e0a4c9b7d4c52a1f08e3d5b6c7a90", "sue", "sweep", "4b7c" * 16, state)
    return JobView(
        *fixed,
        created_at=1_764_000_000.0,
        sha256=sha256,
        **{**values, **more},  # type: ignore[arg-type]  # by name
    )


def job_examples() -> dict[str, Any]:
    """Return requests and answers about jobs."""
    running = {"attempts": 1, "started_at": 1_764_000_001.5}
    ended = {**running, "finished_at": 1_764_000_009.25, "n_events": 7}
    done = view(State.SUCCEEDED, complete=True, **ended).to_json()
    return {
        "accepted": {"answer": view(State.PENDING).to_json()},
        "submitJob": {"request": {"call": "sweep", "request": REQUESTS["sweep"]}},
        "getJob": {"answer": view(State.RUNNING, n_events=3, **running).to_json()},
        "cancelJob": {"answer": view(State.CANCELLED, **ended).to_json()},
        "listJobs": {
            "request": {"limit": 1},
            "answer": {"jobs": [done], "next_cursor": "", "resource_version": 7},
        },
    }


class Service:
    """The calls as they are, in this process, over REST."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        settings = RequestLimits()
        self._context = inline_engine(folder, calls=calls, settings=settings)
        engine = self.runner.run(self._context.__aenter__())
        auth = Auth(read_tokens(f"sue solve {TOKEN}\nann read {READER}", "tokens"))
        address = PublicAddress(only_hosts=frozenset({"localhost"}))
        self.app = Rest(engine, auth, settings, address)

    def ask(self, method: str, path: str, token: str = TOKEN, **given: Any) -> httpx.Response:
        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            base = given.pop("base", "http://localhost")
            headers = {"x-request-id": "example", **given.pop("headers", {})}
            if token:
                headers["authorization"] = f"Bearer {token}"
            async with httpx.AsyncClient(transport=transport, base_url=base) as client:
                return await asyncio.wait_for(
                    client.request(method, path, headers=headers, **given), PATIENCE_S
                )

        return self.runner.run(asked())

    def close(self) -> None:
        self.runner.run(self._context.__aexit__(None, None, None))
        self.runner.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("examples"))
    yield found
    found.close()


def problems(service: Service) -> dict[str, Any]:
    """Return a refusal of every status: sent where a request brings it about at once."""
    solve = "/v1/plans:solve"
    failing = {"call": "solve", "request": {**LLAMA, "objective": "beauty"}}
    job = service.ask("POST", "/v1/jobs", json=failing).json()["job_id"]
    service.ask("GET", f"/v1/jobs/{job}/events")
    sent = {
        400: service.ask(
            "POST", solve, content='{"model": ', headers={"content-type": "application/json"}
        ),
        401: service.ask("POST", solve, "", json=LLAMA),
        403: service.ask("POST", solve, READER, json=LLAMA),
        404: service.ask("GET", "/v1/jobs/0a1b2c"),
        409: service.ask("GET", f"/v1/jobs/{job}/result?so_far=true"),
        413: service.ask("POST", solve, json={**LLAMA, "model": "x" * RequestLimits().body_bytes}),
        415: service.ask("POST", solve, content="{}", headers={"content-type": "text/plain"}),
        421: service.ask("GET", "/livez", "", base="http://elsewhere.example"),
        422: service.ask("POST", solve, json={**LLAMA, "pins": {"tp": "many"}}),
    }
    for status, answer in sent.items():
        assert answer.status_code == status, answer.text
    made = (
        _expired(),
        overloaded("64 requests wait", 2.5),
        defect(ZeroDivisionError()),
        too_many_connections(1_000),
        too_late_problem(2.0),
        StoreFull("4 KiB are free"),
    )
    found = {status: answer.json() for status, answer in sent.items()}
    found |= {each.status: each.to_json("example") for each in made}
    return {str(status): found[status] for status in sorted(found)}


def text_of(data: Any) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def test_examples_of_jobs_and_refusals_are_what_the_service_sends(service):
    check_snapshot(FOLDER / "jobs.json", text_of(job_examples()))
    check_snapshot(FOLDER / "problems.json", text_of(problems(service)))


def test_every_call_and_refusal_has_an_example():
    assert stored.examples(stored.CALLS).keys() == CALLS.keys() == REQUESTS.keys()
    by_status = {int(status) for status in stored.examples(stored.PROBLEMS)}
    assert by_status == PROBLEMS.keys() - {408}  # of which only a slow network brings one about


@pytest.mark.parametrize("name", QUICK)
def test_quick_examples_are_what_the_service_answers(name):
    example = stored.examples(stored.CALLS)[name]
    assert example["request"] == REQUESTS[name]
    assert json.loads(calls.dumps(calls.call(name, REQUESTS[name]), name)) == example["answer"]


@pytest.mark.slow
def test_examples_of_calls_are_what_the_service_answers():
    found = {
        name: {
            "request": REQUESTS[name],
            "answer": json.loads(calls.dumps(calls.call(name, REQUESTS[name]), name)),
        }
        for name in CALLS
    }
    check_snapshot(FOLDER / "calls.json", text_of(found))


def contents(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every content of the document that has a schema, with its place."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts = {"request": operation.get("requestBody", {}), **operation["responses"]}
            for name, part in parts.items():
                for content in part.get("content", {}).values():
                    yield f"{method} {path} {name}", content
    for name, part in document["components"]["responses"].items():
        for content in part["content"].values():
            yield name, content


def test_examples_are_what_their_schemas_say():
    document = openapi_document()
    n_examples = 0
    for place, content in contents(document):
        for example in content.get("examples", {}).values():
            n_examples += 1
            schema = {**content["schema"], "components": document["components"]}
            faults = list(Draft202012Validator(schema).iter_errors(example["value"]))
            assert not faults, f"{place}: {faults[0].json_path}: {faults[0].message}"
    assert n_examples >= 2 * len(CALLS) + len(PROBLEMS)
