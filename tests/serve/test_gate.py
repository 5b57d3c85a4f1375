"""Who is let in: every way that a foreign page, another name or a wrong token could be tried."""

import pytest
from serve_stub import image, running

from onsight.errors import ConfigError
from onsight.serve.access import Access, read_token

TOKEN = "correct-horse-battery"
PAGE = {"Host": "localhost", "Content-Type": "image/png"}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "FOO")
POSTS = ("/predict", "/explain", "/similar")
GETS = ("/model", "/models", "/health", "/ready", "/metrics", "/openapi.json", "/docs")
FREE = ("/docs", "/health", "/ready")


def status(server, method, path, headers, body=None):
    return server.ask(method, path, body, **headers)[0]


@pytest.fixture(scope="module")
def locked(model):
    access = Access(token=TOKEN, hosts=("Birds.example.org",), origins=("https://ok.example",))
    with running(model, access=access) as found:
        yield found


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:8000", "[::1]", "[::1]:8000"],
)
def test_names_of_this_machine_are_answered(server, host):
    assert status(server, "GET", "/models", {"Host": host}) == 200


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.nip.io", 403),
        ("10.0.0.1", 403),
        ("0.0.0.0", 403),
        ("[::]", 403),
        ("birds.example.org", 403),
        ("", 400),
        ("localhost:port", 400),
        ("localhost@evil.example", 400),
        ("evil.example/localhost", 400),
        ("localhost evil.example", 400),
        ("localhost\u00e9".encode("latin-1"), 403),
        ("[::1", 400),
    ],
)
def test_other_names_are_refused(server, host, code):
    for method, path in (("GET", "/models"), ("POST", "/predict"), ("GET", "/health")):
        assert status(server, method, path, {"Host": host}) == code


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "http://localhost.evil.example",
        "http://localhost:1",
        "https://localhost:8443",
        "http://localhost/",
        "file://",
        "http://user@localhost",
        "chrome-extension://abc",
        "http://127.0.0.1",
        "localhost",
        "https://ok.example",
    ],
)
def test_foreign_pages_are_refused_whatever_they_ask(server, origin):
    headers = {**PAGE, "Origin": origin}
    for method in METHODS[:-1]:
        assert status(server, method, "/predict", headers, b"x") == 403


def test_a_page_of_our_own_may_ask(server):
    for host in ("localhost", "localhost:8000", "127.0.0.1:80"):
        headers = {"Host": host, "Origin": f"http://{host}", "Content-Type": "image/png"}
        assert status(server, "POST", "/predict", headers, image(1)) == 200
    headers = {"Host": "localhost:80", "Origin": "http://localhost"}
    assert status(server, "GET", "/models", headers) == 200
    answer = server.ask("GET", "/models", Host="localhost", Origin="http://localhost")
    assert "Access-Control-Allow-Origin" not in answer[1]


def test_an_allowed_origin_may_ask_and_read(locked):
    page = {"Origin": "https://ok.example", "Host": "birds.example.org"}
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    code, headers, _ = locked.ask("OPTIONS", "/predict", **page, **asks)
    assert (code, headers["Access-Control-Allow-Origin"]) == (200, "https://ok.example")
    token = {"Authorization": f"Bearer {TOKEN}"}
    code, headers, _ = locked.ask("GET", "/models", **page, **token)
    assert (code, headers["Access-Control-Allow-Origin"]) == (200, "https://ok.example")
    code, headers, _ = locked.ask("GET", "/models", **{**page, "Origin": "https://no.example"})
    assert (code, headers["Access-Control-Allow-Origin"]) == (403, None)


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN} {TOKEN}",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN.upper()}",
        b"Bearer \xe9\xff",
        "Bearer " + "x" * 50_000,
    ],
)
def test_a_wrong_token_opens_nothing(locked, given):
    headers = {} if given is None else {"Authorization": given}
    for method, paths in (("GET", GETS), ("POST", POSTS)):
        for path in paths:
            code, answer, _ = locked.ask(method, path, **headers)
            assert code == (200 if path in FREE else 401)
            assert (answer["WWW-Authenticate"] == "Bearer") == (code == 401)


