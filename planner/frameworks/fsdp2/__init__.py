"""PyTorch FSDP2 through Accelerate: its configuration, written and read."""

from planner.frameworks.framework import Framework, FrameworkGrid
from searches.frameworks.registry import BUILT_IN

FRAMEWORK = Framework(
    rules=BUILT_IN["fsdp2"],
    emitter="planner.frameworks.fsdp2.emitter:accelerate_files",
    stack="hf-fsdp2",
    run_formats="planner.frameworks.fsdp2.formats:RUN_FORMATS",
    script_formats="planner.frameworks.fsdp2.formats:SCRIPT_FORMATS",
    settings={"": "planner.frameworks.fsdp2.settings:fsdp2_settings"},
    joint=": ",
    grid=FrameworkGrid(
        "dp_replicate dp_shard cp sp tp",
        "",
        "accelerate/parallelism_config.py: _get_mesh",
    ),
    start_command="accelerate.sh",
    log_note="fsdp2_train.py prints it every step, with DATA=random on random tokens. Let a script"
    " of yours print `iteration N/M | elapsed time per iteration (ms): T |`.",
)
