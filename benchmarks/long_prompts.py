"""Writes long prompts for a chat about texts that every machine has, of one length in tokens.

    python benchmarks/long_prompts.py MODEL 16000 long.jsonl

Two are about code, two about prose and two about listings, of Python's standard library and of
these docs. Each question asks for something near the start, in the middle or at the end.
"""

import argparse
import json
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from specqd.text.tokenizer import Tokenizer

LIBRARY = Path(sysconfig.get_path("stdlib"))
DOCS = Path(__file__).resolve().parents[1] / "docs"
AROUND = 64  # tokens of the question and the template, about


def read(*files: Path) -> str:
    return "\n\n".join(file.read_text("utf-8", errors="replace") for file in files)


def library(*names: str) -> str:
    return read(*(LIBRARY / name for name in names))


def listing(files: Iterable[Path]) -> str:
    return "\n".join(f"{each.stat().st_size:>9} {each.relative_to(LIBRARY)}" for each in files)


def questions() -> list[tuple[str, str]]:
    """Texts and what is asked about them."""
    files = sorted(each for each in LIBRARY.rglob("*.py") if "site-packages" not in each.parts)
    return [
        (
            library("argparse.py", "http/client.py", "zipfile.py"),
            "Write a short program that uses the first class that is defined above, with comments.",
        ),
        (
            library("tarfile.py", "subprocess.py", "threading.py", "asyncio/base_events.py"),
            "Summarise the most important classes above, one paragraph each, and repeat the "
            "signature of each of their methods.",
        ),
        (
            read(*sorted(DOCS.glob("*.md"))),
            "Which pages does the text above have? List their headings in order, with one "
            "sentence about each.",
        ),
        (
            library("pydoc_data/topics.py"),
            "Explain in plain words what the last section above says, quoting its sentences.",
        ),
        (
            listing(files),
            "Which files of the directory in the middle of the list above are the largest? Give "
            "their names and sizes as JSON.",
        ),
        (
            listing(files[::-1]),
            "Write a Python function that parses the lines above into tuples, and show its result "
            "for the first ten lines.",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("tokens", type=int)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    tokenizer = Tokenizer.open(options.model)
    with options.out.open("w") as out:
        for text, question in questions():
            tokens = tokenizer.encode(text)
            if len(tokens) < options.tokens - AROUND:
                raise SystemExit(f"a text has only {len(tokens)} tokens")
            start = tokenizer.decode(tokens[: options.tokens - AROUND])
            out.write(json.dumps({"prompt": f"{start}\n\n{question}"}) + "\n")


if __name__ == "__main__":
    main()
