"""Runs one check per case, each in a fork: a framework is imported once and keeps its globals apart.

A case is a JSON object a line with an "id"; its answer is the JSON that `check(case)` returns.
"""
import gc
import json
import os
import signal
import sys

CASE_LIMIT_S = 120


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


def dataclass_options(cls, prefix="", seen=()):
    """Yield (name, facts) of the fields of a dataclass, those of nested ones with dots between."""
    import dataclasses
    import typing

    try:
        hints = typing.get_type_hints(cls)
    except Exception:
        hints = {}
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        hint = hints.get(field.name)
        inner = hint if dataclasses.is_dataclass(hint) else None
        if inner is not None and inner not in seen:
            yield from dataclass_options(inner, f"{prefix}{field.name}.", (*seen, cls))
            continue
        facts = {"required": required}
        if typing.get_origin(hint) is typing.Literal:
            facts["choices"] = [str(x) for x in typing.get_args(hint)]
        if field.default is not dataclasses.MISSING:
            facts["default"] = plain(field.default)
        yield f"{prefix}{field.name}", facts


def parser_options(parser):
    """Yield (name, facts) of the options of an argparse parser."""
    for action in parser._actions:
        for name in action.option_strings:
            yield name, {
                "required": bool(action.required),
                "choices": sorted(map(str, action.choices)) if action.choices else None,
                "default": plain(action.default),
            }


def plain(value):
    """Return a default as text that does not change from run to run."""
    text = str(value)
    return text if " at 0x" not in text else type(value).__name__


def print_options(options):
    """Print the options that a release knows as one JSON object."""
    print(json.dumps(dict(sorted(options)), default=str))


def _no_end(*_):
    raise TimeoutError(f"no end after {CASE_LIMIT_S} s")
