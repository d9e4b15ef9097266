"""From a request's JSON to a run that fits the model: the one path, whoever waits for it."""

import logging
import secrets
from array import array
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from models.boundary import Boundary
from models.catalog import Checkpoint
from models.engine.protocol import Run
from models.families.family import Family
from service.answers import Answers
from service.documents.documents import Documents
from service.documents.in_request import unread_sources, with_texts
from service.documents.sources import Source
from service.errors import ApiError
from service.guiding import Guides
from service.next_round import NextRounds
from service.prompt_digests import PromptDigests
from service.prompts import Prompt, Prompts
from service.requests.answer_plan import AnswerPlan
from service.requests.context import check_fits, summary_tokens
from service.requests.prepare import Prepared, conversation_of
from service.requests.served import Served
from service.scheduling.answer import Answer
from service.scheduling.rounds import NextRound, Round
from service.threads import Threads
from service.wire.requests import BaseRequest, MessagesRequest
from service.wire.responses import CacheMiss, StopReason
from service.wire.validation import validate

logger = logging.getLogger("mererun.preparation")

Request = TypeVar("Request", bound=BaseRequest)
T = TypeVar("T")

# Reading holds the interpreter lock: more at once would be no faster, keep the event loop from its
# turns, and take the threads that write records.
_READ_AT_ONCE = 2
_MOST_NAMES = 100  # that are told of in the log


