"""What stands between browsers and pages: origins, the token's cookie, forms, errors in HTML.

A token is posted once, to /ui/login, and comes back as an HttpOnly cookie that browsers send to
/ui alone and never with a request of another site. An address that another site links to is opened
by a page that reloads itself, so that the cookie comes along. Requests that other sites make a
browser send without the reader's will (pictures, frames, scripts) are refused.
"""

import asyncio
import contextlib
import html
import re
from collections.abc import Callable, Mapping
from email.message import Message
from email.parser import HeaderParser
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.requests import cookie_parser
from starlette.responses import Response

from service.access.auth import Auth, unauthenticated
from service.access.caller import Caller
from service.engine import Engine
from service.handlers.limits import RequestLimits
from service.handlers.problems import Refusal, refused
from service.http.bodies import BodyReader
from service.http.compression import compressed
from service.http.events import watch_job
from service.http.exchange import HttpExchange, Receive, Scope, Send
from service.jobs.records import State
from service.pages import routes, static
from service.pages.question import title_of
from service.pages.render import render_page
from service.pages.visit import (
    HTML,
    LARGE_BYTES,
    Page,
    Upload,
    Visit,
    Working,
    fields_of,
    read_query,
)
from service.settings.serving import PublicAddress

Found = TypeVar("Found")
COOKIE, THEME_COOKIE = "planner_token", "planner_theme"
THEMES = ("light", "dark")
MOST_FORM_FIELDS = 200
MOST_PART_HEAD_BYTES = 2_000
"""Headers of one part of a form."""
MOST_OPEN_BYTES = 16_384
"""Body of a form that anybody may send: the token, the colours."""
# Plotly adds one empty style element and sets rules through it; it also writes style attributes.
_EMPTY = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
CSP = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    f"style-src 'self' {_EMPTY}; style-src-attr 'unsafe-inline'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", CSP.encode()),
    (b"referrer-policy", b"same-origin"),  # without any, a form would be sent with Origin: null
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
_EVENTS = re.compile(r"/ui/jobs/([A-Za-z0-9]{1,64})/events")
_ROOT = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def is_root_path(text: str) -> bool:
    """Tell whether a text can be the prefix of all paths: `/planner`, or empty."""
    return _ROOT.fullmatch(text) is not None and not text.endswith("/") and "/." not in text


