"""A run's model, compressed and measured before and after."""

from pathlib import Path
from typing import Any

from comera_dist.compress.compressed import compress
from comera_dist.compress.write_run import new_run, write_run
from comera_dist.costs.estimate import bond_ranks
from comera_dist.data.tasks import open_task
from comera_dist.run.evaluate import evaluate
from comera_dist.run.trained import Trained, load_trained
from comera_dist.runtime.processes import Processes, alone


def compress_run(
    run: Path, step: int | None, output: Path, params: int, format: str, tokens: int, max_tokens: int | None
) -> dict[str, Any]:
    """Writes the model of a run's checkpoint with at most `params` numbers as the run `output`; see `compress`.

    Returns stored numbers and validation figures before and after, from at most `max_tokens` tokens, and the ranks.
    Raises ComeraError.
    """
    new_run(output)  # refuses a taken folder before anything is measured
    processes = alone()
    trained = load_trained(run, processes, step)
    task = open_task(trained.config)
    before = figures_of(trained, processes, max_tokens)
    config, plan = compress(trained, task, format, params, tokens, processes)
    write_run(output, config, plan, trained.model, task, processes)
    after = figures_of(load_trained(output, processes), processes, max_tokens)
    return {"run": str(run), "output": str(output), "before": before, "after": after, "ranks": bond_ranks(plan)}


def figures_of(trained: Trained, processes: Processes, max_tokens: int | None) -> dict[str, Any]:
    """Stored numbers, and the validation loss and accuracy, if there is one, from at most `max_tokens` tokens."""
    measured = evaluate(trained, processes, None, "valid", max_tokens)
    figures: dict[str, Any] = {name: measured[name] for name in ("loss", "accuracy") if name in measured}
    return {"params": sum(p.numel() for p in trained.model.parameters()), **figures}
