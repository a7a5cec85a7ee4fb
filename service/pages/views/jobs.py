"""The list of jobs: what was asked, how far it is, and what ends it."""

import asyncio
import re
from collections.abc import Sequence

from service.jobs.records import FINAL, JobView, State, no_such_job
from service.pages.render import render_page
from service.pages.visit import Data, Page, Visit

LISTED = 100
_ID = re.compile(r"[A-Za-z0-9]{1,64}")


async def jobs(visit: Visit) -> str:
    """Show the caller's jobs, the newest first."""
    state = visit.get("state").upper()
    chosen = State(state) if state in State.__members__ else None
    page, cursor = await visit.engine.list_jobs(visit.caller, visit.get("cursor"), chosen, LISTED)
    return render_page(
        visit,
        "jobs.html.j2",
        jobs=await described_job(visit, page),
        states=list(State),
        state=chosen.value if chosen else "",
        more=visit.here(cursor=cursor) if cursor else "",
        running=any(job.state not in FINAL for job in page),
    )


async def described_job(visit: Visit, jobs_of_page: Sequence[JobView]) -> list[Data]:
    """Return jobs as the list shows them."""
    notes = await asyncio.to_thread(visit.engine.jobs.notes, [job.job_id for job in jobs_of_page])
    return [_described(visit, job, notes.get(job.job_id, {})) for job in jobs_of_page]


def _described(visit: Visit, job: JobView, note: Data) -> Data:
    took = None
    if job.started_at is not None and job.finished_at is not None:
        took = max(0.0, job.finished_at - job.started_at)
    href = visit.url(f"/ui/{'sweeps' if job.call == 'sweep' else 'jobs'}/{job.job_id}")
    if note.get("path"):
        href = visit.url(note["path"], note["query"])
    return {
        "job": job,
        "what": note.get("what") or job.call.removeprefix("page-"),
        "href": href,
        "took": took,
        "open": job.state not in FINAL,
        "mine": job.owner == visit.caller.name,
    }


def job_id_of(visit: Visit) -> str:
    """Return the job of an address; `Refusal` 404 for what can be none."""
    if not _ID.fullmatch(visit.parts["job_id"]):
        raise no_such_job(visit.parts["job_id"])
    return visit.parts["job_id"]


async def job(visit: Visit) -> Page | str:
    """Show one job, or lead to the page of its answer."""
    view = await visit.engine.get_job(job_id_of(visit), visit.caller)
    shown = (await described_job(visit, [view]))[0]
    if shown["href"] != visit.url(visit.path):
        return Page(b"", 303, headers={"location": shown["href"]})
    return render_page(visit, "job.html.j2", shown=shown, job=view)


async def result(visit: Visit) -> Page:
    """Return the answer of a job as it is."""
    answer = await visit.engine.result(job_id_of(visit), visit.caller)
    headers = {"content-disposition": 'attachment; filename="result.json"'}
    return Page(answer.payload, 200, "application/json", headers)


async def cancel(visit: Visit) -> Page:
    """Cancel a job, and show the list, or with `stay` what there is of a sweep."""
    job_id = job_id_of(visit)
    outcome = await visit.engine.cancel(job_id, visit.caller)
    stays = outcome.call == "sweep" and visit.posted("stay")
    target = visit.url(f"/ui/sweeps/{job_id}" if stays else "/ui/jobs")
    return Page(b"", 303, headers={"location": target})


PAGES = {"/ui/jobs": jobs, "/ui/jobs/{job_id}": job, "/ui/jobs/{job_id}/result": result}
POSTS = {"/ui/jobs/{job_id}/cancel": cancel}
