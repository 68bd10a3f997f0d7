"""Configuration: defaults < YAML < command line, and every mistake at once."""

import subprocess
import sys

import pytest
import yaml
from support import ROOT, environment

from comera_dist.config.reader import read_config
from comera_dist.config.registry import FORMATS
from comera_dist.errors import ConfigError


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_config(None, list(overrides))
    return str(caught.value).splitlines()


def test_command_line_beats_file_beats_defaults(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("train: {steps: 5, zero_stage: 2}\noptim: {lr: 1e-3}\n")
    config = read_config(file, ["train.steps=7"])
    assert (config.train.steps, config.train.zero_stage, config.optim.lr) == (7, 2, 1e-3)
    assert config.train.precision == "fp32"


def test_all_mistakes_are_reported_at_once():
    found = problems("train.stepz=5", "train.steps=5", "model.heads=7", "tensor.rank=-1", "deepspeed.bf16.enabled=true")
    assert len(found) == 4
    for sentence in (
        "train.stepz is not a known key; did you mean train.steps?",
        "tensor.rank = -1 is not possible: input should be greater than 0",
        "model.d_model = 256 is not a multiple of 2 × model.heads = 14, as rotary positions need; change either",
        "deepspeed.bf16 is decided by train.precision; set that and remove this key",
    ):
        assert sentence in found


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "model.format.atention=dense",
            "model.format.atention is not a known key; did you mean model.format.attention?",
        ),
        (
            "tensor.layers=[{match: x, rnk: 3}]",
            "tensor.layers.0.rnk is not a known key; did you mean tensor.layers.0.rank?",
        ),
        ("train.tokens=100", "both of train.steps and train.tokens is set; set exactly one of them"),
        ("train.batch_tokens=1000", "nearest: 896 or 1024"),
        ("model.kv_heads=3", "model.heads = 4 is not a multiple of model.kv_heads = 3; change either"),
        (
            "model.layers=1e12",
            "model.layers = '1e12' is not possible: input should be less than or equal to 4096",
        ),
        ("model.d_model=1e30", "model.d_model = 1e+30 is not possible"),
        ("tensor.order=1e9", "tensor.order = '1e9' is not possible: input should be less than or equal to 12"),
        ("ranks.min_rank=0x" + "f" * 5000, "ranks.min_rank = a very large int is not possible"),
        ("run.seed=4294967296", "run.seed = 4294967296 is not possible"),
        ("run.name=" + "a" * 201, "is not possible: string should have at most 200 characters"),
        (
            "run.directory=~no-user/a",
            "run.directory = '~no-user/a' is not possible: expected a path below the home folder of a",
        ),
        ("run.start_from=", "run.start_from was given without a value; write run.start_from=null to give it none"),
        (
            "checkpoint.mirror= ",
            "checkpoint.mirror was given without a value; write checkpoint.mirror=null to give it none",
        ),
        ('checkpoint.mirror=""', "checkpoint.mirror = '' is not possible: string should have at least 1 character"),
        ('data.corpus="a\\0"', "data.corpus = 'a\\x00' is not possible: a path holds no null byte"),
        (
            "log.every=yes",
            "log.every = True is not possible: expected a number (YAML reads yes and on as true, no and off as false)",
        ),
        ("optim.betas=[0.9, 1]", "optim.betas.1 = 1 is not possible: input should be less than 1"),
        ("optim.eps=1e-300", "optim.eps = '1e-300' is not possible: a smaller number than 1e-37 is 0 in fp32"),
        ("data.masked_fraction=0", "data.masked_fraction = 0 is not possible: input should be greater than 0"),
        ("tensor.layers=5", "tensor.layers = 5 is not possible: input should be a valid tuple"),
        ("deepspeed.steps_per_print=0", "deepspeed.steps_per_print = 0 is not possible"),
        ("deepspeed.zero_optimization=5", "deepspeed.zero_optimization = 5 is not possible"),
        (
            "deepspeed.zero_optimization.round_robin_gradients=true",
            "deepspeed.zero_optimization.round_robin_gradients lays weights and moments out in another order than "
            "checkpoints read them; remove this key",
        ),
        (
            "deepspeed.zero_optimization={offload_optimizer: {device: cpu}}",
            "deepspeed.zero_optimization.offload_optimizer needs an optimizer of DeepSpeed's own",
        ),
        (
            "deepspeed.zero_optimization.overlap_com=true",
            "deepspeed.zero_optimization.overlap_com is not a key that can be passed through; did you mean "
            "deepspeed.zero_optimization.overlap_comm?",
        ),
        (
            "deepspeed.zero_optimization.elastic_checkpoint=true",
            "deepspeed.zero_optimization.elastic_checkpoint is not a key that can be passed through; use one of",
        ),
        (
            "deepspeed.zero_optimization.sub_group_size=100",
            "deepspeed.zero_optimization.sub_group_size has no effect at train.zero_stage = 1; set another of 3 or",
        ),
        ("deepspeed.tensorboard.enabled=true", "deepspeed.tensorboard logs only the learning rate"),
        ("deepspeed.prescale_gradients=true", "deepspeed.prescale_gradients is for gradients in fp16"),
        ("deepspeed.communication_data_type=fp16", "input should be 'fp32' or 'bf16'"),
        (
            "schedule={kind: wsd, warmup_steps: 6, decay_fraction: 0.5}",
            "schedule.warmup_steps = 6 and schedule.decay_fraction = 0.5 overlap in train.steps = 9; lower either",
        ),
        (
            "schedule.decay_fraction=0.5",
            "schedule.decay_fraction = 0.5 has no effect on schedule.kind = cosine; choose another kind, or remove it",
        ),
        (
            "schedule={kind: constant, final_lr_fraction: 0.5}",
            "schedule.final_lr_fraction = 0.5 has no effect on schedule.kind = constant; choose another kind, or",
        ),
        (
            "data.masked_fraction=0.3",
            "data.masked_fraction = 0.3 has no effect on model.kind = decoder as it is configured; remove it",
        ),
        (
            "deepspeed.comms_logger.enabled=false",
            "deepspeed.comms_logger.enabled = false would turn DeepSpeed's logger on, which looks for the section",
        ),
        (
            "deepspeed.comms_logger={enabled: true, prof_ops: [all_reduce]}",
            "deepspeed.comms_logger.prof_ops has no effect while all operations are logged; set",
        ),
        (
            "deepspeed.flops_profiler.profile_step=3",
            "deepspeed.flops_profiler.profile_step has no effect while the profiler is off; set",
        ),
        ("schedule.warmup_steps=9", "leaves no step after the warm-up of train.steps = 9; lower it"),
        ("deepspeed.zero_optimization.stage=3", "decided by train.zero_stage"),
        ("deepspeed.comms_loger.enabled=true", "did you mean deepspeed.comms_logger?"),
        ("optim.lr=.nan", "optim.lr = nan is not possible"),
        ("run.name=../elsewhere", "run.name = '../elsewhere' is not possible"),
        (
            "ranks.patience=3",
            "ranks.policy.patience has no effect while ranks.adapt is false; set ranks.adapt=true or remove it",
        ),
        (
            "ranks={adapt: true, sync_every: 1, target_params: 9, target_fraction: 0.5}",
            "ranks.target_fraction and ranks.target_params are set; the late stage goes for one target, keep one",
        ),
        (
            "ranks={adapt: true, sync_every: 1, layers: []}",
            "ranks.layers = [] leaves no layer whose ranks may change; name some, or set ranks.adapt=false",
        ),
        (
            "ranks={adapt: true, sync_every: 1, loss_bound: 3}",
            "ranks.loss_bound = 3.0 is for the late stage, which has no target; set ranks.target_params or another",
        ),
        (
            "ranks={adapt: true, sync_every: 1, late_start: 0.9}",
            "ranks.late_start = 0.9 is for the late stage, which has no target; set ranks.target_params or another",
        ),
        ("ranks={adapt: true, sync_every: 1, late_end: 0.5}", "ranks.late_end = 0.5 is for the late stage, which"),
        ("ranks={adapt: true, sync_every: 1, rho: 0.5}", "ranks.rho = 0.5 is for the late stage, which has no"),
        (
            "ranks={adapt: true, sync_every: 1, late_start: 0.9, target_params: 9}",
            "ranks.late_start = 0.9 comes after ranks.late_end = 0.7; lower the one or raise the other",
        ),
        ("ranks.adapt=true", "ranks.sync_every = 100 leaves no sync within 9 steps; lower it"),
        (
            "ranks={adapt: true, target_params: 9, sync_every: 5}",
            "leaves no sync between ranks.late_end = 0.7 and the last of 9 steps; lower either, or train for 10 steps",
        ),
        (
            "train={steps: 9, batch_size: 8, batch_tokens: 1024}",
            "train.batch_size = 8 and train.batch_tokens = 1024 are both set; keep one",
        ),
        ("optim.galore.rank=4", "optim.galore has no effect while optim.kind is adamw; set optim.kind=galore"),
        ("steps", "'steps' is not an override; write it as section.key=value, e.g. train.steps=100"),
    ],
)
def test_each_mistake_is_one_sentence_with_a_remedy(override, sentence):
    found = problems("train.steps=9", override)
    assert len(found) == 1
    assert sentence in found[0]


