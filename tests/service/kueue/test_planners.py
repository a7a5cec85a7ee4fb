"""Who answers: this process or a service, and what of it speaks against the question."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from service.access.auth import Auth, read_tokens
from service.kueue.planners import (
    LocalPlanner,
    Planner,
    PlannerRefusal,
    PlannerStopped,
    PlannerUnavailable,
    RemotePlanner,
)
from tests.service.live import live_service

TOKEN = "kim-solves-0123456789"
REQUEST = {
    "model": "llama3-8b",
    "cluster": "h100-x8",
    "pins": {"tp": "2", "zero": "1", "mbs": "1"},
    "top": 1,
    "set": {"pools.0.nodes": 2},
}
WRONG = {**REQUEST, "model": "llama9-8b"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tokens = Auth(read_tokens(f"kim solve {TOKEN}", "tokens"))
    with live_service(tmp_path_factory.mktemp("live"), auth=tokens) as found:
        yield found


def test_a_service_answers_as_this_process_does(url: str) -> None:
    with closing(RemotePlanner(url, TOKEN, "", 60.0)) as remote:
        _compare(remote, LocalPlanner(60.0))


def _compare(remote: Planner, local: Planner) -> None:
    answers = [each.ask("solve", REQUEST) for each in (remote, local)]
    assert answers[0]["plans"] == answers[1]["plans"]
    cluster = {"document": "h100-x8"}
    assert remote.ask("check-spec", cluster) == local.ask("check-spec", cluster)
    emit = {"result": answers[0], "plan": 1, "for": ["megatron"]}
    assert remote.ask("emit", emit)["files"] == local.ask("emit", emit)["files"]
    for each in (remote, local):
        with pytest.raises(PlannerRefusal, match="llama9-8b"):
            each.ask("solve", WRONG)


def test_what_says_nothing_against_a_question_is_for_later(url: str) -> None:
    for address, said in ((url, "token"), ("http://127.0.0.1:1", r"127\.0\.0\.1:1")):
        with (
            closing(RemotePlanner(address, "none-such-0123456789", "", 60.0)) as planner,
            pytest.raises(PlannerUnavailable, match=said),
        ):
            planner.ask("solve", REQUEST)


def test_a_search_that_is_stopped_answers_nothing() -> None:
    with pytest.raises(PlannerStopped):
        LocalPlanner(60.0, lambda: True).ask("solve", REQUEST)
