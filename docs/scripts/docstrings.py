"""Fits this project's docstrings to the API reference: an extension of griffe for mkdocs.yml.

In a class's docstring a line `name: text` that begins with a parameter becomes an item of a list.
The fields of a class are not members of the page: those with a comment at the end of their line
become items of such a list too, since the signature above it shows names, types and defaults.
"""

import re
from typing import Any

import griffe

FIELD = re.compile(r"(?P<name>\w+): .*?  # (?P<comment>[^#]+)")
ITEM = re.compile(r"(?P<name>\w+): (?P<text>\S.*)")


class Docstrings(griffe.Extension):
    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Lists what a class's docstring and its fields' comments describe."""
        if cls.docstring is None:
            return
        names = {parameter.name for parameter in cls.parameters}
        text = listed(cls.docstring.value, names)
        items = []
        for attribute in cls.attributes.values():
            if attribute.inherited:
                continue
            if attribute.docstring is None and not attribute.has_labels("property"):
                attribute.public = False
                if field := FIELD.fullmatch(attribute.source.strip()):
                    items.append(f"- `{field['name']}`: {field['comment']}")
        cls.docstring.value = text + "".join(f"\n{item}" for item in ["", *items] if items)


def listed(text: str, names: set[str]) -> str:
    """The text with a list item for each line `name: ...`; a blank line begins the list."""
    lines: list[str] = []
    for line in text.splitlines():
        item = ITEM.fullmatch(line)
        if item is None or item["name"] not in names:
            lines.append(line)
            continue
        if lines and lines[-1] and not lines[-1].startswith(("- ", " ")):
            lines.append("")
        lines.append(f"- `{item['name']}`: {item['text']}")
    return "\n".join(lines)
