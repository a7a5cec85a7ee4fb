"""The view of sweeps: submit one, look at its points as they come, and at its report.

The report of points so far is that of the whole sweep, of the rows that are there: they are asked
for by page, as callers of the interface do, and drawn again as more come.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from service.engine import request_body
from service.handlers import answers, schemas
from service.handlers.calls import PAGE_PREFIX, ServiceCall
from service.handlers.limits import check_document_text, too_much
from service.handlers.problems import Fault, Refusal, refused
from service.handlers.running_call import RunningCall
from service.jobs.records import JobView, State
from service.pages.examples import sweep_text, sweeps
from service.pages.render import render_page
from service.pages.views.jobs import LISTED, described_job, job_id_of
from service.pages.views.solve import upload_name
from service.pages.visit import Data, Page, Visit, answer_data

if TYPE_CHECKING:
    from planner.render.report.answers import AnswerTable

CHECK_CALL, REPORT_CALL = f"{PAGE_PREFIX}sweep-check", f"{PAGE_PREFIX}sweep-report"
MOST_ROWS = 500
MOST_SO_FAR = 2_000
"""Points of a sweep without its answer that are drawn, the first that came."""
MOST_NOTED_CHARS = 20_000
"""Of what a sweep varies, as a note of its job keeps it: notes of many jobs are read together."""
NOTED = (
    "name",
    "design",
    "n_points",
    "axes",
    "inputs",
    "derived",
    "where",
    "set",
    "options",
    "search",
    "notes",
    "objective",
)
"""Fields of the header of a sweep that say what its points are, without models and clusters."""


class SweepTextBody(schemas.Request):
    """The text of a sweep file."""

    document: schemas.Text


class SweepTextAnswer(answers.AnswerBody):
    """What a sweep file asks."""

    summary: str
    n_points: int
    spec: dict[str, Any]
    """What the text says, as the call `sweep` takes it."""
    header: dict[str, Any]
    """`NOTED` fields of the header of its answer; empty where they are many characters."""


class SweepReportBody(schemas.Request):
    """The answer of a sweep, to be drawn."""

    result: dict[str, Any]


class SweepReportAnswer(answers.AnswerBody):
    """The report of a sweep as data."""

    title: str
    headline: str


def _check(request: SweepTextBody, running: RunningCall) -> Data:
    from planner.sweeps.spec.description import described_sweep as lines_of
    from planner.sweeps.spec.spec import sweep_from_text

    settings = running.settings
    text = request.document.text
    check_document_text(text, "sweep", settings)
    if not text.strip():
        detail = "the text is empty"
        raise refused("bad-specification", detail, 422, [Fault(detail, "paste a sweep file")])
    sweep, spec = sweep_from_text(text, request.document.name or "sweep")
    if sweep.n_points > settings.points:
        fix = "vary fewer values, or send several sweeps"
        raise too_much("points", sweep.n_points, settings.points, "vary", fix)
    less = ", before constraints" if sweep.constraints else ""
    summary = "\n".join([*lines_of(sweep), f"points: {sweep.n_points:,}{less}"])
    header = {key: value for key, value in sweep.header().items() if key in NOTED}
    if len(json.dumps(header)) > MOST_NOTED_CHARS:
        header = {}
    return {"summary": summary, "n_points": sweep.n_points, "spec": spec, "header": header}


def _report(request: SweepReportBody, running: RunningCall) -> Data:
    """Return the report of an answer of `sweep`: the charts of `planner report`."""
    from planner.render.charts.failure import reasons
    from planner.render.report import page
    from planner.render.report.answers import sweep_answer
    from planner.render.report.effects import effects
    from planner.render.report.points import SweepPoints, shortened_name
    from planner.render.report.sweep_charts import after_lead, lead_chart, sections
    from planner.render.report.sweep_lead import sweep_lead
    from service.pages.figures import chart_data

    result = request.result
    rows, header = result.get("rows"), result.get("sweep")
    if (
        not isinstance(rows, list)
        or not isinstance(header, dict)
        or not all(isinstance(row, dict) for row in rows)
    ):
        raise refused("malformed", "this is no answer of a sweep", 422)
    names = list(dict.fromkeys(name for row in rows for name in row))
    points = SweepPoints({name: [row.get(name) for row in rows] for name in names}, header)
    outcome = effects(points)
    message = sweep_answer(points, outcome)
    why = reasons(points) if points.n and not points.solved.all() else None
    lead = sweep_lead(points)
    chart = lead_chart(lead)
    text, n_left_out = page.points_csv(points)
    return {
        "complete": True,
        "title": shortened_name(header.get("name") or "sweep"),
        "stopped": str(result.get("stopped", "")),
        "lead": list(lead.sentences),
        "lead_chart": chart_data(chart) if chart else None,
        "headline": message.headline,
        "asked": [*message.question, *message.points],
        "worth_title": message.worth_title,
        "worth": list(message.worth),
        "doubts": list(message.doubts),
        "best": _table(message.best),
        "worth_table": _table(message.worth_table),
        "reasons": _table(why) if why else None,
        "points": _table(page.points_table(points)),
        "sections": [
            {
                "key": each.key,
                "title": each.title,
                "lead": each.lead.replace(" --x and --y choose the axes.", ""),
                "charts": [chart_data(chart) for chart in each.charts],
            }
            for each in after_lead(sections(points, outcome), chart)
        ],
        "facts": [list(fact) for fact in page.facts(points)],
        "csv": text,
        "columns_left_out": n_left_out,
    }


def _table(table: "AnswerTable") -> Data:
    rows = [list(row) for row in table.rows[:MOST_ROWS]]
    return {"heads": list(table.heads), "rows": rows, "n_rows": len(table.rows)}


PAGE_CALLS = {
    CHECK_CALL: ServiceCall(
        CHECK_CALL,
        SweepTextBody,
        SweepTextAnswer,
        "read",
        "small",
        _check,
        "Check a sweep file and say what it asks",
        indent=None,
    ),
    REPORT_CALL: ServiceCall(
        REPORT_CALL,
        SweepReportBody,
        SweepReportAnswer,
        "read",
        "small",
        _report,
        "The report of a sweep as data",
        indent=None,
    ),
}


# The pages


async def sweeps_page(visit: Visit) -> str:
    """Show the form and the sweeps of the caller."""
    name = visit.get("example")
    text = sweep_text(name)
    draft = {
        "source": "text" if text and visit.get("edit") else "example",
        "example": name if text else sweeps()[0][0],
        "text": text,
        "name": "",
    }
    return await _form(visit, draft)


async def _form(
    visit: Visit, draft: Data, problem: Refusal | None = None, checked: Data | None = None
) -> str:
    page, _ = await visit.engine.list_jobs(visit.caller, limit=LISTED)
    own = [job for job in page if job.call == "sweep"]
    return render_page(
        visit,
        "sweeps.html.j2",
        draft=draft,
        examples=sweeps(),
        problem=problem,
        checked=checked,
        jobs=await described_job(visit, own),
    )


def _text_of(draft: Data) -> Data:
    """Return the document of a form: an example's text, or the text that was sent."""
    if draft["source"] == "example":
        return {"text": sweep_text(draft["example"]), "name": f"{draft['example']}.yaml"}
    named = {"name": draft["name"]} if draft["name"] else {}
    return {"text": draft["text"], **named}


