"""Which models are compared, at which batch, and in which modes of the step."""

from dataclasses import dataclass, field, replace

from benchmarks.quality.sides import block_trains, blocks
from comera_dist.config.reader import read_config
from comera_dist.config.tree import Config
from comera_dist.models.decoder.plan import DecoderFacts
from comera_dist.models.encoder.plan import EncoderFacts

DENSE, SCHEME, OURS = "dense", "CoMERA's scheme", "ours"
OURS_WITH_VOCABULARY = "ours, tensor vocabulary"
SPECTRAL = ("optim.kind=spectral",)
DENSE_SPECTRAL, BLOCKS = "dense, spectral steps", "block trains, spectral steps"
LARGE_BLOCKS = "block trains of 8 blocks, spectral steps"
SHARED = "one matrix for all blocks, spectral steps"
EAGER = "eager"
MODES = {
    EAGER: (),
    "graphed": ("train.cuda_graphs=true",),
    "compiled": ("train.compile=true",),
    "compiled+graphed": ("train.compile=true", "train.cuda_graphs=true"),
    "fp8+graphed": ("train.precision=fp8", "train.cuda_graphs=true"),
}
# ZeRO stage 0: one process has nothing to shard, and the rivals have no copies of the weights for DeepSpeed.
COMMON = ("ranks={}", "train.zero_stage=0")
PRECISION = {"cpu": "fp32", "cuda": "bf16"}


@dataclass(frozen=True)
class Side:
    """One way to train a case's model; `model` is a key of `Case.models`."""

    model: str
    uses_galore: bool = False
    mode: str = EAGER

    @property
    def name(self) -> str:
        optimizer = "GaLore" if self.uses_galore else "AdamW"
        model = f"{DENSE} {optimizer}" if self.model == DENSE else self.model
        return model if self.mode == EAGER else f"{model}, {self.mode}"

    @property
    def is_baseline(self) -> bool:
        return self.model == DENSE and not self.uses_galore


@dataclass(frozen=True)
class Case:
    """A model size with the overrides of its variants by name, on top of `overrides` and the configuration `base`."""

    name: str
    sequences: dict[str, int]  # sequences per step by device type; the case is not run on a missing type
    seq_len: int
    models: dict[str, tuple[str, ...]]
    overrides: tuple[str, ...] = ()
    base: str = "benchmarks/tensor_train.yaml"
    vocabulary: int = 32_000
    classes: int | None = None  # None: a decoder
    galore_rank: int | None = None
    repeats: dict[str, int] = field(default_factory=lambda: {"cpu": 9, "cuda": 9})
    compiles: bool = False
    fp8: bool = False  # only on CUDA: elsewhere it is emulated
    is_huge: bool = False  # the sides of all modes together do not fit a GPU
    only: tuple[str, ...] = ()  # names of the sides to measure; all if it is empty

    @property
    def facts(self) -> DecoderFacts | EncoderFacts:
        return EncoderFacts(self.vocabulary, self.classes) if self.classes else DecoderFacts(self.vocabulary)

    def label(self, device_type: str) -> str:
        batch = f"{self.sequences[device_type]} x {self.seq_len}"
        return f"{self.name}, {batch} (median of {self.repeats[device_type]})"

    def config(self, side: Side, device_type: str, *more: str) -> Config:
        tokens = self.sequences[device_type] * self.seq_len
        batch = (f"data.seq_len={self.seq_len}", "train.batch_size=null", f"train.batch_tokens={tokens}")
        precision = (f"train.precision={PRECISION[device_type]}",)
        galore = ("optim.kind=galore", f"optim.galore.rank={self.galore_rank}") if side.uses_galore else ()
        chosen = (*self.models[side.model], *MODES[side.mode], *galore, *more)
        return read_config(self.base, [*COMMON, *batch, *precision, *self.overrides, *chosen])

    def sides(self, device_type: str) -> list[Side]:
        """Every model in each mode, eager first; GaLore and CoMERA's scheme only eager, as published."""
        sides = [Side(model) for model in self.models]
        if self.galore_rank is not None:
            sides.insert(1, Side(DENSE, uses_galore=True))
        if device_type == "cuda":
            sides += [Side(model, mode="graphed") for model in self.models if model != SCHEME]
        if self.fp8 and device_type == "cuda":
            sides += [Side(model, mode="fp8+graphed") for model in (DENSE, OURS)]
        if self.compiles:
            modes = [mode for mode in MODES if "compiled" in mode and (device_type == "cuda" or "graphed" not in mode)]
            sides += [Side(model, mode=mode) for mode in modes for model in (DENSE, OURS)]
        return [side for side in sides if not self.only or side.name in self.only]

    def sides_in_turn(self, device_type: str) -> list[list[Side]]:
        """The sides that share the device and take turns: all, or those of one mode after the other."""
        sides = self.sides(device_type)
        modes = dict.fromkeys(side.mode for side in sides)
        return [[side for side in sides if side.mode == mode] for mode in modes] if self.is_huge else [sides]


