"""Training a head, without torch: texts, prompts, the vocabulary, settings and files."""

import json
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM
from specqd.config import read_config
from specqd.config.heads import read_head_config
from specqd.errors import RequestError
from specqd.train import files
from specqd.train.teacher import Teacher
from specqd.train.texts import Text, Writer, keep_texts, read_kept, read_prompts, read_texts
from specqd.train.training import split
from specqd.train.vocabulary import frequent_ids, known_by_target, offsets_of
from support.head_training import settings_for
from support.random_models import Shape, make_model
from support.writers import write_lines

SHAPE = Shape(layers=4, context=128, is_peaked=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), SHAPE, seed=1)


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    return LLM(model, "none", cache_positions=20 * 64)


def no_progress(done: int, total: int) -> None:
    assert done <= total


def written(llm: LLM, path: Path, prompts: list[list[int]], tokens: int) -> list[Text]:
    return Writer(llm, prompts, 24, seed=0).write(path, tokens, no_progress)


def test_the_vocabulary_is_the_commonest_ids_with_the_forced_ones(rng: np.random.Generator) -> None:
    size, count = int(rng.integers(20, 60)), int(rng.integers(4, 12))
    texts = [rng.integers(0, size, rng.integers(1, 40)).tolist() for _ in range(5)]
    forced = [int(rng.integers(0, size)), size + 3]  # the latter is no id of the model
    ids = frequent_ids(texts, size, count, forced)
    every = [each for text in texts for each in text]
    best = sorted(range(size), key=lambda each: (each != forced[0], -every.count(each), each))
    assert ids.tolist() == sorted(best[:count])
    assert (offsets_of(ids) + np.arange(count)).tolist() == ids.tolist()
    assert np.flatnonzero(known_by_target(ids, size)).tolist() == ids.tolist()


def test_texts_are_those_that_each_prompt_gets_alone(llm: LLM, tmp_path: Path) -> None:
    prompts = [[5, 6, 7], [9], [30, 31]]
    texts = written(llm, tmp_path / "texts.jsonl", prompts, 100)
    assert all(text.tokens[: text.learned] == prompts[i % 3] for i, text in enumerate(texts))
    assert all(len(text.tokens) <= 24 for text in texts)
    assert read_kept(tmp_path / "texts.jsonl") == texts


def test_a_stopped_writer_goes_on_with_the_same_texts(
    llm: LLM, tmp_path: Path, rng: np.random.Generator
) -> None:
    prompts = [[5, 6, 7], [9]]
    whole = written(llm, tmp_path / "whole.jsonl", prompts, 3000)
    cut = tmp_path / "cut.jsonl"
    content = (tmp_path / "whole.jsonl").read_bytes()
    cut.write_bytes(content[: int(rng.integers(0, len(content)))])
    kept = read_kept(cut)
    assert kept == whole[: len(kept)]
    assert written(llm, cut, prompts, 3000)[: len(whole)] == whole


def test_enough_texts_are_not_written_again(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    keep_texts(path, [Text([1, 2, 3, 4], 1)])
    assert written(llm, path, [[5]], 3) == [Text([1, 2, 3, 4], 1)]


def test_a_model_without_a_template_begins_texts_itself(llm: LLM, tmp_path: Path) -> None:
    texts = written(llm, tmp_path / "texts.jsonl", [], 100)
    assert all(text.learned == 1 for text in texts)
    assert len({tuple(text.tokens) for text in texts}) > 1


def test_a_file_of_texts_is_cut_into_lessons(llm: LLM, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "f", [{"text": "abcdefgh" * 6}, {"text": "a"}, {"text": "xyz!"}])
    texts = read_texts(path, llm.tokenizer, 20)
    whole = llm.encode("abcdefgh" * 6)
    joined = [token for text in texts for token in text.tokens]
    assert joined[: len(whole)] == whole
    assert all(2 < len(text.tokens) <= 20 and text.learned == 1 for text in texts)


def test_prompts_keep_their_ends(llm: LLM, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "f", [{"prompt": "abcdefgh" * 6}, {"text": "xy"}])
    assert read_prompts(path, llm.tokenizer, 20) == [
        llm.encode("abcdefgh" * 6)[-10:],
        llm.encode("xy"),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "1: is not JSON; write one object a line"),
        ("[]", "1: is no object; write one JSON object a line"),
        ('{"words": 1}', "1: has no text; write an object with `prompt`, `text` or `messages`"),
        ('{"messages": [1]}', "1: has no text; write an object with `prompt`, `text` or"),
        ("", "has no prompts; write one JSON object a line"),
    ],
)
def test_a_bad_line_of_prompts_is_named(llm: LLM, tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(RequestError) as error:
        read_prompts(path, llm.tokenizer, 20)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_text_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"tokens": [1, 2], "learned": 1}\n{"tokens": 3}\n')
    with pytest.raises(RequestError, match=r"texts.jsonl:2: not a text of train-head"):
        read_kept(path)


