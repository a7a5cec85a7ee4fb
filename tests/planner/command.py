"""The command line run in this process, at a tenth of the cost of a process of its own."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from planner.cli.app import main


def run_here(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Return what `planner WORDS` prints and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["planner", *words]),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as left:
            code = left.code
    return subprocess.CompletedProcess(words, int(code or 0), out.getvalue(), err.getvalue())
