"""The view that asks: model and cluster, pins and limits, checked while one types."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from planner.option_names import JOB_FIELDS
from service.handlers.problems import Fault, Refusal, refused
from service.pages.examples import example_text, examples, gpus
from service.pages.form_check import FORM_CALL, LABELS
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
    **LABELS,
    "memory_margin": LABELS["memory-margin"],
    "step_limit_s": LABELS["step-limit"],
    "set": "Changed fields",
    "seq": "Sequence",
    "batch": "Global batch",
    "": "Inputs",
}
"""What the form calls its fields."""
FIRST = {"model": "llama3-70b", "cluster": "64xh100"}
"""What an empty form asks."""
FORM_JOB = {name: JOB_FIELDS[name] for name in ("seq", "batch")}
"""Fields of the form that change one field of the model file each."""
COUNTED = re.compile(r"(\d+) *[xX] *([A-Za-z0-9][\w.@-]*)", re.ASCII)
"""A cluster that two fields say: how many, and of what (`planner.specs.cluster.words`)."""
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
        "gpus": gpus(),
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
    changes = dict(request.get("set", {}))
    for name, path in FORM_JOB.items():
        draft[name] = str(changes.pop(path, ""))
    draft["set"] = "\n".join(f"{path}={value}" for path, value in changes.items())
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
    """Return how the form shows a document: a name, GPUs and their number, or a text."""
    draft = {"source": "example", "example": "", "text": "", "name": "", "gpu": "", "count": ""}
    if isinstance(document, dict):
        text = document.get("text")
        content = text if isinstance(text, str) else json.dumps(document, indent=1)
        name = str(document.get("name", "")) if isinstance(text, str) else ""
        return draft | {"source": "text", "text": content, "name": name}
    word = str(document or FIRST[kind]).strip()
    counted = COUNTED.fullmatch(word) if kind == "cluster" else None
    if counted and word not in dict(examples(kind)):
        return draft | {"source": "words", "count": counted[1], "gpu": counted[2]}
    if "\n" in word or word.startswith("{"):
        return draft | {"source": "text", "text": word}
    return draft | {"example": word}


def posted_draft(fields: Mapping[str, str], files: Mapping[str, Upload]) -> Data:
    """Return the fields of the form as they were sent, a file in the place of its text."""
    draft: Data = {name: fields.get(name, "").strip() for name in OPTION_FIELDS}
    draft["set"] = _lines(fields.get("set", ""))
    top = fields.get("top", str(TOP))
    draft["top"] = int(top) if top.isascii() and top.isdigit() and len(top) < 6 else TOP
    draft |= {name: fields.get(name, "").strip() for name in FORM_JOB}
    for kind in KINDS:
        draft[kind] = {
            "source": posted_source(fields, kind),
            "text": _lines(fields.get(f"{kind}_text", "")),
            "name": upload_name(fields.get(f"{kind}_name", "")),
        }
        draft[kind] |= {
            name: fields.get(f"{kind}_{name}", "").strip() for name in ("example", "gpu", "count")
        }
        file = files.get(f"{kind}_file")
        if isinstance(file, Upload) and file.text.strip():
            draft[kind] |= {
                "source": "text",
                "text": _lines(file.text),
                "name": upload_name(file.name),
            }
    return draft


def posted_source(fields: Mapping[str, str], kind: Kind) -> str:
    """Return where a form has a document from: `example`, `words` or `text`."""
    counted = f"{kind}_gpu" in fields and f"{kind}_example" not in fields
    source = fields.get(f"{kind}_source", "words" if counted else "example")
    return source if source in ("example", "words") else "text"


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
    options = options_given({**draft, "set": "\n".join(changed_lines(draft))}, axes)
    return request | question_options_of(options) | {"top": draft["top"]}


def changed_lines(draft: Mapping[str, Any]) -> list[str]:
    """Return all changes of fields that a form asks, `PATH=VALUE` each."""
    job = [f"{path}={draft[name]}" for name, path in FORM_JOB.items() if draft[name]]
    return job + [line for line in draft["set"].splitlines() if line.strip()]


def document_of(draft: Mapping[str, Any], kind: Kind) -> Any:
    """Return the document of a part of the form; `Refusal` 422 where there is none."""
    if draft["source"] == "example":
        return draft["example"] or FIRST[kind]
    if draft["source"] == "words":
        return counted_words(draft["count"], draft["gpu"])
    if not draft["text"].strip():
        detail = f"{kind}: the text is empty"
        raise refused("malformed", detail, 422, [Fault(detail, "paste a file", kind)])
    named = {"name": draft["name"]} if draft["name"] else {}
    return {"text": draft["text"], **named}


def counted_words(count: str, gpu: str) -> str:
    """Return a cluster in words; `Refusal` 422 without a number or a name.

    >>> counted_words("64", "h100")
    '64xh100'
    """
    plain = count.replace(",", "").replace(" ", "")
    if not plain.isascii() or not plain.isdigit():
        detail = f"cluster: {count[:40]!r} is no number of GPUs"
        raise refused("malformed", detail, 422, [Fault(detail, "such as 64", "cluster")])
    if not re.fullmatch(r"[A-Za-z0-9][\w.@-]{0,99}", gpu, re.ASCII):
        detail = f"cluster: {gpu[:40]!r} is no name of a GPU"
        fix = "such as h100, b200, mi300x; the page Catalogue has all"
        raise refused("malformed", detail, 422, [Fault(detail, fix, "cluster")])
    return f"{plain}x{gpu}"


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
    if has_options(draft):
        faults = await form_faults(visit, draft)
    return _form(visit, draft, faults=faults)


def has_options(draft: Mapping[str, Any]) -> bool:
    """Tell whether a form says more than a model and a cluster."""
    return any(draft[name] for name in (*OPTION_FIELDS, *FORM_JOB))


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
        is_advanced=is_advanced(draft) or looked or bool(by_field.keys() - FORM_JOB.keys()),
        **choice_lists(),
    )


def is_advanced(draft: Mapping[str, Any]) -> bool:
    """Tell whether a form says what stands under Advanced."""
    named = draft["cluster"]["source"] == "words"
    return not named or draft["top"] != TOP or any(draft[name] for name in OPTION_FIELDS)


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
        "changes": changed_lines(draft),
    }
    for kind in KINDS:
        with suppress(Refusal):  # there is no text yet
            request[kind] = document_of(draft[kind], kind)
    result = await visit.ask(FORM_CALL, request)
    return [placed_fault(fault) for fault in result["faults"]]


def placed_fault(fault: Data) -> Data:
    """Return a fault of changed fields at the field of the form that made the change."""
    if fault["field"] == "set":
        for name, path in FORM_JOB.items():
            if path in fault["message"]:
                return {**fault, "field": name}
    return fault


async def checked_document(visit: Visit, draft: Mapping[str, Any], kind: Kind) -> Data:
    """Return what a document describes, or the problem with it."""
    try:
        document = document_of(draft, kind)
        result = await visit.ask("check-spec", {"document": document})
    except Refusal as problem:
        if problem.status >= 500 or problem.status == 429:
            raise
        return {"problem": problem, "headline": "", "summary": "", "notes": []}
    if result["kind"] != kind:
        detail = f"this describes a {result['kind']}, and a {kind} is wanted here"
        wrong = refused("bad-specification", detail, 422)
        return {"problem": wrong, "headline": "", "summary": "", "notes": []}
    messages = {line.strip() for line in result["summary"].splitlines()}
    notes = [note for note in result["notes"] if note.strip() not in messages]
    summary = result["summary"]
    return {"problem": None, "headline": answer_title(summary), "summary": summary, "notes": notes}


def answer_title(summary: str) -> str:
    r"""Return what a document describes in one line: below the line that names its file.

    >>> answer_title("x.yaml: a model file, no problems found\n  llama3-8b: 32 layers\n  8.03 B")
    'llama3-8b: 32 layers'
    """
    return (summary.splitlines()[1:] or [summary])[0].strip()


async def check_page(visit: Visit) -> Page:
    """Answer the script that checks while one types: `{kind, text, name}`, or `{kind, fields}`."""
    data = await visit.json()
    if data.get("kind") == "form":
        return await check_form(visit, data)
    if data.get("kind") not in KINDS:
        raise refused("malformed", "kind is model or cluster", 400)
    keys = ("source", "example", "text", "name", "gpu", "count")
    draft = {key: str(data.get(key, "")) for key in keys}
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
    is_asked = has_options(draft)
    answer = {
        "faults": await form_faults(visit, draft) if is_asked else [],
        "looked": is_asked,
    }
    return Page(json.dumps(answer), 200, "application/json", {"cache-control": "no-store"})


PAGES = {"/ui/solve": solve_page}
POSTS = {"/ui/solve": asked, "/ui/check": check_page}
