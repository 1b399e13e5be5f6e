"""The synchronous façade with threads: many callers, interrupts, closing while others are at it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import Holdfast
from tests.integration.facade import Database, finisher, run

on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # what it tests is not the store's business


def test_fifty_threads_enqueue_and_wait_at_once(database: Database) -> None:
    hf = Holdfast(database.url)

    @hf.task
    def echo(n: int) -> int:
        return n

    def some(first: int) -> list[int]:
        jobs = [echo.enqueue(n) for n in range(first, first + 5)]
        return [job.result("30s") for job in jobs]

    with finisher(database), ThreadPoolExecutor(50) as threads:
        results = list(threads.map(some, range(0, 250, 5)))
    hf.close()
    assert [n for several in results for n in several] == list(range(250)) == database.stored()


def test_closing_again_and_again_disturbs_nobody(database: Database) -> None:
    program = """
        from concurrent.futures import ThreadPoolExecutor
        def several(first):
            return [echo.enqueue(n).result("30s") for n in range(first, first + 5)]

        with ThreadPoolExecutor(20) as threads:
            results = [threads.submit(several, first) for first in range(0, 100, 5)]
            while not all(each.done() for each in results):
                hf.close()
        assert sum((each.result() for each in results), []) == list(range(100))
    """
    with finisher(database):
        run(database, program)
    assert database.stored() == list(range(100))


def test_a_closed_app_keeps_no_thread_and_no_file(database: Database) -> None:
    program = """
        import time
        def loops():
            return [fd for fd in os.listdir("/proc/self/fd") if "eventpoll" in link(fd)]

        def link(fd):
            try:
                return os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                return ""  # the one that lists them

        for _ in range(3):
            job = idle.enqueue(1)
            try:
                job.result("10ms")
            except ResultTimeout:
                pass
            hf.close()
        deadline = time.monotonic() + 30
        while held() or loops() or len(os.listdir("/proc/self/task")) > 1:
            assert time.monotonic() < deadline, (held(), loops(), os.listdir("/proc/self/task"))
            time.sleep(0.01)
        assert idle.enqueue(2).state() == "pending"
    """
    run(database, program)


def test_an_interrupted_wait_returns_at_once_and_the_app_stays_usable(database: Database) -> None:
    program = """
        import time
        main = threading.get_ident()

        def is_waiting():
            frame = sys._current_frames()[main]
            return frame.f_code.co_name == "wait" and frame.f_code.co_filename.endswith("native.py")

        sent = []

        def interrupt(is_interrupted):
            # Python drops a Ctrl-C that comes while the garbage collector calls back, so it may take a second one.
            while not is_interrupted.is_set():
                if is_waiting():
                    sent.append(time.monotonic())
                    os.kill(os.getpid(), signal.SIGINT)
                    is_interrupted.wait(5)
                time.sleep(0.001)

        job = idle.enqueue(1)
        for _ in range(5):
            is_interrupted = threading.Event()
            threading.Thread(target=interrupt, args=[is_interrupted]).start()
            try:
                job.result()
            except KeyboardInterrupt:
                is_interrupted.set()
                took = time.monotonic() - sent[-1]
            else:
                raise AssertionError
            assert took < 5, took
            assert job.state() == "pending"
        assert len(sent) <= 6
        assert echo.enqueue(2).result("30s") == 2
        while hf._engine._portal._server._under_way:  # what nobody waits for any more is not carried along
            time.sleep(0.001)
    """
    with finisher(database):
        run(database, program)


def test_a_signal_handler_may_enqueue(database: Database) -> None:
    program = """
        got = []
        signal.signal(signal.SIGALRM, lambda *_: got.append(idle.enqueue(len(got))))
        n = 1000
        while len(got) < 50:
            signal.setitimer(signal.ITIMER_REAL, 0.0001 * (n % 20 + 1))
            idle.enqueue(n)
            n += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
    """
    run(database, program)


@on_sqlite
def test_an_exit_raised_in_one_call_reaches_its_caller_only(database: Database) -> None:
    program = """
        async def leave():
            raise SystemExit(3)

        waiting = []
        job = idle.enqueue(1)
        thread = threading.Thread(target=lambda: waiting.append(job.result("30s")), daemon=True)
        thread.start()
        try:
            hf._engine.wait(leave(), "leave")
        except SystemExit as error:
            assert error.code == 3
        else:
            raise AssertionError
        assert idle.enqueue(2).state() == "pending"
        assert thread.is_alive()
    """
    run(database, program)


def test_without_files_to_open_a_call_fails_and_a_later_one_works(database: Database) -> None:
    program = """
        import resource
        sys.unraisablehook = lambda *_: None  # asyncio is unhappy about its half-made loop
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
        try:
            idle.enqueue(1)
        except OSError as error:
            refusal = error
        else:
            raise AssertionError
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "open files" in str(refusal), refusal
        assert idle.enqueue(2).state() == "pending"
    """
    run(database, program)


def test_a_wait_that_outlives_a_close_leaves_nothing_open(database: Database) -> None:
    program = """
        import time
        job = idle.enqueue(1)

        def wait():
            try:
                job.result("2500ms")  # long enough to look at the job again after the close
            except ResultTimeout:
                pass

        waiter = threading.Thread(target=wait)
        waiter.start()
        while not ears():
            time.sleep(0.001)
        hf.close()
        waiter.join()
        hf.close()
        deadline = time.monotonic() + 10
        while len(os.listdir("/proc/self/task")) > 1:
            assert time.monotonic() < deadline, os.listdir("/proc/self/task")
            time.sleep(0.01)
    """
    run(database, program)


@on_sqlite
def test_what_makes_the_calls_runs_in_the_callers_thread(database: Database) -> None:
    program = """
        def calls():
            assert threading.current_thread() is threading.main_thread()
            yield echo.call(1)

        assert len(hf.enqueue_many(calls())) == 1
    """
    run(database, program)
