"""Fuzzes one target with coverage of our Python code: python fuzz/fuzz.py TARGET [SECONDS].

Starts from the seeds. An input that fails is written to fuzz/found/TARGET; commit it with the mend.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["specqd"]):
    import targets

HERE = Path(__file__).parent


def main() -> None:
    name, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "60"
    found = HERE / "found" / name
    found.mkdir(parents=True, exist_ok=True)
    target = targets.TARGETS[name]
    with tempfile.TemporaryDirectory() as corpus:  # new inputs are not kept
        options = [f"-max_total_time={seconds}", f"-artifact_prefix={found}/", "-timeout=20"]
        options += ["-rss_limit_mb=4096", "-verbosity=0", "-print_final_stats=1"]
        options += ["-max_len=65536", corpus, str(HERE / "seeds" / name)]
        atheris.Setup([sys.argv[0], *options], lambda data: targets.check(lambda: target(data)))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
