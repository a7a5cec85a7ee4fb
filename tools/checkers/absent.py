"""Names without meaning for packages that are not installed.

Definitions and checks of command lines import far more than they use: torch, kernels, drivers.
With `stand_in` on `sys.meta_path` such an import gives a package of which every name is another
such name, callable and false, so that a parser can be asked where nothing of it is installed.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any


class Anything(types.ModuleType):
    """A name of a package that is not installed: whatever is asked of it is another such name."""

    __path__: Sequence[str] = ()
    __version__ = "2.9.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        made = Anything(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what a decorator stands on, else another such name."""
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __or__(self, other: object) -> "Anything":
        return self

    __ror__ = __and__ = __getitem__ = __or__

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return self is other

    def __lt__(self, other: object) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __mro_entries__(self, bases: object) -> tuple[()]:
        return ()


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every package of some roots, in place of the installed one."""

    def __init__(self, roots: Sequence[str], prefixes: Sequence[str]) -> None:
        self.roots, self.prefixes = tuple(roots), tuple(prefixes)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the place of an absent package; None for the others."""
        if name.partition(".")[0] not in self.roots and not name.startswith(self.prefixes):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Anything:
        """Return a package of names without meaning."""
        return Anything(spec.name)

    def exec_module(self, module: Any) -> None:
        """Do nothing: there is no code."""


def stand_in(roots: Sequence[str], prefixes: Sequence[str] = ("megatron.legacy",)) -> None:
    """Stand in for packages by their first name, and for modules by how their name begins."""
    sys.meta_path.insert(0, _Absent(roots, prefixes))
