"""DeepSpeed: its JSON, written and read."""

from planner.frameworks.framework import Framework, FrameworkGrid
from searches.frameworks.registry import BUILT_IN

FRAMEWORK = Framework(
    rules=BUILT_IN["deepspeed"],
    emitter="planner.frameworks.deepspeed.emitter:deepspeed_files",
    stack="deepspeed",
    run_formats="planner.frameworks.deepspeed.formats:RUN_FORMATS",
    script_formats="planner.frameworks.deepspeed.formats:SCRIPT_FORMATS",
    settings={"": "planner.frameworks.deepspeed.settings:deepspeed_settings"},
    joint=": ",
    grid=FrameworkGrid(
        "pipe data sequence model",
        "pipe expert_data expert",
        "deepspeed/runtime/pipe/topology.py: PipeModelDataParallelTopology;"
        " runtime/sequence_parallel/parallel_state_sp.py; module_inject/auto_ep_folding.py",
    ),
    start_command="deepspeed.sh",
    log_note="DeepSpeed prints CurrSamplesPerSec every step; with torch.compile it may not. With "
    "DATA=random deepspeed_train.py trains on random tokens.",
)
