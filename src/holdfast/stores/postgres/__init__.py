"""Jobs in PostgreSQL: for many machines, and for transactions that are the user's own."""

from holdfast.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
