"""The page in a real browser: every way in, every state, by keyboard, on a phone."""

import base64

import pytest
from stub_server import CLASSES, Stub, image_bytes, serving

sync_api = pytest.importorskip("playwright.sync_api", reason="needs: pip install playwright")
Page, expect = sync_api.Page, sync_api.expect

DROPPED = """
(files) => {
  const dataTransfer = new DataTransfer();
  for (const [name, type, content] of files) {
    const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
    dataTransfer.items.add(new File([bytes], name, { type }));
  }
  const event = { dataTransfer, bubbles: true, cancelable: true };
  document.dispatchEvent(new DragEvent("dragover", event));
  document.dispatchEvent(new DragEvent("drop", event));
}
"""
COPY = """
([name, type, content]) => {
  const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
  return navigator.clipboard.write([new ClipboardItem({ [type]: new Blob([bytes], { type }) })]);
}
"""


def encoded(name: str, content: bytes) -> list[str]:
    return [name, "image/png", base64.b64encode(content).decode()]


def state(page: Page):
    return page.locator("#state")


def said(page: Page):
    return page.get_by_role("status")


def test_a_dropped_image_is_shown_with_its_five_likeliest_classes(page, stub) -> None:
    page.evaluate(DROPPED, [encoded("coat.png", image_bytes())])
    result = page.get_by_role("article")
    expect(result.get_by_role("heading")).to_have_text(CLASSES[len(image_bytes()) % 7])
    rows = result.locator("tbody tr")
    expect(rows).to_have_count(5)
    expect(rows.first.get_by_role("cell")).to_have_text("75.0%")
    expect(result.get_by_alt_text("coat.png")).to_be_visible()
    expect(said(page)).to_contain_text("coat.png: ")
    assert stub.batches == [1]


def test_the_longest_bar_is_as_long_as_its_probability_says(page) -> None:
    page.evaluate(DROPPED, [encoded("coat.png", image_bytes())])
    bars = page.locator(".share")
    expect(bars).to_have_count(5)
    widths = [bar.bounding_box()["width"] for bar in bars.all()[:2]]
    assert widths[0] / widths[1] == pytest.approx(0.75 / 0.125, rel=0.05)


def test_a_folder_is_dropped_with_all_its_images(page, image, tmp_path) -> None:
    (tmp_path / "inner").mkdir()
    image("a.png")
    image("inner/b.png", seed=1)
    (tmp_path / ".hidden").write_bytes(b"")
    session = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(tmp_path)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        event = {"type": kind, "x": 300, "y": 300, "data": data}
        session.send("Input.dispatchDragEvent", event)
    expect(page.locator("figcaption")).to_have_text(["a.png", "b.png"])
    expect(state(page)).to_contain_text("2 images: ")


def test_a_pasted_image_is_classified(new_page, stub) -> None:
    page = new_page(stub.address, permissions=["clipboard-read", "clipboard-write"])
    page.evaluate(COPY, encoded("image.png", image_bytes()))
    page.keyboard.press("Control+V")
    expect(page.get_by_role("article")).to_have_count(1)
    expect(state(page)).to_contain_text("1 image: ")


def test_all_classes_are_shown_on_request_and_hidden_again(page, image) -> None:
    page.set_input_files("#files", image("a.png"))
    page.get_by_role("button", name="All 7 classes").click()
    expect(page.locator(".chart tbody tr")).to_have_count(7)
    expect(page.locator(".chart")).to_contain_text("trouser & <b>belt</b>")
    page.get_by_role("button", name="Only the first 5").click()
    expect(page.locator(".chart tbody tr")).to_have_count(5)


