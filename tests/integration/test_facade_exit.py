"""Programs that use the synchronous façade end at once and in silence, closed or not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator

import pytest

from holdfast.portal import Portal
from tests.integration.facade import PATIENCE, Database, finisher, run

ENDS = {
    "an enqueue": "idle.enqueue(1)",
    "an app that was never used": "",
    "an app in a function": """
        def main():
            own = Holdfast(sys.argv[1])
            own.task(name="other")(lambda: None).enqueue()
        main()
    """,
    "a result that did not come": """
        try:
            idle.enqueue(1).result("10ms")
        except ResultTimeout:
            pass
    """,
    "a thread that still waits": """
        job = idle.enqueue(1)
        for _ in range(5):
            threading.Thread(target=job.result, daemon=True).start()
    """,
    "threads that still enqueue": """
        def produce():
            while True:
                idle.enqueue(1)
        for _ in range(5):
            threading.Thread(target=produce, daemon=True).start()
        for _ in range(50):
            idle.enqueue(2)
    """,
    "an exit": """
        idle.enqueue(1)
        sys.exit(0)
    """,
    "closed twice": """
        idle.enqueue(1)
        hf.close()
        hf.close()
    """,
    "used after close": """
        idle.enqueue(1)
        hf.close()
        assert idle.enqueue(2).state() == "pending"
        assert hf.jobs.count() == 2
    """,
    "used at exit": """
        import atexit
        idle.enqueue(1)
        atexit.register(lambda: idle.enqueue(2))
    """,
    "closed at exit": """
        import atexit
        idle.enqueue(1)
        atexit.register(hf.close)
    """,
    "an app in a cycle": """
        hf.itself = hf
        idle.enqueue(1)
        del hf, echo, idle
        import gc
        gc.collect()
    """,
    "async with": """
        import asyncio
        async def main():
            async with hf:
                job = await idle.aenqueue(1)
                try:
                    await job.aresult("10ms")
                except ResultTimeout:
                    pass
        asyncio.run(main())
    """,
    "asyncio without a close": """
        import asyncio
        async def main():
            job = await idle.aenqueue(1)
            waiting = asyncio.create_task(job.aresult())
            await asyncio.sleep(0)
        asyncio.run(main())
    """,
    "one loop after another": """
        import asyncio
        async def main():
            job = await idle.aenqueue(1)
            waiting = asyncio.create_task(job.aresult("30s"))
            await job.acancel()
            try:
                await waiting
            except JobCancelled:
                return
            raise AssertionError
        for _ in range(3):
            asyncio.run(main())
            idle.enqueue(2)
    """,
}


ON_BOTH = (
    "an enqueue",
    "a thread that still waits",
    "threads that still enqueue",
    "used after close",
    "used at exit",
    "an app in a cycle",
    "one loop after another",
)
"""Where the store matters."""

CASES = [("sqlite", end) for end in ENDS] + [("postgres", end) for end in ON_BOTH]


@pytest.mark.parametrize(("database", "end"), CASES, indirect=["database"])
def test_a_program_ends_in_silence_after(database: Database, end: str) -> None:
    started = time.monotonic()
    run(database, ENDS[end])
    assert time.monotonic() - started < 20, "something was waited for"


def test_a_thread_gets_its_result_while_the_main_thread_has_ended(database: Database) -> None:
    program = """
        def work():
            threading.main_thread().join()
            print(echo.enqueue(1).result("30s"))

        threading.Thread(target=work).start()
    """
    with finisher(database):
        assert run(database, program) == "1\n"
    assert database.stored() == [1]


def test_close_waits_for_what_is_under_way(database: Database) -> None:
    """What was acknowledged or not, whoever was enqueuing when the app was closed gets an answer that is true."""
    program = """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(20) as threads:
            jobs = [threads.submit(idle.enqueue, n) for n in range(100)]
            hf.close()
            assert len({each.result().id for each in jobs}) == 100
    """
    run(database, program)
    assert database.stored() == list(range(100))


def test_two_loops_use_one_app_at_the_same_time(database: Database) -> None:
    program = """
        import asyncio
        together = threading.Barrier(3)
        results = {}

        async def main(first):
            async def one(n):
                return await (await echo.aenqueue(n)).aresult("30s")

            together.wait()
            results[first] = await asyncio.gather(*(one(n) for n in range(first, first + 20)))

        threads = [threading.Thread(target=asyncio.run, args=(main(first),)) for first in (0, 100)]
        for thread in threads:
            thread.start()
        together.wait()
        assert echo.enqueue(200).result("30s") == 200
        for thread in threads:
            thread.join()
        assert results == {first: list(range(first, first + 20)) for first in (0, 100)}
        hf.close()
    """
    with finisher(database):
        run(database, program)
    assert database.stored() == [*range(20), *range(100, 120), 200]


def test_what_is_cleared_up_at_the_end_is_not_cut_short() -> None:
    """Somebody submits or closes at the very moment when the last call ends: the loop is asked to stop once more."""
    portal, is_cleared = Portal(), threading.Event()
    kept: list[AsyncGenerator[None, None]] = []

    async def keep() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            is_cleared.set()

    async def use() -> None:
        kept.append(keep())
        await anext(kept[0])
        server, task = portal._server, asyncio.current_task()
        assert server is not None
        assert task is not None
        portal.close()
        task.add_done_callback(lambda _: server.soon(server._look))

    portal.run(use(), "use")
    assert is_cleared.wait(PATIENCE)
