"""NeMo AutoModel: the YAML of its recipes, written and read."""

from planner.frameworks.framework import Framework, FrameworkGrid
from searches.frameworks.registry import BUILT_IN

FRAMEWORK = Framework(
    rules=BUILT_IN["automodel"],
    emitter="planner.frameworks.automodel.emitter:automodel_files",
    stack="nemo-automodel",
    run_formats="planner.frameworks.automodel.formats:RUN_FORMATS",
    script_formats="planner.frameworks.automodel.formats:SCRIPT_FORMATS",
    settings={"": "planner.frameworks.automodel.settings:automodel_settings"},
    joint=": ",
    grid=FrameworkGrid(
        "pp dp_replicate dp_shard cp tp",
        "pp ep_shard ep",
        "nemo_automodel/components/distributed/mesh_utils.py, _create_fsdp2_device_mesh",
    ),
    start_command="automodel.sh",
    log_note="Its recipe prints loss, tokens per second and memory every step.",
)
