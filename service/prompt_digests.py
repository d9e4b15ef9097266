"""What tells apart the parts of two prompts, where a record keeps no words of them."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Self

from models.conversation import Conversation, Tool
from storage.json_text import to_json


@dataclass(frozen=True, slots=True)
class PromptDigests:
    """SHA-256 of what comes before the messages: the system text and the tools, as the model is
    told of them; marks of the prompt cache make no difference."""

    system: str
    tools: str

    @classmethod
    def of(cls, conversation: Conversation) -> Self:
        first = conversation.turns[0]
        system = first.text if first.role == "system" else ""
        # The order of keys makes a difference, since templates keep it.
        tools = to_json([_told(each) for each in conversation.form.tools])
        return cls(sha256(system.encode()).hexdigest(), sha256(tools).hexdigest())


def _told(tool: Tool) -> list[object]:
    return [tool.name, tool.description, tool.schema]
