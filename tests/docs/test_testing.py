"""The code of the guide to testing is a test suite, and passes as it stands."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Task

pytest_plugins = ["pytester"]

GUIDE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")
FILES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", GUIDE, re.DOTALL))


def test_the_tests_of_the_guide_pass(pytester: pytest.Pytester) -> None:
    assert len(FILES) == GUIDE.count("```python") == 6
    pytester.makeini("[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile(**FILES)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=sum(code.count("\ndef test_") for code in FILES.values()))
    assert not list(pytester.path.glob("*.db"))


def test_a_failed_assertion_says_what_the_guide_says() -> None:
    names: dict[str, Any] = {"__name__": "shop"}
    eval(compile(FILES["shop"], "shop.py", "exec"), names)
    hf: Holdfast = names["hf"]
    charge: Task[..., str] = names["charge"]
    with hf.testing() as t:
        charge.enqueue(7, 50)
        with pytest.raises(AssertionError) as caught:
            t.assert_enqueued(charge, 7, cents=500)
    assert textwrap.indent(f"AssertionError: {caught.value}", "    ") in GUIDE
