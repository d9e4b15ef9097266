"""What a service makes of requests, whatever they say."""

from dataclasses import dataclass

from models.families.family import Capabilities
from service.signatures import Signer


@dataclass(frozen=True, slots=True)
class Served:
    """`model` is its name in errors. Without `grammar` nothing that a model writes is guaranteed;
    with `ignores_hints` an effort that the model does not have is accepted."""

    model: str
    capabilities: Capabilities
    signer: Signer
    grammar: bool = True
    ignores_hints: bool = False
