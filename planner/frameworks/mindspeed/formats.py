"""What is read as a run of MindSpeed-LLM: scripts around `pretrain_gpt.py` with its options."""

import re

from planner.frameworks.megatron.flags import parse_flags
from planner.frameworks.megatron.forks import fork_of
from planner.frameworks.megatron.scripts import has_megatron_flags
from planner.frameworks.mindspeed.reader import FORK, read_mindspeed
from planner.frameworks.runs.format import LaunchedRun, ScriptFormat
from planner.frameworks.runs.launch_script import SWIFT_TASKS

_NAMED = re.compile(r"mindspeed_llm|MINDSPEED_LLM|MindSpeed-LLM", re.IGNORECASE)


def is_mindspeed(run: LaunchedRun) -> bool:
    """Tell whether a training command is for MindSpeed-LLM: by its name, or by its options.

    Some of its options are those of other forks: that which knows most of them has it.
    """
    launch = run.launch
    if launch.launcher == "megatron" and launch.script in SWIFT_TASKS:
        return False
    if not has_megatron_flags(launch, run.argv) or "deepspeed_config" in run.arguments:
        return False
    if run.query.version and not _NAMED.search(run.file.text):
        return False  # the release that the user names is Megatron-LM's
    return bool(_NAMED.search(run.file.text)) or fork_of(parse_flags(run.argv).unknown) == FORK


SCRIPT_FORMATS = (
    ScriptFormat(is_mindspeed, read_mindspeed, "a launch script of MindSpeed-LLM", precedence=9),
)
