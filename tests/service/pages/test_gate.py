"""Pages over HTTP without a browser: token, cookie, origins, prefix, errors, forms, headers."""

import asyncio
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from planner.render.charts.chart import Frame
from service.access.auth import Auth, read_tokens
from service.engine import Engine
from service.handlers.problems import Refusal
from service.pages import static
from service.pages.gate import CSP, is_root_path, multipart
from service.pages.question import packed_question
from service.pages.render import page_environment
from service.pages.visit import fields_of
from service.rest.application import Rest
from service.settings.serving import PublicAddress
from tests.service.identified import identified
from tests.service.inline import SETTINGS, inline_engine

TOKEN = "sue-solves-0123456789"
HTML = {"accept": "text/html,application/xhtml+xml"}
OWN = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}


class Service:
    """One engine, and three applications: with tokens, without, and below a path."""

    def __init__(self, folder: Any) -> None:
        self.runner = asyncio.Runner()
        self._context = inline_engine(folder)
        self.engine: Engine = self.runner.run(self._context.__aenter__())
        auth = Auth(read_tokens(f"sue solve {TOKEN}\nann read ann-reads-0123456789", "tokens"))
        self.app = Rest(self.engine, auth, SETTINGS)
        self.open_app = Rest(
            self.engine, None, SETTINGS, PublicAddress(only_hosts=frozenset({"localhost"}))
        )
        self.below = Rest(self.engine, auth, SETTINGS, PublicAddress("/planner", tls=True))

    def ask(self, method: str, path: str, app: Any = None, **given: Any) -> httpx.Response:
        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(app=app or self.open_app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as one:
                return await asyncio.wait_for(one.request(method, path, **given), 20.0)

        return self.runner.run(asked())

    def close(self) -> None:
        self.runner.run(self._context.__aexit__(None, None, None))
        self.runner.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("pages"))
    yield found
    found.close()


def test_a_page_comes_with_its_policy_and_the_interface_with_its_own(service):
    page = service.ask("GET", "/ui", headers=HTML)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"] == CSP
    assert "unsafe-inline" not in CSP.split("script-src")[1].split(";")[0]
    assert page.headers["referrer-policy"] == "same-origin"
    assert page.headers["x-frame-options"] == "DENY"
    assert (
        (service.ask("GET", "/livez").headers["content-security-policy"])
        == "default-src 'none'; frame-ancestors 'none'"
    )


