"""CP-SAT with one worker, under Python's own Ctrl-C.

The solver's handler of SIGINT would end a solve quietly, as if it had been complete, and leave the
process with the system's: the next Ctrl-C then kills it, and what was found is lost.
"""

import signal
import threading
from typing import Any


def make_solver() -> Any:
    """Return a solver whose answers do not depend on the machine, and that takes no signals."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    return solver


def solve(solver: Any, model: Any, callback: Any) -> Any:
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
