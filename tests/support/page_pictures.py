"""Makes the pictures of docs/serving.md.

python tests/support/page_pictures.py docs
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from support.browser import DESKTOP, PHONE, chromium, visiting
from support.served import serving

PROMPT = "class TestQueue(unittest.TestCase):\n    def setUp(self):\n"


def main(folder: Path) -> None:
    with serving() as served, chromium() as browser:
        for scheme in ("light", "dark"):
            with visiting(browser, served.url, DESKTOP, scheme) as visit:
                visit.set(temperature=0.6, max_tokens=84, seed=3)
                visit.page.locator("#compare").check()
                visit.send(PROMPT, runs=2)
                visit.page.get_by_text("% of bandwidth").first.wait_for()
                visit.page.locator(".token.d2").nth(1).hover()
                visit.page.screenshot(path=folder / f"page-{scheme}.png")
        with visiting(browser, served.url, PHONE) as visit:
            visit.set(temperature=0.6, max_tokens=72, seed=3)
            visit.send(PROMPT)
            visit.page.get_by_text("% of bandwidth").wait_for()
            visit.page.screenshot(path=folder / "page-phone.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
