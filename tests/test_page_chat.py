"""The page of a chat model: Markdown, stored chats, colours."""

from typing import Any

import numpy as np
import pytest

from support.browser import DESKTOP, visiting
from support.fixtures import a_server
from support.page_answers import CHATS, MARKDOWN, answer, stream_of
from support.served import Served

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


pytestmark = pytest.mark.usefixtures("browser")  # skips before a server starts
served = a_server("chat_model", "--draft", "fp4:k=3", "--draft", "ngram")


# --- Markdown ---------------------------------------------------------------------------------


def test_markdown_is_shown_as_elements_next_to_its_tokens(browser: Any, served: Served) -> None:
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


def test_any_markdown_gives_known_elements_and_the_same_ones_when_drawn_in_steps(
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


def test_regenerate_replaces_the_answer_with_one_of_another_seed(
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


# --- What the browser stores ------------------------------------------------------------------


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
        assert page.locator("#forget").text_content() == "Delete 1 chat for good"
        assert page.locator("#chat-list li").count() == 1
        page.locator("#forget").click()
        assert page.locator("#chat-list li").count() == 0
        page.reload()
        page.locator("#welcome").wait_for()
        assert visit.complaints == []


def test_the_oldest_chats_are_deleted_if_there_are_too_many(browser: Any, served: Served) -> None:
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
          return { many, had, left, huge: keep(huge), after: chats().length };
        }""")
        assert kept["many"] == [str(i) for i in range(54, 4, -1)]
        assert kept["had"] == [True, True]
        assert kept["left"] == ["y"]
        assert (kept["huge"], kept["after"]) == (False, 1)  # what was there is there again


def test_colours_follow_the_choice_or_else_the_system(browser: Any, served: Served) -> None:
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


def test_an_answer_stays_if_another_one_is_stopped_before_it_begins(
    browser: Any, served: Served
) -> None:
    with visiting(browser, served.url) as visit:
        answer(visit, stream_of(["first"]))
        visit.send("Hello")
        visit.page.unroute(CHATS)
        visit.page.route(CHATS, lambda route: None)  # never answered
        visit.page.locator(".regenerate:visible").click()
        visit.page.locator("#stop:visible").click()
        visit.page.locator(".problem", has_text="Stopped before").wait_for()
        assert visit.page.locator(".prose").all_inner_texts() == ["first"]
        visit.page.reload()
        visit.page.locator(".prose", has_text="first").wait_for()


def test_a_refused_message_has_no_tools(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        refuse = {"status": 400, "body": '{"error": {"message": "too long"}}'}
        visit.page.route(CHATS, lambda route: route.fulfill(**refuse))
        visit.send("Hello")
        visit.page.locator(".problem", has_text="too long").wait_for()
        assert visit.page.locator(".tools:visible, .versions:visible").count() == 0


def test_a_deleted_chat_that_is_open_is_closed_and_not_stored_again(
    browser: Any, served: Served
) -> None:
    with visiting(browser, served.url) as visit:
        answer(visit, stream_of(["first"]))
        visit.send("Hello")
        visit.page.locator("#chats-button").click()
        visit.page.locator("#forget").dblclick()
        visit.page.locator("#chats-close").click()
        visit.page.locator("#welcome").wait_for()
        visit.send("More")
        visit.page.locator("#chats-button").click()
        assert visit.page.locator("#chat-list li").count() == 1
        assert visit.page.locator(".turn").count() == 1