def test_the_warm_up_of_a_token_budget_is_shorter_than_the_run():
    budget = ["train={tokens: 5000, batch_tokens: 1024}"]
    assert problems(*budget, "schedule.warmup_steps=5") == [
        "schedule.warmup_steps = 5 leaves no step after the warm-up of train.tokens = 5000, which are 5 steps; lower it"
    ]
    assert read_config(None, [*budget, "schedule.warmup_steps=4"]).total_steps == 5


def test_a_batch_that_is_no_row_is_one_sentence_also_with_a_token_budget():
    (sentence,) = problems("train={tokens: 5000, batch_tokens: 1}")
    assert sentence == "train.batch_tokens = 1 is not a multiple of data.seq_len = 128; nearest: 128 or 256"


def test_numbers_may_be_text_and_text_may_be_numbers(tmp_path):
    (tmp_path / "run.yaml").write_text("train: {steps: 1e3, batch_tokens: '2048'}\nwandb: {project: '1e5'}\n")
    config = read_config(tmp_path / "run.yaml", ["data.corpus='007'", "optim.weight_decay=-0.0", "optim.lr=2e-4"])
    assert (config.train.steps, config.train.batch_tokens, config.wandb.project) == (1000, 2048, "1e5")
    assert (str(config.data.corpus), config.optim.weight_decay, config.optim.lr) == ("007", 0, 2e-4)


