"""What libtpu takes for a step: its compiler, without a TPU, until memory is laid out."""

import os
import re
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from tools.maxtext_memory.cases import Case

CHILD = Path(__file__).resolve().parents[1] / "checkers" / "compile_maxtext.py"
LIMIT_S = 1800
ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "0",
    "TPU_MIN_LOG_LEVEL": "0",
    "TPU_VMODULE": "buffer_assignment=3",
}
"""What makes libtpu tell its buffers."""
LAID_OUT = re.compile(
    r"Primary BufferAssignment (?:did not exceed|exceeded) memory limit for color 0 \((\d+) bytes"
)
DONE = "Buffer assignment done."


class NotCompiled(Exception):
    """libtpu said nothing of its buffers; the message has the end of its output."""


def compiled_bytes(case: Case, python: str) -> int:
    """Return what the step of a case takes of a chip's memory: states, tensors and their gaps.

    Raises NotCompiled where the program ended, or took `LIMIT_S`, before its memory was laid out.
    """
    request = EmitRequest(case.layout, case.shape, case.job, case.pool, (f"case {case.name}",))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "maxtext.yml"
        file.write_text(emit_plan("maxtext", request)["maxtext.yml"])
        words = (f"compile_topology={case.topology}", "compile_topology_num_slices=1")
        own = ("run_name=memory", f"base_output_directory={folder}")
        command = [python, "-W", "ignore", str(CHILD), str(file), *words, *own]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
        )
        late = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        try:
            return _told(process)
        finally:
            late.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _told(process: subprocess.Popen[str]) -> int:
    """Return what a compiler says of its buffers, up to the moment when they are laid out."""
    found, last = 0, [""]
    assert process.stdout is not None  # it is a pipe
    for line in process.stdout:
        if match := LAID_OUT.search(line):
            found = int(match[1])
        elif found and DONE in line:
            return found
        last = [*last[-8:], line[:200]]
    raise NotCompiled("".join(last))
