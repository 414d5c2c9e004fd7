"""The page says how far it has read a long prompt, to eyes and to screen readers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.browser import DESKTOP, PHONE, visiting
from support.fixtures import a_server
from support.page_answers import HeldChat, reading_of, stream_of
from support.random_models import Shape, make_model
from support.served import Served, add_template, serving

TOTAL = 7237
ANNOUNCEMENT_MS = 5000

pytestmark = pytest.mark.usefixtures("browser")  # skips before a server starts
served = a_server("chat_model", "--draft", "none")


def test_the_page_shows_how_far_the_prompt_is_read_until_the_first_token(
    browser: Any, served: Served
) -> None:
    with visiting(browser, served.url) as visit:
        chat, reading = HeldChat(visit, "Hello"), visit.page.locator(".reading")
        assert reading.is_hidden()
        assert visit.page.locator(".figures").text_content() == ""
        for read in (128, 3100):
            chat.send(reading_of(read, TOTAL))
            visit.page.locator(".reading", has_text=f"Reading {read:,} of 7,237 tokens").wait_for()
        chat.send(reading_of(TOTAL, TOTAL))
        reading.wait_for(state="hidden")
        chat.send(stream_of(["Hi"]))
        visit.page.locator('.run[aria-busy="false"]').wait_for()
        assert reading.is_hidden()
        assert visit.page.locator(".prose").text_content().strip() == "Hi"
        assert visit.complaints == []


def test_a_short_prompt_shows_nothing(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        chat = HeldChat(visit, "Hello")
        chat.send(reading_of(9, 9) + stream_of(["Hi"]))
        visit.page.locator('.run[aria-busy="false"]').wait_for()
        assert visit.page.locator(".reading").text_content() == ""


def test_screen_readers_hear_of_a_long_prompt_now_and_then(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        page, announcement = visit.page, visit.page.locator("#announcement")
        page.clock.install()
        chat = HeldChat(visit, "Hello")
        heard = []
        for read in range(0, TOTAL, 500):
            chat.send(reading_of(read, TOTAL))
            page.locator(".reading", has_text=f"Reading {read:,} of").wait_for()
            heard.append(announcement.text_content())
            page.clock.fast_forward(ANNOUNCEMENT_MS // 4)
        assert heard[:4] == [""] * 4
        assert heard[4] == "Reading 2,000 of 7,237 tokens"
        assert len(set(heard)) == 4  # silence, then every five seconds
        live = page.locator("[aria-live], [role=log], [role=status]")
        assert [each.get_attribute("id") for each in live.all() if each.is_visible()] == [
            "announcement"
        ]
        chat.send(stream_of(["Hi"]))
        page.locator("#announcement", has_text="Hi").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_no_violation_while_a_prompt_is_read(
    browser: Any, served: Served, scheme: str, size: tuple[int, int]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe").Axe()
    with visiting(browser, served.url, size, scheme) as visit:
        chat, page = HeldChat(visit, "Hello " * 200), visit.page
        chat.send(reading_of(3100, TOTAL))
        page.locator(".reading").wait_for()
        found = axe.run(page).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
        [whole, seen] = page.locator("html").evaluate("(e) => [e.scrollWidth, e.clientWidth]")
        assert whole <= seen
        box = page.locator(".reading").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < size[1], "it is in view"


def test_a_prompt_that_is_being_read_can_be_stopped(
    browser: Any, tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    model = add_template(make_model(tmp_path, Shape(layers=6, context=1 << 15), seed))
    text = "".join(map(chr, rng.integers(97, 123, 30_000)))
    options = ("--draft", "none", "--cache-positions", "40000")
    with serving(str(model), *options) as served, visiting(browser, served.url) as visit:
        page = visit.page
        page.locator("#welcome").wait_for()
        page.locator("#prompt").fill(text)
        page.keyboard.press("Enter")
        page.locator(".reading", has_text=" of 30,0").wait_for()
        page.keyboard.press("Escape")
        page.locator('.run[aria-busy="false"]').wait_for()
        assert page.locator(".reading").is_hidden()
        assert "0 tokens, stopped" in page.locator(".figures").text_content()
        assert served.metric("vllm:num_requests_running") == 0
        assert visit.complaints == []
