"""The page in Chromium: what it shows and announces, and that it contacts no other host."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.browser import DESKTOP, PHONE, visiting
from support.fixtures import a_model, a_server
from support.random_models import Shape
from support.served import Served, serving

KEY = "a-key"
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>&lt;b>\u202e"
CONTRASTS = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const shown = [...document.querySelectorAll("body *")].filter((element) =>
    [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
    && element.checkVisibility({ visibilityProperty: true }) && !element.disabled
    && !element.closest(".skip, .unseen"));
  return shown.map((element) => {
    const [a, b] = [channels(getComputedStyle(element).color), behind(element)].map(light);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    return [`${element.tagName}.${element.className}`, ratio];
  });
}"""


pytestmark = pytest.mark.usefixtures("browser")  # skips before a server starts
model = a_model(Shape(is_peaked=True, context=8192))
endless = a_model(Shape(is_peaked=True, context=1 << 16))  # no answer ends by itself
served = a_server("model", "--draft", "fp4:k=3", "--draft", "ngram")  # completes texts
chat = a_server("chat_model", "--draft", "fp4:k=3", key=KEY)


def events_of(*choices: dict[str, Any]) -> str:
    events = [json.dumps({"choices": [choice]}) for choice in choices]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])


def choice_of(text: str, token: int) -> dict[str, Any]:
    origin = {"text": text, "depth": 1, "level": "fp4", "probability": 0.5}
    progress = {"seconds": 1.0, "is_shared": False, "levels": []}
    return {
        "index": 0,
        "text": text,
        "finish_reason": "stop",
        "token_ids": [token],
        "origins": [origin],
        "progress": progress,
    }


def test_a_completion_is_shown_in_coloured_tokens_and_equals_the_plain_one(
    browser: Any, served: Served
) -> None:
    asked = {"prompt": "one two", "max_tokens": 80, "temperature": 0.6, "seed": 5}
    expected = served.ask("POST", "/v1/completions", asked).content["choices"][0]["text"]
    with visiting(browser, served.url) as visit:
        page = visit.page
        visit.set(max_tokens=80, temperature=0.6, seed=5)
        page.locator("#compare").check()
        visit.send("one two", runs=2)
        drafted, plain = page.locator(".run .text").all()
        assert drafted.text_content() == plain.text_content() == "one two" + expected
        assert drafted.locator(".token.d1").count() > 0
        assert plain.locator(".token:not(.d0)").count() == 0
        assert "Equal: 80 tokens" in page.locator(".verdict").text_content()
        figures = page.locator(".run .figures").first
        assert "tokens/s" in figures.text_content()
        figures.get_by_text("% of bandwidth").wait_for()
        assert "of drafts" in page.locator(".run .levels").first.text_content()
        drafted.locator(".token.d1 .ink:visible").first.hover()  # some marks have no width
        tip = page.locator("#tip").text_content()
        assert "proposed by fp4" in tip
        assert "confidence" in tip
        assert visit.hosts == {f"127.0.0.1:{served.port}"}
        assert visit.complaints == []


