"""MindSpeed-LLM (Ascend): its launch scripts, read and written."""

from planner.frameworks.framework import Framework, FrameworkGrid
from searches.frameworks.registry import BUILT_IN

FRAMEWORK = Framework(
    rules=BUILT_IN["mindspeed"],
    emitter="planner.frameworks.mindspeed.emitter:mindspeed_files",
    stack="mindspeed",
    script_formats="planner.frameworks.mindspeed.formats:SCRIPT_FORMATS",
    settings={"": "planner.frameworks.mindspeed.settings:mindspeed_settings"},
    changes="planner.frameworks.mindspeed.settings:changed_options",
    grid=FrameworkGrid(
        "pp dp cp tp", "pp edp ep etp", "megatron/core/parallel_state.py, as Megatron-LM"
    ),
    start_command="mindspeed.sh",
    log_note="MindSpeed-LLM prints time and memory by itself.",
)
