"""Three targets without a model behind them: one knows the capitals, one guesses, one judges."""

from __future__ import annotations

from quintain.contracts.invoke import InvokeRequest

CAPITALS = {
    "Australia": "Canberra",
    "Brazil": "Brasília",
    "Canada": "Ottawa",
    "Egypt": "Cairo",
    "France": "Paris",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Mexico": "Mexico City",
    "Peru": "Lima",
    "Thailand": "Bangkok",
    "Turkey": "Ankara",
}

#: What is said of countries by people who only know their largest city.
GUESSES = {"Australia": "Sydney", "Brazil": "São Paulo", "Canada": "Toronto", "Turkey": "Istanbul"}


def scholar(request: InvokeRequest) -> str:
    """Knows every capital."""
    return CAPITALS[_country(request)]


def guesser(request: InvokeRequest) -> str:
    """Is wrong at times, and chatty about Italy: right for a judge, wrong for an exact comparison."""
    country = _country(request)
    answer = GUESSES.get(country, CAPITALS[country])
    return f"I think it is {answer}." if country == "Italy" else answer


def judge(request: InvokeRequest) -> str:
    """Answers the question of judge.py: is the expected answer somewhere in the given one?"""
    lines = dict(line.split(": ", 1) for line in (request.question or "").splitlines() if ": " in line)
    return "yes" if lines["Expected"] in lines["Answer"] else "no"


def _country(request: InvokeRequest) -> str:
    return (request.question or "").removeprefix("What is the capital of ").removesuffix("?")
