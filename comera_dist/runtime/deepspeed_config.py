"""The configuration that DeepSpeed gets: its block of the run's configuration, and the keys that the run decides."""

from comera_dist.config.tree import Config


def deepspeed_config(config: Config, micro_batch: int, accumulation: int, parameters: int) -> dict:
    """`accumulation` micro batches of `micro_batch` rows on each process make a step of a model of `parameters`."""
    stage, passed_on = config.train.zero_stage, config.deepspeed.model_dump()
    zero = passed_on["zero_optimization"]
    # DeepSpeed allocates its bucket whole at every step: no larger than the gradients.
    bucket = min(parameters, zero.get("reduce_bucket_size", parameters))
    return {
        "steps_per_print": 10**9,
        **passed_on,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        # At stage 0 clipping is ours: the norm has to be reported too.
        "gradient_clipping": 0.0 if stage == 0 else config.train.grad_clip,
        "zero_optimization": {**zero, "stage": stage, "reduce_bucket_size": bucket},
        "zero_allow_untested_optimizer": True,
    }
