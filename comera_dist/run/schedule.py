"""Learning-rate schedules as pure functions of the step: nothing to save, nothing to restore."""

import math

from comera_dist.config.tree import Schedule


def lr_fraction(config: Schedule, step: int, total_steps: int) -> float:
    """Fraction of the peak learning rate for the optimizer step that follows `step` finished ones.

    Linear warm-up to 1, then: cosine or linear descent to `final_lr_fraction` at the last step; wsd (warm-up, stable,
    decay) stays at 1 until the last `decay_fraction` of the run and then descends linearly; constant stays.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.kind == "constant":
        return 1.0
    start = config.warmup_steps
    if config.kind == "wsd":
        start = max(start, total_steps - round(config.decay_fraction * total_steps))
    progress = min(1.0, max(0, step - start) / max(1, total_steps - 1 - start))
    if config.kind == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    return 1.0 - (1.0 - config.final_lr_fraction) * progress
