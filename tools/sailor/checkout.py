"""A checkout of Sailor, run as it is in its own Python."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.sailor.in_checkout import MARK
from tools.sailor.scenarios import Scenario

ZONE = "us-central1-a"
LIMIT_S = 600.0
BASELINES = ("Varuna", "Piper", "AMP", "Galvatron", "DTFM", "FlashFlex", "Metis", "Atlas")
"""Planners that Sailor ships beside its own."""
NOT_RUN = {
    "Aceso": "its profiles (profiles_tmp_aceso.json, llm_info_aceso.json) are not in our copy",
    "Oobleck": "its code is not in the repository",
}
"""Those that cannot be run from it, with the reason."""


class CannotRun(Exception):
    """The comparison cannot be made here; the text says what to set."""


@dataclass(frozen=True)
class Checkout:
    """Where Sailor lies, and the Python that runs it."""

    folder: Path
    python: str

    @classmethod
    def from_environment(cls) -> "Checkout":
        """Return that of SAILOR_SRC and SAILOR_PYTHON; raise `CannotRun` without them."""
        folder = os.environ.get("SAILOR_SRC", "")
        if not folder:
            raise CannotRun("set SAILOR_SRC to a checkout of github.com/eth-easl/sailor")
        path = Path(folder)
        if not (path / "sailor" / "Planner" / "simulations" / "profiles_tmp.json").is_file():
            raise CannotRun(
                f"SAILOR_SRC={folder} holds no sailor/Planner/simulations/profiles_tmp.json"
            )
        return cls(path, os.environ.get("SAILOR_PYTHON", "python3"))

    @property
    def planner(self) -> Path:
        """The folder of planners and simulator."""
        return self.folder / "sailor" / "Planner"

    def _env(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.folder), **more}

    def _rooted(self, scratch: str) -> str:
        """Return a folder that holds the checkout under the name that its code expects."""
        link = Path(scratch) / "sailor"
        if not link.exists():
            link.symlink_to(self.folder.resolve())
        return scratch

    def scores(self, config: str, plans: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return what its simulator says of plans (`in_checkout`)."""
        with tempfile.TemporaryDirectory() as scratch:
            asked = {"root": self._rooted(scratch), "config": config, "plans": list(plans)}
            script = str(Path(__file__).with_name("in_checkout.py"))
            done = subprocess.run(
                [self.python, script],
                input=json.dumps(asked),
                capture_output=True,
                text=True,
                env=self._env(),
                timeout=LIMIT_S,
                check=False,
            )
        for line in done.stdout.splitlines():
            if line.startswith(MARK):
                result: list[dict[str, Any]] = json.loads(line[len(MARK) :])
                return result
        raise CannotRun(f"Sailor's simulator gave no scores: {done.stderr[-800:]}")

    def plan(self, scenario: Scenario, planner: str, runs: Path, limit_s: float) -> dict[str, Any]:
        """Run a planner on a scenario, or return what an earlier run left in `runs`.

        Returns `search_s` (what the simulator's driver reports), `tables_s` (Sailor's own, made
        before), `step_s`, `cost` and `plan`; or `reason` where there is no plan.
        """
        folder = runs / scenario.model / scenario.name
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / f"{planner}.json"
        if kept.is_file():
            result: dict[str, Any] = json.loads(kept.read_text())
            return result
        trace = folder / "trace.csv"
        trace.write_text(scenario.trace())
        log = folder / f"{planner}.log"
        with tempfile.TemporaryDirectory() as scratch:
            command = self._command(self._rooted(scratch), scenario, planner, trace, folder)
            start_s = time.monotonic()
            with log.open("w") as file:
                try:
                    code = subprocess.run(
                        command,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        timeout=limit_s,
                        env=self._env(SAILOR_PATH=scratch),
                        cwd=folder,
                        check=False,
                    ).returncode
                except subprocess.TimeoutExpired:
                    code = 124
            wall_s = time.monotonic() - start_s
        found = folder / f"{planner}_{scenario.model}.json"
        if code:
            reason = f"no plan in {limit_s:.0f} s" if code == 124 else f"ended with {code}"
            result = {"wall_s": wall_s, "reason": reason}
        else:
            result = {"wall_s": wall_s, **outcome(json.loads(found.read_text())[0])}
        tables = [x for x in log.read_text().splitlines() if x.startswith("build_structs took")]
        if tables:
            result["tables_s"] = float(tables[0].split()[2]) / 1000
        kept.write_text(json.dumps(result))
        return result

    def _command(
        self, root: str, scenario: Scenario, planner: str, trace: Path, folder: Path
    ) -> list[str]:
        """Return the command line of its driver."""
        base = self.planner / "baselines"
        model, part = scenario.model, "A100-40"
        simulations = self.planner / "simulations"
        measured = str(simulations / "profiles_tmp.json")
        quotas = ["--quotas_dict", str(self.planner / "sailor_planner" / "dummy_quotas_dict.json")]
        own = {
            "Varuna": [str(base / "Varuna" / "profiles" / model / part / "profile_4.json")],
            "Piper": [str(base / "Piper" / "profiles" / model / part / "profile.json")],
            "AMP": [str(base / "AMP" / "profiles" / model)],
            "Metis": [str(base / "Metis" / "profiles" / model)],
            "Galvatron": [str(base / "Galvatron" / "profiles" / model / part)],
            "DTFM": [measured, *quotas],
            "Atlas": [measured],
            "FlashFlex": [str(base / "FlashFlex" / "src" / "machine_amounts.json")],
        }
        profiles = str(self.planner / "sailor_planner" / "profiles" / model) + "/"
        more = (
            ["--sailor_profile_file_dir", profiles, *quotas]
            if planner == "SAILOR"
            else ["--planner_profile_file", *own[planner]]
        )
        asked = scenario.asked
        limits = []
        if asked.most_cost < float("inf"):
            limits += ["--max_cost", str(asked.most_cost)]
        if asked.most_s < float("inf"):
            limits += ["--min_throughput", str(1 / asked.most_s)]
        objective = "throughput" if asked.objective == "time" else "iteration_cost"
        return [
            self.python,
            str(simulations / "simulator.py"),
            *("--sailor_path", root, "--trace_file", str(trace)),
            *(
                "--basic_cluster_config_json",
                str(simulations / "configs/basic_cluster_config.json"),
            ),
            *("--training_config_json", str(simulations / "configs" / scenario.config)),
            *("--simulator_profile_file", measured, "--result_dir_path", str(folder)),
            *("--planner", planner, "--objective", objective),
            *limits,
            *more,
        ]


def outcome(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the driver says of one point of a trace."""
    if not found["throughput"]:
        result = {"search_s": found["search_time"], "reason": "no plan that fits and keeps limits"}
        return result
    plan = {"mbs": found["plan"]["mbs"], "pipeline_list": []}
    for one in found["plan"]["pipelines"]:
        names = {"num_stages": "num_stages", "layers_per_stage": "layers_per_stage"}
        names |= {"dp": "dp_degrees", "tmp_per_stage": "tmp_stages"}
        plan["pipeline_list"].append({k: one[v] for k, v in names.items()})
    plan["used_gpus"] = found["used_gpus_plan"]
    return {
        "search_s": found["search_time"],
        "step_s": 1.0 / found["throughput"],
        "cost": found["cost_per_iteration"],
        "plan": plan,
    }