@pytest.fixture
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be a service whose environment lacks Plotly."""
    cached = (static.draws_figures, static.plotly_style_ids, static._by_name, page_environment)
    for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    for each in cached:
        each.cache_clear()
    yield
    for each in cached:
        each.cache_clear()


@pytest.mark.parametrize("path", ["/ui/accuracy", "/ui/cases"])
def test_pages_without_plotly_keep_their_words_and_say_what_to_install(
    service, without_plotly, path
):
    page = service.ask("GET", path, headers=HTML)
    assert page.status_code == 200
    meta = re.search(r'<meta name="plotly"[^>]*>', page.text)[0]
    assert 'content=""' in meta
    assert "parallelism-planner[pages]" in meta
    assert "plotly.js" not in page.text
    assert "Data of this figure" in page.text


def test_a_chart_without_plotly_is_plain_data(without_plotly):
    chart = Frame(height=300).figure([{"type": "bar", "x": [1], "y": [2]}])
    data = chart.to_plotly_json()
    assert data["data"] == [{"type": "bar", "x": [1], "y": [2]}]
    assert chart.layout.height == data["layout"]["height"] > 300
    data["layout"].clear()
    assert chart.layout.height > 300


def test_pages_are_compressed_for_who_takes_it(service):
    plain = service.ask("GET", "/ui/catalogue", headers={**HTML, "accept-encoding": "identity"})
    small = service.ask("GET", "/ui/catalogue", headers={**HTML, "accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert small.headers["content-encoding"] == "gzip"
    assert small.headers["vary"] == plain.headers["vary"] == "cookie, accept-encoding"
    assert small.text == plain.text
    assert int(small.headers["content-length"]) < len(plain.content) / 4


def test_the_root_leads_browsers_to_the_page_and_programs_nowhere(service):
    led = service.ask("GET", "/", headers=HTML)
    assert (led.status_code, led.headers["location"]) == (307, "/ui")
    assert service.ask("GET", "/").json()["code"] == "unknown-path"


@pytest.mark.parametrize("path", ["/ui/nothing", "/nothing", "/ui/static/none.js"])
def test_browsers_get_errors_as_pages(service, path):
    found = service.ask("GET", path, headers=HTML)
    assert found.status_code == 404
    assert found.headers["content-type"].startswith("text/html")
    assert "There is no such page" in found.text


def test_programs_get_problems_also_from_pages(service):
    for path in ("/ui/nothing", "/nothing", "/v1/nothing"):
        found = service.ask("GET", path)
        assert found.headers["content-type"] == "application/problem+json", path
    asked_like_a_browser = service.ask("GET", "/v1/jobs/none", headers=HTML)
    assert asked_like_a_browser.headers["content-type"] == "application/problem+json"


def test_a_method_that_a_page_does_not_answer(service):
    for method in ("PUT", "DELETE", "OPTIONS"):
        assert service.ask(method, "/ui/solve").status_code == 405
    assert service.ask("POST", "/ui").status_code == 405


def test_static_files_are_kept_long_and_known_by_their_hash(service):
    name = static.file("page.js").name
    plain = service.ask("GET", f"/ui/static/{name}", headers={"accept-encoding": "identity"})
    assert plain.content == static.file("page.js").content
    assert "immutable" in plain.headers["cache-control"]
    small = service.ask("GET", f"/ui/static/{name}")
    assert small.headers["content-encoding"] == "gzip"
    assert small.content == plain.content
    assert service.ask("GET", "/ui/static/page.js").status_code == 404


# Tokens


def test_a_token_is_asked_for_and_kept_in_a_cookie_of_the_pages_alone(service):
    asked = service.ask("GET", "/ui/solve?model=llama3-8b", service.app, headers=HTML)
    assert asked.status_code == 401
    assert 'value="/ui/solve?model=llama3-8b"' in asked.text
    assert "llama3-405b" not in asked.text
    given = service.ask(
        "POST",
        "/ui/login",
        service.app,
        data={"token": TOKEN, "next": "/ui/solve?x=1"},
        headers=HTML | OWN,
    )
    assert (given.status_code, given.headers["location"]) == (303, "/ui/solve?x=1")
    cookie = given.headers["set-cookie"]
    assert "; HttpOnly; SameSite=Strict" in cookie
    assert "; Path=/ui;" in cookie
    sent = {"cookie": cookie.split(";")[0]}
    assert service.ask("GET", "/ui/solve", service.app, headers=HTML | sent).status_code == 200
    # The interface for programs takes no cookie.
    assert service.ask("GET", "/v1/version", service.app, headers=sent).status_code == 401
    out = service.ask("POST", "/ui/logout", service.app, headers=HTML | OWN | sent)
    assert "Max-Age=0" in out.headers["set-cookie"]


def test_pages_take_the_header_too(service):
    sent = {"authorization": f"Bearer {TOKEN}"}
    assert service.ask("GET", "/ui/jobs", service.app, headers=sent).status_code == 200


@pytest.mark.parametrize("token", ["", "wrong-0123456789abcdef", "x" * 9_000])
def test_a_wrong_token_is_asked_for_again(service, token):
    found = service.ask(
        "POST",
        "/ui/login",
        service.app,
        data={"token": token, "next": "/ui/jobs"},
        headers=HTML | OWN,
    )
    assert found.status_code == 401
    assert "set-cookie" not in found.headers
    assert 'value="/ui/jobs"' in found.text
    assert token[:20] not in found.text or not token


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil",
        "/v1/jobs",
        "/uix",
        "/ui/\x01",
        "javascript:alert(1)",
    ],
)
def test_a_sign_in_leads_to_no_other_site(service, target):
    found = service.ask(
        "POST", "/ui/login", service.app, data={"token": TOKEN, "next": target}, headers=OWN
    )
    assert found.headers["location"] == "/ui"


def test_what_a_role_may_not_do_is_said_as_a_page(service):
    cookie = {"cookie": "planner_token=ann-reads-0123456789"}
    asked = service.ask(
        "POST", "/ui/jobs/abc/cancel", service.app, headers=HTML | OWN | cookie, data={"a": "b"}
    )
    assert asked.status_code == 403
    assert "your role does not allow this" in asked.text.lower()


# Origins


def test_forms_of_other_sites_are_refused(service):
    cookie = {"cookie": f"planner_token={TOKEN}"}
    path = "/ui/jobs/abc/cancel"
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://localhost:9999"},
    ):
        found = service.ask("POST", path, service.app, headers=cookie | headers, data={"a": "b"})
        assert (found.status_code, found.json()["code"]) == (403, "cross-origin"), headers
    own = service.ask("POST", path, service.app, headers=cookie | OWN, data={"a": "b"})
    assert own.json()["code"] == "unknown-job"


def test_links_of_other_sites_are_opened_by_a_page_of_ours(service):
    followed = {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    }
    found = service.ask("GET", '/ui/plans?model=a&x="><script>', headers=HTML | followed)
    assert found.status_code == 200
    assert 'http-equiv="refresh"' in found.text
    assert "<script" not in found.text
    assert "/ui/plans?model=a&amp;x=" in found.text


@pytest.mark.parametrize(
    ("mode", "dest"), [("no-cors", "image"), ("navigate", "iframe"), ("cors", "empty")]
)
def test_what_other_sites_load_is_refused(service, mode, dest):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": mode, "sec-fetch-dest": dest}
    found = service.ask("GET", "/ui/plans?model=llama3-8b&cluster=h100-x8", headers=headers)
    assert (found.status_code, found.json()["code"]) == (403, "cross-origin")


def test_a_name_of_a_strangers_own_is_refused_as_a_page(service):
    found = service.ask("GET", "http://evil.example/ui", headers=HTML)
    assert found.status_code == 421
    assert "<h1>This service is not called so</h1>" in found.text


# Below a path


@pytest.mark.parametrize("path", ["/planner/ui", "/ui"])
def test_pages_below_a_path_whether_or_not_the_proxy_cuts_it(service, path):
    headers = HTML | {"authorization": f"Bearer {TOKEN}", "x-forwarded-prefix": "/evil"}
    found = service.ask("GET", path, service.below, headers=headers)
    assert found.status_code == 200
    for link in found.text.split('href="')[1:] + found.text.split('action="')[1:]:
        assert link.startswith(("/planner/", "#")), link[:60]
    assert "/evil" not in found.text


def test_cookies_and_jobs_below_a_path_name_it(service):
    given = service.ask(
        "POST",
        "/planner/ui/login",
        service.below,
        data={"token": TOKEN, "next": "/ui/jobs"},
        headers=OWN,
    )
    assert given.headers["location"] == "/planner/ui/jobs"
    assert "; Path=/planner/ui;" in given.headers["set-cookie"]
    assert given.headers["set-cookie"].endswith("; Secure")
    job = service.ask(
        "POST",
        "/planner/v1/jobs",
        service.below,
        json={"call": "solve", "request": {"n": 2}},
        headers={"authorization": f"Bearer {TOKEN}"},
    )
    assert job.headers["location"] == f"/planner/v1/jobs/{job.json()['job_id']}"


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("", True),
        ("/planner", True),
        ("/a/b-c.d", True),
        ("/", False),
        ("planner", False),
        ("/a/", False),
        ("//a", False),
        ("/a?b", False),
        ("/../a", False),
        ("/a b", False),
    ],
)
def test_prefixes(text, is_one):
    assert is_root_path(text) is is_one


# Forms


def test_forms_with_files_are_read():
    body = (
        b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
        b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\n2\r\n'
        b'--B\r\nContent-Disposition: form-data; name="f"; filename="config.json"\r\n'
        b"Content-Type: application/json\r\n\r\n\xef\xbb\xbf{}\r\n"
        b'--B\r\nContent-Disposition: form-data; name="g"; filename=""\r\n\r\n\r\n--B--\r\n'
    )
    fields, files = multipart(body, "multipart/form-data; boundary=B")
    assert fields == {"a": ("1", "2")}
    assert {name: (file.name, file.text) for name, file in files.items()} == {
        "f": ("config.json", "{}")
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--B",
        b"--B\r\n\r\n\r\n--B--",
        b'--B\r\nContent-Disposition: form-data; name="f"; '
        b'filename="x"\r\n\r\n\xff\xfe\x00\r\n--B--\r\n',
    ],
)
def test_forms_that_cannot_be_read_are_refused(body):
    with pytest.raises(Refusal) as refused:
        multipart(body, "multipart/form-data; boundary=B")
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "raw", [b"a=%00", b"a=%ff", "a=\xe9".encode("latin-1"), b"&".join(b"a=1" for _ in range(300))]
)
def test_fields_that_cannot_be_read_are_refused(raw):
    with pytest.raises(Refusal):
        fields_of(raw)


def test_colours_are_kept_and_nothing_else(service):
    for theme, kept in (("dark", "planner_theme=dark"), ("x\r\ny", "planner_theme=;")):
        found = service.ask("POST", "/ui/theme", data={"theme": theme, "next": "/ui/jobs"})
        assert found.headers["location"] == "/ui/jobs"
        assert kept in found.headers["set-cookie"] + ";"
    page = service.ask("GET", "/ui", headers={"cookie": "planner_theme=dark"} | HTML)
    assert 'data-theme="dark"' in page.text
    page = service.ask("GET", "/ui", headers={"cookie": 'planner_theme="><script>'} | HTML)
    assert "data-theme" not in page.text


# Abuse


class Lines(logging.Handler):
    """Keeps what is logged of requests."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.fields.append(vars(record).get("fields", {}))


