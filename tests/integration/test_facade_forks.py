"""The synchronous façade and forks: parent and child go on side by side, and neither touches what is the other's."""

from __future__ import annotations

from tests.integration.facade import Database, finisher, run

FORKING = """
def forked(function):
    "Run a function in a child that ends like any program."
    child = os.fork()
    if child == 0:
        try:
            function()
        except Exception:
            import traceback
            traceback.print_exc()
            sys.exit(1)
        sys.exit(0)
    return child

def join(*children):
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
"""


def test_forks_in_the_middle_of_heavy_use_lose_and_double_nothing(database: Database) -> None:
    program = """
        import itertools, time
        stop = threading.Event()
        sent = [0] * 4

        def produce(index):
            while not stop.is_set():
                echo.enqueue(1_000_000 * index + sent[index])
                sent[index] += 1

        def child(index):
            for n in range(25):
                echo.enqueue(100_000_000 + 1000 * index + n)
            assert hf.jobs.count() > 25

        threads = [threading.Thread(target=produce, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        children = []
        for index in range(12):
            before = sum(sent)
            while sum(sent) < before + 10:
                time.sleep(0.001)
            children.append(forked(lambda: child(index)))
        join(*children)
        stop.set()
        for thread in threads:
            thread.join()
        print(*sent)
    """
    sent = [int(count) for count in run(database, program, prologue=FORKING).split()]
    by_parent = [1_000_000 * index + n for index, count in enumerate(sent) for n in range(count)]
    by_children = [100_000_000 + 1000 * index + n for index in range(12) for n in range(25)]
    assert database.stored() == by_parent + by_children


def test_a_child_has_nothing_of_its_parents_open(database: Database) -> None:
    """A lock file that it shares would keep a killed parent's lock; a connection keeps SQLite from locking at all."""
    program = """
        job = echo.enqueue(1)
        assert job.state() == "pending" and hf.jobs.count() == 1
        waiter = threading.Thread(target=job.result, daemon=True)
        waiter.start()
        assert held()

        def child():
            assert not held(), held()

        join(forked(child))
        assert job.state() == "pending"
    """
    run(database, program, prologue=FORKING)


def test_what_a_child_commits_survives_the_close_of_its_parent(database: Database) -> None:
    """Whoever closes a SQLite file last deletes its log: the child must hold a lock of its own that says "not last"."""
    program = """
        from_child, to_parent = os.pipe()
        from_parent, to_child = os.pipe()
        echo.enqueue(0)

        def child():
            echo.enqueue(1)
            os.write(to_parent, b"x")
            os.read(from_parent, 1)
            for n in range(2, 50):
                echo.enqueue(n)

        running = forked(child)
        os.read(from_child, 1)
        hf.close()
        os.write(to_child, b"x")
        join(running)
    """
    run(database, program, prologue=FORKING)
    assert database.stored() == list(range(50))


def test_preloaded_workers_and_their_children_enqueue(database: Database) -> None:
    program = """
        echo.enqueue(0)

        def worker(index):
            first = 1000 * index
            for n in range(first, first + 200):
                echo.enqueue(n)
            assert hf.jobs.get(echo.enqueue(first + 200).id).args == {"n": first + 200}
            join(forked(lambda: grandchild(first + 500)))

        def grandchild(first):
            assert not held(), held()
            hf.enqueue_many([echo.call(n) for n in range(first, first + 10)])

        join(*[forked(lambda: worker(index)) for index in range(1, 5)])
    """
    run(database, program, prologue=FORKING)
    expected = [0]
    for index in range(1, 5):
        expected += [1000 * index + n for n in range(201)] + [1000 * index + 500 + n for n in range(10)]
    assert database.stored() == expected


def test_a_pool_of_forked_processes_enqueues(database: Database) -> None:
    program = """
        import multiprocessing

        def enqueue(n):
            return echo.enqueue(n).id

        echo.enqueue(0)
        with multiprocessing.get_context("fork").Pool(4) as pool:
            ids = pool.map(enqueue, range(1, 201), chunksize=1)
            assert len(set(ids)) == 200
    """
    run(database, program)
    assert database.stored() == list(range(201))


def test_a_fork_while_others_wait_for_results_disturbs_neither_side(database: Database) -> None:
    """The child has copies of the waiting coroutines. It must neither run their ends nor complain about them."""
    program = """
        import gc, time
        results = []
        job = idle.enqueue(1)

        def wait():
            try:
                job.result("30s")
            except JobCancelled:
                results.append("cancelled")

        threads = [threading.Thread(target=wait) for _ in range(10)]
        for thread in threads:
            thread.start()
        while not ears():
            time.sleep(0.001)
        shown = ears()

        def child():
            gc.collect()
            echo.enqueue(2)
            hf.close()
            gc.collect()

        join(forked(child), forked(child), forked(lambda: None), forked(hf.close))
        assert ears() == shown
        job.cancel()
        for thread in threads:
            thread.join()
        assert results == ["cancelled"] * 10
    """
    run(database, program, prologue=FORKING)
    assert database.stored() == [1, 2, 2]


def test_a_child_waits_for_results_of_its_own(database: Database) -> None:
    program = """
        def child():
            assert [echo.enqueue(n).result("30s") for n in range(5)] == list(range(5))

        assert echo.enqueue(7).result("30s") == 7
        join(*[forked(child) for _ in range(3)])
        assert echo.enqueue(8).result("30s") == 8
    """
    with finisher(database):
        run(database, program, prologue=FORKING)
