"""A question stands in the address of its pages.

    ?model=llama3-70b&cluster=h100-x512&pin=tp=8&max=pp=16&objective=cost     names of examples
    ?q=eJyrVkrLz1eyUkpKLFKqBQAdFgQ5                                          texts of files

`q` is the solve request as JSON, deflated, in the letters of base64 that addresses may hold.
"""

import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.handlers.calls import MOST_PAGE_TOP, read_request
from service.handlers.limits import RequestLimits, json_body
from service.handlers.problems import Fault, Refusal, refused

Data = dict[str, Any]
Query = Mapping[str, tuple[str, ...]]

TOP = 64
"""Plans of a question that says nothing else: as many as every search prices in full."""
MOST_TOP = MOST_PAGE_TOP
"""Plans that a page lists at most."""
MOST_PACKED_CHARS, MOST_UNPACKED_BYTES, MOST_VALUES = 40_000, 1_000_000, 10_000
"""Of `q`: it is read on the event loop, and what is deflated can grow a thousandfold."""
WORDS = ("framework", "stack", "objective", "deadline", "budget", "pool", "pools")
NUMBERS = ("within", "memory_margin", "step_limit_s")
FIELDS = (
    "model",
    "cluster",
    "pin",
    "only",
    "max",
    "set",
    "allow",
    "pareto",
    *WORDS,
    *NUMBERS,
    "top",
    "q",
)
"""Parameters that say what is asked."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def question_of(query: Query, settings: RequestLimits) -> Data | None:
    """Return the solve request of an address, `top` included; None where it asks nothing.

    Raises `Refusal` for what is no question. Names and values are looked at by the call.
    """
    if "q" in query:
        request = unpacked(query["q"][-1], settings)
        if "top" in query:
            request["top"] = _top(query["top"][-1])
        return {"top": TOP, **request}
    arguments = {name: query[name] for name in FIELDS if name in query}
    names = {name: arguments.get(name, ("",))[-1].strip() for name in ("model", "cluster")}
    if not any(names.values()):
        return None
    for name, value in names.items():
        if not value:
            detail = f"{name}: the address names none"
            raise refused("malformed", detail, 422, [Fault(detail, "choose one", name)])
    request = dict(names)
    request |= question_options_of(arguments)
    return {"top": TOP, **request}


def question_options_of(query: Query) -> Data:
    """Return the options of a solve request from parameters, or from fields of a form."""
    request: Data = {}
    pins = _once(pairs_of(query.get("pin", ()), "pin"), "pin", "pinned", "to")
    if pins:
        request["pins"] = pins
    only: dict[str, list[str]] = {}
    for axis, value in pairs_of(query.get("only", ()), "only"):
        only.setdefault(axis, []).append(value)
    if only:
        request["only"] = only
    bounds = _once(pairs_of(query.get("max", ()), "max"), "max", "bounded", "by")
    maximum = {axis: _whole(value, f"max {axis}") for axis, value in bounds.items()}
    if maximum:
        request["max"] = maximum
    changes: Data = {}
    for text in query.get("set", ()):
        path, equals, value = text.partition("=")
        if not text.strip():
            continue
        if not equals or not path.strip():
            raise _wrong("set", text, "PATH=VALUE, such as pools.0.nodes=16")
        changes[path.strip()] = value.strip()
    if changes:
        request["set"] = changes
    for name in WORDS:
        value = query.get(name, ("",))[-1].strip()
        if value:
            request[name] = value
    for name in NUMBERS:
        value = query.get(name, ("",))[-1].strip()
        if value:
            request[name] = _number(value, name)
    for name in ("allow", "pareto"):
        values = [part.strip() for text in query.get(name, ()) for part in text.split(",")]
        if any(values):
            request[name] = [value for value in values if value]
    if query.get("top", ("",))[-1].strip():
        request["top"] = _top(query["top"][-1])
    return request


def question_query(request: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the parameters of a solve request: names where it holds only those, else `q`.

    The inverse of `question_of`; `Refusal` 413 for texts that no address holds.
    """
    rest = {key: value for key, value in request.items() if value not in (None, "", 0, [], {})}
    top = rest.pop("top", TOP)
    tail = {} if top == TOP else {"top": [str(top)]}
    documents = [rest.get("model"), rest.get("cluster")]
    named = all(isinstance(each, str) and _NAME.fullmatch(each) for each in documents)
    if not named or rest.keys() & {"calibration", "reference", "all_variants"}:
        return {"q": [packed_question(rest)], **tail}
    entries: dict[str, list[str]] = {"model": [rest["model"]], "cluster": [rest["cluster"]]}
    for field, name in (("pins", "pin"), ("max", "max"), ("set", "set")):
        if rest.get(field):
            entries[name] = [f"{key}={_text(value)}" for key, value in rest[field].items()]
    if rest.get("only"):
        entries["only"] = [
            f"{axis}={','.join(map(_text, values))}" for axis, values in rest["only"].items()
        ]
    for name in ("allow", "pareto"):
        if rest.get(name):
            entries[name] = [",".join(rest[name])]
    for name in (*WORDS, *NUMBERS):
        if name in rest:
            entries[name] = [_text(rest[name])]
    return {**entries, **tail}


