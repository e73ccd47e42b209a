"""Damage to what PostgreSQL keeps, behind the back of the store: a text overwritten wherever it stands."""

from __future__ import annotations

import psycopg
from psycopg.sql import SQL, Identifier

COLUMNS = (
    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'savegame' AND data_type = 'bytea'"
)
OVERWRITE = SQL("UPDATE savegame.{0} SET {1} = overlay({1} PLACING %(new)s FROM position(%(old)s IN {1})) WHERE position(%(old)s IN {1}) > 0")  # fmt: skip  # noqa: E501


def overwrite(url: str, old: bytes, new: bytes) -> int:
    """Replace bytes by others of the same length in every row of the schema; how many rows had them."""
    with psycopg.connect(url) as connection:
        columns = connection.execute(COLUMNS).fetchall()
        texts = {"old": old, "new": new}
        return sum(connection.execute(OVERWRITE.format(*map(Identifier, column)), texts).rowcount for column in columns)
