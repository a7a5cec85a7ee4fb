"""Examples of the OpenAPI document: questions with their answers, as the service gave them.

They lie in `example_data` as JSON; tests/service/rest/test_examples.py asks anew and compares,
and `pytest --renew` on it writes them.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

Data = dict[str, Any]
CALLS, JOBS, PROBLEMS = "calls", "jobs", "problems"


@cache
def examples(kind: str) -> Data:
    """Return the examples of a kind by name: of a call, an operation, a status."""
    text = (files("service.rest") / "example_data" / f"{kind}.json").read_text(encoding="utf-8")
    content: Data = json.loads(text)
    return content


def request_example(operation_id: str, call: str) -> Any:
    """Return an example of the body of an operation, or of its query; None without one."""
    if call:
        return examples(CALLS).get(call, {}).get("request")
    return examples(JOBS).get(operation_id, {}).get("request")


def answer_example(operation_id: str, call: str, status: int) -> Any:
    """Return an example of what an operation answers; None without one."""
    if status == 202:
        return examples(JOBS).get("accepted", {}).get("answer")
    if status != 200:
        return None
    if call:
        return examples(CALLS).get(call, {}).get("answer")
    return examples(JOBS).get(operation_id, {}).get("answer")


def problem_example(status: int) -> Any:
    """Return an example of a refusal; None without one."""
    return examples(PROBLEMS).get(str(status))