def packed_question(request: Mapping[str, Any]) -> str:
    """Return a request as a word that addresses may hold; `Refusal` 413 where it is too long."""
    data = json.dumps(request, separators=(",", ":"), ensure_ascii=False).encode()
    text = base64.urlsafe_b64encode(zlib.compress(data, 9)).decode().rstrip("=")
    if len(text) > MOST_PACKED_CHARS or len(data) > MOST_UNPACKED_BYTES:
        detail = f"the texts are too long for an address: {len(text):,} characters when packed"
        fix = f"at most {MOST_PACKED_CHARS:,}: leave out comments and what planner does not read"
        raise refused("too-large", detail, 413, [Fault(detail, fix)])
    return text


def unpacked(text: str, settings: RequestLimits) -> Data:
    """Return the request of a word; `Refusal` 400, 422 where it holds none, 413."""
    if len(text) > MOST_PACKED_CHARS:
        raise refused("too-large", f"q: more than {MOST_PACKED_CHARS:,} characters", 413)
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        inflate = zlib.decompressobj()
        data = inflate.decompress(raw, MOST_UNPACKED_BYTES)
    except (binascii.Error, ValueError, zlib.error):
        raise refused("malformed", "q: the address was cut or changed on its way", 400) from None
    if inflate.unconsumed_tail or not inflate.eof:
        raise refused("too-large", f"q: more than {MOST_UNPACKED_BYTES:,} bytes, or cut", 413)
    request = json_body(data, settings)
    if not isinstance(request, dict):
        raise refused("malformed", "q holds no question", 400)
    # What asks nothing that a solve could answer must not reach the templates.
    read_request("solve", request, replace(settings, nodes=MOST_VALUES, top=MOST_TOP))
    top = request.get("top", TOP)
    if not isinstance(top, int) or not 1 <= top <= MOST_TOP:
        raise _wrong("top", str(top)[:20], f"a number from 1 to {MOST_TOP:,}")
    return request


def pairs_of(items: tuple[str, ...], name: str) -> list[tuple[str, str]]:
    """Split `axis=value`, several parted by commas or spaces, as the command line does."""
    results: list[tuple[str, str]] = []
    for part in (part for item in items for part in re.split(r"[,\s]+", item.strip()) if part):
        axis, equals, value = part.partition("=")
        if not equals and results and name == "only":
            results.append((results[-1][0], part))
            continue
        if not equals or not value or not axis:
            raise _wrong(name, part, "AXIS=VALUE, such as tp=8")
        results.append((axis, value))
    return results


def _once(pairs: list[tuple[str, str]], name: str, verb: str, by: str) -> dict[str, str]:
    """Return pairs by axis; `Refusal` 422 where an axis has two values."""
    entries: dict[str, str] = {}
    for axis, value in pairs:
        if entries.setdefault(axis, value) != value:
            detail = f"{name}: {axis} is {verb} {by} {entries[axis]} and {by} {value}"
            fix = f"{axis}={entries[axis]},{value} allows both" if name == "pin" else "keep one"
            raise refused("malformed", detail, 422, [Fault(detail, fix, name)])
    return entries


def title_of(request: Mapping[str, Any]) -> tuple[str, str]:
    """Return what the model and the cluster of a question are called."""
    return name_of(request.get("model"), "model"), name_of(request.get("cluster"), "cluster")


def name_of(document: Any, kind: str) -> str:
    """Return what a document is called: its example's or its file's name, or the name in it."""
    if isinstance(document, dict):
        if document.get("name") and "text" in document:
            return str(document["name"])
        inside = document.get("text", "")
        match = re.search(r"^\s*\"?name\"?:\s*[\"']?([^\s\"'#,]+)", str(inside), re.MULTILINE)
        return match[1][:60] if match else f"your {kind}"
    text = str(document or "")
    return text if "\n" not in text and len(text) <= 100 else f"your {kind}"


def _wrong(name: str, text: str, form: str) -> Refusal:
    detail = f"{name}: {text[:80]!r} is not {form}"
    return refused("malformed", detail, 422, [Fault(detail, "", name)])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _whole(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise _wrong(name, text, "a whole number")
    return int(text)


def _top(text: str) -> int:
    number = _whole(text.strip(), "top")
    if not 1 <= number <= MOST_TOP:
        raise _wrong("top", text, f"a number from 1 to {MOST_TOP:,}")
    return number


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _wrong(name, text, "a number") from None
    if not 0 <= value <= 1e12:
        raise _wrong(name, text, "a number from 0 on")
    return value
