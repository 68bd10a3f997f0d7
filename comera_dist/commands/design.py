"""Proposes decoders for a budget: python launch/design.py --config FILE --params N [section.key=value …]

Give at least one of --params, --flops and --memory. Width, depth, format and ranks vary; all other keys stay. The
expected loss comes from a regression on measured models, which the line below the table names.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from comera_dist.commands.arguments import positive, printing, read_arguments, refuse
from comera_dist.config.fields import LARGEST_NUMBER
from comera_dist.config.reader import read_config
from comera_dist.config.tensor_section import Budget
from comera_dist.config.tree import Config
from comera_dist.costs.of_run import facts_of
from comera_dist.design.loss_fit import measured_fit
from comera_dist.design.proposals import Proposal, Task, propose
from comera_dist.errors import ComeraError, ConfigError
from comera_dist.models.decoder.section import DecoderConfig
from comera_dist.report.tables import show_proposals

SHOWN = 5  # proposals; chosen: more say little new


@printing()
def main() -> int:
    """Returns the exit status."""
    config, arguments = read_arguments(
        __doc__,
        params={"type": positive, "help": "largest number of stored parameters"},
        flops={"type": float, "help": "largest number of FLOPs of the whole training"},
        memory={"type": positive, "help": "largest bytes of weights, gradients and optimizer state on one process"},
        tokens={"type": positive, "help": "tokens of training (default: those of the configuration)"},
        vocab_size={"type": positive, "help": "pieces of the vocabulary (default: those of data.corpus)"},
        json={"action": "store_true", "help": "print JSON instead of a table"},
    )

    length = () if arguments.tokens is None else ("train.steps=null", f"train.tokens={arguments.tokens}")

    def read(overrides: Sequence[str]) -> Config:
        return read_config(arguments.config, [*arguments.overrides, *length, *overrides])

    tokens, fit = arguments.tokens or config.total_tokens, measured_fit()
    try:
        _check_kind(config)
        budget = _budget(arguments, tokens)
        task = Task(budget, tokens, arguments.vocab_size or facts_of(config).vocab_size)
        found = [replace(one, overrides=(*one.overrides, *length)) for one in best(propose(read, task, fit))]
    except ComeraError as error:
        return refuse(error, is_first=True)
    if arguments.json:
        print(json.dumps([record(proposal, task.vocab_size) for proposal in found], indent=1))
    else:
        show_proposals(found, fit, task.vocab_size)
    return 0


def _check_kind(config: Config) -> None:
    if not isinstance(config.model, DecoderConfig):
        raise ConfigError(f"model.kind = {config.model.kind} was found, but this proposes decoders; choose a decoder")


def _budget(arguments: argparse.Namespace, tokens: int) -> Budget:
    """Raises ConfigError if none is given, or if FLOPs are not a number that training can take."""
    per_token = None if arguments.flops is None else arguments.flops / tokens
    try:
        budget = Budget(parameters=arguments.params, flops_per_token=per_token, state_bytes=arguments.memory)
    except ValidationError:
        raise ConfigError(
            f"--flops {arguments.flops:g} is {per_token:g} FLOPs for each of {tokens} tokens, expected more than 0 and "
            f"at most {LARGEST_NUMBER:g}; give those of the whole training"
        ) from None
    if budget == Budget():
        raise ConfigError("no budget was given; give --params, --flops or --memory")
    return budget


def best(proposals: list[Proposal]) -> list[Proposal]:
    """The first few, and the first dense one, which is what they compare with."""
    dense = next((proposal for proposal in proposals[SHOWN:] if proposal.is_dense), None)
    has_dense = any(proposal.is_dense for proposal in proposals[:SHOWN])
    return proposals[:SHOWN] + ([] if has_dense or dense is None else [dense])


def record(proposal: Proposal, vocab_size: int) -> dict[str, Any]:
    """A proposal as JSON; loss and error are null where none is known."""
    unknown = {} if proposal.expected.is_known(vocab_size) else {"loss": None, "error": None}
    return {
        "overrides": proposal.overrides,
        "params": proposal.costs.params,
        "flops_per_token": proposal.costs.flops_per_token,
        "state_bytes_per_process": proposal.costs.state_bytes_per_process,
        **proposal.expected._asdict(),
        **unknown,
    }


if __name__ == "__main__":
    sys.exit(main())
