"""The files that start a plan, in one archive: /ui/plan/launch."""

import asyncio
import io
import zipfile
from collections.abc import Mapping
from typing import Any

from service.handlers.problems import Fault, refused
from service.pages.views.plan import named_plan
from service.pages.visit import Data, Page, Visit

LAUNCHERS = ("slurm", "torchrun", "jobset", "pytorchjob")
"""By what starts a job; the first unless another is asked for."""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""Of all files: the same plan gives the same bytes."""
RUNNABLE = (".sh", ".sbatch")


async def launch_download(visit: Visit) -> Page:
    """Send the files of a framework and of a launcher that start the plan of the address.

    Raises `Refusal` for an address that names no plan, and where the framework cannot run it.
    """
    named = named_plan(visit)
    if named is None:
        raise refused("malformed", "the address names no plan: model, cluster and plan", 422)
    launcher, framework = visit.get("launcher") or LAUNCHERS[0], visit.get("for") or "megatron"
    if launcher not in LAUNCHERS:
        detail = f"launcher: {launcher[:40]!r} is none of {', '.join(LAUNCHERS)}"
        raise refused("malformed", detail, 422, [Fault(detail, "such as slurm", "launcher")])
    request: Data = {**named, "for": [framework], "launcher": [launcher]}
    answer = await visit.ask_patiently("emit", request)
    for target, reason in answer["refused"].items():
        detail = f"{target} cannot run this plan: {reason}"
        raise refused("malformed", detail[:2_000], 422, [Fault(detail[:2_000], "", "for")])
    content = await asyncio.to_thread(archive, answer["files"])
    name = f"{framework.partition('@')[0]}-{launcher}-{answer['plan_id']}.zip"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Page(content, media="application/zip", headers=headers)


def archive(files: Mapping[str, Any]) -> bytes:
    """Return files by name as a zip archive; scripts may be run once they are unpacked."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(RUNNABLE) else 0o644) << 16
            packed.writestr(entry, files[name])
    return content.getvalue()


PAGES = {"/ui/plan/launch": launch_download}
