"""Predictions for LLaMA shapes on 1 to 4,096 H100, the tables of docs/scale.md: python benchmarks/scale_plan.py

Sides are decoders of block trains of rank 2 with a low-rank vocabulary, and their dense twins, both with AdamW in
bf16, with recomputed blocks and one sequence of 4,096 tokens on each GPU. Nothing here is measured.
"""

import sys
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks.markdown import table
from benchmarks.quality.sides import block_trains
from comera_dist.config.reader import read_config
from comera_dist.config.tree import Config
from comera_dist.costs.exchange import Cluster
from comera_dist.costs.machines import MACHINES
from comera_dist.costs.scale import ZERO_STAGES, Side, needs_of, sides_of

NAMES = {"this run": "block trains", "dense twin": "dense"}
VOCABULARY = 32_000  # of LLaMA and Llama 2
CLUSTERS = [
    Cluster(MACHINES["h100"], nodes, per_node) for nodes, per_node in ((1, 1), (1, 8), (8, 8), (64, 8), (512, 8))
]
COMMON = (
    *("data.seq_len=4096", "train.batch_tokens=4096", "train.precision=bf16", "train.activation_checkpointing=block"),
    # The bucket is DeepSpeed's default; ours is as large as the model, which suits small ones.
    *("optim.kind=adamw", "optim.matrix_lr_scale=1", "deepspeed.zero_optimization.reduce_bucket_size=500000000"),
)


def shape(width: int, layers: int, heads: int, hidden: int, kv_heads: int | None = None) -> Config:
    """A decoder of this shape; the vocabulary's rank is half of the width."""
    sizes = (f"model.d_model={width}", f"model.layers={layers}", f"model.heads={heads}", f"model.d_ff={hidden}")
    more = (f"model.kv_heads={kv_heads or heads}", *block_trains(2, width // 2))
    return read_config("configs/quickstart.yaml", [*sizes, *more, *COMMON])


# 1B: Zhao et al. 2024 (GaLore). 7B: Touvron et al. 2023, LLaMA. 70B: Touvron et al. 2023, Llama 2.
SHAPES = {
    "LLaMA 1B": shape(2048, 24, 32, 5461),
    "LLaMA 7B": shape(4096, 32, 32, 11008),
    "LLaMA 70B": shape(8192, 80, 64, 28672, kv_heads=8),
}


def cell(side: Side, stage: int, cluster: Cluster) -> str:
    """Milliseconds of a step and efficiency, or the memory that a GPU does not have."""
    row = side.row(stage, cluster)
    return f"{1000 * row.seconds:,.0f}, {row.efficiency:.2f}" if row.fits else f"{row.memory_bytes / 1e9:,.0f} GB"


def section(name: str) -> str:
    """The table of a shape, and what each side needs."""
    rows, needs = [], []
    for side in sides_of(SHAPES[name], VOCABULARY):
        rows += [{name: label(side)} | row(side, stage) for stage in ZERO_STAGES]
        needs += [f"- {NAMES[side.name]} on {c.processes:,} GPUs: {needs_of(side, c)}." for c in CLUSTERS[1::3]]
    return "\n\n".join((table(rows), "\n".join(needs)))


def label(side: Side) -> str:
    """Its name and size."""
    return f"{NAMES[side.name]}, {side.params / 1e9:.2f} B"


def row(side: Side, stage: int) -> dict[str, object]:
    """A side at a ZeRO stage on all clusters, and the memory and traffic of the largest one."""
    last = side.row(stage, CLUSTERS[-1])
    cells = {f"{cluster.processes:,}": cell(side, stage, cluster) for cluster in CLUSTERS}
    sent = {"GB of a GPU": f"{last.memory_bytes / 1e9:,.1f}", "GB sent": f"{last.sent_bytes / 1e9:,.2f}"}
    return {"ZeRO": stage} | cells | sent


def main() -> None:
    print("\n\n".join(map(section, SHAPES)))


if __name__ == "__main__":
    main()
