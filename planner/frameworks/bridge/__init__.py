"""Megatron-Bridge: recipes."""

from planner.frameworks.framework import Framework, FrameworkGrid
from searches.frameworks.registry import BUILT_IN

FRAMEWORK = Framework(
    rules=BUILT_IN["bridge"],
    emitter="planner.frameworks.bridge.emitter:bridge_files",
    stack="megatron-core",
    run_formats="planner.frameworks.bridge.formats:RUN_FORMATS",
    script_formats="planner.frameworks.bridge.formats:SCRIPT_FORMATS",
    named_run="planner.frameworks.bridge.reader:published_text",
    settings={"": "planner.frameworks.megatron.settings:megatron_settings"},
    changes="planner.frameworks.bridge.recipe_settings:changed_fields",
    grid=FrameworkGrid(
        "pp dp cp tp", "pp edp ep etp", "megatron/core/parallel_state.py, as Megatron-LM"
    ),
    start_command="bridge.sh",
    says_adapters=True,
    log_note="Megatron-Bridge prints time and memory by itself.",
)
