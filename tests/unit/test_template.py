"""Templates make keys that other services can make too, and that two different calls never share."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidOption, InvalidPayload
from holdfast.template import LONGEST, Template

# A loaded machine is no failure: nothing here is judged by the wall clock.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Characters that templates and percent-encoding use themselves are drawn often: that is where collisions would be.
TRICKY_TEXT = st.text(alphabet=st.sampled_from("ab:%/_-.{}3A5F \x00\né→"), max_size=12) | st.text(max_size=12)
SCALARS = (
    TRICKY_TEXT | st.integers(-(2**63), 2**64 - 1) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
)


@pytest.mark.parametrize(
    ("text", "arguments", "key"),
    [
        ("charge:{order_id}", {"order_id": 7}, "charge:7"),
        ("{user.id}", {"user": {"id": "u1"}}, "u1"),
        ("{a.b.c}", {"a": {"b": {"c": True}}}, "true"),
        ("{a}", {"a": False}, "false"),
        ("{a}", {"a": 1.5}, "1.5"),
        ("{a}", {"a": 1e22}, "1e22"),
        ("{{{a}}}", {"a": "x"}, "{x}"),
        ("{{a}}", {"a": "x"}, "{a}"),
        ("stripe", {}, "stripe"),
        ("{a}:{a}", {"a": 1}, "1:1"),
        ("{größe}", {"größe": 3}, "3"),
    ],
)
def test_a_template_renders_names_in_braces(text: str, arguments: dict[str, Any], key: str) -> None:
    assert Template(text).render(arguments) == key


@pytest.mark.parametrize(
    "text",
    [
        "{0}",
        "{}",
        "{a!r}",
        "{a:>5}",
        "{a",
        "a}",
        "{a}}",
        "{",
        "}",
        "{{a}",
        "{ a }",
        "{a.}",
        "{.a}",
        "{a..b}",
        "{a[0]}",
        "{a.0}",
        "{_a}",
        "{a._b}",
        "{a.__class__}",
        "{a-b}",
        "{{{a}}",
        "{a{b}}",
    ],
)
def test_anything_but_dotted_names_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"is not allowed\. Use names of parameters in braces"):
        Template(text)


@pytest.mark.parametrize("text", ["", "x" * (LONGEST + 1), "a\x00b", "a\nb", "\ud800", 5, None])
def test_a_template_is_a_short_clean_text(text: Any) -> None:
    with pytest.raises(InvalidOption, match="A template must be"):
        Template(text)


@pytest.mark.parametrize("text", ["{a}{b}", "{a}x{b}", "{a}%{b}", "{a}:{b}{c}", "{a}é{b}"])
def test_placeholders_need_a_separator_between_them(text: str) -> None:
    with pytest.raises(InvalidOption, match="put a separator"):
        Template(text)


def test_names_are_the_parameters_each_once_and_in_order() -> None:
    assert Template("{b.x}:{a}:{b.y}").names == ("b", "a")
    assert Template("constant").names == ()


def test_an_unknown_name_is_found_at_import() -> None:
    template = Template("{tenant}:{order}")
    template.check(["order", "tenant", "cents"])
    with pytest.raises(InvalidOption, match=r"no parameter order\. The task takes tenant, cents"):
        template.check(["tenant", "cents"])
    with pytest.raises(InvalidOption, match="The task takes nothing"):
        template.check([])


def test_a_task_with_any_arguments_may_have_any_names() -> None:
    template = Template("{tenant}")
    with pytest.raises(InvalidOption):
        template.check(["a"])
    template.check(["a"], extra=True)
    assert template.render({"tenant": "acme"}) == "acme"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "is missing"),
        ({"user": {}}, "is missing"),
        ({"user": "text"}, "is missing"),
        ({"user": [1]}, "is missing"),
        ({"user": None}, "is missing"),
        ({"user": {"id": None}}, "is None"),
        ({"user": {"id": {}}}, "is not a text"),
        ({"user": {"id": ["secret"]}}, "is not a text"),
        ({"user": {"id": math.nan}}, "is not a text"),
        ({"user": {"id": math.inf}}, "is not a text"),
        ({"user": {"id": 2**64}}, "is not a text"),
        ({"user": {"id": 10**5000}}, "is not a text"),
        ({"user": {"id": object()}}, "is not a text"),
        ({"user": {"id": "secret\ud800"}}, "surrogate"),
    ],
)
def test_a_value_that_makes_no_key_is_refused_by_name(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidPayload, match=f"argument user.id .*{problem}") as caught:
        Template("{user.id}").render(arguments)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("value", "length"), [("", 0), ("x" * 513, 513), ("\x01" * 171, 513)])
def test_a_key_is_neither_empty_nor_too_long(value: str, length: int) -> None:
    with pytest.raises(InvalidPayload, match=rf"1 to 512 characters, this one has {length}\b"):
        Template("{a}").render({"a": value})


def test_a_key_may_have_exactly_the_longest_length() -> None:
    assert len(Template("{a}").render({"a": "x" * LONGEST})) == LONGEST


def test_defaults_stand_in_for_arguments_that_were_not_given() -> None:
    template = Template("{url}:{size}")
    assert template.render({"url": "u"}, {"size": 100}) == "u:100"
    assert template.render({"url": "u", "size": 5}, {"size": 100}) == "u:5"
    with pytest.raises(InvalidPayload, match="size is None"):
        template.render({"url": "u", "size": None}, {"size": 100})


def test_separators_inside_values_are_encoded_only_where_they_separate() -> None:
    assert Template("{a}:{b}").render({"a": "x:y", "b": "z"}) == "x%3Ay:z"
    assert Template("{a}:{b}").render({"a": "x", "b": "y:z"}) == "x:y%3Az"
    assert Template("url:{a}").render({"a": "https://a/b"}) == "url:https://a/b"
    assert Template("{a}→{b}").render({"a": "1→2", "b": "-:"}) == "1%E2%86%922→-:"


def test_percent_and_control_characters_are_always_encoded() -> None:
    assert Template("{a}").render({"a": "100%\x00\x7f\x85"}) == "100%25%00%7F%C2%85"


@pytest.mark.parametrize(
    ("before", "between", "after"),
    [
        ("", ":", ""),
        ("", "_", ""),
        ("k/", "-x-", ""),
        ("", "3A:", ""),
        ("", ": :", "!"),
        ("{", "}{", "}"),
        (":", "→é→", "%"),
    ],
)
@PATIENT
@given(first=SCALARS, second=SCALARS)
def test_every_value_can_be_told_from_the_key(before: str, between: str, after: str, first: Any, second: Any) -> None:
    text = "{a}".join([_escaped(before), _escaped(between) + "{b}" + _escaped(after)])
    key = Template(text).render({"a": first, "b": second})
    inner = key.removeprefix(before).removesuffix(after)
    recovered = [unquote(value) for value in inner.split(between, maxsplit=1)]
    assert recovered == [_as_text(first), _as_text(second)]


@PATIENT
@given(left=TRICKY_TEXT, middle=TRICKY_TEXT, right=TRICKY_TEXT)
def test_a_separator_cannot_be_moved_from_one_value_to_another(left: str, middle: str, right: str) -> None:
    template = Template("{a}:{b}")
    one = template.render({"a": f"{left}:{middle}", "b": right})
    other = template.render({"a": left, "b": f"{middle}:{right}"})
    assert one != other


@PATIENT
@given(value=st.text(min_size=1, max_size=40))
def test_a_key_is_printable_in_any_database(value: str) -> None:
    key = Template("{a}").render({"a": value})
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in key)
    assert key.encode()


def test_templates_are_equal_by_their_text() -> None:
    assert Template("{a}") == Template("{a}")
    assert hash(Template("{a}")) == hash(Template("{a}"))
    assert Template("{a}") != Template("{b}")
    assert Template("{a}") != "{a}"
    assert repr(Template("{a}")) == "Template('{a}')"


def _escaped(literal: str) -> str:
    return literal.replace("{", "{{").replace("}", "}}")


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
