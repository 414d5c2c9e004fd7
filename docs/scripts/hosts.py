"""Fails where a built page would load something from another host: python hosts.py build-docs"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

FOREIGN = re.compile(r"(?:https?:)?//")
IN_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']*")
LOADS = {"src", "srcset", "data", "poster"}  # of any element; and `href` of a link in the head


class Loads(HTMLParser):
    """Collects what the page loads from elsewhere. Links that a reader may follow are no loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = LOADS | ({"href"} if tag in ("link", "use", "image") else set())
        values = [value for name, value in attrs if name in names and value]
        self.found += [f"<{tag}> {value}" for value in values if FOREIGN.match(value)]


def loads(page: Path) -> list[str]:
    text = page.read_text()
    if page.suffix == ".css":
        return IN_STYLES.findall(text)
    parser = Loads()
    parser.feed(text)
    return parser.found + IN_STYLES.findall(text)


def main() -> int:
    site = Path(sys.argv[1])
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    found = [f"{page}: {load}" for page in pages for load in loads(page)]
    print("\n".join(found) if found else f"{len(pages)} pages load nothing from another host")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
