"""Permission rules that people grant beyond one session, alone and with an answer."""

import asyncio

from msgspec.structs import replace

from holdfast.events.ids import Key, Owner, RequestId, SessionId
from holdfast.store.grants import MAX_GRANT_BYTES, MAX_GRANTS, Grant, GrantOrigin, NewGrants, TooManyGrants
from holdfast.store.store import Accepted, Refused, Store
from holdfast.testing.store_conformance.words import (
    KEY,
    OpenStore,
    accepted,
    answer,
    asking,
    refused,
    reply,
)


class GrantConformance:
    async def test_rules_are_granted_for_a_place_or_everywhere(self, store: Store) -> None:
        owner, somebody_else = KEY.owner, Owner("somebody else")
        await store.grant(owner, "here", ["write", "shell(ls)"])
        await store.grant(owner, "here", ["write"])
        await store.grant(owner, "", ["read"])
        assert await store.granted(owner, "here") == ("read", "shell(ls)", "write")
        assert await store.granted(owner, "there") == ("read",)
        assert await store.granted(somebody_else, "here") == ()

    async def test_grants_record_person_time_and_session(self, store: Store) -> None:
        owner = KEY.owner
        first, second = GrantOrigin("s1", "ada", 1_000), GrantOrigin("s2", "bob", 2_000)
        await store.grant(owner, "here", ["write"], origin=second)
        await store.grant(owner, "here", ["write", "read"], origin=first)
        await store.grant(owner, "here", ["write"], origin=GrantOrigin("s1", "mallory", 3_000))
        await store.grant(owner, "", ["shell(ls)"])
        assert await store.grants(owner) == (
            Grant(place="", rule="shell(ls)"),
            Grant(place="here", rule="read", origin=first),
            Grant(place="here", rule="write", origin=first),
            Grant(place="here", rule="write", origin=second),
        )
        assert await store.granted(owner, "here") == ("read", "shell(ls)", "write")
        assert await store.grants(Owner("somebody else")) == ()

    async def test_owner_has_so_many_grants_and_no_more(self, store: Store) -> None:
        owner, somebody_else, origin = KEY.owner, Owner("somebody else"), GrantOrigin("s1", "ada", 1_000)
        rules = [f"read({number})" for number in range(MAX_GRANTS)]
        assert await store.grant(owner, "here", rules[:-1], origin=origin) is None
        refused = await store.grant(owner, "here", ["write", "shell(ls)"], origin=origin)
        assert isinstance(refused, TooManyGrants)
        assert refused.code == "too_many_permissions"
        assert len(await store.grants(owner)) == MAX_GRANTS - 1, "all of them are granted, or none"
        assert await store.grant(owner, "here", rules[-2:], origin=origin) is None
        assert await store.grant(owner, "here", rules, origin=origin) is None, "they are there already"
        assert isinstance(await store.grant(owner, "", ["write"], origin=origin), TooManyGrants)
        assert await store.grant(somebody_else, "", ["write"], origin=origin) is None
        assert await store.revoke_grant(owner, "here", rules[0])
        assert await store.grant(owner, "", ["write"], origin=origin) is None

    async def test_grants_of_an_owner_have_so_many_bytes_and_no_more(self, store: Store) -> None:
        owner, long = KEY.owner, "é" * 500
        rules = [f"read({long}{number})" for number in range(MAX_GRANT_BYTES // 1_010)]
        assert await store.grant(owner, "", rules) is None
        assert isinstance(await store.grant(owner, "", [f"write({long * 2})"]), TooManyGrants)
        assert len(await store.grants(owner)) == len(rules)

    async def test_of_grants_at_the_same_time_no_more_are_taken_than_one_owner_may_have(self, store: Store) -> None:
        owner = KEY.owner
        await store.grant(owner, "", [f"read({number})" for number in range(MAX_GRANTS - 1)])
        outcomes = await asyncio.gather(*(store.grant(owner, "", [f"write({number})"]) for number in range(5)))
        assert sum(outcome is None for outcome in outcomes) == 1
        assert len(await store.grants(owner)) == MAX_GRANTS

    async def test_processes_share_the_bound_of_an_owners_grants(self, open_store: OpenStore) -> None:
        stores = [await open_store() for _ in range(3)]
        await stores[0].grant(KEY.owner, "", [f"read({number})" for number in range(MAX_GRANTS - 1)])
        for attempt in range(10):
            rules = [f"write({attempt} {number})" for number in range(3)]
            grants = (store.grant(KEY.owner, "", [rule]) for store, rule in zip(stores, rules, strict=True))
            outcomes = await asyncio.gather(*grants)
            assert [outcome is None for outcome in outcomes].count(True) == 1
            assert await stores[0].revoke_grant(KEY.owner, "", rules[outcomes.index(None)])

    async def test_answer_and_its_grants_are_one_write_which_is_not_repeated(self, store: Store) -> None:
        await asking(store)
        grants = NewGrants(place="here", rules=("write", "read", "write"), origin=GrantOrigin("s1", "ada", 1_000))
        assert isinstance(
            await reply(store, replace(answer("late"), request_id=RequestId("unknown")), grants=grants), Refused
        )
        assert await store.grants(KEY.owner) == ()
        accepted(await reply(store, grants=grants))
        held = await store.grants(KEY.owner)
        assert {(grant.place, grant.rule, grant.origin) for grant in held} == {
            ("here", "write", grants.origin),
            ("here", "read", grants.origin),
        }
        assert await store.revoke_grant(KEY.owner, "here", "write")
        assert accepted(await reply(store, grants=grants)).duplicate
        assert isinstance(await reply(store, answer("other"), grants=grants), Refused)
        assert await store.granted(KEY.owner, "here") == ("read",), "nothing is granted again"

    async def test_answer_that_grants_more_than_its_owner_may_have_is_refused(self, store: Store) -> None:
        await asking(store)
        await store.grant(KEY.owner, "", [f"read({number})" for number in range(MAX_GRANTS - 1)])
        grants = NewGrants(place="", rules=("write", "shell(ls)"), origin=GrantOrigin("s1", "ada", 1_000))
        before = await store.row(KEY)
        assert refused(await reply(store, grants=grants)) == "too_many_permissions"
        assert await store.row(KEY) == before
        assert len(await store.grants(KEY.owner)) == MAX_GRANTS - 1
        assert len(await store.requests(KEY)) == 1
        accepted(await reply(store, grants=replace(grants, rules=("write",))))

    async def test_answers_at_the_same_time_share_the_bound_of_their_owners_grants(self, open_store: OpenStore) -> None:
        stores = [await open_store() for _ in range(3)]
        keys = [Key(KEY.owner, SessionId(str(number))) for number in range(3)]
        for key in keys:
            await asking(stores[0], key)
        await stores[0].grant(KEY.owner, "", [f"read({number})" for number in range(MAX_GRANTS - 1)])
        origin = GrantOrigin("s1", "ada", 1_000)
        outcomes = await asyncio.gather(
            *(
                reply(store, key=key, grants=NewGrants(place="", rules=(f"write({key.session})",), origin=origin))
                for store, key in zip(stores, keys, strict=True)
            )
        )
        assert [isinstance(outcome, Accepted) for outcome in outcomes].count(True) == 1
        assert len(await stores[0].grants(KEY.owner)) == MAX_GRANTS

    async def test_revoked_grant_no_longer_holds(self, store: Store) -> None:
        owner, somebody_else = KEY.owner, Owner("somebody else")
        for session in ("s1", "s2"):
            await store.grant(owner, "here", ["write"], origin=GrantOrigin(session, "ada", 1_000))
        for place in ("", "there"):
            await store.grant(owner, place, ["write"])
        await store.grant(somebody_else, "here", ["write"])
        assert await store.revoke_grant(owner, "here", "write")
        assert not await store.revoke_grant(owner, "here", "write")
        assert [found.place for found in await store.grants(owner)] == ["", "there"]
        assert await store.granted(somebody_else, "here") == ("write",)
        assert await store.revoke_grant(owner, "", "write")
        assert await store.granted(owner, "here") == ()
