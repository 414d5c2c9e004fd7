"""Downloads files of a repository on Hugging Face into huggingface_hub's cache.

Owns the progress bar and the errors of downloads. Knows nothing of models.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specqd.errors import HubError


@dataclass(slots=True)
class Repository:
    """A repository on Hugging Face, and how its files are obtained."""

    name: str  # owner/name
    asked: str  # the same with the revision, for errors
    is_offline: bool  # takes files only from the cache
    announce: Callable[[int], None] | None  # is told the bytes of a large download first
    _unlisted: Exception | None = field(default=None, init=False)  # why `files` knew only the cache

    def files(self, snapshot: Path) -> list[str]:
        """The files at the snapshot's commit or, without a network, those in the cache."""
        import huggingface_hub

        if not self.is_offline:
            try:
                return huggingface_hub.HfApi().list_repo_files(self.name, revision=snapshot.name)
            except Exception as error:  # of any type, as when fetching
                self._unlisted = error
        return local_files(snapshot)

    def check_listed(self) -> None:
        """Raises HubError if `files` knew only the cache: the repository may have more."""
        error = self._unlisted
        if error is not None:
            raise HubError(f"{self.asked}: {_why_not_fetched(error)}") from error

    def download(self, revision: str | None, files: list[str], *, is_shown: bool) -> Path:
        """The directory of the snapshot; files that the repository does not have are skipped."""
        import huggingface_hub  # here, because the import is slow and a local model needs none
        from huggingface_hub import errors

        try:
            if is_shown and self.announce is not None:
                self.announce(self._missing_bytes(revision, files))
            with _bars(f"Fetching {self.asked}" if is_shown else None) as bars:
                return Path(
                    huggingface_hub.snapshot_download(
                        self.name,
                        revision=revision,
                        allow_patterns=files,
                        tqdm_class=bars,
                        local_files_only=self.is_offline,
                    )
                )
        except errors.GatedRepoError as error:
            problem = "is gated; accept its licence on huggingface.co and run `hf auth login`"
            raise HubError(f"{self.asked}: {problem}") from error
        except errors.RepositoryNotFoundError as error:
            problem = (
                "is neither a local directory nor a repository that you can read on "
                "huggingface.co; check the name, or run `hf auth login` if it is private"
            )
            raise HubError(f"{self.asked}: {problem}") from error
        except errors.RevisionNotFoundError as error:
            problem = "the repository has no such revision; check it"
            raise HubError(f"{self.asked}: {problem}") from error
        except Exception as error:  # the types depend on huggingface_hub's HTTP library
            raise HubError(f"{self.asked}: {_why_not_fetched(error)}") from error

    def _missing_bytes(self, revision: str | None, files: list[str]) -> int:
        import huggingface_hub

        try:
            found = huggingface_hub.snapshot_download(
                self.name, revision=revision, allow_patterns=files, dry_run=True
            )
        except Exception:  # of any type: the download, which follows, says why
            return 0
        return sum(each.file_size or 0 for each in found if each.will_download)


@contextmanager
def _bars(label: str | None) -> Iterator[type[Any]]:
    """A progress bar for snapshot_download: one line with the bytes of all files, removed at the
    end. Shows nothing without a label, or if huggingface_hub's bars are disabled."""
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
            "is not a local directory and not (wholly) in the cache, and HF_HUB_OFFLINE forbids "
            "fetching it; unset that, or name a local directory"
        )
    reason = type(error.__cause__ or error).__name__
    return (
        f"is not a local directory and could not be fetched from {constants.ENDPOINT} ({reason}); "
        "check the network and the disk, or name a local directory"
    )


def local_files(snapshot: Path) -> list[str]:
    """The paths of all files in a snapshot, relative to it."""
    return [str(file.relative_to(snapshot)) for file in snapshot.rglob("*") if file.is_file()]
