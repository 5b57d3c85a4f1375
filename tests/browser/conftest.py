"""A browser and a server, for the tests of the page: `make browser`."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stub_server import Stub, image_bytes, serving

if TYPE_CHECKING:
    from playwright import sync_api

NAMES = ["chromium", "chromium-browser", "google-chrome"]
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Collect these tests only if the folder is named, because most machines have no Chromium."""
    return None if any("browser" in name for name in config.args) else True


@pytest.fixture(scope="session")
def browser() -> Iterator["sync_api.Browser"]:
    if CHROMIUM is None:
        pytest.skip(f"needs Chromium: none of {', '.join(NAMES)} is on the path")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving(Stub()) as stub:
        yield stub


@pytest.fixture
def new_page(browser, stub) -> Iterator[Callable[..., "sync_api.Page"]]:
    """Open pages, closed before the server. Errors and requests to other hosts fail the test."""
    contexts, complaints = [], []

    def make(address: str, *, expected: str = "the server responded", **options) -> "sync_api.Page":
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)

        def complain(text: str) -> None:
            if expected not in text:
                complaints.append(text)

        def check_request(request: "sync_api.Request") -> None:
            if not request.url.startswith((address, "blob:", "data:")):
                complaints.append(f"requested {request.url}")

        page.on("console", lambda message: complain(message.text))
        page.on("pageerror", lambda error: complain(str(error)))
        page.on("request", check_request)
        page.goto(address)
        return page

    yield make
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture
def page(new_page, stub):
    return new_page(stub.address)


@pytest.fixture
def image(tmp_path: Path) -> Callable[..., Path]:
    """Write an image of noise: image("coat.png", seed=1)."""

    def write(name: str, seed: int = 0, size: tuple[int, int] = (48, 36)) -> Path:
        path = tmp_path / name
        path.write_bytes(image_bytes(seed, size, "JPEG" if name.endswith(".jpg") else "PNG"))
        return path

    return write
