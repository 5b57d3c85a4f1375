"""axe-core finds no serious fault, whatever is open, by day and by night."""

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="needs: pip install playwright")
axe_playwright = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="needs: pip install axe-playwright-python"
)


def faults(page: sync_api.Page) -> list[str]:
    found = axe_playwright.Axe().run(page).response["violations"]
    return [
        f"{violation['impact']}: {violation['id']}: {node['html'][:200]}"
        for violation in found
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_fault_in_any_state(new_page, stub, image, tmp_path, scheme, width) -> None:
    # The policy of the page forbids what axe does to be put into it.
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
    page = new_page(stub.address, bypass_csp=True, **options)
    sync_api.expect(page.locator("#class-names")).to_contain_text("Recognises")
    assert faults(page) == []

    (tmp_path / "broken.jpg").write_bytes(b"no image")
    stub.share = 0.4
    page.set_input_files("#files", [image("a.png"), tmp_path / "broken.jpg"])
    page.get_by_role("checkbox", name="Heat map").check()
    page.locator("summary:visible").click()
    sync_api.expect(page.get_by_alt_text("A training image of coat")).to_have_count(5)
    sync_api.expect(page.locator(".laid")).to_be_visible()
    assert faults(page) == []

    for opener in ["About this model", "Use it from code"]:
        page.get_by_role("button", name=opener).click()
        sync_api.expect(page.get_by_role("dialog")).to_be_visible()
        assert faults(page) == []
        page.keyboard.press("Escape")

    stub.token = "open sesame"
    page.set_input_files("#files", image("b.png", seed=1))
    sync_api.expect(page.locator("#token")).to_be_visible()
    assert faults(page) == []
