import socket

import psutil

# psutil gives start times with two decimals; two starts of one pid lie further apart.
SAME_START_SECONDS = 0.5


def this_process() -> str:
    """This process as jobs name their owner: "pid:start_time@host"."""
    process = psutil.Process()
    return f"{process.pid}:{_started(process):.2f}@{socket.gethostname()}"


def is_of_this_host(owner: str) -> bool:
    """Whether `owner` names a process of this host; one that names no host is taken for it."""
    return owner.partition("@")[2] in ("", socket.gethostname())


def is_alive(owner: str) -> bool:
    """Whether the process that wrote `owner` is still there; a killed, unreaped one is not.

    Nobody here can say that of a process on another host, so it counts as alive: only the end of
    its lease tells.
    """
    if not is_of_this_host(owner):
        return True
    pid, _, start = owner.partition("@")[0].partition(":")
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
