"""The solver leaves Ctrl-C to Python."""

import os
import signal
import threading

import pytest
from ortools.sat.python import cp_model

from searches import cp_sat


class Collector(cp_model.CpSolverSolutionCallback):
    """Counts solutions, and sends Ctrl-C with the first if asked to."""

    def __init__(self, interrupts: bool = False) -> None:
        super().__init__()
        self.interrupts, self.n = interrupts, 0

    def on_solution_callback(self) -> None:
        self.n += 1
        if self.interrupts and self.n == 1:
            os.kill(os.getpid(), signal.SIGINT)


def four_solutions() -> tuple[object, object]:
    model = cp_model.CpModel()
    model.new_int_var(0, 3, "x")
    solver = cp_sat.make_solver()
    solver.parameters.enumerate_all_solutions = True
    return solver, model


def test_ctrl_c_during_a_solve_is_raised_after_it():
    solver, model = four_solutions()
    collector = Collector(interrupts=True)
    with pytest.raises(KeyboardInterrupt):
        cp_sat.solve_model(solver, model, collector)
    assert collector.n == 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_handler_of_the_program_is_left_alone():
    solver, model = four_solutions()
    seen: list[int] = []

    def mine(number: int, frame: object) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGINT, mine)
    try:
        cp_sat.solve_model(solver, model, Collector(interrupts=True))
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_other_threads_solve_without_a_handler():
    solver, model = four_solutions()
    collector = Collector()
    thread = threading.Thread(target=cp_sat.solve_model, args=(solver, model, collector))
    thread.start()
    thread.join()
    assert collector.n == 4
