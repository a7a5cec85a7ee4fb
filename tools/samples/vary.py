"""Changes one thing in the files of a legal plan: a rule that breaks, or a number at random."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.samples import vary_accelerate, vary_deepspeed, vary_megatron, vary_torchtitan
from tools.samples.draw import Drawn
from tools.samples.megatron_line import MegatronLine
from tools.samples.vary_accelerate import AccelerateRun
from tools.samples.vary_deepspeed import DeepSpeedRun
from tools.samples.vary_torchtitan import TitanFile

NUDGE_SHARE = 0.4
"""Variations that change a number at random; the framework may well accept them."""
Files = dict[str, str]


@dataclass(frozen=True, slots=True)
class Variation:
    """The files of one checker with one thing changed."""

    name: str
    drawn: Drawn
    checker: str
    files: Files
    n_devices: int
    change: str
    breaks: str = ""
    """Code of the rule that the change is meant to break, several with | where it depends on the
    plan; empty where that is open."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How the files of one checker are changed."""

    has: str
    """File without which there is nothing to change."""
    read: Callable[[Files, Drawn], Any]
    write: Callable[[Any], Files]
    devices: Callable[[Any, Drawn], int]
    breaks: Sequence[tuple[str, str, Callable[[Any, Random], bool]]]
    nudge: Callable[[Any, Random], str]


KINDS: dict[str, Kind] = {
    "megatron": Kind(
        "megatron.sh",
        lambda files, drawn: MegatronLine(files["megatron.sh"]),
        lambda line: {"megatron.sh": str(line)},
        lambda line, drawn: int(line.world),
        vary_megatron.BREAKS,
        vary_megatron.nudge,
    ),
    "deepspeed": Kind(
        "deepspeed.json",
        lambda files, drawn: DeepSpeedRun(files),
        lambda run: dict(run.files()),
        lambda run, drawn: int(run.world),
        vary_deepspeed.BREAKS,
        vary_deepspeed.nudge,
    ),
    "torchtitan": Kind(
        "torchtitan_recipe.py",
        lambda files, drawn: TitanFile(files["torchtitan_recipe.py"], files["torchtitan.sh"]),
        lambda file: {"torchtitan_recipe.py": file.text, "torchtitan.sh": file.launcher},
        lambda file, drawn: int(file.world),
        vary_torchtitan.BREAKS,
        vary_torchtitan.nudge,
    ),
    "torchtitan-toml": Kind(
        "torchtitan.toml",
        lambda files, drawn: TitanFile(files["torchtitan.toml"]),
        lambda file: {"torchtitan.toml": file.text},
        # No launcher goes with it: it starts on as many as it asks for.
        lambda file, drawn: file.stated or drawn.layout.n_devices,
        vary_torchtitan.BREAKS,
        vary_torchtitan.nudge,
    ),
    "accelerate": Kind(
        "accelerate.yaml",
        lambda files, drawn: AccelerateRun(files),
        lambda run: dict(run.files()),
        lambda run, drawn: int(run.keys["num_processes"]),
        vary_accelerate.BREAKS,
        vary_accelerate.nudge,
    ),
}
"""By checker; recipes of Megatron-Bridge are written and not read back."""


def vary(checker: str, drawn: Drawn, files: Files, turn: int, random: Random) -> Variation | None:
    """Return a variation; `turn` picks the rule to break, so that all of them come up.

    None where there is no file for the checker.
    """
    kind = KINDS[checker]
    if kind.has not in files:
        return None
    breaks, change = "", ""
    changed = kind.read(files, drawn)
    if random.random() >= NUDGE_SHARE:
        for step in range(len(kind.breaks)):
            code, title, apply = kind.breaks[(turn + step) % len(kind.breaks)]
            changed = kind.read(files, drawn)
            if apply(changed, random):
                breaks, change = code, title
                break
    if not change:
        changed = kind.read(files, drawn)
        change = kind.nudge(changed, random)
    n_devices = kind.devices(changed, drawn)
    return Variation(drawn.name, drawn, checker, kind.write(changed), n_devices, change, breaks)


def variations(
    plans: Iterator[tuple[Drawn, Files]], checkers: Sequence[str], seed: int
) -> Iterator[Variation]:
    """Yield a variation of each plan, for one of the checkers that it has files for."""
    random = Random(f"{seed} variations")
    turns = dict.fromkeys(checkers, 0)
    for drawn, files in plans:
        there = [name for name in checkers if KINDS[name].has in files]
        if not there:
            continue
        checker = min(there, key=lambda name: turns[name])
        found = vary(checker, drawn, files, turns[checker], random)
        if found is not None:
            turns[checker] += 1
            yield found