def test_the_log_of_a_refused_sign_in_holds_its_address_and_no_query(service):
    lines = Lines()
    logging.getLogger("planner.access").addHandler(lines)
    level = logging.getLogger("planner.access").level
    logging.getLogger("planner.access").setLevel(logging.INFO)
    try:
        service.ask("GET", "/ui/plans?q=confidential", service.app, headers=HTML)
        wrong = {"token": "wrong-0123456789abcdef", "next": "/ui?q=confidential"}
        service.ask("POST", "/ui/login", service.app, headers=HTML | OWN, data=wrong)
    finally:
        logging.getLogger("planner.access").removeHandler(lines)
        logging.getLogger("planner.access").setLevel(level)
    assert [each["status"] for each in lines.fields] == [401, 401]
    assert [each["address"] for each in lines.fields] == ["127.0.0.1"] * 2
    assert "confidential" not in repr(lines.fields)


def test_failed_sign_ins_are_counted_by_address(service):
    auth = Auth(read_tokens(f"sue solve {TOKEN}", "tokens"), failed_logins=2)
    app = Rest(service.engine, auth, SETTINGS)
    form = {"data": {"token": "wrong-0123456789abcdef"}, "headers": HTML | OWN}
    found = [service.ask("POST", "/ui/login", app, **form).status_code for _ in range(3)]
    assert found == [401, 401, 429]
    with pytest.raises(Refusal) as elsewhere:
        identified(auth, "Bearer wrong-0123456789abcdef", "10.0.0.9")
    assert elsewhere.value.status == 401


