"""Makes the pictures of docs/serving.md, on an idle machine:

python tests/support/page_pictures.py docs MODEL   # a chat model
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from support.browser import PHONE, Visit, chromium, visiting
from support.served import serving

DESKTOP = (1280, 840)
PROMPT = "Write a Python function that adds up a list, with an example. Then explain it in a list."

NOTES = {
    "name": "notes.txt",
    "mimeType": "text/plain",
    "buffer": b"Ada Lovelace (1815-1852) was an English mathematician. She wrote the first "
    b"program, for Babbage's Analytical Engine, which was never built.\n",
}


def ask(visit: Visit, prompt: str, tokens: int) -> None:
    visit.set(temperature=0, max_tokens=tokens)
    visit.send(prompt)
    visit.page.get_by_text("% of bandwidth").first.wait_for()


def race(visit: Visit) -> None:
    """Shows the race halfway through."""
    visit.page.locator(".race").click()
    winder = visit.page.locator("#race-winder")
    winder.wait_for(timeout=60_000)
    winder.fill(str(0.5 * float(winder.get_attribute("max") or 0)))


def branch(visit: Visit) -> None:
    """Shows two versions of a message that has a file."""
    page = visit.page
    page.locator("#welcome").wait_for()
    page.locator("#files").set_input_files(NOTES)
    ask(visit, "Who is this text about? One sentence.", 60)
    page.locator(".edit").click()
    page.locator(".editor textarea").fill("What did Ada Lovelace write? One sentence.")
    page.keyboard.press("Enter")
    page.get_by_text("2 of 2").wait_for()
    page.locator('.run[aria-busy="false"]').wait_for(timeout=60_000)
    page.locator(".asked").hover()


def main(folder: Path, model: str) -> None:
    with serving(model) as served, chromium() as browser:
        with visiting(browser, served.url, DESKTOP) as visit:
            visit.page.locator("#live-button").click()
            visit.page.locator("#live-legend li").first.wait_for()
            for _ in range(3):
                ask(visit, PROMPT, 200)
                visit.page.locator("#new").click()
            ask(visit, PROMPT, 200)
            visit.page.locator("#live-legend", has_text="tokens/s").wait_for()
            visit.page.evaluate("document.activeElement.blur()")
            visit.page.screenshot(path=folder / "page-light.png")
        with visiting(browser, served.url, DESKTOP, "dark") as visit:
            ask(visit, PROMPT, 200)
            race(visit)
            visit.page.screenshot(path=folder / "page-race.png")
        with visiting(browser, served.url, (1280, 580)) as visit:
            branch(visit)
            visit.page.screenshot(path=folder / "page-branch.png")
        with visiting(browser, served.url, PHONE, "dark") as visit:
            ask(visit, "Name three uses of a hash table.", 90)
            visit.page.screenshot(path=folder / "page-phone.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
