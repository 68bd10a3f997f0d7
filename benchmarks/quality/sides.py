"""The sides of ladders: which models are trained, and the learning rates that are searched for each.

A ladder is a width of the dense base model and a number of tokens. All of its sides see the same tokens in the same
order, and each searches the same learning rates on seed 1.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

DENSE = ("model.format={rest: dense}",)
RATES = (0.5, 1.0, 2.0, 4.0)  # of the searched key, times its middle value
# Of 3,894 steps, which want lower rates than 1,000: 2 and 4 were worse on all three sides that tried them.
RATES_OF_LONG_RUNS = (0.25, 0.5, 1.0)
ROWS_OF_PAIRS = 256  # for each number of the base width: 16,384 at d=64, where 1,024 pieces have a million pairs
# Block trains of rank 3 that adapt to the size of rank 2.
CUT = (
    "tensor.block_train.rank=3",
    "ranks.adapt=true",
    "ranks.layers=['*_proj']",
    "ranks.sync_every=50",
    "ranks.target_fraction=0.667",
)


class Search(NamedTuple):
    """An optimizer, and the key whose value `middle` is multiplied by each rate of a ladder."""

    overrides: tuple[str, ...]
    key: str
    middle: float


# With AdamW one rate is searched. With spectral steps it is the rate of the matrices; table and norms keep AdamW's
# middle value on all sides. The rate of the table is 8 times that of the norms: docs/recipe.md has the search at d=64.
ADAMW = Search((), "optim.lr", 3e-3)
SPECTRAL = Search(("optim.kind=spectral",), "optim.matrix_lr_scale", 1.0)
TABLE = Search(("optim.kind=spectral",), "optim.table_lr_scale", 4.0)
# Muon's steps are best at four to eight times AdamW's rate at d=64 (docs/recipe.md, "One learning rate for all widths":
# the former unit).
MUON = Search(("optim.kind=muon",), "optim.matrix_lr_scale", 4.0)
HEAD = Search(("optim.kind=spectral",), "optim.head_lr_scale", 1.0)  # its table has the rate of the other ladders


@dataclass(frozen=True)
class Side:
    """A model of a ladder."""

    search: Search
    overrides: tuple[str, ...] = DENSE
    alone: tuple[str, ...] = ()  # further ones of the few steps in which its time is measured

    def run(self, rate: float) -> list[str]:
        """Overrides of a run at one of the ladder's rates."""
        return [*self.overrides, *self.search.overrides, f"{self.search.key}={self.search.middle * rate:g}"]


def blocks(format: str, *more: str, width: int | None = None, vocabulary: str = "dense") -> tuple[str, ...]:
    """Block matrices in `format`; of a model of another width if it is given, with d_ff in the ratio of the base."""
    formats = f"{{attention: {format}, mlp: {format}, embedding: {vocabulary}, head: {vocabulary}}}"
    return (f"model.format={formats}", *([] if width is None else sized(width)), *more)


def block_trains(rank: int, vocabulary_rank: int) -> tuple[str, ...]:
    """Block trains with a low-rank vocabulary."""
    return blocks("block_train", f"tensor.block_train.rank={rank}", *vocabulary(vocabulary_rank), vocabulary="low_rank")


def sized(width: int) -> tuple[str, ...]:
    """Keys of another width; d_ff is 2.75 times it as in the base, rounded down to a multiple of 8."""
    return f"model.d_model={width}", f"model.d_ff={int(2.75 * width) // 8 * 8}"


@dataclass(frozen=True)
class Ladder:
    """Sides of one base width; `base` holds the overrides of benchmarks/quality/books.yaml that all sides share."""

    steps: int
    base: tuple[str, ...]
    sides: dict[str, Side]
    rates: tuple[float, ...] = RATES

    def without(self, *starts: str) -> "Ladder":
        """The ladder without the sides whose names start so."""
        return replace(self, sides={name: side for name, side in self.sides.items() if not name.startswith(starts)})

    def fixed(self) -> list[str]:
        """The sides whose ranks do not change."""
        return [name for name, side in self.sides.items() if "ranks.adapt=true" not in side.overrides]