class Preparation:
    """What one served model makes of requests."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        family: Family,
        served: Served,
        answers: Answers,
        documents: Documents,
        threads: Threads,
        *,
        context_tokens: int,
        max_output_tokens: int,
    ) -> None:
        self._checkpoint = checkpoint
        self._other_names = set[str]()  # by which it was asked for
        self._family = family
        self._served = served
        self._answers = answers
        self._documents = documents
        self._threads = threads
        guides = Guides(family)
        self._prompts = Prompts(family, guides, context_tokens)
        self._next_rounds = NextRounds(family, guides, served, context_tokens, answers.digest)
        self._context_tokens = context_tokens
        self._max_output_tokens = max_output_tokens
        self._reading = CapacityLimiter(_READ_AT_ONCE)

    def check_model(self, name: str) -> None:
        """Raises ApiError 404 unless `name` is the served model, or a Claude model: agents ask
        for those by name in the background, and the one model there is answers them all."""
        if name == self._checkpoint.id:
            return
        if not name.startswith("claude-"):
            raise ApiError.not_found(
                f"model: {name[:100]} is not served here; the model is {self._checkpoint.id}"
            )
        if name not in self._other_names and len(self._other_names) < _MOST_NAMES:
            self._other_names.add(name)
            logger.info("what is asked of %r, %s answers", name[:100], self._checkpoint.id)

    async def read(
        self, received: dict[str, Any], kind: type[Request], scope: str
    ) -> tuple[Request, Prepared]:
        """The request, with what its thread holds, and its conversation. `scope` is the id of the
        API key, empty for none. Raises ApiError."""
        whole = await self._threads.whole(received, scope)

        def check() -> tuple[Request, dict[str, Source]]:
            wire = validate(whole.request, kind)
            self.check_model(wire.model)
            return wire, unread_sources(wire)

        def prepare() -> Prepared:
            return conversation_of(with_texts(wire, texts), self._served)

        # A body may have 32 MiB: reading it would hold up every stream.
        with whole.own_paths():
            wire, sources = await to_thread.run_sync(check, limiter=self._reading)
            # First, so that no file is deleted between the two.
            files = await self._documents.digests(sources, scope)
            texts = await self._documents.texts(sources, scope)
            prepared = await to_thread.run_sync(prepare, limiter=self._reading)
            return wire, replace(prepared, files=files)

    async def prompt(self, prepared: Prepared, scope: str, *, counts: bool = False) -> Prompt:
        """Its prompt, which counting and generating share. Raises ApiError 400 if far too long,
        for one that only `counts` if it cannot be encoded in portions."""
        recalled = await self._answers.recalled(prepared.conversation, scope)
        prompt = await self._prompts.prepare(
            replace(prepared, conversation=recalled.conversation), counts=counts
        )
        plan = replace(prompt.plan, asked=recalled.digest.hex())
        return replace(prompt, plan=plan, files=prepared.files)

    def run(self, job: str, request: MessagesRequest, prompt: Prompt, scope: str) -> Run:
        """The run for the engine. Raises ApiError 400 unless prompt and answer fit."""
        max_tokens = self._max_tokens(request, prompt)
        check_fits(
            len(prompt.ids),
            max_tokens,
            context_tokens=self._context_tokens,
            max_output_tokens=self._max_output_tokens,
            model=self._checkpoint.id,
        )
        defaults = self._checkpoint.sampling
        return Run(
            job=job,
            max_tokens=max_tokens,
            temperature=_first(request.temperature, defaults.temperature),
            top_p=_first(request.top_p, defaults.top_p),
            # Whatever exceeds the vocabulary limits nothing, as 0 does.
            top_k=min(_first(request.top_k, defaults.top_k), self._checkpoint.vocabulary),
            seed=_first(request.seed, secrets.randbits(63)),
            stop_ids=tuple(sorted(self._family.stop_ids)),
            scope=scope,
            prompt=prompt.ids,
            guide=prompt.guide,
            boundaries=prompt.boundaries,
            answer_from=prompt.plan.answer_from,
        )

    def _max_tokens(self, request: MessagesRequest, prompt: Prompt) -> int:
        """A summary that an edit makes has a budget of its own; thinking has that of the answer."""
        plan, asked = prompt.plan, request.max_tokens
        if plan.summary is None or not plan.summary.in_place:
            return asked
        thinking = asked if plan.form.thinking.thinks else 0
        room = self._context_tokens - len(prompt.ids)
        most = summary_tokens(self._context_tokens) + thinking
        return max(1, min(most, room, self._max_output_tokens))

    def recorded(
        self,
        run: Run,
        plan: AnswerPlan,
        *,
        content: bool,
        digests: PromptDigests | None = None,
        cache_miss: CacheMiss | None = None,
    ) -> dict[str, Any]:
        """`prompt.json`: with `content`, all that is needed to go on with the run; with `digests`,
        what is needed to compare it with later ones."""
        stops = list(plan.form.stop_sequences)
        return {
            "model": self._checkpoint.id,
            "weights_sha256": self._checkpoint.weights_sha256,
            "family": self._family.name,
            "tokens": len(run.prompt),
            "ids": run.prompt.tolist() if content else None,
            "max_tokens": run.max_tokens,
            "temperature": run.temperature,
            "top_p": run.top_p,
            "top_k": run.top_k,
            "seed": run.seed,
            "stop_ids": list(run.stop_ids),
            "stop_sequences": stops if content else len(stops),
            "boundaries": [[each.tokens, each.ttl_seconds] for each in run.boundaries],
            "system_sha256": digests.system if digests else None,
            "tools_sha256": digests.tools if digests else None,
            "cache_miss": cache_miss.as_json() if cache_miss else None,
            **({**plan.as_json(), "guide": run.guide} if content else {}),
        }

    def recalled(self, job: str, recorded: dict[str, Any], scope: str) -> Run:
        """The run that was recorded. Raises ApiError when it is another model's, LookupError."""
        if recorded["weights_sha256"] != self._checkpoint.weights_sha256:
            raise ApiError.invalid(
                f"the run was begun by {recorded['model']} with other weights than those served"
                " now; serve those to go on with it"
            )
        return Run(
            job=job,
            max_tokens=recorded["max_tokens"],
            temperature=recorded["temperature"],
            top_p=recorded["top_p"],
            top_k=recorded["top_k"],
            seed=recorded["seed"],
            stop_ids=tuple(recorded["stop_ids"]),
            scope=scope,
            prompt=array("I", recorded["ids"]),
            guide=recorded.get("guide"),
            boundaries=tuple(Boundary(*each) for each in recorded.get("boundaries", ())),
            answer_from=recorded.get("answer_from"),
        )

    def next_round(self, last: Round) -> NextRound | StopReason:
        """How the message goes on after its last round, or why it cannot. Blocks. Raises
        ApiError."""
        return self._next_rounds.after(last)

    def begun(self, next_one: NextRound, last: Round, message_id: str) -> Round:
        """That round, of which nothing is there yet."""
        run = next_one.run_after(last)
        then = last.answer.plan.then
        left = then.max_tokens if then else last.run.max_tokens - len(last.answer.ids)
        answer = self.answer(
            run,
            next_one.plan_after(last.answer.plan),
            message_id,
            before=last.answer,
            fills_context=run.max_tokens < left,
        )
        return Round(run, answer)

    def answer(
        self,
        run: Run,
        plan: AnswerPlan,
        message_id: str,
        *,
        before: Answer | None = None,
        fills_context: bool = False,
    ) -> Answer:
        """The answer to `run`, of which nothing is there yet."""

        def sign(text: str, place: int) -> str:
            return self._served.signer.sign(
                text,
                self._checkpoint.id,
                message_id,
                place,
                omitted=plan.display == "omitted",
                is_note=plan.form.thinking.kind == "between_tools",
            )

        return Answer(
            self._family.parser(plan.form, plan.opens),
            run.stop_ids,
            run.max_tokens,
            plan=plan,
            message_id=message_id,
            sign=sign,
            summarise=plan.summary and partial(plan.summary.block, signer=self._served.signer),
            before=before,
            fills_context=fills_context,
        )


def _first(given: T | None, default: T) -> T:
    return default if given is None else given