def test_few_texts_are_held_out() -> None:
    texts = [Text([i, i, i], 1) for i in range(200)] + [Text([1, 2], 1)]
    trained, held = split(texts)
    assert len(held) == 4
    assert sorted(each.tokens[0] for each in trained + held) == list(range(200))


def test_a_lesson_is_what_the_model_computes(
    llm: LLM, model: Path, rng: np.random.Generator
) -> None:
    tokens = rng.integers(0, 250, 40).tolist()
    settings = settings_for(model, layers=(0, 2, 4))
    ids = np.sort(rng.choice(SHAPE.vocab, 50, replace=False))
    lesson = Teacher(llm.model, settings, ids).lesson(tokens)
    logits = llm.model.logits(tokens)
    features = llm.model.features(tokens, [0, 2, 4]).astype(np.uint32) << 16
    assert np.array_equal(lesson.logits, logits[:, ids])
    assert np.array_equal(lesson.features, features.view(np.float32).reshape(40, -1))
    assert lesson.is_known.tolist() == np.isin(logits.argmax(1), ids).tolist()
    assert llm.model.decoder.tapped == []


def test_our_loader_reads_the_configuration(model: Path, tmp_path: Path) -> None:
    config, settings = read_config(model), settings_for(model, layers=(1, 3))
    files.write_json(tmp_path / files.CONFIG, files.head_config(config, settings, 10000.0))
    read = read_head_config(tmp_path, config)
    assert read.taps == (1, 3)
    assert (read.num_heads, read.num_kv_heads) == (config.num_heads, config.num_kv_heads)
    assert read.rope.theta == 10000.0
    assert not read.keeps_normed
    assert not read.recycles_normed


def test_a_directory_goes_on_with_its_own_settings_only(model: Path, tmp_path: Path) -> None:
    out, sources = tmp_path / "new" / "head", {"texts": None, "prompts": "p.jsonl"}
    course = files.begin_directory(out, settings_for(model), "model", sources)
    assert files.begin_directory(out, settings_for(model), "model", sources) == course
    with pytest.raises(RequestError, match=r"was begun with 'rate' 0.001, not 0.002; give the"):
        files.begin_directory(out, settings_for(model, rate=2e-3), "model", sources)
    with pytest.raises(RequestError, match=r"was begun with 'model' 'model', not 'other'"):
        files.begin_directory(out, settings_for(model), "other", sources)


@pytest.mark.parametrize("content", ["", "[]", '{"settings": 3}', "[" * 100_000])
def test_a_damaged_course_is_told(model: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / files.COURSE).write_text(content)
    with pytest.raises(RequestError, match=r"name a new directory") as error:
        files.begin_directory(tmp_path, settings_for(model), "model", {})
    assert "\n" not in str(error.value)


def test_a_directory_of_something_else_is_left_alone(model: Path, tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "diary.txt"):
        with pytest.raises(RequestError, match=r"exists and is no training of a head"):
            files.begin_directory(out, settings_for(model), "model", {})
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"layers": (2, 1)}, "--layers [2, 1]: give ascending numbers from 0 to 4"),
        ({"layers": (0, 5)}, "--layers [0, 5]: give ascending numbers from 0 to 4"),
        ({"vocabulary": 10**9}, "--vocabulary 1000000000: the model has"),
        ({"length": 3}, "--length 3: give at least 16 tokens"),
    ],
)
def test_bad_settings_are_refused(model: Path, changed: dict[str, int], problem: str) -> None:
    with pytest.raises(RequestError) as error:
        settings_for(model, **changed)
    assert str(error.value).startswith(problem)


def test_records_are_one_json_object_a_line(tmp_path: Path) -> None:
    keep_texts(tmp_path / "texts.jsonl", [Text([1, 2, 3], 2)])
    [line] = (tmp_path / "texts.jsonl").read_text().splitlines()
    assert json.loads(line) == {"tokens": [1, 2, 3], "learned": 2}
