"""The loads that the planning service is judged by: figure, target, and a reference beside it.

    python benchmarks/bench_service.py [--quick] [--overload-s 60] [--only cached,fresh] [--json F]
    python benchmarks/bench_service.py --only memory --questions 10000

One process of `planner serve` with its workers; all load comes from other processes.

cached    one solve again and again over REST, by wrk (else the load of this file). Reference: a
          bare ASGI application under the same HTTP server that answers the same bytes.
grpc      the same over gRPC at 1,000 a second (`benchmarks/grpc_load.py`). Reference: REST here.
fresh     solves of Llama-3 70B on 512 H100, no two alike (`questions`), one at a time, then two.
          Reference: the same questions in a process of their own, without a service.
overload  fresh solves of eight callers, ten times as many as are answered, for a while: everyone
          gets an answer or a refusal with a time to come back, memory stays as it was, and the
          questions right after are answered as fast as before. Reference: fresh, before.

memory    many fresh questions of several calls, models and clusters, two at a time: what service
          and workers hold in the last quarter of the time. Reference: in the second.

Exit status 1 where a target is missed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SOLVE = "/v1/plans:solve"
CACHED = {"model": "llama3-70b", "cluster": "h100-x512"}
CALLERS = 8
"""Callers of the overload, each with a token of its own."""
TIMES = 10
"""How many times the capacity an overload is."""
PATIENCE_S = 120.0
"""How long the load waits for an answer before it counts as lost."""
CONNECTIONS = 8
WRK = """
wrk.method = "POST"
wrk.body = '%s'
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer %s"
done = function(summary, latency, requests)
  local bad = summary.errors
  io.write(string.format(
    '\\nJSON {"requests": %%d, "seconds": %%f, "p50_ms": %%f, "p99_ms": %%f, "errors": %%d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3,
    bad.connect + bad.read + bad.write + bad.status + bad.timeout))
end
"""


def questions(n: int, seed: int) -> list[dict[str, Any]]:
    """Return `n` solves of one kind, no two alike: other batches, lengths, limits and budgets."""
    rng, found = random.Random(seed), []
    for i in range(n):
        asked: dict[str, Any] = dict(CACHED)
        changes: dict[str, Any] = {"training.tokens": f"{1_000 + seed * 500 + i}e9"}
        kind = i % 5
        if kind == 0:
            changes["training.global_batch"] = 128 * rng.randrange(4, 33)
        elif kind == 1:
            changes["training.seq_len"] = rng.choice([4096, 8192, 16384])
            changes["training.global_batch"] = rng.choice([512, 1024, 2048])
        elif kind == 2:
            asked["max"] = {rng.choice(["pp", "tp"]): rng.choice([4, 8, 16])}
        elif kind == 3:
            asked["deadline"] = f"{rng.randrange(30, 400)}d"
        else:
            asked["step_limit_s"] = rng.randrange(20, 200)
        asked["set"] = changes
        found.append(asked)
    return found


MODELS = ("llama3-8b", "llama3-70b", "mixtral-8x7b", "llama2-13b", "gpt3-175b", "llama2-7b")
CLUSTERS = ("h100-x8", "mi300x-x64", "p5e-x128", "b200-x256", "h100-x512")


def several_kinds(n: int, seed: int) -> list[tuple[str, dict[str, Any]]]:
    """Return paths and bodies of `n` questions of several calls, no two alike."""
    from planner.specs.examples import example_names

    models = [x for x in MODELS if x in example_names("model")]
    clusters = [x for x in CLUSTERS if x in example_names("cluster")]
    rng, found = random.Random(seed), list[tuple[str, dict[str, Any]]]()
    for i in range(n):
        changes: dict[str, Any] = {"training.tokens": f"{1_000 + i}e9"}
        changes["training.global_batch"] = 64 * rng.randrange(1, 33)
        asked = {"model": rng.choice(models), "cluster": rng.choice(clusters), "set": changes}
        pins = {"tp": rng.choice([1, 2, 4, 8]), "pp": rng.choice([1, 2])}
        kind = rng.randrange(8)
        if kind == 0:
            found.append((SOLVE, {**asked, "cluster": clusters[0], "top": rng.randrange(1, 20)}))
        elif kind == 1:
            found.append((SOLVE, asked))
        elif kind == 2:
            found.append((SOLVE, {**asked, "pins": pins}))
        elif kind == 3:
            found.append(("/v1/plans:explain", {"plan": {"evaluate": {**asked, "pins": pins}}}))
        elif kind == 4:
            text = f"model: {{name: m{i}, layers: {rng.randrange(-2, 90)}}}"
            found.append((SOLVE, {**asked, "model": text}))  # refused: fields are missing
        else:
            found.append(("/v1/plans:evaluate", {**asked, "pins": pins}))
    return found


# ---- load: runs in a process of its own --------------------------------------------------------


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    """0 where nothing did."""
    seconds: float
    hint: bool
    """Whether it says when to come back."""
    size: int


class Connections:
    """Connections to one server, kept open and used again."""

    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        self._host, self._port = url.hostname or "127.0.0.1", url.port or 80
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, path: str, body: bytes, token: str = "") -> Reply:
        """Return the reply to a request; status 0 where there is none."""
        begun = time.perf_counter()
        try:
            status, hint, size = await asyncio.wait_for(self._post(path, body, token), PATIENCE_S)
        except (OSError, EOFError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            status, hint, size = 0, False, 0
        return Reply(status, time.perf_counter() - begun, hint, size)

    async def _post(self, path: str, body: bytes, token: str) -> tuple[int, bool, int]:
        pair = self._idle.pop() if self._idle else None
        reader, writer = pair or await asyncio.open_connection(self._host, self._port)
        try:
            head = (
                f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            named = dict(x.lower().split(": ", 1) for x in lines[1:] if ": " in x)
            size = int(named.get("content-length", "0"))
            await reader.readexactly(size)
        except BaseException:
            writer.close()
            raise
        self._idle.append((reader, writer))
        return int(lines[0].split()[1]), "retry-after" in named, size


def quantile(values: Sequence[float], q: float) -> float:
    """Return a quantile of some values, 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0


