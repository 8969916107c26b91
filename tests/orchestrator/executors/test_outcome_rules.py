"""The table of outcomes: every state of a job and of a record has a rule, and each rule is used."""

from itertools import product

from depthrate.orchestrator.executors.slurm.outcomes import OUTCOME_RULES, Condition, Outcome
from depthrate.slurm.job_states import PHASE_BY_STATE
from depthrate.storage.tables.states import AttemptState


def first_rule(record: AttemptState | None, job: str, holding: set[Condition]) -> int:
    return next(
        index
        for index, rule in enumerate(OUTCOME_RULES)
        if (not rule.record or record in rule.record)
        and (not rule.job or job in rule.job)
        and holding.issuperset(rule.conditions)
    )


def test_every_rule_is_reachable() -> None:
    finished = [state for state, (phase, _) in PHASE_BY_STATE.items() if phase == "over"]
    reached = set()
    for record, job in product([None, *AttemptState], finished):
        for flags in product([False, True], repeat=len(Condition)):
            reached.add(first_rule(record, job, {c for c, holds in zip(Condition, flags, strict=True) if holds}))
    assert reached == set(range(len(OUTCOME_RULES)))
    assert {rule.outcome for rule in OUTCOME_RULES} == set(Outcome)
    assert all(job in finished for rule in OUTCOME_RULES for job in rule.job)