def test_a_broken_file_is_told_in_the_words_of_the_server(page, image, tmp_path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    page.set_input_files("#files", [image("a.png"), tmp_path / "broken.jpg"])
    broken = page.get_by_role("article").filter(has_text="broken.jpg")
    expect(broken).to_contain_text("No result")
    expect(broken).to_contain_text("Not an image of a format that is read.")
    expect(broken).to_contain_text("no preview")
    expect(state(page)).to_contain_text("1 failed")


def test_only_broken_files_are_an_answer_too(page, tmp_path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    page.set_input_files("#files", tmp_path / "broken.jpg")
    expect(page.get_by_role("article")).to_contain_text("Not an image of a format")


def test_a_file_too_large_is_not_sent(new_page, stub, image) -> None:
    stub.max_bytes = 2000
    page = new_page(stub.address)
    page.set_input_files("#files", image("a.png"))
    expect(page.get_by_role("article")).to_contain_text("this server accepts 1 kB at most")
    assert stub.batches == []


def test_images_too_large_together_are_sent_one_by_one(new_page, stub, image) -> None:
    first, second = image("a.png"), image("b.png", seed=1)
    stub.max_bytes = first.stat().st_size + 2000
    page = new_page(stub.address)
    page.set_input_files("#files", [first, second])
    expect(page.locator(".chart tbody")).to_have_count(2)
    expect(page.locator(".waiting")).to_have_count(0)
    assert stub.batches == [1, 1]


def test_two_hundred_images_go_in_batches_and_the_page_stays_alive(page, stub) -> None:
    stub.seconds = 0.02
    files = [encoded(f"{i}.png", image_bytes(i, (8, 8))) for i in range(200)]
    page.evaluate(DROPPED, files)
    page.get_by_role("button", name="Use it from code").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(state(page)).to_contain_text("200 images: ")
    assert sum(stub.batches) == 200
    assert max(stub.batches) == 8
    assert stub.at_once == 2


def test_stopping_leaves_the_rest_unsent(page, stub) -> None:
    stub.seconds = 0.2
    page.evaluate(DROPPED, [encoded(f"{i}.png", image_bytes(i, (8, 8))) for i in range(60)])
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("article").last).to_contain_text("Not sent: you stopped.")
    expect(page.get_by_role("button", name="Clear")).to_be_visible()
    assert sum(stub.batches) <= 16


def test_clearing_gives_back_every_address(page, image) -> None:
    page.evaluate(
        """() => {
          window.open_ = new Set();
          const { createObjectURL: made, revokeObjectURL: gone } = URL;
          URL.createObjectURL = (blob) => { const a = made(blob); open_.add(a); return a; };
          URL.revokeObjectURL = (address) => { open_.delete(address); gone(address); };
        }"""
    )
    page.set_input_files("#files", [image("a.png"), image("b.png", seed=1)])
    page.get_by_role("checkbox", name="Heat map").first.check()
    expect(page.locator(".laid:visible")).to_have_count(1)
    expect(page.locator(".shown")).to_have_count(2)
    assert page.evaluate("() => open_.size") == 3
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_role("article")).to_have_count(0)
    assert page.evaluate("() => open_.size") == 0
    expect(page.get_by_role("button", name="Choose images")).to_be_focused()


def test_large_images_are_shown_downscaled(page, image) -> None:
    page.set_input_files("#files", image("large.jpg", size=(3000, 2000)))
    shown = page.get_by_alt_text("large.jpg")
    expect(shown).to_be_visible()
    expect(shown).to_have_js_property("naturalWidth", 640)


def test_a_busy_server_is_asked_again_when_it_said(page, stub, image) -> None:
    stub.busy = 1
    page.set_input_files("#files", image("a.png"))
    expect(state(page)).to_have_text("The server is busy; trying again in 1 s.")
    expect(page.locator(".chart tbody tr")).to_have_count(5)


def test_a_server_that_went_away_is_told_and_asked_again(new_page, image) -> None:
    with serving(Stub()) as stub:
        page = new_page(stub.address, expected="Failed to load resource")
        expect(page.locator("#class-names")).to_contain_text("Recognises bag")
        port = int(stub.address.rstrip("/").rsplit(":", 1)[1])
    page.set_input_files("#files", image("a.png"))
    expect(state(page)).to_have_text("The server cannot be reached. Is it still running?")
    expect(said(page)).to_contain_text("cannot be reached")
    with serving(Stub(), port):
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".chart tbody tr")).to_have_count(5)


