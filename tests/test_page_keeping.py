"""No chat of the page is lost: reloads, several tabs, full storage, cut-off answers."""

from typing import Any

import pytest

from support.browser import Visit, visiting
from support.fixtures import a_server
from support.page_answers import CHATS, HeldChat, answer, stream_of
from support.served import Served

STORED = """() => import("/page/store.js").then(({ chats }) => chats().map(({ turns }) =>
  turns.map(({ asked, runs }) => [asked, runs[0].answer, runs[0].ending])))"""
FILL = """() => {
  for (let size = 1 << 20, at = 0; size > 0; size >>= 1) {
    try {
      for (;; at += 1) localStorage.setItem(`other ${at}`, "x".repeat(size));
    } catch {}
  }
}"""
FORBID = """for (const name of ["localStorage", "sessionStorage"]) {
  Object.defineProperty(window, name, { get() { throw new DOMException("", "SecurityError"); } });
}"""

pytestmark = pytest.mark.usefixtures("browser")  # skips before a server starts
served = a_server("chat_model", "--draft", "fp4:k=3", "--draft", "ngram")


def stored(visit: Visit) -> list[list[list[str]]]:
    chats: list[list[list[str]]] = visit.page.evaluate(STORED)
    return chats


def focused(visit: Visit) -> str:
    return str(visit.page.evaluate("document.activeElement.id"))


def test_a_reload_in_the_middle_of_an_answer_keeps_what_has_arrived(
    browser: Any, served: Served
) -> None:
    with visiting(browser, served.url) as visit:
        held = HeldChat(visit, "Hello")
        held.send(stream_of(["one", " two"]).split("data: [DONE]")[0])
        visit.page.locator(".prose", has_text="one two").wait_for()
        visit.page.reload()
        visit.page.locator(".prose", has_text="one two").wait_for()
        asked = answer(visit, stream_of(["three"]))
        visit.send("More")
        contents = [message["content"] for message in asked[0]["messages"]]
        assert contents == ["Hello", "one two", "More"]
        assert visit.complaints == []


