"""Sets what a framework really does beside what the planner says of the same plan.

A replay program (`replay_<framework>.py`) reads one JSON object a line and answers one a line:

    in   {"id", "rank": pipeline stage to replay, "layout": {...}, "model": {...}, "job": {...},
          "flags": the words of the emitted script, where the framework has one}
    out  {"id": ...,
          "collectives": [{"axis", "collective", "n_calls", "bytes", "dtype"}],
          "parameters": int, "gradient_bytes": int, "optimizer_bytes": int,
          "kept_activation_bytes": int, "notes": [...], and "parameter_bytes" where not 2 each}

All figures are those of one rank and one optimizer step. `axis` is tp, pp, dp, cp or ep;
`control` for what carries counts and norms (a kilobyte at most), which no plan prices.
`collective` is all-reduce, all-gather, reduce-scatter, all-to-all, broadcast or point-to-point
(sends alone). `bytes` is the sum over the calls of the logical tensor: the whole one that an
all-gather makes or a reduce-scatter takes, what a rank holds for all others in an all-to-all.
`parameters` counts elements. `kept_activation_bytes` is what autograd keeps at the most when a
forward has ended, weights left out. An answer with "error" says why a plan cannot be replayed.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from costmodels.breakdown import break_down
from costmodels.plans import Layout
from costmodels.problem import Problem, run_by
from costmodels.stacks import STACKS
from hardware.parts import Fabric
from planner.specs.loader import load_cluster
from tools.replay.cases import REPLAYS, Record, replayed_rank
from tools.replay.counting import CONTROL_BYTES
from tools.replay.explained import reason_for
from tools.samples.draw import Drawn

HERE = Path(__file__).resolve().parent
LIMITS = {"parameters": 0.0, "states": 0.01, "kept activations": 0.03}
"""Largest relative differences that are no fault, by term; of collectives `BYTES_LIMIT`."""
BYTES_LIMIT = 0.005
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "tf32": "fp32"}


def ours(drawn: Drawn, rank: int, stack: str) -> Record:
    """Return the planner's own figures of a pipeline rank, in the form of an answer."""
    pool = replace(
        load_cluster("h100-x512").cluster.pools[0],
        n_nodes=drawn.pool.n_nodes,
        devices_per_node=drawn.pool.devices_per_node,
        scale_up_domain=drawn.pool.scale_up_domain,
    )
    problem = run_by(STACKS[stack], drawn.shape, drawn.job, pool, Fabric())
    plan = break_down(problem, drawn.layout, rank)
    return {
        "id": drawn.name,
        "collectives": [
            {
                "axis": one.axis,
                "collective": one.collective,
                "n_calls": one.n_calls,
                "bytes": one.n_calls * one.message_bytes,
                "dtype": one.dtype,
            }
            for one in plan.transfers
            if one.axis != "host" and one.message_bytes > CONTROL_BYTES
        ],
        "parameters": local_params(problem, drawn.layout, rank),
        "state_bytes": plan.stages[rank]["states"],
        "kept_activation_bytes": plan.stages[rank]["activations"],
    }


def local_params(problem: Problem, layout: Layout, rank: int) -> int:
    """Return the parameters of one rank: of its layers, of its ends, of its experts."""
    state = replace(layout, zero=0, shard=0, hpz=1, optimizer_offload=False)
    if problem.job.precision == "fp16":  # a stack may keep fewer bytes than the recipe's
        problem = replace(problem, job=replace(problem.job, precision="bf16"))
    plain = break_down(problem, state, rank).stages[rank]["states"]
    return round(plain / problem.job.recipe.total_bytes)


