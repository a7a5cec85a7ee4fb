"""torchtitan: recipes and job files, written and read."""

from planner.frameworks.framework import Framework, FrameworkGrid
from searches.frameworks.registry import BUILT_IN

FRAMEWORK = Framework(
    rules=BUILT_IN["torchtitan"],
    emitter="planner.frameworks.torchtitan.emitter:torchtitan_files",
    stack="torchtitan",
    run_formats="planner.frameworks.torchtitan.formats:RUN_FORMATS",
    script_formats="planner.frameworks.torchtitan.formats:SCRIPT_FORMATS",
    settings={
        "": "planner.frameworks.torchtitan.settings:recipe_settings",
        "torchtitan job file (TOML)": "planner.frameworks.torchtitan.settings:job_file_settings",
    },
    grid=FrameworkGrid(
        "pp dp_replicate dp_shard cp tp",
        "pp dp_replicate efsdp ep etp",
        "torchtitan/distributed/parallel_dims.py: build_mesh",
    ),
    start_command="torchtitan.sh",
    log_note="torchtitan prints tokens per second and memory every step.",
    smoke_programs=("torchtitan_smoke.py",),
)
