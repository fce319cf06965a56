"""Names of methods: kinds, shapes, vocabularies, and which full vocabulary each is measured against."""

import pytest

from hothead.bench.methods import Method, full_of, is_hot, parse_method, split_names
from hothead.errors import InputError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", Method("plain")),
        ("full k=6", Method("full", (6, 1, 7))),
        ("dynamic k=6 p=.25 slots=64", Method("dynamic", (6, 1, 7), slots=64, p_min=0.25)),
        ("full p=1", Method("full", p_min=1.0)),
        ("static 5/4/12 v=0.1 p=0.2", Method("static", (5, 4, 12), p_min=0.2, verify_p_min=0.1)),
        ("static tree", Method("static", (3, 4, 8))),
        ("dynamic 4/8/16 size=4096 slots=0", Method("dynamic", (4, 8, 16), 4096, 0)),
        ("static size=2048 k=2", Method("static", (2, 1, 3), 2048)),
        ("full_refresh size=64", Method("full_refresh", None, 64)),
    ],
)
def test_names_are_read(name: str, expected: Method) -> None:
    assert parse_method(name, tree="3/4/8") == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("turbo", "no method is called 'turbo'"),
        ("", "no method is called ''"),
        ("static fast", "'fast' is none of tree"),
        ("static k=", "'k=' is none of tree"),
        ("static p=x", "'p=x' is none of tree"),
        ("plain p=0.5", "plain has no use for p=0.5"),
        ("static tree k=3", "gives two shapes"),
        ("plain tree", "plain has no use for tree"),
        ("full size=64", "full has no use for size=64"),
        ("static slots=64", "static has no use for slots=64"),
    ],
)
def test_names_that_mean_nothing_are_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_method(name)


def test_a_trees_shape_must_be_one() -> None:
    with pytest.raises(InputError, match="as in 4/4/12; found 'wide'"):
        parse_method("full tree", tree="wide")


def test_a_list_of_names() -> None:
    assert split_names(" plain, full  tree,,static k=2") == ("plain", "full tree", "static k=2")


def test_each_is_measured_against_the_full_vocabulary_of_its_shape() -> None:
    names = ("plain", "full", "full tree", "static", "static 4/4/12", "dynamic k=2", "vllm")
    found = {name: full_of(name, names) for name in names}
    assert found == {
        "plain": "full",
        "full": None,
        "full tree": None,
        "static": "full",
        "static 4/4/12": "full tree",
        "dynamic k=2": "full",
        "vllm": "full",
    }
    assert full_of("static", ("plain", "static")) is None
    assert full_of("static k=6 p=0.3", ("full k=6", "full k=6 p=.30", "static k=6 p=0.3")) == "full k=6 p=.30"
    trees = ("full 5/4/12 p=0.2", "full 5/4/12 p=0.2 v=.1", "dynamic 5/4/12 v=0.1 p=0.2")
    assert full_of(trees[2], trees) == trees[1]
    assert full_of("static k=6 p=0.3", ("full", "full k=6 p=0.5", "static k=6 p=0.3")) == "full k=6 p=0.5"
    assert [name for name in names if is_hot(name)] == ["static", "static 4/4/12", "dynamic k=2"]