def test_the_token_is_asked_for_and_kept_for_the_tab_only(new_page, stub, image) -> None:
    stub.token = "open sesame"
    page = new_page(stub.address)
    dialog = page.get_by_role("dialog")
    expect(page.locator("#token")).to_be_focused()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("That token is wrong.")
    page.locator("#token").fill("open sesame")
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    page.set_input_files("#files", image("a.png"))
    expect(page.locator(".chart tbody tr")).to_have_count(5)
    assert page.evaluate("() => [sessionStorage.length, localStorage.length]") == [1, 0]
    page.get_by_role("button", name="Use it from code").click()
    expect(page.locator("#curl-one")).to_contain_text("Authorization: Bearer $ONSIGHT_TOKEN")


def test_without_a_token_the_page_waits_and_can_ask_again(new_page, stub) -> None:
    stub.token = "open sesame"
    page = new_page(stub.address)
    expect(page.locator("#token")).to_be_focused()
    page.keyboard.press("Escape")
    expect(state(page)).to_have_text("This server requires a token.")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#token")).to_be_focused()


def test_a_heat_map_is_laid_over_the_image_and_fades(page, image) -> None:
    page.set_input_files("#files", image("a.png"))
    switch = page.get_by_role("checkbox", name="Heat map")
    switch.check()
    laid = page.locator(".laid")
    expect(laid).to_be_visible()
    shown, over = page.locator(".shown").bounding_box(), laid.bounding_box()
    assert shown == over
    page.get_by_label("Strength of the heat map").fill("40")
    expect(laid).to_have_css("opacity", "0.4")
    second = page.locator(".chart tbody th").nth(1).text_content()
    page.locator(".dials select").select_option(second)
    expect(laid).to_have_attribute("alt", f"Heat map of the regions that support {second}")
    switch.uncheck()
    expect(laid).to_be_hidden()


@pytest.mark.parametrize(
    ("fit", "object_fit"), [("stretch", "fill"), ("crop", "contain"), ("pad", "cover")]
)
def test_a_heat_map_lies_where_the_network_saw_the_image(
    new_page, stub, image, fit, object_fit
) -> None:
    stub.fit = fit
    page = new_page(stub.address)
    page.set_input_files("#files", image("wide.png", size=(120, 60)))
    page.get_by_role("checkbox", name="Heat map").check()
    expect(page.locator(".laid")).to_have_css("object-fit", object_fit)
    box = page.locator(".laid").bounding_box()
    assert box == page.locator(".shown").bounding_box()
    assert box["width"] == pytest.approx(2 * box["height"], abs=1)


def test_what_goes_wrong_beside_the_queue_is_told_where_it_was_asked(page, stub, image) -> None:
    page.set_input_files("#files", image("a.png"))
    expect(page.locator(".chart tbody tr")).to_have_count(5)
    stub.busy, stub.max_bytes = 1, 1
    page.get_by_role("button", name="All 7 classes").click()
    expect(page.locator(".chart .message")).to_have_text("The server is busy; trying again in 1 s.")
    expect(page.locator(".chart .message")).to_have_text("The images are too large together.")


def test_alike_training_images_are_shown_with_labels(page, image) -> None:
    page.set_input_files("#files", image("a.png"))
    page.get_by_text("Most similar training images").click()
    expect(page.get_by_alt_text("A training image of coat")).to_have_count(5)
    expect(page.locator(".similar")).to_contain_text("coat0.93")


def test_what_the_model_cannot_do_is_not_offered(new_page, stub, image) -> None:
    stub.can = {"explain": False, "similar": False}
    page = new_page(stub.address)
    page.set_input_files("#files", image("a.png"))
    expect(page.locator(".chart tbody tr")).to_have_count(5)
    expect(page.locator(".heat")).to_be_hidden()
    expect(page.locator(".similar")).to_be_hidden()


@pytest.mark.parametrize(
    ("share", "out_of_distribution", "words"),
    [(0.4, False, "Unsure."), (0.9, True, "Unlike anything seen in training."), (0.9, False, None)],
)
def test_doubts_are_told_in_words(page, stub, image, share, out_of_distribution, words) -> None:
    stub.share, stub.out_of_distribution = share, out_of_distribution
    page.set_input_files("#files", image("a.png"))
    expect(page.locator(".chart tbody tr")).to_have_count(5)
    if words:
        expect(page.locator(".answer .note")).to_contain_text(words)
    else:
        expect(page.locator(".answer .note")).to_be_hidden()


