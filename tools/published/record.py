"""The kept rows: made of checkouts, one after the other, and read again."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tools.published.examples import (
    Example,
    mindspeed_examples,
    primus_examples,
    tpu_examples,
)
from tools.published.survey import row_of, stable

KEPT = Path(__file__).resolve().parent / "kept.json"
VARIABLES = {
    "Primus": "PRIMUS_SRC",
    "MindSpeed-LLM": "MINDSPEED_SRC",
    "tpu-recipes": "TPU_RECIPES_SRC",
}
"""Variables that name the checkouts, by source."""


class CannotRun(Exception):
    """Something outside is missing."""


def document() -> dict[str, Any]:
    """Return the kept rows with the commits that they are of."""
    if not KEPT.is_file():
        return {"commits": {}, "rows": []}
    found: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


def checkouts(environ: Mapping[str, str]) -> dict[str, Path]:
    """Return the checkouts that the environment names; `CannotRun` for none, or no folder."""
    found = {
        source: Path(environ[name]) for source, name in VARIABLES.items() if environ.get(name)
    }
    if not found:
        raise CannotRun(
            f"no checkout is named; set {', '.join(VARIABLES.values())} or some of them"
        )
    for source, path in found.items():
        if not path.is_dir():
            raise CannotRun(
                f"{VARIABLES[source]}={path} is no folder; name a checkout of {source}"
            )
    return found


def examples(found: Mapping[str, Path], maxtext: Path | None) -> Iterator[Example]:
    """Yield the examples of all checkouts."""
    for source, path in found.items():
        if source == "Primus":
            yield from primus_examples(path)
        elif source == "MindSpeed-LLM":
            yield from mindspeed_examples(path)
        else:
            yield from tpu_examples(path, maxtext)


def survey(environ: Mapping[str, str], only: str = "", processes: int = 1) -> None:
    """Judge the examples whose names hold `only`, and keep their rows."""
    found = checkouts(environ)
    maxtext = Path(environ["MAXTEXT_SRC"]) if environ.get("MAXTEXT_SRC") else None
    wanted = [x for x in examples(found, maxtext) if only in x.file]
    if not wanted:
        raise CannotRun(f"no example has {only!r} in its name")
    kept = document()
    rows = {(row["source"], row["file"]): row for row in kept["rows"]}
    if not only:
        rows = {key: row for key, row in rows.items() if key[0] not in found}
    places = dict(found) | ({"MaxText": maxtext} if maxtext else {})
    commits = kept["commits"] | {name: _commit(path, environ) for name, path in places.items()}
    with ProcessPoolExecutor(processes) as pool:
        for example, row in zip(wanted, pool.map(row_of, wanted), strict=True):
            rows[example.source, example.file] = stable(row)
            print(f"{example.file}: {row['outcome']} {row.get('ratio', row.get('reason'))}")
            _write({"commits": commits, "rows": [rows[key] for key in sorted(rows)]})


def _commit(path: Path, environ: Mapping[str, str]) -> str:
    """Return the commit of a checkout; of an unpacked archive the text of its file `.commit`."""
    noted = path / ".commit"
    if noted.is_file():
        return noted.read_text(encoding="utf-8").strip()[:12]
    command = ["git", "-C", str(path), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(environ))
    return done.stdout.strip()[:12] if not done.returncode else "unknown"


def _write(found: Mapping[str, Any]) -> None:
    lines = ",\n".join(json.dumps(row, sort_keys=True) for row in found["rows"])
    commits = json.dumps(found["commits"], sort_keys=True)
    text = f'{{"commits": {commits},\n"rows": [\n{lines}\n]}}\n'
    KEPT.write_text(text, encoding="utf-8")
