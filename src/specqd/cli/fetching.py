"""Fetches a model together with the small model that is known to draft for it."""

import os
from pathlib import Path

from specqd.cli.terminal import inform, shown_bytes
from specqd.errors import SpecqdError


def fetch(model: str, *, is_pulled: bool = False) -> Path:
    """The directory or GGUF file of a model. If it comes from a repository that is not in the cache
    yet, or is pulled, its small draft model is fetched, too. Notes say what is fetched, or why it
    is not.

    Raises HubError for the model only.
    """
    from specqd.hub import cached, resolve
    from specqd.siblings import sibling_of

    if os.path.exists(model):  # local, and no need to import what reads the cache
        return resolve(model)
    is_new = cached(model) is None
    path = resolve(model)
    small = sibling_of(path)
    if small is not None and cached(small) is None:
        if is_new or is_pulled:
            _fetch_small(small)
        else:
            inform(
                f"note: auto drafts without the small model {small}, which is not in the cache; "
                f"`specqd pull {model}` fetches it, --no-small turns this note off"
            )
    return path


def _fetch_small(small: str) -> None:
    from specqd.hub import resolve

    def announce(size: int) -> None:
        what = f"{small} ({shown_bytes(size)}), a small draft model"
        inform(f"note: also fetching {what}; --no-small leaves it out")

    try:
        resolve(small, announce=announce)
    except SpecqdError as error:
        inform(f"note: the small draft model was not fetched: {error}")
