"""`planner learn`."""

import json
import sys

from planner.errors import UsageError
from planner.learn import calculators
from planner.render.terminal import fitted_text, terminal_width
from planner.specs.yaml.document import close_names

FORMATS = ("text", "json", "markdown")


def run_learn(name: str, settings: list[str], form: str) -> int:
    """Run `planner learn`: list the calculators, or answer one; returns the exit code."""
    from planner.learn.text import as_markdown, calculator_list, result_text

    if form not in FORMATS:
        raise UsageError(f"--format: unknown {form!r}", f"one of {', '.join(FORMATS)}")
    by_name = calculators()
    if not name:
        if settings:
            raise UsageError("--set needs a calculator", "planner learn NAME --set key=value")
        if form == "json":
            data = [
                {"name": x.name, "title": x.title, "question": x.question, "inputs": list(x.specs)}
                for x in by_name.values()
            ]
            sys.stdout.write(json.dumps({"calculators": data}, indent=1) + "\n")
        else:
            sys.stdout.write(fitted_text(calculator_list(by_name), terminal_width()))
        return 0
    if name not in by_name:
        near = close_names(name, list(by_name))
        fix = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(by_name)}"
        raise UsageError(f"no calculator called {name!r}", fix)
    one = by_name[name]
    arguments = {}
    for item in settings:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"--set: {item!r} is not of the form KEY=VALUE", f"--set {next(iter(one.specs))}=2"
            )
        arguments[key.strip()] = value.strip()
    if form == "json":
        text = (
            json.dumps(one.to_json(arguments), indent=1, allow_nan=False, ensure_ascii=False)
            + "\n"
        )
    else:
        text = (result_text if form == "text" else as_markdown)(one, arguments)
    sys.stdout.write(text)
    return 0
