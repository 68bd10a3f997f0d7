"""What a loop of the caller's may do with an optimizer, besides its steps."""

from typing import Any

from torch.optim import Optimizer

from comera_dist.errors import ConfigError
from comera_dist.optim.base import Group


class InALoop(Optimizer):
    """Copies and pickles hold all attributes and hooks, and groups that no method updates are refused."""

    def add_param_group(self, param_group: Group) -> None:
        """ConfigError for a group beside those of `build_optimizer`, which have names."""
        if "name" not in param_group and any("name" in group for group in self.param_groups):
            raise ConfigError(
                "a group of parameters was added to an optimizer of adamw(), which divides the parameters itself; call "
                "adamw() when the model has all of its parameters"
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        # torch's own has groups, state and defaults alone. `step` is there if a torch scheduler counts the calls: a
        # function that is bound to this optimizer.
        return {name: value for name, value in vars(self).items() if name != "step"}
