"""The page's files, their headers, and the fields of answers that the page shows."""

import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.text.token_texts import TokenTexts
from support.fixtures import a_server
from support.openai_client import CHAT, COMPLETIONS
from support.served import Served

pytest.importorskip("fastapi", reason="needs specqd[serve]")

from specqd.server.page import ASSETS

KEY = "a-key"


served = a_server("chat_model", "--draft", "fp4:k=3", "--draft", "ngram", key=KEY)


def stranger(served: Served) -> Served:
    """Returns a client without the key."""
    return Served(served.process, served.port)


def streamed(served: Served, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the choices of all chunks."""
    reply = served.ask("POST", path, body | {"stream": True})
    assert reply.status == 200, reply.body
    return [choice for chunk in reply.chunks for choice in chunk["choices"]]


# --- Files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ASSETS)
def test_files_need_no_key_and_have_a_strict_policy(served: Served, path: str) -> None:
    reply = stranger(served).ask("GET", path)
    assert reply.status == 200
    assert reply.headers["content-type"] == ASSETS[path].media_type
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-cache"
    policy = dict(
        part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["trusted-types"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    head = stranger(served).ask("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(reply.body))


def test_a_file_that_has_not_changed_is_not_sent_again(served: Served) -> None:
    tag = served.ask("GET", "/").headers["etag"]
    again = served.ask("GET", "/", headers={"If-None-Match": tag})
    assert (again.status, again.body) == (304, b"")
    assert served.ask("GET", "/", headers={"If-None-Match": '"another"'}).status == 200


def test_other_paths_are_not_served(served: Served) -> None:
    for path in ("/page/", "/page/__init__.py", "/page/../app.py", "/page/index.html", "/page.js"):
        assert served.ask("GET", path).status == 404
        assert stranger(served).ask("GET", path).status == 401
    assert served.ask("POST", "/", {}).status == 405


@pytest.mark.parametrize("path", ["/", "/page/page.js"])
def test_files_are_not_served_to_other_hosts_and_origins(served: Served, path: str) -> None:
    assert served.ask("GET", path, headers={"Host": "evil.example"}).status == 403
    assert served.ask("GET", path, headers={"Origin": "https://evil.example"}).status == 403


def test_files_name_no_other_host_and_contain_no_inline_code() -> None:
    names = {"http://www.w3.org/2000/svg", "https://github.com/markdown-it/markdown-it"}
    for path, asset in ASSETS.items():
        text = asset.body.decode()
        addresses = set(re.findall(r"https?://[^\s\"'`$<]+", text))
        assert addresses <= names, (
            path
        )  # names of a format and of a project; nothing is fetched from there
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    markup = ASSETS["/"].body.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", markup)
    assert set(re.findall(r"<script[^>]*>([^<]*)</script>", markup)) == {""}
    assert set(re.findall(r'(?:src|href)="(/[^"]*)"', markup)) <= set(ASSETS)


def test_every_file_of_the_page_is_served_and_vendored_ones_have_their_licences() -> None:
    folder = Path(files("specqd.server.page"))
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    ours = {path for path in found if path.suffix in (".js", ".css", ".svg", ".html")}
    served = {Path(path).relative_to("/page") for path in ASSETS if path != "/"}
    assert ours == served | {Path("index.html")}
    licences = (folder / "vendor" / "LICENSE.markdown-it").read_text()
    for name in ("markdown-it", "entities", "linkify-it", "mdurl", "punycode.js", "uc.micro"):
        assert f"--- {name}\n" in licences


# --- /page/facts ------------------------------------------------------------------------------


def test_facts_need_the_key(served: Served) -> None:
    assert stranger(served).ask("GET", "/page/facts").status == 401
    facts = served.ask("GET", "/page/facts").content
    assert facts["model"] == "small"
    assert facts["has_chat_template"] is True
    assert facts["max_context"] == 512
    assert facts["chain"] == ["bf16", "fp4", "ngram"]
    assert set(facts["bandwidth"]) == {"bf16", "fp4"}
    assert all(speed > 0 for speed in facts["bandwidth"].values())


# --- return_origins ---------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [[], ["e"], ["th", "ab"]])
def test_every_token_has_an_origin_and_their_texts_join_to_the_text(
    served: Served, llm: LLM, rng: np.random.Generator, stop: list[str]
) -> None:
    prompt = rng.integers(0, 256, 20).tolist()
    params = {"temperature": 0.9, "seed": int(rng.integers(1 << 40)), "max_tokens": 60, "n": 2}
    body = {"prompt": prompt, "return_origins": True, "stop": stop, **params}
    expected = llm.generate([prompt], SamplingParams(**params, stop=stop))[0].completions
    choices = streamed(served, COMPLETIONS, body)
    whole = served.ask("POST", COMPLETIONS, body).content["choices"]
    for i, completion in enumerate(expected):
        mine = [choice for choice in choices if choice["index"] == i]
        origins = [origin for choice in mine for origin in choice["origins"]]
        assert len(origins) == len(completion.tokens)
        assert "".join(origin["text"] for origin in origins) == completion.text
        assert "".join(choice["text"] for choice in mine) == completion.text
        ours = [origin.probability for origin in completion.origins]
        assert [origin["probability"] for origin in origins] == ours
        for origin in origins:
            assert origin["level"] == ["bf16", "fp4", "ngram"][origin["depth"]]
        texts = [origin["text"] for origin in whole[i]["origins"]]
        assert texts == [origin["text"] for origin in origins]


def test_chats_have_origins_too(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30, "seed": 2}
    choices = streamed(served, CHAT, body | {"return_origins": True})
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    origins = [origin for choice in choices for origin in choice.get("origins", [])]
    assert "".join(origin["text"] for origin in origins) == text
    whole = served.ask("POST", CHAT, body | {"return_origins": True}).content["choices"][0]
    assert "".join(origin["text"] for origin in whole["origins"]) == text


def test_answers_have_no_origins_without_return_origins(served: Served) -> None:
    body = {"prompt": "Hello", "max_tokens": 9, "seed": 2}
    assert not any("origins" in choice for choice in streamed(served, COMPLETIONS, body))
    for value in ("yes", 1):
        refused = served.ask("POST", COMPLETIONS, body | {"return_origins": value})
        assert refused.error["param"] == "return_origins"


class Pieces:
    """A text stream with a given text for each token."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def feed(self, token_ids: Iterable[int]) -> str:
        return "".join(self.texts[token_id] for token_id in token_ids)


def test_text_that_was_held_back_belongs_to_its_own_token() -> None:
    texts = TokenTexts(Pieces(["ab", "", "cd", "ef"]))
    assert texts.feed([0, 1], "ab", is_last=False) == ["ab", ""]
    assert texts.feed([2], "c", is_last=False) == []
    assert texts.feed([3], "def!", is_last=True) == ["cd", "ef!"]


def test_text_cut_by_a_stop_string_belongs_to_no_token() -> None:
    texts = TokenTexts(Pieces(["ab", "cd", "ef"]))
    assert texts.feed([0, 1, 2], "abc", is_last=True) == ["ab", "c", ""]


# --- return_progress --------------------------------------------------------------------------


def test_progress_counts_from_the_first_tokens_on(served: Served, rng: np.random.Generator) -> None:
    body = {"prompt": rng.integers(0, 256, 90).tolist(), "max_tokens": 60, "ignore_eos": True}
    body |= {"return_progress": True, "return_origins": True, "temperature": 0}
    choices = [each for each in streamed(served, COMPLETIONS, body) if "progress" in each]
    first, *_, last = [choice["progress"] for choice in choices]
    assert first["seconds"] == 0
    assert {level["forwards"] for level in first["levels"]} == {0}
    seconds = [choice["progress"]["seconds"] for choice in choices]
    assert seconds == sorted(seconds)
    assert not last["is_shared"]
    target, draft = last["levels"]
    assert [target["name"], draft["name"]] == ["bf16", "fp4"]
    later = [origin for choice in choices[1:] for origin in choice["origins"]]
    assert target["accepted"] == sum(origin["depth"] > 0 for origin in later)
    assert target["accepted"] <= target["drafted"]
    assert target["forwards"] >= len(choices) - 1
    assert target["forwards"] + target["accepted"] == len(later)
    assert 0 < target["seconds"] < last["seconds"]
    assert target["gigabytes"] > 0


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_streams_say_how_far_the_prompt_is_read(
    served: Served, path: str, rng: np.random.Generator
) -> None:
    text = "".join(map(chr, rng.integers(97, 123, 400)))
    messages = {"messages": [{"role": "user", "content": text}]}
    asked = {"prompt": text} if path == COMPLETIONS else messages
    body = asked | {"max_tokens": 9, "stream": True, "return_progress": True, "temperature": 0}
    expected = text_of(served.ask("POST", path, body | {"return_progress": False}).chunks)
    for cached in (0, 384):
        salted = body | {"cache_salt": f"{path} {len(expected)}"}
        chunks = served.ask("POST", path, salted).chunks
        parts = [each["prompt_progress"] for each in chunks if "prompt_progress" in each]
        reads = [part["processed"] for part in parts]
        assert reads == sorted(reads)
        last = parts[-1]
        assert last.keys() == {"total", "cache", "processed", "time_ms"}
        assert last["processed"] == last["total"] >= len(text)
        assert {part["cache"] for part in parts} == {cached}
        assert all(isinstance(part["time_ms"], int) for part in parts)
        at = [i for i, each in enumerate(chunks) if "prompt_progress" in each]
        assert at == list(range(at[0], at[0] + len(at))), "no other chunk comes between them"
        assert text_of(chunks[: at[-1] + 1]) == ""
        assert text_of(chunks) == expected
    unasked = served.ask("POST", path, body | {"return_progress": False}).chunks
    assert not any("prompt_progress" in each for each in unasked)


def text_of(chunks: list[dict[str, Any]]) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        for choice in choices
    )


