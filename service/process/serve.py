"""One process of the service: engine, REST and gRPC on one event loop, until it is told to stop.

SIGTERM, SIGINT   accept nothing new (503, /readyz fails), finish what runs, then end
the same again    end now; running jobs go on elsewhere when their lease is over
SIGHUP            read the files of tokens, tenants and certificates again, open the audit log anew

Files that have changed are read again within seconds without it, too.
"""

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Protocol

import uvicorn

from planner.errors import UsageError
from service.access.auth import Auth, is_loopback
from service.engine import Engine
from service.handlers.problems import Refusal
from service.http.bound_socket import listening
from service.http.server import LAST_ANSWERS_S
from service.jobs.store import Store, StoreError, data_folder, database_url
from service.process.http_server import http_server, probe_server
from service.rest.application import Rest
from service.settings.callers import Callers
from service.settings.certificates import Certificates, check_tls
from service.settings.serving import PROBE_PORT, PublicAddress, Serving
from service.telemetry.audit import AuditLog
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import configured_tracer

log = logging.getLogger("planner.service")

FILES = 65_536
"""Files and connections that this process may hold open, where the system allows as many."""
RESERVE_BYTES = 64_000_000
"""Of the disk, kept for jobs that were accepted."""


class RunningService(Protocol):
    """A transport that runs."""

    @property
    def address(self) -> str:
        """Where it listens, HOST:PORT."""

    def leave(self) -> None:
        """Listen no more; calls in flight go on until `stop`."""

    async def stop(self, grace_s: float) -> None:
        """End it; calls in flight have `grace_s` to finish."""


def _bound_process() -> None:
    """Leave no core file with tokens and requests, and allow many connections."""
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    maximum = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < maximum:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, hard))


def open_store(serving: Serving) -> Store:
    """Return the store; `UsageError` where it cannot be used."""
    try:
        url = database_url(serving.database, serving.data or data_folder())
        return Store(url, reserve_bytes=RESERVE_BYTES)
    except StoreError as error:
        raise UsageError(str(error), error.fix) from None
    except Refusal as problem:
        reason = str(getattr(problem.__cause__, "orig", "") or problem.detail).splitlines()[0]
        raise UsageError(reason, "start the database, or name another one") from None


def check_ports(serving: Serving) -> None:
    """Raise `UsageError` where two listeners are to have the same port."""
    if serving.port and serving.port == serving.grpc_port:
        raise UsageError(
            f"--port and --grpc-port are both {serving.port}",
            "two ports, or --grpc-port 0 for no gRPC",
        )
    if serving.probe_port and serving.probe_port in (serving.port, serving.grpc_port):
        raise UsageError(
            f"--probe-port is {serving.probe_port}, as another one is",
            "a port of its own, or --probe-port 0 for none",
        )


def probe_listener(serving: Serving) -> socket.socket | None:
    """Return the socket of probes; None where there is to be none.

    The usual port was not asked for: where another process has it, there is none either, and the
    log says so. `UsageError` for one that was asked for.
    """
    if serving.probe_port == 0:
        return None
    port = PROBE_PORT if serving.probe_port is None else serving.probe_port
    if serving.probe_port is None and port in (serving.port, serving.grpc_port):
        return None
    result = None
    try:
        result = listening(serving, port, "--probe-port")
        result.listen()
    except (UsageError, OSError) as error:
        if result is not None:
            result.close()
        if serving.probe_port is not None:
            raise UsageError(
                f"{serving.host} port {port} cannot be listened at",
                "another --probe-port, or --probe-port 0 for none",
            ) from error
        log.warning("probes have no listener of their own: port %d is in use", port)
        return None
    return result


def only_hosts(serving: Serving, auth: Auth) -> frozenset[str] | None:
    """Return the names that a request may call the service by; None for any.

    Where no token is asked for, the name is what tells a person's own page from a stranger's.
    """
    if auth.asks or not is_loopback(serving.host):
        return None
    return frozenset({"localhost", "127.0.0.1", "[::1]", serving.host.lower()})


async def start_grpc(
    engine: Engine, serving: Serving, auth: Auth, metrics: Metrics
) -> RunningService | None:
    """Start the gRPC transport over the same engine; None where it is not wanted.

    `UsageError` where it cannot be started, or is not installed.
    """
    if not serving.grpc_port:
        return None
    # What callers do wrong must not fill the log with lines that are no JSON.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    running: RunningService = await _grpc_module().start_server(engine, serving, auth, metrics)
    return running


def _grpc_module() -> Any:
    try:
        return importlib.import_module("service.rpc.server")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "service":
            raise
        raise UsageError(
            f"gRPC needs the package {error.name}",
            "pip install 'parallelism-planner[service]', or --grpc-port 0 for none",
        ) from None