def ladder(width: int, steps: int, narrow: tuple[int, ...], rates: tuple[float, ...] = RATES) -> Ladder:
    """The sides at a base width: dense, narrower dense, and compressed models of the same and of twice the width."""
    wide = 2 * width
    return Ladder(
        steps,
        (*sized(width), f"train.steps={steps}"),
        {
            "dense, AdamW": Side(ADAMW),
            "dense, spectral": Side(SPECTRAL),
            **{f"narrow dense d={size}, spectral": Side(SPECTRAL, (*DENSE, *sized(size))) for size in narrow},
            "low rank r=d/4, spectral": Side(SPECTRAL, blocks("low_rank", f"tensor.rank={width // 4}")),
            "tensor train, AdamW": Side(ADAMW, blocks("tensor", *train(width))),
            "tensor train, spectral": Side(SPECTRAL, blocks("tensor", *train(width))),
            "blocks r=2, AdamW": Side(ADAMW, blocks("block_train", "tensor.block_train.rank=2")),
            "blocks r=2, spectral": Side(SPECTRAL, blocks("block_train", "tensor.block_train.rank=2")),
            "blocks r=3 cut to r=2, spectral": Side(SPECTRAL, blocks("block_train", *CUT)),
            "wide blocks r=1, spectral": Side(SPECTRAL, blocks("block_train", width=wide)),
            "wide blocks r=1, low-rank vocabulary, spectral": Side(
                SPECTRAL, blocks("block_train", *vocabulary(7 * width // 8), width=wide, vocabulary="low_rank")
            ),
            "wide blocks r=1, mixed dimensions, spectral": Side(
                SPECTRAL, blocks("block_train", *mixed(11 * width // 8), width=wide, vocabulary="mixed_dimension")
            ),
            "blocks r=1, small low-rank vocabulary, spectral": Side(
                SPECTRAL, blocks("block_train", *vocabulary(3 * width // 16), vocabulary="low_rank")
            ),
        },
        rates,
    )


def longer(width: int, steps: int, narrow: tuple[int, ...]) -> Ladder:
    """The sides of `ladder` that are worth many tokens, and blocks that share matrices.

    Tensor trains, mixed dimensions, the smallest model and block trains with AdamW are left out: in books64 each lost
    0.06 nats or more to a narrower dense model of its size, and another side is better in the same way.
    """
    usual = ladder(width, steps, narrow, RATES_OF_LONG_RUNS).without(
        "tensor train", "wide blocks r=1, mixed", "blocks r=1, small", "blocks r=2, AdamW"
    )
    return replace(usual, sides=usual.sides | {"all from two": Side(SPECTRAL, shared(2, 2))})


def vocabularies(width: int, steps: int) -> Ladder:
    """Dense blocks with vocabularies of all formats, and the rate of the table or of an untied head is searched."""
    tied = {
        "dense": (),
        "low rank r=5d/8": vocabulary(5 * width // 8),
        "low rank r=3d/8": vocabulary(3 * width // 8),
        "mixed dimensions r=3d/4": mixed(3 * width // 4),
        "tensor-train matrix r=3d/4": (f"tensor.embedding_rank={3 * width // 4}", "tensor.embedding_order=2"),
    }
    return Ladder(
        steps,
        (*sized(width), f"train.steps={steps}"),
        {
            **{f"tied, {name}": Side(TABLE, of_vocabulary(name, *more)) for name, more in tied.items()},
            **{
                f"untied, {name}": Side(HEAD, of_vocabulary(name, *tied[name], "model.tie_embeddings=false"))
                for name in ("dense", "low rank r=5d/8")
            },
        },
    )


def of_vocabulary(name: str, *more: str) -> tuple[str, ...]:
    """Dense blocks, with the vocabulary that a side of `vocabularies` names."""
    formats = {"dense": "dense", "low": "low_rank", "mixed": "mixed_dimension", "tensor-train": "tensor"}
    return blocks("dense", *more, vocabulary=formats[name.split()[0]])


def sharing(width: int, steps: int, wider: int) -> Ladder:
    """Blocks that share matrices; as controls dense models that are narrower, or have a block less."""
    return Ladder(
        steps,
        (*sized(width), f"train.steps={steps}"),
        {
            "dense": Side(SPECTRAL),
            f"narrow dense d={3 * width // 4}": Side(SPECTRAL, (*DENSE, *sized(3 * width // 4))),
            "dense, a block less": Side(SPECTRAL, (*DENSE, "model.layers=3")),
            "attention from one": Side(SPECTRAL, shared(1, None)),
            "all from two": Side(SPECTRAL, shared(2, 2)),
            "all from one": Side(SPECTRAL, shared(1, 1)),
            f"d={wider}, attention from one, MLP from three": Side(SPECTRAL, (*shared(1, 3), *sized(wider))),
        },
    )


def smaller(width: int, steps: int) -> Ladder:
    """Models 2, 4 and 10 times smaller than the dense one: blocks share a matrix, and the vocabulary is compressed."""
    return Ladder(
        steps,
        (*sized(width), f"train.steps={steps}"),
        {
            **{f"narrow dense d={part}": Side(SPECTRAL, (*DENSE, *sized(part))) for part in (width // 2, width // 4)},
            # torch.optim.Muon in place of spectral steps, at the two widths around the largest compressed model.
            **{
                f"narrow dense d={part}, Muon": Side(MUON, (*DENSE, *sized(part)))
                for part in (3 * width // 4, width // 2)
            },
            # Heads of an odd width cannot be rotated.
            **{
                f"narrow dense d={part}": Side(SPECTRAL, (*DENSE, *sized(part), "model.heads=2"))
                for part in (7 * width // 16, 3 * width // 16)
            },
            **{
                f"d={size}, {name}: all from one": Side(SPECTRAL, (*shared(1, 1, format), *sized(size), *more))
                for size, name, format, *more in (
                    (5 * width // 4, "low rank", "low_rank", *vocabulary(5 * width // 8)),
                    (5 * width // 4, "low rank, 8 blocks", "low_rank", *vocabulary(5 * width // 8), "model.layers=8"),
                    (7 * width // 8, "low rank", "low_rank", *vocabulary(7 * width // 16)),
                    (width // 2, "mixed dimension", "mixed_dimension", *mixed(3 * width // 8)),
                )
            },
        },
    )


def gated(width: int, steps: int) -> Ladder:
    """Models whose attention has gated heads."""
    narrow, gates = 3 * width // 4, "model.gated_attention=true"
    return Ladder(
        steps,
        (*sized(width), f"train.steps={steps}", gates),
        {
            "dense, Muon": Side(MUON),
            "dense": Side(SPECTRAL),
            f"narrow dense d={narrow}": Side(SPECTRAL, (*DENSE, *sized(narrow))),
            "all from two": Side(SPECTRAL, shared(2, 2)),
        },
    )


def bigrams(width: int, steps: int, rates: tuple[float, ...] = RATES) -> Ladder:
    """Models with a table of pairs of tokens, and a wider dense one as large as the dense one with a low-rank table."""
    narrow, wider, rows = 3 * width // 4, 3 * width // 2, ROWS_OF_PAIRS * width
    small = f"format: low_rank, rank: {width // 4}"
    low_rank = pairs(rows, small)
    return Ladder(
        steps,
        (*sized(width), f"train.steps={steps}"),
        {
            "dense": Side(SPECTRAL),
            f"wider dense d={wider}": Side(SPECTRAL, (*DENSE, *sized(wider))),
            "dense, low-rank pairs": Side(SPECTRAL, (*DENSE, *low_rank)),
            "dense, dense pairs": Side(SPECTRAL, (*DENSE, *pairs(rows, "format: dense"))),
            "dense, tensor-train pairs": Side(SPECTRAL, (*DENSE, *pairs(rows, f"format: tensor, rank: {narrow}"))),
            f"narrow dense d={narrow}, low-rank pairs": Side(SPECTRAL, (*DENSE, *sized(narrow), *low_rank)),
            "wide blocks r=1, low-rank pairs": Side(SPECTRAL, (*blocks("block_train", width=2 * width), *low_rank)),
            "wide blocks r=1, low-rank pairs, 4 times as many rows": Side(
                SPECTRAL, (*blocks("block_train", width=2 * width), *pairs(4 * rows, small))
            ),
            "all from two, low-rank pairs": Side(SPECTRAL, (*shared(2, 2), *low_rank)),
        },
        rates,
    )


def longer_bigrams(width: int, steps: int) -> Ladder:
    """The sides of `bigrams` that are worth many tokens.

    At d=64 low rank was the better compressed table. Blocks that share were the best model with half of the matrices in
    books128, so wide ones, which take 1.6 times as long, are left out.
    """
    left_out = ("wider dense", "dense, dense pairs", "dense, tensor-train pairs", "narrow dense", "wide blocks")
    return bigrams(width, steps, RATES_OF_LONG_RUNS).without(*left_out)


def pairs(rows: int, how: str) -> tuple[str, ...]:
    """A table of so many rows for pairs of tokens, stored as `how` says."""
    return f"model.bigram_rows={rows}", f"tensor.embeddings=[{{match: model.embed_bigrams, {how}}}]"


def shared(attention: int, mlp: int | None, vocabulary: str = "dense") -> tuple[str, ...]:
    """So many matrices of each projection for the attention and the MLP of all blocks; None is a dense MLP."""
    formats = f"{{attention: shared, mlp: {'shared' if mlp else 'dense'}, embedding: {vocabulary}, head: {vocabulary}}}"
    numbers = {"*.self_attn.*": attention, "*.mlp.*": mlp}
    rules = [f"{{match: '{pattern}', options: {{matrices: {n}}}}}" for pattern, n in numbers.items() if n]
    return f"model.format={formats}", f"tensor.layers=[{', '.join(rules)}]"


def train(width: int) -> tuple[str, ...]:
    return f"tensor.rank={width // 2}", f"tensor.outer_rank={width // 6}"


def vocabulary(rank: int) -> tuple[str, ...]:
    return (f"tensor.low_rank.rank={rank}",)


def mixed(rank: int) -> tuple[str, ...]:
    return (f"tensor.mixed_dimension.rank={rank}",)