async def submitted(visit: Visit) -> Page:
    """Check the sweep that was sent and make a job of it; with `edit`, show an example's text."""
    file = visit.files.get("sweep_file")
    text = file.text if file and file.text.strip() else visit.posted("sweep_text")
    draft: Data = {
        "source": "text" if file and file.text.strip() else visit.posted("sweep_source"),
        "example": visit.posted("sweep_example"),
        "text": text.replace("\r\n", "\n").replace("\r", "\n"),
        "name": upload_name(file.name if file else visit.posted("sweep_name")),
    }
    is_example = draft["source"] == "example"
    if visit.posted("do") == "edit":
        text = sweep_text(draft["example"])
        name = f"{draft['example']}.yaml" if text else ""
        draft |= {"source": "text", "text": text, "name": name}
        return Page(await _form(visit, draft))
    try:
        checked = await visit.ask(CHECK_CALL, {"document": _text_of(draft)})
    except Refusal as problem:
        if problem.status >= 500 or problem.status == 429:
            raise
        return Page(await _form(visit, draft, problem), problem.status)
    if visit.posted("do") == "check":
        return Page(await _form(visit, draft, None, checked))
    job = await visit.engine.submit("sweep", {"spec": checked["spec"]}, visit.caller)
    name = str(checked["spec"].get("name") or draft["example" if is_example else "name"])
    note = {"what": f"sweep {name[:80]}".strip(), "header": checked["header"]}
    await asyncio.to_thread(visit.engine.jobs.note, job.job_id, note)
    return Page(b"", 303, headers={"location": visit.url(f"/ui/sweeps/{job.job_id}")})


