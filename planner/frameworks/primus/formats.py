"""What is read as a run of Primus: its experiments, and flat YAML of Megatron-LM's settings."""

from planner.frameworks.primus.launcher import read_launcher, starts_primus
from planner.frameworks.primus.reader import (
    looks_like_primus,
    looks_like_settings,
    read_primus,
    read_settings,
)
from planner.frameworks.runs.format import RunFormat
from planner.frameworks.shell.wrappers import SCRIPT_ENDINGS

RUN_FORMATS = (
    RunFormat(
        lambda file: looks_like_primus(file.text),
        read_primus,
        "a Primus experiment",
        precedence=10,
    ),
    RunFormat(
        lambda file: file.has_ending(*SCRIPT_ENDINGS) and starts_primus(file.text),
        read_launcher,
        "a launch script of Primus",
        precedence=11,
    ),
    RunFormat(
        lambda file: looks_like_settings(file.text) and not file.is_script,
        read_settings,
        precedence=70,
    ),
)