async def serve_forever(
    serving: Serving,
    ready: Callable[[str, str], None] = lambda address, grpc_address: None,
) -> None:
    """Serve until a signal; `ready` is told the addresses when questions are answered.

    They are a URL and, for gRPC, HOST:PORT, empty without it.

    Raises `UsageError` for everything that is wrong before that.
    """
    _bound_process()
    audit = AuditLog(serving.audit_log)
    callers = Callers(serving, audit.note)
    auth = callers.auth
    auth.audit = audit
    check_tls(serving)
    check_ports(serving)
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(listening(serving))
        probes = probe_listener(serving)
        if probes is not None:
            sockets.enter_context(probes)
        store = await asyncio.to_thread(open_store, serving)
        sockets.pop_all()
    engine = Engine(store, serving.limits, serving.options, tenants=callers.tenants)
    metrics = Metrics(engine)
    address = PublicAddress(serving.root_path, bool(serving.tls_cert), only_hosts(serving, auth))
    rest = Rest(engine, auth, serving.limits, address, metrics)
    rest.tracer = configured_tracer()
    certificates = Certificates(serving)
    server = http_server(rest, serving, certificates)
    servers = [(server, listener)]
    if probes is not None:
        servers.append((probe_server(rest, serving, certificates), probes))
    stop = asyncio.Event()
    _on_signals(stop, callers, audit, certificates)
    fresh = asyncio.create_task(callers.keep_fresh())
    grpc: RunningService | None = None
    running: list[asyncio.Task[None]] = []
    try:
        await engine.start()
        grpc = await start_grpc(engine, serving, auth, metrics)
        for each, at in servers:
            running.append(asyncio.create_task(each.serve([at])))
            while not (each.started or running[-1].done()):
                await asyncio.sleep(0.01)
        host = f"[{serving.host}]" if ":" in serving.host else serving.host
        port = listener.getsockname()[1]
        grpc_address = grpc.address if grpc is not None else ""
        fields = {"host": host, "port": port, "grpc": grpc_address, "store": store.name}
        if probes is not None:
            fields["probes"] = probes.getsockname()[1]
        log.info("serving", extra={"fields": fields})
        audit.note("started", **fields)
        ready(f"{serving.scheme}://{host}:{port}", grpc_address)
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait({*running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        log.info("stopping: nothing new is accepted")
        if serving.share_port:
            for each, _ in servers:
                await _leave_port(each)
            if grpc is not None:
                grpc.leave()
    finally:
        fresh.cancel()
        await engine.close()
        if grpc is not None:
            await grpc.stop(LAST_ANSWERS_S)
        for each, _ in servers:
            each.should_exit = True
        await asyncio.gather(*running)
        for _, at in servers:
            at.close()
        store.close()
        callers.close()
        audit.note("stopped")
        audit.close()
        log.info("stopped")


async def _leave_port(server: uvicorn.Server) -> None:
    """Listen no more: new connections go to the other processes at this port."""
    for _ in range(3):  # take what has connected already
        await asyncio.sleep(0.01)
    for each in server.servers:
        each.close()


def _on_signals(
    stop: asyncio.Event, callers: Callers, audit: AuditLog, certificates: Certificates
) -> None:
    loop = asyncio.get_running_loop()

    def ask() -> None:
        if stop.is_set():
            log.warning("stopped at once: running jobs go on when their lease is over")
            logging.shutdown()
            os._exit(1)
        stop.set()

    def reread() -> None:
        certificates.read_again()
        audit.reopen()
        callers.read_again()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, reread)


async def check_setup(serving: Serving, say: Callable[[str], None]) -> None:
    """Try everything that a start needs, and one question; `UsageError` for the first fault."""
    callers = Callers(serving)
    callers.close()
    say(f"callers: {'tokens' if callers.auth.asks else 'no token is asked for'}")
    if serving.tenants:
        say(f"groups: {', '.join(callers.tenants.groups)}")
    if serving.audit_log:
        AuditLog(serving.audit_log).close()
        say(f"audit log: {serving.audit_log}")
    check_tls(serving)
    tls = "TLS, callers with a certificate" if serving.tls_client_ca else "TLS"
    say(f"transport: {tls if serving.tls_cert else 'plain HTTP'}")
    check_ports(serving)
    listening(serving).close()
    say(f"address: {serving.host} port {serving.port} is free")
    if serving.grpc_port:
        _grpc_module()
        listening(serving, serving.grpc_port, "--grpc-port").close()
        say(f"gRPC: {serving.host} port {serving.grpc_port} is free")
    probes = probe_listener(serving)
    if probes is not None:
        say(f"probes: {serving.host} port {probes.getsockname()[1]} is free")
        probes.close()
    store = await asyncio.to_thread(open_store, serving)
    try:
        await asyncio.to_thread(store.check_space)
        say(f"store: {store.name}")
        await _check_worker(serving, store)
        say(f"workers: {serving.options.workers}, one has answered a question")
    except Refusal as problem:
        raise UsageError(f"{problem.title}: {problem.detail}", "see the logs above") from None
    finally:
        store.close()


async def _check_worker(serving: Serving, store: Store) -> None:
    """Let a worker answer a question; jobs of the store are left alone."""
    from service.worker_pool.pool import Task, WorkerPool

    pool = WorkerPool(1, serving.limits)
    await pool.start()
    try:
        await pool.run(Task("answer", "rules", b"{}"), serving.limits.hard_s)
    finally:
        await pool.close()


def serve_main(serving: Serving, only_check: bool) -> None:
    """Run `planner serve`."""
    if only_check:
        notes = logging.StreamHandler(sys.stdout)
        notes.setFormatter(logging.Formatter("note  %(message)s"))
        notes.setLevel(logging.WARNING)
        logging.getLogger().handlers[:] = [notes]
        asyncio.run(check_setup(serving, lambda line: print(f"ok  {line}", flush=True)))
        return

    def ready(address: str, grpc_address: str) -> None:
        # What is here now stays: a full collection would stop all answers for 0.1 to 0.4 s.
        gc.collect()
        gc.freeze()
        if grpc_address:
            print(f"planner serves gRPC at {grpc_address}", file=sys.stderr)
        print(f"its page: {address}{serving.root_path}/ui", file=sys.stderr)
        print(f"planner serves at {address} (Ctrl-C stops it)", file=sys.stderr, flush=True)

    asyncio.run(serve_forever(serving, ready))
