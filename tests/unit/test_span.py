from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import InvalidOption
from holdfast.span import LONGEST, format_span, parse_span

MICROSECONDS = {
    "w": 604_800_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
}

spans = st.timedeltas(min_value=timedelta(0), max_value=LONGEST)
whole_milliseconds = st.integers(0, LONGEST // timedelta(milliseconds=1)).map(
    lambda count: timedelta(milliseconds=count)
)


@st.composite
def written_spans(draw: st.DrawFn) -> tuple[str, timedelta]:
    """A span in writing, and how long it is, counted in whole microseconds."""
    units = [unit for unit in MICROSECONDS if draw(st.booleans())] or ["s"]
    text, total = "", Decimal(0)
    for unit in units:
        number = draw(st.decimals(0, 90, places=draw(st.integers(0, 3))))
        text += f"{number}{unit}"
        total += number * MICROSECONDS[unit]
    return text, timedelta(microseconds=round(total))


@given(written_spans())
def test_a_written_span_is_the_sum_of_its_parts(written: tuple[str, timedelta]) -> None:
    text, length = written
    assert abs(parse_span(text) - length) <= timedelta(microseconds=1)


@given(written_spans())
def test_case_and_outer_or_separating_spaces_do_not_matter(written: tuple[str, timedelta]) -> None:
    text, _ = written
    spaced = "".join(f" {sign}" if sign.isalpha() and not before.isalpha() else sign for before, sign in pairs(text))
    assert parse_span(f"  {spaced.upper()} ") == parse_span(text)


def pairs(text: str) -> list[tuple[str, str]]:
    return list(zip(f" {text}", text, strict=False))


@given(whole_milliseconds)
def test_what_format_span_writes_is_read_back(span: timedelta) -> None:
    assert parse_span(format_span(span)) == span


@given(spans)
@example(timedelta(microseconds=400))
def test_format_span_keeps_even_a_microsecond(span: timedelta) -> None:
    assert parse_span(format_span(span)) == span


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(seconds=30), "30s"),
        (timedelta(seconds=5400), "1h30m"),
        (timedelta(days=8, seconds=1), "1w1d1s"),
        (LONGEST, "521w3d"),
    ],
)
def test_spans_are_written_in_the_largest_units(span: timedelta, text: str) -> None:
    assert format_span(span) == text


@given(spans)
def test_a_timedelta_is_taken_as_it_is(span: timedelta) -> None:
    assert parse_span(span) == span


@given(st.integers(0, int(LONGEST.total_seconds())) | st.floats(0, LONGEST.total_seconds()))
def test_a_number_is_seconds(seconds: float) -> None:
    assert parse_span(seconds) == timedelta(seconds=seconds)


@given(st.text() | st.text(alphabet="0123456789. wdhms") | st.integers() | st.floats() | st.timedeltas() | st.none())
def test_anything_is_either_a_span_of_up_to_ten_years_or_an_invalid_option(value: Any) -> None:
    try:
        span = parse_span(value)
    except InvalidOption:
        return
    assert timedelta(0) <= span <= LONGEST


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "30",
        "s",
        "-5s",
        "1.s",
        ".5s",
        "1h1h",
        "30m1h",
        "5 minutes",
        "1h,30m",
        "1e3s",
        "0x1s",
        "1y",
        "s5",
        "1.5.5s",
    ],
)
def test_text_that_is_not_a_span_is_refused(value: str) -> None:
    with pytest.raises(InvalidOption, match=r"is not a span\. Write '30s'"):
        parse_span(value)


@pytest.mark.parametrize("value", ["1 0s", "5 m s", "1 . 5s"])
def test_a_space_inside_a_number_or_a_unit_is_not_overlooked(value: str) -> None:
    with pytest.raises(InvalidOption):
        parse_span(value)


@pytest.mark.parametrize(
    "value", [True, False, None, float("nan"), float("inf"), -float("inf"), [30], b"30s", Decimal(30), 1j]
)
def test_a_value_that_is_no_length_of_time_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match="is not a span"):
        parse_span(value)


@pytest.mark.parametrize("value", [-1, -0.001, timedelta(microseconds=-1)])
def test_a_negative_span_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"is negative\. Spans start at 0"):
        parse_span(value)


@pytest.mark.parametrize("value", ["522w", "999999999999w", 315_360_001, 1e300, timedelta.max, "3650d1ms"])
def test_more_than_ten_years_are_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"longer than ten years\. Give a shorter span"):
        parse_span(value)


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000], ids=["10**400", "-10**400", "10**5000"])
def test_a_number_that_no_float_can_hold_is_refused_like_any_other(value: int) -> None:
    with pytest.raises(InvalidOption):
        parse_span(value)


@pytest.mark.parametrize("value", ["3650d", 315_360_000, LONGEST])
def test_ten_years_are_allowed(value: Any) -> None:
    assert parse_span(value) == LONGEST


@pytest.mark.parametrize("value", ["soon", None, -1, "999w"])
def test_the_error_names_the_option(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^Retry\(base\)="):
        parse_span(value, "Retry(base)")


@pytest.mark.parametrize("value", ["x" * 10_000, ["x" * 10_000]])
def test_the_error_stays_short_and_does_not_print_foreign_objects(value: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_span(value)
    assert len(str(caught.value)) < 200