def test_a_tilde_is_the_home_folder(monkeypatch, tmp_path):
    """Checkpoints went into a folder named ~ below the working folder."""
    monkeypatch.setenv("HOME", "/home/of")
    (tmp_path / "run.yaml").write_text("data: {mixture: [{corpus: ~/a, weight: 1}]}\nrun: {start_from: ~/b}\n")
    config = read_config(tmp_path / "run.yaml", ["train.steps=2", "run.directory=~/runs"])
    read = config.run.directory, config.run.start_from, *config.data.folders
    assert [str(path) for path in read] == ["/home/of/runs", "/home/of/b", "/home/of/a"]


def test_a_thousand_mistakes_are_not_a_thousand_lines():
    assert len(problems("train={" + ", ".join(f"k{i}: 1" for i in range(5000)) + "}")) <= 201


def test_every_key_of_zero_is_possible_at_its_stages_alone():
    keys = ["sub_group_size=9", "overlap_comm=false", "allgather_partitions=false"]
    given = [f"deepspeed.zero_optimization.{key}" for key in keys]
    found = {stage: problems(*given, "train.steps=9", f"train.zero_stage={stage}") for stage in range(4)}
    assert {stage: [line.split()[0][28:] for line in lines] for stage, lines in found.items()} == {
        0: ["overlap_comm", "allgather_partitions", "sub_group_size"],
        1: ["sub_group_size"],
        2: ["sub_group_size"],
        3: ["allgather_partitions"],
    }


