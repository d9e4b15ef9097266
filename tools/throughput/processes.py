"""The processes of a server on this machine, and the CPU that they take."""

import ipaddress
from collections.abc import Iterable

import psutil

from tools.qualification.server import NoServer, address_of


def check_here(url: str) -> None:
    """Raise NoServer where the URL does not say that the server is on this machine."""
    host = address_of(url).hostname or ""
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost"
    if not here:
        raise NoServer(
            f"what else takes the CPU of {host} cannot be seen from here: run this on the "
            "server's machine, with a URL such as http://127.0.0.1:8765"
        )


def listening(url: str) -> frozenset[psutil.Process]:
    """The processes that listen at the port of the URL. Raises NoServer where none can be seen."""
    address = address_of(url)
    port = address.port or {"http": 80, "https": 443}[address.scheme]
    found = frozenset(each for each in psutil.process_iter() if _listens(each, port))
    if not found:
        raise NoServer(
            f"the process that listens at port {port} cannot be seen, so nothing could tell it "
            "from what disturbs it: run this as the user who runs the server, outside containers"
        )
    return found


def cpu_seconds(listeners: Iterable[psutil.Process]) -> float:
    """What these, their children and this process have taken so far. Children that have ended
    count with their parent."""
    trees = {psutil.Process()}
    for listener in listeners:
        try:
            trees |= {listener, *listener.children(recursive=True)}
        except psutil.Error:
            continue  # it has died: the request that was running tells
    return sum(map(_seconds, trees))


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        connections = process.net_connections("tcp")
    except psutil.Error:
        return False
    return any(
        each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
        for each in connections
    )


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system