@pytest.mark.parametrize("path", ["/ui/login", "/ui/theme"])
def test_forms_that_anybody_may_send_are_small(service, path):
    found = service.ask("POST", path, service.app, data={"token": "x" * 20_000}, headers=HTML)
    assert found.status_code == 413


@pytest.mark.parametrize("path", ["/ui/login", "/ui/theme"])
def test_an_address_that_no_header_can_hold_leads_to_the_first_page(service, path):
    given = {"token": TOKEN, "theme": "dark", "next": "/ui/\N{CJK UNIFIED IDEOGRAPH-4E2D}"}
    found = service.ask("POST", path, service.app, data=given, headers=HTML | OWN)
    assert (found.status_code, found.headers["location"]) == (303, "/ui")


def test_a_cookie_of_somebody_else_does_not_hide_ours(service):
    sent = {"cookie": f'odd={{"a":[1, 2]}}; planner_token={TOKEN}; other="'}
    assert service.ask("GET", "/ui/solve", service.app, headers=HTML | sent).status_code == 200


NAMED = b'--B\r\nContent-Disposition: form-data; name="a"\r\n'


@pytest.mark.parametrize(
    ("body", "media"),
    [
        (NAMED + b"\r\nx\r\n--B--", "multipart/form-data"),
        (NAMED + b"\r\nx\r\n--B--", "multipart/form-data; boundary=" + "(" * 3_000),
        (NAMED + b"\r\nx\r\n", "multipart/form-data; boundary=B"),
        ((NAMED + b"\r\nx\r\n") * 201 + b"--B--", "multipart/form-data; boundary=B"),
        (NAMED + b"x: " + b"(" * 3_000 + b"\r\n\r\nx\r\n--B--", "multipart/form-data; boundary=B"),
        (
            b"--B\r\nContent-Disposition: form-data; name=\xff\r\n\r\nx\r\n--B--",
            "multipart/form-data; boundary=B",
        ),
    ],
)
def test_forms_made_to_be_slow_or_deep_are_refused(body, media):
    with pytest.raises(Refusal) as refused:
        multipart(body, media)
    assert refused.value.status == 400


