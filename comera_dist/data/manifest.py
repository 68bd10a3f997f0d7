"""The manifests of prepared data as pydantic models: a copy or an editor may have damaged one."""

import hashlib
import json
import stat
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

MANIFEST = "manifest.json"
PARTIAL = ".partial"  # subfolder with the files of a data set that is not finished
FORMAT = 1
MOST_IDS = 2**32  # numbers that four bytes can tell apart
DTYPES = {"uint16": "<u2", "uint32": "<u4"}  # of token shards

# Names that data_prep/ gives to splits, columns and files. A path that leads out of the folder does not match.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# The bound of 2**48 entries is more than a file system holds, and byte counts below it fit 64 bits.
Count = Annotated[int, Field(ge=0, le=2**48)]
Positive = Annotated[int, Field(ge=1, le=2**48)]


class Record(BaseModel):
    """A part of a manifest. Keys that are not declared are left to the code that wrote them."""

    model_config = ConfigDict(strict=True)


class ShardRecord(Record):
    file: str
    tokens: Positive
    documents: Positive
    bytes: Positive
    sha256: Sha256


class TextSplit(Record):
    tokens: Count
    documents: Count
    bytes: Count  # of the documents as UTF-8
    shards: list[ShardRecord]

    @model_validator(mode="after")
    def _adds_up(self) -> "TextSplit":
        for key in ("tokens", "documents", "bytes"):
            found, expected = getattr(self, key), sum(getattr(shard, key) for shard in self.shards)
            if found != expected:
                raise ValueError(f"{key} = {found}, and its shards have {expected}")
        return self


class TokenizerRecord(Record):
    file: Name
    sha256: Sha256


class TextManifest(Record):
    """Tokenized text, see data/shards.py."""

    format: Literal[1]
    dtype: Literal["uint16", "uint32"]
    vocab_size: Annotated[int, Field(ge=1, le=MOST_IDS)]
    eos_id: Count
    tokenizer: TokenizerRecord
    splits: dict[Name, TextSplit]

    @model_validator(mode="after")
    def _has_room_for_ids(self) -> "TextManifest":
        if self.eos_id >= self.vocab_size:
            raise ValueError(f"eos_id = {self.eos_id} is not below vocab_size = {self.vocab_size}")
        if self.dtype == "uint16" and self.vocab_size > 2**16:
            raise ValueError(f"vocab_size = {self.vocab_size} does not fit uint16")
        return self


class ColumnRecord(Record):
    dtype: str  # one that KINDS of data/columns.py names for this column
    width: Annotated[int, Field(ge=1, le=2**20)]  # chosen: more numbers than a row of any model has
    entries: Count
    sha256: Sha256


class ColumnsManifest(Record):
    """Any data set of columns, see data/columns.py."""

    format: Literal[1]
    splits: dict[Name, dict[Name, ColumnRecord]]
    files: dict[Name, Sha256] = {}  # an earlier version listed no further files


class PairsManifest(Record):
    """Further keys of the columns of text pairs, see data/pairs.py."""

    vocab_size: Annotated[int, Field(ge=4, le=MOST_IDS)]  # at least the special tokens
    labels: list[str]
    eos_id: Count | None = None  # of the tokenizer; an earlier version did not name it


class AnswerCounts(Record):
    """Of one split: examples, tokens that answers have as targets (an EOS each too), and bytes of answers as UTF-8."""

    examples: Positive
    targets: Positive
    bytes: Positive


class AnswersManifest(Record):
    """Further keys of the columns of prompts and answers, see data/answers.py."""

    vocab_size: Annotated[int, Field(ge=1, le=MOST_IDS)]
    eos_id: Count
    template: str
    counts: dict[Name, AnswerCounts]

    @model_validator(mode="after")
    def _has_room_for_eos(self) -> "AnswersManifest":
        if self.eos_id >= self.vocab_size:
            raise ValueError(f"eos_id = {self.eos_id} is not below vocab_size = {self.vocab_size}")
        return self


class ClicksManifest(Record):
    """Further keys of the columns of a click log, see data/clicks.py."""

    dense: list[Any]
    table_rows: list[Annotated[int, Field(ge=1, le=MOST_IDS)]]


def read_json(file: Path) -> Any:
    """The content of a JSON file. Raises OSError if it cannot be read, ValueError if it does not hold JSON."""
    if stat.S_IFMT(file.stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
        raise ValueError("it is not a plain file")  # reading a pipe or a device might never end
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from error


def fingerprint(manifest: dict[str, Any]) -> str:
    """sha256 of the manifest in canonical JSON. It names the data, because the manifest has the hash of every file."""
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def first_fault(error: ValidationError) -> str:
    """What is wrong with the first bad value of a manifest, e.g. `splits.train.tokens is -1 and should be ...`."""
    fault = error.errors()[0]
    place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in fault["loc"]).lstrip(".") or "it"
    kind, reason = fault["type"], fault["msg"].partition(" ")[2]
    if kind == "missing":
        return f"{place} is missing"
    if kind in ("model_type", "dict_type"):
        return f"{place} is not an object"
    if kind == "value_error":
        return f"{place} does not add up: {fault['ctx']['error']}"
    return f"{place} is {shortened(fault['input'])} and {reason}"  # pydantic: "Input should be ...", "List should ..."


def shortened(value: Any, length: int = 40) -> str:
    text = json.dumps(value)
    return text if len(text) <= length else f"{text[:length]}…"
