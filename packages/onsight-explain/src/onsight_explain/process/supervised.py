"""Start Python child processes, exchange messages with them, and end them with their children.

Free of torch, so that the command line and torch-free processes can import it.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from onsight_explain.python_process import child_command

GRACE_SECONDS = 15.0  # extra time for a process to end or answer
_MARK_VARIABLE = "ONSIGHT_EXPLAINS"
_SCANS = 3  # scans of all processes; one may start another during a scan
_MESSAGE_BYTES = 1 << 16
_MESSAGE_FILES = 4


class Closed(Exception):
    """The process at the other end of a channel has ended."""


class Channel:
    """One end of a socket for short JSON messages between two of our processes.

    Requests and answers alternate, so that at most one message is under way.
    """

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    @classmethod
    def pair(cls) -> tuple["Channel", "Channel"]:
        """Return two connected ends."""
        first, second = socket.socketpair()
        return cls(first), cls(second)

    @classmethod
    def inherited(cls, descriptor: int) -> "Channel":
        """Open the end that the parent process passed as a descriptor."""
        end = socket.socket(fileno=descriptor)
        end.set_inheritable(False)  # not inherited by processes of the script
        return cls(end)

    def send(self, message: dict[str, Any], files: Sequence[int] = ()) -> None:
        """Send plain values, and open files by their descriptors. Raises Closed."""
        line = json.dumps(message).encode() + b"\n"
        try:
            if files:
                socket.send_fds(self.end, [line], files)
            else:
                self.end.sendall(line)
        except OSError as error:
            raise Closed from error

    def receive(self, seconds: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """Wait for the next message and its files. Raises Closed, or TimeoutError."""
        self.end.settimeout(seconds)
        line, files = b"", list[int]()
        while not line.endswith(b"\n"):
            try:
                part, new_files, _, _ = socket.recv_fds(self.end, _MESSAGE_BYTES, _MESSAGE_FILES)
            except TimeoutError:
                raise
            except OSError as error:
                raise Closed from error
            if not part:
                raise Closed
            line, files = line + part, files + new_files
        return json.loads(line), files

    def close(self) -> None:
        """Close this end; a receiver at the other end gets Closed."""
        self.end.close()


class SupervisedChild:
    """A module of this package that runs in a separate process, until `kill` or the end of `with`.

    It leads a new session: Ctrl-C in the terminal does not reach it, and everything that it
    starts can be ended with it, daemons included.
    """

    def __init__(
        self,
        module: str,
        args: Sequence[str] = (),
        *,
        output: Path | None,
        environment: Mapping[str, str] | None = None,
        channel: Channel | None = None,
        mark: dict[str, str] | None = None,
        has_terminal: bool = False,
    ) -> None:
        """Start `python -m module args...`.

        Args:
            module: The full name of the module.
            args: Its command line.
            output: The file for its stdout and stderr. None: both go to our own stderr.
            environment: All of its variables. None: ours.
            channel: The child's end of a channel, which is closed here. The child finds its
                descriptor after `args`, for `Channel.inherited`.
            mark: From `new_mark`, shared with other processes that the caller ends together. None:
                one of its own.
            has_terminal: Whether its stdin is an unattended terminal; otherwise it is empty.
        """
        self._own_mark = None if mark else new_mark()
        self._resources = ExitStack()
        descriptors = [channel.end.fileno()] if channel else []
        with ExitStack() as files:
            stdout = files.enter_context(output.open("wb")) if output else 2  # our own stderr
            self.process = subprocess.Popen(
                [*child_command(module), *args, *map(str, descriptors)],
                env={**(environment or os.environ), **(mark or self._own_mark or {})},
                stdin=self._resources.enter_context(unattended_terminal())
                if has_terminal
                else subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.STDOUT,
                pass_fds=descriptors,
                start_new_session=True,
            )
        if channel:
            channel.close()

    def __enter__(self) -> "SupervisedChild":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process, which is also its group."""
        return self.process.pid

    def wait(self, seconds: float | None = None) -> int | None:
        """Return the exit code, or None if the process still runs after this time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> int:
        """End the process and all of its descendants; return its exit code."""
        signal_group(self.pid)
        code = self.process.wait()
        if self._own_mark:
            kill_marked(self._own_mark)
        self._resources.close()
        return code


def signal_group(leader: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process and to the members of its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def new_mark() -> dict[str, str]:
    """Return an environment variable by which `kill_marked` finds all who inherit it."""
    return {_MARK_VARIABLE: secrets.token_hex(16)}


def own_mark() -> dict[str, str]:
    """Return the mark that this process inherited."""
    return {_MARK_VARIABLE: os.environ[_MARK_VARIABLE]}


def kill_marked(mark: dict[str, str]) -> None:
    """Kill every process with this mark, also those that have left the group of their parent.

    Does nothing where the system does not show the environment of processes.
    """
    (value,) = mark.values()
    for _ in range(_SCANS):
        marked = [pid for pid in _other_processes() if value.encode() in _environment(pid)]
        for pid in marked:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not marked:
            return


@contextmanager
def unattended_terminal() -> Iterator[int]:
    """Yield the descriptor of a terminal at which nobody types: reading it finds its end at once.

    Many scripts query their terminal for its width (`stty size`) and fail without one; it has the
    size of the user's. It controls no session, so /dev/tty does not exist for the script. Where a
    system has no such terminals, the input is empty.
    """
    if sys.platform == "win32":
        descriptors = [os.open(os.devnull, os.O_RDONLY)]
    else:
        descriptors = _open_terminal()
    try:
        yield descriptors[0]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _open_terminal() -> list[int]:
    """Return the script's end and ours, which must stay open for it to remain a terminal."""
    import termios

    try:
        ours, theirs = os.openpty()
    except OSError:  # none are left, or none are mounted
        return [os.open(os.devnull, os.O_RDONLY)]
    size = shutil.get_terminal_size()
    termios.tcsetwinsize(theirs, (size.lines, size.columns))
    mode = termios.tcgetattr(theirs)
    local_flags, characters = 3, 6
    mode[local_flags] &= ~(termios.ICANON | termios.ECHO)
    # A read returns at once with what was typed: nothing, which a reader takes for the end.
    mode[characters][termios.VMIN] = mode[characters][termios.VTIME] = 0
    termios.tcsetattr(theirs, termios.TCSANOW, mode)
    return [theirs, ours]


def _other_processes() -> list[int]:
    proc = Path("/proc")
    names = (path.name for path in proc.iterdir()) if proc.is_dir() else ()
    return [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # another user's process, or one that has ended
        return b""
