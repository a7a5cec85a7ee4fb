"""What is read as a run of MaxText: its YAML, scripts and manifests that start its training."""

import re

from planner.errors import InputProblem, SpecError
from planner.frameworks.maxtext.command import looks_like_command, training_command
from planner.frameworks.maxtext.reader import command_settings, config_chain, maxtext_run
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.format import RunFile, RunFormat

_KEYS = re.compile(
    r"^(ici_\w+_parallelism|dcn_\w+_parallelism|per_device_batch_size|base_emb_dim"
    r"|max_target_length|remat_policy):",
    re.M,
)


def looks_like_config(text: str) -> bool:
    """Tell whether a text is a YAML of MaxText: two of its own keys stand at the top.

    MaxDiffusion has the same axes, and a key of its own.
    """
    others = re.search(r"^pretrained_model_name_or_path:", text, re.M)
    return len({match[1] for match in _KEYS.finditer(text)}) > 1 and not others


def _config(file: RunFile) -> ExistingRun:
    settings = config_chain(file.text, file.name, file.find)
    return maxtext_run(settings, file.name, file.query, "MaxText configuration")


def _command(file: RunFile) -> ExistingRun:
    command = training_command(file)
    if command is None:
        fix = "write the command as python3 -m maxtext.trainers.pre_train.train FILE key=value"
        message = "starts MaxText in a way that is not read"
        raise SpecError(InputProblem(message, fix, file.name))
    settings = command_settings(command, file.name, file.find)
    return maxtext_run(settings, file.name, file.query, "MaxText command", command)


RUN_FORMATS = (
    RunFormat(
        lambda file: looks_like_command(file.text),
        _command,
        "a script or manifest that starts MaxText",
        precedence=12,
    ),
    RunFormat(
        lambda file: looks_like_config(file.text) and not file.is_script,
        _config,
        "a MaxText YAML",
        precedence=14,
    ),
)
