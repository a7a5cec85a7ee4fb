"""The catalogue and the rules as plain data, for callers that are no terminal."""

from collections.abc import Mapping
from dataclasses import asdict
from math import inf, isfinite
from typing import Any

from hardware.catalogue import (
    Catalogue,
    UnknownPartError,
    load_catalogue,
    ridge_points,
    with_parts,
)
from hardware.parts import Accelerator, Link, Platform
from planner.errors import NoPartError, UsageError
from planner.option_names import command
from planner.specs.yaml.document import close_names
from searches.frameworks.rule import FrameworkRule
from searches.frameworks.table import rules_by_code
from searches.rules import RULES, Rule


def catalogue_json(name: str = "") -> dict[str, Any]:
    """Return every figure of the catalogue, or of one part, with source, date and status.

    Bytes, bytes per second, FLOP/s, seconds and watts. Raises `NoPartError` for an unknown name.
    """
    catalogue = load_catalogue()
    parts: list[Accelerator | Link | Platform]
    if name:
        parts = [_part(catalogue, name)]
    else:
        parts = [
            *catalogue.accelerators.values(),
            *catalogue.links.values(),
            *catalogue.platforms.values(),
        ]
    kinds = {"accelerators": Accelerator, "links": Link, "platforms": Platform}
    return {"hash": catalogue.content_hash[:12]} | {
        kind: [_part_json(part) for part in parts if isinstance(part, part_type)]
        for kind, part_type in kinds.items()
    }


def _part(catalogue: Catalogue, name: str) -> Accelerator | Link | Platform:
    near: list[str] = []
    for find in (catalogue.accelerator, catalogue.link, catalogue.platform):
        try:
            return find(name)
        except UnknownPartError as missing:
            near += missing.suggestions
    close = list(dict.fromkeys(near))[:3]
    hint = f"did you mean {', '.join(close)}? " if close else ""
    raise NoPartError(f"no part called {name!r}", hint + command("catalog list"), "name")


def _part_json(part: Accelerator | Link | Platform) -> dict[str, Any]:
    data: dict[str, Any] = asdict(part)
    if isinstance(part, Accelerator):
        data["ridge_points"] = [asdict(point) for point in ridge_points(part)]
    entries: dict[str, Any] = _finite(data)
    return entries


def catalogue_of_json(data: Mapping[str, Any]) -> Catalogue:
    """Return the catalogue that `catalogue_json` gave of all parts: that of another process.

    What is usual for an accelerator's network (`typical_nics`) is not in it and is our own.
    """
    from pydantic import TypeAdapter

    links = [
        {**x, "protocol_bytes_per_s": [inf if v is None else v for v in x["protocol_bytes_per_s"]]}
        for x in data["links"]
    ]
    accelerators = TypeAdapter(list[Accelerator]).validate_python(data["accelerators"])
    platforms = TypeAdapter(list[Platform]).validate_python(data["platforms"])
    return with_parts(accelerators, TypeAdapter(list[Link]).validate_python(links), platforms)


def _finite(value: Any) -> Any:
    """Return data with null for infinity, which is no number of JSON: there is no limit."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def rules_json(code: str = "") -> dict[str, Any]:
    """Return every rule, or one: what it rejects, why, what lifts it, and its source.

    Raises `UsageError` for an unknown code.
    """
    every: dict[str, Rule | FrameworkRule] = {**RULES, **rules_by_code()}
    if code and code.upper() not in every:
        near = close_names(code.upper(), every)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"no rule {code!r}",
            hint + command("rule") + " lists them all",
            "code",
            code="unknown-name",
        )
    chosen = [every[code.upper()]] if code else list(every.values())
    return {"rules": [_rule_json(rule) for rule in chosen]}


def rule_title(code: str) -> str:
    """Return what a rule of the search or of a framework says, in a few words."""
    rule = RULES.get(code) or rules_by_code().get(code)
    return rule.title if rule else code


def _rule_json(rule: Rule | FrameworkRule) -> dict[str, Any]:
    if isinstance(rule, Rule):
        return {
            "code": rule.code,
            "title": rule.title,
            "why": rule.why,
            "to_change": rule.relax,
            "source": rule.source,
            "framework": "",
            "versions": "",
            "when": "",
        }
    return {
        "code": rule.code,
        "title": rule.title,
        "why": "",
        "to_change": rule.closest if isinstance(rule.closest, str) else "",
        "source": rule.source,
        "framework": rule.framework,
        "versions": rule.versions,
        "when": rule.when,
    }
