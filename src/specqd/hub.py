"""Resolves the name of a model to a local directory.

Owns the form of repository ids, short names, the list of files that a model needs, and the shipped
model. The cache, access tokens and offline mode belong to huggingface_hub.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
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
# Well-known chat models by family and size. Each is of a kind that read_config accepts.
SHORT_NAMES = {
    "gemma3:270m": "google/gemma-3-270m-it",
    "gemma3:1b": "google/gemma-3-1b-it",
    "granite3.3:2b": "ibm-granite/granite-3.3-2b-instruct",
    "llama3.2:1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama3.2:3b": "meta-llama/Llama-3.2-3B-Instruct",
    "mistral:7b": "mistralai/Mistral-7B-Instruct-v0.3",
    "olmo2:1b": "allenai/OLMo-2-0425-1B-Instruct",
    "phi3.5:3.8b": "microsoft/Phi-3.5-mini-instruct",
    "qwen2.5:0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5:1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-coder:1.5b": "Qwen/Qwen2.5-Coder-1.5B-Instruct",
    "qwen3:0.6b": "Qwen/Qwen3-0.6B",
    "qwen3:1.7b": "Qwen/Qwen3-1.7B",
    "qwen3:4b": "Qwen/Qwen3-4B",
    "qwen3:8b": "Qwen/Qwen3-8B",
    "smollm2:135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "smollm2:360m": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "smollm2:1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "smollm3:3b": "HuggingFaceTB/SmolLM3-3B",
}
SHIPPED = "pycode-28m"
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
    """The local directory or GGUF file of a model; fetches `owner/name[@revision]` and the
    repositories of short names.

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
    if path_or_repo == SHIPPED:
        return shipped_model()
    return _fetch(*_repository(str(path_or_repo)))


def _repository(name: str) -> tuple[str, str | None]:
    """The repository and the revision that a name stands for."""
    repo = _REPO.fullmatch(SHORT_NAMES.get(name, name))
    if repo is None:
        near = get_close_matches(name, SHORT_NAMES)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise HubError(
            f"{name!r}: no such directory, and not a repository{meant}; "
            "name a model directory or owner/name[@revision]"
        )
    return repo["repo"], repo["revision"]


def model_name(path: Path) -> str:
    """The name to show for a model: its directory's, or owner/name if it is in the cache."""
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
    return path.name or path.resolve().name


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A repository in the cache. `path` is the snapshot that its name alone stands for, or the
    newest one."""

    name: str
    path: Path
    size_bytes: int  # on the disk, all revisions


def cached_models() -> list[CachedModel]:
    """The cached repositories that hold a model, by name. Fetches nothing."""
    found = []
    for repo in _cached_repositories():
        named = repo.refs.get("main") or max(repo.revisions, key=lambda each: each.last_modified)
        if (named.snapshot_path / "config.json").is_file():
            found.append(CachedModel(repo.repo_id, named.snapshot_path, repo.size_on_disk))
    return sorted(found, key=lambda each: each.name.lower())


def remove_cached(name: str) -> int:
    """Removes a repository, or one of its revisions, from the cache; returns the bytes freed.

    Raises HubError where the cache has no such model.
    """
    import huggingface_hub

    repo_id, revision = _repository(name)
    commits = [
        each.commit_hash
        for repo in _cached_repositories()
        if repo.repo_id.lower() == repo_id.lower()
        for each in repo.revisions
        if revision is None or revision in {each.commit_hash, *each.refs}
    ]
    if not commits:
        raise HubError(f"{name}: is not in the cache; `specqd models` lists what is")
    removal = huggingface_hub.scan_cache_dir().delete_revisions(*commits)
    removal.execute()
    return removal.expected_freed_size


def _cached_repositories() -> list[Any]:
    import huggingface_hub
    from huggingface_hub import errors

    try:
        repos = huggingface_hub.scan_cache_dir().repos
    except errors.CacheNotFound:
        return []
    return [repo for repo in repos if repo.repo_type == "model" and repo.revisions]


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
