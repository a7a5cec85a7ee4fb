"""What one request may ask for, and the checks of it before any work is done."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from service.handlers.problems import Fault, Refusal, malformed, refused

if TYPE_CHECKING:
    from planner.solver.options import SolveOptions
    from planner.specs.inputs import ClusterInput, ModelInput


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of a service. All of them hold for every caller; 0 is not "no limit"."""

    body_bytes: int = 8_000_000
    """Largest body of a request: an inventory, or a result of some hundred plans."""
    document_bytes: int = 200_000
    """Largest YAML text or launch script in a request; reading as much takes some seconds."""
    depth: int = 30
    """Deepest nesting of mappings and lists, in the body and in texts that it holds."""
    nodes: int = 500_000
    """Most values in a request; YAML texts in it have 50,000 with all aliases written out."""
    aliases: int = 100
    """Most YAML aliases in one text."""
    key_chars: int = 200
    """Longest key of a mapping."""
    text_chars: int = 4_000
    """Longest text that is not a document: names, values, paths of fields."""
    items: int = 10_000
    """Most items of a list and keys of a mapping in options; documents have `nodes`."""
    devices: int = 131_072
    """Most devices of a pool."""
    space: int = 20_000_000
    """Largest estimate of the plans of a solve (`limits.space_estimate`)."""
    large_space: int = 8_000_000
    """Estimate from which a question is large: a job rather than an answer at once. The largest of
    the packaged examples has 3,000,000 and takes two seconds."""
    micro_batches: int = 1_000_000
    """Most sequences in a step."""
    layers: int = 2_000
    """Most layers of a model."""
    solve_s: float = 60.0
    """Longest search of a request; it answers with the best so far, and says so."""
    job_s: float = 3600.0
    """The same of one search in a job."""
    hard_s: float = 90.0
    """Time after which the worker of a request is killed."""
    top: int = 200
    """Most plans in an answer."""
    points: int = 10_000
    """Most points of a sweep."""
    sizes: int = 256
    """Most sizes of a `scale`."""
    hosts: int = 65_536
    """Most host names in a request."""
    queue_length: int = 64
    """Requests that wait for a worker; more are refused with a time to come back."""
    jobs_queued: int = 1_000
    """Jobs that wait, of all callers."""
    jobs_queued_per_owner: int = 100
    """Jobs that wait, of one caller."""
    requests_per_s: float = 2_000.0
    """Rate of one caller over time."""
    burst: int = 4_000
    """Requests that one caller may send at once."""
    per_caller: int = 16
    """Requests of one caller that are worked on or wait at the same time."""
    jobs_kept_per_owner: int = 20_000
    """Jobs of one caller in the store, whatever their state."""
    keys_per_owner: int = 20_000
    """Idempotency keys of one caller that are remembered."""
    connections: int = 2_000
    """Connections of a transport; beyond them the oldest idle ones end, then new ones are told
    to come back."""
    connections_per_address: int = 1_000
    """The same of one address, or of one network of 64 bits of IPv6."""
    failed_logins: int = 100
    """Requests with an unknown token that one address may send at once; one more every second."""
    worker_bytes: int = 4_000_000_000
    """Memory of one worker process."""


DEFAULTS = RequestLimits()

MOST_NUMBER = 10**18
"""Largest number, either sign: beyond it no count, size or speed makes sense."""
_ALIAS = re.compile(r"(?:^|[\s,\[{:-])\*[A-Za-z0-9_]", re.MULTILINE)


def too_large(what: str, value: float, limit: float, setting: str, fix: str) -> Refusal:
    """Return the refusal of a body or a text: 413."""
    detail = f"{what}: {value:,} is more than {limit:,}"
    return refused("too-large", detail, 413, [Fault(detail, fix, rule="", field=setting)])


def too_much(what: str, value: float, limit: float, setting: str, fix: str) -> Refusal:
    """Return the refusal of a question that is too large: 422."""
    detail = f"{what}: {value:,} is more than {limit:,}"
    return refused("too-much-work", detail, 422, [Fault(detail, fix, field=setting)])


def json_body(body: bytes | str, settings: RequestLimits = DEFAULTS) -> Any:
    """Return the JSON value of a body; `Refusal` 413 for a large one, 400 for what is no JSON.

    Numbers that are none (NaN, Infinity) and keys that stand twice are refused.
    """
    if len(body) > settings.body_bytes:
        fix = "leave out what the question does not need, such as the pods of an inventory"
        raise too_large("bytes of the body", len(body), settings.body_bytes, "body", fix)
    try:
        text = body if isinstance(body, str) else body.decode("utf-8")
        return json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        detail = f"the body is no UTF-8 text from byte {error.start} on"
        raise refused("malformed", detail, 400) from None
    except json.JSONDecodeError as error:
        detail = f"the body is no JSON: {error.msg}, line {error.lineno}, column {error.colno}"
        raise refused("malformed", detail, 400) from None
    except RecursionError:
        raise refused("malformed", f"nested deeper than {settings.depth} levels", 400) from None
    except ValueError as error:
        raise refused("malformed", f"the body is no JSON: {error}", 400) from None