async def closed_load(
    address: str, bodies: Sequence[bytes], at_once: int, token: str, seconds: float = 0.0
) -> dict[str, Any]:
    """Send the bodies, so many at a time, each once; with `seconds` again and again until then."""
    connections, waiting, found = Connections(address), iter(bodies), list[Reply]()
    end = time.perf_counter() + seconds
    begun = time.perf_counter()

    async def caller() -> None:
        while True:
            if seconds:
                if time.perf_counter() > end:
                    return
                body = bodies[0]
            else:
                body = next(waiting, b"")
                if not body:
                    return
            found.append(await connections.post(SOLVE, body, token))

    await asyncio.gather(*(caller() for _ in range(at_once)))
    spent = time.perf_counter() - begun
    ms = [1e3 * x.seconds for x in found]
    return {
        "requests": len(found),
        "seconds": spent,
        "p50_ms": statistics.median(ms),
        "p90_ms": quantile(ms, 0.9),
        "p99_ms": quantile(ms, 0.99),
        "errors": sum(x.status != 200 for x in found),
    }


async def open_load(
    address: str, bodies: Sequence[bytes], per_s: float, seconds: float, tokens: Sequence[str]
) -> dict[str, Any]:
    """Send requests when they are due, whether or not others are answered."""
    connections, tasks, begun = Connections(address), [], time.perf_counter()
    for n in range(int(per_s * seconds)):
        wait_s = begun + n / per_s - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        post = connections.post(SOLVE, bodies[n % len(bodies)], tokens[n % len(tokens)])
        tasks.append(asyncio.create_task(post))
    sent_s = time.perf_counter() - begun
    found = await asyncio.gather(*tasks)
    served = [x for x in found if x.status == 200]
    refused = [x for x in found if x.status in (429, 503) and x.hint]
    others = Counter(x.status for x in found if x not in served and not x.hint)
    return {
        "requests": len(found),
        "seconds": sent_s,
        "drained_s": time.perf_counter() - begun,
        "served": len(served),
        "refused": len(refused),
        "lost": len(found) - len(served) - len(refused),
        "others": dict(others),
        "served_p50_ms": 1e3 * quantile([x.seconds for x in served], 0.5),
        "served_max_ms": 1e3 * max((x.seconds for x in served), default=0.0),
        "refused_p99_ms": 1e3 * quantile([x.seconds for x in refused], 0.99),
    }


