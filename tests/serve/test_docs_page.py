"""Oracles: openapi.json, and curl, which runs the commands of the page as they are."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest
from serve_stub import image, running

from onsight.serve.access import Access

TOKEN = "correct-horse-battery"
UNAVAILABLE = {"/explain", "/similar"}  # the stub has no network


def commands(page):
    return [unescape(text) for text in re.findall(r'<code id="[^"]+">(.*?)</code>', page)]


def test_every_request_of_the_document_is_on_the_page(server):
    status, headers, body = server.ask("GET", "/docs")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    page = unescape(body.decode())
    _, _, document = server.ask("GET", "/openapi.json")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            section = page.partition(f">{method.upper()} {path}</h2>")[2].partition("</section>")[0]
            assert operation["summary"] in section
            assert f"127.0.0.1:{server.port}{path}" in section
            described = [*operation.get("parameters", []), *operation["responses"].values()]
            assert all(part["description"] in section for part in described)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {
        "data:,",
        "static/style.css",
        "static/docs.js",
        "openapi.json",
    }


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_commands_do_what_they_say(model, tmp_path, monkeypatch):
    monkeypatch.setenv("ONSIGHT_TOKEN", TOKEN)
    (tmp_path / "image.jpg").write_bytes(image(200, kind="JPEG"))
    with running(model, access=Access(token=TOKEN)) as locked:
        page = locked.ask("GET", "/docs")[2].decode()
        for command in commands(page):
            done = subprocess.run(
                ["sh", "-c", f"{command} -s -w '%{{stderr}}%{{http_code}}'"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=30,
            )
            path = re.search(r":\d+(/[\w.]+)", command)[1]
            assert done.stderr == ("501" if path in UNAVAILABLE else "200")
            if path == "/predict":
                (row,) = json.loads(done.stdout)["predictions"]
                assert row["predicted"] == "light"
                assert len(row["probabilities"]) == 3
    assert (tmp_path / "answer.png").exists()  # the reason why there is no heat map