def encoder(
    name: str,
    sequences: dict[str, int],
    seq_len: int,
    galore_rank: int,
    overrides: tuple[str, ...] = (),
    vocabulary: int = 30_522,
    classes: int = 3,
    **more,
) -> Case:
    """The six-encoder of CoMERA (Yang et al. 2024), without dropout, or a smaller one by overrides."""
    facts = (f"model.vocab_size={vocabulary}", f"model.classes={classes}")
    return Case(
        name,
        sequences,
        seq_len,
        models={DENSE: ("model.format=dense",), SCHEME: (), OURS: ()},
        overrides=("model.dropout=0", *facts, *overrides),
        base="configs/mnli_six_encoder.yaml",
        vocabulary=vocabulary,
        classes=classes,
        galore_rank=galore_rank,
        **more,
    )


def llama(
    name: str,
    width: int,
    hidden: int,
    layers: int,
    heads: int,
    ranks: tuple[int, int],
    sequences: dict[str, int],
    **more,
) -> Case:
    """GaLore's decoder sizes (Zhao et al. 2024): tensor trains of middle rank d/4, and block trains.

    `ranks` are those of GaLore's projections and of block trains whose blocks are nearly square. These, and block
    trains of eight blocks, keep just under half of the numbers of the dense matrices in all cases but the tiny one. If
    the vocabulary is tensorized too, the embedding has order 3 and rank 64.
    """
    galore_rank, block_rank = ranks
    large = f"tensor.block_train={{blocks: 8, rank: {5 * width // 128}}}"
    overrides = (
        *(f"model.d_model={width}", f"model.d_ff={hidden}", f"model.layers={layers}", f"model.heads={heads}"),
        *("tensor.layers=[]", "tensor.order=3", f"tensor.rank={width // 4}", "tensor.outer_rank=null"),
        *("tensor.embedding_order=3", "tensor.embedding_rank=64"),
    )
    models = {
        DENSE: ("model.format=dense",),
        OURS: ("model.format.embedding=dense", "model.format.head=dense"),
        OURS_WITH_VOCABULARY: (),
        DENSE_SPECTRAL: ("model.format=dense", *SPECTRAL),
        BLOCKS: blocks("block_train", f"tensor.block_train.rank={block_rank}", *SPECTRAL),
        LARGE_BLOCKS: blocks("block_train", large, *SPECTRAL),
    }
    return Case(name, sequences, **{"seq_len": 256} | more, models=models, overrides=overrides, galore_rank=galore_rank)


def fewer(case: Case) -> Case:
    """Without GaLore, dense spectral steps, the tensor vocabulary and small blocks, and mode by mode: a GPU's memory is
    small.
    """
    models = {name: case.models[name] for name in (DENSE, OURS, LARGE_BLOCKS)}
    return replace(case, models=models, galore_rank=None, is_huge=True)


def small_vocabulary(name: str, sequences: int, overrides: tuple[str, ...] = (), **more) -> Case:
    models = {DENSE: ("model.format=dense", "tensor.layers=[]"), OURS: ()}
    return Case(name, {"cpu": sequences, "cuda": sequences}, 128, models, overrides, vocabulary=4096, **more)