def test_progress_needs_a_stream(served: Served) -> None:
    reply = served.ask("POST", COMPLETIONS, {"prompt": "x", "return_progress": True})
    assert (reply.status, reply.error["param"]) == (400, "return_progress")
    plain = streamed(served, COMPLETIONS, {"prompt": "x"})
    assert not any("progress" in choice for choice in plain)


def test_the_metrics_have_every_name_that_the_chart_reads(served: Served) -> None:
    served.ask("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 20, "temperature": 0})
    names = set(re.findall(r'"((?:vllm|specqd):\w+)"', ASSETS["/page/live.js"].body.decode()))
    assert len(names) == 5
    for name in names:
        served.metric(name)  # fails where it is missing


# --- draft: none ------------------------------------------------------------------------------


def test_draft_none_gives_the_same_answer_without_drafting(
    served: Served, rng: np.random.Generator
) -> None:
    body = {"prompt": rng.integers(0, 256, 30).tolist(), "max_tokens": 50, "temperature": 0.8}
    body |= {"seed": int(rng.integers(1 << 40)), "return_token_ids": True, "return_origins": True}
    drafted = served.ask("POST", COMPLETIONS, body).content["choices"][0]
    name = "vllm:spec_decode_num_draft_tokens_total"
    before = served.metric(name)
    plain = served.ask("POST", COMPLETIONS, body | {"draft": "none"}).content["choices"][0]
    assert served.metric(name) == before > 0
    assert plain["token_ids"] == drafted["token_ids"]
    assert plain["text"] == drafted["text"]
    assert {origin["depth"] for origin in plain["origins"]} == {0}


def test_a_request_cannot_choose_another_draft(served: Served) -> None:
    for draft in ("fp4", "auto", "", 1):
        reply = served.ask("POST", COMPLETIONS, {"prompt": "x", "draft": draft})
        assert (reply.status, reply.error["param"]) == (400, "draft")
