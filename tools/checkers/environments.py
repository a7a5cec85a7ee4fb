"""The environment of the frameworks under .frameworks/, made on the first run and kept.

One for all of them, pinned by requirements.txt; a release that is named instead of a pin gets a
scratch environment of its own. What asks for another Python or for a GPU when it is installed is
unpacked beside it. Needs nothing beyond the standard library.
"""

import fcntl
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

CHECKERS = Path(__file__).resolve().parent
SETUP_LIMIT_S = 1500
PATIENCE = "PLANNER_CHECK_PATIENCE"
"""Environment variable with the factor on all time limits, for machines that are slow or busy."""
PYTHONS = ("3.11", "3.12", "3.13")
"""Versions of Python that serve, the first that runs."""
MEGATRON = "megatron-core==0.19.2"
"""Unpacked, not installed: its wheel names Python 3.12, and runs on 3.11."""
WHEEL_PYTHON = "3.12"
WHEELS_OF_ANOTHER_PYTHON = ("megatron-core", "megatron-bridge")
"""Packages whose wheels are for `WHEEL_PYTHON` and are unpacked all the same."""
TITAN_TOML = "torchtitan==0.2.2"
"""The last torchtitan that reads TOML."""
BRIDGE = "megatron-bridge==0.6.2"
"""Unpacked, not installed: its dependencies want a GPU."""


def patient(limit_s: float) -> float:
    """Return a time limit as long as the environment asks for; `ValueError` for what is none."""
    text = os.environ.get(PATIENCE) or "1"
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < 1e6:
        raise ValueError(f"{PATIENCE} or --patience is {text}: give a factor, such as 4")
    return limit_s * factor


class CannotRun(Exception):
    """The check itself failed, not what it checks."""


def really(python: str, version: str) -> str | None:
    """Return the file of this interpreter, shims and links followed.

    None where it does not start, is of another version or cannot make environments.
    """
    code = "import os, sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2]);"
    code += "print(os.path.realpath(getattr(sys, '_base_executable', sys.executable)))"
    try:
        got = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found, _, file = got.stdout.strip().partition("\n")
    return file if got.returncode == 0 and found == version else None


def find_python(version: str) -> str | None:
    """Return an interpreter of this version that really runs."""
    candidates = [shutil.which(f"python{version}") or ""]
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    candidates += sorted(glob.glob(f"{pyenv}/versions/{version}*/bin/python"), reverse=True)
    if uv := shutil.which("uv"):
        found = subprocess.run([uv, "python", "find", version], capture_output=True, text=True)
        candidates.append(found.stdout.strip())
    candidates.append(sys.executable)
    found = (really(python, version) for python in candidates if python)
    return next((python for python in found if python), None)


