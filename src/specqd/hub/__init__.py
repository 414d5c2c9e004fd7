"""Resolves the name of a model to a local directory.

Owns the form of repository ids, short names, the files that a model needs, the choice among GGUF
files, and the shipped model. `repository` downloads. huggingface_hub owns the cache, access tokens
and offline mode.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from specqd.config import embedding, read_config
from specqd.errors import HubError, SpecqdError
from specqd.formats.gguf import is_gguf, parts_of, whole_stem
from specqd.formats.safetensors import INDEX, PACKED_WEIGHTS, WEIGHTS, read_index
from specqd.hub.catalogue import SHORT_NAMES as SHORT_NAMES
from specqd.hub.repository import Repository, local_files

# owner/name, optionally @revision (a branch, tag or commit; branches may hold slashes) and :FILE,
# the name of a GGUF file, or the end that distinguishes it from the others.
_REPO = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>[\w./-]+))?"
    r"(?::(?P<file>[\w.-]+))?",
    re.ASCII,
)
_BESIDE = ("mmproj", "imatrix")  # in the names of GGUF files that are no language models
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
    "mask_embedding.pt",  # drafters that have it are refused
    *embedding.FILES,
    INDEX,
]

_VOCABULARIES = ("tokenizer.json", "tekken.json", "tokenizer.model")  # the first one is read

Check = Callable[[Path], object]  # raises for a directory whose config.json is not supported


def resolve(
    path_or_repo: str | Path,
    *,
    announce: Callable[[int], None] | None = None,
    check: Check = read_config,
) -> Path:
    """The local directory or GGUF file of a model. Fetches `owner/name[@revision][:FILE]` and the
    repositories of short names, except files that are in the Hugging Face cache.

    announce: called with the bytes of the weights before they are downloaded, if any are missing.
    check: reads config.json before the weights are downloaded.

    Raises HubError, and what `check` raises.
    """
    try:
        path = expanded(path_or_repo)
        is_directory, exists = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:  # too long, no permission
        raise HubError(f"{str(path_or_repo)!r}: cannot be read as a path: {error}") from error
    if is_directory:
        if not (path / "config.json").is_file():
            raise HubError(f"{path}: has no config.json; {_instead_of(path)}")
        return path
    if exists and is_gguf(path):
        return path
    if exists:
        raise HubError(f"{path}: is a file; name the model's directory or a .gguf file instead")
    if path_or_repo == SHIPPED:
        return shipped_model()
    return _fetch(*_asked_for(str(path_or_repo)), announce=announce, check=check)


def cached(name: str) -> Path | None:
    """What `resolve` returns for a repository or short name, if all of its files are in the Hugging
    Face cache; else None. Fetches nothing."""
    try:
        return _fetch(*_asked_for(name), is_offline=True)
    except SpecqdError:
        return None


def _instead_of(directory: Path) -> str:
    """Says what to name instead of a directory without a model."""
    try:
        files = _gguf_files(each.name for each in directory.iterdir())
    except OSError:  # a directory that may not be read
        files = []
    if not files:
        return "name a Hugging Face model directory or a .gguf file"
    rest = f", or another of its {len(files)} .gguf files" if len(files) > 1 else ""
    return f"name {directory / files[0]}{rest}"


def _asked_for(name: str) -> tuple[str, str | None, str | None]:
    """The repository, the revision and the GGUF file that a name stands for."""
    repo = _REPO.fullmatch(SHORT_NAMES.get(name, name))
    if repo is None:
        family = [each for each in SHORT_NAMES if each.startswith(f"{name.partition(':')[0]}:")]
        near = family or get_close_matches(name, SHORT_NAMES)
        meant = f"one of {', '.join(near)}, or " if near else ""
        raise HubError(
            f"{name!r}: no such file or directory, and not a repository; name {meant}"
            "a model directory, a .gguf file or owner/name[@revision]"
        )
    return repo["repo"], repo["revision"], repo["file"]


def real_path(path: Path) -> Path:
    """The absolute path, without links. A file that is a link keeps its name, because that shows
    the format: in Hugging Face's cache, the content has another name."""
    return path.resolve() if path.is_dir() else path.parent.resolve() / path.name


