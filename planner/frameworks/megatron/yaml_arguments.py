"""YAML files that hold Megatron-LM's flags: `MODEL_ARGS:`, as in its own functional tests."""

import re
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.megatron.flags import flag_table
from planner.frameworks.shell.script import read_script
from planner.specs.yaml.document import parse_yaml

SECTION = "MODEL_ARGS"


def looks_like_model_args(text: str) -> bool:
    """Tell whether a text has a MODEL_ARGS section."""
    return bool(re.search(rf"^{SECTION}:", text, re.M))


def read_model_args(text: str, source: str) -> tuple[list[str], dict[str, str]]:
    """Return the words of a command line and the environment that the file stands for.

    `true` is a flag alone, `false` none, a list several values. A value with a variable of the
    shell keeps it as a mark.
    """
    data = parse_yaml(text, source).data
    section = data.get(SECTION) if isinstance(data, dict) else None
    if not isinstance(section, dict):
        raise SpecError(InputProblem(f"{SECTION} is not a mapping of flags", "", source))
    _, by_name, _ = flag_table()
    flags: list[str] = []
    for key, value in section.items():
        name = key if key.startswith("--") else f"--{key}"
        if value is False or value is None:
            continue
        flags.append(name)
        if value is True:
            continue
        flag = by_name.get(name)
        several = flag is not None and flag.nargs is not None
        flags += _values(value, several)
    env = data.get("ENV_VARS")
    variables = {str(k): str(v) for k, v in env.items()} if isinstance(env, dict) else {}
    return flags, variables


def _values(value: Any, several: bool) -> list[str]:
    if isinstance(value, list):
        return [part for item in value for part in _values(item, several)]
    text = str(value)
    if several:
        text = text.strip("[]").replace(",", " ")
        return [_expanded(part) for part in text.split()]
    return [_expanded(text)]


def _expanded(text: str) -> str:
    """Return a value with shell variables as marks."""
    if "$" not in text:
        return text
    quoted = text.replace('"', '\\"')
    return str(read_script(f'X="{quoted}"').variables.get("X", text))
