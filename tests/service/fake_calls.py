"""A stand-in for `service.handlers.calls`: calls that sleep, fail, eat memory or die, as a test
wants."""

import hashlib
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.handlers.partial_results import KeptRow
from service.handlers.problems import Refusal, refused
from service.handlers.running_call import RunningCall as RunningCall


@dataclass(frozen=True)
class Call:
    name: str
    role: str
    size: str = "small"
    rows: bool = False


@dataclass(frozen=True)
class Asked:
    name: str
    request: Mapping[str, Any] = field(hash=False)
    request_id: str
    large: bool


CALLS = {
    "solve": Call("solve", "solve"),
    "sweep": Call("sweep", "solve", "large", rows=True),
    "catalogue": Call("catalogue", "read"),
    "page-plans": Call("page-plans", "solve"),
}


def read_request(name: str, body: bytes, settings: Any = None) -> Asked:
    try:
        request = json.loads(body)
    except ValueError:
        raise refused("malformed", "not JSON", 400) from None
    text = json.dumps([name, request], sort_keys=True)
    return Asked(name, request, hashlib.sha256(text.encode()).hexdigest(), name == "sweep")


def request_size(asked: Asked, settings: Any = None) -> Asked:
    return asked


def answer(asked: Asked, running: RunningCall) -> dict[str, Any]:
    """Square `n`, and before that do what the request says."""
    do = asked.request
    if "log" in do:  # one line for every time that the work was done
        with Path(do["log"]).open("a") as log:
            log.write(f"{os.getpid()}\n")
    if "refuse" in do:
        raise Refusal(422, "bad-option", "no", do["refuse"])
    if "bytes" in do:
        bytearray(do["bytes"])
    if "die_once" in do and not Path(do["die_once"]).exists():
        Path(do["die_once"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if "die" in do:
        os.kill(os.getpid(), do["die"])
    if "deaf_s" in do:
        time.sleep(do["deaf_s"])
    if "go" in do and running.progress:  # told at once, so that a test knows that it waits
        running.progress({"phase": "waits", "done": 0, "total": 1, "best_step_time_s": None})
    while "go" in do and not Path(do["go"]).exists():
        time.sleep(0.005)
    if "points" in do:
        return swept(do, running)
    begun, steps = time.monotonic(), int(do.get("steps", 1))
    for i in range(steps):
        if running.progress:
            told = {"phase": "squares", "done": i + 1, "total": steps, "best_step_time_s": None}
            running.progress(told)
        late = running.time_limit_s and time.monotonic() - begun > running.time_limit_s
        if late or (running.stop and running.stop()):
            return {"n": do.get("n", 0), "complete": False, "done": i}
        time.sleep(do.get("step_s", 0.0))
    n = do.get("n", 0)
    return {"n": n, "square": n * n, "list": list(range(do.get("items", 0)))}


def swept(do: Mapping[str, Any], running: RunningCall) -> dict[str, Any]:
    """Square every point, one after the other, as a sweep does: no point that is there already.

    Every point that is computed gets a line in the file `counted`.
    """
    there = {i: row.text for i, row in running.rows.items()}
    for i in range(do["points"]):
        if i in there:
            continue
        died = Path(f"{do.get('die_at', {}).get(str(i), '')}")
        if died.name and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if running.stop and running.stop():
            break
        if i == do.get("refuse_at"):
            raise Refusal(422, "bad-option", "no", "a point is refused")
        time.sleep(do.get("step_s", 0.0))
        if "counted" in do:
            with Path(do["counted"]).open("a") as counted:
                counted.write(f"{i}\n")
        there[i] = json.dumps({"index": i, "square": i * i})
        if running.keep:
            running.keep([KeptRow(i, there[i])])
    complete = len(there) == do["points"]
    return {"complete": complete, "rows": [json.loads(there[i]) for i in sorted(there)]}


def is_complete(found: Mapping[str, Any]) -> bool:
    return bool(found.get("complete", True))


def dumps(found: Mapping[str, Any], name: str) -> str:
    return json.dumps(found) + "\n"
