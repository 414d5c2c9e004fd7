"""From what a user names a model by to a local directory.

Owns the shape of repository ids and the shipped model. Knows nothing of what the files hold.
"""

import re
from importlib.resources import files
from pathlib import Path

from specqd.errors import HubError

# owner/name, optionally @revision (a branch, tag or commit; branches may hold slashes).
_REPO = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>[\w./-]+))?",
    re.ASCII,
)
_NEEDED_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "chat_template*",
    "special_tokens_map.json",
    "model*.safetensors",
    "model.safetensors.index.json",
]


def resolve(path_or_repo: str | Path) -> Path:
    """The local directory of a model, or its GGUF file: such a path as it is, and
    `owner/name[@revision]` fetched.

    What is already in the Hugging Face cache is not fetched again. Raises HubError.
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
    if exists and path.suffix.lower() == ".gguf":
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
    import huggingface_hub  # imported only here: it takes long, and a local model needs none of it
    from huggingface_hub import errors

    asked = repo if revision is None else f"{repo}@{revision}"
    try:
        path = Path(
            huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=_NEEDED_FILES)
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
    except Exception as error:  # which ones depends on the HTTP library below huggingface_hub
        problem = (
            "is not a directory here and could not be fetched from huggingface.co "
            f"({type(error).__name__}); check the network and the disk, or name a local directory"
        )
        raise HubError(f"{asked}: {problem}") from error
    if not (path / "config.json").is_file():
        raise HubError(f"{asked}: the repository has no config.json; it is not a model")
    return path
