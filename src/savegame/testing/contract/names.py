"""What names mean to a store: nothing. Any text is an id, and namespaces never cross."""

from __future__ import annotations

from savegame.model import Record, ThreadKey
from savegame.store import DeleteThread, PutKeyframe, PutRecord, Store
from savegame.testing.contract.helpers import HOSTILE_IDS, MINUTE, SPACE, A, Contract, appended, grown, pages, row_of, state


class Names(Contract):
    """Ids, namespaces and listings by them."""

    def test_any_id_is_a_thread_of_its_own(self, store: Store) -> None:
        """Nothing in an id means anything: not as thread, checkpoint, record, agent or namespace."""
        keys = [ThreadKey(SPACE, name) for name in HOSTILE_IDS]
        for number, key in enumerate(keys):
            frame = appended(key, 1, id=key.id, delta=b"%d" % number, agent=key.id, blobs=((b"x", b"%d" % number),))
            store.commit([frame, PutRecord(key, key.id, key.id, b"%d" % number)])
        for number, key in enumerate(keys):
            assert store.chain(key, 1).deltas == [b"%d" % number]
            assert store.find(SPACE, key.id) == (key, 1)
            assert store.records(key, key.id).items == [Record(key.id, key.id, b"%d" % number)]
            assert store.blob(key, b"x") == b"%d" % number
            assert [row.key for row in store.threads(SPACE, agent=key.id).items] == [key]
            assert store.thread(ThreadKey(key.id, key.id)) is None
        assert [row.key.id for row in store.threads(SPACE).items] == sorted(HOSTILE_IDS)
        for key in keys[::2]:
            store.commit([DeleteThread(key)])
        assert [row.key.id for row in store.threads(SPACE).items] == sorted(HOSTILE_IDS[1::2])

    def test_any_namespace_is_one_of_its_own(self, store: Store) -> None:
        """Hostile names are just names there too."""
        for name in HOSTILE_IDS:
            store.commit([appended(ThreadKey(name, "a"), 1)])
        for name in HOSTILE_IDS:
            assert [row.key for row in store.threads(name).items] == [ThreadKey(name, "a")]

    def test_namespaces_do_not_cross(self, store: Store) -> None:
        """The same thread and checkpoint ids in two of them are two things, in every verb."""
        here, there = ThreadKey("here", "a"), ThreadKey("there", "a")
        for key in (here, there):
            name = key.namespace.encode()
            store.commit(
                [appended(key, 1, delta=name, agent=key.namespace, blobs=((b"x", name),)), PutRecord(key, "kind", "name", name)]
            )
        store.commit([appended(there, 2, 1), PutKeyframe(there, 1, b"there")])
        row = row_of(store, here)
        assert (row.key, row.head_id, row.frames, row.agent) == (here, "a-1", 1, "here")
        assert [row.key for row in store.threads("here").items] == [here]
        assert store.threads("here", agent="there").items == []
        assert store.find("here", "a-1") == (here, 1)
        assert store.find("here", "a-2") is None
        assert [frame.delta for frame in store.frames(here, deltas=True)] == [b"here"]
        assert store.chain(here, 1) == (0, None, [b"here"])
        assert store.records(here, "kind").items == [Record("kind", "name", b"here")]
        assert store.blob(here, b"x") == b"here"
        store.lease(there, "me", MINUTE)
        store.commit([DeleteThread(here)])
        assert store.find("there", "a-1") == (there, 1)
        assert state(store, there, 2) == b"there2."
        assert list(store.check("nowhere")) == []

    def test_threads_come_by_id_in_pages(self, store: Store) -> None:
        """Each once; only a page that others follow says where they begin."""
        names = ["a", "b", "B", "ä", "🎲", "10"]
        for name in names:
            store.commit([appended(ThreadKey(SPACE, name), 1)])
        found = pages(lambda after: store.threads(SPACE, after=after, limit=2), None)
        ids = [[row.key.id for row in page] for page in found]
        assert ids == [["10", "B"], ["a", "b"], ["ä", "🎲"]]
        assert [row.key.id for row in store.threads(SPACE, after="aa").items] == ["b", "ä", "🎲"]

    def test_threads_are_listed_by_agent(self, store: Store) -> None:
        """In pages too."""
        for number in range(6):
            agent = ("x", "y", None)[number % 3]
            store.commit([appended(ThreadKey(SPACE, str(number)), 1, agent=agent)])
        assert [row.key.id for row in store.threads(SPACE, agent="x").items] == ["0", "3"]
        found = pages(lambda after: store.threads(SPACE, after=after, limit=1, agent="y"), None)
        assert [[row.key.id for row in page] for page in found] == [["1"], ["4"]]
        assert len(store.threads(SPACE).items) == 6

    def test_a_listed_thread_is_the_thread(self, store: Store) -> None:
        """The listing and the single look agree, lease and all."""
        grown(store, A, 2)
        store.lease(A, "me", MINUTE)
        assert store.threads(SPACE).items == [store.thread(A)]
