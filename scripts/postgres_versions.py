"""Runs tests against every supported version of PostgreSQL, oldest first.

The servers' programs come from the Maven artifacts of embedded-postgres-binaries, the newest minor release of each
version, and stay in .cache/postgres; what cannot be fetched is taken from the system, if it has it. The tests find
them by HOLDFAST_TEST_POSTGRES_BIN.
"""

import argparse
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "postgres"
VERSIONS = (13, 14, 15, 16, 17, 18)
TESTS = ("tests/contract/test_postgres.py", "tests/postgres", "tests/cli/test_db_postgres.py")
NO_TESTS_COLLECTED = 5  # pytest's exit status

# A range, which a command line cannot name, finds the newest minor release.
PROJECT = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>holdfast</groupId>
  <artifactId>postgres-versions</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>io.zonky.test.postgres</groupId>
      <artifactId>embedded-postgres-binaries-{platform}</artifactId>
      <version>[{version},{next})</version>
    </dependency>
  </dependencies>
</project>
"""


def main() -> int:
    versions, arguments = read_arguments()
    results: dict[int, str] = {}
    for version in versions:
        binaries = find(version)
        if binaries is None:
            results[version] = "NOT TESTED: no programs to be had"
            continue
        say(f"PostgreSQL {exact_version(binaries)}")
        status = run_tests(binaries, arguments)
        outcome = {0: "passed", NO_TESTS_COLLECTED: "NOT TESTED: no tests found"}.get(status, "FAILED")
        results[version] = f"{outcome} ({exact_version(binaries)})"
    say("PostgreSQL versions")
    for version, result in results.items():
        print(f"  {version}  {result}")
    return 0 if all(result.startswith("passed") for result in results.values()) else 1


def read_arguments() -> tuple[list[int], list[str]]:
    """The versions, and what goes to pytest: without a test among it, all tests of the store."""
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__, epilog="All else goes to pytest.")
    parser.add_argument("--only", help="versions, separated by commas", default=",".join(map(str, VERSIONS)))
    known, rest = parser.parse_known_args()
    names_tests = any((ROOT / argument.split("::")[0]).exists() for argument in rest)
    return [int(version) for version in known.only.split(",")], rest if names_tests else [*TESTS, *rest]


def find(version: int) -> Path | None:
    """The folder of this version's programs."""
    for folder in (fetch(version), Path(f"/usr/lib/postgresql/{version}/bin")):
        if folder is not None and (folder / "postgres").exists():
            return folder
    return None


def fetch(version: int) -> Path | None:
    target = CACHE / str(version)
    if target.exists():
        return target / "bin"
    maven = shutil.which("mvn")
    if maven is None:
        say(f"PostgreSQL {version} cannot be fetched: there is no Maven (mvn) here")
        return None
    say(f"fetching PostgreSQL {version}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="draft-", dir=CACHE) as name:
        draft = Path(name)
        project = draft / "pom.xml"
        project.write_text(PROJECT.format(platform=platform_name(), version=version, next=version + 1))
        # Strict about checksums: what is fetched will be run.
        command = [maven, "-q", "-B", "-C", "-f", str(project), "dependency:copy-dependencies"]
        done = subprocess.run([*command, f"-DoutputDirectory={draft}"], capture_output=True, text=True, check=False)
        jars = list(draft.glob("*.jar"))
        if done.returncode != 0 or not jars:
            print(done.stdout[-2000:], done.stderr[-2000:], sep="")
            return None
        unpack(jars[0], draft / "install")
        (draft / "install").rename(target)
    return target / "bin"


def unpack(jar: Path, target: Path) -> None:
    """The jar holds one archive, and that bin, lib and share."""
    with zipfile.ZipFile(jar) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".txz"))
        with outer.open(name) as compressed, lzma.open(compressed) as plain, tarfile.open(fileobj=plain) as archive:
            # Early releases of Python 3.11 know no filters.
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
            archive.extractall(target)


def platform_name() -> str:
    system = {"Linux": "linux", "Darwin": "darwin"}.get(platform.system(), platform.system().lower())
    machine = {"x86_64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}.get(platform.machine(), platform.machine())
    return f"{system}-{machine}"


def exact_version(binaries: Path) -> str:
    said = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return said.split(")", 1)[1].strip()  # postgres (PostgreSQL) 13.23


def run_tests(binaries: Path, arguments: list[str]) -> int:
    environment = os.environ | {"HOLDFAST_TEST_POSTGRES_BIN": str(binaries)}
    # A server named there would be tested each time, instead of the versions.
    for name in ("HOLDFAST_TEST_POSTGRES_URL", "HOLDFAST_TEST_POSTGRES_LOCAL"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def say(message: str) -> None:
    print(f"── {message}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
