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
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from comera_dist.data.clicks import ClickCorpus
from comera_dist.data.columns import Column
from comera_dist.data.vocabulary import WORDS
from comera_dist.errors import DataError
from data_prep.click_sources import ClickSource, from_text
from data_prep.click_splits import RowSplit, Tally
from data_prep.column_folder import ColumnFolder
from data_prep.command import DEFAULT_VALID_FRACTION, OneLineParser, fraction, positive, run, seed
from data_prep.generated_clicks import generated
from data_prep.skips import Skips, told_on_failure
from data_prep.text_clicks import KINDS, Clicks

_CSV_ONLY = ("label", "columns", "dense", "categories", "join", "missing", "log")
_TEXT_ONLY = ("valid_source", "test_source", "dictionaries")
_MOST_ROWS = 2**31 - 1  # that an int32 numbers


class Bar:
    """Rows read so far on stderr, and the seconds for the report."""

    def __init__(self):
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._columns = Progress(*columns, console=Console(stderr=True))
        self._task = None

    def __enter__(self) -> "Bar":
        self._columns.start()
        self.started = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self.started
        self._columns.stop()

    def begin(self, what: str, rows: int | None) -> None:
        self._task = self._columns.add_task(what, total=rows)

    def advance(self, rows: int) -> None:
        self._columns.advance(self._task, rows)


def prepare(args: argparse.Namespace) -> None:
    """The whole command; ComeraError with a sentence for whatever the user can mend."""
    settings = {key: value for key, value in vars(args).items() if key not in ("output", "overwrite", "strict")}
    source, split = open_source(settings), _split(args)
    folder = ColumnFolder(args.output, "clicks", _columns(source), split.names, _parameters(settings))
    if not args.overwrite and folder.is_finished():
        print(f"{args.output} is already prepared with these settings; nothing to do.")
        return
    skips, tally = Skips(args.strict, KINDS), Tally(split, has_label_rule=bool(args.label))
    with told_on_failure(skips), Bar() as bar, folder.writing():
        if source.needs_fit:
            bar.begin("learning words and moments", source.rows)
            # Faults are counted when rows are read for good.
            source.fit(split.is_train, Skips(args.strict, KINDS), bar.advance)
        bar.begin("writing", source.rows)
        for clicks in source.clicks(skips):
            _write(folder, split, clicks, tally)
            bar.advance(len(clicks.labels_N))
        tally.check()
        facts = {**source.facts(), **tally.facts(), "skipped": skips.counts}
        folder.publish(facts, {WORDS: _words_file(source.words())})
    for line in source.notes:
        print(line)
    report(ClickCorpus(args.output), skips, tally, bar)


def _write(folder: ColumnFolder, split: RowSplit, clicks: Clicks, tally: Tally) -> None:
    split_N = split.of(clicks.number_N) if clicks.split is None else np.full(len(clicks.number_N), clicks.split)
    for name in split.names:
        in_N = split_N == name
        columns = {"categories": clicks.categories_NC[in_N], "labels": clicks.labels_N[in_N]}
        if clicks.dense_NF.shape[1]:
            columns["dense"] = clicks.dense_NF[in_N]
        folder.append(name, columns)
        tally.add(name, columns["labels"], None if clicks.best_loss_N is None else clicks.best_loss_N[in_N])


def _columns(source: ClickSource) -> dict[str, Column]:
    columns = {"categories": Column("<i4", len(source.categories)), "labels": Column("|i1")}
    return {**columns, "dense": Column("<f4", len(source.dense))} if source.dense else columns


def _split(args: argparse.Namespace) -> RowSplit:
    held = tuple(name for name in ("valid", "test") if getattr(args, f"{name}_source"))
    valid, test = (getattr(args, f"{name}_fraction") * (name not in held) for name in ("valid", "test"))
    return RowSplit(valid, test, args.seed, held, has_train=bool(args.source))


def _words_file(words: dict[str, list]) -> bytes:
    # Bytes that are no UTF-8 are lone surrogates here, which JSON writes with a backslash.
    return json.dumps(words, ensure_ascii=False, indent=0).encode(errors="backslashreplace")


def _parameters(settings: dict) -> dict:
    """As a manifest gives them back, with lists for tuples; without what an earlier version did not know."""
    given = {key: value for key, value in settings.items() if value or key not in _TEXT_ONLY}
    if "dictionaries" in given:  # what is in a folder counts, not where it is
        given["dictionaries"] = ClickCorpus(given["dictionaries"]).fingerprint
    return json.loads(json.dumps(given))


def open_source(settings: dict) -> ClickSource:
    """DataError when the source is unknown, names no file, or has settings that it does not take."""
    spec = next(filter(None, (settings[key] for key in ("source", "valid_source", "test_source"))))
    kind, _, rest = spec.partition(":")
    if kind not in ("criteo", "csv", "generated") or not rest:
        raise DataError(f"Source {spec!r} is unknown; use criteo:GLOB, csv:GLOB or generated:ROWS[:SEED].")
    if kind == "csv" and not settings["label"]:
        raise DataError("A csv source needs --label, the column that says which rows were clicked.")
    for key in _CSV_ONLY if kind != "csv" else ():
        if settings[key]:
            raise DataError(f"--{key} is for csv sources; remove it, the columns of {kind} are known.")
    for key in _TEXT_ONLY if kind == "generated" else ():
        if settings[key]:
            raise DataError(f"--{key.replace('_', '-')} is for files; remove it, a generated source splits its rows")
    return generated(rest, settings["hash_rows"]) if kind == "generated" else from_text(kind, settings)


