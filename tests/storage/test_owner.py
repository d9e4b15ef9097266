import re
import subprocess
import sys

import psutil
import pytest

from storage.owner import is_alive, is_of_this_host, this_process


def test_this_process_is_alive() -> None:
    assert is_alive(this_process())


@pytest.mark.parametrize("owner", ["", "nobody", "1:", "999999999:1.00"])
def test_a_stranger_is_not_alive(owner: str) -> None:
    assert not is_alive(owner)


def test_a_pid_that_was_given_to_another_process_is_not_alive() -> None:
    pid, start, host = re.split("[:@]", this_process())
    assert not is_alive(f"{pid}:{float(start) - 10}@{host}")


def test_an_owner_from_before_hosts_were_named_is_of_this_host() -> None:
    owner = this_process().partition("@")[0]
    assert is_alive(owner)
    assert is_of_this_host(owner)


def test_of_a_process_on_another_host_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = this_process()
    assert is_of_this_host(owner)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert not is_of_this_host(owner)
    assert is_alive("999999999:1.00@here")


def test_a_killed_process_is_not_alive_even_before_it_is_reaped() -> None:
    command = "from storage.owner import this_process; print(this_process()); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    owner = child.stdout.readline().strip()
    assert is_alive(owner)
    child.kill()
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    assert not is_alive(owner)
    child.communicate()


@pytest.mark.skipif(not psutil.LINUX, reason="elsewhere the kernel keeps the start as a wall time")
def test_a_step_of_the_clock_does_not_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = this_process()
    boot_time = psutil.boot_time() + 3600
    monkeypatch.setattr("psutil.boot_time", lambda: boot_time)
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot_time)
    assert is_alive(owner)