def test_a_form_is_not_read_line_by_line_nor_into_its_parts():
    lines = b"\n" * 4_000_000  # takes a parser of mail many seconds
    inner = b"Content-Type: multipart/mixed; boundary=C\r\n\r\n--C\r\n\r\nx\r\n--C--"
    body = NAMED + b"\r\n" + lines + b"\r\n" + NAMED + inner + b"\r\n--B--\r\n"
    fields, _ = multipart(body, "multipart/form-data; boundary=B")
    assert fields == {"a": (lines.decode(), "--C\r\n\r\nx\r\n--C--")}


@pytest.mark.parametrize("path", ["/ui/check", "/ui/sweeps/check"])
@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"1",
        b"{",
        b"\xff",
        b'{"a":1,"a":2}',
        b'{"a":NaN}',
        b'{"a":' + b"[" * 5_000,
        b'{"a":' + b"9" * 400 + b"}",
    ],
)
def test_scripts_that_send_no_document_are_refused(service, path, body):
    found = service.ask("POST", path, content=body, headers={"content-type": "application/json"})
    assert (found.status_code, found.json()["code"]) == (400, "malformed")


@pytest.mark.parametrize(
    "path", ["/ui/solve", "/ui/plans", "/ui/plan", "/ui/compare?plan=1&plan=2"]
)
@pytest.mark.parametrize(
    "wrong",
    [
        {"pins": [1]},
        {"pins": "x"},
        {"only": {"tp": 3}},
        {"max": [3]},
        {"set": 5},
        {"pareto": [1, 2]},
        {"allow": 7},
        {"model": None},
        {"zzz": 1},
        {"within": 10**400},
    ],
)
def test_packed_questions_of_another_shape_are_refused(service, path, wrong):
    word = packed_question({"model": "llama3-8b", "cluster": "h100-x8", **wrong})
    found = service.ask("GET", f"{path}{'&' if '?' in path else '?'}q={word}", headers=HTML)
    assert found.status_code in (400, 422)


def test_jobs_of_others_are_not_there(service):
    def ask(method: str, path: str, token: str, **given: Any) -> httpx.Response:
        sent = {"authorization": f"Bearer {token}"} | HTML
        return service.ask(method, path, service.app, headers=sent, **given)

    job = {"call": "solve", "request": {"n": 3}}
    id = ask("POST", "/v1/jobs", TOKEN, json=job).json()["job_id"]
    assert ask("GET", f"/ui/jobs/{id}", TOKEN).status_code == 200
    for path in ("jobs/{}", "jobs/{}/result", "jobs/{}/events", "sweeps/{}", "sweeps/{}/csv"):
        found = ask("GET", f"/ui/{path.format(id)}", "ann-reads-0123456789")
        assert found.status_code == 404, path
    assert id not in ask("GET", "/ui/jobs", "ann-reads-0123456789").text
    for _ in range(200):
        if ask("GET", f"/v1/jobs/{id}", TOKEN).json()["state"] == "SUCCEEDED":
            break
    result = ask("GET", f"/ui/jobs/{id}/result", TOKEN)
    assert result.headers["content-disposition"].startswith("attachment;")
    assert result.headers["x-content-type-options"] == "nosniff"


def test_a_second_host_is_refused(service):
    hosts = [("host", "localhost"), ("host", "evil.example")]
    assert service.ask("GET", "/livez", headers=hosts).status_code == 400
    assert service.ask("GET", "/livez", headers=hosts[:1]).status_code == 200
