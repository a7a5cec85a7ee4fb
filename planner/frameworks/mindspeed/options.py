"""The options of MindSpeed-LLM's parser: those of Megatron-LM 0.12.1 and of all features.

The table (`planner/data/mindspeed_options.json`) was asked of the parser of one release by
scripts/mindspeed_options.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from planner.frameworks.megatron.flags import Flag, Parsed, flags_of_rows, parse_flags


@cache
def option_table() -> tuple[Mapping[str, Any], Mapping[str, Flag], Mapping[str, Flag]]:
    """Return where the table is of (`release`, `commit`, ...), options by string and by dest."""
    text = (files("planner") / "data" / "mindspeed_options.json").read_text(encoding="utf-8")
    data = json.loads(text)
    return data, *flags_of_rows(data.pop("flags"))


def parse_options(words: Sequence[str]) -> Parsed:
    """Read the words after the training script as MindSpeed-LLM's parser does."""
    return parse_flags(words, option_table()[1])


def default_option(dest: str) -> Any:
    """Return the parser's default of an option; None where there is no such option."""
    option = option_table()[2].get(dest)
    return option.default if option else None


def odd_options(words: Sequence[str]) -> list[str]:
    """Return what of some words the parser would refuse, a sentence each."""
    parsed = parse_options([word.strip("'") for word in words])
    return [
        *(f"{name}: no option of MindSpeed-LLM" for name in parsed.unknown),
        *parsed.faults,
        *parsed.odd_words.values(),
    ]
