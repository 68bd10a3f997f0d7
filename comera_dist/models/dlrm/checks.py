"""Values of a DLRM's configuration that are fine alone and cannot stand together."""

from comera_dist.config.tree import Config


def dlrm_problems(config: Config) -> list[str]:
    """One sentence for each."""
    problems = []
    if config.train.batch_size is None:
        problems.append("train.batch_size is not set, and the rows of a DLRM are no tokens; set it, e.g. to 2048")
    if config.train.tokens is not None:
        problems.append(f"train.tokens = {config.train.tokens} means nothing to a DLRM; set train.steps instead")
    return problems
