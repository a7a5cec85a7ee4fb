"""Megatron-LM: its flags, what is written with them, and scripts of users."""

from planner.frameworks.framework import Framework, FrameworkGrid
from searches.frameworks.registry import BUILT_IN

FRAMEWORK = Framework(
    rules=BUILT_IN["megatron"],
    emitter="planner.frameworks.megatron.emitter:megatron_files",
    stack="megatron-core",
    run_formats="planner.frameworks.megatron.formats:RUN_FORMATS",
    script_formats="planner.frameworks.megatron.formats:SCRIPT_FORMATS",
    settings={"": "planner.frameworks.megatron.settings:megatron_settings"},
    changes="planner.frameworks.megatron.settings:changed_flags",
    grid=FrameworkGrid(
        "pp dp cp tp",
        "pp edp ep etp",
        "megatron/core/parallel_state.py: RankGenerator with order tp-cp-ep-dp-pp, one for the"
        " dense layers (ep 1), one for the experts (cp 1)",
    ),
    start_command="megatron.sh --log-memory-interval 5",
    log_note="Megatron-LM prints time and memory by itself.",
    smoke_programs=("megatron_smoke.py", "megatron_cpu.py", "megatron_report.py"),
)