SMALL_BODY = 16_384
"""Bytes of a body that is read at once, in less than a millisecond; a worker reads larger ones."""


JOB_TAGS = ("labels", "webhook")
"""Fields of a body for /v1/jobs that say nothing of the work."""


def job_request(
    body: bytes, settings: RequestLimits = DEFAULTS
) -> tuple[str, bytes, float, dict[str, Any]]:
    """Return call, request, time limit (s) and `JOB_TAGS` of a body for /v1/jobs.

    Raises `Refusal` 400, 413, 422.
    """
    data = json_body(body, settings)
    if not isinstance(data, dict):
        raise refused("malformed", "the body is no JSON object", 400)
    check_data(data, settings)
    unknown = data.keys() - {"call", "request", "time_limit_s", *JOB_TAGS}
    name, value, limit_s = data.get("call"), data.get("request"), data.get("time_limit_s", 0.0)
    if unknown:
        known = ", ".join(("call", "request", "time_limit_s", *JOB_TAGS))
        detail = f"unknown field {min(unknown)[:40]!r}: {known}"
        raise malformed(min(unknown), detail, 422)
    if not isinstance(name, str) or not isinstance(value, dict):
        field = "request" if isinstance(name, str) else "call"
        detail = "`call` is the name of a call, `request` what it reads"
        raise malformed(field, detail, 422)
    is_number = isinstance(limit_s, int | float) and not isinstance(limit_s, bool)
    if not is_number or not 0 <= limit_s <= settings.job_s:
        detail = f"time_limit_s: a number of seconds up to {settings.job_s:g}"
        raise malformed("time_limit_s", detail, 422)
    tags = {field: data[field] for field in JOB_TAGS if field in data}
    return name, json.dumps(value).encode(), float(limit_s), tags


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for key, value in pairs:
        if key in entries:
            raise ValueError(f"the key {key[:80]!r} stands twice")
        entries[key] = value
    return entries


def check_data(data: Any, settings: RequestLimits = DEFAULTS) -> None:
    """Raise `Refusal` for plain data that is too deep or large, or holds what JSON has not."""
    n_nodes, waiting = 0, [(data, 0)]
    while waiting:
        value, depth = waiting.pop()
        n_nodes += 1
        if depth > settings.depth:
            detail = f"nested deeper than {settings.depth} levels"
            raise refused("malformed", detail, 400)
        n_inside = len(value) if isinstance(value, Mapping | list | tuple) else 0
        n_known = n_nodes + len(waiting) + n_inside  # what is too much is not looked at first
        if n_known > settings.nodes:
            fix = "send fewer values, or the text of a file in their place"
            raise too_large("values in the request", n_known, settings.nodes, "body", fix)
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str) or len(key) > settings.key_chars:
                    detail = f"a key is no text of up to {settings.key_chars} characters"
                    raise refused("malformed", detail, 400)
            waiting += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list | tuple):
            waiting += [(item, depth + 1) for item in value]
        elif isinstance(value, str):
            _check_text(value)
        elif isinstance(value, int | float):
            if not -MOST_NUMBER <= value <= MOST_NUMBER:  # so is NaN, and no int is too long
                raise refused("malformed", "a number is not within 1e18 of zero", 400)
        elif value is not None:
            detail = f"{type(value).__name__} is no JSON value"
            raise refused("malformed", detail, 400)


def _check_text(text: str) -> None:
    """Refuse what no UTF-8 text can hold, or no file name and no terminal should."""
    if "\0" in text:
        raise refused("malformed", "a text holds the character NUL", 400)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise refused("malformed", "a text holds half of a surrogate pair", 400) from None


def check_document_text(text: str, field: str, settings: RequestLimits = DEFAULTS) -> None:
    """Raise `Refusal` for the text of a document that is too large, too deep, or all aliases.

    What a reader of another format takes (inventories) may be as large as the body; what is read
    as YAML, which is slow, may not.
    """
    depth = 0
    for bracket in _BRACKET.finditer(text):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MOST_BRACKETS:
            detail = f"{field}: more than {MOST_BRACKETS} brackets are open at once"
            raise refused("malformed", detail, 400, [Fault(detail, field=field)])
    n_bytes = len(text.encode("utf-8"))
    if n_bytes <= settings.document_bytes:
        n_aliases = len(_ALIAS.findall(text))
        if n_aliases > settings.aliases and not _is_other_format(text):
            fix, what = "write the values out", f"YAML aliases in the {field}"
            raise too_large(what, n_aliases, settings.aliases, field, fix)
    elif not _is_other_format(text):
        fix = "a model or cluster file has a few thousand characters"
        what = f"bytes of the {field}"
        raise too_large(what, n_bytes, settings.document_bytes, field, fix)


