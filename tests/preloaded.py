"""Everything that a process imports or looks up at its first step, once for all forked processes: 3 seconds of each."""

# ruff: noqa: F401
from comera_dist.commands.imports import kept_imports

with kept_imports():
    import deepspeed
    import deepspeed.module_inject.auto_ep_layer
    import scenarios
    import torch._dynamo  # torch's optimizers import it
    import worker

    import comera_dist.formats.tensor_train.embedding
    import comera_dist.models.decoder.task
    import comera_dist.models.dlrm.task
    import comera_dist.models.encoder.task

    # DeepSpeed compiles small programs to learn which of its operations can be built.
    deepspeed.ops.__compatible_ops__  # noqa: B018