async def check_sweep_form(visit: Visit) -> Page:
    """Answer the script that checks a sweep while one types."""
    data = await visit.json()
    draft = {key: str(data.get(key, "")) for key in ("source", "example", "text", "name")}
    draft["name"] = upload_name(draft["name"])
    try:
        result = await visit.ask(CHECK_CALL, {"document": _text_of(draft)})
        answer: Data = {"problem": None, "summary": result["summary"], "notes": []}
    except Refusal as problem:
        if problem.status >= 500 or problem.status == 429:
            raise
        answer = {"problem": problem.to_json(), "summary": "", "notes": []}
    return Page(json.dumps(answer), 200, "application/json", {"cache-control": "no-store"})


@dataclass(frozen=True, slots=True)
class Looked:
    """A sweep as its page shows it."""

    job: JobView
    report: Data | None = None
    """Of its answer, or of the rows so far; None where there is none."""
    n_rows: int = 0
    """Rows so far, where it has no answer."""


async def sweep_view(visit: Visit) -> str:
    """Show a sweep: its points so far while it runs or where it has no answer, then its report."""
    result = await _looked_at(visit)
    job, template = result.job, "sweep_so_far.html.j2"
    shown = (await described_job(visit, [job]))[0]
    if job.state is State.EXPIRED:
        return render_page(visit, "job.html.j2", shown=shown, job=job)
    if job.state is State.SUCCEEDED:
        template = "sweep.html.j2"
    return await asyncio.to_thread(
        render_page,
        visit,
        template,
        report=result.report,
        job=job,
        shown=shown,
        n_rows=result.n_rows,
        most=MOST_SO_FAR,
    )


async def _looked_at(visit: Visit) -> Looked:
    """Return the sweep of an address; `Refusal` 404 where there is none."""
    job_id = job_id_of(visit)
    job = await visit.engine.get_job(job_id, visit.caller)
    if job.call != "sweep":
        raise refused("malformed", f"job {job_id} is no sweep but {job.call}", 404)
    if job.state is State.EXPIRED:
        return Looked(job)
    if job.state is not State.SUCCEEDED:
        try:
            return await _so_far(visit, job)
        except Refusal as problem:
            if problem.code != "has-result":
                raise
        job = await visit.engine.get_job(job_id, visit.caller)  # it has its answer meanwhile
    answer = await visit.engine.result(job_id, visit.caller)
    return Looked(job, await _drawn(visit, b'{"result": ' + answer.payload.strip() + b"}"))


async def _so_far(visit: Visit, job: JobView) -> Looked:
    rows, n_rows = await _rows_so_far(visit, job.job_id)
    if not rows:
        return Looked(job)
    notes = await asyncio.to_thread(visit.engine.jobs.notes, [job.job_id])
    note = notes.get(job.job_id, {})
    header = note.get("header") or {"name": note.get("what", "").removeprefix("sweep ")}
    body = await asyncio.to_thread(request_body, {"result": {"sweep": header, "rows": rows}})
    return Looked(job, await _drawn(visit, body), n_rows)


async def _drawn(visit: Visit, body: bytes) -> Data:
    return await answer_data((await visit.engine.call(REPORT_CALL, body, visit.caller)).payload)


async def _rows_so_far(visit: Visit, job_id: str) -> tuple[list[Mapping[str, Any]], int]:
    """Return the first rows of a sweep without an answer, by point, and how many there are."""
    results: list[Mapping[str, Any]] = []
    cursor, total = "", 0
    while len(results) < MOST_SO_FAR:
        answer = await visit.engine.result_page(
            job_id, visit.caller, cursor, MOST_SO_FAR - len(results), so_far=True
        )
        page = await answer_data(answer.payload)
        results += page["items"]
        cursor, total = page["next_cursor"], page["total"]
        if not page["items"] or not cursor or len(results) >= total:
            break
    return sorted(results, key=lambda row: row.get("index", 0)), total


async def sweep_csv(visit: Visit) -> Page:
    """Return the points of a sweep as CSV, those so far where it has no answer."""
    result = await _looked_at(visit)
    if result.report is None:
        detail = f"no point of sweep {result.job.job_id} is finished"
        raise Refusal(409, "no-result", "the sweep has no points", detail)
    name = "points.csv" if result.job.state is State.SUCCEEDED else "points-so-far.csv"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Page(result.report["csv"], 200, "text/csv; charset=utf-8", headers)


PAGES = {
    "/ui/sweeps": sweeps_page,
    "/ui/sweeps/{job_id}": sweep_view,
    "/ui/sweeps/{job_id}/csv": sweep_csv,
}
POSTS = {"/ui/sweeps": submitted, "/ui/sweeps/check": check_sweep_form}
