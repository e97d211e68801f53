"""Selectors: what they match, and what they say when they match nothing."""

from __future__ import annotations

import pytest

from lcplan.base.diagnostics import LcplanError
from lcplan.base.select import Selector, select

FACTS = {"stack": "glm53_flash", "experiment": ["million", "scaling"], "prompt": 524288, "quad": None, "users": 4}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stack=glm53*", True),
        ("stack=glm53", False),
        ("stack=GLM53*", False),
        ("stack!=glm53*", False),
        ("experiment=scaling", True),
        ("experiment!=scaling", False),
        ("prompt=512K", True),
        ("prompt=5*", True),
        ("prompt>=524288", True),
        ("prompt>512K", False),
        ("prompt<=0.5", False),
        ("prompt >= 512K , users < 8", True),
        ("stack=glm*,users=8", False),
        ("quad=", True),
        ("quad=a", False),
        ("depth=1", False),
        ("stack>=4", False),
    ],
)
def test_terms(text: str, expected: bool) -> None:
    assert Selector.parse(text).matches(FACTS) is expected


@pytest.mark.parametrize("text", ["", "stack", "=x", "stack=a,", "prompt>=many", "sta ck=a"])
def test_bad_selectors(text: str) -> None:
    with pytest.raises(LcplanError) as caught:
        Selector.parse(text)
    assert caught.value.diagnostics[0].code == "bad-selector"


def test_several_options_are_a_union_in_the_order_of_the_items() -> None:
    items = [{"stack": name} for name in "abc"]
    assert select(["stack=c", "stack=a"], items, lambda item: item) == [items[0], items[2]]
    assert select([], items, lambda item: item) == items


def test_an_option_that_matches_nothing_lists_the_keys() -> None:
    with pytest.raises(LcplanError) as caught:
        select(["stak=a"], [FACTS], lambda item: item)
    (found,) = caught.value.diagnostics
    assert found.code == "selector-matches-nothing"
    assert "did you mean 'stack'?" in found.hint
    assert "experiment, prompt, quad, stack, users" in found.hint
