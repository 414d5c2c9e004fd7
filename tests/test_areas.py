"""Every test file can be found by the area that it tests."""

from pathlib import Path

from support.areas import AREAS, belongs

TESTS = sorted(path.name for path in Path(__file__).parent.glob("test_*.py"))


def test_every_test_file_belongs_to_an_area() -> None:
    assert [name for name in TESTS if not any(belongs(name, area) for area in AREAS)] == []


def test_every_pattern_of_an_area_finds_a_test_file() -> None:
    for area, patterns in AREAS.items():
        for pattern in patterns.split():
            found = Path(__file__).parent.glob(f"test_{pattern}.py")
            assert any(found), f"{area}: no test file matches {pattern}"


def test_every_folder_of_the_core_is_an_area() -> None:
    core = Path(__file__).parent.parent / "csrc"
    folders = {path.name for path in core.iterdir() if path.is_dir()}
    assert folders - {"bindings"} <= set(AREAS)
