"""A text as HTML for notebooks, each token in the colour of the level that proposed it first."""

from collections import Counter
from collections.abc import Sequence
from html import escape

from specqd.engine.generation import Origin
from specqd.text.token_texts import TokenTexts
from specqd.text.tokenizer import Tokenizer

# For depths from 1 on, then again from the first: a colour for light and dark themes, and a line
# for readers who do not see the colours' difference.
_STYLES = (
    "background:#2da04440;text-decoration:underline solid #2da044",
    "background:#2f8fd040;text-decoration:underline double #2f8fd0",
    "background:#b04aa840;text-decoration:underline dotted #b04aa8",
    "background:#b07d1040;text-decoration:underline wavy #b07d10",
)
_CONTROLS = {code: None for code in range(32) if chr(code) not in "\n\t"}


def html_of(
    tokens: Sequence[int],
    text: str,
    origins: Sequence[Origin],
    chain: Sequence[str],
    tokenizer: Tokenizer | None,
    *,
    after: Sequence[int] = (),
) -> str:
    """The text and the key of its colours; without a tokenizer, only the text.

    after: the tokens whose text it continues.
    """
    if tokenizer is None:
        return f'<pre style="white-space:pre-wrap">{_safe(text)}</pre>'
    texts = TokenTexts(tokenizer.stream(after=after)).feed(tokens, text, is_last=True)
    spans = "".join(
        _span(part, origin.depth, f"{chain[origin.depth]}, probability {origin.probability:.3f}")
        for part, origin in zip(texts, origins, strict=True)
        if part
    )
    counts = Counter(origin.depth for origin in origins)
    key = " ".join(
        _span(f"{name}: {counts[depth]}", depth, "tokens that it proposed first")
        for depth, name in enumerate(chain)
    )
    return f'<pre style="white-space:pre-wrap">{spans}</pre><p>{key}</p>'


def _span(text: str, depth: int, hint: str) -> str:
    style = f' style="{_STYLES[(depth - 1) % len(_STYLES)]}"' if depth else ""
    return f'<span{style} title="{_safe(hint)}">{_safe(text)}</span>'


def _safe(text: str) -> str:
    return escape(text.translate(_CONTROLS), quote=True)
