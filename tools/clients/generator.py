"""The generator of Python clients, in an environment of its own.

It wants an older typer than the command line is tested with, so it is no part of `dev`. The
environment stands beside the one of the checkout and is kept; the first run needs a network.
"""

import fcntl
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = "openapi-python-client==0.29.1"
PLACE = ROOT / ".venv-clients"
LIMIT_S = 300.0


class NoGenerator(Exception):
    """The generator cannot be installed here; the text says why."""


def generator_python() -> Path:
    """Return the interpreter of the environment, which is made where it is not there."""
    python = PLACE / "bin" / "python"
    ready = PLACE / GENERATOR
    PLACE.mkdir(exist_ok=True)
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            venv.create(PLACE, with_pip=True)
            command = [str(python), "-m", "pip", "install", "--quiet", GENERATOR]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
            if done.returncode:
                raise NoGenerator(done.stderr.strip().splitlines()[-1])
            ready.touch()
    return python


def generate(document: Path, folder: Path) -> str:
    """Write the Python client of a document into a new folder; return what the generator says."""
    python = generator_python()
    command = [str(python), "-m", "openapi_python_client", "generate", "--path", str(document)]
    command += ["--output-path", str(folder), "--meta", "none", "--fail-on-warning"]
    path = f"{python.parent}:/usr/bin:/bin"  # it calls ruff of its own environment
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env={"PATH": path}
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


def main() -> int:
    """Generate the client of docs/openapi.json into the folder that is named."""
    try:
        print(generate(ROOT / "docs" / "openapi.json", Path(sys.argv[1])))
    except NoGenerator as error:
        print(f"the generator cannot be installed: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