class Pages:
    """All pages of a service, behind the gate of the REST transport."""

    def __init__(
        self,
        engine: Engine,
        auth: Auth,
        settings: RequestLimits,
        bodies: BodyReader,
        address: PublicAddress,
    ) -> None:
        assert is_root_path(address.root_path)
        self._engine, self._auth, self._settings = engine, auth, settings
        self._bodies = bodies
        self.root = address.root_path
        self.tls = address.tls
        self._waiting: dict[str, None] = {}

    # What the REST gate asks

    def unprefixed(self, scope: Scope) -> Scope:
        """Return a request without the prefix of its path, whether or not a proxy has cut it."""
        path = scope["path"]
        if self.root and (path == self.root or path.startswith(f"{self.root}/")):
            return {**scope, "path": path[len(self.root) :] or "/", "root_path": ""}
        return scope

    def shows(self, path: str, headers: Mapping[bytes, bytes]) -> bool:
        """Tell whether HTML answers a request: pages, and what browsers look for in vain."""
        if path == "/ui" or path.startswith("/ui/"):
            return True
        return wants_html(headers) and not path.startswith("/v1/")

    async def answer(
        self, exchange: HttpExchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a request for a page; raises `Refusal`."""
        method, path = scope["method"], scope["path"]
        if path in ("/", "/ui/") and method in ("GET", "HEAD"):
            return await _redirect(f"{self.root}/ui", 307)(scope, receive, send)
        if path.startswith("/ui/static/") and method in ("GET", "HEAD"):
            file = static.find_file(path.removeprefix("/ui/static/"))
            if file is None:
                raise no_such_page(path)
            coding = exchange.header(b"accept-encoding")
            response = await asyncio.to_thread(file.response, coding)
            return await response(scope, receive, send)
        if path != "/" and path != "/ui" and not path.startswith("/ui/"):
            raise no_such_page(path)
        page: Page | Response
        if self._is_of_another_site(exchange, method):
            page = Page(reloading(f"{self.root}{path}", scope.get("query_string", b"")))
        elif method in ("GET", "HEAD"):
            page = await self._got(exchange, scope, receive)
        elif method == "POST":
            page = await self._posted(exchange, scope, receive)
        else:
            raise wrong_method(method, path)
        if isinstance(page, Response):
            return await page(scope, receive, send)
        content = page.content.encode() if isinstance(page.content, str) else page.content
        content, coding_headers = await compressed(content, exchange.header(b"accept-encoding"))
        vary = ", ".join(("cookie", *filter(None, (coding_headers.get("vary"),))))
        headers = {"cache-control": "private, no-cache", **coding_headers, **page.headers}
        response = Response(content, page.status, headers | {"vary": vary}, page.media)
        await response(scope, receive, send)

    def problem(self, problem: Refusal, exchange: HttpExchange, path: str) -> Page:
        """Return a refusal as a page; for 401 it asks for the token."""
        visit = self._visit(exchange, path, {}, exchange.caller or Caller("", "read"))
        status = problem.status
        if status == 401:
            target = exchange.next or "/ui"
            return Page(render_page(visit, "login.html.j2", problem=problem, next=target), status)
        with contextlib.suppress(Refusal):  # so that the question can be changed
            visit.query = read_query((exchange.next or "").partition("?")[2].encode("latin-1"))
        return Page(render_page(visit, "problem.html.j2", problem=problem), status)

    # Who asks

    def _is_of_another_site(self, exchange: HttpExchange, method: str) -> bool:
        """Tell whether a link of another site was followed; `Refusal` 403 for what is worse."""
        if exchange.header(b"sec-fetch-site") not in ("cross-site", "same-site"):
            return False
        opened = exchange.header(b"sec-fetch-mode") == "navigate"
        if (
            method in ("GET", "HEAD")
            and opened
            and (exchange.header(b"sec-fetch-dest") == "document")
        ):
            return True
        raise Refusal(
            403,
            "cross-origin",
            "pages of other origins may not ask",
            "this request was made by a page of another site: open the address itself",
        )

    async def _caller(self, exchange: HttpExchange, method: str) -> Caller:
        sent: bytes | None = exchange.headers.get(b"authorization")
        token = cookies(exchange).get(COOKIE, "")
        if sent is None and token:
            self._check_own(exchange, method)
            sent = b"Bearer " + token.encode("latin-1", "replace")
        caller = exchange.caller = await self._auth.identified(sent, exchange.address)
        return caller

    def _check_own(self, exchange: HttpExchange, method: str) -> None:
        """Refuse a form that a cookie came with and that no page of ours is known to have sent."""
        if method in ("GET", "HEAD") or exchange.header(b"origin"):
            return  # the gate has compared the origin
        if exchange.header(b"sec-fetch-site") != "same-origin":
            raise Refusal(
                403,
                "cross-origin",
                "this form came from nowhere",
                "send the header Origin, as browsers do, or a token",
            )

    def _visit(
        self, exchange: HttpExchange, path: str, query: Mapping[str, Any], caller: Caller
    ) -> Visit:
        theme = cookies(exchange).get(THEME_COOKIE, "")
        return Visit(
            self._engine,
            self._settings,
            caller,
            self.root,
            path,
            query,
            headers=exchange.headers,
            theme=theme if theme in THEMES else "",
            asks_tokens=self._auth.asks,
            waiting=self._waiting,
        )

    # Pages and forms

    async def _got(
        self, exchange: HttpExchange, scope: Scope, receive: Receive
    ) -> Page | Response:
        path = scope["path"]
        query = read_query(scope.get("query_string", b""))
        if path == "/ui/login":
            caller = Caller("", "read")
            visit = self._visit(exchange, path, query, caller)
            return Page(render_page(visit, "login.html.j2", problem=None, next=visit.get("next")))
        raw = scope.get("query_string", b"").decode("latin-1")
        exchange.next = path + (f"?{raw}" if raw else "")
        caller = await self._caller(exchange, scope["method"])
        visit = self._visit(exchange, path, query, caller)
        events = _EVENTS.fullmatch(path)
        if events:
            exchange.fields["job_id"] = events[1]
            return await watch_job(self._engine, exchange, visit.caller, events[1])
        return await self._run("GET", visit)

    async def _posted(self, exchange: HttpExchange, scope: Scope, receive: Receive) -> Page:
        path = scope["path"]
        if path == "/ui/login":
            body = await self._bodies.read(exchange, receive, MOST_OPEN_BYTES)
            return await self._login(exchange, fields_of(body))
        if path == "/ui/logout":
            return _redirect_page(f"{self.root}/ui/login", cookie(COOKIE, "", self.root, False, 0))
        if path == "/ui/theme":
            body = await self._bodies.read(exchange, receive, MOST_OPEN_BYTES)
            return self._chosen(fields_of(body))
        caller = await self._caller(exchange, scope["method"])
        query = read_query(scope.get("query_string", b""))
        visit = self._visit(exchange, path, query, caller)
        body = await self._bodies.read(exchange, receive)
        media = exchange.header(b"content-type")
        kind = media.partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            visit.form, visit.files = await _soon(len(body), multipart, body, media)
        elif kind == "application/x-www-form-urlencoded" or not body:
            visit.form = await _soon(len(body), fields_of, body)
        elif kind == "application/json":
            visit.body = body
        else:
            raise Refusal(
                415, "wrong-media-type", "the body is no form", f"Content-Type: {kind[:60]!r}"
            )
        return await self._run("POST", visit)

    async def _run(self, method: str, visit: Visit) -> Page:
        result = routes.find(method, visit.path)
        if result is None:
            methods = routes.methods_of(visit.path)
            raise wrong_method(method, visit.path) if methods else no_such_page(visit.path)
        route, visit.parts = result
        try:
            page = await route.function(visit)
        except Working as working:
            page = working_page(visit, working)
        return page if isinstance(page, Page) else Page(page)

    async def _login(self, exchange: HttpExchange, form: Mapping[str, tuple[str, ...]]) -> Page:
        token = form.get("token", ("",))[-1].strip()
        value = form.get("next", ("",))[-1]
        exchange.next = self._own_path(value)
        if not token:
            raise unauthenticated("the field was empty")
        exchange.caller = await self._auth.identified(f"Bearer {token}", exchange.address)
        target = self.root + exchange.next
        secure = self.tls or exchange.header(b"origin").startswith("https://")
        return _redirect_page(target, cookie(COOKIE, token, self.root, secure))

    def _chosen(self, form: Mapping[str, tuple[str, ...]]) -> Page:
        theme = form.get("theme", ("",))[-1]
        target = self.root + self._own_path(form.get("next", ("",))[-1])
        age_s = 31_536_000 if theme in THEMES else 0
        value = theme if theme in THEMES else ""
        return _redirect_page(target, cookie(THEME_COOKIE, value, self.root, self.tls, age_s))

    def _own_path(self, path: str) -> str:
        """Return a page of ours to go to, below the prefix; never one of another site."""
        own = path == "/ui" or path.startswith(("/ui/", "/ui?"))
        plain = path.isascii() and path.isprintable() and "\\" not in path
        return path if own and plain else "/ui"


def wants_html(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a browser asks for something to look at."""
    return b"text/html" in headers.get(b"accept", b"")


def no_such_page(path: str) -> Refusal:
    """Return the problem of an address without a page."""
    return Refusal(404, "unknown-path", "there is no such page", f"nothing is at {path[:80]}")


def wrong_method(method: str, path: str) -> Refusal:
    """Return the problem of a method that a page does not answer."""
    methods = routes.methods_of(path) or ["GET"]
    detail = f"{method[:20]} is not for {path[:80]}: {', '.join(methods)}"
    return Refusal(405, "wrong-method", "the method is not for this page", detail)


def cookies(exchange: HttpExchange) -> dict[str, str]:
    """Return the cookies of a request; one that is odd does not hide the others."""
    return cookie_parser(exchange.header(b"cookie")[:16_000])


def cookie(name: str, value: str, root: str, secure: bool, age_s: int | None = None) -> str:
    """Return a header Set-Cookie for pages alone; without an age it ends with the browser."""
    parts = [f"{name}={value}", f"Path={root}/ui", "HttpOnly", "SameSite=Strict"]
    if age_s is not None:
        parts.append(f"Max-Age={age_s}")
    if secure:
        parts.append("Secure")
    return "; ".join(parts)


async def _soon(n_bytes: int, work: Callable[..., Found], *args: Any) -> Found:
    """Return what a function returns; for many bytes it is run beside the event loop."""
    return await asyncio.to_thread(work, *args) if n_bytes >= LARGE_BYTES else work(*args)


def multipart(body: bytes, media: str) -> tuple[dict[str, tuple[str, ...]], dict[str, Upload]]:
    """Return fields and files of a form; `Refusal` 400.

    The body is cut at its boundary (RFC 7578), in a time in proportion to its size. A parser of
    mail reads line by line, and follows forms in forms as deep as a caller likes.
    """
    unreadable = refused("malformed", "the form cannot be read", 400)
    if len(media) > MOST_PART_HEAD_BYTES:
        raise unreadable
    boundary = _headers(f"Content-Type: {media}").get_param("boundary")
    if not isinstance(boundary, str) or not 0 < len(boundary) <= 200:
        raise unreadable
    between = b"\r\n--" + boundary.encode("latin-1", "replace")
    first, *parts = (b"\r\n" + body).split(between, MOST_FORM_FIELDS + 1)
    if first.strip() or len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise unreadable  # text before it, no end, or more fields than there may be
    fields: dict[str, tuple[str, ...]] = {}
    files: dict[str, Upload] = {}
    for part in parts[:-1]:
        head, blank, content = part.partition(b"\r\n\r\n")
        if not head.startswith(b"\r\n") or not blank or len(head) > MOST_PART_HEAD_BYTES:
            raise unreadable
        try:
            headers = _headers(head[2:].decode())  # browsers send names of files in UTF-8
        except UnicodeDecodeError:
            raise unreadable from None
        name = headers.get_param("name", header="content-disposition")
        if not isinstance(name, str):
            raise unreadable
        file = headers.get_filename()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise refused(
                "malformed", f"the file {(file or name)[:80]!r} is no UTF-8 text", 400
            ) from None
        if "\0" in text:
            raise refused("malformed", f"{(file or name)[:80]!r} is no text", 400)
        if file is None:
            fields[name] = (*fields.get(name, ()), text)
        elif file:
            files[name] = Upload(file, text)
    return fields, files


def _headers(text: str) -> Message:
    return HeaderParser().parsestr(f"{text}\r\n\r\n")


def reloading(path: str, query: bytes) -> str:
    """Return a page that opens the same address once more, as a page of this site does."""
    target = quote(path, safe="/~") + ("?" + query.decode("latin-1") if query else "")
    return (
        "<!DOCTYPE html><html lang=en><meta charset=utf-8><title>planner</title>"
        f'<meta http-equiv="refresh" content="0; url={html.escape(target)}">'
        f'<p><a href="{html.escape(target)}">Go on</a></p></html>'
    )


def working_page(visit: Visit, working: Working) -> Page:
    """Return the page of a question that a job works on."""
    job = working.job
    attempt = visit.get("try")
    number = (
        int(attempt) + 1 if attempt.isascii() and attempt.isdigit() and len(attempt) < 6 else 2
    )
    status = 200 if job.state in (State.PENDING, State.RUNNING) else 409
    try:
        request = visit.question()
    except Refusal:
        request = None
    name = " on ".join(title_of(request)) if request else ""
    text = render_page(
        visit,
        "working.html.j2",
        name=name,
        job=job,
        running=status == 200,
        again=visit.here(**{"try": number}),
    )
    return Page(text, status, headers={"cache-control": "no-store"})


def _redirect(target: str, status: int = 303) -> Response:
    return Response(None, status, {"location": target, "cache-control": "no-store"})


def _redirect_page(target: str, set_cookie: str = "", status: int = 303) -> Page:
    headers = {"location": target, "cache-control": "no-store"}
    if set_cookie:
        headers["set-cookie"] = set_cookie
    return Page(b"", status, HTML, headers)
