"""One process of the service: engine, REST and gRPC on one event loop, until it is told to stop.

SIGTERM, SIGINT   accept nothing new (503, /readyz fails), finish what runs, then end
the same again    end now; running jobs go on elsewhere when their lease is over
SIGHUP            read the token file again
"""

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import uvicorn

from planner.errors import UsageError
from service.access.auth import Auth, check_exposure, is_loopback, tokens_of
from service.engine import Engine
from service.handlers.problems import Refusal
from service.http.connections import connection_class
from service.jobs.store import Store, StoreError, data_folder, database_url
from service.rest.application import Rest
from service.settings.serving import PublicAddress, Serving
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import configured_tracer

log = logging.getLogger("planner.service")

KEEP_ALIVE_S = 30
LAST_ANSWERS_S = 5
"""How long answers may still be sent once the engine is closed."""
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and no CBC; those of 1.3 are all of that kind."""
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


def start_auth(serving: Serving) -> Auth:
    """Return who may call; `UsageError` where that would be everybody in the network."""
    tokens = tokens_of(serving.token_file) if serving.token_file else ()
    check_exposure(serving.host, bool(tokens), serving.insecure)
    return Auth(tokens, serving.limits.failed_logins)


def check_tls(serving: Serving) -> None:
    """Raise `UsageError` for certificates and keys that cannot be used."""
    if bool(serving.tls_cert) != bool(serving.tls_key):
        raise UsageError("TLS needs a certificate and its key", "--tls-cert FILE --tls-key FILE")
    if serving.tls_client_ca and not serving.tls_cert:
        raise UsageError("--tls-client-ca without TLS", "--tls-cert FILE --tls-key FILE")
    if not serving.tls_cert:
        return
    with contextlib.suppress(OSError, TypeError):
        if serving.tls_key and serving.tls_key.stat().st_mode & 0o007:
            log.warning("%s can be read by every user of this machine", serving.tls_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    where = f"{serving.tls_cert}, {serving.tls_key}"
    try:
        context.load_cert_chain(serving.tls_cert, serving.tls_key, password=_no_password)
        if serving.tls_client_ca:
            where = str(serving.tls_client_ca)
            context.load_verify_locations(serving.tls_client_ca)
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{where}: {reason}", "PEM files, the key without a password") from None


def _no_password() -> str:
    raise ValueError("the key has a password")


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


def listening(serving: Serving, port: int | None = None, option: str = "--port") -> socket.socket:
    """Return a socket bound to the address; `UsageError` where it cannot be.

    `port` is another one than that of HTTP, which is given by `option`.
    """
    result = None
    port = serving.port if port is None else port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            serving.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        result = socket.socket(family, kind, protocol)
        result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if serving.share_port:
            result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        result.bind(address)
    except OSError as error:
        if result is not None:
            result.close()
        raise UsageError(
            f"{serving.host} port {port}: {error.strerror or error}",
            f"another {option}, or the --host of a card of this machine",
        ) from None
    return result


def check_ports(serving: Serving) -> None:
    """Raise `UsageError` where HTTP and gRPC are to listen at the same port."""
    if serving.port and serving.port == serving.grpc_port:
        raise UsageError(
            f"--port and --grpc-port are both {serving.port}",
            "two ports, or --grpc-port 0 for no gRPC",
        )


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


class _Server(uvicorn.Server):
    """The HTTP server without signal handlers of its own: the service drains first."""

    @staticmethod
    def _nothing() -> Iterator[None]:
        yield

    def capture_signals(self) -> Any:
        """Leave the signals alone."""
        return contextlib.contextmanager(self._nothing)()


def _tls_context(config: uvicorn.Config, default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    context = default()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def http_server(rest: Rest, serving: Serving) -> uvicorn.Server:
    """Return the HTTP server of an application."""
    tls: dict[str, Any] = {}
    if serving.tls_cert:
        tls = {
            "ssl_certfile": serving.tls_cert,
            "ssl_keyfile": serving.tls_key,
            "ssl_ciphers": CIPHERS,
            "ssl_context_factory": _tls_context,
        }
    if serving.tls_client_ca:
        tls |= {"ssl_ca_certs": str(serving.tls_client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    config = uvicorn.Config(
        rest,
        http=connection_class(serving.limits),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the address of a caller is that of the connection
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_ANSWERS_S,
        **tls,
    )
    return _Server(config)


async def serve_forever(
    serving: Serving,
    ready: Callable[[str, str], None] = lambda address, grpc_address: None,
) -> None:
    """Serve until a signal; `ready` is told the addresses when questions are answered.

    They are a URL and, for gRPC, HOST:PORT, empty without it.

    Raises `UsageError` for everything that is wrong before that.
    """
    _bound_process()
    auth = start_auth(serving)
    check_tls(serving)
    check_ports(serving)
    listener = listening(serving)
    try:
        store = await asyncio.to_thread(open_store, serving)
    except BaseException:
        listener.close()
        raise
    engine = Engine(store, serving.limits, serving.options)
    metrics = Metrics(engine)
    address = PublicAddress(serving.root_path, bool(serving.tls_cert), only_hosts(serving, auth))
    rest = Rest(engine, auth, serving.limits, address, metrics)
    rest.tracer = configured_tracer()
    server = http_server(rest, serving)
    stop = asyncio.Event()
    _on_signals(stop, server, auth, serving)
    grpc: RunningService | None = None
    http: asyncio.Task[None] | None = None
    try:
        await engine.start()
        grpc = await start_grpc(engine, serving, auth, metrics)
        http = asyncio.create_task(server.serve([listener]))
        while not (server.started or http.done()):
            await asyncio.sleep(0.01)
        host = f"[{serving.host}]" if ":" in serving.host else serving.host
        port = listener.getsockname()[1]
        grpc_address = grpc.address if grpc is not None else ""
        fields = {"host": host, "port": port, "grpc": grpc_address, "store": store.name}
        log.info("serving", extra={"fields": fields})
        ready(f"{serving.scheme}://{host}:{port}", grpc_address)
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait({http, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        log.info("stopping: nothing new is accepted")
        if serving.share_port:
            await _leave_port(server)
            if grpc is not None:
                grpc.leave()
    finally:
        await engine.close()
        if grpc is not None:
            await grpc.stop(LAST_ANSWERS_S)
        server.should_exit = True
        if http is not None:
            await http
        listener.close()
        store.close()
        log.info("stopped")


async def _leave_port(server: uvicorn.Server) -> None:
    """Listen no more: new connections go to the other processes at this port."""
    for _ in range(3):  # take what has connected already
        await asyncio.sleep(0.01)
    for each in server.servers:
        each.close()


def _on_signals(stop: asyncio.Event, server: uvicorn.Server, auth: Auth, serving: Serving) -> None:
    loop = asyncio.get_running_loop()

    def ask() -> None:
        if stop.is_set():
            log.warning("stopped at once: running jobs go on when their lease is over")
            logging.shutdown()
            os._exit(1)
        stop.set()

    def reread() -> None:
        if serving.token_file is None:
            return
        try:
            auth.replace(tokens_of(serving.token_file))
            log.info("the token file was read again")
        except UsageError as error:
            log.error("the tokens stay as they were: %s", error.message)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, reread)


async def check_setup(serving: Serving, say: Callable[[str], None]) -> None:
    """Try everything that a start needs, and one question; `UsageError` for the first fault."""
    auth = start_auth(serving)
    say(f"callers: {'tokens' if auth.asks else 'no token is asked for'}")
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
        asyncio.run(check_setup(serving, lambda line: print(f"ok  {line}")))
        return

    def ready(address: str, grpc_address: str) -> None:
        if grpc_address:
            print(f"planner serves gRPC at {grpc_address}", file=sys.stderr)
        print(f"its page: {address}{serving.root_path}/ui", file=sys.stderr)
        print(f"planner serves at {address} (Ctrl-C stops it)", file=sys.stderr, flush=True)

    asyncio.run(serve_forever(serving, ready))
