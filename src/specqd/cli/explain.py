"""Shows the level that first proposed each token of a text: on a terminal, or as a page of HTML.

Depth 0 is the model itself, 1 its drafter, 2 the drafter's drafter. Terminal controls are removed
from a model's text, and HTML is escaped.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, TextIO

import click

from specqd.cli.terminal import harmless, has_colour, is_quiet, one_line
from specqd.text.token_texts import TokenTexts

if TYPE_CHECKING:
    from specqd.llm import Completion, Result
    from specqd.text.tokenizer import Tokenizer

_COLOURS = ("green", "cyan", "magenta", "yellow")  # depths 1 to 4, then again from the first
_LINES = ("solid", "double", "dotted", "wavy")  # so that levels differ without colour


@dataclass(frozen=True, slots=True)
class Span:
    """A token's text, the depth of its first proposer, and the model's probability of it."""

    text: str
    depth: int
    probability: float


def explained(
    completion: "Completion", tokenizer: "Tokenizer", after: Sequence[int] = ()
) -> list[Span]:
    """One span per token. A character that several tokens form belongs to the last of them; the
    others have an empty text.

    after: the tokens whose text the completion continues.
    """
    token_texts = TokenTexts(tokenizer.stream(after=after))
    texts = token_texts.feed(completion.tokens, completion.text, is_last=True)
    return [
        Span(text, origin.depth, origin.probability)
        for text, origin in zip(texts, completion.origins, strict=True)
    ]


def show(result: "Result", tokenizer: "Tokenizer", out: TextIO) -> None:
    """Writes the coloured text to `out` and the legend to standard error."""
    spans = explained(result.completions[0], tokenizer, result.continued)
    chain = result.stats.chain
    text = for_terminal(spans, has_colour=has_colour(out))
    print(text, end="" if result.text.endswith("\n") else "\n", file=out, flush=True)
    if not is_quiet():
        print(legend(spans, chain, has_colour=has_colour(sys.stderr)), file=sys.stderr)


def for_terminal(spans: Sequence[Span], *, has_colour: bool) -> str:
    """The text in colours, or with a mark such as <1> where the level changes."""
    parts = []
    for depth, run in groupby((span for span in spans if span.text), key=lambda span: span.depth):
        text = harmless("".join(span.text for span in run))
        parts.append(_styled(text, depth) if has_colour else f"<{depth}>{text}")
    return "".join(parts)


def legend(spans: Sequence[Span], chain: Sequence[str], *, has_colour: bool) -> str:
    """One line: how many tokens each level proposed first."""
    counts = Counter(span.depth for span in spans)
    parts = []
    for depth, name in enumerate(chain):
        mark = "" if has_colour else f"<{depth}> "
        part = f"{mark}{_title(one_line(name), depth)}: {_share(counts[depth], len(spans))}"
        parts.append(_styled(part, depth) if has_colour else part)
    return "; ".join(parts)


def as_html(prompt: str, spans: Sequence[Span], chain: Sequence[str], heading: str) -> str:
    """A self-contained page, light and dark, that makes no network requests."""
    counts = Counter(span.depth for span in spans)
    key = "\n".join(
        f'<li><span class="{_class(depth)}">{_safe(_title(name, depth))}</span> '
        f"{_share(counts[depth], len(spans))}</li>"
        for depth, name in enumerate(chain)
    )
    text = "".join(
        f'<span class="{_class(span.depth)}" title="{_hint(span, chain)}">{_safe(span.text)}</span>'
        for span in spans
        if span.text
    )
    return _PAGE.format(
        heading=_safe(heading), rules=_rules(len(chain)), key=key, prompt=_safe(prompt), text=text
    )


def _styled(text: str, depth: int) -> str:
    return click.style(text, fg=_COLOURS[(depth - 1) % len(_COLOURS)]) if depth else text


def _title(name: str, depth: int) -> str:
    return name if depth else f"{name} itself"


def _share(count: int, total: int) -> str:
    return f"{count} tokens, {count / max(total, 1):.0%}"


def _class(depth: int) -> str:
    return f"d{(depth - 1) % len(_COLOURS) + 1}" if depth else "d0"


def _hint(span: Span, chain: Sequence[str]) -> str:
    return _safe(f"{_title(chain[span.depth], span.depth)}, probability {span.probability:.3f}")


def _safe(text: str) -> str:
    return escape(harmless(text), quote=True)


def _rules(levels: int) -> str:
    return "\n".join(
        f".d{i} {{ background: var(--b{i}); text-decoration: underline {line} var(--c{i}); }}"
        for i, line in enumerate(_LINES[: levels - 1], 1)
    )


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{heading}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1c1e21; --paper: #fcfcfa; --faint: #686c73;
  --b1: #dcf2e0; --c1: #1a7f37; --b2: #d9edf8; --c2: #0b69a3;
  --b3: #f5e1f3; --c3: #9a3393; --b4: #f8ecd0; --c4: #8a5a00; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e4e6ea; --paper: #16181c; --faint: #969ba4;
  --b1: #17351f; --c1: #57c774; --b2: #123247; --c2: #58b4ea;
  --b3: #3d1d3a; --c3: #df86d7; --b4: #3b2d0c; --c4: #dfae4c; }} }}
body {{ margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.1rem; }}
ul {{ display: flex; flex-wrap: wrap; gap: .3rem 1.6rem; padding: 0; list-style: none; }}
pre {{ font: 14px/1.7 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }}
.prompt {{ color: var(--faint); }}
span {{ border-radius: 2px; text-underline-offset: 3px; }}
pre span:hover {{ outline: 1px solid var(--ink); }}
{rules}
</style>
</head>
<body>
<h1>{heading}</h1>
<ul>
{key}
</ul>
<pre><span class="prompt">{prompt}</span>{text}</pre>
</body>
</html>
"""
