"""Draws the settings that published configurations of tools that fine-tune use.

    python -m tools.samples.tuner_examples OUT.json trl=FOLDER axolotl=FOLDER swift=FOLDER ...

A folder holds the examples of a tool: YAML, of ms-swift scripts of `swift sft`. OUT holds, by
tool, how many files were drawn, and by setting some of its values.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.errors import PlannerError
from planner.frameworks.finetuning.reader import tuner_of
from planner.frameworks.runs.launch_script import SWIFT_TASKS, read_launch
from planner.frameworks.runs.settings import flattened
from planner.frameworks.runs.trainer_arguments import plain_value
from planner.frameworks.shell.marks import unresolved
from planner.specs.yaml.document import parse_yaml

MOST_VALUES, MOST_TEXT = 6, 60
"""Values of a setting that are kept, and characters of a text."""

Settings = dict[str, Any]


def of_yaml(path: Path, tool: str) -> Settings | None:
    """Return the settings of a configuration; None where it is not of the tool."""
    text = path.read_text(encoding="utf-8")
    reading = tuner_of(text, path.name)
    if reading is None or reading.name != tool:
        return None
    return flattened(parse_yaml(text, path.name).data)


def of_script(path: Path) -> Settings | None:
    """Return the options of a script that starts `swift sft`; None for another script."""
    try:
        launch = read_launch(path.read_text(encoding="utf-8"), path.name)
    except PlannerError:
        return None
    if launch.launcher != "swift" or launch.script not in SWIFT_TASKS:
        return None
    settings: dict[str, list[Any]] = {}
    name = ""
    for word in launch.argv:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            settings[name] = [value] if equals else []
        elif name:
            settings[name].append(word)
    plain = {
        key: [plain_value(word) for word in words if not unresolved(word)]
        for key, words in settings.items()
    }
    return {key: words[0] if len(words) == 1 else words or True for key, words in plain.items()}


def drawn(tool: str, folder: Path) -> Iterator[Settings]:
    """Yield the settings of each example of a tool in a folder."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".yaml", ".yml"):
            settings = of_yaml(path, tool)
        else:
            settings = of_script(path) if tool == "swift" and path.suffix == ".sh" else None
        if settings is not None:
            yield settings


def _kept(value: Any) -> bool:
    is_long = len(json.dumps(value, default=str)) > MOST_TEXT
    return not is_long and not isinstance(value, dict)


def collected(examples: list[Settings]) -> dict[str, list[Any]]:
    """Return some values of each setting, the most telling ones: short, each once."""
    values: dict[str, list[Any]] = {}
    for settings in examples:
        for key, value in settings.items():
            seen = values.setdefault(key, [])
            is_new = all(json.dumps(value) != json.dumps(other) for other in seen)
            if _kept(value) and is_new and len(seen) < MOST_VALUES:
                seen.append(value)
    return dict(sorted(values.items()))


def main() -> None:
    """Draw the settings of the tools that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("folders", nargs="+", help="tool=FOLDER")
    options = parser.parse_args()
    tools: dict[str, list[Settings]] = {}
    for pair in options.folders:
        tool, _, folder = pair.partition("=")
        tools.setdefault(tool, []).extend(drawn(tool, Path(folder)))
    data = {
        tool: {"files": len(examples), "settings": collected(examples)}
        for tool, examples in tools.items()
    }
    lines = [
        f' "{tool}": {{"files": {entry["files"]}, "settings": {{\n'
        + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in entry["settings"].items())
        + "\n }}"
        for tool, entry in data.items()
    ]
    options.out.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    for tool, entry in data.items():
        print(f"{tool}: {entry['files']} files, {len(entry['settings'])} settings")


if __name__ == "__main__":
    main()
