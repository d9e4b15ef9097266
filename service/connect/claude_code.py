"""What Claude Code must be told, so that a folder's sessions are answered by a service here.

Facts of the client, versions 2.1.197 and 2.1.332, as they were measured: settings override the
environment; a model that it does not know has, for it, a context of a million tokens and the effort
`high`; and it asks for several models, depending on what for.
"""

from typing import Any

from service.connect.own_key import OwnKey
from service.connect.running_service import RunningService

# Not ANTHROPIC_DEFAULT_FABLE_MODEL: for 2.1.197 its model is one that always takes an effort.
_MODEL_VARIABLES = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
# What it asks for itself where it does not know the model.
_MOST_OUTPUT_TOKENS = 32_000
# Its system prompt and tools have 49 KB and 76 KB in the two versions; a token has about 4.
_OWN_PROMPT_TOKENS = 20_000


def output_tokens(service: RunningService) -> int:
    """What an answer may take. A request that asks for more than the context has left is refused,
    so three quarters of that are for the prompt."""
    return min(service.max_output_tokens, service.context_tokens // 4, _MOST_OUTPUT_TOKENS)


def is_small(service: RunningService) -> bool:
    """Whether the client's own prompt and tools leave hardly any room for work."""
    return service.context_tokens - output_tokens(service) < _OWN_PROMPT_TOKENS


def settings_for(service: RunningService, key: OwnKey | None, mode: Any) -> dict[str, str]:
    """The settings, by their keys with a dot. `key` is the one that the service asks for, if it
    does; `mode` is the permission mode that is in effect otherwise, None if none is set.

    The key itself is never written: the client runs a command that prints it. Other credentials
    are blanked, since they would be sent to the service, too.
    """
    settings = {
        "env.ANTHROPIC_BASE_URL": service.url,
        # Without any credential it asks for a login.
        "env.ANTHROPIC_AUTH_TOKEN": "" if key else "mererun",
        "env.ANTHROPIC_API_KEY": "",
        "apiKeyHelper": key.command if key else "",
        **{f"env.{name}": service.model for name in _MODEL_VARIABLES},
        "env.CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(service.context_tokens),
        "env.CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(output_tokens(service)),
        "env.CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Its line changes from session to session, and would be the first of the prompt.
        "env.CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    }
    if not service.thinks:
        settings["env.MAX_THINKING_TOKENS"] = "0"
    if "high" not in service.efforts:
        settings["env.CLAUDE_CODE_EFFORT_LEVEL"] = "auto"  # which asks for none
    if mode in (None, "auto"):  # the default one has a part on the server that only Anthropic's has
        settings["permissions.defaultMode"] = "default"
    return settings
