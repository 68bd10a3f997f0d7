"""Turns a click log into columns that a recommendation model is trained on.

python data_prep/prepare_clicks.py --source 'criteo:day_*.gz' --hash-rows 1000000 --output corpora/criteo
python data_prep/prepare_clicks.py --source csv:ratings.csv --join movies.csv:movieId --label 'rating>=4' \
    --categories userId,movieId,genres,timestamp.hour,timestamp.weekday --output corpora/ratings
python data_prep/prepare_clicks.py --test-source csv:adult.test --columns age,workclass,...,income \
    --label 'income=>50K|>50K.' --dictionaries corpora/adult --output corpora/adult-test
python data_prep/prepare_clicks.py --source generated:1000000 --hash-rows 100000 --output corpora/generated-clicks
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from comera_dist.data.clicks import ClickCorpus
from comera_dist.data.columns import Column
from comera_dist.data.vocabulary import WORDS
from comera_dist.errors import DataError
from data_prep.clicks.records import SKIPPED, Clicks
from data_prep.clicks.sources import KINDS, ClickSource, open_source
from data_prep.clicks.splits import RowSplit, Tally
from data_prep.command import OneLineParser, StoreOnce, add_common_arguments, add_held_out_arguments, positive, run
from data_prep.files.blocks import BLOCK_BYTES
from data_prep.files.column_folder import ColumnFolder
from data_prep.files.preparation import Preparation
from data_prep.files.skips import Skips

_MOST_ROWS = 2**31 - 1  # rows of a table that an int32 can number
# Settings that the first version did not have: without them, its data sets count as finished.
_SINCE_FIRST_VERSION = ("valid_source", "test_source", "dictionaries")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _table_rows(text: str) -> tuple[int, ...]:
    try:
        rows = tuple(int(part.replace("_", "")) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a list of whole numbers") from None
    if not all(2 <= number <= _MOST_ROWS for number in rows):
        raise argparse.ArgumentTypeError(f"{text} holds a size that is not in 2..{_MOST_ROWS}")
    return rows


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description="Prepare a click log for training a recommendation model.")
    add = parser.add_argument
    add("--source", action=StoreOnce, help=", ".join(kind.usage for kind in KINDS))
    add("--output", type=Path, required=True, help="folder of the data set")
    _add_csv_options(parser)
    rows = "rows of hashed tables, one for all or a,b,c; default: words"
    add("--hash-rows", action=StoreOnce, type=_table_rows, default=(), help=rows)
    add("--min-count", type=positive, default=1, help="rarer words of a dictionary share row 0")
    add("--dictionaries", help="earlier data set whose columns, dictionaries, moments and tables are taken")
    held_out: dict[str, Any] = {"several": False, "kept_out": "none of its files"}  # equal rows of a log are no copies
    add_held_out_arguments(parser, "valid", "the rows of --source", **held_out)
    add_held_out_arguments(parser, "test", "the rows of --source", default=0.0, **held_out)
    add_common_arguments(parser, "row")
    args = parser.parse_args(argv)
    if not args.source and not (args.dictionaries and (args.valid_source or args.test_source)):
        parser.error("name a --source, or --dictionaries with a --valid-source or --test-source")
    if args.valid_fraction + args.test_fraction >= 1:
        parser.error("--valid-fraction and --test-fraction leave nothing to train on")
    if args.hash_rows and args.min_count != 1:
        raise DataError("--min-count is for dictionaries, whose place --hash-rows takes; remove one of them")
    if args.log and not (args.dense or args.dictionaries):
        raise DataError("--log is for numbers, and none are named; name their columns with --dense, or remove it")
    for name in () if args.source else ("valid_fraction", "test_fraction", "seed"):
        if getattr(args, name) not in (0, parser.get_default(name)):
            option = name.replace("_", "-")
            raise DataError(f"--{option} divides the rows of --source, and there is none; name one, or remove it")
    return args


def _add_csv_options(parser: argparse.ArgumentParser) -> None:
    names: dict[str, Any] = {"action": StoreOnce, "type": _names, "default": ()}
    add = parser.add_argument
    add("--label", help="csv: COLUMN of 0 and 1, COLUMN=WORD, COLUMN=WORD|WORD or COLUMN>=NUMBER")
    add("--columns", **names, help="csv without a header: names of its columns, a,b,c")
    add("--dense", **names, help="csv: columns of numbers, a,b,c; t.seconds since 1970 of a time t")
    times = "t.hour, t.weekday in UTC of a time t, a Unix time or ISO 8601"
    add("--categories", **names, help=f"csv: columns of words, a,b,c; {times}")
    add("--join", action=StoreOnce, help="csv: FILE:COLUMN, one small csv file that adds columns by this key")
    add("--missing", **names, help="csv: words that mean no value, beside empty ones")
    add("--log", action="store_true", help="csv: log(x + 1) of numbers; default: standardised")


def prepare(argv: list[str] | None = None, block_bytes: int = BLOCK_BYTES) -> None:
    """The whole command. Raises ComeraError for everything that the user can mend."""
    args = parse_arguments(argv)
    settings = {key: value for key, value in vars(args).items() if key not in ("output", "overwrite", "strict")}
    source, split = open_source(settings, block_bytes), _split(args)
    folder = ColumnFolder(args.output, "clicks", _columns(source), split.names, _parameters(settings))
    preparation, tally = Preparation(folder, args, SKIPPED), Tally(split, has_label_rule=bool(args.label))
    if preparation.is_done():
        return
    with preparation.running() as bar:
        if source.needs_fit:
            bar.begin("learning words and moments", source.rows)
            # These faults are dropped: they are counted when the rows are read again.
            source.fit(split.is_train, Skips(args.strict, SKIPPED), bar.advance)
        bar.begin("writing", source.rows)
        for clicks in source.clicks(preparation.skips):
            _write(folder, split, clicks, tally)
            bar.advance(len(clicks.labels_N))
        tally.check()
        words = source.words()
        preparation.publish({**source.facts(), **tally.facts()}, {WORDS: _words_file(words)})
    for note in source.notes:
        print(note)
    preparation.report(_report(ClickCorpus(args.output), tally, words, bar.seconds))


def _split(args: argparse.Namespace) -> RowSplit:
    held = tuple(name for name in ("valid", "test") if getattr(args, f"{name}_source"))
    valid, test = (getattr(args, f"{name}_fraction") * (name not in held) for name in ("valid", "test"))
    return RowSplit(valid, test, args.seed, held, has_train=bool(args.source))


def _columns(source: ClickSource) -> dict[str, Column]:
    columns = {"categories": Column("<i4", len(source.categories)), "labels": Column("|i1")}
    return {**columns, "dense": Column("<f4", len(source.dense))} if source.dense else columns


def _parameters(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as a manifest gives them back, with lists for tuples."""
    given = {key: value for key, value in settings.items() if value or key not in _SINCE_FIRST_VERSION}
    if "dictionaries" in given:  # the content of a folder counts, not where it is
        given["dictionaries"] = ClickCorpus(given["dictionaries"]).fingerprint
    written: dict[str, Any] = json.loads(json.dumps(given))
    return written


