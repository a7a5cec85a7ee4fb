"""Scripts have no ending by which lint and types would find them: what they import is there."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("hardware", "costmodels", "searches", "planner", "service", "tests", "tools")


def is_python(path: Path) -> bool:
    if not path.is_file() or path.suffix not in ("", ".py"):
        return False
    return path.suffix == ".py" or "python" in path.read_text().partition("\n")[0]


SCRIPTS = [
    path
    for folder in ("scripts", "benchmarks", "tools")
    for path in sorted((ROOT / folder).rglob("*"))
    if is_python(path)
]


def test_scripts_are_found() -> None:
    names = {path.name for path in SCRIPTS}
    assert {"accuracy_page", "smoke_frameworks", "bench_score.py"} <= names


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_of_ours_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level:
            module = node.module or ""
            if module.split(".")[0] not in OURS:
                continue
            assert importlib.util.find_spec(module), f"line {node.lineno}: no module {module}"
            if module.split(".")[0] == "tools":  # imports what only a framework's Python has
                continue
            imported = importlib.import_module(module)
            for alias in node.names:
                is_there = hasattr(imported, alias.name)
                if not is_there and hasattr(imported, "__path__"):
                    is_there = importlib.util.find_spec(f"{module}.{alias.name}") is not None
                assert is_there, f"line {node.lineno}: no {alias.name} in {module}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in OURS:
                    assert importlib.util.find_spec(alias.name), f"no module {alias.name}"
