"""Numbers are read as they are written, in English and Chinese, with what stands around them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies import answer_text, numerals


def read(text: str) -> list[float]:
    return [number.value for number in numerals.numbers(answer_text.normalised(text))]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A loan lasts 14 working days.", [14]),
        ("It costs 1,200.50 EUR, not 99.", [1200.5, 99]),
        ("1'250'000 or 1.234,50 or 12\u202f000 or 5\u00a0200", [1_250_000, 1234.5, 12_000, 5200]),
        ("1.5 million people, 3 thousand", [1_500_000, 3000]),
        ("-5 °C, minus 7, −2.5, 10-20 days, 2026-03-04", [-5, -7, -2.5, 10, 20, 2026, 3, 4]),
        ("Fourteen days, then twenty-one, then thirty-five; one of them, a day.", [14, 21, 35]),
        ("two hundred and fifty, a hundred, one thousand two hundred and five", [250, 100, 1205]),
        ("three million four hundred thousand, two and three", [3_400_000, 2, 3]),
        ("call 555 0148", [555, 148]),
        ("借期为十四天，续借一次。", [14, 1]),
        ("共二千三百零五元，或一万二千元", [2305, 12_000]),
        ("共三百一十万元", [3_100_000]),
        ("三亿二千万元、一万亿元、2.5亿元、3.5万元", [320_000_000, 1e12, 250_000_000, 35_000]),
        ("百分之二十，百分之7.5，三点一四元，零下5度，负三度", [20, 7.5, 3.14, -5, -3]),
        ("二零二六年三月十四日", [2026, 3, 14]),
        ("第12条，共500，300元", [12, 500, 300]),
        ("一般规定，统一办理，三千一般", []),
        ("It is in version v2 [3] and 【4】.", []),
    ],
)
def test_numbers_are_read_as_they_are_written_in_either_language(text: str, wanted: list[float]) -> None:
    assert read(text) == wanted


def test_what_stands_around_a_number_is_kept_for_its_unit() -> None:
    (number,) = numerals.numbers("up to € 14 working days")
    assert number.after.split() == ["working", "days"]
    assert number.before == "up to € "
    assert numerals.numbers("十四天")[0].after == "天"
    assert numerals.numbers("百分之二十的人")[0].after.startswith("%")


@given(st.integers(0, 10**15), st.sampled_from(["{:,}", "{}", "{:,}.25"]))
def test_a_figure_is_read_whether_or_not_its_thousands_are_parted(value: int, form: str) -> None:
    assert read(f"about {form.format(value)} in all") == [value + (0.25 if form.endswith("25") else 0)]


@given(st.text(alphabet="0123456789.,'-万亿百分之零一二十点 abcone two hundred", max_size=60))
def test_whatever_is_written_is_read_without_complaint(text: str) -> None:
    assert all(isinstance(value, float) for value in read(text))
