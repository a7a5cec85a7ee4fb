"""Changes one thing in the files of a legal plan: a rule that breaks, or a number at random."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tools.samples.draw import Drawn
from tools.samples.megatron_line import MegatronLine
from tools.samples.vary_megatron import BREAKS as MEGATRON_BREAKS
from tools.samples.vary_megatron import nudge as nudge_megatron

NUDGE_SHARE = 0.4
"""Variations that change a number at random; the framework may well accept them."""


@dataclass(frozen=True, slots=True)
class Variation:
    """The files of one checker with one thing changed."""

    name: str
    drawn: Drawn
    checker: str
    files: dict[str, str]
    n_devices: int
    change: str
    breaks: str = ""
    """Code of the rule that the change is meant to break; empty where that is open."""


def vary(
    checker: str, drawn: Drawn, files: dict[str, str], turn: int, random: Random
) -> Variation | None:
    """Return a variation; `turn` picks the rule to break, so that all of them come up.

    None where the checker has no file of the plan.
    """
    if checker == "megatron":
        return _vary_megatron(drawn, files, turn, random)
    return None


def _vary_megatron(drawn: Drawn, files: dict[str, str], turn: int, random: Random) -> Variation:
    text = files["megatron.sh"]
    breaks = change = ""
    line = MegatronLine(text)
    if random.random() >= NUDGE_SHARE:
        for step in range(len(MEGATRON_BREAKS)):
            breaks, change, apply = MEGATRON_BREAKS[(turn + step) % len(MEGATRON_BREAKS)]
            line = MegatronLine(text)
            if apply(line, random):
                break
    if not breaks:
        change = nudge_megatron(line, random)
    return Variation(
        drawn.name, drawn, "megatron", {"megatron.sh": str(line)}, line.world, change, breaks
    )


def variations(
    drawn: Iterator[tuple[Drawn, dict[str, str]]], checkers: tuple[str, ...], seed: int
) -> Iterator[Variation]:
    """Yield a variation of each plan and checker that it has files for."""
    random = Random(f"{seed} variations")
    turns = dict.fromkeys(checkers, 0)
    for plan, files in drawn:
        for checker in checkers:
            if checker.partition("-")[0] != plan.framework:
                continue
            found = vary(checker, plan, files, turns[checker], random)
            if found is not None:
                turns[checker] += 1
                yield found
