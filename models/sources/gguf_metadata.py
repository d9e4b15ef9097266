"""The key-value part of a GGUF file, typed."""

from typing import Any, cast

import numpy as np
from gguf import GGUFReader

from models.catalog import CheckpointError


class Metadata:
    """What a GGUF file says about itself. A missing key raises `CheckpointError` naming it."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields

    def get(self, key: str, default: Any) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def text(self, key: str) -> str:
        return str(self._required(key))

    def integer(self, key: str) -> int:
        return int(self._required(key))

    def decimal(self, key: str) -> float:
        """A float32 of the file as the decimal its author wrote: 1e-05, not 9.99999974e-06."""
        return float(str(np.float32(self._required(key))))

    def texts(self, key: str) -> list[str]:
        return cast(list[str], self._required(key))

    def integers(self, key: str) -> list[int]:
        return cast(list[int], self._required(key))

    def decimals(self, key: str) -> list[float]:
        return cast(list[float], self._required(key))

    def _required(self, key: str) -> Any:
        value = self.get(key, None)
        if value is None:
            raise CheckpointError(
                f"the GGUF file does not say {key}: it is incomplete, get it again"
            )
        return value
