"""The page's messages: edited in branches, with files, sampled as set, and dropped when the context
is full."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.browser import PHONE, Visit, visiting
from support.fixtures import a_server
from support.page_answers import CHATS, answer, stream_of
from support.served import Served

pytestmark = pytest.mark.usefixtures("browser")  # skips before a server starts
served = a_server("chat_model", "--draft", "fp4:k=3", "--draft", "ngram")


def contents(body: dict[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"]]


def shown(visit: Visit) -> list[str]:
    """The messages and answers that the page shows."""
    texts = visit.page.locator(".asked > p, .prose").all_inner_texts()
    return [text.strip() for text in texts]


def edit(visit: Visit, turn: int, text: str) -> None:
    """Sends another wording of a message, and waits for its answer."""
    visit.page.locator(".turn").nth(turn).locator(".edit").click()
    visit.page.locator(".editor textarea").fill(text)
    visit.page.keyboard.press("Enter")
    visit.page.locator(".turn").nth(turn).locator('.run[aria-busy="false"]').wait_for()


# --- Branches -------------------------------------------------------------------------------------


def test_an_edited_message_begins_a_branch_and_the_earlier_one_stays(
    browser: Any, served: Served
) -> None:
    with visiting(browser, served.url) as visit:
        page = visit.page
        asked = answer(visit, *(stream_of([f"answer {i}"]) for i in range(6)))
        visit.send("one")
        visit.send("two")
        edit(visit, 0, "ONE")
        assert contents(asked[-1]) == ["ONE"]
        assert shown(visit) == ["ONE", "answer 2"]
        visit.send("three")
        assert contents(asked[-1]) == ["ONE", "answer 2", "three"]
        edit(visit, 1, "THREE")
        whole = ["ONE", "answer 2", "THREE", "answer 4"]
        assert shown(visit) == whole
        assert page.locator(".versions span").all_inner_texts() == ["2 of 2", "2 of 2"]
        page.locator(".turn").first.get_by_label("Earlier version").click()
        assert shown(visit) == ["one", "answer 0", "two", "answer 1"]
        page.reload()
        page.locator(".asked p", has_text="two").wait_for()
        assert page.locator(".versions span").all_inner_texts() == ["1 of 2"]
        page.get_by_label("Later version").click()
        assert shown(visit) == whole
        assert page.evaluate("document.activeElement.ariaLabel") == "Earlier version"
        page.locator(".turn").nth(1).get_by_label("Earlier version").click()
        assert shown(visit) == ["ONE", "answer 2", "three", "answer 3"]
        visit.send("four")
        assert contents(asked[-1]) == ["ONE", "answer 2", "three", "answer 3", "four"]
        assert visit.complaints == []


def test_an_edit_can_be_given_up_with_the_keyboard(browser: Any, served: Served) -> None:
    with visiting(browser, served.url, PHONE) as visit:
        page = visit.page
        answer(visit, stream_of(["yes"]))
        visit.send("one")
        page.locator(".edit").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.value") == "one"
        page.keyboard.type(" more")
        page.keyboard.press("Escape")
        assert shown(visit) == ["one", "yes"]
        assert page.evaluate("document.activeElement.textContent") == "Edit"
        assert page.locator(".versions span").count() == 0


def test_an_edit_that_fails_leaves_the_chat_and_the_new_text(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        page = visit.page
        bodies = [stream_of([text]) for text in ("first", "second")]
        asked = answer(visit, *bodies)
        visit.send("one")
        visit.send("two")
        page.unroute(CHATS)
        page.route(CHATS, lambda route: route.abort())
        page.locator(".edit").first.click()
        page.locator(".editor textarea").fill("ONE")
        page.keyboard.press("Enter")
        page.locator(".editor .problem", has_text="cannot be reached").wait_for()
        assert page.locator(".editor textarea").input_value() == "ONE"
        page.locator(".cancel").click()
        assert shown(visit) == ["one", "first", "two", "second"]
        page.locator(".regenerate:visible").click()
        page.locator(".problem:visible", has_text="cannot be reached").wait_for()
        assert shown(visit) == ["one", "first", "two", "second"]
        page.unroute(CHATS)
        asked = answer(visit, stream_of(["third"]))
        visit.send("three")
        assert contents(asked[0]) == ["one", "first", "two", "second", "three"]


# --- Files ----------------------------------------------------------------------------------------


def test_a_text_file_is_a_part_of_the_message(browser: Any, served: Served, tmp_path: Path) -> None:
    notes, code = tmp_path / "notes.txt", tmp_path / "code.md"
    notes.write_text("First line\nGrüße")
    code.write_text("````\nx\n````\n")
    with visiting(browser, served.url) as visit:
        page = visit.page
        asked = answer(visit, stream_of(["yes"]))
        page.locator("#attach").click()
        page.locator("#files").set_input_files([notes, code])
        listed = [each.split("\n")[:2] for each in page.locator("#attached li").all_inner_texts()]
        assert listed == [["notes.txt", "16 characters"], ["code.md", "12 characters"]]
        visit.send("What is this?")
        expected = (
            "notes.txt:\n```\nFirst line\nGrüße\n```\n\n"
            "code.md:\n`````\n````\nx\n````\n`````\n\nWhat is this?"
        )
        assert contents(asked[0]) == [expected]
        assert page.locator("#attached").is_hidden()
        assert page.locator(".asked > p").inner_text() == "What is this?"
        assert page.locator(".asked .files li").count() == 2
        page.reload()
        page.locator(".asked .files li", has_text="notes.txt").wait_for()
        visit.send("And now?")
        assert contents(asked[1]) == [expected, "yes", "And now?"]
        edit(visit, 0, "What?")
        assert contents(asked[2]) == [expected.replace("What is this?", "What?")]
        assert visit.complaints == []


def test_files_can_be_removed_and_others_than_texts_are_refused(
    browser: Any, served: Served, tmp_path: Path
) -> None:
    files = {"a.txt": b"a", "b.txt": b"b", "c.png": b"\x89PNG\xff", "d.bin": b"d\0", "e.txt": b"e"}
    files["f.txt"] = b"f" * (1 << 20) + b"f"
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with visiting(browser, served.url) as visit:
        page = visit.page
        asked = answer(visit, stream_of(["yes"]))
        page.locator("#files").set_input_files([tmp_path / name for name in files])
        page.locator("#file-problem").wait_for()
        assert page.locator("#file-problem").inner_text() == (
            "c.png is not a text in UTF-8. d.bin is not a text in UTF-8. f.txt is larger than 1 MB."
        )
        page.get_by_label("Remove b.txt").click()
        page.locator("#files").set_input_files([tmp_path / "b.txt"])
        visit.send("Go")
        [content] = contents(asked[0])
        assert content.split("\n")[::5] == ["a.txt:", "e.txt:", "b.txt:", "Go"]
        assert page.locator("#file-problem").is_hidden()


# --- Settings -------------------------------------------------------------------------------------


def test_top_p_and_min_p_are_sent_if_set(browser: Any, served: Served) -> None:
    with visiting(browser, served.url) as visit:
        asked = answer(visit, stream_of(["yes"]))
        visit.send("one")
        assert not {"top_p", "min_p"} & set(asked[0])
        assert visit.page.locator("#top-p").get_attribute("placeholder") == "1"
        visit.set(top_p=0.9, min_p=0.05)
        visit.send("two")
        assert (asked[1]["top_p"], asked[1]["min_p"]) == (0.9, 0.05)


def test_a_full_context_drops_the_oldest_turns_if_that_is_chosen(
    browser: Any, served: Served
) -> None:
    """Each message and answer has 100 tokens here, and the context 1000."""
    with visiting(browser, served.url) as visit:
        page = visit.page
        asked = answer(visit, stream_of(["a"]))

        def count(route: Any) -> None:
            size = 100 * len(route.request.post_data_json["messages"])
            route.fulfill(body=json.dumps({"count": size, "max_model_len": 1000}))

        page.route("**/tokenize", count)
        page.route("**/page/facts*", limited)
        page.reload()
        page.locator("#welcome").wait_for()
        for i in range(5):
            visit.send(f"message {i}")
        assert page.locator(".dropped:visible").count() == 0
        assert len(asked[-1]["messages"]) == 9
        page.locator("#settings-button").click()
        page.locator("#on-full").select_option("shift")
        page.locator("#settings-button").click()
        visit.send("message 5")
        assert contents(asked[-1])[::2] == ["message 3", "message 4", "message 5"]
        said = "The context is full. Dropped the oldest 3 turns: “message 0” to “message 2”"
        assert page.locator(".dropped:visible").all_inner_texts() == [said]
        visit.send("message 6")
        assert contents(asked[-1])[::2] == [f"message {i}" for i in range(3, 7)]
        page.reload()
        page.locator(".dropped:visible").wait_for()
        assert page.locator(".dropped:visible").all_inner_texts() == [said]
        assert page.locator("#on-full").input_value() == "shift"
        assert page.locator(".turn").count() == 7, "the chat still shows them"


def limited(route: Any) -> None:
    """Answers with the facts about the model, with a context of 1000 tokens."""
    answered = route.fetch()
    facts = answered.json() | {"max_context": 1000}
    route.fulfill(body=json.dumps(facts), content_type="application/json")
