"""The sides of the arena: optimizers and formats of the field on one trainer.

Optimizers that keep little state train a dense decoder; methods with small weights train a decoder of the same width.
Ranks are d/4, as for the smallest models of GaLore, Fira and APOLLO. MLorc keeps its authors' rank of 4. The
factor 0.25 of GaLore's and Fira's steps is 1, because weight decay counts with the rate that would make up for it. All
other settings are the defaults, and each side searches one rate.
"""

from dataclasses import replace

from benchmarks.quality.sides import ADAMW, DENSE, MUON, Ladder, Search, Side, blocks, ladder, sized

WIDTH = 64
RANK = WIDTH // 4
# GUM and MoFaSGD step in Muon's scale. The authors of APOLLO take ten times the rate of AdamW.
RAISED = MUON.middle


def optimizer(kind: str, *settings: str, middle: float = 1.0) -> Search:
    """An optimizer of the blocks' matrices, whose rate is searched around `middle` times that of AdamW."""
    return Search(
        (f"optim.kind={kind}", *(f"optim.{setting}" for setting in settings)), "optim.matrix_lr_scale", middle
    )


FROM_LADDER = (
    "dense, AdamW",
    "dense, spectral",
    "narrow dense d=48, spectral",
    "low rank r=d/4, spectral",
    "tensor train, AdamW",
    "blocks r=2, spectral",
)
LOW_RANK = blocks("low_rank", f"tensor.rank={RANK}")
RIVALS = {
    "dense, Muon": Side(MUON),
    "dense, SOAP": Side(optimizer("soap")),
    "dense, Dion": Side(optimizer("dion", "dion.rank_fraction=0.25")),
    "dense, GaLore": Side(optimizer("galore", f"galore.rank={RANK}", "galore.scale=1")),
    "dense, Fira": Side(optimizer("fira", f"fira.rank={RANK}", "fira.scale=1")),
    "dense, APOLLO": Side(optimizer("apollo", f"apollo.rank={RANK}", middle=RAISED)),
    "dense, APOLLO-Mini": Side(optimizer("apollo_mini")),
    "dense, GUM": Side(optimizer("gum", f"gum.rank={RANK}", middle=RAISED)),
    "dense, MLorc": Side(optimizer("mlorc")),
    "dense, MoFaSGD": Side(optimizer("mofasgd", f"mofasgd.rank={RANK}", middle=RAISED)),
    "narrow dense d=48, AdamW": Side(ADAMW, (*DENSE, *sized(48))),
    "low rank r=d/4, AdamW": Side(ADAMW, LOW_RANK),
    "low rank r=d/4, LORO": Side(optimizer("loro"), LOW_RANK),
    "CoLA r=d/4, AdamW": Side(ADAMW, blocks("bottleneck", f"tensor.rank={RANK}")),
    "SLTrain r=d/4, AdamW": Side(ADAMW, blocks("sltrain", f"tensor.rank={RANK}")),
}


def arena(steps: int) -> Ladder:
    """All sides at d=64, with steps of 4,096 tokens."""
    usual = ladder(WIDTH, steps, (48,))
    shared = {name: usual.sides[name] for name in FROM_LADDER}
    return replace(usual, sides=shared | RIVALS | relora(steps) | adapting(steps))


def adapting(steps: int) -> dict[str, Side]:
    """CoMERA's method: ranks of tensor trains fall during training, here to the size of the side with fixed ranks."""
    ranks = ("adapt=true", "layers=['*_proj']", f"sync_every={steps // 20}", "target_params=155832")
    larger = (f"tensor.rank={3 * WIDTH // 4}", f"tensor.outer_rank={WIDTH // 4}", *(f"ranks.{key}" for key in ranks))
    return {"tensor train cut to r=d/2, AdamW": Side(ADAMW, blocks("tensor", *larger))}


def relora(steps: int) -> dict[str, Side]:
    """A quarter of the steps at full rank and restarts after a tenth, as in the authors' runs of 20,000 steps."""
    periods = f"full_rank_steps={steps // 4}", f"restart_every={steps // 10}", f"warmup_steps={steps // 200}"
    settings = (f"relora.rank={RANK}", *(f"relora.{period}" for period in periods))
    return {"dense, ReLoRA": Side(optimizer("relora", *settings), alone=("optim.relora.full_rank_steps=0",))}
