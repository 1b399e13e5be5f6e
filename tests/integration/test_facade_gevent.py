"""The synchronous façade under gevent: greenlets wait, the hub never does."""

from __future__ import annotations

import pytest

from tests.integration.facade import Database, finisher, run

PATCH = "from gevent import monkey; monkey.patch_all()"
IMPORT_THEN_PATCH = f"""
import warnings, holdfast
warnings.simplefilter("ignore")  # gevent rightly says that patching so late is not for everybody
{PATCH}
"""
USE_THEN_PATCH = f"""
import sys, warnings, holdfast
before = holdfast.Holdfast(sys.argv[1])
@before.task
def echo(n: int) -> int: ...
before.enqueue_many([])
assert before.jobs.count() == 0
warnings.simplefilter("ignore")
{PATCH}
"""

TICKER = """
import gevent

ticks = 0

def tick():
    global ticks
    while True:
        ticks += 1
        gevent.sleep(0.001)

ticker = gevent.spawn(tick)

def some_ticks():
    "Time in which the other greenlets get their turn."
    end = ticks + 20
    while ticks < end:
        gevent.sleep(0.001)
"""

patched = pytest.mark.parametrize("prologue", [PATCH, IMPORT_THEN_PATCH, USE_THEN_PATCH], ids=["first", "late", "used"])


@patched
def test_a_hundred_greenlets_enqueue_and_wait_at_once(database: Database, prologue: str) -> None:
    program = f"""
        {TICKER.replace(chr(10), chr(10) + " " * 8)}
        def one(n):
            return echo.enqueue(n).result("30s")

        crowd = [gevent.spawn(one, n) for n in range(100)]
        gevent.joinall(crowd, raise_error=True)
        assert [each.value for each in crowd] == list(range(100))
        assert ticks > 1, ticks

        many = hf.enqueue_many(echo.call(n) for n in range(100, 200))
        waiting = [gevent.spawn(job.result, "30s") for job in many]
        gevent.joinall(waiting, raise_error=True)
        assert [each.value for each in waiting] == list(range(100, 200))
    """
    with finisher(database):
        run(database, program, prologue=prologue)
    assert database.stored() == list(range(200))


@patched
def test_the_hub_runs_while_a_greenlet_waits(database: Database, prologue: str) -> None:
    """Each wait here ends only because another greenlet of the same thread does something."""
    program = f"""
        {TICKER.replace(chr(10), chr(10) + " " * 8)}
        job = idle.enqueue(1)
        waiter = gevent.spawn(job.result, "30s")
        some_ticks()
        assert not waiter.dead
        job.cancel("enough")
        waiter.join()
        assert isinstance(waiter.exception, JobCancelled), waiter.exception

        narrow = echo.options(queue="narrow", wait="30s")
        first = narrow.enqueue(2)
        second = gevent.spawn(narrow.enqueue, 3)
        some_ticks()
        assert not second.dead
        first.cancel()
        assert second.get().id != first.id
    """
    # The greenlet's own report of the expected error is not of interest.
    quiet = "\nimport gevent; gevent.get_hub().NOT_ERROR += (Exception,)\n"
    run(database, program, prologue=prologue + quiet)


def test_a_wait_ends_with_a_timeout_a_kill_or_an_interrupt_of_its_greenlet(database: Database) -> None:
    program = f"""
        {TICKER.replace(chr(10), chr(10) + " " * 8)}
        job = idle.enqueue(1)
        for _ in range(20):
            try:
                with gevent.Timeout(0.001):
                    job.result()
            except gevent.Timeout:
                continue
            raise AssertionError

        waiter = gevent.spawn(job.result)
        some_ticks()
        waiter.kill()
        assert waiter.dead

        ticker.kill()
        gevent.get_hub().NOT_ERROR += (KeyboardInterrupt,)  # not to be printed
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            job.result()
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError
        assert job.state() == "pending"
    """
    run(database, program, prologue=PATCH)


@patched
def test_the_loop_runs_in_a_native_thread_without_gevent(database: Database, prologue: str) -> None:
    program = """
        import asyncio, _socket
        from gevent._hub_local import get_hub_if_exists
        native_id = monkey.get_original("_thread", "get_native_id")

        async def look():
            await hf.jobs.acount()
            loop = asyncio.get_running_loop()
            return native_id(), type(loop._selector).__module__, type(loop._csock), get_hub_if_exists()

        thread, selector, alarm, hub = hf._engine.wait(look(), "look")
        assert thread != native_id()
        assert (selector, alarm, hub) == ("selectors", _socket.socket, None), (selector, alarm, hub)
    """
    run(database, program, prologue=prologue)


def test_native_threads_beside_the_hub_may_call_too(database: Database) -> None:
    program = """
        import gevent
        pool = gevent.get_hub().threadpool
        jobs = [pool.spawn(idle.enqueue, n) for n in range(20)]
        assert len({job.get().id for job in jobs}) == 20
    """
    run(database, program, prologue=PATCH)
    assert database.stored() == list(range(20))


def test_more_open_files_than_select_can_watch(database: Database) -> None:
    program = """
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        assert held[-1] >= 1024
        assert idle.enqueue(1).state() == "pending"
    """
    run(database, program, prologue=PATCH)


def test_a_forked_child_under_gevent_goes_on_by_itself(database: Database) -> None:
    program = """
        import gevent
        echo.enqueue(0)
        child = os.fork()
        first = 1 if child else 101
        crowd = [gevent.spawn(echo.enqueue, n) for n in range(first, first + 100)]
        gevent.joinall(crowd, raise_error=True)
        if child:
            assert os.waitpid(child, 0)[1] == 0
    """
    run(database, program, prologue=PATCH)
    assert database.stored() == list(range(201))
