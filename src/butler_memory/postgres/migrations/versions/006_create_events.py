"""Events: every change, append-only; their free text apart from them (L2, L3)."""

from butler_memory.postgres.migrations import tables as t

revision = "memory_006"
down_revision = "memory_005"
branch_labels = None
depends_on = None

EVENT_TYPES = (
    "created", "superseded", "confirmed", "revised", "linked", "faded", "expired", "retracted", "restored",
    "promoted", "demoted", "inverted", "marked", "disabled", "enabled", "consolidated", "consolidation_failed",
    "requeued", "deleted", "erased", "reslotted", "confidence_alert",
)  # fmt: skip


def upgrade() -> None:
    t.run(
        f"""
        CREATE TABLE memory.memory_events (
            id bigint GENERATED ALWAYS AS IDENTITY,
            {t.TENANT},
            event_type text NOT NULL, {t.one_of("event_type", *EVENT_TYPES)},
            entity_type text NOT NULL, {t.one_of("entity_type", "episode", "fact", "rule")},
            entity_id uuid NOT NULL,
            entity_version int NOT NULL CHECK (entity_version >= 1),
            occurred_at timestamptz NOT NULL,
            actor text NOT NULL,
            request_id text,
            payload jsonb NOT NULL,
            PRIMARY KEY (tenant_id, id),
            UNIQUE (tenant_id, entity_type, entity_id, entity_version)
        )
        """
    )
    t.protect("memory_events", app="SELECT, INSERT")
    t.run(
        f"""
        CREATE TABLE memory.memory_event_bodies (
            {t.TENANT},
            event_id bigint NOT NULL,
            body jsonb NOT NULL,
            PRIMARY KEY (tenant_id, event_id),
            FOREIGN KEY (tenant_id, event_id) REFERENCES memory.memory_events (tenant_id, id)
        )
        """
    )
    t.protect("memory_event_bodies", app="SELECT, INSERT, DELETE")
