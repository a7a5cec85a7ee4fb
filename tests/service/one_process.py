"""A process of the service that a test kills: reads requests from stdin, prints what it accepted.

    python -m tests.service.one_process DATABASE [MODULE]

Every line `N CALL REQUEST` is submitted; `N JOB_ID` is printed once it is accepted, `N !CODE`
where it is refused. `MODULE` holds the calls.
"""

import asyncio
import sys

from service.access.caller import Caller
from service.engine import Engine
from service.handlers.limits import RequestLimits
from service.handlers.problems import Refusal
from service.jobs.store import Store
from service.settings.options import Options

SETTINGS = RequestLimits(worker_bytes=500_000_000, per_caller=100, queue_length=100)
OPTIONS = Options(workers=1, job_workers=1, lease_s=2.0, poll_s=0.1, drain_s=1.0, max_attempts=20)
CALLER = Caller("chaos")


async def run(database: str, module: str = "tests.service.fake_calls") -> None:
    engine = Engine(Store(database), SETTINGS, OPTIONS, module)
    await engine.start()
    print("ready", flush=True)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        n, call, request = line.decode().split(" ", 2)
        try:
            job = await engine.submit(call, request.encode(), CALLER, f"key-{n}")
            print(n, job.job_id, flush=True)
        except Refusal as problem:
            print(n, "!" + problem.code, flush=True)
    await engine.close()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
