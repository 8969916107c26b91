"""Papers cited by metrics and parameters as a letter and a number."""

import re

PAPERS = {
    "P1": "Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers",
    "P2": "Neural Collapse versus Low-Rank Bias: Is Deep Neural Collapse Really Optimal?",
    "P3": "Progressive Feedforward Collapse of ResNet Training",
    "P4": "Feature Collapse",
}
"""Short name -> title."""


def titles_cited(text: str) -> str:
    """Return the titles of the papers cited in a string, as in `P1: Neural Collapse is ...`, or an empty str."""
    cited = set(re.findall(r"\bP\d\b", text))
    return "; ".join(f"{name}: {title}" for name, title in PAPERS.items() if name in cited)
