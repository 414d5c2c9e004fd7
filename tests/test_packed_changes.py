"""A packed file that changes while a model is open is refused."""

import os
import shutil
from pathlib import Path

import pytest

from specqd.errors import TensorError
from specqd.formats.safetensors import PACKED_WEIGHTS
from specqd.llm import LLM
from specqd.sampling import SamplingParams


def written(llm: LLM) -> list[int]:
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    return llm.generate("abc", params)[0].tokens


@pytest.mark.parametrize("change", ["cut", "written", "longer"])
@pytest.mark.parametrize("is_draft", [False, True])
def test_a_request_to_a_model_whose_file_changed_is_refused(
    change: str, is_draft: bool, copy: Path, packed: Path
) -> None:
    llm = LLM(packed, [str(copy)], 1) if is_draft else LLM(copy, "auto", 1)
    written(llm)
    path = copy / PACKED_WEIGHTS
    size = path.stat().st_size
    if change == "written":
        os.utime(path, ns=(0, 1))
    else:
        os.truncate(path, size - 4096 if change == "cut" else size + 1)
    with pytest.raises(TensorError, match="was changed while it was in use"):
        written(llm)


def test_a_changed_file_is_refused_if_only_the_embedding_is_mapped(
    packed: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(packed.parent / "model", tmp_path / "model"))
    llm = LLM(model, "none", 1)
    written(llm)
    os.truncate(model / "model.safetensors", 4096)
    with pytest.raises(TensorError, match="was changed while it was in use"):
        written(llm)


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_model_works_on_after_its_file_was_replaced_or_removed(change: str, copy: Path) -> None:
    llm = LLM(copy, "auto", 1)
    before = written(llm)
    if change == "replaced":
        (copy / "new").write_bytes(b"")
        (copy / "new").rename(copy / PACKED_WEIGHTS)
    else:
        (copy / PACKED_WEIGHTS).unlink()
    assert written(llm) == before