async def mixed_load(address: str, n: int, seed: int, at_once: int, token: str) -> dict[str, Any]:
    """Send questions of several kinds, so many at a time."""
    connections, found = Connections(address), Counter[str]()
    waiting, begun = iter(several_kinds(n, seed)), time.perf_counter()

    async def caller() -> None:
        for path, asked in waiting:
            reply = await connections.post(path, json.dumps(asked).encode(), token)
            found[str(reply.status)] += 1

    await asyncio.gather(*(caller() for _ in range(at_once)))
    return {"requests": n, "seconds": time.perf_counter() - begun, "statuses": dict(found)}


def in_process(asked: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Answer questions without a service, as a warm worker does."""
    import gc

    from searches.pricing.shared_work import SharedWork
    from service.handlers.calls import call, dumps
    from service.handlers.running_call import RunningCall
    from service.worker_pool.pool import COLLECTED_AFTER

    running = RunningCall(shared=SharedWork())
    dumps(call("solve", CACHED, running), "solve")
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)
    ms = []
    for one in asked:
        begun = time.perf_counter()
        dumps(call("solve", json.dumps(one).encode(), running), "solve")
        ms.append(1e3 * (time.perf_counter() - begun))
    return {"p50_ms": statistics.median(ms), "p90_ms": quantile(ms, 0.9)}


def load(given: dict[str, Any]) -> dict[str, Any]:
    """Make one load, in this process."""
    if given["load"] == "in process":
        return in_process(questions(given["n"], given["seed"]))
    if given["load"] == "mixed":
        more = (given[x] for x in ("address", "n", "seed", "at_once", "token"))
        return asyncio.run(mixed_load(*more))
    bodies = [json.dumps(x).encode() for x in questions(given.get("n", 0), given.get("seed", 0))]
    if given["load"] == "open":
        more = given["per_s"], given["seconds"], given["tokens"]
        return asyncio.run(open_load(given["address"], bodies, *more))
    bodies = bodies or [json.dumps(CACHED).encode()]
    return asyncio.run(
        closed_load(
            given["address"], bodies, given["at_once"], given["token"], given.get("seconds", 0.0)
        )
    )


def loaded(**given: Any) -> dict[str, Any]:
    """Make one load, in another process."""
    command = [sys.executable, __file__, "--load", json.dumps(given)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def wrk(address: str, token: str, seconds: float, folder: Path) -> dict[str, Any]:
    """Return what wrk measures of cached solves, else what the load of this file does."""
    program = shutil.which("wrk")
    if program is None:
        return loaded(
            load="closed", address=address, at_once=CONNECTIONS, token=token, seconds=seconds
        )
    script = folder / "ask.lua"
    script.write_text(WRK % (json.dumps(CACHED), token))
    command = [
        program,
        "-t1",
        f"-c{CONNECTIONS}",
        f"-d{max(1, round(seconds))}s",
        "-s",
        str(script),
        address + SOLVE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = next(x for x in done.stdout.splitlines() if x.startswith("JSON "))
    found: dict[str, Any] = json.loads(line.removeprefix("JSON "))
    return found


# ---- what is measured --------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Return the environment of processes that use this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@contextlib.contextmanager
def started(command: list[str], sign: str) -> Iterator[tuple[int, str]]:
    """Run a server; yield its process id and its address, the word of stderr after `sign`."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if sign in line:
                break
        else:
            raise RuntimeError("".join(said))
        rest = threading.Thread(target=process.stderr.read, daemon=True)
        rest.start()
        yield process.pid, line.partition(sign)[2].split()[0]
    finally:
        process.terminate()
        try:
            process.wait(60.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serve(folder: Path, tokens: Path, workers: int, grpc_port: int) -> Any:
    """Start `planner serve`."""
    command = [str(Path(sys.executable).parent / "planner"), "serve"]
    try:
        subprocess.run([*command, "--help"], env=environment(), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):  # not installed, or before there was `serve`
        command = [sys.executable, "-c", "from service.command import app; app()"]
    options = [
        "--port",
        "0",
        "--grpc-port",
        str(grpc_port),
        "--data",
        str(folder),
        "--workers",
        str(workers),
        "--job-workers",
        "1",
        "--token-file",
        str(tokens),
        "--log-level",
        "warning",
    ]
    return started([*command, *options], "planner serves at ")


def reference_server(payload: Path) -> None:
    """Serve the bytes of a file to whatever is asked: as little as the HTTP server can do."""
    import socket

    import uvicorn

    body = payload.read_bytes()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    # With its protocol named: asyncio switches Nagle off for such sockets alone.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    print(f"bare at http://127.0.0.1:{listener.getsockname()[1]} ", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        application, lifespan="off", ws="none", log_config=None, access_log=False
    )
    asyncio.run(uvicorn.Server(config).serve([listener]))


def resident_bytes(main: int) -> tuple[int, int]:
    """Return the resident memory of a process and of the largest of those that it started."""
    parents, sizes = dict[int, int](), dict[int, int]()
    page = os.sysconf("SC_PAGE_SIZE")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            sizes[int(entry.name)] = int(fields[21]) * page
    below, more = {main}, True
    while more:
        found = {pid for pid, parent in parents.items() if parent in below} - below
        below, more = below | found, bool(found)
    return sizes.get(main, 0), max((sizes[pid] for pid in below - {main}), default=0)


def kept_bytes(address: str, token: str) -> int:
    """Return the bytes of the answers that a service keeps, up to a limit, by its metrics."""
    asked = urllib.request.Request(
        f"{address}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with contextlib.suppress(OSError), urllib.request.urlopen(asked, timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("planner_cache_bytes "):
                return int(float(line.split()[1]))
    return 0


class Watch:
    """Looks at the memory of a service twice a second.

    The answers that it keeps are taken off: they grow up to their limit.
    """

    def __init__(self, main: int, address: str, token: str) -> None:
        self._main, self._over = main, threading.Event()
        self._address, self._token, self._kept = address, token, 0
        self.seen: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.5):
            self._kept = kept_bytes(self._address, self._token) or self._kept
            service, worker = resident_bytes(self._main)
            self.seen.append((service - self._kept, worker))

    def parts(self, which: int, n: int, of: Callable[[list[int]], float]) -> list[float]:
        """Return a figure of the bytes seen in each of `n` equal parts of the time."""
        sizes = [x[which] for x in self.seen]
        cuts = [i * len(sizes) // n for i in range(n + 1)]
        return [of(sizes[a:b] or [0]) for a, b in pairwise(cuts)]

    def growth(self, which: int) -> tuple[float, float]:
        """Return the most bytes in the second and in the last quarter."""
        sizes, n = [x[which] for x in self.seen], max(1, len(self.seen) // 4)
        return max(sizes[n : 2 * n] or sizes or [0]), max(sizes[-n:] or [0])


@dataclass(frozen=True)
class Line:
    """One figure."""

    what: str
    figure: float
    unit: str
    target: float | None
    """None where nothing is asked."""
    at_least: bool
    reference: str
    ratio: float | None

    @property
    def met(self) -> bool:
        """Whether the target is kept."""
        if self.target is None:
            return True
        return self.figure >= self.target if self.at_least else self.figure <= self.target

    def shown(self) -> str:
        """Return the line as it is printed."""
        target = ""
        if self.target is not None:
            target = f"{'>=' if self.at_least else '<='} {self.target:g}"
        said = f"{self.ratio:.2f} x {self.reference}" if self.ratio is not None else ""
        verdict = "" if self.target is None else "ok" if self.met else "MISSED"
        figure = f"{self.figure:,.2f}" if self.figure < 100 else f"{self.figure:,.0f}"
        return f"{self.what:48s}{figure:>10} {self.unit:4s}{target:>10}  {verdict:7s}{said}"


class Bench:
    """The figures of one run."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def add(
        self,
        what: str,
        figure: float,
        unit: str,
        target: float | None = None,
        *,
        at_least: bool = False,
        reference: str = "",
        ratio: float | None = None,
    ) -> None:
        """Keep and print a figure."""
        line = Line(what, figure, unit, target, at_least, reference, ratio)
        self.lines.append(line)
        print(line.shown(), flush=True)

    def cached(self, address: str, token: str, seconds: float, folder: Path) -> dict[str, Any]:
        """Measure cached solves over REST."""
        """Keep and print a figure."""
        loaded(load="closed", address=address, at_once=1, token=token, seconds=0.2)
        payload = folder / "payload"
        from service.handlers.calls import call, dumps

        payload.write_text(dumps(call("solve", CACHED), "solve"))
        found = wrk(address, token, seconds, folder)
        command = [sys.executable, __file__, "--reference", str(payload)]
        with started(command, "bare at ") as (_, bare):
            wrk(bare, token, min(1.0, seconds), folder)
            least = wrk(bare, token, seconds, folder)
        per_s, most = found["requests"] / found["seconds"], least["requests"] / least["seconds"]
        name = "a bare ASGI app"
        self.add(
            "cached solves, REST",
            per_s,
            "/s",
            1000,
            at_least=True,
            reference=name,
            ratio=per_s / most,
        )
        self.add(
            "  p50", found["p50_ms"], "ms", reference=name, ratio=found["p50_ms"] / least["p50_ms"]
        )
        self.add(
            "  p99",
            found["p99_ms"],
            "ms",
            10,
            reference=name,
            ratio=found["p99_ms"] / least["p99_ms"],
        )
        self.add("  without an answer", found["errors"], "", 0)
        return found

    def grpc(self, port: int, token: str, seconds: float, rest: dict[str, Any] | None) -> None:
        """Measure cached solves over gRPC."""
        command = [
            sys.executable,
            str(ROOT / "benchmarks" / "grpc_load.py"),
            f"127.0.0.1:{port}",
            "--rate",
            "1000",
            "--seconds",
            str(seconds),
            "--token",
            token,
        ]
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        ratio = found["p50_ms"] / rest["p50_ms"] if rest else None
        self.add(
            "cached solves, gRPC, 1,000 a second asked", found["per_s"], "/s", 990, at_least=True
        )
        self.add("  p50", found["p50_ms"], "ms", reference="REST under wrk", ratio=ratio)
        self.add("  p99", found["p99_ms"], "ms", 20)
        bad = sum(n for name, n in found["statuses"].items() if name != "OK")
        self.add("  without the answer", bad, "", 0)

    def fresh(self, address: str, token: str, n: int) -> dict[str, Any]:
        """Measure fresh solves; return what they take one at a time."""
        alone = loaded(load="in process", n=n, seed=1)
        for at_once in (1, 2):
            found = loaded(
                load="closed", address=address, at_once=at_once, token=token, n=n, seed=at_once
            )
            said = "one at a time" if at_once == 1 else "two at a time"
            self.add(
                f"fresh solves, 70B on 512, {said}: p50",
                found["p50_ms"],
                "ms",
                150 if at_once == 1 else None,
                reference="in process",
                ratio=found["p50_ms"] / alone["p50_ms"],
            )
            self.add(
                "  p90",
                found["p90_ms"],
                "ms",
                reference="in process",
                ratio=found["p90_ms"] / alone["p90_ms"],
            )
            self.add("  without an answer", found["errors"], "", 0)
            if at_once == 1:
                first = found
        first["per_s"] = found["requests"] / found["seconds"]
        return first

    def overload(
        self,
        address: str,
        main: int,
        tokens: list[str],
        seconds: float,
        before: dict[str, Any],
        n_after: int,
    ) -> None:
        """Measure what becomes of ten times the capacity, and of what comes after."""
        per_s = TIMES * before["per_s"]
        with Watch(main, address, tokens[0]) as watch:
            found = loaded(
                load="open",
                address=address,
                per_s=per_s,
                seconds=seconds,
                tokens=tokens,
                n=int(per_s * seconds) + 1,
                seed=3,
            )
        after = loaded(
            load="closed", address=address, at_once=1, token=tokens[0], n=n_after, seed=4
        )
        name = "before the overload"
        self.add(
            f"overload, {per_s:.0f} a second for {seconds:g} s: requests", found["requests"], ""
        )
        self.add("  neither served nor politely refused", found["lost"], "", 0)
        served = found["served"] / found["drained_s"]
        self.add("  served", served, "/s", reference=name, ratio=served / before["per_s"])
        self.add(
            "  served, p50",
            found["served_p50_ms"],
            "ms",
            reference=name,
            ratio=found["served_p50_ms"] / before["p50_ms"],
        )
        self.add("  refused, p99", found["refused_p99_ms"], "ms")
        for which, who in enumerate(("service", "largest worker")):
            early, late = watch.growth(which)
            self.add(
                f"  memory of the {who} at the end",
                late / 1e6,
                "MB",
                1.1 * early / 1e6 + 5,
                reference="a quarter in",
                ratio=late / max(early, 1.0),
            )
        self.add(
            "  p50 right after",
            after["p50_ms"],
            "ms",
            150,
            reference=name,
            ratio=after["p50_ms"] / before["p50_ms"],
        )

    def memory(self, address: str, main: int, token: str, n: int) -> None:
        """Measure memory over many fresh questions."""
        with Watch(main, address, token) as watch:
            found = loaded(load="mixed", address=address, n=n, seed=5, at_once=2, token=token)
        said = ", ".join(f"{v} x {k}" for k, v in sorted(found["statuses"].items()))
        self.add(f"fresh questions of several kinds ({said})", n, "")
        answered = sum(v for k, v in found["statuses"].items() if k in ("200", "422"))
        self.add("  neither answered nor refused with reasons", n - answered, "", 0)
        for which, who in enumerate(("service", "largest worker")):
            # What is held between questions: a single one may need as much again while it lasts.
            _, early, _, late = watch.parts(which, 4, statistics.median)
            self.add(
                f"  memory of the {who}, last quarter, median",
                late / 1e6,
                "MB",
                1.1 * early / 1e6 + 5,
                reference="second quarter",
                ratio=late / max(early, 1.0),
            )
            for name, of in (("median", statistics.median), ("most", max)):
                tenths = " ".join(f"{size / 1e6:.0f}" for size in watch.parts(which, 10, of))
                print(f"    by tenths of the {found['seconds']:.0f} s, {name}: {tenths} MB")


def free_port() -> int:
    """Return a port that nobody listens at."""
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds: that all of it runs")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each cached load")
    parser.add_argument("--overload-s", type=float, default=60.0)
    parser.add_argument("--fresh", type=int, default=150, help="fresh solves of each kind of load")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="cached,grpc,fresh,overload")
    parser.add_argument("--questions", type=int, default=10_000, help="of the load on memory")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--reference", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        print(json.dumps(load(json.loads(given.load))))
        return 0
    if given.reference:
        reference_server(given.reference)
        return 0
    if given.quick:
        given.seconds, given.overload_s, given.fresh = 1.0, 3.0, 10
    only, bench = given.only.split(","), Bench()
    with_grpc = "grpc" in only
    with tempfile.TemporaryDirectory(prefix="planner-bench-") as name:
        folder = Path(name)
        tokens = [f"{i:02d}{'0123456789abcdef' * 2}" for i in range(CALLERS)]
        file = folder / "tokens"
        file.write_text("".join(f"caller{i} solve {x}\n" for i, x in enumerate(tokens)))
        port = free_port() if with_grpc else 0
        with serve(folder, file, given.workers, port) as (pid, address):
            warm = {"load": "closed", "address": address, "token": tokens[0]}
            loaded(**warm, at_once=given.workers, n=4 * given.workers, seed=9)
            rest = None
            if "cached" in only:
                rest = bench.cached(address, tokens[0], given.seconds, folder)
            if with_grpc:
                bench.grpc(port, tokens[0], given.seconds, rest)
            if "fresh" in only or "overload" in only:
                before = bench.fresh(address, tokens[0], given.fresh)
            if "overload" in only:
                bench.overload(
                    address, pid, tokens, given.overload_s, before, min(20, given.fresh)
                )
            if "memory" in only:
                bench.memory(address, pid, tokens[0], given.questions)
    if given.json:
        lines = [{**vars(line), "met": line.met} for line in bench.lines]
        Path(given.json).write_text(json.dumps(lines, indent=1) + "\n")
    missed = [line.what.strip() for line in bench.lines if not line.met]
    if missed:
        print(f"missed: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
