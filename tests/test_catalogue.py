"""The catalogue of well-known models, and which of them fit a machine."""

import json
import re
from pathlib import Path

import pytest

from specqd.config.families import FAMILIES, text_types
from specqd.hub import SHORT_NAMES
from specqd.hub.catalogue import ACCEPTANCE, CATALOGUE, Entry, fitting
from specqd.siblings import sibling_of
from support.command_line import Run

PAGE = Path(__file__).parent.parent / "docs" / "choose-a-model.md"
BY_NAME = {each.name: each for each in CATALOGUE}
each_entry = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)


@each_entry
def test_each_model_is_of_a_family_that_is_supported(entry: Entry) -> None:
    assert entry.model_type in FAMILIES or text_types(entry.model_type)


@each_entry
def test_numbers_of_weights_fit_together(entry: Entry) -> None:
    assert 0 < entry.read <= entry.weights - entry.untied + 2e-3
    assert 0 <= entry.read_mxfp4 <= entry.mxfp4 < entry.weights
    is_sparse = entry.read < entry.weights - entry.untied - 2e-3
    size = entry.name.partition(":")[2]
    assert is_sparse == ("-a" in size or entry.model_type == "gpt_oss")
    assert bool(entry.experts) == ("-a" in size)
    if entry.experts:  # a router chooses 8 of 128, 4 of 64, 4 of 32 or 8 of 256
        chosen = entry.experts - (entry.weights - entry.untied - entry.read)
        assert 1 / (chosen / entry.experts) == pytest.approx(
            {"lfm2_moe": 8, "qwen3_5_moe": 32}.get(entry.model_type, 16), rel=0.01
        )
    if named := re.fullmatch(r"([\d.]+)([mb])(-a.*)?", size):
        stated = float(named[1]) / (1 if named[2] == "b" else 1000)
        assert entry.weights == pytest.approx(stated, rel=0.5)  # names round


def test_the_families_of_the_year_have_names() -> None:
    names = "qwen3.5 qwen3.6 qwen3.8 gemma4 gpt-oss lfm2 lfm2.5 glm4 glm4.7-flash smollm3 olmo3"
    families = {name.partition(":")[0] for name in SHORT_NAMES}
    assert set(names.split()) <= families


def test_models_with_mtp_layers_and_small_models_are_named() -> None:
    with_mtp = {each.name.partition(":")[0] for each in CATALOGUE if each.has_mtp}
    assert with_mtp == {"qwen3.5", "qwen3.6", "qwen3.8", "glm4.7-flash"}
    assert not BY_NAME["gpt-oss:20b"].has_own_draft
    assert sibling_of(BY_NAME["qwen3.5:9b"].repository) == BY_NAME["qwen3.5:0.8b"].repository


def test_plain_speed_is_bandwidth_over_bytes() -> None:
    entry = Entry("a:1b", "a/b", "llama", 1.0, 1.0, 10.0)
    assert entry.memory_gb == pytest.approx(1.625)
    assert entry.needed_gb(1000) == pytest.approx(1.625 + 0.01 + 0.5)
    assert entry.speed(16.25, drafts=False) == pytest.approx(10)


def test_drafted_speed_is_that_of_the_capacity_model() -> None:
    """docs/scale.md: E / T with the best number of drafted tokens."""
    entry = Entry("a:8b", "a/b", "llama", 8.0, 8.0, 131.0)
    speeds = []
    for k in range(20):
        tokens = (1 - ACCEPTANCE ** (k + 1)) / (1 - ACCEPTANCE)
        speeds.append(tokens / ((8 * 13 / 8 + k * 8 * 4.25 / 8) / 300))
    assert entry.speed(300, drafts=True) == pytest.approx(max(speeds))
    assert entry.speed(300, drafts=True) > 1.5 * entry.speed(300, drafts=False)


def test_verified_rows_of_a_model_with_experts_read_more_of_them() -> None:
    """Of 8 experts a row chooses 2, so two rows choose 3.5 on average."""
    entry = Entry("a:5b-a2b", "a/b", "qwen3_moe", 5.0, 2.0, 1.0, experts=4.0)
    dense = Entry("a:2b", "a/b", "qwen3", 2.0, 2.0, 1.0)
    assert entry.speed(40, drafts=False) == pytest.approx(dense.speed(40, drafts=False))
    assert entry.speed(40, drafts=True) < dense.speed(40, drafts=True)
    assert entry._exact_gb(2) == pytest.approx((1 + 4.0 * 3.5 / 8) * 13 / 8)


def test_models_that_fit_are_the_largest_first() -> None:
    found = list(fitting(14.5, 4096))
    assert found == sorted(found, key=lambda each: -each.weights)
    assert all(each.needed_gb(4096) <= 14.5 for each in found)
    assert "mistral:7b" in {each.name for each in found}
    assert not any(each.embeds for each in found)
    assert {each.name for each in fitting(14.5, 32768)} < {each.name for each in found}


def test_models_for_a_machine_are_listed(run: Run) -> None:
    status, out, err = run("models", "--for", "16g", "--bandwidth", "40")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("Models that fit into 14.5 GB with 4,096 tokens")
    [row] = [line for line in lines if line.startswith("qwen3.5:4b ")]
    entry = BY_NAME["qwen3.5:4b"]
    assert f"{entry.speed(40, drafts=False):.1f}" in row
    assert f"{entry.speed(40, drafts=True):.1f}" in row
    assert row.endswith("4 bits, mtp, qwen3.5:0.8b")
    assert "40.0 GB/s (given)" in out


def test_the_bandwidth_of_this_machine_is_measured(run: Run) -> None:
    status, out, _ = run("models", "--for", "here")
    assert status == 0
    assert "(measured here)" in out or out.startswith("no known model fits")


def test_a_machine_that_fits_no_model_is_answered(run: Run) -> None:
    status, out, _ = run("models", "--for", "2g", "--bandwidth", "40", "--context", "1024k")
    assert status == 0
    assert out.startswith("no known model fits into 0.5 GB; the smallest needs ")


def test_sizes_without_a_unit_are_refused(run: Run) -> None:
    status, _, err = run("models", "--for", "16")
    assert status == 2
    assert "'16' is not a size such as 16g" in err


def test_json_has_the_catalogue_and_the_models_that_fit(run: Run) -> None:
    status, out, _ = run("models", "--json", "--for", "16g", "--bandwidth", "40")
    content = json.loads(out)
    assert status == 0
    assert [each["name"] for each in content["catalogue"]] == list(SHORT_NAMES)
    assert content["for"]["bandwidth_gb_per_s"] == 40
    names = [each["name"] for each in content["for"]["models"]]
    assert names == [each.name for each in fitting(content["for"]["free_gb"], 4096)]


def test_the_page_has_the_same_numbers() -> None:
    rows = re.findall(r"^\| (`.*?`) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    shown = {}
    for names, cells in rows:
        for name in re.findall(r"`([^`]+)`", names):
            shown[name] = cells.split(" | ")
    assert {*shown} >= {*SHORT_NAMES}
    for name, entry in BY_NAME.items():
        weights, memory, cache, *_ = shown[name]
        assert weights == f"{entry.weights:.2f}"
        assert memory == f"{entry.memory_gb:.1f}"
        assert cache == f"{entry.cache_kb:.0f}"