def test_the_right_token_opens_all(locked):
    headers = {"Authorization": f"bearer {TOKEN}", "Content-Type": "image/png"}
    for path in GETS:
        assert status(locked, "GET", path, headers) == 200
    assert status(locked, "POST", "/predict", headers, image(1)) == 200


def test_every_method_on_every_route(server):
    for path in (*POSTS, *GETS, "/nothing"):
        for method in METHODS:
            code, headers, _ = server.ask(method, path, **PAGE)
            if method == METHODS[-1]:
                assert code == 400  # HTTP does not know it
            elif path == "/nothing":
                assert code == 404
            elif method == "POST" if path in POSTS else method in ("GET", "HEAD"):
                assert code in (200, 422, 501)
            else:
                assert code == 405
                assert headers["Allow"]
    assert server.is_healthy()


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/%2e%2e%2fapp.py",
        "/static/..%5capp.py",
        "/static//etc/passwd",
        "/static/%00",
        "/static/index.html%00.js",
        "/static/",
        "/static",
        "/static/.",
        "/..",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/static/file:///etc/passwd",
        "/file:///etc/passwd",
        "/static/%c0%ae%c0%ae/app.py",
        "/static/..;/app.py",
        "/predict/../model",
        "/model/..%2f..%2fetc",
        "/static/__init__.py",
    ],
)
def test_no_path_leads_out_of_the_table(server, path):
    code, _, content = server.ask("GET", path)
    assert code == 404
    assert content == {"error": "Not Found"}


def test_answers_may_do_nothing_in_a_browser(server):
    for path in ("/models", "/nothing"):
        headers = server.ask("GET", path)[1]
        assert headers["Content-Security-Policy"].startswith(
            "default-src 'self'; img-src 'self' blob: data:;"
        )
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Server" not in headers


def test_the_network_is_let_in_only_with_a_token_or_openly():
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(ConfigError, match="--token-file"):
            Access(host=host).check()
        Access(host=host, open=True).check()
        Access(host=host, token=TOKEN).check()
    for host in ("127.0.0.1", "localhost", "::1"):
        Access(host=host).check()
    wide = Access(host="0.0.0.0", open=True, hosts=("box.lan",))
    assert wide.accepts_host("192.168.1.5")
    assert wide.accepts_host("box.lan")
    assert not wide.accepts_host("evil.example")


@pytest.mark.parametrize("host", ["*", "*.example.org", "box.lan:8000", "https://box.lan", ""])
def test_a_host_that_no_request_can_name_is_refused_at_the_start(host):
    with pytest.raises(ConfigError, match="--allow-host"):
        Access(hosts=("box.lan", host)).check()


@pytest.mark.parametrize(
    "origin", ["*", "https://*.example", "https://ok.example/", "https://Ok.example"]
)
def test_an_origin_that_no_page_has_is_refused_at_the_start(origin):
    with pytest.raises(ConfigError, match="--cors"):
        Access(origins=("https://ok.example:8443", origin)).check()


def test_hosts_and_origins_that_can_be_are_accepted():
    Access(hosts=("Box.lan", "10.0.0.1", "fd00::1")).check()
    Access(origins=("http://localhost:3000", "chrome-extension://abc", "http://[::1]:80")).check()


def test_the_token_is_read_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("ONSIGHT_TOKEN", raising=False)
    assert read_token(None) == ""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN
    monkeypatch.setenv("ONSIGHT_TOKEN", TOKEN * 2)
    assert read_token(None) == TOKEN * 2
    assert read_token(file) == TOKEN
    assert TOKEN not in repr(Access(token=TOKEN))
    for text in ("", "fifteen letters", "sixteen\tletters", "sixteen létters!"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="16 characters"):
            read_token(file)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="--token-file"):
            read_token(missing)
