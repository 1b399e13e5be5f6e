"""A program that opens one database in many processes at the same moment: tests.postgres.opening URL FOLDER…

There is one process for each folder of migrations. Each writes one line: how it went.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.migrate import shipped_migrations
from tests.postgres.jobs import new


async def use(url: str, folder: str) -> str | None:
    """Open the database and enqueue a job; the name of the error, if any."""
    store = PostgresStore(url, migrations=shipped_migrations(Path(folder)))
    try:
        await store.enqueue([new()])
    except HoldfastError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        await store.close()
    return None


def main(url: str, folders: list[str]) -> None:
    start, starter = os.pipe()
    children = []
    for folder in folders:
        child = os.fork()
        if child == 0:
            os.close(starter)
            os.read(start, 1)  # until the parent closes its end
            try:
                outcome = asyncio.run(use(url, folder))
                os.write(1, f"{json.dumps({'folder': folder, 'error': outcome})}\n".encode())
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    os.close(starter)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
