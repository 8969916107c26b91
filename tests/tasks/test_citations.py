"""What is cited by a short name has its title beside it."""

import re

from depthrate.tasks.citations import PAPERS, titles_cited
from depthrate.tasks.registry import registered_tasks


def test_titles_of_what_is_cited() -> None:
    assert (
        titles_cited("the spread (P3, section IV), not XP1")
        == "P3: Progressive Feedforward Collapse of ResNet Training"
    )
    assert titles_cited("nothing") == ""


def test_every_citation_of_a_task_has_a_title() -> None:
    docs = " ".join(e.doc for t in registered_tasks().values() for e in (*t.schema.values(), *t.measurements))
    assert set(re.findall(r"\bP\d\b", docs)) <= PAPERS.keys()
