"""Which numbers does a text say? Figures, English words and Chinese numerals, each with what stands around it, where its unit is.

Thousands may be parted by commas, apostrophes or narrow spaces, or by dots where decimals follow a comma; scales (1.5 million,
3.5万) and signs (-5, minus 5, 零下5) are part of the number, and 百分之二十 is 20 with `%` behind it. "One" and "a" alone are no
numbers: they mostly stand for something else.
"""

import re
from typing import NamedTuple

from headrace.policies import answer_text


class Number(NamedTuple):
    """A figure, and what stands before and behind it: `14`, ` working days from`."""

    value: float
    after: str
    before: str = ""


_AFTER_CHARACTERS = 24
_BEFORE_CHARACTERS = 8

_HAN_DIGITS = {character: value for value, character in enumerate("零一二三四五六七八九")} | {
    "〇": 0,
    "两": 2,
}
_HAN_UNITS = {"十": 10, "百": 100, "千": 1000}
_HAN_SCALES = {"万": 10_000, "亿": 100_000_000}
_DIGITS = (
    r"(?:\d{1,3}(?:\.\d{3})+,\d{1,2}(?!\d)"  # 1.234,50: dots can only part thousands here
    r"|\d{1,18}(?:[,']\d{3}(?!\d)){0,6}(?:\.\d{1,18})?)"
)
# Without a unit behind it a numeral is mostly part of a word (一般, 统一).
_HAN_BEHIND = (
    r"(?=个(?:月|小时|工作日|自然日)|[天日周月年时分秒元块人份次章条页号级层倍%折名位美欧公千厘毫吨克米升度期门间台件家所套户辆株座亩岁]"
    r"|平方|立方|摄氏|小时|学分|课时)"
)
_HAN_DIGIT = r"[零〇一二两三四五六七八九]"
# Possessive: 三千一般 must not end as 三 with 千 behind it.
_HAN = rf"[零〇一二两三四五六七八九十百千万亿]{{1,16}}+(?:点{_HAN_DIGIT}{{1,6}}+)?"

_TEENS = (
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen",
    "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ENGLISH = {word: value for value, word in enumerate(_TEENS, 2)} | {
    word: 10 * value for value, word in enumerate(_TENS, 2)
}
_SCALES = {
    "hundred": 100,
    "thousand": 1000,
    "million": 1_000_000,
    "billion": 1_000_000_000,
    "万": 10_000,
    "亿": 100_000_000,
    "万亿": 1_000_000_000_000,
}
_SMALL = rf"(?:(?:{'|'.join(_ENGLISH)})(?:-(?:one|{'|'.join(_ENGLISH)}))?)"
_SCALE = r"(?:hundred|thousand|million|billion)"
_WORDS = rf"(?:a|one|{_SMALL})(?: {_SCALE}){{1,2}}(?: (?:and )?(?:one|{_SMALL})(?: {_SCALE}){{0,2}}){{0,4}}|{_SMALL}"
_SIGN = r"(?P<sign>(?<![\w)\]])[-−]|\bminus |零下|负)?"
_FIGURE = re.compile(
    rf"百分之(?:(?P<percent>\d{{1,9}}(?:\.\d{{1,9}})?)|(?P<han_percent>{_HAN}))"
    rf"|{_SIGN}(?P<digits>(?:(?<![\w.])|(?<=[\u3400-\u9fff])){_DIGITS})(?: ?(?P<scale>{_SCALE}\b|万亿|[万亿]))?"
    rf"|(?:零下|负)?+(?P<han>{_HAN}){_HAN_BEHIND}"
    rf"|\b(?P<english>{_WORDS})\b"
)
_EUROPEAN = re.compile(r"\A\d{1,3}(?:\.\d{3})+,")


def numbers(text: str) -> list[Number]:
    """The numbers of a normalised text, in order. Marks of citations are none."""
    plain = answer_text.without_citations(text)
    found = []
    for figure in _FIGURE.finditer(plain):
        start, end = figure.span()
        after = plain[end : end + _AFTER_CHARACTERS]
        if figure["percent"] or figure["han_percent"]:
            after = "%" + after
        found.append(Number(_value(figure), after, plain[max(0, start - _BEFORE_CHARACTERS) : start]))
    return found


def _value(figure: re.Match[str]) -> float:
    if figure["han_percent"]:
        return _han_value(figure["han_percent"])
    if figure["percent"]:
        return float(figure["percent"])
    if figure["han"]:
        value = _han_value(figure["han"])
        return -value if figure.group().startswith(("零下", "负")) else value
    if figure["english"]:
        return float(_words_value(figure["english"]))
    digits = figure["digits"]
    if _EUROPEAN.match(digits):
        digits = digits.replace(".", "").replace(",", ".")
    value = float(digits.replace(",", "").replace("'", "")) * _SCALES.get(figure["scale"], 1)
    return -value if figure["sign"] else value


def _words_value(phrase: str) -> int:
    """Three thousand two hundred and five: below a scale words add up, a scale multiplies what stands before it."""
    total = section = 0
    for word in re.split(r"[ -]", phrase):
        if word == "hundred":
            section *= 100
        elif scale := _SCALES.get(word):
            total, section = total + section * scale, 0
        elif word != "and":
            section += _ENGLISH.get(word, 1)
    return total + section


def _han_value(numeral: str) -> float:
    """The value of a numeral such as 一千二百零五 or 三点五, or of digits one by one, as in 二零二六."""
    whole, _, decimals = numeral.partition("点")
    value = float(_han_whole(whole))
    for place, character in enumerate(decimals, 1):
        value += _HAN_DIGITS[character] / 10**place
    return round(value, len(decimals))


def _han_whole(numeral: str) -> int:
    if not any(character in _HAN_UNITS or character in _HAN_SCALES for character in numeral):
        return int("".join(str(_HAN_DIGITS[character]) for character in numeral))
    total = section = 0
    digit: int | None = None
    for character in numeral:
        if scale := _HAN_SCALES.get(character):
            section, digit = section + (digit or 0), None
            # 三亿二千万: a larger scale takes up all before it, a smaller one only what came since.
            total = (total + section) * scale if total < scale else total + section * scale
            section = 0
        elif unit := _HAN_UNITS.get(character):
            section += (1 if digit is None else digit) * unit
            digit = None
        else:
            digit = _HAN_DIGITS[character]
    return total + section + (digit or 0)
