"""The page's list of models: choosing one loads it, and the chat goes on with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import DESKTOP, PHONE, visiting
from support.fixtures import a_server
from support.random_models import Shape, make_model
from support.served import Served, add_template, serving

pytestmark = pytest.mark.usefixtures("browser")  # skips before a server starts

NAMES = ("first", "second", "text")  # the last one has no chat template
SHAPE = Shape(is_peaked=True, context=1024)
single = a_server("chat_model", "--draft", "fp4:k=3")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    paths = [make_model(folder / name, SHAPE, seed + i) for i, name in enumerate(NAMES)]
    for path in paths[:2]:
        add_template(path)
    with serving(*map(str, paths), "--draft", "fp4:k=3") as served:
        yield served
        assert served.process.poll() is None


def pick(page: Any, name: str) -> None:
    page.locator("#picker").select_option(name)
    page.wait_for_function("(name) => document.title.startsWith(name)", arg=name)


def test_a_single_model_is_named_without_a_list(browser: Any, single: Served) -> None:
    with visiting(browser, single.url) as visit:
        visit.page.locator("#welcome").wait_for()
        assert visit.page.locator("#picker").is_hidden()
        assert visit.page.locator("#model").text_content() == "small"
        assert visit.page.locator("#model").is_visible()


def test_the_chosen_model_is_loaded_and_answers_the_next_message(
    browser: Any, served: Served
) -> None:
    with visiting(browser, served.url) as visit:
        page, asked = visit.page, []
        page.on("request", lambda request: asked.append(request))
        page.locator("#welcome").wait_for()
        assert page.locator("#picker option").all_text_contents() == list(NAMES)
        assert page.locator("#picker").input_value() == "first"
        assert page.locator("#model").is_hidden()
        visit.set(max_tokens=12, temperature=0)
        visit.send("Hello")
        pick(page, "second")
        visit.send("And then?")
        bodies = [r.post_data_json for r in asked if r.url.endswith("/v1/chat/completions")]
        assert [body["model"] for body in bodies] == ["first", "second"]
        assert [each["role"] for each in bodies[1]["messages"]] == ["user", "assistant", "user"]
        texts = page.locator(".run .text").all_text_contents()
        for body, text in zip(bodies, texts, strict=True):
            plain = {name: body[name] for name in ("model", "messages", "max_tokens", "seed")}
            reply = served.ask("POST", "/v1/chat/completions", plain | {"temperature": 0})
            assert text == reply.content["choices"][0]["message"]["content"]
        page.locator(".race").first.click()  # of the first model's answer
        page.locator("#race").wait_for()
        raced = asked[-1].post_data_json
        assert (raced["model"], raced["draft"]) == ("first", "none")
        assert visit.complaints == []


def test_the_choice_is_kept_and_a_model_without_a_template_gets_a_new_chat(
    browser: Any, served: Served
) -> None:
    with visiting(browser, served.url) as visit:
        page = visit.page
        page.locator("#welcome").wait_for()
        visit.set(max_tokens=6)
        visit.send("Hello")
        pick(page, "text")
        assert page.locator(".turn").count() == 0
        visit.set(max_tokens=6)
        visit.send("one two")
        assert page.locator(".turn.completion .text").text_content().startswith("one two")
        page.reload()
        page.wait_for_function("() => document.title.startsWith('text')")
        assert page.locator("#picker").input_value() == "text"
        assert visit.complaints == []


def test_a_model_that_cannot_be_loaded_is_explained_and_the_last_one_goes_on(
    browser: Any, served: Served
) -> None:
    with visiting(browser, served.url) as visit:
        page = visit.page
        page.locator("#welcome").wait_for()
        problem = {"error": {"message": "second does not fit"}}
        page.route("**/page/facts?model=second", lambda r: r.fulfill(status=503, json=problem))
        page.locator("#picker").select_option("second")
        page.locator("#problem", has_text="second does not fit").wait_for()
        assert page.locator("#picker").input_value() == "first"
        visit.set(max_tokens=4)
        visit.send("Hello")
        assert page.locator(".run .problem").is_hidden()
        pick(page, "text")
        assert page.locator("#problem").is_hidden()


def test_nothing_can_be_sent_while_a_model_loads_and_none_chosen_while_one_answers(
    browser: Any, served: Served
) -> None:
    with visiting(browser, served.url) as visit:
        page, held = visit.page, []
        page.locator("#welcome").wait_for()
        page.route("**/page/facts?model=second", lambda route: held.append(route))
        page.locator("#prompt").fill("Hello")
        page.locator("#picker").select_option("second")
        page.locator("#send:disabled").wait_for()
        assert page.locator("#prompt").get_attribute("placeholder") == "Loading second…"
        page.keyboard.press("Enter")
        assert page.locator(".turn").count() == 0
        held[0].continue_()
        page.locator("#send:enabled").wait_for()
        page.route("**/v1/chat/completions", lambda route: held.append(route))
        page.locator("#send").click()
        page.locator("#picker:disabled").wait_for()
        page.locator("#stop").click()
        page.locator("#picker:enabled").wait_for()


def test_the_chart_shows_only_the_chosen_model(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        page, looks = visit.page, 0

        def metrics(route: Any) -> None:
            nonlocal looks
            looks += 1
            counts = {"first": 100, "second": 5000}
            lines = [
                f'vllm:generation_tokens_total{{model_name="{name}"}} {count * looks}'
                for name, count in counts.items()
            ]
            route.fulfill(body="\n".join(lines), content_type="text/plain")

        page.locator("#welcome").wait_for()
        page.route("**/metrics", metrics)
        page.locator("#live-button").click()
        legend = page.locator("#live-legend li").last
        legend.get_by_text("tokens/s").wait_for()
        assert float(legend.text_content().split()[0]) < 1000
        pick(page, "second")
        rate = "parseFloat(document.querySelector('#live-legend li:last-child').textContent)"
        page.wait_for_function(f"() => {rate} > 1000")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_with_a_list(
    browser: Any, served: Served, size: tuple[int, int], scheme: str, tmp_path: Path
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe").Axe()
    with visiting(browser, served.url, size, scheme) as visit:
        page = visit.page
        page.locator("#picker").wait_for()
        page.locator("#welcome").wait_for()
        assert axe.run(page).response["violations"] == []
        box = page.locator("header .bar").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size[0]
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(overflow) <= 0