def model_name(path: Path) -> str:
    """The name to show for a model: that of its directory, or owner/name if it is in the cache, and
    then :FILE for a GGUF file."""
    for place in (path, *path.parents):
        repo = place.parent.parent.name
        if place.parent.name == "snapshots" and repo.startswith("models--"):
            name = repo.removeprefix("models--").replace("--", "/", 1)
            return name if place == path else f"{name}:{whole_stem(path)}"
    return path.name or path.resolve().name


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A repository in the cache, or one of its GGUF files. `path` is in the snapshot that the
    repository's name means without a revision, or else in the newest snapshot."""

    name: str
    path: Path
    size_bytes: int  # on the disk; for a repository, all revisions


def cached_models() -> list[CachedModel]:
    """The cached repositories with a model, and cached GGUF files, by name. Fetches nothing."""
    found = []
    for repo in _cached_repositories():
        named = repo.refs.get("main") or max(repo.revisions, key=lambda each: each.last_modified)
        path = named.snapshot_path
        files = [path / name for name in _gguf_files(local_files(path))]
        if (path / "config.json").is_file() and not (files and missing_weights(path)):
            found.append(CachedModel(repo.repo_id, path, repo.size_on_disk))
        found += [CachedModel(model_name(file), file, _bytes_of(file)) for file in files]
    return sorted(found, key=lambda each: each.name.lower())


def remove_cached(name: str) -> int:
    """Removes a repository, or one of its revisions, from the cache; returns the bytes freed.

    Raises HubError if the cache has no such model.
    """
    import huggingface_hub

    repo_id, revision, file = _asked_for(name)
    if file is not None:
        raise HubError(f"{name}: rm removes all files of a repository; name {repo_id}")
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
    removal.execute()  # only logs what it could not remove
    if left := [path for path in removal.snapshots if path.exists()]:
        raise HubError(f"{name}: {left[0]} could not be removed; allow writing to the cache")
    return removal.expected_freed_size


def model_names() -> list[str]:
    """Cached models, unless the cache cannot be read, and short names."""
    try:
        cached = [each.name for each in cached_models()]
    except HubError:
        cached = []
    return list(dict.fromkeys([*cached, *SHORT_NAMES]))


