"""What to do with a running plan on other nodes: move or carry on, and what each costs."""

from typing import TYPE_CHECKING

from planner.analyze.replan.replan import Move, Replan
from planner.documents import Blank, Grid, GridSpacing, Paragraph, Part
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan
from planner.units import GIB, format_time

if TYPE_CHECKING:
    from planner.analyze.joined.replan import JoinedReplan
    from planner.solver.together.records import JoinedPlan


def replan_document(replan: Replan) -> list[Part]:
    """Return the verdict, the plans beside each other, and what moving takes."""
    old, best, carry_on = replan.old, replan.best, replan.carry_on
    best_name = f"plan {best.plan_id}" if best else ""
    nodes = f"{replan.n_nodes[0]} -> {replan.n_nodes[1]}: {_node_changes(replan)}"
    parts: list[Part] = [
        Paragraph(shown_layout(old.layout), label=f"plan {old.plan_id}:", indent=4),
        Paragraph(nodes, label="nodes", indent=4),
        Blank(),
        Paragraph(verdict_text(replan, best_name, carry_on.plan)),
        Blank(),
        _plan_grid(replan),
    ]
    if best:
        parts += [Blank(), Paragraph(shown_layout(best.layout), label="best now:", indent=4)]
    if carry_on.plan:
        what = f"{carry_on.reason}, {shown_layout(carry_on.plan.layout)}"
        parts.append(Paragraph(what, label="carry on:", indent=4))
    for name, move in (("moving to the best plan", replan.move), ("carrying on", carry_on.move)):
        if move is not None and move.stop_s:
            parts += [Blank(), *_move_parts(name, move)]
    parts += [Blank(), Paragraph(_batch_text(replan), label="batch:", indent=4)]
    notes = (*replan.notes, *replan.result.notes)
    return parts + [Paragraph(note, label="note:", indent=4) for note in notes]


def _node_changes(replan: Replan) -> str:
    changes = []
    if replan.lost:
        shown = ", ".join(replan.lost[:8]) + (", ..." if len(replan.lost) > 8 else "")
        changes.append(f"{len(replan.lost)} lost ({shown})")
    if replan.gained:
        changes.append(f"{replan.gained} gained")
    return ", ".join(changes)


def verdict_text(
    replan: "Replan | JoinedReplan", best: str, running: "Plan | JoinedPlan | None"
) -> str:
    """Return what to do, in a sentence.

    `best` names the best plan on the nodes that are left, `running` is the old layout on them.
    """
    stopped = f" (the search was stopped: {replan.result.stopped})" * bool(replan.result.stopped)
    after_s = replan.break_even_s
    if replan.verdict == "nothing fits":
        return "nothing fits on these nodes: planner solve says why"
    if replan.verdict == "carry on" or replan.best is None:
        return f"carry on with the old layout: no plan is faster{stopped}"
    if running is None or after_s is None:
        return f"move to {best}: the old layout cannot go on{stopped}"
    gain = replan.best.tokens_per_s / running.tokens_per_s - 1.0
    when = f"it pays where the run goes on for more than {format_time(after_s, 1)}"
    if replan.move is not None and after_s <= replan.move.stop_s * (1 + 1e-9):
        when = f"carrying on stops training as long, {format_time(after_s, 1)}, so it pays at once"
    return (
        f"move to {best}: {gain:.1%} more tokens a second than the old layout on these nodes;"
        f" {when}{stopped}"
    )


def _plan_grid(replan: Replan) -> Grid:
    carry_on = replan.carry_on
    rows: list[tuple[str, ...]] = [_plan_row("running", replan.old, None)]
    rows.append(_plan_row("best now", replan.best, replan.move))
    reason = "" if carry_on.plan else f": {carry_on.reason}"
    row = _plan_row("carry on", carry_on.plan, carry_on.move)
    rows.append((row[0], row[1] + reason, *row[2:]))
    return Grid(
        ("", "plan", "devices", "idle", "batch", "step s", "tokens/s", "stop"),
        tuple(rows),
        "Plans",
        (2, 3, 4, 5, 6, 7),
        spacing=GridSpacing((10, 14, 8, 6, 8, 10, 12, 12), 0),
    )


def _plan_row(name: str, plan: Plan | None, move: Move | None) -> tuple[str, ...]:
    if plan is None:
        return (name, "none")
    stop = "" if move is None else format_time(move.stop_s, 1) if move.stop_s else "none"
    return (
        *(name, plan.plan_id, str(plan.layout.n_devices), str(plan.n_idle), str(plan.layout.gbs)),
        f"{plan.step_time_s:.3f}",
        f"{plan.tokens_per_s:,.0f}",
        stop,
    )


def _move_parts(name: str, move: Move) -> list[Part]:
    network = "not possible: what the lost nodes held is nowhere else"
    if move.network_s is not None:
        network = (
            f"{format_time(move.network_s, 1)} at {move.port_bytes_per_s / 1e9:.1f} GB/s a device"
        )
    redo = f", {format_time(move.redo_s, 1)} of work done again" if move.redo_s else ""
    write = f", {format_time(move.write_s, 1)} to write it before" if move.write_s else ""
    way = "a checkpoint" if move.via == "checkpoint" else "the network"
    sizes = f"{move.total_bytes / GIB:,.1f} GiB in all, {move.max_bytes / GIB:.2f} GiB at most"
    checkpoint = (
        f"{move.checkpoint_bytes / GIB:,.1f} GiB read in {format_time(move.read_s, 1)}"
        f"{write}{redo}; a restart takes {format_time(move.restart_s, 1)}"
    )
    return [
        Paragraph(f"{name}, stops training for {format_time(move.stop_s, 1)} (through {way})"),
        Paragraph(sizes, label="  devices lack", indent=4),
        Paragraph(network, label="  between the devices:", indent=4),
        Paragraph(checkpoint, label="  through a checkpoint:", indent=4),
    ]


def _batch_text(replan: Replan) -> str:
    batch, best, nearest = replan.old.layout.gbs, replan.best, replan.nearest
    more = replan.carry_on.nearest
    if best is None:
        text = f"{batch:,} sequences cannot be kept"
    else:
        idle = f", {best.n_idle} devices idle" if best.n_idle else ", all devices in use"
        text = f"{batch:,} sequences a step are kept{idle}"
    if nearest:
        rate, change = nearest.plan.tokens_per_s, nearest.global_batch / batch - 1.0
        text += (
            f"; with {nearest.global_batch:,} ({change:+.1%}) plans use all devices:"
            f" {rate:,.0f} tokens/s"
        )
    if more:
        text += (
            f"; the old layout with dp {more.plan.layout.dp} takes {more.global_batch:,}"
            f" ({more.global_batch / batch - 1.0:+.1%}): {more.plan.tokens_per_s:,.0f} tokens/s"
        )
    return text