def report(corpus: ClickCorpus, skips: Skips, tally: Tally, bar: Bar) -> None:
    for line in skips.report():
        print(line)
    best_loss = tally.facts().get("best_loss", {})
    for name, rows in tally.rows.items():
        best = f", best possible log-loss {best_loss[name]:.4f} nats" if best_loss else ""
        print(f"{name}: {rows:,} rows, {100 * tally.clicked[name] / rows:.1f}% clicked{best}{_one_class(tally, name)}")
    print(f"{corpus.dense_features} numbers a row; {_tables(corpus)}")
    rows = sum(tally.rows.values())
    print(f"{corpus.path}: {bar.seconds:.1f} s, {rows / bar.seconds:,.0f} rows/s, data set {corpus.fingerprint[:12]}")


def _one_class(tally: Tally, name: str) -> str:
    label = tally.only_label(name)
    return "" if label is None else f"; every label is {label}, so it has no AUC"


def _tables(corpus: ClickCorpus) -> str:
    names = [entry["name"] for entry in corpus.manifest["categories"]]
    if len(set(corpus.table_rows)) == 1 < len(names):
        return f"{len(names)} tables of {corpus.table_rows[0]:,} rows"
    sizes = ", ".join(f"{name} {rows:,}" for name, rows in zip(names, corpus.table_rows, strict=True))
    return f"rows of tables: {sizes}"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _table_rows(text: str) -> tuple[int, ...]:
    try:
        rows = tuple(int(part.replace("_", "")) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no list of whole numbers") from None
    if not all(2 <= number <= _MOST_ROWS for number in rows):
        raise argparse.ArgumentTypeError(f"{text} holds a size that is not in 2..{_MOST_ROWS}")
    return rows


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description="Prepare a click log for training a recommendation model.")
    parser.add_argument("--source", help="criteo:GLOB, csv:GLOB or generated:ROWS[:SEED]")
    parser.add_argument("--output", type=Path, required=True, help="folder of the data set")
    _add_csv_options(parser)
    parser.add_argument(
        "--hash-rows", type=_table_rows, default=(), help="rows of hashed tables, one for all or a,b,c; default: words"
    )
    parser.add_argument("--min-count", type=positive, default=1, help="rarer words of a dictionary share row 0")
    parser.add_argument(
        "--dictionaries",
        type=str,
        help="folder of an earlier data set whose columns, dictionaries, moments and tables are taken",
    )
    valid, test = parser.add_mutually_exclusive_group(), parser.add_mutually_exclusive_group()
    valid.add_argument("--valid-source", help="validation, of the same kind and columns as --source")
    valid.add_argument("--valid-fraction", type=fraction, default=DEFAULT_VALID_FRACTION, help="default 0.05")
    test.add_argument("--test-source", help="test, of the same kind and columns as --source")
    test.add_argument("--test-fraction", type=fraction, default=0.0, help="default 0")
    parser.add_argument("--seed", type=seed, default=0, help="another seed holds out other rows")
    parser.add_argument("--strict", action="store_true", help="stop at the first row that cannot be read")
    parser.add_argument("--overwrite", action="store_true", help="replace what an earlier run with other settings left")
    args = parser.parse_args(argv)
    if not args.source and not (args.dictionaries and (args.valid_source or args.test_source)):
        parser.error("name a --source, or --dictionaries with a --valid-source or --test-source")
    if args.valid_fraction + args.test_fraction >= 1:
        parser.error("--valid-fraction and --test-fraction leave nothing to train on")
    return args


def _add_csv_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--label", help="csv: COLUMN of 0 and 1, COLUMN=WORD, COLUMN=WORD|WORD or COLUMN>=NUMBER")
    parser.add_argument("--columns", type=_names, default=(), help="csv without a header: names of its columns, a,b,c")
    parser.add_argument(
        "--dense", type=_names, default=(), help="csv: columns of numbers, a,b,c; t.seconds since 1970 of a time t"
    )
    parser.add_argument(
        "--categories",
        type=_names,
        default=(),
        help="csv: columns of words, a,b,c; t.hour, t.weekday in UTC of a time t, a Unix time or ISO 8601",
    )
    parser.add_argument("--join", help="csv: FILE:COLUMN, a small csv file that adds columns by this key")
    parser.add_argument("--missing", type=_names, default=(), help="csv: words that mean no value, beside empty ones")
    parser.add_argument("--log", action="store_true", help="csv: log(x + 1) of numbers; default: standardised")


def main(argv: list[str] | None = None) -> None:
    prepare(parse_arguments(argv))


if __name__ == "__main__":
    sys.exit(run(main))
