"""Shows Markdown on a terminal while it grows. markdown-it parses it, rich draws it.

Blocks that are complete are written for good. Only the last block, or the last item of a list, may
still change: it is drawn again. So each part is parsed once it is final, and no long answer slows
the model down.
"""

import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.rule import Rule
from rich.syntax import Syntax
from rich.theme import Theme

from specqd.cli.screens import DRAW_S, STYLES, Region, columns
from specqd.cli.terminal import harmless

_WIDEST = 100  # columns of text; longer lines are hard to read
_END_SPACES = re.compile("[ ]+((?:\x1b\\[[0-9;]*m)*)$")
# The terminal's own colours, so that the text is legible on light and on dark.
_THEME = Theme(
    {
        "markdown.code": "cyan",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold underline",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.h5": "bold",
        "markdown.h6": "bold",
        "markdown.block_quote": "italic",
        "markdown.hr": "dim",
        "markdown.item.bullet": "dim",
        "markdown.item.number": "dim",
        "markdown.link": "default",
        "markdown.link_url": "blue underline",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)


def _parser() -> MarkdownIt:
    """HTML, entities and definitions of links stay text, so that none of the answer is lost."""
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return parser.disable(["entity", "image", "reference"])


_PARSER = _parser()
_Number: TypeAlias = tuple[int, str]  # an item's, and the mark behind it, `.` or `)`


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of the outermost level, or an item of a list there."""

    tokens: Sequence[Token]
    begin: int  # its first line in the source
    is_item: bool = False
    number: "_Number | None" = None  # of the item of an ordered list

    @property
    def is_code(self) -> bool:
        return self.tokens[0].type == "fence"


class Rendered:
    """Draws the Markdown of one answer on standard output."""

    def __init__(self) -> None:
        self._source = ""  # from the block on that may still change
        self._number: _Number | None = None  # of that block, if it is or becomes an item
        self._is_apart = False  # an empty line comes before that block
        self._written = 0  # lines of that block that are written for good
        self._drawn = 0.0
        self._region = Region(sys.stdout)
        self._console = Console(
            theme=_THEME, highlight=False, force_terminal=True, legacy_windows=False
        )

    def feed(self, text: str) -> None:
        self._source += harmless(text)
        if time.monotonic() - self._drawn >= DRAW_S:
            self._draw(is_last=False)

    def finish(self) -> None:
        self._draw(is_last=True)

    def _draw(self, *, is_last: bool) -> None:
        self._drawn = time.monotonic()
        blocks = _blocks(self._source, self._number)
        done: list[str] = []
        while blocks and (is_last or len(blocks) > 1):
            first = blocks.pop(0)
            done += self._lines(first)[self._written :]
            self._written = 0
            self._number = _number_after(first.number)
            if blocks:
                self._is_apart = self._is_gap(first, blocks[0])
        still_open: list[str] = []
        if blocks:
            [block] = blocks
            self._source = _from_line(self._source, block.begin)
            if block.is_item:  # other text may yet become the next item: `2` before `2. second`
                self._number = block.number
            stable = self._stable() if block.is_code else []
            done += stable[self._written :]
            self._written = max(self._written, len(stable))
            still_open = self._lines(block)[self._written :]
        self._region.show(done, still_open)

    def _stable(self) -> list[str]:
        """The lines of the open code that cannot change any more: all but the last one."""
        before = _blocks(self._source[: self._source.rfind("\n") + 1])
        if not before or not before[0].is_code:
            return []
        return self._lines(before[0])[:-1]  # without the rule below the code

    def _is_gap(self, block: _Block, following: _Block) -> bool:
        """Whether an empty line separates two blocks: always, but within a list only as written."""
        if not (block.is_item and following.is_item):
            return True
        return not self._source.split("\n")[following.begin - 1].strip()

    def _lines(self, block: _Block) -> list[str]:
        """The lines that a block takes, with the empty line before it."""
        self._console.width = min(columns(), _WIDEST)
        with self._console.capture() as capture:
            self._console.print(_Drawn(block.tokens), crop=False)
        lines = [_END_SPACES.sub(r"\1", line) for line in capture.get().split("\n")]
        while lines and not STYLES.sub("", lines[-1]):
            lines.pop()
        while lines and not STYLES.sub("", lines[0]):  # tables have an empty line above
            lines.pop(0)
        return ["", *lines] if self._is_apart else lines


def _number_after(number: _Number | None) -> _Number | None:
    return None if number is None else (number[0] + 1, number[1])


def _blocks(source: str, first_number: _Number | None = None) -> list[_Block]:
    """first_number: of the item with which the source begins, because its list began earlier."""
    blocks: list[_Block] = []
    for block in _outermost(_PARSER.parse(source)):
        blocks += _items(block, None if blocks else first_number)
    return blocks


def _outermost(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    block: list[Token] = []
    for token in tokens:
        block.append(_shown(token))
        if token.level == 0 and token.nesting <= 0:
            yield block
            block = []


def _items(block: list[Token], first_number: _Number | None) -> Iterator[_Block]:
    """The items of a list as lists of their own, else the block itself."""
    opened, *inner = block
    if opened.type not in ("bullet_list_open", "ordered_list_open"):
        yield _Block(block, _line_of(opened))
        return
    number = None
    if opened.type == "ordered_list_open":
        number = int(opened.attrs.get("start", 1)), opened.markup
        if first_number is not None and first_number[1] == opened.markup:
            number = first_number
    closed, item = inner.pop(), list[Token]()
    for token in inner:
        item.append(token)
        if token.level == 1 and token.nesting < 0:
            begin = opened if number is None else opened.copy(attrs={"start": number[0]})
            yield _Block([begin, *item, closed], _line_of(item[0]), True, number)
            number = _number_after(number)
            item = []


def _line_of(token: Token) -> int:
    assert token.map is not None
    return token.map[0]


def _shown(token: Token) -> Token:
    """The token without controls, which a reference to a character may have made. Lines stay as the
    model has broken them."""
    token.content, token.info = harmless(token.content), harmless(token.info)
    token.attrs = {k: harmless(v) if isinstance(v, str) else v for k, v in token.attrs.items()}
    if token.type == "softbreak":
        token.type = "hardbreak"
    for child in token.children or ():
        _shown(child)
    return token


def _from_line(source: str, line: int) -> str:
    return "\n".join(source.split("\n")[line:])


class _Title(Heading):
    """A heading at the left margin."""

    LEVEL_ALIGN = dict.fromkeys(Heading.LEVEL_ALIGN, "default")


class _Code(CodeBlock):
    """Code between two rules, without a background, in lines that can be copied: outside of lists
    and quotes the terminal breaks those that are too long."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        syntax = Syntax("", self.lexer_name, theme="ansi_dark", background_color="default")
        code = syntax.highlight(str(self.text).rstrip())
        code.rstrip()
        if options.max_width == console.width:
            code.no_wrap, code.overflow = True, "ignore"
        name = "" if self.lexer_name == "text" else self.lexer_name
        yield Rule(name, align="left", style="dim")
        if code:
            yield code
        yield Rule(style="dim")


class _Drawn(Markdown):
    """Tokens as rich draws them."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Title,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, tokens: Sequence[Token]) -> None:
        super().__init__("", justify="default", hyperlinks=False)
        self.parsed = list(tokens)
