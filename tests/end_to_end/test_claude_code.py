"""The real Claude Code mends a bug in real files, in the words of each family."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from models.catalog import Checkpoint, inspect
from models.conversation import Block
from tests.end_to_end.coding_conversation import shown
from tests.end_to_end.mending_session import ALLOWED, QUESTION, Project
from tests.end_to_end.qualified_session import ANSWERS
from tests.end_to_end.tiny_families import FAMILIES, Tiny
from tests.end_to_end.written_answers import ids_of
from tests.support.claude_code import NEW, OLD, User, installed
from tests.support.lives import assert_stops_well
from tests.support.running import Running, scripted_service
from tests.support.wide_context import with_context
from tools.qualify_coding import main

SMALL_PROMPT = ("--bare",)


@dataclass
class Scripted:
    service: Running
    checkpoint: Checkpoint
    script: Path
    tiny: Tiny

    def will_say(self, told: Mapping[int, Sequence[Block]]) -> None:
        """The answers, by how many results of tools the prompt has."""
        answers = {
            results: self.tiny.ids(self.checkpoint, answer, after_results=results > 0)
            for results, answer in told.items()
        }
        mark = ids_of(self.checkpoint, self.tiny.result)
        self.script.write_text(json.dumps({"mark": mark, "answers": answers}))

    def asked(self) -> list[str]:
        """Each request that it ever answered, with the status."""
        return re.findall(r"asked (.*)", self.service.log.read_text())

    def usages(self, number: int) -> list[dict[str, int]]:
        """Those of the newest answers, in their order."""
        runs = self.service.runs()[number - 1 :: -1]
        assert {each["state"] for each in runs} == {"succeeded"}
        records = (self.service.data_dir / each["record"] for each in runs)
        answers = (json.loads((each / "response.json").read_text()) for each in records)
        return [each["message"]["usage"] for each in answers]


@pytest.fixture(scope="module")
def scripted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scripted]:
    tiny = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("scripted")
    model = with_context(tiny.write(folder / request.param), 262_144)
    script = folder / "script.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCRIPT_FILE", str(script))
        with scripted_service(model, folder / "data") as service:
            yield Scripted(service, inspect(model), script, tiny)
            assert_stops_well(service)


@pytest.mark.parametrize("scripted", FAMILIES, indirect=True)
def test_claude_code_mends_a_bug_in_the_words_of_each_family(
    scripted: Scripted, tmp_path: Path
) -> None:
    mend(scripted, tmp_path, NEW)


@pytest.mark.parametrize("scripted", list(FAMILIES)[:1], indirect=True)
@pytest.mark.parametrize(
    ("version", "options"),
    [(NEW, SMALL_PROMPT), (OLD, ()), (OLD, SMALL_PROMPT)],
    ids=("new-small", "old-own", "old-small"),
)
def test_either_version_mends_a_bug_with_either_prompt(
    scripted: Scripted, tmp_path: Path, version: str, options: tuple[str, ...]
) -> None:
    mend(scripted, tmp_path, version, *options)


@pytest.mark.parametrize("scripted", list(FAMILIES)[:1], indirect=True)
def test_a_session_that_does_all_that_is_asked_qualifies(
    scripted: Scripted, tmp_path: Path
) -> None:
    scripted.will_say(ANSWERS)
    before = len(scripted.asked())
    evidence = tmp_path / "evidence"
    options = ("--client", str(installed(NEW)), "--small-prompt", "--evidence", str(evidence))

    assert main([scripted.service.url, *options]) == 0
    (session,) = json.loads((evidence / "report.json").read_text())["sessions"]
    transport = session["transport"]
    assert (transport["verdict"], transport["answers"]) == ("passed", len(ANSWERS))
    assert transport["usage"]["cache_read_input_tokens"] > 0
    posts = [each for each in scripted.asked()[before:] if each.startswith("POST")]
    assert posts == ["POST /v1/messages: 200"] * len(ANSWERS)


def mend(scripted: Scripted, folder: Path, version: str, *options: str) -> None:
    """A whole session, in which no request is refused, and none goes beyond loopback."""
    project = Project.write(folder / "a project")
    scripted.will_say(project.answers())
    user = User(installed(version), folder, project.folder)
    user.connect(scripted.service.url)
    before = len(scripted.asked())
    session = user.session(QUESTION, "--allowedTools", ALLOWED, *options)

    answers = project.answers().values()
    said = [shown(each) for answer in answers for each in answer]
    assert [without_own(each) for each in session.content("assistant")] == said
    failures = [each.get("is_error", False) for each in session.content("user")]
    assert failures == [False, False, False, True, False, False]
    assert session.result["result"] == said[-1]["text"]
    assert not session.result["is_error"]
    assert session.result["permission_denials"] == []
    assert project.is_mended()

    assert scripted.asked()[before:] == ["POST /v1/messages: 200"] * len(answers)
    assert not session.strayed
    usages = scripted.usages(len(answers))
    for earlier, later in pairwise(usages):
        kept = earlier["cache_read_input_tokens"] + earlier["cache_creation_input_tokens"]
        assert later["cache_read_input_tokens"] == kept > 0


def without_own(block: dict[str, Any]) -> dict[str, Any]:
    """Without what is this answer's own, or its transport's: ids and signatures."""
    shown = ("type", "thinking", "text", "name", "input")
    return {key: value for key, value in block.items() if key in shown}
