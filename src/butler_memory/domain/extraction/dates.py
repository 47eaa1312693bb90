"""When is "next Friday"? Days are counted from when the words were said; weeks begin on Monday."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

_MONTHS = "january february march april may june july august september october november december".split()
_DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
_NUMBERS = {"a": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "ten": 10}
_MONTH = r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|" + (
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?"
_YEAR = r"(?:,? (?P<year>20\d\d))?"
_WEEKDAY = r"(?P<weekday>" + "|".join(_DAYS) + ")"

# The first day that a match can mean, or nothing where there is no such day.
_Reading = Callable[[re.Match[str], date], str | None]


def _iso(match: re.Match[str], today: date) -> str | None:
    return f"on {date.fromisoformat(match[1])}"


def _month_and_day(match: re.Match[str], today: date) -> str | None:
    month, year = _month(match), match["year"]
    this_year = date(int(year) if year else today.year, month, int(match["day"]))
    return f"on {this_year if year or this_year >= today else this_year.replace(year=today.year + 1)}"


def _month_alone(match: re.Match[str], today: date) -> str | None:
    month = _month(match)
    year = int(match["year"] or today.year + (month < today.month))
    return f"in {year:04}-{month:02}"


def _month(match: re.Match[str]) -> int:
    return next(n for n, name in enumerate(_MONTHS, 1) if name.startswith(match["month"].lower().rstrip(".")[:3]))


def _weekday(match: re.Match[str], today: date) -> str | None:
    wanted = _DAYS.index(match["weekday"].lower())
    if (match["which"] or "").lower() == "next":  # the one of next week
        return f"on {_monday(today) + timedelta(days=7 + wanted)}"
    return f"on {today + timedelta(days=(wanted - today.weekday() - 1) % 7 + 1)}"


def _after(match: re.Match[str], today: date) -> str | None:
    number = match["number"].lower()
    count = int(number) if number.isdigit() else _NUMBERS[number]
    return f"on {today + timedelta(days=count * (7 if match['unit'].lower() == 'week' else 1))}"


def _next_week(match: re.Match[str], today: date) -> str | None:
    return f"in the week of {_monday(today) + timedelta(days=7)}"


def _next_month(match: re.Match[str], today: date) -> str | None:
    first = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    return f"in {first:%Y-%m}"


def _monday(today: date) -> date:
    return today - timedelta(days=today.weekday())


_READINGS: tuple[tuple[re.Pattern[str], _Reading], ...] = tuple(
    (re.compile(rf"\b(?:on )?(?:the )?{pattern}\b", re.I), reading)
    for pattern, reading in (
        (r"(\d{4}-\d\d-\d\d)", _iso),
        (rf"(?:(?:next )?{_WEEKDAY},? )?{_MONTH} {_DAY}{_YEAR}", _month_and_day),
        (rf"(?:{_WEEKDAY},? )?{_DAY}(?: of)? {_MONTH}{_YEAR}", _month_and_day),
        (rf"(?:(?P<which>next|this|coming) )?{_WEEKDAY}", _weekday),
        (r"tomorrow", lambda _, today: f"on {today + timedelta(days=1)}"),
        (r"(?:today|tonight)", lambda _, today: f"on {today}"),
        (rf"in (?P<number>\d{{1,3}}|{'|'.join(_NUMBERS)}) (?P<unit>day|week)s?", _after),
        (r"next week", _next_week),
        (r"next month", _next_month),
        (rf"in {_MONTH}{_YEAR}", _month_alone),
        (r"in (20\d\d)", lambda match, _: f"in {match[1]}"),
    )
)
_MAY_BE_DATED = re.compile(r"\d|day|week|month|tomorrow|tonight|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec", re.I)
_TIME = re.compile(r"\s*,? ?\bat (\d{1,2}(?:[:.]\d\d)?(?: ?[ap]\.?m\b)?|noon|midnight)", re.I)
_RANGE = re.compile(r"\bfrom (.{3,25}?) (?:to|until) (.{3,25})$", re.I)


@dataclass(frozen=True)
class Dated:
    before: str
    day: str  # in ISO, with the hour as it was said: "on 2026-04-21 at 10"
    after: str


def split_date(text: str, today: date) -> Dated | None:
    """A text around the first date in it; nothing without a date."""
    span = _RANGE.search(text)
    if span and (first := _first(span[1], today)) and (last := _first(span[2], today)):
        return Dated(text[: span.start()].strip(" ,"), f"from {first[1][3:]} to {last[1][3:]}", "")
    found = _first(text, today)
    if found is None:
        return None
    match, day = found
    before, after = text[: match.start()], text[match.end() :]
    early, late = _TIME.search(before), _TIME.match(after)
    if late:
        return Dated(before.strip(" ,"), f"{day} at {late[1]}", after[late.end() :].strip(" ,."))
    if early:
        return Dated(before[: early.start()].strip(" ,"), f"{day} at {early[1]}", after.strip(" ,."))
    return Dated(before.strip(" ,"), day, after.strip(" ,."))


def _first(text: str, today: date) -> tuple[re.Match[str], str] | None:
    """The leftmost date, by the first of the readings that knows it."""
    if not _MAY_BE_DATED.search(text):  # most are not, and each reading would look
        return None
    found = [(match, reading) for pattern, reading in _READINGS if (match := pattern.search(text))]
    for match, reading in sorted(found, key=lambda pair: pair[0].start()):
        try:
            words = reading(match, today)
        except (ValueError, OverflowError):  # February 30, or the year 10000
            return None
        if words:
            return match, words
    return None
