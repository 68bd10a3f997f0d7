"""Turns prompts with answers, or chats, into token columns in which only answers are targets.

python data_prep/prepare_answers.py --source 'files:answers.jsonl' --tokenizer corpora/python-stdlib/tokenizer.model \
    --output corpora/answers
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from comera_dist.data.answers import ANSWERS, AnswerCorpus
from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.prompt_form import PLAIN, PromptForm
from data_prep.answers.sources import SKIPPED, Dialogues, Keys
from data_prep.answers.writer import AnswerWriter, answer_columns, encoded
from data_prep.command import OneLineParser, add_common_arguments, add_held_out_arguments, positive, run
from data_prep.files.column_folder import ColumnFolder
from data_prep.files.preparation import Preparation
from data_prep.files.split import SplitRule, split_items
from data_prep.text.arguments import TOKENIZER_USAGE
from data_prep.text.encoding import lossy_lines
from data_prep.text.tokenizer_copy import tokenizer_copy, tokenizer_entry


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description="Prepare prompts and answers for a decoder.")
    add = parser.add_argument
    usage = ", ".join(kind.usage for kind in Dialogues.kinds)
    add("--source", action="append", required=True, help=f"{usage}; may be given several times")
    add("--prompt-key", default="prompt", help="column of the prompt")
    add("--response-key", default="response", help="column of the answer")
    add("--messages-key", default="messages", help="column of a chat; rows that have it need no prompt and answer")
    add("--template", default=PLAIN, help="form of a prompt with its answer (default: a line each)")
    add("--max-tokens", type=positive, help="leave out longer examples, e.g. than data.seq_len (default: none)")
    add_held_out_arguments(parser, "valid", "the dialogues")
    add("--tokenizer", type=Path, required=True, help=f"{TOKENIZER_USAGE}; that of the pretrained model's corpus")
    add("--output", type=Path, required=True, help="folder of the prepared answers")
    add_common_arguments(parser, "dialogue")
    return parser.parse_args(argv)


def prepare(argv: list[str] | None = None) -> None:
    """The whole command. Raises ComeraError for everything that the user can mend."""
    args = parse_arguments(argv)
    form, tokenizer = PromptForm(args.template), open_tokenizer(args.tokenizer)
    parameters = {**_parameters(args), "tokenizer": tokenizer.fingerprint}
    source, rule = open_source(parameters)
    columns = answer_columns(tokenizer.vocab_size)
    folder = ColumnFolder(args.output, ANSWERS, columns, rule.splits, parameters, eos_id=tokenizer.eos_id)
    preparation, writer = Preparation(folder, args, SKIPPED), AnswerWriter(folder, rule)
    if preparation.is_done():
        return
    with preparation.running() as bar:
        bar.begin("preparing")
        dialogues = bar.counted(split_items(source, rule, preparation.skips))
        writer.write(encoded(dialogues, tokenizer, form, args.max_tokens, preparation.skips))
        facts = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer_entry(tokenizer)}
        facts |= {"eos_id": tokenizer.eos_id, "template": form.template, "counts": writer.counts}
        preparation.publish(facts, tokenizer_copy(tokenizer))
    preparation.report([*lossy_lines(tokenizer), *_report(AnswerCorpus(args.output), writer.longest)])
    print(f"{args.output}: {bar.seconds:.1f} s")


def _parameters(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments that decide which dialogues are read, how they are split and how they are laid out."""
    return {
        "sources": args.source,
        "valid_sources": args.valid_source,
        "valid_fraction": 0.0 if args.valid_source else args.valid_fraction,
        "keys": [args.prompt_key, args.response_key, args.messages_key],
        "template": args.template,
        "max_tokens": args.max_tokens,
        "seed": args.seed,
    }


def open_source(parameters: dict[str, Any]) -> tuple[Dialogues, SplitRule]:
    """Raises DataError if a source is unknown, or names something that does not exist."""
    keys, specs = Keys(*parameters["keys"]), parameters["valid_sources"]
    valid = Dialogues(specs, keys) if specs else None
    return Dialogues(parameters["sources"], keys), SplitRule(
        parameters["seed"], parameters["valid_fraction"], valid=valid
    )


def _report(prepared: AnswerCorpus, longest: int) -> Iterator[str]:
    for split, columns in prepared.splits.items():
        counts = prepared.counts[split]
        yield f"{split}: {counts.examples:,} examples, {len(columns['tokens']):,} tokens, {counts.targets:,} targets"
    yield f"the longest example takes {longest} tokens; data.seq_len must not be smaller"


def main() -> int:
    return run(prepare)


if __name__ == "__main__":
    sys.exit(main())
