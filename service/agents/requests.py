"""Requests of the handlers out of the arguments of tools, and commands as calls of tools."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from planner.option_names import JOB_FIELDS, SEARCH_FIELDS
from service.agents.arguments import Job, json_value
from service.agents.short_answers import NextCall
from service.agents.tool import Data, Desk

_NAMES = {field.option_name: field.field_name for field in SEARCH_FIELDS.values()}
_MAPPINGS = ("pins", "max", "set", "only")
_LISTS = ("allow", "pareto")


def job_request(arguments: Job, desk: Desk) -> Data:
    """Return what a tool was told of a job, as requests of the handlers hold it.

    The short names of the job's fields become `set`; what is empty is left out. Raises
    `SpecError` for a file that cannot be read.
    """
    stated = arguments.model_dump(by_alias=True, exclude={"details"})
    changes = {path: stated.pop(name) for name, path in JOB_FIELDS.items()}
    named = {path: value for path, value in changes.items() if value not in (None, "")}
    stated["set"] = {**stated["set"], **named}
    request = {name: value for name, value in stated.items() if value not in (None, "", {}, [])}
    for name in ("model", "cluster"):
        request[name] = desk.document(stated[name], name)
    return request | _measured(request, desk)


def job_arguments(arguments: Job) -> Data:
    """Return the arguments of a call about a job as they were given, without what is as usual."""
    return arguments.model_dump(by_alias=True, exclude_defaults=True, exclude={"details"})


def _measured(request: Data, desk: Desk) -> Data:
    """Return calibration and reference as requests hold them: their files are read here."""
    from planner.client.requests import calibration_text, reference_of

    fields: Data = {}
    for name in ("calibration", "reference"):
        value = request.get(name)
        is_path = isinstance(value, str) and "\n" not in value
        if value is None or not (is_path and desk.opens_files):
            continue
        assert isinstance(value, str)
        read = {"calibration": calibration_text(value)} if name == "calibration" else {}
        fields |= read or reference_of(value)
    return fields


def call_of_command(command: str, purpose: str, arguments: Job) -> NextCall:
    """Return a `planner solve` command, as answers suggest them, as a call of `solve`.

    Model and cluster are as the caller named them; a cluster in words may be another one.
    """
    words = shlex.split(command)[2:]
    call: Data = {"model": arguments.model, "cluster": arguments.cluster}
    if len(words) > 1 and re.fullmatch(r"\d+x[\w.x-]+", words[1]):
        call["cluster"] = words[1]
    for option, value in zip(words[2::2], words[3::2], strict=False):
        _add_option(call, option.removeprefix("--"), value)
    for name in ("calibration", "reference"):
        if getattr(arguments, name) is not None:
            call[name] = getattr(arguments, name)
    return NextCall(purpose=purpose, tool="solve", arguments=call)


def _add_option(call: Data, option: str, value: str) -> None:
    """Add an option of the command line to the arguments of a call."""
    name = _NAMES.get(option, option)
    if name in _MAPPINGS:
        key, _, text = value.partition("=")
        texts = text.split(",") if name == "only" else [text]
        values = [json_value(x) for x in texts]
        call.setdefault(name, {})[key] = values if name == "only" else values[0]
    elif name in _LISTS:
        call.setdefault(name, []).extend(value.split(","))
    elif name not in ("calibration", "reference"):
        call[name] = json_value(value)


def plan_calls(ref: str, runner: str) -> list[NextCall]:
    """Return what usually follows an answer with a plan."""
    calls = [NextCall(purpose="why, and what would help", tool="explain", arguments={"plan": ref})]
    if runner:
        to_write: Mapping[str, Any] = {"plan": ref, "for": runner, "launcher": ["slurm"]}
        calls.append(NextCall(purpose="launch files", tool="emit", arguments=dict(to_write)))
    return calls


def pins_of(words: Sequence[str]) -> Data:
    """Return pins of texts such as `precision=fp8-tensorwise`."""
    pairs = (word.partition("=") for word in words)
    return {axis: json_value(value) for axis, _, value in pairs}
