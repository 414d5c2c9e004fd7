"""Resolves the name of a model to a local directory.

Owns the form of repository ids, the list of files that a model needs, and the shipped model. The
cache, access tokens and offline mode belong to huggingface_hub.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from specqd.config import read_config
from specqd.errors import HubError
from specqd.formats.gguf import is_gguf
from specqd.formats.safetensors import INDEX, WEIGHTS, read_index
from specqd.model.packed import WEIGHTS as PACKED_WEIGHTS

# owner/name, optionally @revision (a branch, tag or commit; branches may hold slashes).
_REPO = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>[\w./-]+))?",
    re.ASCII,
)
_DESCRIPTION = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    INDEX,
]


def resolve(path_or_repo: str | Path) -> Path:
    """The local directory or GGUF file of a model; fetches `owner/name[@revision]`.

    Files in the Hugging Face cache are not fetched again. Raises HubError.
    """
    try:
        path = Path(path_or_repo).expanduser()
        is_directory, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, no permission, no such ~user
        raise HubError(f"{str(path_or_repo)!r}: cannot be read as a path: {error}") from error
    if is_directory:
        if not (path / "config.json").is_file():
            raise HubError(f"{path}: has no config.json; name a Hugging Face model directory")
        return path
    if exists and is_gguf(path):
        return path
    if exists:
        raise HubError(f"{path}: is a file; name the model's directory or a .gguf file instead")
    repo = _REPO.fullmatch(path_or_repo) if isinstance(path_or_repo, str) else None
    if repo is None:
        raise HubError(
            f"{str(path_or_repo)!r}: no such directory, and not a repository; "
            "name a model directory or owner/name[@revision]"
        )
    return _fetch(repo["repo"], repo["revision"])


def shipped_model() -> Path:
    """The model that comes with the package."""
    path = Path(str(files("specqd"))) / "models" / "pycode-28m"
    if not path.is_dir():
        raise HubError(f"{path}: the shipped model is missing; reinstall specqd or name a model")
    return path


def _fetch(repo: str, revision: str | None) -> Path:
    """Fetches and checks the description first: an unsupported model costs no large download."""
    asked = repo if revision is None else f"{repo}@{revision}"
    path = _download(asked, repo, revision, _DESCRIPTION, is_shown=False)
    if not (path / "config.json").is_file():
        raise HubError(
            f"{asked}: the repository has no config.json; name one of a model in Hugging Face "
            "layout, or fetch its .gguf file and name that"
        )
    read_config(path)
    wanted = _missing_weights(path)
    if not any((path / name).exists() for name in ("tokenizer.json", "tokenizer.model")):
        wanted.append("tokenizer.model")
    if WEIGHTS in wanted:
        wanted.append(PACKED_WEIGHTS)
    if wanted:
        path = _download(asked, repo, path.name, wanted, is_shown=True)  # of the same commit
    if _missing_weights(path):
        raise HubError(
            f"{asked}: the repository has no safetensors weights, or not all of them; "
            "name a repository that has them all"
        )
    return path


def _missing_weights(path: Path) -> list[str]:
    """The weights files of the index, or the single one, that are not in the directory."""
    if (path / PACKED_WEIGHTS).exists():
        return []
    names = set(read_index(path / INDEX).values()) if (path / INDEX).exists() else {WEIGHTS}
    return sorted(name for name in names if not (path / name).exists())


def _download(
    asked: str, repo: str, revision: str | None, files: list[str], *, is_shown: bool
) -> Path:
    """The directory of the snapshot; files that the repository does not have are skipped."""
    import huggingface_hub  # here, because the import is slow and a local model does not need it
    from huggingface_hub import errors

    try:
        with _bars(f"Fetching {asked}" if is_shown else None) as bars:
            return Path(
                huggingface_hub.snapshot_download(
                    repo, revision=revision, allow_patterns=files, tqdm_class=bars
                )
            )
    except errors.GatedRepoError as error:
        problem = "is gated; accept its licence on huggingface.co and run `hf auth login`"
        raise HubError(f"{asked}: {problem}") from error
    except errors.RepositoryNotFoundError as error:
        problem = (
            "is neither a directory here nor a repository that you can read on huggingface.co; "
            "check the name, or run `hf auth login` if it is private"
        )
        raise HubError(f"{asked}: {problem}") from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{asked}: the repository has no such revision; check it") from error
    except Exception as error:  # the types depend on huggingface_hub's HTTP library
        raise HubError(f"{asked}: {_why_not_fetched(error)}") from error


@contextmanager
def _bars(label: str | None) -> Iterator[type[Any]]:
    """A progress bar for snapshot_download: one line with the bytes of all files, removed at the
    end. Shows nothing without a label, or where huggingface_hub's bars are disabled."""
    from huggingface_hub.utils.tqdm import tqdm

    opened: list[Any] = []

    class Bar(tqdm):  # type: ignore[misc, unused-ignore]  # tqdm has no types
        def __init__(self, *arguments: Any, **options: Any) -> None:
            counts_bytes = options.get("unit") == "B"
            counts_twice = str(options.get("name")).endswith(".transfer")
            if label is None or not counts_bytes or counts_twice:
                options["disable"] = True
            options |= {"desc": label, "leave": False}
            super().__init__(*arguments, **options)  # type: ignore[no-untyped-call, unused-ignore]
            opened.append(self)

        def set_description(self, *arguments: Any, **options: Any) -> None:
            pass

    try:
        yield Bar
    finally:
        for bar in opened:
            bar.close()


def _why_not_fetched(error: Exception) -> str:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return (
            "is not a directory here and not (wholly) in the cache, and HF_HUB_OFFLINE forbids "
            "fetching it; unset that, or name a local directory"
        )
    reason = type(error.__cause__ or error).__name__
    return (
        f"is not a directory here and could not be fetched from {constants.ENDPOINT} ({reason}); "
        "check the network and the disk, or name a local directory"
    )