@pytest.mark.parametrize("kind", ["galore", "muon", "dion", "soap", "mlorc", "mofasgd"])
def test_optimizers_of_whole_matrices_are_not_captured(kind):
    run = [f"optim.kind={kind}", "model.format.mlp=dense", "train.steps=100", "ranks.adapt=true"]
    found = problems(*run, "train.cuda_graphs=true")
    assert found == [f"optim.kind = {kind} cannot be captured; set optim.kind=adamw or train.cuda_graphs=false"]
    for stage in range(4):
        read_config(None, [*run, f"train.zero_stage={stage}"])


def test_a_number_where_text_belongs_is_to_be_quoted():
    assert problems("train.steps=9", "run.name=500_128") == [
        "run.name = 500128 is not possible: expected text; put it in quotes, e.g. run.name=\"'2026'\""
    ]
    assert read_config(None, ["train.steps=9", "run.name='500_128'"]).run.name == "500_128"


def test_an_optimizer_that_nobody_knows_is_named_beside_those_that_there_are():
    assert problems("optim.kind=sgd", "train.steps=9") == [
        "optim.kind = 'sgd' is not possible: expected one of adamw, galore, fira, apollo, apollo_mini, gum, relora, "
        "muon, spectral, dion, soap, mlorc, mofasgd, loro"
    ]


def test_a_misspelt_setting_of_one_optimizer_is_said_together_with_all_other_mistakes():
    found = problems(
        "optim.galore.rnak=4", "optim.lrr=1", "optim.galore.update_every=0", "optim.eps=-1", "train.steps=9"
    )
    assert sorted(found) == [
        "optim.eps = -1 is not possible: input should be greater than 0",
        "optim.galore.rnak is not a known key; did you mean optim.galore.rank?",
        "optim.galore.update_every = 0 is not possible: input should be greater than 0",
        "optim.lrr is not a known key; did you mean optim.lr?",
    ]


def test_settings_of_galore_are_for_galore_alone():
    settings = ["train.steps=9", "model.format.mlp=dense", "train.zero_stage=0", "optim.galore.update_every=7"]
    (sentence,) = problems("optim.kind=muon", *settings)
    assert sentence == "optim.galore has no effect while optim.kind is muon; set optim.kind=galore or remove it"
    assert read_config(None, ["optim.kind=galore", *settings]).optim.galore.update_every == 7


@pytest.mark.parametrize(
    ("kind", "overrides", "sentence"),
    [
        (
            "dlrm",
            ["train.steps=9"],
            "train.batch_size is not set, and the rows of a DLRM are not tokens; set it, e.g. to 2048",
        ),
        (
            "dlrm",
            ["train={batch_size: 32, tokens: 100}"],
            "train.tokens = 100 means nothing to a DLRM; set train.steps instead",
        ),
        (
            "dlrm",
            ["train={batch_size: 32, steps: 9}", "model.format.embeding=dense"],
            "model.format.embeding is not a known key; did you mean model.format.embedding?",
        ),
        (
            "dlrm",
            ["train={batch_size: 32, steps: 9}", "model.rope_theta=500"],
            "model.rope_theta is not a known key; use one of bottom, dense_features, embedding_dim, format, kind, "
            "table_rows, top",
        ),
        (
            "encoder",
            ["train.steps=9", "model.kv_heads=2"],
            "model.kv_heads is not a known key; did you mean model.heads?",
        ),
        (
            "encoder",
            ["train.steps=9", "model.positions=64"],
            "data.seq_len = 128 is longer than model.positions = 64; change either",
        ),
        (
            "encoder",
            ["train.steps=9", "model.heads=7"],
            "model.d_model = 256 is not a multiple of model.heads = 7; change either",
        ),
        (
            "enkoder",
            ["train.steps=9"],
            "model.kind = 'enkoder' is not possible: expected one of decoder, encoder, dlrm",
        ),
    ],
)
def test_mistakes_about_a_kind_of_model_speak_of_that_kind(kind, overrides, sentence):
    assert problems(f"model.kind={kind}", *overrides) == [sentence]


