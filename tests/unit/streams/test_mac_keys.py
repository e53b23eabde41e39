"""Authentication codes of values in Redis: for one place, one purpose, and the keys of the folder, which may change
while processes run."""

from pathlib import Path

import pytest

from slipway.errors import UnavailableError
from slipway.streams.mac_keys import GATHER_PURPOSE, LOOK_S, SETTLE_S, MacKeys
from slipway.streams.macs import ForgedError
from tests.support.clock import FakeClock
from tests.support.mac_keys import a_folder, some_keys, write_key

PLACE, VALUE = b"place", b"value"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def accepts(keys: MacKeys, code: bytes | None, place: bytes = PLACE, value: bytes = VALUE) -> bool:
    try:
        keys.check(code, place, value)
    except ForgedError:
        return False
    return True


def test_a_code_is_for_one_value_at_one_place(tmp_path: Path, clock: FakeClock) -> None:
    """A code is valid for one value at one place, also when place and value together have the same bytes."""
    keys = some_keys(a_folder(tmp_path), clock)
    code = keys.sign(PLACE, VALUE)
    assert accepts(keys, code)
    others = [(b"placed", VALUE), (PLACE, b"values"), (b"plac", b"evalue"), (b"placev", b"alue"), (b"", PLACE + VALUE)]
    assert not any(accepts(keys, code, *other) for other in others)


def test_a_code_that_is_missing_or_changed_is_refused(tmp_path: Path, clock: FakeClock) -> None:
    """A missing, changed, shortened or lengthened code is refused."""
    keys = some_keys(a_folder(tmp_path), clock)
    code = keys.sign(PLACE, VALUE)
    assert not any(accepts(keys, each) for each in (None, b"", code[:-1], code[:16], code + b"0", code[::-1]))


def test_other_keys_and_other_purposes_have_other_codes(tmp_path: Path, clock: FakeClock) -> None:
    """One Secret may serve two purposes: a code for one purpose is invalid for another."""
    ours = some_keys(a_folder(tmp_path / "ours"), clock)
    strangers = some_keys(a_folder(tmp_path / "theirs", byte=2), clock)
    gatherings = some_keys(tmp_path / "ours", clock, purpose=GATHER_PURPOSE)
    assert not accepts(ours, strangers.sign(PLACE, VALUE))
    assert not accepts(ours, gatherings.sign(PLACE, VALUE))


def test_unsigned_values_are_accepted_where_that_is_switched_on_and_forged_ones_are_not(
    tmp_path: Path, clock: FakeClock
) -> None:
    """With the switch for values of an earlier version, values without a code are accepted, but values with a wrong
    code are not."""
    keys = some_keys(a_folder(tmp_path), clock, accepts_unsigned=True)
    assert accepts(keys, None)
    assert not accepts(keys, b"x" * 32)


def test_a_new_key_signs_when_every_reader_may_have_it(tmp_path: Path, clock: FakeClock) -> None:
    """During a rotation a writer never signs with a key that a reader does not have yet, whichever reads the folder
    first."""
    folder = a_folder(tmp_path)
    writer, late_reader = some_keys(folder, clock), some_keys(folder, clock)
    late_reader.check(writer.sign(PLACE, VALUE), PLACE, VALUE)
    old = some_keys(a_folder(tmp_path / "old"), clock)
    write_key(folder, "2.key", 2)
    clock.advance(LOOK_S)
    assert accepts(old, writer.sign(PLACE, VALUE))
    clock.advance(SETTLE_S)
    code = writer.sign(PLACE, VALUE)
    assert not accepts(old, code)
    assert accepts(late_reader, code)


def test_a_key_may_be_exchanged_in_one_step(tmp_path: Path, clock: FakeClock) -> None:
    """A key may be exchanged in one step, as in a Secret that is rendered anew: the old key signs until other processes
    have the new one, and no longer."""
    folder = a_folder(tmp_path / "keys")
    old = some_keys(a_folder(tmp_path / "old"), clock)
    process = some_keys(folder, clock)
    before = process.sign(PLACE, VALUE)
    (folder / "1.key").unlink()
    write_key(folder, "1.key", 2)
    clock.advance(LOOK_S)
    assert accepts(old, process.sign(PLACE, VALUE))
    clock.advance(SETTLE_S)
    assert accepts(some_keys(folder, clock), process.sign(PLACE, VALUE))
    clock.advance(LOOK_S)
    assert not accepts(process, before)


def test_without_a_key_nothing_is_signed_or_accepted(tmp_path: Path, clock: FakeClock) -> None:
    """Without a key, because the folder is missing or empty, nothing is signed or accepted; a key that appears is
    used."""
    folder = tmp_path / "keys"
    keys = some_keys(folder, clock)
    for make in (lambda: None, folder.mkdir, lambda: (folder / "1.key").write_text("short")):
        make()
        with pytest.raises(UnavailableError):
            keys.sign(PLACE, VALUE)
        assert not accepts(keys, b"x" * 32)
        clock.advance(LOOK_S)
    write_key(folder, "1.key", 1)
    assert accepts(keys, keys.sign(PLACE, VALUE))


def test_the_last_keys_stay_while_the_folder_cannot_be_read(tmp_path: Path, clock: FakeClock) -> None:
    """The last keys stay in use while the folder cannot be read."""
    folder = a_folder(tmp_path / "keys")
    keys = some_keys(folder, clock)
    code = keys.sign(PLACE, VALUE)
    (folder / "1.key").unlink()
    folder.rmdir()
    clock.advance(LOOK_S)
    assert keys.sign(PLACE, VALUE) == code
