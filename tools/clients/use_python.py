"""Uses a generated Python client against a service: `use_python.py FOLDER ADDRESS TOKEN`.

Runs in the environment of the generator, whose packages the client needs; FOLDER holds the package
`planner_client`. Prints one JSON object with what came back.
"""

import json
import sys
import time

folder, address, token = sys.argv[1:]
sys.path.insert(0, folder)

from planner_client import AuthenticatedClient, models  # noqa: E402
from planner_client.api.facts import rules  # noqa: E402
from planner_client.api.jobs import get_job, get_result, list_jobs, submit_job  # noqa: E402
from planner_client.api.plans import solve  # noqa: E402
from planner_client.api.service import get_version  # noqa: E402

PATIENCE_S = 60.0

client = AuthenticatedClient(base_url=address, token=token)
found = {"version": get_version.sync(client=client).api}

pins = models.SolveRequestPins.from_dict({"tp": 2})
asked = models.SolveRequest(
    model="llama3-8b",
    cluster="h100-x8",
    pins=pins,
    top=1,
    objective=models.ObjectiveName.STEP_TIME,
    framework=models.FrameworkNameType0.MEGATRON,
)
answer = solve.sync_detailed(client=client, body=asked)
found["solve"] = {
    "type": type(answer.parsed).__name__,
    "tp": answer.parsed.plans[0].layout.tp,
    "step_time_s": answer.parsed.plans[0].step_time_s,
    "etag": answer.headers["etag"],
}

wrong = models.SolveRequest(model="llama3-9b", cluster="h100-x8")
refused = solve.sync(client=client, body=wrong)
found["refused"] = {
    "type": type(refused).__name__,
    "status": refused.status,
    "fault": type(refused.errors[0]).__name__,
    "field": refused.errors[0].field,
}

body = models.JobRequest(
    call=models.JobRequestCall.RULES,
    request=models.JobRequestRequest.from_dict({"code": "TP002"}),
)
accepted = submit_job.sync_detailed(client=client, body=body)
job = accepted.parsed
deadline_s = time.monotonic() + PATIENCE_S
while job.state in (models.JobAnswerState.PENDING, models.JobAnswerState.RUNNING):
    if time.monotonic() > deadline_s:
        raise TimeoutError(f"job {job.job_id} is {job.state}")
    time.sleep(0.05)
    job = get_job.sync(job.job_id, client=client)
result = json.loads(get_result.sync_detailed(job.job_id, client=client).content)
found["job"] = {
    "status": accepted.status_code,
    "state": str(job.state),
    "deprecation": accepted.headers["deprecation"],
    "code": result["rules"][0]["code"],
    "listed": [each.job_id == job.job_id for each in list_jobs.sync(client=client).jobs],
}
found["rules"] = rules.sync(client=client, code="TP002").rules[0].code
print(json.dumps(found))
