"""Which stream may still use a piece of memory of the simulated device."""

from onsight_explain.simulated.machine import MemoryUses


def test_a_read_after_a_write_of_the_same_stream_is_the_last_use():
    uses = MemoryUses(allocated_on=0)
    uses.add(stream=2, work=1, is_write=True)
    uses.add(stream=2, work=2, is_write=False)
    assert uses.find_other_user({2: 1}) == 2
    assert uses.find_other_user({2: 2}) is None


def test_a_write_forgets_earlier_reads():
    uses = MemoryUses(allocated_on=0)
    uses.add(stream=3, work=5, is_write=False)
    uses.add(stream=2, work=1, is_write=True)
    assert uses.find_other_user({2: 1}) is None
