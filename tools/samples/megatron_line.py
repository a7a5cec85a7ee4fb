"""An emitted Megatron-LM script as words that can be changed and written back."""

import re
import shlex

_PROGRAM = re.compile(r"^\s*\S*pretrain_\w+\.py\S*\s*\\$", re.M)
SINGLE_QUEUE = "CUDA_DEVICE_MAX_CONNECTIONS"


class MegatronLine:
    """The flags after `pretrain_gpt.py`, the number of nodes and the environment of a script."""

    def __init__(self, text: str) -> None:
        found = _PROGRAM.search(text)
        if found is None:
            raise ValueError("no line that ends with pretrain_*.py")
        self.before = text[: found.end()]
        self.options: list[list[str]] = []
        for word in shlex.split(text[found.end() :].replace("\\\n", " ")):
            if word.startswith("--") or not self.options:
                self.options.append([word])
            else:
                self.options[-1].append(word)

    def __str__(self) -> str:
        """Return the script, an option a line."""
        lines = [" ".join(shlex.quote(word) for word in option) for option in self.options]
        return self.before + "\n  " + " \\\n  ".join(lines) + "\n"

    def has(self, flag: str) -> bool:
        """Tell whether a flag is given."""
        return any(option[0] == flag for option in self.options)

    def text(self, flag: str, default: str = "") -> str:
        """Return the first value of a flag."""
        return next((option[1] for option in self.options if option[0] == flag), default)

    def number(self, flag: str, default: int = 1) -> int:
        """Return the value of a flag as a whole number."""
        return int(self.text(flag) or default)

    def put(self, flag: str, *values: object) -> None:
        """Set a flag, where it stands or at the end."""
        option = [flag, *map(str, values)]
        for i, known in enumerate(self.options):
            if known[0] == flag:
                self.options[i] = option
                return
        self.options.append(option)

    def drop(self, *flags: str) -> None:
        """Take flags away."""
        self.options = [option for option in self.options if option[0] not in flags]

    def launcher(self, option: str) -> int:
        """Return a number of the launcher: `nnodes` or `nproc-per-node`."""
        found = re.search(rf"--{option}[ =](\d+)", self.before)
        assert found is not None
        return int(found[1])

    def put_launcher(self, option: str, value: int) -> None:
        """Set a number of the launcher."""
        self.before = re.sub(rf"(--{option}[ =])\d+", rf"\g<1>{value}", self.before)

    @property
    def world(self) -> int:
        """Number of processes."""
        return self.launcher("nnodes") * self.launcher("nproc-per-node")

    @property
    def queue(self) -> str:
        """Value of the variable that keeps kernels in one hardware queue; empty where unset."""
        found = re.search(rf"^export {SINGLE_QUEUE}=(\S*)$", self.before, re.M)
        return found[1] if found else ""

    def put_queue(self, value: str) -> None:
        """Set that variable; an empty value unsets it."""
        line = f"export {SINGLE_QUEUE}={value}" if value else f"unset {SINGLE_QUEUE}"
        pattern = rf"^(export {SINGLE_QUEUE}=\S*|unset {SINGLE_QUEUE})$"
        self.before, n = re.subn(pattern, line, self.before, flags=re.M)
        if not n:
            self.before = self.before.replace("set -euo pipefail\n", f"set -euo pipefail\n{line}\n", 1)
