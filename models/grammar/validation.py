"""Whether arguments and output follow the schema that was given for them."""

from collections.abc import Sequence
from typing import Any

from jsonschema_rs import Draft202012Validator, FancyRegexOptions, ValidationError

from models.conversation import Tool
from models.grammar.schemas import SchemaError, prepared, prepared_object

# Patterns with look-ahead go back and forth in the text: at most so often, a few milliseconds.
# Those without take linear time.
_PATTERNS = FancyRegexOptions(backtrack_limit=100_000, size_limit=10 << 20)


class Validator:
    """Of one schema (2020-12). Formats are annotations, and nothing is ever fetched."""

    def __init__(self, schema: Any, *, of_arguments: bool = False) -> None:
        """Raises SchemaError for a schema that is none."""
        schema = prepared_object(schema) if of_arguments else prepared(schema)
        try:
            self._validator = Draft202012Validator(
                schema, validate_formats=False, offline=True, pattern_options=_PATTERNS
            )
        except ValidationError as error:
            path = "/".join(map(str, error.instance_path))
            raise SchemaError(f"is no JSON Schema: see {path[:200] or 'its top'}") from None
        except ValueError:  # of values in an `enum` or `const`, since schemas are no deeper here
            raise SchemaError("has a value that is nested too deep") from None

    def fault(self, value: Any) -> str | None:
        """What is wrong with a value, as a sentence that has nothing of the value itself."""
        error = next(self._validator.iter_errors(value), None)
        if error is None:
            return None
        path = "/".join(map(str, error.schema_path))
        return f"the schema's {path[:200]} is not met"


class ToolSchemaError(SchemaError):
    """The schema of the tool at `place` cannot be used."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place


class Schemas:
    """The schemas of all tools; what calls one that runs on the server is told what is wrong."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        """Raises ToolSchemaError for the first that is broken."""
        self._validators: dict[str, Validator] = {}
        for place, tool in enumerate(tools):
            if tool.on_server:
                continue
            try:
                self._validators[tool.name] = Validator(tool.schema, of_arguments=True)
            except SchemaError as error:
                raise ToolSchemaError(place, str(error)) from None

    def fault(self, name: str, arguments: dict[str, Any]) -> str | None:
        """What is wrong with a call, in words without anything of it. That of a tool which nobody
        declared has no fault."""
        validator = self._validators.get(name)
        return validator.fault(arguments) if validator else None
