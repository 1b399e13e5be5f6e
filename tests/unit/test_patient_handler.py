"""Log lines reach their reader, and nobody waits for one that has stopped reading."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pty
import re
import socket
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from holdfast.worker.patient_handler import PatientHandler

PATIENCE = 20.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:  # the reader first, so that nobody writes any more
        with contextlib.suppress(OSError):
            os.close(end)


def log(handler: logging.Handler, text: str) -> None:
    handler.handle(logging.LogRecord("shop", logging.INFO, __file__, 1, text, None, None))


def read(end: int, is_enough: Callable[[bytes], bool]) -> list[str]:
    text, deadline = b"", time.monotonic() + PATIENCE
    while not is_enough(text):
        assert time.monotonic() < deadline
        text += os.read(end, 1 << 16)
    return text.decode().splitlines()


def test_a_line_is_there_at_once(pipe: tuple[int, int]) -> None:
    handler = PatientHandler(pipe[1])
    log(handler, "one")
    log(handler, "two \udcff")
    assert os.read(pipe[0], 100) == b"one\ntwo \\udcff\n"


def test_who_does_not_read_for_a_while_gets_all_lines_in_their_order(pipe: tuple[int, int]) -> None:
    handler = PatientHandler(pipe[1])
    lines = [f"{number} {'x' * (number % 5000)}" for number in range(300)]
    started = time.monotonic()
    for line in lines:
        log(handler, line)
    assert time.monotonic() - started < PATIENCE / 2, "nobody has read yet"
    assert read(pipe[0], lambda text: text.count(b"\n") == len(lines)) == lines
    handler.flush()
    log(handler, "and then")
    assert os.read(pipe[0], 100) == b"and then\n"


def test_what_is_too_much_is_left_out_and_counted(pipe: tuple[int, int]) -> None:
    handler = PatientHandler(pipe[1])
    for number in range(3000):
        log(handler, f"{number} {'x' * 1000}")
    *lines, last = read(pipe[0], lambda text: b"left out" in text)
    assert [line.split()[0] for line in lines] == [str(number) for number in range(len(lines))]
    assert 900 < len(lines) < 1200
    assert last == f"({3000 - len(lines):,} lines were left out, since nobody read them)"
    handler.flush()
    log(handler, "and then")
    assert os.read(pipe[0], 100) == b"and then\n"


def test_what_was_left_out_is_told_where_it_is_missing(pipe: tuple[int, int]) -> None:
    """Some may fit again meanwhile, but not before all that came earlier is out."""
    handler = PatientHandler(pipe[1])
    for number in range(1500):
        log(handler, f"{number} {'x' * 1000}")
    lines = os.read(pipe[0], 1 << 16).decode().splitlines()
    for number in range(1500, 3000):
        log(handler, f"{number} {'x' * 1000}")
    more = read(pipe[0], lambda text: b"left out" in text)
    text = "\n".join(lines) + "\n".join(more)
    numbers = [int(number) for number in re.findall(r"^(\d+) x", text, re.MULTILINE)]
    assert numbers == sorted(numbers)
    assert numbers[-1] < 1500, "there was never room for those, before all of the first ones were out"


def test_nobody_is_waited_for_at_the_end_for_long(pipe: tuple[int, int]) -> None:
    handler = PatientHandler(pipe[1])
    for _ in range(300):
        log(handler, "x" * 1000)
    started = time.monotonic()
    handler.flush()
    assert time.monotonic() - started < PATIENCE / 2


def test_a_reader_that_is_gone_costs_nothing(pipe: tuple[int, int]) -> None:
    handler = PatientHandler(pipe[1])
    log(handler, "one")
    os.close(pipe[0])
    for _ in range(200):
        log(handler, "x" * 1000)
    handler.flush()


def test_a_terminal_that_is_held_holds_up_nobody() -> None:
    reader, terminal = pty.openpty()
    try:
        termios.tcflow(terminal, termios.TCOOFF)  # Ctrl-S
        handler = PatientHandler(terminal)
        log(handler, "while it is held")
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):
            os.read(reader, 100)
        termios.tcflow(terminal, termios.TCOON)
        os.set_blocking(reader, True)
        assert read(reader, lambda text: text.endswith(b"\n")) == ["while it is held"]
    finally:
        os.close(reader)
        os.close(terminal)


def test_a_terminal_that_nobody_reads_holds_up_nobody() -> None:
    """As of a connection that is frozen: it says that it has room until the very end, and then waits in the middle."""
    reader, terminal = pty.openpty()
    try:
        handler = PatientHandler(terminal)
        lines = [f"{number} {'x' * 150}" for number in range(500)]
        for line in lines:
            log(handler, line)
        assert read(reader, lambda text: text.count(b"\n") == len(lines)) == lines
    finally:
        os.close(reader)
        os.close(terminal)


def test_many_who_write_to_one_pipe_that_nobody_reads_are_not_held_up(pipe: tuple[int, int]) -> None:
    def write(number: int) -> None:
        handler = PatientHandler(pipe[1])
        for _ in range(500):
            log(handler, f"{number} {'x' * 500}")

    writers = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(PATIENCE)
        assert not writer.is_alive()
    came = Counter(line.split()[0] for line in read(pipe[0], lambda text: text.count(b"\n") == 2000))
    assert came == {str(number): 500 for number in range(4)}


def test_a_socket_that_nobody_reads_is_not_waited_for() -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        handler = PatientHandler(writer.fileno())
        lines = [f"{number} {'x' * 1000}" for number in range(600)]
        for line in lines:
            log(handler, line)
        assert read(reader.fileno(), lambda text: text.count(b"\n") == len(lines)) == lines
        assert os.get_blocking(writer.fileno()), "others who write there are ready to wait"
        handler.close()


def test_nothing_is_lost_where_others_have_said_not_to_wait(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    handler = PatientHandler(pipe[1])
    lines = [f"{number} {'x' * 1000}" for number in range(300)]
    for line in lines:
        log(handler, line)
    assert read(pipe[0], lambda text: text.count(b"\n") == len(lines)) == lines


def test_a_line_that_is_too_long_for_all_others_comes_whole(pipe: tuple[int, int]) -> None:
    handler = PatientHandler(pipe[1])
    log(handler, "x" * 2_000_000)
    lines = read(pipe[0], lambda text: text.endswith(b"\n"))
    assert [len(line) for line in lines] == [2_000_000]
    handler.flush()
    log(handler, "and then")
    assert os.read(pipe[0], 100) == b"and then\n"


def test_where_no_thread_can_be_started_lines_keep_their_order(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    handler = PatientHandler(pipe[1])
    lines = [f"{number} {'x' * 1000}" for number in range(100)]
    for line in lines:
        log(handler, line)
    text = os.read(pipe[0], 1 << 20)
    handler.flush()
    assert (text + os.read(pipe[0], 1 << 20)).decode().splitlines() == lines


def test_a_forked_process_says_its_own_lines_and_no_others(pipe: tuple[int, int]) -> None:
    handler = PatientHandler(pipe[1])
    lines = [f"{number} {'x' * 1000}" for number in range(200)]
    for line in lines:
        log(handler, line)  # a thread waits with them
    pid = os.fork()
    if pid == 0:
        log(handler, "from the child")
        while handler._pending:
            handler.flush()
        os._exit(0)
    came = read(pipe[0], lambda text: text.count(b"\n") == len(lines) + 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert sorted(came) == sorted([*lines, "from the child"])


def test_a_pipe_that_is_nearly_full_is_not_waited_for(pipe: tuple[int, int]) -> None:
    size = fcntl.fcntl(pipe[1], fcntl.F_GETPIPE_SZ)
    os.write(pipe[1], b"-" * (size - 100))
    handler = PatientHandler(pipe[1])
    log(handler, "y" * 3000)
    assert read(pipe[0], lambda text: text.endswith(b"y\n"))[0].endswith("y" * 3000)
