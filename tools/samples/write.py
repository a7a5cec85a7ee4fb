"""Writes drawn plans, or variations of their files, as JSON lines.

    python -m tools.samples.write legal OUT.jsonl --plans 300 --seed 0 --for megatron,deepspeed
    python -m tools.samples.write varied OUT.jsonl --plans 300 --seed 0 --for megatron,deepspeed

A line holds the id, the framework, its files and what `planner check` says against them; of a
variation also what was changed and the rule that this was meant to break.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from tools.samples.draw import SHARE, Drawn, draw_plans, shares
from tools.samples.vary import KINDS, variations
from tools.samples.verdict import misread, verdict

CHECKER_OF = {
    "megatron": "megatron",
    "deepspeed": "deepspeed",
    "torchtitan": "torchtitan",
    "torchtitan-toml": "torchtitan",
    "accelerate": "fsdp2",
}
"""Framework by checker, of those whose files `planner check` reads."""


def files_of(drawn: Drawn) -> dict[str, str]:
    """Return the files of a drawn plan; a refusal to write them is a fault of the rules."""
    header = (f"sample {drawn.name}", f"{drawn.shape.name} on {drawn.layout.n_devices} devices")
    files = emit_plan(
        drawn.framework,
        EmitRequest(drawn.layout, drawn.shape, drawn.job, drawn.pool, header, drawn.details),
    )
    if list(files) == [f"{drawn.framework}.txt"]:
        text = files[f"{drawn.framework}.txt"]
        raise SystemExit(f"{drawn.name} is legal for the search, the emitter refuses it:\n{text}")
    return files


def sizes(drawn: Drawn) -> dict[str, int]:
    """Return the sizes that a framework asks of the model and not of its configuration."""
    shape = drawn.shape
    return {
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "seq_len": drawn.job.seq_len,
        "n_experts": shape.n_experts,
    }


def judged(drawn: Drawn, files: dict[str, str]) -> dict[str, str]:
    """Return what `planner check` says against the files of a legal plan, by checker."""
    said = {}
    for name, kind in KINDS.items():
        if CHECKER_OF[name] == drawn.framework and kind.has in files:
            found = verdict(name, files, drawn)
            lines = [f"{code} {reason}" for code, reason in found.refused]
            lines += [found.error] * bool(found.error) + misread(found, drawn)
            if lines:
                said[name] = "; ".join(lines)
    return said


def legal_lines(wanted: Mapping[str, int], seed: int) -> Iterator[dict[str, object]]:
    """Yield so many plans of each framework with their files, and print what is on in them."""
    for framework, n in wanted.items():
        counts: Counter[str] = Counter()
        n_found = 0
        for drawn in draw_plans(framework, n, seed):
            counts.update(drawn.features)
            n_found += 1
            files = files_of(drawn)
            line = {"id": drawn.name, "framework": framework, "shape": sizes(drawn)}
            yield {**line, "files": files, "ours": judged(drawn, files)}
        features = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        print(f"{framework}: {n_found} plans drawn; {features}")
        if n_found < n:
            print(f"{framework}: {n} were asked for")


def varied_lines(wanted: Mapping[str, int], seed: int) -> Iterator[dict[str, object]]:
    """Yield variations of so many plans of each framework and what `planner check` says."""
    for framework, n in wanted.items():
        # Other plans than those that are asked about as they are.
        plans = ((drawn, files_of(drawn)) for drawn in draw_plans(framework, n, seed + 1))
        checkers = tuple(name for name in KINDS if CHECKER_OF[name] == framework)
        for one in variations(plans, checkers, seed):
            drawn = one.drawn
            found = verdict(one.checker, one.files, drawn, one.n_devices)
            yield {
                "id": one.name,
                "checker": one.checker,
                "framework": framework,
                "shape": sizes(drawn),
                "files": one.files,
                "n_devices": one.n_devices,
                "ours": {**found.to_json(), "change": one.change, "breaks": one.breaks},
            }


def main() -> int:
    """Write one kind of lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("legal", "varied"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--plans", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--for",
        dest="frameworks",
        default=",".join(SHARE),
        help="that share the plans",
    )
    parser.add_argument("--only", help="one of them, whose share is written")
    options = parser.parse_args()
    frameworks = tuple(options.frameworks.split(","))
    if options.kind == "varied":
        frameworks = tuple(name for name in frameworks if name in CHECKER_OF.values())
    wanted = shares(options.plans, frameworks) if frameworks else {}
    if options.only:
        wanted = {options.only: wanted.get(options.only, 0)}
    with options.out.open("w") as out:
        lines = legal_lines if options.kind == "legal" else varied_lines
        for line in lines(wanted, options.seed):
            out.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
