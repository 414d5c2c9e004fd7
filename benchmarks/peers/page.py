"""Puts the tables of the results into docs/performance.md, between its marks.

python benchmarks/peers/page.py benchmarks/results docs/performance.md
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from summary import ratios, table

# Asked of a machine of this class before anything was measured on it: ours, theirs, ratio.
WANTED = (
    ("specqd bf16", "openvino bf16", 1.15),
    ("specqd bf16", "llama.cpp bf16", 1.55),
    ("specqd mxfp4", "openvino mxfp4", 2.6),
    ("specqd mxfp4", "llama.cpp mxfp4", 3.6),
    ("specqd mxfp4", "llama.cpp q4_0", 1.35),
)
MARKED = re.compile(r"(<!-- (table|ratios|wanted) ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def wanted(summary: dict[str, Any]) -> str:
    """Markdown: what was asked, what is, and what our bytes at all of the bandwidth would give."""
    shares = {
        arm["name"]: arm["share_of_bandwidth"]["median"]
        for arm in summary["arms"]
        if "share_of_bandwidth" in arm
    }
    lines = [
        "| decoding | wanted | measured | quartiles | our share of bandwidth | theirs | at most |",
        "|---|---|---|---|---|---|---|",
    ]
    for ours, theirs, ratio in WANTED:
        found = summary["specqd_over"].get(ours, {}).get(theirs)
        if found is None:
            lines.append(f"| {ours} / {theirs} | {ratio} | absent | | | | |")
            continue
        low, high = found["decode"]["quartiles"]
        measured = found["decode"]["median"]
        cells = [f"{ours} / {theirs}", f"{ratio}", f"{measured:.2f}", f"{low:.2f} .. {high:.2f}"]
        cells += [f"{shares[ours]:.2f}", f"{shares[theirs]:.2f}", f"{measured / shares[ours]:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def with_tables(page: str, results: Path) -> str:
    makers = {"table": described, "ratios": ratios, "wanted": wanted}

    def filled(match: re.Match[str]) -> str:
        opening, maker, name, closing = match.groups()
        summary = json.loads((results / f"{name}.json").read_text())
        return f"{opening}{makers[maker](summary)}\n{closing}"

    return MARKED.sub(filled, page)


def described(summary: dict[str, Any]) -> str:
    machine = summary["machine"]
    where = f"{machine['cpu']}, {machine['isa']}, {machine['threads']} threads"
    begun = summary["begun"].partition("T")[0]
    counts = f"{summary['rounds']} rounds in {summary['sittings']} sittings"
    commits = ", ".join(f"`{commit}`" for commit in summary["commits"])
    return f"{table(summary)}\n\n{where}; {counts}, {begun}, commit {commits}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    options.page.write_text(with_tables(options.page.read_text(), options.results))


if __name__ == "__main__":
    main()
