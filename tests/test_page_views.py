"""The page's race, its chart and its accessibility."""

from typing import Any

import numpy as np
import pytest

from support.browser import DESKTOP, PHONE, visiting
from support.fixtures import a_server
from support.page_answers import MARKDOWN, answer, stream_of
from support.served import Served

NOTES = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"First line"}

pytestmark = pytest.mark.usefixtures("browser")  # skips before a server starts
served = a_server("chat_model", "--draft", "fp4:k=3", "--draft", "ngram")


# --- Race and chart ---------------------------------------------------------------------------


def test_at_any_time_a_race_shows_the_tokens_that_were_measured_by_then(
    browser: Any, served: Served, rng: np.random.Generator
) -> None:
    count = int(rng.integers(2, 40))
    steps = [np.cumsum([0, *rng.uniform(0.01, 1.0, count - 1)]) for _ in range(2)]
    bodies = [stream_of([f" {i}" for i in range(count)], None, step.tolist()) for step in steps]
    drafted, plain = (float(step[-1]) for step in steps)
    with visiting(browser, served.url) as visit:
        page = visit.page
        asked = answer(visit, *bodies)
        visit.send("Hello")
        page.locator(".race").click()
        page.locator("#race").wait_for()
        assert asked[1] == asked[0] | {"draft": "none"}
        for seconds in rng.uniform(0, max(drafted, plain), 5):
            page.locator("#race-winder").fill(str(1000 * seconds))
            reached = [
                page.locator(f".lane:nth-child({lane}) .mark.reached").count() for lane in (1, 2)
            ]
            assert reached == [int((step <= seconds).sum()) for step in steps]
            assert page.locator(".lane .token.reached").count() == sum(reached)
        page.locator("#race-winder").fill(page.locator("#race-winder").get_attribute("max"))
        told = page.locator("#race-verdict").text_content()
        ratio = float(told.split(" times as fast")[0])
        assert ratio == pytest.approx(plain / drafted, rel=0.06)  # two digits
        assert f"the same {count} tokens" in told
        labels = page.locator("#race-play").evaluate(
            "(button) => [1, 2].map(() => (button.click(), button.textContent))"
        )
        assert labels == ["Pause", "Play"]
        page.keyboard.press("Escape")
        assert page.locator("#race").is_hidden()
        page.locator(".race").click()  # what was measured is not measured again
        page.locator("#race").wait_for()
        assert len(asked) == 2
        assert visit.complaints == []


def test_a_played_race_ends_with_its_verdict(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        bodies = [stream_of(["a", "b", "c"], None, [0, 0.1, end]) for end in (0.2, 0.4)]
        answer(visit, *bodies)
        visit.send("Hello")
        visit.page.locator(".race").click()
        visit.page.locator("#race").wait_for()
        assert visit.page.locator("#race-pace").input_value() == "16"  # slowed down, to be seen
        visit.page.locator("#race-pace").select_option("1")
        visit.page.locator("#race-verdict", has_text="2.0 times as fast").wait_for()
        visit.page.get_by_role("button", name="Again").wait_for()


def test_the_chart_shows_the_servers_own_counts(browser: Any, served: Served) -> None:
    looks = 0

    def metrics(route: Any) -> None:
        nonlocal looks
        looks += 1
        values = {
            'specqd:level_draft_tokens_total{level="bf16",model_name="small"}': 100 * looks,
            'specqd:level_accepted_tokens_total{level="bf16",model_name="small"}': 75 * looks,
            'specqd:level_draft_tokens_total{level="fp4",model_name="small"}': 7,
            'specqd:level_accepted_tokens_total{level="fp4",model_name="small"}': 7,
            'vllm:generation_tokens_total{model_name="small"}': 50 * looks,
            'vllm:num_requests_running{model_name="small"}': 3,
            'specqd:bandwidth_share{model_name="small"}': 0.61,
        }
        route.fulfill(body="".join(f"{name} {value}\n" for name, value in values.items()))

    with visiting(browser, served.url) as visit:
        visit.page.route("**/metrics", metrics)
        visit.page.locator("#live-button").click()
        legend = visit.page.locator("#live-legend")
        legend.locator("li", has_text="fp4 accepted by bf16 75\xa0%").wait_for()
        assert legend.locator("li", has_text="ngram accepted by fp4 \u2013").count() == 1
        assert legend.locator("li", has_text="bandwidth 61\xa0%").count() == 1
        assert "3 requests" in legend.text_content()
        assert visit.page.locator("#live-lines .line.d1").count() == 1
        visit.page.locator("#live-button").click()
        assert visit.page.locator("#live").is_hidden()
        assert visit.complaints == []


# --- Accessibility ----------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_no_violation(
    browser: Any, served: Served, scheme: str, size: tuple[int, int]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe").Axe()
    with visiting(browser, served.url, size, scheme) as visit:
        page = visit.page

        def check(state: str) -> None:
            found = axe.run(page).response["violations"]
            assert [(each["id"], each["nodes"][0]["html"]) for each in found] == [], state

        page.locator("#welcome").wait_for()
        check("start")
        answer(visit, stream_of([MARKDOWN, "end"], [1, 2], [0, 0.5]), stream_of([MARKDOWN, "end"]))
        page.locator("#live-button").click()
        page.locator("#live-legend li", has_text="bandwidth").wait_for()
        visit.send("Hello")
        page.locator("#settings-button").click()
        page.locator("#files").set_input_files(NOTES)
        page.locator("#attached li").wait_for()
        check("an answer, settings, an attached file and the chart")
        page.locator("#settings-button").click()
        page.locator(".edit").click()
        check("an editor")
        page.locator(".editor textarea").fill("Hello again")
        page.keyboard.press("Enter")
        page.locator('.run[aria-busy="false"]').wait_for()
        page.get_by_label("Earlier version").hover()
        check("two versions of a message")
        page.locator("#tokens-button").click()
        check("the other view")
        page.locator("#chats-button").click()
        check("chats")
        page.locator("#chats-close").click()
        page.locator(".race").click()
        page.locator("#race").wait_for()
        page.locator("#race-winder").fill(page.locator("#race-winder").get_attribute("max"))
        check("the race")
        for selector in ("html", "#race"):
            sizes = "(e) => [e.scrollWidth, e.clientWidth]"
            [whole, seen] = page.locator(selector).evaluate(sizes)
            assert whole <= seen, selector
