"""MaxText, which trains on TPUs: its YAML and command lines, written and read."""

from planner.frameworks.framework import Framework, FrameworkGrid
from searches.frameworks.registry import BUILT_IN

FRAMEWORK = Framework(
    rules=BUILT_IN["maxtext"],
    emitter="planner.frameworks.maxtext.emitter:maxtext_files",
    stack="maxtext",
    run_formats="planner.frameworks.maxtext.formats:RUN_FORMATS",
    settings={"": "planner.frameworks.maxtext.settings:maxtext_settings"},
    joint=": ",
    grid=FrameworkGrid(
        "data fsdp context tensor_sequence expert",
        "",
        "maxtext/configs/base.yml, mesh_axes; maxtext/utils/maxtext_utils.py, create_device_mesh",
    ),
    start_command="maxtext.sh",
    log_note="MaxText prints `completed step: N, seconds: T` every step.",
)