def quickstart() -> Case:
    """The quickstart on one process, block trains of its size, and its dense twin with both optimizers."""
    models = {
        DENSE: ("model.format=dense", "optim.kind=adamw"),
        DENSE_SPECTRAL: ("model.format=dense",),
        BLOCKS: block_trains(2, 120),
        SHARED: (),
    }
    return Case("quickstart", {"cpu": 16, "cuda": 16}, 128, models, base="configs/quickstart.yaml", vocabulary=4096)


WIDE = (
    *("model.d_model=768", "model.layers=6", "model.heads=12", "model.d_ff=2048"),
    *("tensor.rank=32", "tensor.outer_rank=32", "tensor.layers=[]"),
)
# Fewer repeats: steps take several seconds on two cores, and compiling another minute for each side.
LARGE, LARGEST = {"cpu": 5, "cuda": 9}, {"cpu": 3, "cuda": 9}


def six_encoder(batch: int, on_cpu: bool = True, **more) -> Case:
    sequences = {"cpu": batch, "cuda": batch} if on_cpu else {"cuda": batch}
    # Rank d/4, as GaLore's authors choose it.
    return encoder("six-encoder", sequences, 128, galore_rank=192, **more)


# In order of value, because a run that is stopped has measured the first; compiled cases take long and are last.
CASES = {
    "six-encoder-1": six_encoder(1),
    "llama-350m": llama("LLaMA 350M", 1024, 2736, 24, 16, (256, 9), {"cuda": 32}, repeats={"cuda": 5}),
    "llama-1b": fewer(llama("LLaMA 1B", 2048, 5461, 24, 32, (512, 16), {"cuda": 16}, repeats={"cuda": 5}, fp8=True)),
    "quickstart": quickstart(),
    "six-encoder-128": six_encoder(128, on_cpu=False),
    "llama-60m": llama("LLaMA 60M", 512, 1376, 8, 8, (128, 8), {"cpu": 4, "cuda": 32}, repeats=LARGE),
    "decoder": small_vocabulary("d=256, 4 layers", 16),
    "d768": small_vocabulary("d=768, 6 layers, rank 32", 8, WIDE, repeats=LARGE),
    "six-encoder-32": six_encoder(32, repeats=LARGEST, compiles=True),
    "llama-130m": llama(
        "LLaMA 130M", 768, 2048, 12, 12, (256, 9), {"cpu": 4, "cuda": 32}, repeats=LARGEST, compiles=True
    ),
}

_TINY_REPEATS = {"cpu": 2, "cuda": 2}
# CoMERA's scheme has three cores per side of a layer and four of an embedding, whatever the size.
_TINY_ENCODER = (
    *("model.d_model=32", "model.d_ff=64", "model.heads=2", "model.layers=2", "model.positions=8", "tensor.rank=3"),
    "tensor.layers=[{match: '*.intermediate.*', in_modes: [4, 2, 4], out_modes: [4, 4, 4]},"
    "{match: 'bert.encoder.layer.?.output.*', in_modes: [4, 4, 4], out_modes: [4, 2, 4]},"
    "{match: '*', in_modes: [4, 2, 4], out_modes: [4, 2, 4]}]",
    "tensor.embeddings=[{match: '*', order: 4, rank: 3, vocab_modes: [3, 4, 4, 3], width_modes: [2, 2, 4, 2]}]",
)
QUICK = {
    "tiny-encoder": encoder(
        "tiny encoder", {"cpu": 4, "cuda": 4}, 8, 8, _TINY_ENCODER, vocabulary=130, repeats=_TINY_REPEATS
    ),
    "tiny-llama": llama(
        "tiny LLaMA", 32, 64, 2, 2, (8, 2), {"cpu": 4, "cuda": 4}, seq_len=16, vocabulary=128, repeats=_TINY_REPEATS
    ),
}


def cases_for(device_type: str) -> dict[str, Case]:
    return {key: case for key, case in CASES.items() if device_type in case.sequences}
