"""What is wrong with pins, limits and changed fields of the form, each fault at its field.

Everything that a search refuses before it begins is found here, without a search.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel, Field

from planner.errors import PlannerError, SpecError
from planner.solver.request import SolveRequest, override_pairs
from planner.specs.search.section import TOGETHER
from service.handlers import schemas
from service.handlers.calls import PAGE_PREFIX, ServiceCall
from service.handlers.documents import content_of
from service.handlers.limits import check_input_limits
from service.handlers.problems import Fault, Refusal
from service.handlers.running_call import RunningCall
from service.pages.form_fields import OPTION_FIELDS, AxisWord, axis_words, options_given
from service.pages.question import question_options_of

Data = dict[str, Any]
FORM_CALL = f"{PAGE_PREFIX}form-check"
MOST_FAULTS = 20
GOALS = ("objective", "within", "memory_margin", "deadline", "budget", "step_limit_s", "pareto")
LABELS = {
    "objective": "Objective",
    "within": "Allowed slowdown",
    "memory-margin": "Memory margin",
    "deadline": "Deadline",
    "budget": "Budget",
    "pareto": "Pareto front",
    "step-limit": "Longest step",
    "pool": "Pool",
    "pools": "Pools",
    "framework": "Framework",
    "stack": "Software stack",
}
"""What the form calls the options of the command line."""
_LEAD = re.compile(
    r"(--)?(pin|only|max|set|within|memory[-_]margin|step[-_]limit(_s)?|deadline|budget|objective|pareto)"
    r": "
)
_ANY_OPTION = "--pin, --only or --max "
_AXIS_OPTION = re.compile(r"--(pin|only|max|set) (\S+)")
_OPTION = re.compile(r"--([a-z-]+)")


class FormBody(schemas.Request):
    """Fields of the form, as they were typed, with the documents that they are about."""

    model: schemas.Document | None = None
    """None where there is none yet."""
    cluster: schemas.Document | None = None
    fields: dict[str, str]
    """By `form_fields.OPTION_FIELDS`, but `set`."""
    changes: list[str] = Field(default=[])
    """Lines of the field `set`."""


class FormAnswer(BaseModel):
    """What is wrong with the fields; nothing where all of it can be searched."""

    faults: list[dict[str, str]]
    """`field`, empty for what is about no one field, `message` and `fix`."""


def form_words(text: str) -> str:
    """Return a message in the words of the form.

    >>> form_words("--pin: tp is pinned to 8 and to 4")
    'tp is pinned to 8 and to 4'
    >>> form_words("use --only tp=8,4 for several values, or --max tp=8")
    'use tp=8,4 for several values, or tp<=8'
    """
    text = _LEAD.sub("", text, count=1) if _LEAD.match(text) else text

    def pair(match: re.Match[str]) -> str:
        return match[2].replace("=", "<=", 1) if match[1] == "max" else match[2]

    text = _AXIS_OPTION.sub(pair, text.replace(_ANY_OPTION, ""))
    return _OPTION.sub(lambda match: LABELS.get(match[1], match[0]), text)


def _check_form(request: FormBody, running: RunningCall) -> Data:
    fields = {name: request.fields.get(name, "").strip() for name in OPTION_FIELDS}
    fields["set"] = "\n".join(request.changes)
    axes, faults = axis_words(fields)
    faults = [*faults, *_alone(fields, axes)]
    inputs, wrong = _inputs(request, running)
    faults += wrong
    arguments: Data = {}
    if not faults:
        faults += _tried(
            lambda: arguments.update(question_options_of(options_given(fields, axes))), axes
        )
    if not faults:
        faults += _tried(lambda: _begin(inputs, arguments, running), axes)
    return {
        "faults": [
            {
                "field": fault.field,
                "message": form_words(fault.message),
                "fix": form_words(fault.fix),
            }
            for fault in faults[:MOST_FAULTS]
        ]
    }


def _alone(fields: Mapping[str, str], axes: list[AxisWord]) -> list[Fault]:
    """Return what is wrong with fields whatever stands in the others."""

    def goal(name: str) -> None:
        goals = question_options_of({name: (fields[name],)})
        if name == "within":
            goals["objective"] = "memory"
        SolveRequest.of_json(goals).options()

    def axis(word: AxisWord) -> None:
        SolveRequest.of_json(question_options_of({word.option: (word.pair,)})).options()

    def software(name: str) -> None:
        SolveRequest.of(**{name: fields[name]}).options()

    def change(line: str) -> None:
        question_options_of({"set": (line,)})

    looks: list[tuple[str, Callable[[], object]]] = [
        (axis_word.field, partial(axis, axis_word)) for axis_word in axes
    ]
    looks += [(x, partial(software, x)) for x in ("framework", "stack") if fields[x]]
    looks += [(name, partial(goal, name)) for name in GOALS if fields[name]]
    looks += [("set", partial(change, line)) for line in fields["set"].splitlines()]
    return [fault for field, look in looks for fault in _tried(look, [], field)]


def _inputs(request: FormBody, running: RunningCall) -> tuple[Any, list[Fault]]:
    """Return model and cluster with their changed fields, None without both, and what is wrong.

    Of documents that are wrong themselves nothing is said: their own check does. Lines that are
    no change at all are those of `_alone`.
    """
    from planner.solver.sources import read_inputs

    lines = tuple(
        line for line in request.changes if line.partition("=")[0].strip() and "=" in line
    )
    read: list[Any] = []
    for document, kind in ((request.model, "model"), (request.cluster, "cluster")):
        if document is None:
            return None, []
        try:
            read.append(content_of(document, kind, kind, running.settings))  # type: ignore[arg-type]
        except (Refusal, PlannerError):
            return None, []
    try:
        inputs = read_inputs(read[0], read[1])
    except PlannerError:
        return None, []
    if not lines:
        return inputs, []
    try:
        changes = override_pairs(question_options_of({"set": lines})["set"])
        return read_inputs(read[0], read[1], changes), []
    except (PlannerError, Refusal) as error:
        return None, _faults_of(error, [], "set")


def _begin(inputs: Any, request: Data, running: RunningCall) -> None:
    """Do what a search does before it searches; without inputs what it does with options."""
    from planner.solver.problem import searched_problem
    from planner.solver.recipes import asked_models, with_open_recipes
    from planner.solver.scenarios import variants_of
    from planner.solver.unsupported import check_options

    section = SolveRequest.of_section(inputs[0].search if inputs else None)
    search = SolveRequest.of_json(request).over(section)
    options = search.options()
    check_options(options)
    if inputs is None:
        return
    model, cluster = inputs
    check_input_limits(model, cluster, running.settings)
    cluster = cluster.pool(search.pool) if search.pool else cluster
    if options.pools == TOGETHER:
        from planner.solver.together.answer import joining  # 100 ms: the search over pools

        joining(model, cluster, options)
    options = with_open_recipes(model, options)
    variants_of(
        asked_models(model, options),
        cluster,
        options,
        lambda variant, pool: searched_problem(variant, pool, options),
    )


def _tried(work: Callable[[], object], axes: list[AxisWord], field: str = "") -> list[Fault]:
    """Return the faults that some work ends with; of no named field, by what they say."""
    try:
        work()
    except (Refusal, PlannerError) as error:
        return _faults_of(error, axes, field)
    return []


def _faults_of(
    error: Refusal | PlannerError, axes: list[AxisWord], field: str = ""
) -> list[Fault]:
    if isinstance(error, Refusal):
        faults = error.errors or (Fault(error.detail),)
        return [
            Fault(x.message, x.fix, field or _field_of(x.message, x.field, axes)) for x in faults
        ]
    if isinstance(error, SpecError) and error.problems:
        return [
            Fault(
                ": ".join(x for x in (p.file.removeprefix("--set "), p.message) if x),
                p.hint,
                field,
            )
            for p in error.problems
        ]
    names = getattr(error.message, "options", ())
    name = names[0] if names else ""
    return [Fault(error.message, error.hint, field or _field_of(error.message, name, axes))]


def _field_of(message: str, name: str, axes: list[AxisWord]) -> str:
    """Return the field that a message is about: that of its option, or of the axis it names."""
    name = "step_limit_s" if name == "step-limit" else name
    if name in OPTION_FIELDS:
        return name
    text = set(re.findall(r"\w+", message))
    of_axes = [each.field for each in axes if each.axis in text]
    if of_axes:
        return of_axes[-1]
    if text & {"cost", "energy"}:
        return "objective"
    return "pool" if "has no pool" in message else ""


PAGE_CALLS = {
    FORM_CALL: ServiceCall(
        FORM_CALL,
        FormBody,
        FormAnswer,
        "read",
        "small",
        _check_form,
        "Check pins, limits and changed fields of the form",
        indent=None,
    ),
}
