"""The sweeps that come with depthrate stand for the same trials as ever.

`python tests/sweeps/test_golden.py --update` writes what they stand for now: only for files that were added or changed
on purpose. What changes without that leaves committed trials without a sweep that finds them.
"""

import hashlib
import json
import re
import sys
from pathlib import Path

import pytest

from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import SHIPPED, load_sweep
from depthrate.sweeps.studies import make_studies

GOLDEN_FILE = Path(__file__).with_name("golden.json")
GOLDEN = json.loads(GOLDEN_FILE.read_text())
NAMES = sorted(file.relative_to(SHIPPED).with_suffix("").as_posix() for file in SHIPPED.rglob("*.yaml"))


def digest(trials):
    return hashlib.sha256("\n".join(sorted(trial.trial_id for trial in trials)).encode()).hexdigest()


def found(name):
    """What identifies a shipped sweep, its trials and its studies."""
    sweep = load_sweep(name)
    task = sweep.load_task()
    trials, studies = expand(sweep, task), make_studies(sweep, task)
    content = {"spec_hash": sweep.spec_hash(), "num_trials": len(trials), "trial_ids_sha256": digest(trials)}
    if studies:
        content["study_ids"] = [study.study_id for study in studies]
        content["first_trial_ids_sha256"] = digest(trial for study in studies for trial in study.first_trials())
    return content


def test_every_shipped_sweep_is_pinned():
    assert sorted(GOLDEN) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_spec_and_trials_are_those_of_ever(name):
    assert found(name) == GOLDEN[name]


def test_ids_are_distinct():
    names = [re.findall("^name: (.*)$", (SHIPPED / f"{name}.yaml").read_text(), re.MULTILINE) for name in NAMES]
    assert all(len(found) == 1 for found in names) and len({found[0] for found in names}) == len(names)


if __name__ == "__main__":
    assert sys.argv[1:] == ["--update"], __doc__
    GOLDEN_FILE.write_text(json.dumps({name: found(name) for name in NAMES}, indent=1) + "\n")
