"""CP-SAT with one worker, without pandas, under Python's own Ctrl-C.

The solver's handler of SIGINT would end a solve quietly, as if it had been complete, and leave the
process with the system's: the next Ctrl-C then kills it, and what was found is lost.
"""

import builtins
import importlib
import importlib.util
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

MODULE = "ortools.sat.python.cp_model"
_loading = threading.Lock()


class _LatePandas:
    """Stands for pandas in `cp_model`, which names its types in signatures: imported when used."""

    def __init__(self) -> None:
        self.defining = True

    def __getattr__(self, name: str) -> Any:
        if self.defining:
            return type(name, (), {})
        return getattr(importlib.import_module("pandas"), name)


def cp_model() -> Any:
    """Return OR-tools' `cp_model`, imported without pandas.

    Its methods over series alone need pandas, and nothing here calls them; importing it takes
    0.2 s, as long as all else that a search imports. Where the module cannot be had so, or pandas
    is there already, it is imported as usual.
    """
    with _loading:
        if MODULE not in sys.modules and "pandas" not in sys.modules:
            _import_without_pandas()
        return importlib.import_module(MODULE)


def _import_without_pandas() -> None:
    spec, pandas = importlib.util.find_spec(MODULE), _LatePandas()
    if spec is None or spec.loader is None:
        return

    def import_(name: str, *rest: Any) -> Any:
        return pandas if name == "pandas" else builtins.__import__(name, *rest)

    module = importlib.util.module_from_spec(spec)
    # Python looks `import` up in a module's own builtins: no other module sees the difference.
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": import_}
    try:
        spec.loader.exec_module(module)
    except Exception:  # another version of OR-tools may do more with pandas: imported as usual
        return
    pandas.defining = False
    sys.modules[MODULE] = module


def make_solver() -> Any:
    """Return a solver whose answers do not depend on the machine, and that takes no signals."""
    solver = cp_model().CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    return solver


def at_solutions(see: Callable[[Any], None]) -> Any:
    """Return a callback for `solve_model` that calls `see` with itself at every solution."""
    base = cp_model().CpSolverSolutionCallback
    return type("AtSolutions", (base,), {"on_solution_callback": see})()


def solve_model(solver: Any, model: Any, callback: Any) -> Any:
    """Return the status of a solve. Ctrl-C meanwhile is raised after it, and not in `callback`.

    An exception in a callback would have to cross the solver's C++. A program that handles SIGINT
    in its own way is left to it.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not ours or threading.current_thread() is not threading.main_thread():
        return solver.solve(model, callback)
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        status = solver.solve(model, callback)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if seen:
        raise KeyboardInterrupt
    return status