def test_a_reload_before_an_answer_keeps_the_question(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        HeldChat(visit, "Hello")
        visit.page.locator(".turn").wait_for()
        visit.page.reload()
        visit.page.locator(".asked p", has_text="Hello").wait_for()
        answer(visit, stream_of(["one"]))
        visit.page.locator(".regenerate").click()
        visit.page.locator(".prose", has_text="one").wait_for()
        assert visit.complaints == []


def test_a_reload_before_a_new_answer_keeps_the_earlier_one(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        answer(visit, stream_of(["one"]))
        visit.send("Hello")
        visit.page.unroute(CHATS)
        visit.page.route(CHATS, lambda route: None)
        visit.page.locator(".regenerate").click()
        visit.page.locator("#stop").wait_for()
        visit.page.reload()
        visit.page.locator(".prose", has_text="one").wait_for()
        assert stored(visit) == [[["Hello", "one", "stop"]]]


def test_an_answer_that_is_cut_off_stays(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        cut = stream_of(["one", " two", " three"]).split("\n\n")[:2]
        asked = answer(visit, "\n\n".join([*cut, ""]), stream_of(["four"]))
        visit.send("Hello")
        problem = visit.page.locator(".run .problem")
        assert problem.text_content() == "The connection ended before the answer did."
        assert visit.page.locator("#prompt").input_value() == ""
        visit.page.reload()
        visit.page.locator(".prose", has_text="one two").wait_for()
        visit.send("Go on")
        contents = [message["content"] for message in asked[1]["messages"]]
        assert contents == ["Hello", "one two", "Go on"]


def test_two_tabs_that_go_on_with_one_chat_keep_both(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        answer(visit, stream_of(["yes"]))
        visit.send("Both")
        with visit.page.expect_popup() as opened:  # has a copy of the tab's sessionStorage
            visit.page.evaluate("url => { window.open(url); }", served.url)
        first, second = visit.page, opened.value
        second.locator(".asked p", has_text="Both").wait_for()
        visit.send("First tab")
        visit.page = second
        answer(visit, stream_of(["yes"]))
        visit.send("Second tab")
        visit.send("Again")
        visit.page = first
        asked = [[turn[0] for turn in chat] for chat in stored(visit)]
        assert asked == [["Both", "Second tab", "Again"], ["Both", "First tab"]]


def test_the_open_chat_goes_on_if_it_is_chosen_in_the_list(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        answer(visit, stream_of(["yes"]))
        visit.send("One")
        visit.page.locator("#chats-button").click()
        visit.page.locator("#chat-list li > :first-child").click()
        visit.send("Two")
        assert [turn[0] for turn in stored(visit)[0]] == ["One", "Two"]


def test_a_full_storage_keeps_earlier_chats_and_says_so(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        answer(visit, stream_of(["yes"]))
        for text in ("One", "Two"):
            visit.send(text)
            visit.page.locator("#new").click()
        visit.page.evaluate(FILL)
        visit.send("x" * 30_000)
        problem = visit.page.locator("#problem")
        assert "no space left" in problem.text_content()
        assert [chat[0][0] for chat in stored(visit)] == ["Two", "One"]
        visit.page.locator("#tokens-button").click()  # a choice that cannot be stored either
        visit.page.evaluate("localStorage.removeItem('other 0')")
        visit.send("More")
        assert problem.is_hidden()
        assert len(stored(visit)) == 3
        assert visit.complaints == []


def test_a_browser_that_forbids_storage_has_a_chat(browser: Any, served: Served) -> None:
    with visiting(browser, "about:blank") as visit:
        visit.context.add_init_script(FORBID)
        visit.page.goto(served.url)
        asked = answer(visit, stream_of(["yes"]))
        visit.page.locator("#welcome").wait_for()
        visit.page.locator("#scheme").select_option("dark")
        visit.send("One")
        visit.send("Two")
        assert len(asked[1]["messages"]) == 3
        visit.page.locator("#chats-button").click()
        assert visit.page.locator("#chat-list li").count() == 1
        assert visit.complaints == []


# --- What else stays as it is -----------------------------------------------------------------


def test_the_focus_moves_to_the_prompt_when_an_answer_begins(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        answer(visit, stream_of(["yes"]))
        visit.send("One")
        visit.page.locator(".regenerate").focus()
        visit.page.keyboard.press("Enter")
        visit.page.locator('[aria-busy="false"]').wait_for()
        assert focused(visit) == "prompt"
        visit.page.locator(".edit").focus()
        visit.page.keyboard.press("Enter")
        visit.page.keyboard.type("!")
        visit.page.keyboard.press("Enter")
        visit.page.locator(".asked p", has_text="One!").wait_for()
        assert focused(visit) == "prompt"


def test_a_refusal_is_gone_with_the_next_answer(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        answer(visit, stream_of(["one"]))
        visit.send("Hello")
        visit.page.unroute(CHATS)
        refuse = {"status": 400, "body": '{"error": {"message": "too busy"}}'}
        visit.page.route(CHATS, lambda route: route.fulfill(**refuse))
        visit.page.locator(".regenerate").click()
        visit.page.locator(".problem", has_text="too busy").wait_for()
        visit.page.unroute(CHATS)
        answer(visit, stream_of(["two"]))
        visit.page.locator(".regenerate").click()
        visit.page.locator(".prose", has_text="two").wait_for()
        assert visit.page.locator(".problem:visible").count() == 0


def test_a_race_says_why_there_is_none(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        answer(visit, stream_of(["one"]), stream_of(["one", " two"]))
        visit.send("Hello")
        visit.page.locator(".race").click()
        assert visit.page.locator(".race").text_content() == "Too short for a race"
        visit.page.locator(".regenerate").click()
        visit.page.locator(".prose", has_text="one two").wait_for()
        visit.page.unroute(CHATS)
        refuse = {"status": 400, "body": '{"error": {"message": "too busy"}}'}
        visit.page.route(CHATS, lambda route: route.fulfill(**refuse))
        visit.page.locator(".race").click()
        visit.page.locator(".run .problem", has_text="too busy").wait_for()
        assert visit.page.locator(".verdict").is_hidden()


def test_enter_that_ends_a_composed_word_sends_nothing(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        asked = answer(visit, stream_of(["yes"]))
        visit.page.locator("#welcome").wait_for()
        visit.page.locator("#prompt").fill("x")
        visit.page.evaluate("""() => document.getElementById("prompt").dispatchEvent(
          new KeyboardEvent("keydown", { key: "Enter", keyCode: 229, bubbles: true }))""")
        assert visit.page.locator(".turn").count() == len(asked) == 0


def test_a_file_dropped_beside_the_composer_does_not_replace_the_page(
    browser: Any, served: Served
) -> None:
    with visiting(browser, served.url) as visit:
        visit.page.locator("#welcome").wait_for()
        prevented = visit.page.evaluate("""() => {
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File(["text"], "a.txt"));
          const drop = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
          document.querySelector("header").dispatchEvent(drop);
          return drop.defaultPrevented;
        }""")
        assert prevented
        assert visit.page.locator("#attached li").text_content().startswith("a.txt")