def must(command: list[str], timeout: float = SETUP_LIMIT_S, **more: object) -> str:
    """Run a command that has to succeed; return what it prints."""
    timeout = patient(timeout)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **more)
    except subprocess.TimeoutExpired as error:
        raise CannotRun(f"{' '.join(command)}: no end after {timeout} s") from error
    if done.returncode:
        raise CannotRun(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return done.stdout


def pip_install(python: str) -> list[str]:
    """Return the start of a pip command; FRAMEWORKS_TORCH_INDEX adds an index for CPU builds."""
    command = [python, "-m", "pip", "install", "--quiet"]
    if index := os.environ.get("FRAMEWORKS_TORCH_INDEX"):
        command += ["--extra-index-url", index]
    return command


def with_releases(pins: str, releases: dict[str, str]) -> str:
    """Return requirements with other releases of some packages; an empty one means the newest.

    >>> with_releases("a==1\\nb==2  # why\\n", {"b": "3", "c": ""})
    'a==1\\nb==3\\n'
    """
    lines = []
    for line in pins.splitlines():
        name = re.split(r"[=<>! #]", line, maxsplit=1)[0]
        if name in releases:
            line = f"{name}=={releases[name]}" if releases[name] else name
        lines.append(line)
    return "\n".join(lines) + "\n"


def any_python() -> str:
    """Return the first interpreter of `PYTHONS` that really runs."""
    found = (find_python(version) for version in PYTHONS)
    python = next((python for python in found if python), None)
    if python is None:
        raise CannotRun(f"no Python {', '.join(PYTHONS)} that runs")
    return python


def environment(python: str, cache: Path, releases: dict[str, str] | None = None) -> str:
    """Return the interpreter of the environment, made anew when its pins have changed.

    `releases` (package to version, empty for the newest) replaces pins. Where pip finds the other
    pins in the way, they are dropped: a newer framework may want a newer torch.
    """
    named = with_releases((CHECKERS / "requirements.txt").read_text(), releases or {})
    stamp = hashlib.sha256(named.encode() + python.encode()).hexdigest()[:12]
    place = cache / f"environment-{stamp}"
    inside = str(place / "bin" / "python")
    if (place / "ready").exists():
        return inside
    shutil.rmtree(place, ignore_errors=True)
    print(f"making the environment of the frameworks in {place}", flush=True)
    started = time.monotonic()
    must([python, "-m", "venv", str(place)])
    wanted = place / "requirements.txt"
    wanted.write_text(named)
    try:
        must([*pip_install(inside), "-r", str(wanted)])
    except CannotRun as error:
        if not releases:
            raise
        print(
            f"  its other pins stand in the way, they are dropped: {str(error).splitlines()[-1]}"
        )
        loose = [line for line in named.splitlines() if line and not line.startswith("#")]
        loose = [x if re.split("==", x)[0] in releases else re.split("==", x)[0] for x in loose]
        wanted.write_text("\n".join(loose) + "\n")
        must([*pip_install(inside), "-r", str(wanted)])
    (place / "ready").write_text("")
    print(f"  took {time.monotonic() - started:.0f} s", flush=True)
    return inside


def tuner_environment(python: str, cache: Path, pins: str = "tuners") -> str:
    """Return the interpreter of tools that fine-tune: their wheels over the environment.

    They are installed without what they depend on; `pins` names their file, `tuners` or `swift`.
    """
    below = environment(python, cache)
    named = (CHECKERS / f"{pins}.txt").read_text()
    stamp = hashlib.sha256(named.encode() + below.encode()).hexdigest()[:12]
    place = cache / f"{pins}-{stamp}"
    inside = str(place / "bin" / "python")
    if (place / "ready").exists():
        return inside
    shutil.rmtree(place, ignore_errors=True)
    print(f"making the environment of the tools that fine-tune in {place}", flush=True)
    must([python, "-m", "venv", str(place)])
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = {one: Path(must([one, "-c", ask]).strip()) for one in (below, inside)}
    (packages[inside] / "below.pth").write_text(f"{packages[below]}\n")
    must([*pip_install(inside), "--no-deps", "-r", str(CHECKERS / f"{pins}.txt")])
    (place / "ready").write_text("")
    return inside


_UNPACKING = threading.Lock()
"""Two checkers want megatron-core at once; those of another process wait for a file."""


def unpacked(release: str, python: str, cache: Path) -> Path:
    """Return the folder of an unpacked wheel, fetched without what it depends on."""
    place = cache / release.replace("==", "-")
    newest = "==" not in release  # fetched anew every time
    cache.mkdir(parents=True, exist_ok=True)
    with _UNPACKING, (cache / "unpacking.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # till it is closed
        if newest or not (place / "ready").exists():
            _unpack(release, python, place)
    return place


def _unpack(release: str, python: str, place: Path) -> None:
    """Fetch a wheel and unpack it into a new folder."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if release.partition("==")[0] in WHEELS_OF_ANOTHER_PYTHON:
        fetch = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place)]
        fetch += ["--python-version", WHEEL_PYTHON, "--ignore-requires-python"]
        must([*fetch, "--only-binary", ":all:", release])
        for wheel in place.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(place)
            wheel.unlink()
    else:  # DeepSpeed has no wheel; its setup asks for the torch that is there
        install = [*pip_install(python), "--no-deps", "--no-build-isolation"]
        no_kernels = os.environ | {"DS_BUILD_OPS": "0", "CUDA_VISIBLE_DEVICES": ""}
        must([*install, "--target", str(place), release], env=no_kernels)
    (place / "ready").write_text("")


def project_python(root: Path) -> str:
    """Return an interpreter with the planner's own dependencies."""
    code = "import numpy, ortools, pydantic, yaml"
    candidates = (sys.executable, root / ".venv" / "bin" / "python")
    for python in map(str, candidates):
        try:
            if subprocess.run([python, "-c", code], capture_output=True).returncode == 0:
                return python
        except OSError:
            continue
    raise CannotRun("no interpreter with the planner's dependencies: pip install -e . in .venv")


if (
    __name__ == "__main__"
):  # makes the environment before anything wants it; prints its interpreter
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".frameworks").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    print(environment(any_python(), folder))
