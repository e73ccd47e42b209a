"""The promises of `savegame.store` as tests, one each, a module per subject. A store is one when it passes them all.

    class TestMine(StoreContract):
        @pytest.fixture
        def store(self, tmp_path): ...          # a fresh, empty store
        def reopen(self, store): ...            # another one on the same data

Only the public contract is used.
"""

from savegame.testing.contract.lasting import Closing, Upkeep
from savegame.testing.contract.leases import Leases
from savegame.testing.contract.reading import Names, Reading
from savegame.testing.contract.records import Records
from savegame.testing.contract.refusals import Refusals
from savegame.testing.contract.rewriting import Rewriting
from savegame.testing.contract.searching import Searching
from savegame.testing.contract.writing import Appending, Batches


class StoreContract(Appending, Batches, Refusals, Reading, Rewriting, Records, Leases, Names, Upkeep, Searching, Closing):
    """What every store promises. Override `store`, and `reopen` where data outlives the store object."""


__all__ = ["StoreContract"]