def _write(folder: ColumnFolder, split: RowSplit, clicks: Clicks, tally: Tally) -> None:
    split_N = split.of(clicks.number_N) if clicks.split is None else np.full(len(clicks.number_N), clicks.split)
    for name in split.names:
        in_N = split_N == name
        columns = {"categories": clicks.categories_NC[in_N], "labels": clicks.labels_N[in_N]}
        if clicks.dense_NF.shape[1]:
            columns["dense"] = clicks.dense_NF[in_N]
        folder.append(name, columns)
        best_loss_N = None if clicks.best_loss_N is None else clicks.best_loss_N[in_N]
        tally.add(name, columns["labels"], columns["categories"], best_loss_N)


def _words_file(words: dict[str, list[str]]) -> bytes:
    # Bytes that are not UTF-8 are lone surrogates here, which are written with a backslash.
    return json.dumps(words, ensure_ascii=False, indent=0).encode(errors="backslashreplace")


def _report(corpus: ClickCorpus, tally: Tally, words: dict[str, list[str]], seconds: float) -> Iterator[str]:
    best_loss = tally.facts().get("best_loss", {})
    for name, rows in tally.rows.items():
        best = f", best possible log-loss {best_loss[name]:.4f} nats" if best_loss else ""
        label = tally.only_label(name)
        only = "" if label is None else f"; every label is {label}, so it has no AUC"
        yield f"{name}: {rows:,} rows, {100 * tally.clicked[name] / rows:.1f}% clicked{best}{only}"
    yield f"{corpus.dense_features} numbers a row; {_tables(corpus)}"
    yield from tally.unknown(_categories(corpus), words)
    speed = sum(tally.rows.values()) / seconds
    yield f"{corpus.path}: {seconds:.1f} s, {speed:,.0f} rows/s, data set {corpus.fingerprint[:12]}"


def _tables(corpus: ClickCorpus) -> str:
    names = _categories(corpus)
    if len(set(corpus.table_rows)) == 1 < len(names):
        return f"{len(names)} tables of {corpus.table_rows[0]:,} rows"
    sizes = ", ".join(f"{name} {rows:,}" for name, rows in zip(names, corpus.table_rows, strict=True))
    return f"rows of tables: {sizes}"


def _categories(corpus: ClickCorpus) -> list[str]:
    return [entry["name"] for entry in corpus.manifest["categories"]]


def main() -> int:
    return run(prepare)


if __name__ == "__main__":
    sys.exit(main())