def test_a_difference_is_shown_with_its_token_number(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:

        def answer(route: Any) -> None:
            token = 8 if "draft" in route.request.post_data_json else 7
            body = events_of(choice_of("a", 5), choice_of("b", token))
            route.fulfill(body=body, content_type="text/event-stream")

        visit.page.route("**/v1/completions", answer)
        visit.page.locator("#compare").check()
        visit.send("x", runs=2)
        verdict = visit.page.locator(".verdict")
        assert "Different from token 2 on: 7 and 8" in verdict.text_content()
        assert "equal" not in verdict.get_attribute("class").split()


def test_markup_in_answers_is_shown_as_text(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        body = events_of(choice_of(HOSTILE, 1))
        visit.page.route(
            "**/v1/completions",
            lambda route: route.fulfill(body=body, content_type="text/event-stream"),
        )
        visit.send(HOSTILE)
        assert visit.page.locator(".run .text").text_content() == HOSTILE * 2
        assert visit.page.locator("main img, main script, main b").count() == 0
        assert visit.complaints == []


def test_the_page_can_be_used_with_the_keyboard_alone(browser: Any, endless: Path) -> None:
    with serving(str(endless), "--draft", "none") as served, visiting(browser, served.url) as visit:
        page = visit.page
        page.locator("#prompt:focus").wait_for()  # by itself
        page.keyboard.type("one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        assert page.locator("#prompt").input_value() == "one\ntwo"
        visit.set(max_tokens=60_000, temperature=1.5)
        page.locator("#prompt").focus()
        page.keyboard.press("Enter")
        page.locator(".token").first.wait_for(state="attached")
        page.keyboard.press("Escape")
        page.locator('.run[aria-busy="false"]').wait_for()
        assert ", stopped" in page.locator(".figures").text_content()
        assert page.locator("#send").is_visible()
        assert page.evaluate("document.activeElement.id") == "prompt"

        page.locator(".run .text").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        inspected = page.locator(".token.inspected").text_content()
        assert page.locator(".token").nth(1).text_content() == inspected
        assert "confidence" in page.locator("#announcement").text_content()
        assert visit.complaints == []


def test_screen_readers_hear_the_finished_answer_once(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        visit.set(max_tokens=30, temperature=0)
        visit.send("one two")
        answer = "".join(visit.page.locator(".token").all_text_contents())
        assert visit.page.locator("#announcement").text_content() == answer
        live = visit.page.locator("[aria-live], [role=log], [role=status]")
        assert [each.get_attribute("id") for each in live.all() if each.is_visible()] == [
            "announcement"
        ]


def test_an_error_is_shown_and_the_prompt_is_kept(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        long = "one two three " * 3000
        visit.send(long)
        problem = visit.page.locator(".problem").text_content()
        assert "the context has 8192; shorten the prompt" in problem
        assert visit.page.locator("#prompt").input_value() == long


def test_a_long_prompt_gets_as_many_tokens_as_fit(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        visit.set(temperature=0)
        visit.send("a" * 8182)
        assert visit.page.locator(".problem").is_hidden()
        assert "10 tokens, cut off" in visit.page.locator(".figures").text_content()
        visit.send("a" * 8192)
        assert "shorten the prompt" in visit.page.locator(".problem").last.text_content()


def test_a_wrong_setting_is_shown_even_if_settings_were_closed(
    browser: Any, served: Served
) -> None:
    with visiting(browser, served.url) as visit:
        visit.set(temperature=-1)
        visit.page.locator("#prompt").fill("one")
        visit.page.keyboard.press("Enter")
        visit.page.locator("#temperature").wait_for()
        assert visit.page.evaluate("document.activeElement.id") == "temperature"
        assert visit.page.locator(".turn").count() == 0


def test_a_lost_connection_is_explained(browser: Any, endless: Path) -> None:
    with serving(str(endless), "--draft", "none") as served, visiting(browser, served.url) as visit:
        visit.set(max_tokens=60_000, temperature=1.5)
        visit.page.locator("#prompt").fill("one")
        visit.page.keyboard.press("Enter")
        visit.page.locator(".token").first.wait_for(state="attached")
        served.process.kill()
        visit.page.locator('.run[aria-busy="false"]').wait_for()
        ended = visit.page.locator(".problem").text_content()
        assert ended == "The connection ended before the answer did."
        visit.send("two")
        again = visit.page.locator(".problem").last.text_content()
        assert again == "The server cannot be reached. Is it still running?"


def test_a_chat_asks_for_the_key_and_sends_its_history(browser: Any, chat: Served) -> None:
    with visiting(browser, chat.url) as visit:
        page = visit.page
        sent = []
        page.on("request", lambda request: sent.append(request))
        page.locator("#key").fill("wrong")
        page.keyboard.press("Enter")
        page.locator("#key-problem", has_text="does not accept").wait_for()
        page.locator("#key").fill(KEY)
        page.keyboard.press("Enter")
        page.locator("#welcome").wait_for()
        visit.set(max_tokens=12, temperature=0)
        visit.send("Hello")
        visit.send("And then?")
        bodies = [r.post_data_json for r in sent if r.url.endswith("/v1/chat/completions")]
        answer = "".join(page.locator(".turn").first.locator(".token").all_text_contents())
        assert bodies[1]["messages"] == [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "And then?"},
        ]
        assert page.locator(".asked p").all_text_contents() == ["Hello", "And then?"]
        assert KEY not in page.evaluate("JSON.stringify({ ...localStorage })")
        assert not any(KEY in request.url for request in sent)
        page.locator("#new").click()
        assert page.locator(".turn").count() == 0
        visit.send("Hello")
        bodies = [r.post_data_json for r in sent if r.url.endswith("/v1/chat/completions")]
        assert len(bodies[-1]["messages"]) == 1
        assert page.locator(".token").count() > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_text_has_contrast_and_fits_in_both_colour_schemes_and_widths(
    browser: Any, served: Served, scheme: str, size: tuple[int, int]
) -> None:
    with visiting(browser, served.url, size, scheme) as visit:
        page = visit.page
        visit.set(max_tokens=60, temperature=0.5, seed=1)
        page.locator("#compare").check()
        visit.send("one two", runs=2)
        page.locator(".token .ink").first.hover()
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 10
        assert [each for each in contrasts if each[1] < 4.5] == []
        red = int(page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"))
        assert (red > 128) == (scheme == "light")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= page.evaluate("document.documentElement.clientWidth")
        lines = page.evaluate(
            "[...document.querySelectorAll('.levels .name:not(.d0)')]"
            ".map((e) => getComputedStyle(e).textDecorationStyle)"
        )
        assert len(set(lines)) == len({*page.locator(".levels .name:not(.d0)").all_text_contents()})
