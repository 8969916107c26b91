"""Escape text for LaTeX, with mathematical signs in math mode."""

from __future__ import annotations

import re
import unicodedata

PLAIN = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "\u00a0": "~",
    "…": r"\dots{}",
    "–": "--",
    "—": "---",
    "’": "'",
}
PLAIN |= {sign: rf"\{sign}" for sign in "&%$#_{}"}
MATHEMATICS = {"−": "-", "½": r"\tfrac{1}{2}", "·": r"\cdot", "×": r"\times", "±": r"\pm", "∞": r"\infty", "‖": r"\|"}
MATHEMATICS |= {"≤": r"\le", "≥": r"\ge", "≈": r"\approx", "∈": r"\in", "→": r"\to", "ℓ": r"\ell", "∝": r"\propto"}
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (\w+)$")
_ONLY_CAPITAL = ("GAMMA", "DELTA", "THETA", "LAMDA", "XI", "PI", "SIGMA", "UPSILON", "PHI", "PSI", "OMEGA")
"""Capital letters with a LaTeX command. The others look like Latin letters."""


def latex(text: object) -> str:
    """Escape a text for LaTeX. Unknown letters stay unchanged."""
    return "".join(_sign(sign) for sign in str(text).encode("utf-8", "replace").decode())


def _sign(sign: str) -> str:
    if sign in PLAIN:
        return PLAIN[sign]
    if sign.isascii():
        return sign if sign.isprintable() else " "
    if sign in MATHEMATICS:
        return f"${MATHEMATICS[sign]}$"
    kind, _, base = unicodedata.decomposition(sign).partition(" ")
    if kind in ("<super>", "<sub>"):
        raised = "".join(chr(int(code_point, 16)) for code_point in base.split())
        return f"${'^' if kind == '<super>' else '_'}{{{raised}}}$" if raised.isascii() else sign
    greek = _GREEK.match(unicodedata.name(sign, ""))
    if greek is None or (greek[1] == "CAPITAL" and greek[2] not in _ONLY_CAPITAL) or greek[2] == "OMICRON":
        return sign
    name = {"LAMDA": "LAMBDA", "FINAL": "SIGMA"}.get(greek[2], greek[2]).lower()
    return f"$\\{name if greek[1] == 'SMALL' else name.capitalize()}$"
