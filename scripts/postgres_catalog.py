"""Writes down what the migrations make, for `holdfast db check`: src/holdfast/stores/postgres/catalog/expected.json.

Run it after a migration was added, from the project's folder: .venv/bin/python scripts/postgres_catalog.py
"""

import asyncio
import sys
from pathlib import Path

import asyncpg
import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from holdfast.stores.postgres import catalog  # noqa: E402
from holdfast.stores.postgres.migrate import migrate, shipped_migrations  # noqa: E402
from tests.servers.postgres import PostgresServer  # noqa: E402

TARGET = ROOT / "src/holdfast/stores/postgres/catalog/expected.json"


async def look(url: str) -> catalog.Catalog:
    connection = await asyncpg.connect(url)
    try:
        migrations = shipped_migrations()
        await migrate(connection, migrations, lambda: asyncpg.connect(url))
        async with connection.transaction():
            return catalog.Catalog(migrations[-1].number, await catalog.read(connection))
    finally:
        await connection.close()


def main() -> None:
    with PostgresServer() as server:
        found = asyncio.run(look(server.url()))
    lines = ",\n".join(
        f"    {msgspec.json.encode(msgspec.structs.astuple(thing)[:4]).decode()}" for thing in found.things
    )
    TARGET.write_text(f'{{\n  "schema": {found.schema},\n  "things": [\n{lines}\n  ]\n}}\n', encoding="utf-8")
    print(f"{len(found.things)} things in {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