def test_the_card_tells_accuracy_classes_and_limits(page) -> None:
    page.get_by_role("button", name="About this model").click()
    card = page.get_by_role("dialog", name="About this model")
    expect(card.locator("#about-accuracy")).to_have_text("80.2%")
    expect(card).to_contain_text("expect 77.6% to 82.6% (95% CI)")
    expect(card.get_by_role("row")).to_have_count(1 + len(CLASSES))
    expect(card.get_by_role("row").nth(1)).to_have_text("bag90.0%80.0% to 95.0%100")
    expect(card).to_contain_text("'coat' and 'shirt' are hardly told apart.")
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()
    expect(page.get_by_role("button", name="About this model")).to_be_focused()


def test_lines_to_copy_name_this_server(new_page, stub) -> None:
    page = new_page(stub.address, permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Use it from code").click()
    expect(page.locator("#python")).to_contain_text(f'Request("{stub.address}predict"')
    page.get_by_role("button", name="Copy").first.click()
    expect(said(page)).to_have_text("Copied.")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied.startswith(f'curl "{stub.address}predict"')


def test_several_models_are_a_choice(new_page, stub, image) -> None:
    stub.names = ["garments", "birds"]
    page = new_page(stub.address)
    page.get_by_label("Model", exact=True).select_option("birds")
    expect(page.get_by_role("heading", level=1)).to_contain_text("birds")
    page.set_input_files("#files", image("a.png"))
    expect(page.locator("figcaption")).to_have_text("a.png, classified by birds")


def test_everything_is_reached_by_keyboard_in_the_order_of_reading(page, image) -> None:
    page.set_input_files("#files", image("a.png"))
    expect(page.locator(".chart tbody tr")).to_have_count(5)
    page.locator("body").focus()
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        reached.append(focused.evaluate("(one) => one.id || one.textContent || one.type"))
        assert focused.evaluate("(one) => getComputedStyle(one).outlineStyle") == "solid"
        if reached[-1] == "checkbox":
            page.keyboard.press("Space")
            expect(page.locator(".laid")).to_be_visible()
    expected = ["open-about", "open-code", "choose", "clear", "All 7 classes", "checkbox"]
    assert reached[:6] == expected
    assert reached[7:] == ["range", "Most similar training images"]
    page.keyboard.press("Enter")
    expect(page.get_by_alt_text("A training image of coat")).to_have_count(5)


def test_the_file_chooser_opens_by_keyboard(page, image) -> None:
    page.on("filechooser", lambda chooser: None)  # Chromium is told now to leave choosing to us
    expect(page.locator("#class-names")).to_contain_text("Recognises")
    page.get_by_role("button", name="Choose images").focus()
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    assert chooser.value.is_multiple()
    chooser.value.set_files(image("a.png"))
    expect(page.locator(".chart tbody tr")).to_have_count(5)


def test_a_phone_offers_its_camera_and_nothing_scrolls_sideways(new_page, stub, image) -> None:
    size = {"width": 390, "height": 844}
    page = new_page(stub.address, viewport=size, has_touch=True, is_mobile=True)
    expect(page.get_by_role("button", name="Take a photo")).to_be_visible()
    expect(page.locator("#camera")).to_have_attribute("capture", "environment")
    page.set_input_files("#camera", image("photo.jpg", size=(300, 400)))
    page.get_by_role("checkbox", name="Heat map").check()
    expect(page.locator(".laid")).to_be_visible()
    page.get_by_text("Most similar training images").click()
    expect(page.get_by_alt_text("A training image of coat")).to_have_count(5)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    page.get_by_role("button", name="About this model").click()
    assert page.locator("#about").bounding_box()["width"] == 390
    assert page.locator("#about").evaluate("(one) => one.scrollWidth - one.clientWidth") == 0
