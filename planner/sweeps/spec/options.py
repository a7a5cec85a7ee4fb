"""What options of the command line put into a sweep document."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.errors import UsageError
from planner.specs.yaml.document import Document, parse_yaml
from planner.units import shown_value


def with_command_options(document: Document, more: Mapping[str, Any]) -> Document:
    """Return a sweep with what options say in the place of what the file says."""
    data, overrides = dict(document.data), dict(document.overrides)
    for key, option_value in more.items():
        if key == "vary":
            axes = dict(data.get("vary") or {})
            for text in option_value:
                path, values = parse_vary(text)
                if ("vary", path) in overrides:
                    fix = "list all values behind one --vary"
                    raise UsageError(f"--vary: {path} is given twice", fix)
                axes[path] = values
                overrides["vary", path] = f"--vary {text}"
            if axes:
                data["vary"] = axes
        elif key == "set":
            data["set"] = dict(data.get("set") or {})
            for path, text in option_value:
                data["set"][path] = _scalar(str(text), f"--set {path}={text}")
                overrides["set", path] = f"--set {path}={text}"
        elif key == "search":
            own = dict(data.get("search") or {})
            for name, value in option_value.items():
                inner = isinstance(value, Mapping) and isinstance(own.get(name), Mapping)
                own[name] = {**own[name], **value} if inner else value
                overrides["search", name] = f"--{name.replace('_', '-').removesuffix('-s')}"
            data["search"] = own
        elif key == "let":
            data["let"] = {**(data.get("let") or {}), **option_value}
            for name, text in option_value.items():
                overrides["let", name] = f"--let {name}={text}"
        elif key == "where":
            constraints = data.get("where") or []
            constraints = constraints if isinstance(constraints, list) else [constraints]
            data["where"] = [*constraints, *option_value]
            for i, text in enumerate(option_value):
                overrides["where", len(constraints) + i] = f"--where {shown_value(text)}"
        else:
            data[key] = option_value
            overrides[(key,)] = (
                f"--{key} {option_value}" if isinstance(option_value, str | int) else f"--{key}"
            )
    return replace(document, data=data, overrides=overrides)


def parse_vary(text: str) -> tuple[str, object]:
    """Return the field and the values of `PATH=a,b` or `PATH=LOW..HIGH*k`."""
    path, equals, values = text.partition("=")
    if not equals or not path.strip():
        raise UsageError(
            f"--vary: {text!r} is not of the form PATH=VALUES",
            "--vary pools.0.nodes=32,64,128 or --vary 'pools.0.nodes=32..512*2'",
        )
    message = f"--vary {text}"
    items = [item.strip() for item in _parts(values)]
    if not any(items):
        return path.strip(), []
    if "" in items:
        raise UsageError(f"--vary {path.strip()}: an empty value in {values!r}", "drop the comma")
    return path.strip(), [_scalar(item, message) for item in items]


def _parts(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += char
    return parts


def _scalar(text: str, origin: str) -> object:
    return parse_yaml(text, origin).data if text.strip() else None