@pytest.mark.parametrize("every", [0, 9, 100])
def test_a_best_checkpoint_needs_a_validation_before_the_end(every):
    (found,) = problems("train.steps=9", "checkpoint.keep_best=true", f"eval.every={every}")
    assert f"eval.every = {every} makes none before the end" in found


def test_one_word_makes_the_dense_twin():
    config = read_config(None, ["train.steps=1", "model.format=dense"])
    assert set(config.model.format.model_dump().values()) == {"dense"}


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.format=dense", "model.format.mlp=tensor"],
        ["model.format.rest=dense", "model.format.mlp=tensor"],
        ["model.format={mlp: tensor, rest: dense}"],
    ],
    ids=str,
)
def test_a_word_for_all_layers_holds_for_those_that_are_not_named(overrides):
    formats = read_config(None, ["train.steps=1", *overrides]).model.format.model_dump()
    assert formats.pop("mlp") == "tensor"
    assert set(formats.values()) == {"dense"}


def test_a_word_for_all_layers_that_is_no_format_is_a_mistake_for_each():
    found = problems("model.kind=decoder", "model.format=dance", "model.format.mlp=tensor", "train.steps=1")
    assert found == [
        f"model.format.{layers} = 'dance' is not possible: expected one of {', '.join(FORMATS.names())}"
        for layers in ("attention", "embedding", "head")
    ]


def test_a_word_for_a_section_that_knows_none_is_a_mistake():
    found = problems("schedule=cosine", "schedule.warmup_steps=1", "train.steps=2")
    assert len(found) == 1
    assert found[0].startswith("schedule = 'cosine' is not possible: it is a section with keys ")
    assert "warmup_steps" in found[0]


def test_a_resolved_configuration_can_be_read_again(tmp_path):
    for name in ("quickstart", "quickstart_ranks"):
        config = read_config(ROOT / f"configs/{name}.yaml", [])
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
        assert read_config(tmp_path / "config.yaml", []) == config


def test_configuration_cannot_change_after_reading():
    config = read_config(None, ["train.steps=1"])
    with pytest.raises(ValueError, match="frozen"):
        config.train.steps = 2


@pytest.mark.parametrize("text", ["- a list\n", "train: [\n", "\x00"])
def test_a_file_that_is_no_configuration_is_one_sentence(tmp_path, text):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        read_config(tmp_path / "bad.yaml")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_one_sentence(name):
    with pytest.raises(ConfigError, match=r"--config '.*' is not a name of a file \(.*\); name a YAML file"):
        read_config(name)


def test_token_budget_is_rounded_up_to_steps():
    assert read_config(None, ["train.tokens=5000"]).total_steps == 3


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_shipped_configuration_is_valid(path):
    read_config(path)


def test_reading_imports_neither_torch_nor_deepspeed():
    run = ["train.steps=900", "optim.kind=muon", "model.format.mlp=dense", "ranks.adapt=true"]
    code = f"import sys; from comera_dist.config.reader import read_config; read_config(None, {run}); "
    code += "sys.exit(any(m in sys.modules for m in ('torch', 'deepspeed')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment()).returncode == 0
