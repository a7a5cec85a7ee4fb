"""Asks the simulator of a checkout of Sailor about plans: run by its Python, not by ours.

Reads `{root, config, plans: [{plan, batch}]}` on its input, with `root` the folder that holds the
checkout as `sailor`; writes one JSON line `[{step_s, cost, fits} or {error}]` after a mark.
"""

import contextlib
import io
import json
import sys

MARK = "scores "


def main() -> None:
    """Score the plans."""
    asked = json.load(sys.stdin)
    hidden = io.StringIO()
    with contextlib.redirect_stdout(hidden):
        from sailor.Planner.simulations.constants import GPU_PRICES
        from sailor.Planner.simulations.runtime_simulator import Simulator

        root = asked["root"]
        planner = f"{root}/sailor/sailor/Planner"
        with open(f"{planner}/simulations/configs/{asked['config']}") as file:
            config = json.load(file)
        with open(f"{planner}/llm_info.json") as file:
            facts = json.load(file)
        with open(f"{planner}/simulations/profiles_tmp.json") as file:
            profiles = json.load(file)
        scores = []
        for one in asked["plans"]:
            own = {**config, "global_batch_size": one.get("batch", config["global_batch_size"])}
            simulator = Simulator(root, own, facts, False, profiles, "us-central1-a")
            plan = one["plan"]
            try:
                step_s, egress, _ = simulator.simulate_iteration_time(plan)
                prices = [
                    n * GPU_PRICES[part]["europe-west4-a"] / 3600
                    for part, n in plan.get("used_gpus", {}).items()
                ]
                cost = float(step_s) * sum(prices) + float(egress)
                fits = bool(simulator.check_config_fits(plan))
                scores.append({"step_s": float(step_s), "cost": cost, "fits": fits})
            except (KeyError, IndexError, ValueError) as error:
                scores.append({"error": f"{type(error).__name__}: {error}"})
    print(MARK + json.dumps(scores))


if __name__ == "__main__":
    main()
