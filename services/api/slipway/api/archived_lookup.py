"""An allocation whose log is read: the object, or what its archive kept of it when the object is gone.

Invariant: what is only archived is found by its whole AllocationID, by callers who may look into its workspace; for
others it does not exist.
"""

from slipway.api.lookup import Lookup
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import InvalidError, NotFoundError
from slipway.logarchive.archive import LogArchive
from slipway.logarchive.records import allocation_of
from slipway.model.ids import AllocationId, split_allocation_id
from slipway.runtime import log

_log = log.get_logger(__name__)


async def find_logged(lookup: Lookup, archive: LogArchive | None, text: str) -> Allocation:
    """The allocation that `text` means.

    Raises:
        NotFoundError: there is none, also not in the archive.
        AmbiguousError: there are several.
        TransientError: it is no object, and the archive does not answer.
    """
    try:
        return await lookup.find(text)
    except NotFoundError:
        if archive is None or split_allocation_id(text) is None:
            raise
        try:
            record = await archive.record(AllocationId(text))
        except InvalidError as error:
            _log.error("record of an archived log not readable", allocation=text, error=str(error))
            raise
        if record is None or record.allocation != text or not await lookup.sees(record.workspace):
            raise
        return allocation_of(record)
