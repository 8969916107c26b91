"""Packs of the task `collapse` whose trials differ in everything fusible, and one of which diverges."""

from depthrate.tasks.supervised.task import COLLAPSE
from tests.support.training_context import Context, ids_of

STEPS = 40
DIVERGING = {"lr": 1e30, "seed": 5}


def params_of(**changes):
    base = {"arch": "rn1", "depth": 3, "width": 19, "samples_per_class": 4, "steps": STEPS, "lr": 0.05}
    return COLLAPSE.schema.fill({**base, "measure_steps": [5], **changes})


def run(trials, **context):
    return list(COLLAPSE.run(trials, Context(ids_of(trials), **context)))


def pack_of(shape):
    """Three trials that differ in everything fusible."""
    changes = ({"lr": 0.02, "weight_decay": 0.02}, {"momentum": 0.5, "weight_decay_last": 0.1})
    others = [params_of(**{**shape, "seed": seed, "features": "all", **more}) for seed, more in enumerate(changes, 1)]
    return [params_of(**shape, seed=0, features="all"), *others]


def with_diverging(shape):
    first, second, third = pack_of(shape)
    return [first, {**second, **DIVERGING}, third]
