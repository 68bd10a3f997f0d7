"""The page that compares runs, looked at in a real browser: it draws all of the page, and fetches nothing.

The browser is the one that TEST_BROWSER names, else playwright's own (`playwright install chromium`), else one on the
path. Without a browser the tests are skipped.
"""

import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from compared_runs import NORMS, SYNCS, finished, metric, write_run
from PIL import Image

from comera_dist.commands.compare import write_comparison

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

ON_PATH = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
SCALES = {"steps": "step", "tokens": "tokens", "time": "of training steps"}  # labels of the choice and of the axis
# Sizes of all elements that match, in CSS pixels.
SIZES = "found => found.map(e => { const box = e.getBoundingClientRect(); return [box.width, box.height]; })"


def executable(driver):
    """Path of a browser of Chromium's family; None if there is none."""
    own = driver.chromium.executable_path
    return os.environ.get("TEST_BROWSER") or (
        own if Path(own).exists() else next(filter(None, map(shutil.which, ON_PATH)), None)
    )


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        path = executable(driver)
        if path is None:
            pytest.skip("no browser: give `playwright install chromium`, or name one in TEST_BROWSER")
        with driver.chromium.launch(executable_path=path) as launched:
            yield launched


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """A page that compares two runs, one of which has ranks and updates."""
    folder = tmp_path_factory.mktemp("runs")
    losses = [metric(step, loss=3 / step + 1) for step in range(1, 5)]
    other = write_run(folder / ("long_name_" * 12), "wandb: 1\n", [*losses, metric(5, val_loss=1.5)])
    runs = [finished(folder / "a", syncs=SYNCS, norms=NORMS), other]
    write_comparison(runs, folder / "page.html")
    return folder / "page.html"


@pytest.fixture
def view(browser, page_file):
    """Opens the page as a user with certain settings of the browser would; no message and no request may appear."""
    contexts, messages, requests = [], [], []

    def opened(**settings):
        contexts.append(browser.new_context(**settings))
        page = contexts[-1].new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(page_file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not messages
    assert [url for url in requests if not url.startswith("data:image/png;base64,")] == [page_file.as_uri()] * len(
        contexts
    )


def picture(element):
    """What a user sees of an element: pixels of shape (height, width, 3)."""
    return np.asarray(Image.open(io.BytesIO(element.screenshot())).convert("RGB"))


def colours(element):
    return {tuple(pixel) for pixel in picture(element).reshape(-1, 3)}


def test_every_figure_is_drawn(view):
    page = view()
    figures = page.locator("figure:visible")
    assert figures.count() == 3  # one scale of the loss, the ranks, and the updates
    for figure in figures.all():
        width, height = figure.locator("> svg").evaluate_all(SIZES)[0]
        assert width > 600
        assert height > 100
        assert len(colours(figure)) > 20  # curves and heat maps have colours, and letters have grey edges


def test_all_words_of_a_figure_are_laid_out(view):
    page = view()
    words = page.locator("figure:visible svg text").evaluate_all(SIZES)
    assert len(words) > 20
    assert all(width > 0 and height > 0 for width, height in words)


def test_the_curves_have_the_colours_of_the_heads(view):
    page = view()
    swatches = page.locator("th .swatch").evaluate_all("found => found.map(e => getComputedStyle(e).borderTopColor)")
    seen = colours(page.locator("figure:visible").first)
    for swatch in set(swatches):
        assert tuple(int(number) for number in swatch.removeprefix("rgb(").removesuffix(")").split(",")) in seen


def test_a_choice_shows_another_scale(view):
    page = view()
    pictures = []
    for scale, axis in SCALES.items():
        page.get_by_label(scale, exact=True).check()
        figures = page.locator(".choice figure:visible")
        assert figures.count() == 1
        assert axis in figures.text_content()
        pictures.append(picture(figures).tobytes())
    assert len(set(pictures)) == len(SCALES)


@pytest.mark.parametrize(("scheme", "is_bright"), [("light", True), ("dark", False)])
def test_the_page_takes_the_colours_that_a_user_prefers(view, scheme, is_bright):
    figure = view(color_scheme=scheme).locator("figure:visible").first
    assert (np.median(picture(figure)) > 128) == is_bright
    # Letters stand out from the page.
    assert np.ptp(picture(figure.locator("svg text").first).astype(int)) > 100


def test_a_narrow_window_scrolls_the_tables_alone(view):
    page = view(viewport={"width": 400, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.locator(".scroll").first.evaluate("table => table.scrollWidth") > 400


def test_a_click_opens_a_configuration(view):
    page = view()
    text = page.locator("details pre").first
    assert not text.is_visible()
    page.locator("summary").first.click()
    assert text.is_visible()
    assert "kind: decoder" in text.inner_text()
