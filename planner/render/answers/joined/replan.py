"""What to do with a running plan over several pools that lost or gained nodes."""

from collections.abc import Mapping

from planner.analyze.joined.comparison import Side
from planner.analyze.joined.replan import JoinedReplan
from planner.documents import Blank, Grid, Paragraph, Part
from planner.render.answers.replan import verdict_text
from planner.render.answers.together import plan_words
from planner.solver.together.records import JoinedPlan
from planner.units import format_time


def joined_replan_document(replan: JoinedReplan) -> list[Part]:
    """Return the verdict, the plans beside each other, what changes and what moving takes."""
    nodes = ", ".join(
        f"{name} {before} -> {after}" if before != after else f"{name} {before}"
        for name, (before, after) in replan.lost.nodes.items()
    )
    names, joined = replan.lost.names, replan.lost.gained
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    changes = [f"{len(names)} lost ({shown})"] * bool(names)
    changes += [f"{sum(joined.values())} gained"] * bool(joined)
    best_name = replan.best.name if replan.best else ""
    parts: list[Part] = [
        Paragraph(plan_words(replan.old), label=f"plan {replan.old.plan_id}:", indent=4),
        Paragraph(f"{nodes}: {', '.join(changes)}", label="nodes", indent=4),
        Blank(),
        Paragraph(verdict_text(replan, best_name, replan.carry_on), strong=True),
        Blank(),
        _plan_grid(replan),
    ]
    if replan.best:
        parts += [Blank(), Paragraph(replan.best.layout, label="best now:", indent=4)]
    parts.append(Paragraph(replan.reason, label="carry on:", indent=4))
    if replan.changes:
        parts += [Blank(), Grid(("what changes", "old", "best now"), tuple(replan.changes), "")]
    move = replan.move
    parts_of_stop = [
        *([f"checkpoint written in {format_time(move.write_s)}"] * bool(move.write_s)),
        f"restart {format_time(move.restart_s)}",
        f"checkpoint read in {format_time(move.read_s)}",
        *([f"{format_time(move.redo_s)} of work done again"] * bool(move.redo_s)),
    ]
    if move.via == "network":
        parts_of_stop = [f"restart {format_time(move.restart_s)}"]
    if move.network_s is not None:
        parts_of_stop.append(f"between the devices {format_time(move.network_s)} at most")
    way = "the network" if move.via == "network" else "a checkpoint"
    text = f"{', '.join(parts_of_stop)}: stops {format_time(move.stop_s)} (through {way})"
    parts += [Blank(), Paragraph(text, label="moving:", indent=4)]
    notes = (*replan.notes, *replan.result.notes)
    return parts + [Paragraph(note, label="note:", indent=4) for note in notes]


def _plan_grid(replan: JoinedReplan) -> Grid:
    old, best, carried = replan.old, replan.best, replan.carry_on
    rows = [("running", old.plan_id, _devices(old.devices), *_rates(old), "")]
    if best:
        stop = format_time(replan.move.stop_s)
        rows.append(("best now", best.plan_id, _devices(best.devices), *_rates(best), stop))
    if carried:
        stop = format_time(replan.carry_on_stop_s)
        rows.append(
            ("carry on", carried.plan_id, _devices(carried.devices), *_rates(carried), stop)
        )
    heads = ("", "plan", "devices", "step s", "tokens/s", "stop")
    return Grid(heads, tuple(rows), "", (3, 4, 5))


def _devices(devices: Mapping[str, int]) -> str:
    return " + ".join(f"{n:,} {name}" for name, n in devices.items())


def _rates(plan: JoinedPlan | Side) -> tuple[str, str]:
    return f"{plan.step_time_s:.3f}", f"{plan.tokens_per_s:,.0f}"
