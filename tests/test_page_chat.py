"""The page of a model that chats: Markdown, kept chats, the race, the chart, accessibility."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.browser import DESKTOP, PHONE, Visit, chromium, visiting
from support.fixtures import a_server
from support.served import Served

CHATS = "**/v1/chat/completions"
CHAIN = ("bf16", "fp4", "ngram")
MARKDOWN = """# Reversing

A *short* **answer** with `code` and a [link](https://example.com/a?b=c&d=e).

1. first
2. second
   - nested

```python
def area(r):
    return 3 * r
```

| a | b |
|---|--:|
| 1 | 2 |
"""
HOSTILE = """<img src=x onerror=alert(1)><script>alert(2)</script>

![picture](http://elsewhere.example/a.png) [x](javascript:alert(3)) [y](data:text/html,z)

<http://elsewhere.example/b> <a href="http://elsewhere.example">z</a> &lt;script>
"""
FRAGMENTS = (
    *("# ", "## a\n", "- ", "  - b\n", "1. ", "> ", "```", "```py\n", "\n", "\n\n", "    ", "`"),
    *("*a*", "**", "_", "~~x~~", "|a|b|\n", "|-|-|\n", "---\n", "===\n", "<b>", "<script>", "&lt;"),
    *(
        "[a](javascript:x)",
        "[a](/b)",
        "[a]",
        "[a]: /c\n",
        "](",
        "![i](http://e.example)",
        "http://e.example/a",
    ),
    *("word ", "setup.py ", "<!--", "-->", "\\", "é", "\u202e", "\r\n", "\t", "$x$", "a\n"),
)
DRAW = """async (texts) => {
  const { Prose } = await import("/page/markdown.js");
  const box = document.createElement("div");
  const prose = new Prose(box);
  for (const text of texts) prose.draw(text);
  const hrefs = [...box.querySelectorAll("a")].map((link) => link.protocol);
  const tags = [...box.querySelectorAll("*")].map((each) => each.localName);
  return { markup: box.innerHTML, hrefs, tags };
}"""
TAGS = {
    *("a", "blockquote", "br", "button", "code", "div", "em", "figcaption", "figure", "h4", "h5"),
    *("h6", "hr", "li", "ol", "p", "pre", "s", "span", "strong", "table", "tbody", "td", "th"),
    *("thead", "tr", "ul"),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


pytestmark = pytest.mark.usefixtures("browser")  # skips before a server starts
served = a_server("chat_model", "--draft", "fp4:k=3", "--draft", "ngram")


def stream_of(
    texts: list[str], depths: list[int] | None = None, seconds: list[float] | None = None
) -> str:
    """A streamed answer with a token and an event for each text."""
    events = []
    for i, text in enumerate(texts):
        depth = (depths or [0] * len(texts))[i]
        origin = {"text": text, "depth": depth, "level": CHAIN[depth], "probability": 0.5}
        at = (seconds or [0.01 * i for i in range(len(texts))])[i]
        choice = {
            "index": 0,
            "delta": {"content": text},
            "finish_reason": "stop" if i == len(texts) - 1 else None,
            "token_ids": [i],
            "origins": [origin],
            "progress": {"seconds": at, "is_shared": False, "levels": []},
        }
        events.append(f"data: {json.dumps({'choices': [choice]})}\n\n")
    return "".join([*events, "data: [DONE]\n\n"])


def answer(visit: Visit, *bodies: str) -> list[dict[str, Any]]:
    """Answers chats with these streams, the last one again and again; returns what they ask."""
    asked: list[dict[str, Any]] = []

    def fulfill(route: Any) -> None:
        asked.append(route.request.post_data_json)
        body = bodies[min(len(asked), len(bodies)) - 1]
        route.fulfill(body=body, content_type="text/event-stream")

    visit.page.route(CHATS, fulfill)
    return asked


# --- Markdown ---------------------------------------------------------------------------------


def test_markdown_is_shown_as_elements_beside_its_tokens(browser: Any, served: Served) -> None:
    with visiting(browser, served.url, (1400, 900)) as visit:
        answer(visit, stream_of([MARKDOWN[:40], MARKDOWN[40:]]))
        visit.send("Hello")
        prose = visit.page.locator(".prose")
        assert prose.locator("h4").text_content() == "Reversing"  # below the page's own headings
        assert prose.locator("strong").text_content() == "answer"
        assert prose.locator("ol > li > ul > li").text_content().strip() == "nested"
        assert prose.locator("pre").text_content() == "def area(r):\n    return 3 * r\n"
        assert prose.locator("td").all_text_contents() == ["1", "2"]
        link = prose.locator("a")
        assert link.get_attribute("href") == "https://example.com/a?b=c&d=e"
        assert "noopener" in link.get_attribute("rel").split()
        tokens = visit.page.locator(".run .text")
        assert tokens.text_content() == MARKDOWN
        [left, right] = [each.bounding_box() for each in (prose, tokens)]
        assert left["x"] + left["width"] < right["x"]
        visit.page.locator("#tokens-button").click()
        assert tokens.is_hidden()
        assert visit.complaints == []


def test_hostile_markdown_loads_and_runs_nothing(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        answer(visit, stream_of([HOSTILE]))
        visit.send(HOSTILE)
        prose = visit.page.locator(".prose")
        assert visit.page.locator("main :is(img, script, iframe, style)").count() == 0
        links = prose.locator("a").evaluate_all("(all) => all.map((each) => each.protocol)")
        assert set(links) == {"http:"}
        assert "<script>alert(2)</script>" in prose.text_content()
        assert "[x](javascript:alert(3))" in prose.text_content()
        assert visit.hosts == {f"127.0.0.1:{served.port}"}
        assert visit.complaints == []


def test_any_markdown_gives_known_elements_and_grows_as_if_drawn_at_once(
    browser: Any, served: Served, rng: np.random.Generator
) -> None:
    with visiting(browser, served.url) as visit:
        for _ in range(40):
            pieces = rng.choice(FRAGMENTS, size=int(rng.integers(1, 30))).tolist()
            texts = ["".join(pieces[: i + 1]) for i in range(len(pieces))]
            grown = visit.page.evaluate(DRAW, texts)
            assert grown == visit.page.evaluate(DRAW, texts[-1:]), texts[-1]
            assert set(grown["tags"]) <= TAGS, texts[-1]
            assert set(grown["hrefs"]) <= {"http:", "https:"}, texts[-1]
        assert visit.complaints == []


def test_spaces_around_a_token_are_outside_its_highlight(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        texts = ["one", " two", "\n  three \n", "   "]
        answer(visit, stream_of(texts, [1, 1, 2, 1]))
        visit.send("Hello")
        assert visit.page.locator(".token .ink").all_text_contents() == ["one", "two", "three"]
        assert visit.page.locator(".token").all_text_contents() == texts


# --- Tools ------------------------------------------------------------------------------------


def test_an_answer_is_copied_as_the_model_wrote_it(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
        answer(visit, stream_of([MARKDOWN]))
        visit.send("Hello")
        visit.page.locator(".tools .copy").click()
        visit.page.get_by_role("button", name="Copied").wait_for()
        assert visit.page.evaluate("navigator.clipboard.readText()") == MARKDOWN
        visit.page.get_by_role("button", name="Copy this code").click()
        visit.page.locator("figure", has_text="Copied").wait_for()
        code = visit.page.evaluate("navigator.clipboard.readText()")
        assert code == "def area(r):\n    return 3 * r\n"


def test_regenerate_asks_again_with_another_seed_and_replaces_the_answer(
    browser: Any, served: Served
) -> None:
    with visiting(browser, served.url) as visit:
        bodies = [stream_of([text]) for text in ("first", "second", "third", "fourth")]
        asked = answer(visit, *bodies)
        visit.send("Hello")
        visit.send("More")
        assert visit.page.locator(".regenerate:visible").count() == 1  # of the last answer
        visit.page.locator(".regenerate:visible").click()
        visit.page.locator('.turn:last-child [aria-busy="false"]', has_text="third").wait_for()
        assert visit.page.locator(".prose").all_inner_texts() == ["first", "third"]
        assert asked[2]["messages"] == asked[1]["messages"]
        assert asked[2]["seed"] != asked[1]["seed"]
        visit.send("And?")
        contents = [message["content"] for message in asked[3]["messages"]]
        assert contents == ["Hello", "first", "More", "third", "And?"]


def test_a_chat_keeps_its_system_prompt(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        asked = answer(visit, stream_of(["yes"]))
        visit.set(system="Be brief.")
        visit.send("Hello")
        visit.set(system="Be long.")  # for the next chat
        visit.send("More")
        system = {"role": "system", "content": "Be brief."}
        assert [body["messages"][0] for body in asked] == [system, system]
        visit.page.locator("#new").click()
        visit.set(system="")
        visit.send("Hello")
        assert asked[2]["messages"] == [{"role": "user", "content": "Hello"}]


# --- What the browser keeps -------------------------------------------------------------------


def test_chats_come_back_after_a_reload_and_can_be_deleted(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        page = visit.page
        asked = answer(visit, stream_of(["**one**", " two"], [1, 2]))
        visit.send("First chat")
        page.locator("#new").click()
        visit.send("Second chat")
        page.reload()
        page.locator(".asked p", has_text="Second chat").wait_for()
        assert page.locator(".prose strong").text_content() == "one"
        assert page.locator(".token.d2 .ink").text_content() == "two"
        page.locator("#chats-button").click()
        titles = page.locator("#chat-list li > :first-child")
        assert [each.split("chat")[0] for each in titles.all_text_contents()] == [
            "Second ",
            "First ",
        ]
        titles.nth(1).click()
        assert page.locator(".asked p").all_text_contents() == ["First chat"]
        visit.send("More")
        contents = [message["content"] for message in asked[-1]["messages"]]
        assert contents == ["First chat", "**one** two", "More"]
        page.locator("#chats-button").click()
        page.locator("#chat-list .remove").first.click()
        assert page.locator("#chat-list li").count() == 1
        page.locator("#forget").click()
        assert page.locator("#chat-list li").count() == 0
        page.reload()
        page.locator("#welcome").wait_for()
        assert visit.complaints == []


def test_the_oldest_chats_are_dropped_where_there_are_too_many(
    browser: Any, served: Served
) -> None:
    with visiting(browser, served.url) as visit:
        kept = visit.page.evaluate("""async () => {
          const { chats, keep, newChat } = await import("/page/store.js");
          const now = Date.now;
          let clock = 0;
          Date.now = () => (clock += 1);
          for (let i = 0; i < 55; i += 1) {
            keep({ ...newChat(), turns: [{ asked: String(i), runs: [] }] });
          }
          const many = chats().map((chat) => chat.turns[0].asked);
          const large = { ...newChat(), turns: [{ asked: "x".repeat(4_000_000), runs: [] }] };
          const larger = { ...newChat(), turns: [{ asked: "y".repeat(4_000_000), runs: [] }] };
          const huge = { ...newChat(), turns: [{ asked: "z".repeat(20_000_000), runs: [] }] };
          const had = [keep(large), keep(larger)];
          const left = chats().map((chat) => chat.turns[0].asked[0]);
          return { many, had, left, huge: keep(huge) };
        }""")
        assert kept["many"] == [str(i) for i in range(54, 4, -1)]
        assert kept["had"] == [True, True]
        assert kept["left"] == ["y"]
        assert kept["huge"] is False


def test_colours_follow_the_switch_else_the_system(browser: Any, served: Served) -> None:
    paper = "getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] > 128"
    for scheme in ("light", "dark"):
        with visiting(browser, served.url, DESKTOP, scheme) as visit:
            assert visit.page.evaluate(paper) == (scheme == "light")
            for chosen in ("dark", "light"):
                visit.page.locator("#scheme").select_option(chosen)
                assert visit.page.evaluate(paper) == (chosen == "light")
                visit.page.reload()
                assert visit.page.locator("#scheme").input_value() == chosen
                assert visit.page.evaluate(paper) == (chosen == "light")
            visit.page.locator("#scheme").select_option("auto")
            assert visit.page.evaluate(paper) == (scheme == "light")


# --- Race and chart ---------------------------------------------------------------------------


def test_a_race_shows_at_any_time_the_tokens_that_were_measured_by_then(
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
        assert visit.page.locator("#race-pace").input_value() == "16"  # slower, to be seen
        visit.page.locator("#race-pace").select_option("1")
        visit.page.locator("#race-verdict", has_text="2.0 times as fast").wait_for()
        visit.page.get_by_role("button", name="Again").wait_for()


def test_the_chart_shows_the_servers_own_counts(browser: Any, served: Served) -> None:
    looks = 0

    def metrics(route: Any) -> None:
        nonlocal looks
        looks += 1
        values = {
            'specqd:level_draft_tokens_total{level="bf16",model_name="a"}': 100 * looks,
            'specqd:level_accepted_tokens_total{level="bf16",model_name="a"}': 75 * looks,
            'specqd:level_draft_tokens_total{level="fp4",model_name="a"}': 7,
            'specqd:level_accepted_tokens_total{level="fp4",model_name="a"}': 7,
            'vllm:generation_tokens_total{model_name="a"}': 50 * looks,
            'vllm:num_requests_running{model_name="a"}': 3,
            'specqd:bandwidth_share{model_name="a"}': 0.61,
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
        check("an answer, settings and the chart")
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
