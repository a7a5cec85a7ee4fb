"""Primus (AMD): experiments for its Megatron backend, written and read."""

from planner.frameworks.framework import Framework, FrameworkGrid
from searches.frameworks.registry import BUILT_IN

FRAMEWORK = Framework(
    rules=BUILT_IN["primus"],
    emitter="planner.frameworks.primus.emitter:primus_files",
    stack="megatron-core",
    run_formats="planner.frameworks.primus.formats:RUN_FORMATS",
    settings={"": "planner.frameworks.megatron.settings:megatron_settings"},
    changes="planner.frameworks.primus.settings:changed_keys",
    joint=": ",
    grid=FrameworkGrid(
        "pp dp cp tp", "pp edp ep etp", "megatron/core/parallel_state.py, as Megatron-LM"
    ),
    start_command="primus.sh",
    log_note="Primus prints time, tokens per second and memory by itself.",
)
