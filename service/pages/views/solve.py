"""The view that asks: model and cluster, pins and limits, checked while one types."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from service.handlers.problems import Fault, Refusal, refused
from service.pages.examples import example_text, examples
from service.pages.form_check import FORM_CALL
from service.pages.form_fields import (
    NUMBER_AXES,
    OPTION_FIELDS,
    WHOLE,
    WORD_AXES,
    axis_words,
    options_given,
)
from service.pages.question import TOP, Query, question_of, question_options_of, question_query
from service.pages.render import render_page
from service.pages.views.plans import TOPS
from service.pages.visit import Data, Page, Upload, Visit

Kind = Literal["model", "cluster"]
KINDS: tuple[Kind, Kind] = ("model", "cluster")
TITLES = {
    **{f"axis_{axis}": axis for axis in (*NUMBER_AXES, *WORD_AXES)},
    "more": "Other axes",
    "framework": "Framework",
    "stack": "Software priced",
    "objective": "Objective",
    "within": "Within",
    "memory_margin": "Memory margin",
    "deadline": "Deadline",
    "step_limit_s": "Longest step",
    "pool": "Pool",
    "pareto": "Front of",
    "set": "Changed fields",
    "": "The question",
}
"""What the form calls its fields."""
FIRST = {"model": "llama3-70b", "cluster": "h100-x512"}
_NAME = re.compile(r"[^A-Za-z0-9._+#@-]+")


def words_of(axis: str) -> tuple[str, ...]:
    """Return the values of an axis that is a word."""
    from planner.specs.search.axis_values import WORDS

    return WORDS[axis]


def choice_lists() -> Data:
    """Return what the form offers."""
    from costmodels.stacks import STACKS
    from planner.specs.search.objectives import OBJECTIVES
    from searches.frameworks.registry import framework_spaces, older_releases

    return {
        "examples": {kind: examples(kind) for kind in KINDS},
        "number_axes": NUMBER_AXES,
        "word_axes": {axis: words_of(axis) for axis in WORD_AXES},
        "frameworks": (*framework_spaces(), *older_releases()),
        "objectives": OBJECTIVES,
        "stacks": tuple(sorted(STACKS)),
        "tops": TOPS,
    }


# The form from a question, and back


def draft_of(request: Mapping[str, Any]) -> Data:
    """Return the fields of the form that ask a solve request."""
    draft: Data = {"top": request.get("top", TOP), "set": "", "more": ""}
    for kind in KINDS:
        draft[kind] = document_draft(request.get(kind), kind)
    axes: dict[str, list[str]] = {}
    for axis, value in request.get("pins", {}).items():
        axes.setdefault(axis, []).append(str(value))
    for axis, values in request.get("only", {}).items():
        axes.setdefault(axis, []).append(",".join(map(str, values)))
    for axis, value in request.get("max", {}).items():
        axes.setdefault(axis, []).append(f"<={value}")
    more = []
    for axis in (*NUMBER_AXES, *WORD_AXES):
        axis_values = axes.get(axis, [])
        plain = len(axis_values) == 1 and (axis in NUMBER_AXES or axis_values[0] in words_of(axis))
        draft[f"axis_{axis}"] = axes.pop(axis)[0] if plain else ""
    for axis, axis_values in axes.items():
        more += [
            f"{axis}{text}" if text.startswith("<=") else f"{axis}={text}" for text in axis_values
        ]
    draft["more"] = " ".join(more)
    draft["set"] = "\n".join(f"{path}={value}" for path, value in request.get("set", {}).items())
    for name in WHOLE:
        value = request.get(name, "")
        draft[name] = ",".join(value) if isinstance(value, list) else str(value or "")
    return draft


def draft_of_query(query: Query, documents: Data) -> Data:
    """Return the fields of the form that hold what an address says, though it is no question."""
    draft = draft_of(documents)
    draft |= {name: ",".join(query.get(name, ())) for name in WHOLE}
    draft["set"] = "\n".join(query.get("set", ()))
    pins = " ".join(query.get("pin", ())).replace(",", " ")
    bounds = " ".join(query.get("max", ())).replace(",", " ").replace("=", "<=")
    draft["more"] = " ".join([pins, *query.get("only", ()), bounds]).strip()
    return draft


def document_draft(document: Any, kind: Kind) -> Data:
    """Return how the form shows a document: an example, or a text."""
    names = [name for name, _ in examples(kind)]
    if isinstance(document, str) and document in names:
        return {"source": "example", "example": document, "text": "", "name": ""}
    entries = {"source": "text", "example": FIRST[kind], "text": "", "name": ""}
    if isinstance(document, dict) and isinstance(document.get("text"), str):
        return entries | {"text": document["text"], "name": str(document.get("name", ""))}
    if isinstance(document, dict):
        return entries | {"text": json.dumps(document, indent=1)}
    if isinstance(document, str) and document:
        return entries | {"text": document}
    return entries | {"source": "example"}


def posted_draft(fields: Mapping[str, str], files: Mapping[str, Upload]) -> Data:
    """Return the fields of the form as they were sent, a file in the place of its text."""
    draft: Data = {name: fields.get(name, "").strip() for name in OPTION_FIELDS}
    draft["set"] = _lines(fields.get("set", ""))
    top = fields.get("top", str(TOP))
    draft["top"] = int(top) if top.isascii() and top.isdigit() and len(top) < 6 else TOP
    for kind in KINDS:
        draft[kind] = {
            "source": fields.get(f"{kind}_source", "example"),
            "example": fields.get(f"{kind}_example", FIRST[kind]),
            "text": _lines(fields.get(f"{kind}_text", "")),
            "name": upload_name(fields.get(f"{kind}_name", "")),
        }
        file = files.get(f"{kind}_file")
        if isinstance(file, Upload) and file.text.strip():
            draft[kind] |= {
                "source": "text",
                "text": _lines(file.text),
                "name": upload_name(file.name),
            }
    return draft


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def upload_name(text: str) -> str:
    """Return a name of a file as requests may hold it: no folders, plain letters."""
    plain = text.replace("\\", "/").rpartition("/")[2]
    return _NAME.sub("_", plain).lstrip(".")[:128]


def request_of(draft: Mapping[str, Any]) -> Data:
    """Return the solve request of a form; `Refusal` 422 for a field that cannot be read."""
    axes, faults = axis_words(draft)
    if faults:
        raise refused("malformed", faults[0].message, 422, faults)
    request: Data = {kind: document_of(draft[kind], kind) for kind in KINDS}
    return request | question_options_of(options_given(draft, axes)) | {"top": draft["top"]}


def document_of(draft: Mapping[str, Any], kind: Kind) -> Any:
    """Return the document of a part of the form; `Refusal` 422 where there is none."""
    if draft["source"] == "example":
        return draft["example"]
    if not draft["text"].strip():
        detail = f"{kind}: the text is empty"
        raise refused("malformed", detail, 422, [Fault(detail, "paste a file", kind)])
    named = {"name": draft["name"]} if draft["name"] else {}
    return {"text": draft["text"], **named}


# The pages


async def solve_page(visit: Visit) -> str:
    """Show the form: empty, or with the question of the address and what is wrong with it."""
    both: Data = {kind: visit.get(kind) or FIRST[kind] for kind in KINDS}
    value = dict(visit.query)
    if "q" not in value:
        value |= {kind: (both[kind],) for kind in KINDS}
    try:
        draft = draft_of(question_of(value, visit.settings) or both)
    except Refusal:
        if "q" in value:
            raise
        draft = draft_of_query(value, both)  # its fields say what is wrong
    for kind in KINDS:
        if visit.get("edit") == kind and draft[kind]["source"] == "example":
            draft[kind] |= edited(kind, draft[kind]["example"])
    faults: list[Data] = []
    if any(draft[name] for name in OPTION_FIELDS):
        faults = await form_faults(visit, draft)
    return _form(visit, draft, faults=faults)


def edited(kind: Kind, example: str) -> Data:
    """Return the part of a form that holds the text of an example; nothing of an unknown one."""
    if example not in (name for name, _ in examples(kind)):
        return {}
    return {"source": "text", "text": example_text(kind, example), "name": f"{example}.yaml"}


def _form(
    visit: Visit,
    draft: Data,
    problem: Refusal | None = None,
    checked: Mapping[str, Any] | None = None,
    faults: Sequence[Data] | None = None,
    looked: bool = False,
) -> str:
    """Return the form; `faults` are those of its fields, `looked` whether none is worth a word."""
    by_field: dict[str, list[Data]] = {}
    for fault in faults or ():
        by_field.setdefault(fault["field"], []).append(fault)
    return render_page(
        visit,
        "solve.html.j2",
        draft=draft,
        problem=problem,
        checked=checked or {},
        kinds=KINDS,
        faults=by_field,
        titles=TITLES,
        looked=looked,
        **choice_lists(),
    )


async def asked(visit: Visit) -> Page:
    """Check the form that was sent; where it is right and wants plans, go to them.

    With `edit-model` or `edit-cluster` it comes back with the text of the chosen example.

    Whatever is wrong, the form comes back as it was filled in.
    """
    draft = posted_draft({name: visit.posted(name) for name in visit.form}, visit.files)
    for kind in KINDS:
        if visit.posted("do") == f"edit-{kind}":
            draft[kind] |= edited(kind, draft[kind]["example"])
            return Page(_form(visit, draft))
    checked: Data = {}
    try:
        for kind in KINDS:
            checked[kind] = await checked_document(visit, draft[kind], kind)
        faults = await form_faults(visit, draft)
        wrong = bool(faults) or any(each["problem"] for each in checked.values())
        if wrong or visit.posted("do") == "check":
            page = _form(visit, draft, None, checked, faults, looked=not faults)
            return Page(page, 422 if wrong else 200)
        query = question_query(request_of(draft))
    except Refusal as problem:
        if problem.status in (401, 403):
            raise
        return Page(_form(visit, draft, problem, checked), problem.status)
    return Page(b"", 303, headers={"location": visit.url("/ui/plans", query)})


async def form_faults(visit: Visit, draft: Mapping[str, Any]) -> list[Data]:
    """Return what is wrong with pins, limits and changed fields: `field`, `message`, `fix`."""
    request: Data = {
        "fields": {name: draft[name] for name in OPTION_FIELDS if name != "set" and draft[name]},
        "changes": [line for line in draft["set"].splitlines() if line.strip()],
    }
    for kind in KINDS:
        with suppress(Refusal):  # there is no text yet
            request[kind] = document_of(draft[kind], kind)
    result = await visit.ask(FORM_CALL, request)
    faults: list[Data] = result["faults"]
    return faults


async def checked_document(visit: Visit, draft: Mapping[str, Any], kind: Kind) -> Data:
    """Return what a document describes, or the problem with it."""
    try:
        document = document_of(draft, kind)
        result = await visit.ask("check-spec", {"document": document})
    except Refusal as problem:
        if problem.status >= 500 or problem.status == 429:
            raise
        return {"problem": problem, "summary": "", "notes": []}
    if result["kind"] != kind:
        detail = f"this describes a {result['kind']}, and a {kind} is wanted here"
        wrong = refused("bad-specification", detail, 422)
        return {"problem": wrong, "summary": "", "notes": []}
    messages = {line.strip() for line in result["summary"].splitlines()}
    notes = [note for note in result["notes"] if note.strip() not in messages]
    return {"problem": None, "summary": result["summary"], "notes": notes}


async def check_page(visit: Visit) -> Page:
    """Answer the script that checks while one types: `{kind, text, name}`, or `{kind, fields}`."""
    data = await visit.json()
    if data.get("kind") == "form":
        return await check_form(visit, data)
    if data.get("kind") not in KINDS:
        raise refused("malformed", "kind is model or cluster", 400)
    draft = {key: str(data.get(key, "")) for key in ("source", "example", "text", "name")}
    draft["name"] = upload_name(draft["name"])
    result = await checked_document(visit, draft, data["kind"])
    problem = result["problem"]
    answer = {**result, "problem": problem.to_json() if problem else None}
    return Page(json.dumps(answer), 200, "application/json", {"cache-control": "no-store"})


async def check_form(visit: Visit, data: Mapping[str, Any]) -> Page:
    """Answer the script that checks pins, limits and changed fields: `{fields: {NAME: TEXT}}`."""
    fields = data.get("fields")
    if not isinstance(fields, dict):
        raise refused("malformed", "fields are those of the form, by name", 400)
    draft = posted_draft({str(name): str(value) for name, value in fields.items()}, {})
    has_options = any(draft[name] for name in OPTION_FIELDS)
    answer = {
        "faults": await form_faults(visit, draft) if has_options else [],
        "looked": has_options,
    }
    return Page(json.dumps(answer), 200, "application/json", {"cache-control": "no-store"})


PAGES = {"/ui/solve": solve_page}
POSTS = {"/ui/solve": asked, "/ui/check": check_page}
