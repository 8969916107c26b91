"""The markup of a sheet's texts, which each renderer turns into its own.

`**x**` is important. `$depth^{-0.5}$` is mathematics: a hyphen is a minus sign, `^` raises a sign or braces, and 2e-05 is a
power of ten. A backslash precedes a sign that stands for itself, as `literal` writes it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"\\(?P<literal>.)|(?P<strong>\*\*)|(?P<math>\$)|\^(?:\{(?P<braces>.*?)\}|(?P<raised>\w))", re.DOTALL
)
_POWER_OF_TEN = re.compile(r"(?<=\d)e([+-]\d+)")


@dataclass(frozen=True)
class Span:
    """A part of a text with one appearance."""

    text: str
    is_strong: bool = False
    is_math: bool = False
    is_raised: bool = False


def literal(text: object) -> str:
    """Return a text in which no sign is markup, such as a user's name."""
    return re.sub(r"([\\*$^{}])", r"\\\1", str(text))


def spans(text: str) -> Iterator[Span]:
    """Yield the parts of a text."""
    is_strong = is_math = False
    end = 0
    for token in _TOKEN.finditer(text):
        yield from _run(text[end : token.start()], is_strong, is_math)
        end = token.end()
        raised = token["braces"] or token["raised"]
        if token["literal"] is not None:
            yield Span(token["literal"], is_strong, is_math)
        elif token["strong"]:
            is_strong = not is_strong
        elif token["math"]:
            is_math = not is_math
        elif is_math:
            yield Span(raised, is_strong, is_math, is_raised=True)
        else:
            yield Span(token[0], is_strong)
    yield from _run(text[end:], is_strong, is_math)


def _run(text: str, is_strong: bool, is_math: bool) -> Iterator[Span]:
    """Yield a text without markup, with powers of ten in mathematics."""
    parts = _POWER_OF_TEN.split(text) if is_math else [text]
    for place, part in enumerate(parts):
        if place % 2:
            yield Span("·10", is_strong, is_math)
            yield Span(str(int(part)), is_strong, is_math, is_raised=True)
        elif part:
            yield Span(part, is_strong, is_math)


def plain(text: str) -> str:
    """Return a text for a terminal, a file or JSON, as in `depth^-0.5`."""
    return _TOKEN.sub(lambda token: token["literal"] or _plain_power(token), text)


def _plain_power(token: "re.Match[str]") -> str:
    raised = token["braces"] or token["raised"]
    return f"^{raised}" if raised else ""


def typeset(text: str) -> str:
    """Return a text without markup for a figure or a page's script, with minus signs in mathematics."""
    return "".join(
        _raise(span.text) if span.is_raised else minus_signs(span.text) if span.is_math else span.text
        for span in spans(text)
    )


def _raise(text: str) -> str:
    signs = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
    return text.translate(signs) if re.fullmatch(r"-?\d+", text) else f"^{minus_signs(text)}"


def minus_signs(formula: str) -> str:
    """Replace hyphens by minus signs."""
    return formula.replace("-", "−")
