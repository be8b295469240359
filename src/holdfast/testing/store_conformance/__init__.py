"""The conformance suite for stores: tests that use only the store seam.

A store's own tests subclass `StoreConformance` and provide five fixtures. `open_store` opens the database once more, as
another process would. `lose_claim` makes the database forget a claim, `insert_item` writes an item as a process of
another release would, `age_tasks` lets time pass for the hosts of tasks, and `age_spending` for
what was spent.
"""

import pytest

from holdfast.store.store import Store
from holdfast.testing.store_conformance.annotations import AnnotationConformance
from holdfast.testing.store_conformance.audit import AuditConformance
from holdfast.testing.store_conformance.budgets import BudgetConformance
from holdfast.testing.store_conformance.files import FileConformance
from holdfast.testing.store_conformance.grants import GrantConformance
from holdfast.testing.store_conformance.inbox import InboxConformance
from holdfast.testing.store_conformance.keys import KeyConformance
from holdfast.testing.store_conformance.leases import LeaseConformance
from holdfast.testing.store_conformance.limits import LimitConformance
from holdfast.testing.store_conformance.loads import LoadConformance
from holdfast.testing.store_conformance.log import LogConformance
from holdfast.testing.store_conformance.placement import PlacementConformance
from holdfast.testing.store_conformance.presence import PresenceConformance
from holdfast.testing.store_conformance.reads import ReadConformance
from holdfast.testing.store_conformance.searches import SearchConformance
from holdfast.testing.store_conformance.secrets import SecretConformance
from holdfast.testing.store_conformance.tasks import TaskConformance
from holdfast.testing.store_conformance.upgrades import UpgradeConformance
from holdfast.testing.store_conformance.webhooks import WebhookConformance
from holdfast.testing.store_conformance.words import AgeSpending, AgeTasks, InsertItem, LoseClaim, OpenStore

__all__ = ["AgeSpending", "AgeTasks", "InsertItem", "LoseClaim", "OpenStore", "StoreConformance"]


class StoreConformance(
    LogConformance,
    InboxConformance,
    LimitConformance,
    LeaseConformance,
    GrantConformance,
    BudgetConformance,
    FileConformance,
    PlacementConformance,
    LoadConformance,
    PresenceConformance,
    ReadConformance,
    SearchConformance,
    SecretConformance,
    TaskConformance,
    KeyConformance,
    AuditConformance,
    AnnotationConformance,
    UpgradeConformance,
    WebhookConformance,
):
    """All parts of the suite."""

    @pytest.fixture
    async def store(self, open_store: OpenStore) -> Store:
        return await open_store()
