"""`planner calibrate --reference`: the calibration that measured runs anchor."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from planner.cli.arguments import check_format
from planner.cli.command_arguments import CalibrateArguments
from planner.errors import EmitError, UsageError
from planner.solver.calibration.file import check_name, load_start
from planner.solver.calibration.parameters import ANCHORS
from planner.solver.calibration.reference import anchored, read_reference
from planner.solver.options import SolveOptions
from planner.text_lines import REFERENCE, wrapped


def run_calibrate_reference(files: Sequence[str], arguments: CalibrateArguments) -> int:
    """Run `planner calibrate --reference`: print or write the anchored calibration; return 0."""
    form, out, name = arguments.form, arguments.out, arguments.name
    of_fit = {
        "[RUNS.csv]": " ".join(files),
        "--fit": arguments.fit,
        "--models": arguments.models,
        "--hardware": arguments.hardware,
        "--nccl-tests": " ".join(arguments.nccl_tests),
        "--measured": " ".join(arguments.measured),
        **arguments.options_of_benchmarks(),
        **arguments.options_of_fit(),
    }
    for option, value in of_fit.items():
        if value:
            raise UsageError(f"{option} does not go with --reference", "fit first, then anchor")
    check_format(form)
    check_name(name)
    base = load_start(arguments.start)
    options = SolveOptions(own_calibration=base)
    runs = read_reference(arguments.reference, options)
    result = anchored(base, runs)
    calibration = replace(result.calibration, name=name) if name else result.calibration
    if out:
        try:
            Path(out).write_text(calibration.to_text(), encoding="utf-8")
        except OSError as error:
            raise EmitError(f"cannot write {out}: {error.strerror}", "another --out") from None
    if form == "json":
        data = {"calibration": calibration.to_json(), "notes": list(result.notes)}
        sys.stdout.write(json.dumps(data, indent=1, allow_nan=False) + "\n")
        return 0
    lines = [f"{run.words}" for run in runs]
    for line, ratio in zip([r for r in runs if r.step_s], result.ratios, strict=True):
        predicted = (line.step_s or 0.0) / ratio
        lines[runs.index(line)] += f", {predicted:.4g} s predicted before ({ratio:.3f} times that)"
    factors = ", ".join(f"{n.partition('.')[2]} x{calibration.value(n):.4g}" for n in ANCHORS)
    lines.append(f"factors on time: {factors}")
    for note in result.notes:
        lines += wrapped(" ", note.removeprefix(REFERENCE))
    if not out:
        lines.append("next: the same with --out FILE writes it; planner solve --calibration FILE")
    else:
        lines.append(f"wrote {out}; next: planner solve MODEL CLUSTER --calibration {out}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
