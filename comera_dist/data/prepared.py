"""What all prepared data have in common: a folder that exists as a data set once its manifest exists."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from comera_dist.data.contents import Contents
from comera_dist.data.manifest import MANIFEST, PARTIAL, Record, fingerprint, first_fault, read_json
from comera_dist.errors import DataError

Manifest = TypeVar("Manifest", bound=Record)
Split = TypeVar("Split")


@dataclass(frozen=True)
class Kind:
    """A kind of prepared data and the command that makes it.

    `dtypes` lists the dtypes that each column may have. No others are read: numpy would take the bytes of a file for
    pointers if a damaged manifest said "|O". An entry of a `wide` column may be several numbers.
    """

    name: str
    command: str
    hint: str = ""  # another way to get such data, for the error where there are none
    dtypes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    wide: tuple[str, ...] = ()


class PreparedData(Generic[Split]):
    """An opened data set. A subclass fills `splits` and `contents`.

    Raises DataError if the data set is missing, unfinished, unreadable, of another kind, or misdescribed.
    """

    contents: Contents
    splits: dict[str, Split]

    def __init__(self, path: str | Path, kind: Kind):
        self.path, self._kind = Path(path), kind
        self._remedy = f"copy the data set again, or rebuild it with {kind.command} --overwrite"
        self.manifest = self._read_manifest()
        self.fingerprint = fingerprint(self.manifest)

    def split(self, name: str) -> Split:
        """Raises DataError if there is no such split."""
        if name not in self.splits:
            remedy = "; prepare it with --valid-source or --valid-fraction" if name == "valid" else ""
            raise DataError(f"data set {self.path} has no split {name!r}; it has {', '.join(self.splits)}{remedy}")
        return self.splits[name]

    def _described_by(self, manifest_type: type[Manifest]) -> Manifest:
        """The keys of the manifest that `manifest_type` declares."""
        try:
            return manifest_type.model_validate(self.manifest)
        except ValidationError as error:
            raise self._misdescribed(first_fault(error)) from error

    def _misdescribed(self, fault: str) -> DataError:
        """The error for a manifest with this `fault`."""
        return DataError(f"{self.path / MANIFEST} does not describe {self._kind.name}: {fault}; {self._remedy}")

    def _read_manifest(self) -> dict[str, Any]:
        try:
            manifest: dict[str, Any] = read_json(self.path / MANIFEST)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._missing(error) from error
        except OSError as error:
            raise DataError(
                f"{self.path / MANIFEST} cannot be read ({error.strerror}); make it readable, or {self._remedy}"
            ) from error
        except ValueError as error:
            raise self._misdescribed(str(error)) from error
        # Only the manifest of tokenized text has no "kind".
        found = manifest.get("kind", "text") if isinstance(manifest, dict) else self._kind.name
        if found != self._kind.name:
            raise DataError(
                f"{self.path} holds {found}, and this model reads {self._kind.name}; name a data set of "
                f"{self._kind.command}, or change model.kind"
            )
        return manifest

    def _missing(self, error: OSError) -> DataError:
        if (self.path / PARTIAL).exists():
            return DataError(f"data set {self.path} is not finished; run the same {self._kind.command} command again")
        # A finished run names its data as they were seen from the folder in which it was trained.
        seen = "" if self.path.is_absolute() else f", seen from {Path.cwd()}"
        return DataError(
            f"there is no data set at {self.path}{seen} ({MANIFEST}: {error.strerror}); {self._kind.hint}make one with "
            f"`python {self._kind.command} ... --output {self.path}`"
        )
