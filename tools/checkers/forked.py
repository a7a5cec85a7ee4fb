"""Runs one check per case, each in a fork: a framework is imported once and keeps its globals apart.

A case is a JSON object a line with an "id"; its answer is the JSON that `check(case)` returns.
"""
import gc
import json
import os
import signal
import sys

CASE_LIMIT_S = int(120 * float(os.environ.get("PLANNER_CHECK_PATIENCE") or 1)) or 1
PROGRAMS = os.path.join(os.path.dirname(__file__), "..", "..", "planner", "data", "programs")


def answers(lines, check):
    """Yield (case, answer) in order; a check that dies or does not end is an answer that says so."""
    gc.collect()
    gc.freeze()  # pages shared with the forks stay shared
    for line in lines:
        if not line.strip():
            continue
        case = json.loads(line)
        sys.stdout.flush()
        sys.stderr.flush()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            signal.signal(signal.SIGALRM, _no_end)
            signal.alarm(CASE_LIMIT_S)
            try:
                answer = check(case)
            except BaseException as error:
                answer = {"accepted": False, "died": True, "error": f"checker: {error!r}"}
            with os.fdopen(write, "w") as pipe:
                pipe.write(json.dumps(answer, default=str))
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        yield case, json.loads(text or '{"accepted": false, "died": true, "error": "checker: the check died"}')


def print_answers(lines, check, as_json):
    """Print an answer a line; return 0 when every case was accepted, else 1."""
    code = 0
    for case, answer in answers(lines, check):
        code |= not answer["accepted"]
        if as_json:
            print(json.dumps({"id": case.get("id"), **answer}), flush=True)
        else:
            verdict = "ACCEPTED" if answer["accepted"] else "REFUSED "
            print(f"{verdict} {case.get('id', '')} {reason(answer)}".rstrip(), flush=True)
    return code


def reason(answer):
    """Return why a case was refused, in the framework's own words."""
    if answer.get("errors"):
        return "; ".join(answer["errors"])
    stage = next((s for s in answer.get("stages", []) if not s["ok"]), None)
    if stage:
        return f"{stage['stage']}: {stage['error']}" + (f" [{stage['at']}]" if stage.get("at") else "")
    return answer.get("error") or ""


def print_options(framework):
    """Print the options that an imported release knows as one JSON object."""
    sys.path.insert(0, PROGRAMS)
    import flag_probe

    print(json.dumps(flag_probe.options_of(framework), default=str))


def _no_end(*_):
    raise TimeoutError(f"no end after {CASE_LIMIT_S} s")
