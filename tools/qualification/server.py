"""A Messages server somewhere, as the official SDK reaches it."""

from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tools.qualification.sdk import anthropic

VERSIONS = ("2023-06-01", "2026-10-21")
_ANSWER_SECONDS = 600  # what the SDK itself waits; small machines need it for long prompts
_ALIVE_SECONDS = 10


class NoServer(Exception):
    """There is nothing to qualify; the message says why."""


@dataclass(frozen=True)
class Server:
    """Where it is, and what every request to it has."""

    url: str
    model: str
    max_tokens: int
    effort: str | None = None
    key: str | None = field(default=None, repr=False)
    declared: dict[str, Any] = field(default_factory=dict[str, Any])
    """What it says of the model (`GET /v1/models/{id}`), or nothing."""

    _clients: dict[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)

    def client(self, version: str = VERSIONS[-1]) -> Any:
        """The client that asks by this version of the API."""
        if version not in self._clients:  # making one costs more than many an answer
            self._clients[version] = anthropic.Anthropic(**self._options(version))
        return self._clients[version]

    def async_client(self) -> Any:
        """A client of its own for each event loop; close it."""
        return anthropic.AsyncAnthropic(**self._options(VERSIONS[-1]))

    def request(self, *messages: Any, **more: Any) -> dict[str, Any]:
        """The arguments of `messages.create`. What is None in `more` is left out; a text that
        stands for a message is a user's."""
        turns = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
        request = {"model": self.model, "max_tokens": self.max_tokens, "messages": turns, **more}
        if self.effort is not None:
            request["output_config"] = {"effort": self.effort} | request.get("output_config", {})
        return {name: value for name, value in request.items() if value is not None}

    def supports(self, *path: str) -> bool | None:
        """What it declares of a capability; None where it declares nothing."""
        found: Any = self.declared.get("capabilities")
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        supported = found.get("supported") if isinstance(found, dict) else None
        return supported if isinstance(supported, bool) else None

    @property
    def context_tokens(self) -> int:
        """The longest prompt, or that of the API's models where none is declared."""
        return self.declared.get("max_input_tokens") or 200_000

    @property
    def output_tokens(self) -> int:
        """The longest answer, or one that most models have room for where none is declared."""
        return self.declared.get("max_tokens") or 4096

    def is_there(self) -> bool:
        """Whether anything still answers, whatever it says."""
        try:
            self.client().with_options(timeout=_ALIVE_SECONDS).models.list()
        except anthropic.APIConnectionError:
            return False
        except Exception:  # the SDK raises much where an answer is not what it should be
            pass
        return True

    def _options(self, version: str) -> dict[str, Any]:
        return {
            "base_url": self.url,
            "api_key": self.key or "none",
            "max_retries": 0,  # a request that had to be tried again is a failure here
            "timeout": _ANSWER_SECONDS,
            "default_headers": {"anthropic-version": version},
            "_strict_response_validation": True,
        }


def address_of(url: str) -> SplitResult:
    """The parts of a server's URL. Raises NoServer where it is none."""
    try:
        address = urlsplit(url)
        if address.username or address.password:
            raise NoServer("a password in the URL would be in the report: use --api-key-file")
        whole = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:  # of the port, or of an address in brackets
        whole = False
    if not whole:
        raise NoServer(f"{url!r} is no URL of a server: it begins with http:// or https://")
    return address


def find(
    url: str,
    model: str | None,
    max_tokens: int,
    effort: str | None,
    key: str | None,
    model_option: str = "--model",
) -> Server:
    """The server at `url`, with its first model where none is named.

    Raises NoServer where nothing answers, it wants another key, or no model can be found;
    `model_option` is what names one.
    """
    address_of(url)
    server = Server(url.rstrip("/"), model or "", max_tokens, effort, key)
    models = server.client().models
    try:
        found = models.retrieve(model) if model else next(iter(models.list()), None)
    except anthropic.AuthenticationError:
        raise NoServer(f"{url} asks for another key: give it in a file, --api-key-file") from None
    except anthropic.APIConnectionError as error:
        why = error.__cause__ or error
        raise NoServer(f"nothing answers at {url}: {why}; is the server running?") from None
    except anthropic.NotFoundError as error:
        if model and not _has_list(models):
            return server  # it declares nothing; whether it has this model, the checks will tell
        why = f"{url} has no model {model!r}: {error}"
        raise NoServer(f"{why}; name another by {model_option}") from None
    except Exception as error:  # the SDK raises much where an answer is not what it should be
        why = f"{url} does not tell its models: {error}"
        raise NoServer(f"{why}; name one by {model_option}") from None
    if found is None:
        raise NoServer(f"{url} lists no model: name one by {model_option}")
    return replace(server, model=model or found.id, declared=found.model_dump(mode="json"))


def _has_list(models: Any) -> bool:
    try:
        models.list()
    except Exception:  # as above
        return False
    return True
