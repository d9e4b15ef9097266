"""The options that the tools which ask servers have in common."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from tools.qualification.server import NoServer, Server, find
from tools.qualification.table import printable


def parser(name: str, about: str | None, *, max_tokens: int) -> argparse.ArgumentParser:
    """`max_tokens` is the default of the option."""
    options = argparse.ArgumentParser(prog=name, description=about)
    options.add_argument("url", metavar="URL", help="where the server is: http://127.0.0.1:8765")
    add_key_file(options)
    options.add_argument("--model", help="by default the first that the server lists")
    options.add_argument("--effort", help="output_config.effort of every request")
    options.add_argument(
        "--max-tokens",
        type=positive,
        default=max_tokens,
        metavar="N",
        help=f"the budget of an answer; {max_tokens} by default",
    )
    return options


def add_key_file(options: argparse.ArgumentParser) -> None:
    """The option by which alone a key is given: others could see it in a list of processes."""
    options.add_argument("--api-key-file", type=Path, metavar="FILE", help="holds your API key")


def add_only(options: argparse.ArgumentParser, things: str, names: Sequence[str]) -> None:
    """`--only NAME ...` of these things; all by default."""
    about = f"{things}: {', '.join(names)}"
    options.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=about
    )


def add_reports(options: argparse.ArgumentParser) -> None:
    """Where `write_reports` puts them."""
    options.add_argument("--json", type=Path, metavar="FILE", help="write the whole report here")
    options.add_argument("--page", type=Path, metavar="FILE", help="write it as Markdown here")


def key_of(options: argparse.Namespace) -> str | None:
    """The key in the file that the options name. Raises NoServer where there is none in it."""
    if options.api_key_file is None:
        return None
    try:
        key = options.api_key_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NoServer(f"the key in {options.api_key_file} cannot be read: {error}") from None
    if not key or not key.isascii() or len(key.split()) > 1:
        raise NoServer(f"{options.api_key_file} does not hold one API key, and nothing else")
    return key


def server_of(options: argparse.Namespace) -> Server:
    """The server that the options name. Raises NoServer."""
    key = key_of(options)
    return find(options.url, options.model, options.max_tokens, options.effort, key)


def run(main: Callable[[], int]) -> NoReturn:
    """The process of a tool, from its start to its exit code."""
    try:
        code = main()
    except KeyboardInterrupt:
        print("stopped by hand, without a report", file=sys.stderr)
        code = 130
    sys.exit(code)


def refuse(name: str, why: object) -> NoReturn:
    """End with one line and exit code 2: nothing was tried."""
    print(printable(f"{name}: {why}"), file=sys.stderr)
    raise SystemExit(2)


def positive(text: str) -> int:
    """A count of at least one, as an option has it."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value
