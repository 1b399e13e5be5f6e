"""The pytest plugin: a fixture that enters and leaves, and costs nothing where it is not used."""

from __future__ import annotations

import importlib.metadata

import pytest

pytest_plugins = ["pytester"]

APP = """
    from holdfast import Holdfast

    hf = Holdfast("sqlite:///own.db")

    @hf.task
    def double(number: int) -> int:
        return 2 * number
"""


@pytest.fixture(autouse=True)
def settings(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        """
        [pytest]
        asyncio_mode = auto
        asyncio_default_fixture_loop_scope = function
        filterwarnings = error
        """
    )


def test_the_plugin_comes_with_the_package() -> None:
    (found,) = importlib.metadata.entry_points(group="pytest11", name="holdfast")
    assert found.value == "pytest_holdfast"


def test_the_fixture_enters_and_leaves(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        shop=APP,
        test_shop="""
        import os
        import pytest
        from shop import double, hf

        def test_jobs_run(holdfast_testing):
            t = holdfast_testing(hf)
            job = double.enqueue(21)
            assert t.run_all() == 1
            assert job.result() == 42

        def test_it_begins_anew(holdfast_testing):
            t = holdfast_testing(hf, inline=True)
            t.assert_nothing_enqueued()
            assert double.enqueue(1).result() == 2

        async def test_async_code(holdfast_testing):
            t = holdfast_testing(hf)
            job = await double.aenqueue(21)
            assert await t.arun_all() == 1
            assert await job.aresult() == 42

        @pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
        def test_a_failure(holdfast_testing):
            holdfast_testing(hf)
            1 / 0

        def test_nothing_is_left(holdfast_testing):
            assert not hf.engine.is_unattended
            assert not os.path.exists("own.db")
        """,
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=4, xfailed=1)


def test_who_does_not_use_it_does_not_import_holdfast(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_imported():
            assert "pytest_holdfast" in sys.modules
            assert not [name for name in sys.modules if name.split(".")[0] in ("holdfast", "msgspec")]
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_a_failed_assertion_points_to_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        shop=APP,
        test_shop="""
        from shop import double, hf

        def test_wrong(holdfast_testing):
            t = holdfast_testing(hf)
            double.enqueue(1)
            t.assert_enqueued(double, 2)
        """,
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: double(number=2) was not enqueued. Of double, there is 1 job:"])
    result.stdout.no_fnmatch_line("*rehearsal.py*")
