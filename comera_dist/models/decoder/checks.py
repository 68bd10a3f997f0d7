"""Values of a decoder's configuration that are fine alone and cannot stand together."""

from comera_dist.config.tree import Config


def decoder_problems(config: Config) -> list[str]:
    """One sentence for each."""
    model, problems = config.model, []
    if model.d_model % (2 * model.heads):
        problems.append(
            f"model.d_model = {model.d_model} is not a multiple of 2 × model.heads = {2 * model.heads}, as rotary "
            f"positions need; change either"
        )
    if model.kv_heads is not None and model.heads % model.kv_heads:
        problems.append(
            f"model.heads = {model.heads} is not a multiple of model.kv_heads = {model.kv_heads}; change either"
        )
    if model.tie_embeddings and model.format.embedding != model.format.head:
        problems.append(
            f"model.tie_embeddings = true needs one format for both, found model.format.embedding = "
            f"{model.format.embedding} and model.format.head = {model.format.head}; set them alike"
        )
    return problems