MOST_BRACKETS = 200
"""Brackets that may be open at once in a text: more than any format needs."""
_BRACKET = re.compile(r"[\[\]{}]")


def _is_other_format(text: str) -> bool:
    from planner.specs.importers.formats import find_format

    return find_format(text) is not None


def check_option_limits(request: Mapping[str, Any], settings: RequestLimits = DEFAULTS) -> None:
    """Raise `Refusal` for options of a request, documents aside, that are too long or too many."""
    for name, value in request.items():
        if isinstance(value, str) and len(value) > settings.text_chars:
            raise too_large(
                f"characters of {name}", len(value), settings.text_chars, name, "shorten it"
            )
        if isinstance(value, list | dict) and len(value) > settings.items:
            raise too_large(f"items of {name}", len(value), settings.items, name, "send fewer")
        if isinstance(value, dict):
            check_option_limits(value, settings)
        elif isinstance(value, list):
            for item in value:
                check_option_limits({name: item}, settings)
    top = request.get("top")
    if isinstance(top, int) and top > settings.top:
        raise too_much("plans in the answer", top, settings.top, "top", "ask for fewer")


def check_input_limits(
    model: "ModelInput", cluster: "ClusterInput", settings: RequestLimits = DEFAULTS
) -> None:
    """Raise `Refusal` for a model or a cluster beyond what is computed."""
    check_cluster(cluster, settings)
    check_model(model, settings)


def check_cluster(
    cluster: "ClusterInput", settings: RequestLimits = DEFAULTS, field: str = "cluster"
) -> None:
    """Raise `Refusal` for a cluster beyond what is computed."""
    for pool in cluster.cluster.pools:
        if pool.n_devices > settings.devices:
            fix = "plan for fewer nodes; several pools may each have as many"
            what = f"devices of pool {pool.name}"
            raise too_much(what, pool.n_devices, settings.devices, field, fix)


def check_model(model: "ModelInput", settings: RequestLimits = DEFAULTS) -> None:
    """Raise `Refusal` for a model or a job beyond what is computed."""
    shape, job, fix = model.shape, model.job, "is it meant? lower it"
    if job.global_batch > settings.micro_batches:
        raise too_much(
            "sequences in a step",
            job.global_batch,
            settings.micro_batches,
            "training.global_batch",
            fix,
        )
    if shape.layers > settings.layers:
        raise too_much("layers of the model", shape.layers, settings.layers, "model.layers", fix)
    requested = model.search.top if model.search else None
    if requested and requested > settings.top:
        raise too_much(
            "plans in the answer", requested, settings.top, "search.top", "ask for fewer"
        )


def space_estimate(model: "ModelInput", cluster: "ClusterInput", options: "SolveOptions") -> int:
    """Return about how many candidate plans a solve has on all devices of its pools and recipes.

    sum over pools of (ways to cut the devices into tp x pp x cp x dp, the pipeline no longer than
    the model) x (degrees of experts) x (micro-batch sizes) x (chunks a rank) x (ways to recompute,
    a layer more each), each axis counted by what pins and limits leave of it. Rules and memory
    exclude most of them, and smaller numbers of devices add some: an order of magnitude, for a few
    microseconds of work, before anything is listed.
    """
    from planner.solver.recipes import asked_numerics
    from searches.options import MAX_VPP, usual_most_mbs
    from searches.space.shape_space import divisors

    shape, job, n_plans = model.shape, model.job, 0

    def left(axis: str, values: list[int]) -> list[int]:
        pinned, listed = options.pins.get(axis), options.only.get(axis)
        maximum = options.at_most.get(axis, max(values, default=1))
        return [
            v
            for v in values
            if v <= maximum and pinned in (None, v) and (listed is None or v in listed)
        ]

    n_experts = len(left("ep", divisors(shape.n_experts))) if shape.n_experts else 1
    sizes = left("mbs", divisors(job.global_batch))
    most_mbs = max(usual_most_mbs(job.seq_len), options.pins.get("mbs", 1))
    n_mbs = max(1, sum(size <= most_mbs for size in sizes))
    for pool in cluster.cluster.pools:
        n, n_shapes = options.pins.get("devices", pool.n_devices), 0
        for tp in left("tp", [d for d in divisors(n) if d <= max(shape.heads, 1)]):
            for pp in left("pp", [d for d in divisors(n // tp) if d <= shape.layers]):
                most_cp = max(1, job.seq_len // 4096)
                n_cp = len(left("cp", [d for d in divisors(n // (tp * pp)) if d <= most_cp]))
                chunks = min(MAX_VPP, shape.layers // pp) if pp > 1 else 1
                depth = -(-shape.layers // pp)
                n_shapes += n_cp * len(left("vpp", list(range(1, chunks + 1)))) * (2 + depth)
        n_plans += n_shapes * n_experts * n_mbs
    return n_plans * len(asked_numerics(model, options))
