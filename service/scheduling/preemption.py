"""Which job has to make room for which: between two steps, and to go on later where it was."""

from service.scheduling.live_job import LiveJob

# A prompt that is prefilled within a few steps, as agents send them to name a session.
BRIEF_TOKENS = 1024
# As many tokens a brief job may decode while another waits for it in the middle of its prefill.
QUANTUM_TOKENS = 256


def preempts(waiting: LiveJob, running: LiveJob, now: float) -> bool:
    """Whether `waiting`, which has a connection, is to run before `running` goes on.

    Background work always makes room. A long prefill makes room for a brief job, but not until it
    has had the engine for as long as it was away before: so it gets half of it at least. Who is
    decoding is not held up, since a reader watches.
    """
    if running.is_background:
        return True
    return (
        waiting.input_tokens <= BRIEF_TOKENS
        and running.tokens_to_prefill > BRIEF_TOKENS
        and now >= running.stays_until
    )