def expanded(path: str | Path) -> Path:
    """The path with the home directory in place of `~`. Raises HubError if there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise HubError(f"{str(path)!r}: {error}") from error


def _cached_repositories() -> list[Any]:
    import huggingface_hub
    from huggingface_hub import constants, errors

    try:
        repos = huggingface_hub.scan_cache_dir().repos
    except errors.CacheNotFound:
        return []
    except (OSError, ValueError) as error:
        where = constants.HF_HUB_CACHE
        raise HubError(
            f"{where}: the cache cannot be read: {str(error).splitlines()[0]}"
        ) from error
    return [repo for repo in repos if repo.repo_type == "model" and repo.revisions]


def shipped_model() -> Path:
    """The model that comes with the package."""
    path = Path(str(files("specqd") / "models" / "pycode-28m"))
    if not path.is_dir():
        raise HubError(f"{path}: the shipped model is missing; reinstall specqd or name a model")
    return path


def _fetch(
    name: str,
    revision: str | None,
    file: str | None,
    *,
    is_offline: bool = False,
    announce: Callable[[int], None] | None = None,
    check: Check = read_config,
) -> Path:
    """Fetches and checks the description first, so an unsupported model costs no large download."""
    asked = name if revision is None else f"{name}@{revision}"
    repo = Repository(name, asked, is_offline, announce)
    patterns = _DESCRIPTION if file is None else []
    path = repo.download(revision, patterns, is_shown=False)
    if file is not None:
        return _fetch_gguf(repo, path, file)
    if (path / "config.json").is_file():
        check(path)
        if not _fetch_weights(repo, path):
            return path
    if any(is_gguf(Path(name)) for name in repo.files(path)):
        return _fetch_gguf(repo, path, None)
    repo.check_listed()
    lacks = "safetensors weights, or not all of them"
    if not (path / "config.json").is_file():
        lacks = "config.json, and no GGUF files"
    raise HubError(
        f"{asked}: the repository has no {lacks}; name a repository of a model in Hugging Face "
        "layout, or with GGUF files"
    )


def _fetch_weights(repo: Repository, path: Path) -> list[str]:
    """Fetches what the snapshot needs in addition to its description; returns the weights that the
    repository lacks."""
    wanted = missing_weights(path)
    if not any((path / name).exists() for name in _VOCABULARIES):
        wanted += [*_VOCABULARIES[1:], "added_tokens.json"]
    if WEIGHTS in wanted:
        wanted.append(PACKED_WEIGHTS)
    if wanted:
        repo.download(path.name, wanted, is_shown=True)  # from the same commit
    return missing_weights(path)


def _fetch_gguf(repo: Repository, snapshot: Path, file: str | None) -> Path:
    """Fetches the repository's only GGUF file, or the one that `file` names."""
    whole = _gguf_files(repo.files(snapshot))
    if not whole:
        repo.check_listed()
        raise HubError(
            f"{repo.asked}: the repository has no GGUF file of a whole language model; name another"
        )
    ends = _ends(whole, repo.name)
    fitting = [name for name, end in zip(whole, ends, strict=True) if _is_called(name, end, file)]
    if len(fitting) != 1:
        repo.check_listed()
        problem = "has several GGUF files" if file is None else f"has no GGUF file {file!r}"
        known = f"{repo.asked}:FILE with one of {', '.join(ends)}"
        raise HubError(f"{repo.asked}: {problem}; name {known}")
    path = snapshot / fitting[0]
    if missing := [each for each in parts_of(path) if not each.exists()]:
        names = [each.relative_to(snapshot).as_posix() for each in missing]
        repo.download(snapshot.name, names, is_shown=True)
    return path


def _is_called(name: str, end: str, file: str | None) -> bool:
    path = Path(name)
    called = (end.lower(), whole_stem(path).lower(), path.stem.lower())
    return file is None or file.lower().removesuffix(".gguf") in called


def _gguf_files(names: Iterable[str]) -> list[str]:
    """The GGUF files that hold a language model; of one in parts, the first, if all are there."""
    files = {Path(name) for name in names}
    return sorted(
        file.as_posix()
        for file in files
        if is_gguf(file)
        and not any(word in file.name.lower() for word in _BESIDE)
        and file == parts_of(file)[0]
        and files.issuperset(parts_of(file))
    )


def _bytes_of(file: Path) -> int:
    return sum(part.stat().st_size for part in parts_of(file))


def _ends(names: Sequence[str], repository: str) -> list[str]:
    """What distinguishes each file: its name without that of the repository or, if this is another,
    without the words with which all of the names begin."""
    stems = [whole_stem(Path(name)) for name in names]
    words = [re.split(r"(?<=[-.])", stem) for stem in stems]
    shared = 0
    while all(len(each) > shared + 1 and each[shared] == words[0][shared] for each in words):
        shared += 1
    model = repository.partition("/")[2].lower().removesuffix("-gguf")
    return [
        stem[len(model) + 1 :]
        if stem.lower().startswith((f"{model}-", f"{model}."))
        else "".join(each[shared:])
        for stem, each in zip(stems, words, strict=True)
    ]


def missing_weights(path: Path) -> list[str]:
    """The weights files of the index, or the single one, that are not in the directory."""
    if (path / PACKED_WEIGHTS).exists():
        return []
    names = set(read_index(path / INDEX).values()) if (path / INDEX).exists() else {WEIGHTS}
    return sorted(name for name in names if not (path / name).exists())
