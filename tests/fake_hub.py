"""A data set of the hub without a network: what `datasets.load_dataset_builder` returns, around any stream."""


class FakeBuilder:
    """Adds the split that it is asked for to `asked`."""

    def __init__(self, stream, asked, revision="0" * 40):
        self.hash, self._stream, self._asked = revision, stream, asked

    def as_streaming_dataset(self, split):
        self._asked.append(split)
        return self._stream