def calls_of(record: Record, with_cp: bool) -> dict[tuple[str, str, str], tuple[int, float]]:
    """Return calls and bytes by axis, collective and type; without counts and norms."""
    calls: dict[tuple[str, str, str], tuple[int, float]] = {}
    for one in record["collectives"]:
        if one["axis"] == "control" or (one["axis"] == "cp" and not with_cp):
            continue
        key = one["axis"], one["collective"], SHORT.get(one["dtype"], one["dtype"])
        n, n_bytes = calls.get(key, (0, 0.0))
        calls[key] = n + one["n_calls"], n_bytes + one["bytes"]
    return calls


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one plan beside that of the framework."""

    term: str
    off_frac: float
    is_off: bool
    """Whether that is beyond the limit of the term."""
    text: str
    reason: str = ""
    """Why it differs, where docs/replay.md or docs/replay_torch.md explains it."""


def relative(mine: float, real: float) -> float:
    """Return by how much a figure is off; 1 where there is none to set it against."""
    return (mine - real) / real if real else float(mine != real)


def compare(drawn: Drawn, real: Record, mine: Record) -> list[Figure]:
    """Return every figure of a replayed plan beside the planner's."""
    with_cp = REPLAYS[drawn.framework].runs_cp
    theirs, wanted = calls_of(real, with_cp), calls_of(mine, with_cp)
    figures = []
    for key in sorted({*theirs, *wanted}):
        (n, n_bytes), (k, k_bytes) = theirs.get(key, (0, 0.0)), wanted.get(key, (0, 0.0))
        text = f"{' '.join(key)}: {n} calls of {n_bytes:.0f} B, ours {k} of {k_bytes:.0f}"
        off, kind = relative(k_bytes, n_bytes), " ".join(key[:2])
        figures.append(Figure(f"{kind} calls", relative(k, n), n != k, text))
        figures.append(Figure(f"{kind} bytes", off, abs(off) > BYTES_LIMIT, text))
    weights = real.get("parameter_bytes", 2 * real["parameters"])
    pairs = {
        "parameters": (mine["parameters"], real["parameters"]),
        "states": (
            mine["state_bytes"],
            weights + real["gradient_bytes"] + real["optimizer_bytes"],
        ),
        "kept activations": (mine["kept_activation_bytes"], real["kept_activation_bytes"]),
    }
    for term, (figure, truth) in pairs.items():
        off = relative(figure, truth)
        text = f"{term}: {truth:.0f}, ours {figure:.0f} ({off:+.2%})"
        figures.append(Figure(term, off, abs(off) > LIMITS[term], text))
    return [explained(drawn, figure) for figure in figures]


def explained(drawn: Drawn, figure: Figure) -> Figure:
    """Return a figure that is off with its reason, where there is a known one."""
    reason = reason_for(drawn, figure.term, figure.off_frac) if figure.is_off else ""
    return replace(figure, reason=reason) if reason else figure


@dataclass(slots=True)
class Term:
    """How one term compares over all plans."""

    n_plans: int = 0
    n_off: int = 0
    n_explained: int = 0
    worst_frac: float = 0.0
    """Largest difference that nothing explains."""

    def add(self, figure: Figure) -> None:
        """Count one plan."""
        self.n_plans += 1
        if figure.reason:
            self.n_explained += 1
            return
        self.n_off += figure.is_off
        if abs(figure.off_frac) >= abs(self.worst_frac):
            self.worst_frac = figure.off_frac


def answers(framework: str, cases: Sequence[Record], python: str, path: str) -> Iterator[Record]:
    """Yield the answers of a replay program, in order."""
    program = [python, str(HERE / f"replay_{framework}.py")]
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        lines, log = Path(folder, "cases.jsonl"), Path(folder, "stderr")
        lines.write_text("".join(json.dumps(case) + "\n" for case in cases))
        with log.open("w") as stderr:
            running = subprocess.Popen(
                [*program, str(lines)], env=env, text=True, stdout=subprocess.PIPE, stderr=stderr
            )
            assert running.stdout is not None
            yield from (json.loads(line) for line in running.stdout)
        if running.wait():
            raise SystemExit(f"{' '.join(program)} failed:\n{log.read_text()[-2000:]}")


def replay(
    framework: str, drawn: Sequence[Drawn], python: str, path: str
) -> Iterator[tuple[Drawn, int, list[Figure], str]]:
    """Yield every plan with its replayed rank, its figures, and why it could not be replayed."""
    by_name = {one.name: one for one in drawn}
    kind = REPLAYS[framework]
    cases = [kind.case(one, replayed_rank(one.name, one.layout)) for one in drawn]
    for answer in answers(framework, cases, python, path):
        one = by_name[answer["id"]]
        rank = replayed_rank(one.name, one.layout)
        if "error" in answer:
            yield one, rank, [], answer["error"]
        else:
            yield one, rank, compare(one, answer, ours(one, rank, kind.stack)), ""


def table(terms: Mapping[tuple[str, str], Term]) -> Iterator[str]:
    """Yield the comparison as lines of a Markdown table; keys are (framework, term)."""
    yield "| framework | term | plans | beyond the limit | explained | worst of the others |"
    yield "|---|---|--:|--:|--:|--:|"
    for (framework, name), x in sorted(terms.items()):
        yield (
            f"| {framework} | {name} | {x.n_plans} | {x.n_off} | {x.n_explained} "
            f"| {x.worst_frac:+.2%} |"
        )
