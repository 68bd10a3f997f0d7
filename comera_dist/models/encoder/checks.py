"""Values of an encoder's configuration that are fine alone and cannot stand together."""

from comera_dist.config.tree import Config


def encoder_problems(config: Config) -> list[str]:
    """One sentence for each."""
    model, problems = config.model, []
    if model.d_model % model.heads:
        problems.append(
            f"model.d_model = {model.d_model} is not a multiple of model.heads = {model.heads}; change either"
        )
    if config.data.seq_len > model.positions:
        problems.append(
            f"data.seq_len = {config.data.seq_len} is longer than model.positions = {model.positions}; change either"
        )
    return problems
