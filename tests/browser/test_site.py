"""The documentation site works from the disk: `make docs`, then open `site/index.html`."""

from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="needs: pip install playwright")
PAGE = Path(__file__).parents[2] / "site" / "guides" / "data.html"


@pytest.mark.skipif(not PAGE.exists(), reason="needs the site: make docs")
def test_the_search_finds_a_setting(browser) -> None:
    page = browser.new_page()
    page.goto(PAGE.as_uri())
    page.keyboard.press("Control+k")
    page.keyboard.type("class weights")
    sync_api.expect(page.get_by_role("option").first).to_be_visible()
    page.keyboard.press("Enter")
    page.wait_for_url("**/reference/settings.html*#class_weights")
    page.close()
