"""Tables of what follows from changes of jobs: their history, labels, webhooks, deliveries.

`service.jobs.store` has the tables of the jobs themselves, in the same metadata.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    func,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite

ID = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts by itself only in INTEGER."""
VERSIONS_PER_S = 1_000
"""Where the versions of a new store begin, for every second since 1970: above those of a store
that was deleted, so that whoever watched it is told to list again."""

tables = MetaData()
feed_row = Table(
    "planner_feed",
    tables,
    Column("id", Integer, primary_key=True),
    Column("version", BigInteger, nullable=False),  # of the last change of any job
    Column("trimmed", BigInteger, nullable=False),  # changes up to it are forgotten
)
changes = Table(
    "planner_changes",
    tables,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", String(200), nullable=False),
    Column("call", String(40), nullable=False),
    Column("kind", String(10), nullable=False),  # ADDED, MODIFIED, DELETED
    Column("at_s", Float, nullable=False),  # by the store's clock
    Column("text", Text, nullable=False),  # the job as JSON, after the change
    Index("planner_changes_owner", "owner", "version"),
    Index("planner_changes_at", "at_s"),
)
labels = Table(
    "planner_labels",
    tables,
    Column("job_id", String(32), primary_key=True),
    Column("name", String(317), primary_key=True),
    Column("value", String(63), nullable=False),
    Index("planner_labels_value", "name", "value"),
)
webhooks = Table(
    "planner_webhooks",
    tables,
    Column("seq", ID, primary_key=True, autoincrement=True),
    Column("webhook_id", String(32), nullable=False, unique=True),
    Column("owner", String(200), nullable=False),
    Column("job_id", String(32), nullable=False, index=True),  # empty: of all the owner's jobs
    Column("url", Text, nullable=False),
    Column("secret", String(200), nullable=False),  # to sign with, so it cannot be a hash
    Column("states", String(100), nullable=False),  # with commas
    Column("selector", Text, nullable=False),
    Column("created_at", Float, nullable=False),  # time of day, to be shown
    Column("n_dropped", Integer, nullable=False, server_default="0"),
    Index("planner_webhooks_owner", "owner", "seq"),
)
deliveries = Table(
    "planner_deliveries",
    tables,
    Column("seq", ID, primary_key=True, autoincrement=True),
    Column("delivery_id", String(40), nullable=False, unique=True),
    Column("webhook_id", String(32), nullable=False),
    Column("owner", String(200), nullable=False),
    Column("job_id", String(32), nullable=False),
    Column("kind", String(40), nullable=False),  # job.succeeded
    Column("body", LargeBinary, nullable=False),  # the bytes that are signed
    Column("state", String(10), nullable=False),  # WAITING, DELIVERED, FAILED
    Column("attempts", Integer, nullable=False),
    Column("claim", String(32), nullable=False),  # of the process that sends it
    Column("due_s", Float, nullable=False),  # by the store's clock: of the next attempt
    Column("status", Integer),  # of the last answer
    Column("error", Text, nullable=False),
    Column("created_at", Float, nullable=False),  # times of day, to be shown
    Column("finished_at", Float),
    Column("expires_s", Float),
    Index("planner_deliveries_due", "state", "due_s"),
    Index("planner_deliveries_webhook", "webhook_id", "seq"),
    Index("planner_deliveries_owner", "owner", "state"),
    Index("planner_deliveries_expiry", "expires_s"),
)
FEED_TABLES = (feed_row, changes, labels, webhooks, deliveries)


def add_feed(connection: Connection) -> None:
    """Make the tables, and the columns of jobs that go with them, where they are not there."""
    there = {column["name"] for column in inspect(connection).get_columns("planner_jobs")}
    for name, kind in (
        ("labels", "TEXT NOT NULL DEFAULT '{}'"),
        ("version", "BIGINT NOT NULL DEFAULT 0"),
    ):
        if name not in there:
            connection.execute(text(f"ALTER TABLE planner_jobs ADD COLUMN {name} {kind}"))
    for table in FEED_TABLES:
        table.create(connection, checkfirst=True)


def begin_feed(connection: Connection, wall_s: float) -> None:
    """Make the row that counts versions, where there is none."""
    if connection.execute(select(func.count()).select_from(feed_row)).scalar_one():
        return
    version = max(1, int(wall_s)) * VERSIONS_PER_S
    made = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    row = {"id": 1, "version": version, "trimmed": version}
    connection.execute(made(feed_row).values(row).on_conflict_do_nothing())
