import psutil

# psutil gives start times with two decimals; two starts of one pid lie further apart.
SAME_START_SECONDS = 0.5


def this_process() -> str:
    """This process as jobs name their owner: "pid:start_time"."""
    process = psutil.Process()
    return f"{process.pid}:{_started(process):.2f}"


def is_alive(owner: str) -> bool:
    """Whether the process that wrote `owner` is still there; a killed, unreaped one is not."""
    pid, _, start = owner.partition(":")
    try:
        process = psutil.Process(int(pid))
        return (
            abs(_started(process) - float(start)) < SAME_START_SECONDS
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except (psutil.NoSuchProcess, ValueError):
        return False


def _started(process: psutil.Process) -> float:
    # Linux counts from boot, and psutil adds the boot time as the wall clock now tells it: after
    # a step of the clock a live process would look like another one. So take it off again.
    return process.create_time() - (psutil.boot_time() if psutil.LINUX else 0.0)
